//! The gRPC services: messages to values and back, and who calls.
//!
//! ```text
//!   identity   who calls, from a request's headers
//!   bearer     ... by tokens that somebody else has signed
//!   messages   messages to values and back; errors to statuses and back
//!   names      MountTable: one method a call
//!   keep       MountTable.KeepMounted: refreshes without a walk
//!   listing    MountTable.Glob: a listing as messages
//!   watch      what has changed between two looks at a name: pure
//!   watcher    MountTable.Watch: looks, and tells
//!   admin      MountTableAdmin: for superusers, but for what this server counts
//!   changes    whether a server makes changes: a switch for operators
//! ```
//!
//! What changes the tree goes on when its caller has gone: a protocol that is broken off leaves work to others.

mod admin;
pub mod bearer;
mod changes;
pub mod identity;
mod keep;
mod listing;
pub mod messages;
mod names;
pub mod watch;
mod watcher;

use std::future::Future;
use std::sync::Arc;

use ebla_runtime::Tasks;
use futures::StreamExt;
use futures::stream::BoxStream;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::MetadataMap;
use tonic::{Response, Status};

use crate::error::{Error, Reason};
use crate::identity::{Caller, Standing};
use crate::service::changes::Switch;
use crate::service::identity::Door;
use crate::store::cached::Knowledge;
use crate::store::{Store, Surroundings};
use crate::table::Table;

pub use changes::Changes;

/// Messages of a stream that wait for a slow reader; then the work waits.
const WAITING_MAX: usize = 32;

/// What a method returns.
pub(crate) type Answer<T> = Result<Response<T>, Status>;

/// An answer of many messages.
pub(crate) type Messages<T> = BoxStream<'static, Result<T, Status>>;

fn told<T>(outcome: Result<T, Error>) -> Result<T, Status> {
    outcome.map_err(|error| messages::status(&error))
}

fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

/// Where the messages of an answer go, one by one.
struct Outlet<T>(mpsc::Sender<Result<T, Status>>);

impl<T> Outlet<T> {
    /// Waits for a slow reader; `CANCELLED` when nobody reads any more.
    async fn send(&self, message: T) -> Result<(), Error> {
        let gone = |_| Error::new(Reason::Cancelled, "nobody reads the rest");
        self.0.send(Ok(message)).await.map_err(gone)
    }

    /// Whether somebody reads.
    fn is_open(&self) -> bool {
        !self.0.is_closed()
    }
}

/// What both services work with. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Service<S> {
    table: Table<S>,
    /// What the table is called, for who has to say which one he means.
    name: Arc<str>,
    door: Door,
    /// For who counts.
    knowledge: Knowledge,
    switch: Switch,
    tasks: Tasks,
}

impl<S: Store + Surroundings + Clone + 'static> Service<S> {
    /// Serves `table`, called `name`, to those whom `door` lets in, and tells them what `knowledge` counts; work that
    /// outlives its call belongs to `tasks`.
    pub fn new(table: Table<S>, name: &str, door: Door, knowledge: Knowledge, tasks: Tasks) -> Self {
        Self { table, name: name.into(), door, knowledge, switch: Switch::default(), tasks }
    }

    /// Whether changes are made now.
    pub fn changes(&self) -> Changes {
        self.switch.now()
    }

    fn caller(&self, metadata: &MetadataMap) -> Result<Caller, Status> {
        told(self.door.caller(metadata))
    }

    fn superuser(&self, metadata: &MetadataMap) -> Result<Caller, Status> {
        let caller = self.caller(metadata)?;
        match caller.standing {
            Standing::Superuser => Ok(caller),
            Standing::Ordinary => {
                let wrong = "only superusers of this mounttable may: those that it was started with (--superuser)";
                Err(messages::status(&Error::new(Reason::NoAccess, wrong)))
            }
        }
    }

    /// Before every change.
    fn may_change(&self) -> Result<(), Status> {
        told(self.switch.check())
    }

    /// Does the work to its end, also when whoever waits for it goes away.
    async fn detached<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Status> {
        let outcome = self.tasks.start("change", work);
        let stopped = |_| Err(Error::new(Reason::Unavailable, "the server stops"));
        told(outcome.await.unwrap_or_else(stopped))
    }

    /// Answers with what `work` puts into the outlet, and with its error as the last message. It ends by itself, or when
    /// the server is told to stop.
    fn streamed<T, F>(&self, name: &'static str, work: impl FnOnce(Outlet<T>) -> F) -> Response<Messages<T>>
    where
        T: Send + 'static,
        F: Future<Output = Result<(), Error>> + Send + 'static,
    {
        let (sender, receiver) = mpsc::channel(WAITING_MAX);
        let work = work(Outlet(sender.clone()));
        self.tasks.spawn_until_stopped(name, async move {
            if let Err(error) = work.await {
                // Nobody may be left to hear of it.
                drop(sender.send(Err(messages::status(&error))).await);
            }
        });
        Response::new(ReceiverStream::new(receiver).boxed())
    }
}
