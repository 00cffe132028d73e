//! The gRPC services: messages to values and back, and who calls.
//!
//! ```text
//!   identity   who calls, from a request's headers
//!   messages   messages to values and back; errors to statuses and back
//!   names      MountTable: one method a call
//!   keep       MountTable.KeepMounted: refreshes without a walk
//!   watch      what has changed between two looks at a name: pure
//!   admin      MountTableAdmin: for superusers
//! ```
//!
//! What changes the tree goes on when its caller has gone: a protocol that is broken off leaves work to others.

mod admin;
pub mod identity;
mod keep;
pub mod messages;
mod names;
pub mod watch;

use std::future::Future;

use ebla_runtime::Tasks;
use tonic::Status;
use tonic::metadata::MetadataMap;

use crate::error::{Error, Reason};
use crate::identity::{Caller, Standing};
use crate::service::identity::Door;
use crate::store::{Store, Surroundings};
use crate::table::Table;

/// What both services work with. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Service<S> {
    table: Table<S>,
    door: Door,
    tasks: Tasks,
}

impl<S: Store + Surroundings + Clone + 'static> Service<S> {
    /// Serves `table` to those whom `door` lets in; work that outlives its call belongs to `tasks`.
    pub const fn new(table: Table<S>, door: Door, tasks: Tasks) -> Self {
        Self { table, door, tasks }
    }

    fn caller(&self, metadata: &MetadataMap) -> Result<Caller, Status> {
        self.door.caller(metadata).map_err(|error| messages::status(&error))
    }

    fn superuser(&self, metadata: &MetadataMap) -> Result<Caller, Status> {
        let caller = self.caller(metadata)?;
        match caller.standing {
            Standing::Superuser => Ok(caller),
            Standing::Ordinary => Err(messages::status(&crate::rules::no_access())),
        }
    }

    /// Does the work to its end, also when whoever waits for it goes away.
    async fn detached<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Status> {
        let outcome = self.tasks.start("change", work);
        let stopped = |_| Err(Error::new(Reason::Unavailable, "the server stops"));
        outcome.await.unwrap_or_else(stopped).map_err(|error| messages::status(&error))
    }
}
