//! The admin services' handle to the active master.
//!
//! A change continues when its caller has disconnected: it is a task of the active master, and the call only waits
//! for it.

use std::future::Future;
use std::time::Duration;

use ebla_client::Deadline;
use ebla_model::error::{Error, Reason};
use ebla_proto::status::to_status;
use ebla_runtime::trace;
use futures::future::Either;
use tokio::sync::watch;
use tonic::{Response, Status};

use crate::active::ActiveMaster;
use crate::election;

/// How long a call waits for a change. The change is finished in the background after that.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(60);

/// Gives access to the active master while this process is the active master. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct MasterHandle {
    active: watch::Receiver<Option<ActiveMaster>>,
}

impl MasterHandle {
    pub(crate) const fn new(active: watch::Receiver<Option<ActiveMaster>>) -> Self {
        Self { active }
    }

    /// The active master.
    ///
    /// # Errors
    /// `NotMaster` while this process is a standby.
    pub(crate) fn active(&self) -> Result<ActiveMaster, Error> {
        self.active.borrow().clone().ok_or_else(election::not_active)
    }

    /// The active master, for a change that the caller waits for itself.
    ///
    /// # Errors
    /// `NotMaster`; as [`ActiveMaster::check_not_behind`].
    pub(crate) async fn active_for_change(&self) -> Result<ActiveMaster, Error> {
        let master = self.active()?;
        master.check_not_behind().await?;
        Ok(master)
    }

    /// Runs a change as a task of the active master and waits for it.
    ///
    /// # Errors
    /// Those of the change; `NotMaster`; `OutcomeUnknown` when this master is no longer active before the change
    /// ends.
    pub(crate) async fn run_change<T, F>(&self, change: impl FnOnce(ActiveMaster, Deadline) -> F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let master = self.active()?;
        let deadline = master.deadline(CHANGE_TIMEOUT);
        let tasks = master.runtime().tasks.clone();
        let change = {
            let change = change(master.clone(), deadline);
            async move {
                master.check_not_behind().await?;
                change.await
            }
        };
        // The change is a task of its own, and what it waits for belongs to the call.
        let change = match trace::current() {
            Some(operation) => Either::Left(trace::scope(operation, change)),
            None => Either::Right(change),
        };
        let outcome = tasks.start_until_stopped("admin change", change).await;
        outcome.unwrap_or_else(|_cancelled| {
            Err(Error::new(
                Reason::OutcomeUnknown,
                "the master is no longer active; the change may be finished by the next one",
            ))
        })
    }
}

/// Converts an outcome to a gRPC response.
pub(crate) fn to_response<T>(outcome: Result<T, Error>) -> Result<Response<T>, Status> {
    outcome.map(Response::new).map_err(|error| to_status(&error))
}
