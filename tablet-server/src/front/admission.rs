//! Admission control of the public data API: a call beyond the limit of concurrent calls is refused before its body is read.
//!
//! The answer is `Busy` (UNAVAILABLE) with a delay, which every client retries; nothing was applied. Which calls are refused
//! is decided by [`CallLimit`]. A read counts until its first message; later ones wait for their reader, not for the server.
//! A table beyond its share is refused later, when the request is read and names it.

use std::{
    collections::HashMap,
    convert::Infallible,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use ebla_model::{Error, Reason, TableName};
use ebla_proto::status::{from_status, to_status};
use ebla_runtime::{Clock, ConnectionInfo, Reservation, ResourceCounter};
use parking_lot::Mutex;
use tonic::{
    Status,
    codegen::{BoxFuture, Service, http},
    server::NamedService,
};

use super::call_limit::{CallLimit, Outcome};

/// The method whose calls are batches of any size: their time says nothing about the load.
const BATCH: &str = "/MutateRows";

/// The calls of a front. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct CallAdmission {
    clock: Clock,
    /// Guards the counters of the connections too, so that the number of connections with calls is exact.
    limit: Arc<Mutex<CallLimit>>,
    /// The calls in progress of each table that has some. Locked before the limit.
    tables: Arc<Mutex<HashMap<TableName, usize>>>,
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
        self.admission.limit.lock().end_table(own);
    }
}

/// A call in progress. Dropped before it is answered: its caller gave up.
struct Call {
    admission: CallAdmission,
    connection: ResourceCounter,
    /// Taken when the call ends.
    place: Option<Reservation>,
    began: Duration,
    is_batch: bool,
}

impl CallAdmission {
    /// No calls, and the highest limit.
    pub(super) fn new(clock: Clock) -> Self {
        let limit = Arc::new(Mutex::new(CallLimit::new(clock.monotonic())));
        Self { clock, limit, tables: Arc::default() }
    }

    /// Counts a call that has begun for the table that it names.
    ///
    /// # Errors
    /// `Busy` when the server is overloaded and the table is beyond its share.
    pub(super) fn try_begin_table(&self, table: &TableName) -> Result<TableCall, Error> {
        let mut tables = self.tables.lock();
        let own = tables.get(table).copied().unwrap_or_default();
        if !self.limit.lock().try_begin_table(own) {
            let message = format!("this server is overloaded, and works on {own} calls for this table; retry later");
            return Err(Error::new(Reason::Busy, message));
        }
        tables.insert(table.clone(), own + 1);
        drop(tables);
        Ok(TableCall { admission: self.clone(), table: table.clone() })
    }

    /// Begins a call of this connection.
    fn try_begin(&self, connection: &ResourceCounter, is_batch: bool) -> Result<Call, Error> {
        let mut limit = self.limit.lock();
        if !limit.try_begin(connection.in_use()) {
            let message =
                format!("this server is overloaded: it works on {} calls at most now; retry later", limit.limit());
            return Err(Error::new(Reason::Busy, message));
        }
        let place = connection.try_reserve(1, usize::MAX);
        drop(limit);
        let connection = connection.clone();
        Ok(Call { admission: self.clone(), connection, place, began: self.clock.monotonic(), is_batch })
    }
}

impl Call {
    fn end(&mut self, is_late: bool) {
        let Some(place) = self.place.take() else { return };
        let now = self.admission.clock.monotonic();
        let outcome = match (self.is_batch, is_late) {
            (true, _) => Outcome::Ignored,
            (false, true) => Outcome::TooLate,
            (false, false) => Outcome::Answered(now.saturating_sub(self.began)),
        };
        let mut limit = self.admission.limit.lock();
        drop(place);
        limit.end(self.connection.in_use(), outcome, now);
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.end(true);
    }
}

/// Whether the call ended because its deadline passed.
fn is_late(response: &http::Response<tonic::body::Body>) -> bool {
    Status::from_header_map(response.headers()).is_some_and(|status| from_status(&status).0.reason == Reason::Deadline)
}

/// A service with a limit of concurrent calls.
#[derive(Clone, Debug)]
pub(super) struct WithAdmission<S> {
    service: S,
    admission: CallAdmission,
}

impl<S> WithAdmission<S> {
    /// Limits the calls of `service`.
    pub(super) const fn new(service: S, admission: CallAdmission) -> Self {
        Self { service, admission }
    }
}

impl<S: NamedService> NamedService for WithAdmission<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<http::Request<tonic::body::Body>> for WithAdmission<S>
where
    S: Service<
            http::Request<tonic::body::Body>,
            Response = http::Response<tonic::body::Body>,
            Error = Infallible,
            Future: Send + 'static,
        >,
{
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        let connection =
            request.extensions().get::<ConnectionInfo>().map(|origin| origin.calls.clone()).unwrap_or_default();
        let is_batch = request.uri().path().ends_with(BATCH);
        match self.admission.try_begin(&connection, is_batch) {
            Ok(mut call) => {
                let response = self.service.call(request);
                Box::pin(async move {
                    let response = response.await?;
                    call.end(is_late(&response));
                    Ok(response)
                })
            }
            Err(error) => Box::pin(async move { Ok(to_status(&error).into_http()) }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::super::call_limit::LIMIT_MAX;
    use super::*;

    #[test]
    fn calls_beyond_the_limit_are_refused_until_others_have_ended() {
        let admission = CallAdmission::new(Clock::manual());
        let connection = ResourceCounter::default();
        let mut calls: Vec<_> =
            (0..LIMIT_MAX).map(|_| admission.try_begin(&connection, false).map_err(drop).unwrap()).collect();
        let refused = admission.try_begin(&ResourceCounter::default(), false).map(drop).unwrap_err();
        assert_eq!(refused.reason, Reason::Busy);
        calls.pop().unwrap().end(false);
        assert!(admission.try_begin(&ResourceCounter::default(), false).is_ok());
        drop(calls);
        assert_eq!(connection.in_use(), 0);
    }

    #[test]
    fn concurrent_calls_of_one_connection_are_counted_exactly() {
        let admission = CallAdmission::new(Clock::manual());
        let connection = ResourceCounter::default();
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for number in 0..20_000 {
                        let mut call = admission.try_begin(&connection, false).map_err(drop).unwrap();
                        if number % 2 == 0 {
                            call.end(false);
                        }
                    }
                });
            }
        });
        let mut limit = admission.limit.lock();
        // With a wrong number of connections the shares would be wrong, and the last call would not have all of it.
        (0..LIMIT_MAX).for_each(|own| assert!(limit.try_begin(own), "{own}"));
    }

    #[test]
    fn calls_are_counted_for_their_tables_until_they_end() {
        let admission = CallAdmission::new(Clock::manual());
        let [busy, quiet] = ["busy", "quiet"].map(|table| TableName::from_parts("p", "i", table).unwrap());
        let call = |table| {
            let call = admission.try_begin(&ResourceCounter::default(), false)?;
            Ok::<_, Error>((call, admission.try_begin_table(table)?))
        };
        let mut calls: Vec<_> = (0..LIMIT_MAX - 1).map(|_| call(&busy).map_err(drop).unwrap()).collect();
        calls.push(call(&quiet).map_err(drop).unwrap());
        drop(calls.remove(0));
        let refused = call(&busy).map(drop).unwrap_err();
        assert_eq!(refused.reason, Reason::Busy);
        assert!(refused.message.contains("for this table"), "{refused}");
        assert!(call(&quiet).is_ok());
        drop(calls);
        assert!(admission.tables.lock().is_empty());
    }
}
