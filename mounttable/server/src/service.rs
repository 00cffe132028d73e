//! The gRPC services: authentication, and translation between messages and values.
//!
//! ```text
//!   identity    authentication of callers from request headers
//!   bearer      ... by signed tokens
//!   key_files   ... whose keys are in files that may change
//!   messages    messages to values and back; errors to statuses and back
//!   names       MountTable: one method per call
//!   batch       MountTable.BatchResolve: a reply of bounded size
//!   keep        MountTable.KeepMounted: refreshes without a walk
//!   listing     MountTable.Glob: a listing as messages
//!   watch       the difference between two states of a name: pure
//!   watcher     MountTable.Watch: polls a name, and reports changes
//!   admin       MountTableAdmin: for superusers, except for the statistics
//!   write_mode  whether a server accepts changes: a switch for operators
//! ```
//!
//! A change of the tree continues when its caller disconnects: an interrupted protocol leaves work to other requests.

mod admin;
mod batch;
pub mod bearer;
pub mod identity;
mod keep;
pub mod key_files;
mod listing;
pub(crate) mod messages;
mod names;
pub mod watch;
mod watcher;
mod write_mode;

use std::future::Future;
use std::sync::Arc;

use ebla_mounttable_tree::error::{Error, Reason};
use ebla_mounttable_tree::identity::{Caller, Privilege};
use ebla_mounttable_tree::store::caching::CacheHandle;
use ebla_mounttable_tree::store::{Environment, Store};
use ebla_mounttable_tree::table::Table;
use ebla_runtime::Tasks;
use futures::StreamExt;
use futures::stream::BoxStream;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::MetadataMap;
use tonic::{Response, Status};

use crate::service::identity::{Authenticator, Session};
use crate::service::write_mode::WriteSwitch;

pub use write_mode::WriteMode;

/// The number of messages queued for a slow reader; then the producer waits.
const QUEUED_MAX: usize = 32;

/// The result of a unary method.
pub(crate) type RpcResult<T> = Result<Response<T>, Status>;

/// A stream of replies.
pub(crate) type ReplyStream<T> = BoxStream<'static, Result<T, Status>>;

fn to_status<T>(outcome: Result<T, Error>) -> Result<T, Status> {
    outcome.map_err(|error| messages::status(&error))
}

fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

/// The sending end of a stream of replies.
struct ReplySink<T>(mpsc::Sender<Result<T, Status>>);

impl<T> ReplySink<T> {
    /// Waits for a slow reader; `CANCELLED` when the reader has gone.
    async fn send(&self, message: T) -> Result<(), Error> {
        let gone = |_| Error::new(Reason::Cancelled, "the reader disconnected");
        self.0.send(Ok(message)).await.map_err(gone)
    }

    /// Whether the reader is still there.
    fn is_open(&self) -> bool {
        !self.0.is_closed()
    }
}

/// The shared state of both services. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Service<S> {
    table: Table<S>,
    /// The table's name, which a destroy request must repeat.
    name: Arc<str>,
    authenticator: Authenticator,
    /// For the statistics.
    cache_handle: CacheHandle,
    write_switch: WriteSwitch,
    tasks: Tasks,
}

impl<S: Store + Environment + Clone + 'static> Service<S> {
    /// Serves `table`, called `name`, to callers that `authenticator` accepts, with the statistics of `cache_handle`;
    /// work that outlives its call runs in `tasks`.
    pub fn new(
        table: Table<S>,
        name: &str,
        authenticator: Authenticator,
        cache_handle: CacheHandle,
        tasks: Tasks,
    ) -> Self {
        Self { table, name: name.into(), authenticator, cache_handle, write_switch: WriteSwitch::default(), tasks }
    }

    /// Whether the server accepts changes.
    pub fn write_mode(&self) -> WriteMode {
        self.write_switch.get()
    }

    fn caller(&self, metadata: &MetadataMap) -> Result<Caller, Status> {
        to_status(self.authenticator.caller(metadata))
    }

    /// The caller of a stream, which ends with their token.
    fn session(&self, metadata: &MetadataMap) -> Result<Session, Status> {
        to_status(self.authenticator.session(metadata))
    }

    fn superuser(&self, metadata: &MetadataMap) -> Result<Caller, Status> {
        let caller = self.caller(metadata)?;
        match caller.privilege {
            Privilege::Superuser => Ok(caller),
            Privilege::Ordinary => {
                let wrong = "only superusers may do this: those that match --superuser of this mounttable";
                Err(messages::status(&Error::new(Reason::NoAccess, wrong)))
            }
        }
    }

    /// Called before every change.
    fn check_writable(&self) -> Result<(), Status> {
        to_status(self.write_switch.check())
    }

    /// Completes the work even if its caller disconnects.
    async fn detached<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Status> {
        let outcome = self.tasks.start("change", work);
        let stopped = |_| Err(Error::new(Reason::Unavailable, "the server is stopping"));
        to_status(outcome.await.unwrap_or_else(stopped))
    }

    /// A stream of the messages that `work` sends, with its error as the last message. It ends by itself, or when the
    /// server stops.
    fn stream_reply<T, F>(&self, name: &'static str, work: impl FnOnce(ReplySink<T>) -> F) -> Response<ReplyStream<T>>
    where
        T: Send + 'static,
        F: Future<Output = Result<(), Error>> + Send + 'static,
    {
        let (sender, receiver) = mpsc::channel(QUEUED_MAX);
        let work = work(ReplySink(sender.clone()));
        self.tasks.spawn_until_stopped(name, async move {
            if let Err(error) = work.await {
                // The reader may have gone.
                drop(sender.send(Err(messages::status(&error))).await);
            }
        });
        Response::new(ReceiverStream::new(receiver).boxed())
    }
}

#[cfg(test)]
mod tests;
