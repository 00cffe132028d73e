//! What the operations of the master wait for.
//!
//! An admin call is an operation of the master, in the trace of the server that has passed it on; what the master starts by itself begins a trace
//! ([`ActiveMaster::traced`](crate::active::ActiveMaster::traced)). Chubby, requests to tablet servers and rows of METADATA are stages; the servers
//! have operations of their own in the same trace.

use std::sync::Arc;
use std::time::Duration;

use ebla_chubby::{
    Chubby, Compare, Error, File, Revision, Session, SharedChubby, TransactionOutcome, WatchStream, Write,
};
use ebla_model::id::{GroupId, TableId};
use ebla_runtime::trace::{self, Stage, TabletIds};
use futures::future::BoxFuture;

use crate::plan::Action;

/// The name and the ids of the operation that carries an action out; `None` for small ones, such as a row of METADATA, and for those that have an
/// operation elsewhere.
pub(crate) fn traced_action(action: &Action) -> Option<(&'static str, TabletIds)> {
    let of_table = |table: TableId| TabletIds { table, ..TabletIds::default() };
    match action {
        Action::FinishGroup(group) => Some(("FinishGroup", of_group(*group))),
        Action::FinishCreate(table) => Some(("FinishCreateTable", of_table(*table))),
        Action::ApplySchema(table) => Some(("ApplySchema", of_table(*table))),
        Action::FinishOperation(_operation) => Some(("FinishDropRowRange", TabletIds::default())),
        Action::FinishDelete(table) => Some(("FinishDeleteTable", of_table(*table))),
        Action::DropReplica { group, .. } => Some(("DropReplica", of_group(*group))),
        _small => None,
    }
}

/// The ids of an operation on a group with all its tablets.
pub(crate) fn of_group(group: GroupId) -> TabletIds {
    TabletIds { group, ..TabletIds::default() }
}

/// Chubby, whose answers are waited for in the stage [`Stage::Chubby`].
#[derive(Debug)]
pub(crate) struct TracedChubby(SharedChubby);

impl TracedChubby {
    /// The same Chubby, with the stage.
    pub(crate) fn shared(chubby: SharedChubby) -> SharedChubby {
        Arc::new(Self(chubby))
    }
}

/// The answer of Chubby, waited for in its stage.
fn answer<'a, T: 'a>(answer: BoxFuture<'a, T>) -> BoxFuture<'a, T> {
    Box::pin(trace::waiting(Stage::Chubby, answer))
}

impl Chubby for TracedChubby {
    fn read<'a>(&'a self, path: &'a str) -> BoxFuture<'a, Result<Option<File>, Error>> {
        answer(self.0.read(path))
    }

    fn list<'a>(&'a self, prefix: &'a str) -> BoxFuture<'a, Result<(Vec<File>, Revision), Error>> {
        answer(self.0.list(prefix))
    }

    fn transact(&self, compares: Vec<Compare>, writes: Vec<Write>) -> BoxFuture<'_, Result<TransactionOutcome, Error>> {
        answer(self.0.transact(compares, writes))
    }

    fn watch<'a>(&'a self, prefix: &'a str, after: Revision) -> BoxFuture<'a, Result<WatchStream, Error>> {
        answer(self.0.watch(prefix, after))
    }

    fn open_session(&self, ttl: Duration) -> BoxFuture<'_, Result<Arc<dyn Session>, Error>> {
        answer(self.0.open_session(ttl))
    }
}

#[cfg(test)]
mod tests {
    use ebla_model::id::ServerId;
    use ebla_runtime::Clock;
    use ebla_runtime::trace::{MASTER, Origin, Outcome, Recorder, TraceOptions};

    use super::*;

    /// Answers after a moment of the manual clock.
    #[derive(Debug)]
    struct SlowChubby(Clock);

    impl SlowChubby {
        async fn wait(&self) {
            tokio::task::yield_now().await;
            self.0.advance(Duration::from_millis(20));
        }
    }

    impl Chubby for SlowChubby {
        fn read<'a>(&'a self, _path: &'a str) -> BoxFuture<'a, Result<Option<File>, Error>> {
            Box::pin(async {
                self.wait().await;
                Ok(None)
            })
        }

        fn list<'a>(&'a self, _prefix: &'a str) -> BoxFuture<'a, Result<(Vec<File>, Revision), Error>> {
            Box::pin(async {
                self.wait().await;
                Err(Error::LeaseLost)
            })
        }

        fn transact(&self, _: Vec<Compare>, _: Vec<Write>) -> BoxFuture<'_, Result<TransactionOutcome, Error>> {
            Box::pin(async {
                self.wait().await;
                Ok(TransactionOutcome::Conflict)
            })
        }

        fn watch<'a>(&'a self, _prefix: &'a str, _after: Revision) -> BoxFuture<'a, Result<WatchStream, Error>> {
            Box::pin(async { Err(Error::LeaseLost) })
        }

        fn open_session(&self, _ttl: Duration) -> BoxFuture<'_, Result<Arc<dyn Session>, Error>> {
            Box::pin(async { Err(Error::LeaseLost) })
        }
    }

    #[tokio::test]
    async fn an_operation_of_the_master_waits_for_chubby_in_a_stage() {
        let clock = Clock::manual();
        let options = TraceOptions { slow: Duration::ZERO, ..TraceOptions::default() };
        let recorder = Recorder::new(MASTER, options, clock.clone());
        let chubby = TracedChubby::shared(Arc::new(SlowChubby(clock)));
        let work = async {
            assert_eq!(chubby.read("a").await.ok().flatten(), None);
            assert!(chubby.list("a").await.is_err());
            assert!(chubby.transact(Vec::new(), Vec::new()).await.is_ok());
        };
        trace::run(recorder.begin("MergeTablets", Origin::Master, None), work, |()| Outcome::OK).await;
        let record = recorder.records().pop().unwrap();
        assert_eq!((record.server, record.parent), (ServerId::new(0), None));
        let times: Vec<_> = record.stages.iter().map(|time| (time.stage, time.total.as_millis(), time.count)).collect();
        assert_eq!(times, [(Stage::Chubby, 60, 3)]);
    }

    #[test]
    fn actions_that_take_long_are_operations() {
        let (method, ids) = traced_action(&Action::FinishCreate(TableId::new(7))).unwrap();
        assert_eq!((method, ids.table, ids.group), ("FinishCreateTable", TableId::new(7), GroupId::default()));
        let (method, ids) = traced_action(&Action::FinishGroup(GroupId::new(5))).unwrap();
        assert_eq!((method, ids.table, ids.group), ("FinishGroup", TableId::METADATA, GroupId::new(5)));
        assert_eq!(traced_action(&Action::RemoveDeletionRecord(TableId::new(7))), None);
    }
}
