//! One call to one tablet, retried until a server responds or the deadline passes.

use std::sync::Arc;
use std::time::Duration;

use ebla_model::error::Error;
use ebla_proto::tablet;

use crate::context::ClusterContext;
use crate::locate::{CachedTablet, Position};
use crate::retry_state::RetryState;
use crate::transport::{CallError, Target, Transport, with_timeout};
use crate::wire;

/// One attempt of a call: the parts of its request, and the transport to send it with.
pub(crate) struct Attempt {
    pub(crate) header: tablet::Header,
    pub(crate) tablet: CachedTablet,
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) target: Target,
    pub(crate) timeout: Duration,
}

/// Finds the tablet at `position` and sends the request of `send` until a server responds or the call of `retry` ends. The
/// request must be safe to repeat: a read, or a write under one id.
pub(crate) async fn call<T, F>(
    context: &ClusterContext,
    position: &Position,
    mut retry: RetryState,
    send: impl Fn(Attempt) -> F,
) -> Result<T, Error>
where
    F: Future<Output = Result<T, CallError>>,
{
    context.retry_budget.lock().deposit();
    loop {
        let route = retry.route(context, position).await?;
        let timeout = context.attempt_timeout(retry.deadline());
        let attempt = Attempt {
            header: wire::header(&route.tablet),
            tablet: route.tablet.clone(),
            transport: Arc::clone(&context.options.transport),
            target: route.target.clone(),
            timeout,
        };
        match with_timeout(timeout, send(attempt)).await {
            Ok(value) => {
                context.lookups.record_success(route.target.server, &route.tablet);
                return Ok(value);
            }
            Err(error) => retry.record_failure(context, &route, error).await?,
        }
    }
}
