//! The state that the clones of a cluster handle share, and that each of its calls uses.

use std::sync::Arc;
use std::time::Duration;

use ebla_model::id::SessionId;
use parking_lot::Mutex;

use crate::deadline::Deadline;
use crate::lookup::Lookups;
use crate::options::ClusterOptions;
use crate::retry::RetryBudget;
use crate::session::Session;

/// The timeout of one attempt at a write or another small call; then the next server is tried.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(3);

/// The shared state of a cluster handle.
pub(crate) struct ClusterContext {
    pub(crate) options: ClusterOptions,
    pub(crate) session: Session,
    pub(crate) lookups: Arc<Lookups>,
    /// Guards a counter.
    pub(crate) retry_budget: Mutex<RetryBudget>,
}

impl ClusterContext {
    /// A context with an empty cache and its own session.
    pub(crate) fn new(options: ClusterOptions) -> Self {
        let session = Session::new(SessionId::new(options.runtime.rng.u128()));
        let round_robin_start = usize::try_from(options.runtime.rng.below(1 << 16)).unwrap_or(0);
        let lookups = Arc::new(Lookups::new(options.clone(), round_robin_start));
        Self { options, session, lookups, retry_budget: Mutex::default() }
    }

    /// The timeout of the next attempt.
    pub(crate) fn attempt_timeout(&self, deadline: Deadline) -> Duration {
        deadline.remaining(&self.options.runtime.clock).min(ATTEMPT_TIMEOUT)
    }
}
