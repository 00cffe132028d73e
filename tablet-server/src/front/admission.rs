//! Admission control of the public data API: a call beyond the limit of concurrent calls waits or is refused, before its body is read.
//!
//! The answer is `Busy` (UNAVAILABLE) with a delay, which every client retries; nothing was applied. Which calls begin, wait and are refused
//! is decided by [`CallLimit`]. A read counts until its first message; later ones wait for their reader, not for the server.
//! A table beyond its share is refused later, when the request is read and names it.
//!
//! A waiting call holds its headers and at most what the windows of its connection let the client send. Its deadline goes on: the call is
//! refused before it passes, so that the client learns the reason. One whose caller gives up leaves at once.

use std::{collections::HashMap, convert::Infallible, future::ready, mem, sync::Arc, time::Duration};

use ebla_model::{Error, Reason, TableName};
use ebla_proto::{
    services::bigtable_server::BigtableServer,
    status::{from_status, to_status},
};
use ebla_runtime::{
    Clock, ConnectionInfo, LoadShed, ResourceCounter,
    metrics::Counter,
    trace::{self, Stage},
};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tonic::{Status, body::Body, codegen::http, server::NamedService};

use super::{
    call_limit::{Arrival, CallId, CallLimit, ConnectionId, Outcome, SOON},
    metrics::FrontMetrics,
};
use crate::{
    deadline,
    middleware::{CallFuture, CallRequest, CallResponse, GrpcService, Middleware},
};

/// The service whose calls are admitted.
const DATA_SERVICE: &str = BigtableServer::<()>::NAME;
/// The method whose calls are batches of any size: their time says nothing about the load.
const BATCH: &str = "/MutateRows";

/// The calls of a front. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct CallAdmission {
    clock: Clock,
    calls: Arc<Mutex<Calls>>,
    /// The calls in progress of each table that has some. Locked before the calls.
    tables: Arc<Mutex<HashMap<TableName, usize>>>,
    /// Calls that were refused because no place became free, and because their table was beyond its share.
    overloaded: Counter,
    beyond_table_share: Counter,
    /// The headers of the response to a call that finds no place. Encoded once: an overloaded server refuses many.
    refusal: Arc<http::HeaderMap>,
}

/// How many calls wait, and how many may be in progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Places {
    pub(super) waiting: usize,
    pub(super) limit: usize,
}

/// The calls in progress, and those that wait.
#[derive(Debug)]
struct Calls {
    limit: CallLimit,
    /// Tells a waiting call that it begins.
    waiting: HashMap<CallId, oneshot::Sender<()>>,
}

impl Calls {
    fn end(&mut self, connection: ConnectionId, outcome: Outcome, now: Duration) {
        self.limit.end(connection, outcome, now);
        while let Some(call) = self.limit.begin_next() {
            // It is there: a call that gives up removes itself first.
            if let Some(waiting) = self.waiting.remove(&call) {
                let _begun = waiting.send(());
            }
        }
    }
}

/// A call in progress counts for its table until this is dropped.
#[derive(Debug)]
pub(super) struct TableCall {
    admission: CallAdmission,
    table: TableName,
}

impl Drop for TableCall {
    fn drop(&mut self) {
        let mut tables = self.admission.tables.lock();
        let Some(calls) = tables.get_mut(&self.table) else { return };
        *calls -= 1;
        let own = *calls;
        if own == 0 {
            tables.remove(&self.table);
        }
        self.admission.calls.lock().limit.end_table(own);
    }
}

/// What a call comes with.
#[derive(Clone, Debug)]
struct CallInfo {
    /// A counter of the connection. Held, so that no other connection gets its identity.
    connection: ResourceCounter,
    is_batch: bool,
}

impl CallInfo {
    fn of<B>(request: &http::Request<B>) -> Self {
        let connection = request.extensions().get::<ConnectionInfo>().map(|info| info.usage.clone());
        Self { connection: connection.unwrap_or_default(), is_batch: request.uri().path().ends_with(BATCH) }
    }

    fn id(&self) -> ConnectionId {
        ConnectionId(self.connection.identity())
    }
}

/// A call that has arrived.
enum Arrived {
    Begun(Call),
    Waiting(WaitingCall),
    Refused,
}

/// A call in progress. Dropped before it is answered: its caller gave up.
#[derive(Debug)]
struct Call {
    admission: CallAdmission,
    info: CallInfo,
    began: Duration,
    has_ended: bool,
}

/// A call that waits for a place. Dropped: its caller gave up, or it is refused.
#[derive(Debug)]
struct WaitingCall {
    admission: CallAdmission,
    info: CallInfo,
    call: CallId,
    begun: oneshot::Receiver<()>,
    has_begun: bool,
}

impl CallAdmission {
    /// No calls, and the highest limit.
    pub(super) fn new(clock: Clock) -> Self {
        let calls = Calls { limit: CallLimit::new(clock.monotonic()), waiting: HashMap::new() };
        Self {
            clock,
            calls: Arc::new(Mutex::new(calls)),
            tables: Arc::default(),
            overloaded: Counter::default(),
            beyond_table_share: Counter::default(),
            refusal: Arc::new(refusal()),
        }
    }

    /// The same, with refusals counted by these metrics, which show its places too.
    pub(super) fn counted_by(self, metrics: &FrontMetrics) -> Self {
        let counted =
            Self { overloaded: metrics.overloaded(), beyond_table_share: metrics.beyond_table_share(), ..self };
        metrics.observe(&counted);
        counted
    }

    /// How many calls wait, and how many may be in progress.
    pub(super) fn places(&self) -> Places {
        let calls = self.calls.lock();
        Places { waiting: calls.waiting.len(), limit: calls.limit.limit() }
    }

    /// Counts a call that has begun for the table that it names.
    ///
    /// # Errors
    /// `Busy` when the server is overloaded and the table is beyond its share.
    pub(super) fn try_begin_table(&self, table: &TableName) -> Result<TableCall, Error> {
        let mut tables = self.tables.lock();
        let own = tables.get(table).copied().unwrap_or_default();
        if !self.calls.lock().limit.try_begin_table(own) {
            self.beyond_table_share.increment();
            let message = format!("this server is overloaded, and works on {own} calls for this table; retry later");
            return Err(Error::new(Reason::Busy, message));
        }
        tables.insert(table.clone(), own + 1);
        drop(tables);
        Ok(TableCall { admission: self.clone(), table: table.clone() })
    }

    /// Refuses calls of an overloaded server before anything else is done for them, such as the verification of a token or a trace. Each call that
    /// passes arrives at the admission, too.
    pub(super) fn load_shed(&self) -> LoadShed {
        let admission = self.clone();
        LoadShed::new(move |connection, path| {
            let method = path.strip_prefix('/')?.strip_prefix(DATA_SERVICE)?;
            let connection = ConnectionId(connection.usage.identity());
            let is_refused = method.starts_with('/') && admission.calls.lock().limit.refuses(connection);
            is_refused.then(|| admission.refuse())
        })
    }

    /// Refuses a call that finds no place; the headers of its response.
    fn refuse(&self) -> http::HeaderMap {
        self.overloaded.increment();
        http::HeaderMap::clone(&self.refusal)
    }

    /// The response to a call that finds no place.
    fn refused(&self) -> CallResponse {
        let mut response = http::Response::new(Body::empty());
        *response.headers_mut() = self.refuse();
        response
    }

    fn arrive(&self, info: CallInfo) -> Arrived {
        let mut calls = self.calls.lock();
        match calls.limit.arrive(info.id()) {
            Arrival::Begins => {
                drop(calls);
                Arrived::Begun(Call::begin(self, info))
            }
            Arrival::Waits(call) => {
                let (sender, begun) = oneshot::channel();
                calls.waiting.insert(call, sender);
                drop(calls);
                Arrived::Waiting(WaitingCall { admission: self.clone(), info, call, begun, has_begun: false })
            }
            Arrival::Refused => Arrived::Refused,
        }
    }
}

/// The headers of a response with this status only.
fn refusal() -> http::HeaderMap {
    let error =
        Error::new(Reason::Busy, "this server is overloaded, and as many calls wait as it can begin soon; retry later");
    to_status(&error).into_http::<Body>().into_parts().0.headers
}

impl WaitingCall {
    /// Waits until the call begins; `None`: it does not within [`SOON`] and `time_left`.
    async fn begin(mut self, time_left: Duration) -> Option<Call> {
        let timeout = SOON.min(time_left);
        tokio::time::timeout(timeout, &mut self.begun).await.ok()?.ok()?;
        self.has_begun = true;
        Some(Call::begin(&self.admission, self.info.clone()))
    }
}

impl Drop for WaitingCall {
    fn drop(&mut self) {
        if self.has_begun {
            return;
        }
        let mut calls = self.admission.calls.lock();
        if calls.waiting.remove(&self.call).is_some() {
            calls.limit.leave(self.call);
        } else if self.begun.try_recv().is_ok() {
            // It got a place that it does not need any more.
            calls.end(self.info.id(), Outcome::Ignored, self.admission.clock.monotonic());
        }
    }
}

impl Call {
    /// A call that the limit has counted.
    fn begin(admission: &CallAdmission, info: CallInfo) -> Self {
        Self { admission: admission.clone(), info, began: admission.clock.monotonic(), has_ended: false }
    }

    fn end(&mut self, is_late: bool) {
        if mem::replace(&mut self.has_ended, true) {
            return;
        }
        let now = self.admission.clock.monotonic();
        let outcome = match (self.info.is_batch, is_late) {
            (true, _) => Outcome::Ignored,
            (false, true) => Outcome::TooLate,
            (false, false) => Outcome::Answered(now.saturating_sub(self.began)),
        };
        self.admission.calls.lock().end(self.info.id(), outcome, now);
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.end(true);
    }
}

/// Whether the call ended because its deadline passed.
fn is_late<B>(response: &http::Response<B>) -> bool {
    Status::from_header_map(response.headers()).is_some_and(|status| from_status(&status).0.reason == Reason::Deadline)
}

/// Answers a call in progress.
async fn answer<B>(
    mut call: Call,
    response: impl Future<Output = Result<http::Response<B>, Infallible>>,
) -> Result<http::Response<B>, Infallible> {
    let response = response.await?;
    call.end(is_late(&response));
    Ok(response)
}

/// Limits the concurrent calls of a service.
impl Middleware for CallAdmission {
    fn call(&self, service: &mut impl GrpcService, request: CallRequest) -> CallFuture {
        match self.arrive(CallInfo::of(&request)) {
            Arrived::Begun(call) => Box::pin(answer(call, service.call(request))),
            Arrived::Refused => Box::pin(ready(Ok(self.refused()))),
            Arrived::Waiting(waiting) => {
                // The one that is ready is called later; its clone is asked again whether it is.
                let later = service.clone();
                let mut service = mem::replace(service, later);
                let time_left = deadline::time_left_at_arrival(&request);
                let admission = self.clone();
                Box::pin(async move {
                    let waits = trace::stage(Stage::Admission);
                    let begun = waiting.begin(time_left).await;
                    drop(waits);
                    match begun {
                        Some(call) => answer(call, service.call(request)).await,
                        None => Ok(admission.refused()),
                    }
                })
            }
        }
    }
}

#[cfg(test)]
mod tests;
