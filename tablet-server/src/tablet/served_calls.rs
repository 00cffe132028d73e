//! Calls of other servers: each is an operation of this server, in the trace that its header names.
//!
//! A call of this server's own router is a part of the operation of its front.

use std::sync::Arc;
use std::time::Duration;

use ebla_client::{CallError, ReadStream, received_trace};
use ebla_model::id::{GroupId, TableId, TabletId};
use ebla_proto::{status, tablet as wire};
use ebla_runtime::trace::{self, Operation, Origin, Outcome, TabletIds, TracedStream};
use futures::StreamExt as _;

use crate::tablet::handler::TabletHandler;

impl TabletHandler {
    /// As [`TabletHandler::read`], for another server.
    ///
    /// # Errors
    /// As [`TabletHandler::read`].
    pub async fn serve_read(&self, request: wire::ReadRequest, timeout: Duration) -> Result<ReadStream, CallError> {
        let operation = self.begin("Read", request.header.as_ref());
        let open = OpenCall(Some(Arc::clone(&operation)));
        match trace::scope(Arc::clone(&operation), self.read(request, timeout)).await {
            Ok(stream) => {
                // The stream ends the operation.
                open.release();
                Ok(TracedStream::new(stream, operation, outcome_of).boxed())
            }
            Err(error) => {
                operation.end(outcome_of(&error));
                Err(error)
            }
        }
    }

    /// As [`TabletHandler::read_once`], for another server.
    ///
    /// # Errors
    /// As [`TabletHandler::read_once`].
    pub async fn serve_read_once(
        &self,
        request: wire::ReadRequest,
        timeout: Duration,
    ) -> Result<Option<wire::ReadReply>, CallError> {
        let operation = self.begin("Read", request.header.as_ref());
        run(operation, self.read_once(request, timeout)).await
    }

    /// As [`TabletHandler::write`], for another server.
    ///
    /// # Errors
    /// As [`TabletHandler::write`].
    pub async fn serve_write(
        &self,
        request: wire::WriteRequest,
        timeout: Duration,
    ) -> Result<wire::WriteReply, CallError> {
        let operation = self.begin("Write", request.header.as_ref());
        run(operation, self.write(request, timeout)).await
    }

    /// As [`TabletHandler::check`], for another server.
    ///
    /// # Errors
    /// As [`TabletHandler::check`].
    pub async fn serve_check(
        &self,
        request: wire::CheckRequest,
        timeout: Duration,
    ) -> Result<wire::CheckReply, CallError> {
        let operation = self.begin("Check", request.header.as_ref());
        run(operation, self.check(request, timeout)).await
    }

    /// As [`TabletHandler::modify`], for another server.
    ///
    /// # Errors
    /// As [`TabletHandler::modify`].
    pub async fn serve_modify(
        &self,
        request: wire::ModifyRequest,
        timeout: Duration,
    ) -> Result<wire::ModifyReply, CallError> {
        let operation = self.begin("Modify", request.header.as_ref());
        run(operation, self.modify(request, timeout)).await
    }

    fn begin(&self, method: &'static str, header: Option<&wire::Header>) -> Arc<Operation> {
        let operation = self.recorder().begin(method, Origin::Server, received_trace(header));
        if let Some(header) = header {
            let (table, tablet) = (TableId::new(header.table), TabletId::new(header.tablet));
            operation.set_tablet(TabletIds { table, tablet, group: GroupId::default() });
        }
        operation
    }
}

/// An operation that ends as cancelled when its call is dropped.
struct OpenCall(Option<Arc<Operation>>);

impl OpenCall {
    /// Something else ends the operation.
    fn release(mut self) {
        self.0 = None;
    }
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        if let Some(operation) = &self.0 {
            operation.end(Outcome::CANCELLED);
        }
    }
}

/// Runs a call as this operation.
async fn run<T>(operation: Arc<Operation>, call: impl Future<Output = Result<T, CallError>>) -> Result<T, CallError> {
    trace::run(operation, call, |outcome| outcome.as_ref().map_or_else(outcome_of, |_reply| Outcome::OK)).await
}

fn outcome_of(error: &CallError) -> Outcome {
    Outcome::of_code(status::to_status(&error.error).code().into())
}
