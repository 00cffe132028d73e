//! Where calls are taken: the office, for as long as this master holds it.
//!
//! A change goes on when its caller has gone: the work is a task of the term, and the call only waits for it.

use std::future::Future;
use std::time::Duration;

use ebla_client::Deadline;
use ebla_model::error::{Error, Reason};
use ebla_proto::status::to_status;
use tokio::sync::watch;
use tonic::{Response, Status};

use crate::election;
use crate::office::Office;

/// How long a change is worked on before its caller is told that the rest will be done later.
const CHANGE_LIMIT: Duration = Duration::from_secs(60);

/// Takes calls for as long as the process lives: in office or not. Clones are the same one.
#[derive(Clone, Debug)]
pub(crate) struct Desk {
    office: watch::Receiver<Option<Office>>,
}

impl Desk {
    pub(crate) const fn new(office: watch::Receiver<Option<Office>>) -> Self {
        Self { office }
    }

    /// The office, while this master holds it.
    ///
    /// # Errors
    /// `NotMaster`.
    pub(crate) fn office(&self) -> Result<Office, Error> {
        self.office.borrow().clone().ok_or_else(election::deposed)
    }

    /// Runs a change as a task of the term and waits for it.
    ///
    /// # Errors
    /// What the change says; `NotMaster`; `OutcomeUnknown` when the term ends before it.
    pub(crate) async fn change<T, F>(&self, change: impl FnOnce(Office, Deadline) -> F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let office = self.office()?;
        let deadline = office.deadline(CHANGE_LIMIT);
        let tasks = office.runtime().tasks.clone();
        let outcome = tasks.start_until_stopped("admin change", change(office, deadline)).await;
        outcome.unwrap_or_else(|_ended| Err(Error::new(Reason::OutcomeUnknown, "the master left office")))
    }
}

/// An outcome as gRPC tells it.
pub(crate) fn answer<T>(outcome: Result<T, Error>) -> Result<Response<T>, Status> {
    outcome.map(Response::new).map_err(|error| to_status(&error))
}
