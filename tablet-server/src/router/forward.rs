//! How [`Router`] forwards requests: by a call to this server or another server of the process, else by gRPC.
//!
//! In a trace, a call to another server is the stage `forward` of the caller, and an operation of the server that is called; a call to this server is
//! neither.
//!
//! Messages are forwarded unchanged; their payloads are shared bytes, so a local call copies and encodes no row.

use std::time::Duration;

use ebla_client::{CallError, ReadStream, Target, Transport};
use ebla_proto::tablet as wire;
use ebla_runtime::trace::{self, Stage};
use futures::future::BoxFuture;

use super::Router;
use super::local::LocalTarget;
use super::plan::{Route, route};

impl Router {
    /// The target server, if it runs in this process.
    fn local_target(&self, target: &Target) -> Option<LocalTarget> {
        match route(self.home, target) {
            Route::Local => Some(LocalTarget::own(&self.handler)),
            Route::Remote => self.local_handlers.get(target.server),
        }
    }
}

/// A call to another server of the process, as a stage of the current operation, as the transport does it for those elsewhere.
fn forwarded<'a, T>(
    call: impl Future<Output = Result<T, CallError>> + Send + 'a,
) -> BoxFuture<'a, Result<T, CallError>> {
    Box::pin(async move {
        let _forwards = trace::stage(Stage::Forward);
        call.await
    })
}

impl Transport for Router {
    fn read<'a>(
        &'a self,
        target: &'a Target,
        request: wire::ReadRequest,
        timeout: Duration,
    ) -> BoxFuture<'a, Result<ReadStream, CallError>> {
        match self.local_target(target) {
            Some(local) if local.is_own() => Box::pin(async move {
                let stream = local.or_killed(local.handler().read(request, timeout)).await?;
                Ok(local.until_killed(stream))
            }),
            Some(local) => forwarded(async move {
                let stream = local.or_killed(local.handler().serve_read(request, timeout)).await?;
                Ok(local.until_killed(stream))
            }),
            None => self.remote.read(target, request, timeout),
        }
    }

    fn write<'a>(
        &'a self,
        target: &'a Target,
        request: wire::WriteRequest,
        timeout: Duration,
    ) -> BoxFuture<'a, Result<wire::WriteReply, CallError>> {
        match self.local_target(target) {
            Some(local) if local.is_own() => {
                Box::pin(async move { local.or_killed(local.handler().write(request, timeout)).await })
            }
            Some(local) => {
                forwarded(async move { Box::pin(local.or_killed(local.handler().serve_write(request, timeout))).await })
            }
            None => self.remote.write(target, request, timeout),
        }
    }

    fn check<'a>(
        &'a self,
        target: &'a Target,
        request: wire::CheckRequest,
        timeout: Duration,
    ) -> BoxFuture<'a, Result<wire::CheckReply, CallError>> {
        match self.local_target(target) {
            Some(local) if local.is_own() => {
                Box::pin(async move { local.or_killed(local.handler().check(request, timeout)).await })
            }
            Some(local) => {
                forwarded(async move { Box::pin(local.or_killed(local.handler().serve_check(request, timeout))).await })
            }
            None => self.remote.check(target, request, timeout),
        }
    }

    fn modify<'a>(
        &'a self,
        target: &'a Target,
        request: wire::ModifyRequest,
        timeout: Duration,
    ) -> BoxFuture<'a, Result<wire::ModifyReply, CallError>> {
        match self.local_target(target) {
            Some(local) if local.is_own() => {
                Box::pin(async move { local.or_killed(local.handler().modify(request, timeout)).await })
            }
            Some(local) => {
                forwarded(
                    async move { Box::pin(local.or_killed(local.handler().serve_modify(request, timeout))).await },
                )
            }
            None => self.remote.modify(target, request, timeout),
        }
    }

    fn sample<'a>(
        &'a self,
        target: &'a Target,
        request: wire::SampleRequest,
        timeout: Duration,
    ) -> BoxFuture<'a, Result<wire::SampleReply, CallError>> {
        match self.local_target(target) {
            Some(local) => Box::pin(async move { local.or_killed(local.handler().sample(request)).await }),
            None => self.remote.sample(target, request, timeout),
        }
    }
}
