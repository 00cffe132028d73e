//! Who is master: whoever holds the lock `master` in Chubby.
//!
//! The lock's create revision is the master's epoch. It fences everything: transactions compare it, servers keep the
//! highest they have seen on disk. So a master that was paused, and does not know that its time is over, can do no harm.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ebla_chubby::{Compare, Outcome, Revision, Session, SharedChubby, Write, acquire, paths};
use ebla_model::error::{Error, Reason};
use ebla_model::id::{Incarnation, MasterEpoch};
use ebla_proto::{convert, record};

/// The lock, held: the right to change Chubby's files as master.
#[derive(Clone)]
pub(crate) struct Seat {
    chubby: SharedChubby,
    session: Arc<dyn Session>,
    revision: Revision,
}

impl fmt::Debug for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seat").field("revision", &self.revision).finish_non_exhaustive()
    }
}

/// Waits until the lock is free and takes it. Cancel-safe: what was taken goes with its session.
///
/// `ttl`: the lock goes this long after its holder was heard of last.
///
/// # Errors
/// When Chubby fails; the lock is not held then, or only until its lease ends.
pub(crate) async fn campaign(
    chubby: &SharedChubby,
    ttl: Duration,
    address: &str,
    incarnation: Incarnation,
) -> Result<Seat, Error> {
    let session = chubby.open_session(ttl).await?;
    let master = record::Master { address: address.to_owned(), incarnation: incarnation.get(), ..Default::default() };
    match acquire(&**chubby, &*session, paths::MASTER, convert::encode_record(master)).await {
        Ok(revision) => Ok(Seat { chubby: Arc::clone(chubby), session, revision }),
        Err(error) => {
            // The lock may have been taken although the answer was lost.
            session.close().await;
            Err(error.into())
        }
    }
}

impl Seat {
    pub(crate) fn epoch(&self) -> MasterEpoch {
        MasterEpoch::new(self.revision.get())
    }

    pub(crate) fn chubby(&self) -> &SharedChubby {
        &self.chubby
    }

    /// Returns when the lock is lost.
    pub(crate) async fn lost(&self) {
        self.session.lost().await;
    }

    /// Gives the lock up.
    pub(crate) async fn resign(&self) {
        self.session.close().await;
    }

    /// A transaction that is made only while this master is in office.
    ///
    /// # Errors
    /// `NotMaster` when it no longer is; else as [`ebla_chubby::Chubby::transact`].
    pub(crate) async fn transact(&self, mut compares: Vec<Compare>, writes: Vec<Write>) -> Result<Outcome, Error> {
        let fence = Compare::Created(paths::MASTER.to_owned(), self.revision);
        compares.push(fence.clone());
        let outcome = self.chubby.transact(compares, writes).await?;
        if outcome == Outcome::Conflict && self.chubby.transact(vec![fence], Vec::new()).await? == Outcome::Conflict {
            return Err(deposed());
        }
        Ok(outcome)
    }
}

/// The error of a master whose time is over.
pub(crate) fn deposed() -> Error {
    Error::new(Reason::NotMaster, "this master is not in office")
}

#[cfg(test)]
mod tests {
    use ebla_chubby::embedded::Embedded;
    use ebla_runtime::{Clock, Tasks};

    use super::*;

    const TTL: Duration = Duration::from_secs(10);

    fn chubby() -> SharedChubby {
        Embedded::in_memory(Clock::system(), &Tasks::new("test")).shared()
    }

    #[tokio::test]
    async fn a_later_master_has_a_higher_epoch_and_fences_the_former_one() {
        let chubby = chubby();
        let first = campaign(&chubby, TTL, "a:1", Incarnation::new(1)).await.unwrap();
        let write = || vec![Write::put("act", "x")];
        assert!(matches!(first.transact(vec![], write()).await, Ok(Outcome::Done(_))));
        first.resign().await;
        first.lost().await;
        let second = campaign(&chubby, TTL, "b:1", Incarnation::new(2)).await.unwrap();
        assert!(second.epoch() > first.epoch());
        assert_eq!(first.transact(vec![], write()).await.unwrap_err().reason, Reason::NotMaster);
    }

    #[tokio::test]
    async fn a_conflict_of_the_files_is_not_taken_for_a_lost_office() {
        let chubby = chubby();
        let seat = campaign(&chubby, TTL, "a:1", Incarnation::new(1)).await.unwrap();
        let compare = vec![Compare::Exists("nothing".to_owned())];
        assert_eq!(seat.transact(compare, vec![]).await, Ok(Outcome::Conflict));
    }
}
