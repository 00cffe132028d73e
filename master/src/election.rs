//! Master election: the active master is the process that holds the lock `master` in Chubby; the others are standbys.
//!
//! The lock's create revision is the master epoch, plus a base that only a recovery raises. It fences every action: transactions compare it, and servers store
//! the highest epoch that they have seen on disk. So a master that was paused and still believes that it is active can
//! do no harm.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ebla_chubby::{Compare, Revision, Session, SharedChubby, TransactionOutcome, Write, acquire, paths};
use ebla_model::error::{Error, Reason};
use ebla_model::id::{Incarnation, MasterEpoch};
use ebla_proto::{convert, record};

/// The master lock, held: the right to change Chubby's files as the active master.
#[derive(Clone)]
pub(crate) struct MasterLock {
    chubby: SharedChubby,
    session: Arc<dyn Session>,
    revision: Revision,
}

impl fmt::Debug for MasterLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MasterLock").field("revision", &self.revision).finish_non_exhaustive()
    }
}

impl MasterLock {
    /// Registers this master, waits as a standby until the lock is free, and takes it. Cancel-safe: a lock that was taken is released with its
    /// session, and the registration ends with it.
    ///
    /// `ttl`: how long the lock outlives the last renewal by its holder. `master`: this process.
    ///
    /// # Errors
    /// Those of Chubby. The lock is not held then, or only until its lease expires.
    pub(crate) async fn acquire(chubby: &SharedChubby, ttl: Duration, master: &record::Master) -> Result<Self, Error> {
        let session = chubby.open_session(ttl).await?;
        let value = convert::encode_record(master.clone());
        let candidate = paths::candidate(Incarnation::new(master.incarnation));
        let acquired = async {
            let registration = Write::put_leased(candidate, value.clone(), session.lease());
            chubby.transact(Vec::new(), vec![registration]).await?;
            acquire(&**chubby, &*session, paths::MASTER, value).await
        };
        let acquired = async {
            tokio::select! {
                acquired = acquired => acquired.map_err(Error::from),
                // Its registration has ended, so other processes would not count this master any more.
                () = session.lost() => Err(Error::new(Reason::Unavailable, "the session of a standby was lost")),
            }
        };
        match acquired.await {
            Ok(revision) => Ok(Self { chubby: Arc::clone(chubby), session, revision }),
            Err(error) => {
                // The lock may have been taken although the answer was lost.
                session.close().await;
                Err(error)
            }
        }
    }

    /// The master epoch, with the cluster's epoch base.
    pub(crate) const fn epoch(&self, base: u64) -> MasterEpoch {
        MasterEpoch::new(base.saturating_add(self.revision.get()))
    }

    /// The lock's create revision.
    pub(crate) const fn revision(&self) -> Revision {
        self.revision
    }

    pub(crate) fn chubby(&self) -> &SharedChubby {
        &self.chubby
    }

    /// Returns when the lock is lost.
    pub(crate) async fn lost(&self) {
        self.session.lost().await;
    }

    /// Releases the lock: a standby can take it at once.
    pub(crate) async fn release(&self) {
        self.session.close().await;
    }

    /// A transaction that is committed only while this master is active.
    ///
    /// # Errors
    /// `NotMaster` when it no longer is; otherwise as [`ebla_chubby::Chubby::transact`].
    pub(crate) async fn transact(
        &self,
        mut compares: Vec<Compare>,
        writes: Vec<Write>,
    ) -> Result<TransactionOutcome, Error> {
        let fence = Compare::Created(paths::MASTER.to_owned(), self.revision);
        compares.push(fence.clone());
        let outcome = self.chubby.transact(compares, writes).await?;
        if outcome == TransactionOutcome::Conflict
            && self.chubby.transact(vec![fence], Vec::new()).await? == TransactionOutcome::Conflict
        {
            return Err(not_active());
        }
        Ok(outcome)
    }
}

/// The error of a master that is a standby.
pub(crate) fn not_active() -> Error {
    Error::new(Reason::NotMaster, "this master is not the active master")
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

    fn master(address: &str, incarnation: u64) -> record::Master {
        record::Master { address: address.to_owned(), incarnation, ..Default::default() }
    }

    #[tokio::test]
    async fn a_standby_is_registered_while_it_waits() {
        let chubby = chubby();
        let active = MasterLock::acquire(&chubby, TTL, &master("a:1", 1)).await.unwrap();
        let standby = master("b:1", 2);
        let waiting = MasterLock::acquire(&chubby, TTL, &standby);
        let registered = async {
            while chubby.list(paths::CANDIDATES).await.unwrap().0.len() < 2 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let file = chubby.read(&paths::candidate(Incarnation::new(2))).await.unwrap().unwrap();
            convert::decode_record::<record::Master>(file.value).unwrap()
        };
        tokio::select! {
            _ = waiting => panic!("the lock was held"),
            registered = registered => assert_eq!(registered.address, "b:1"),
        }
        active.release().await;
        while chubby.read(&paths::candidate(Incarnation::new(1))).await.unwrap().is_some() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    #[tokio::test]
    async fn a_later_master_has_a_higher_epoch_and_fences_the_previous_one() {
        let chubby = chubby();
        let first = MasterLock::acquire(&chubby, TTL, &master("a:1", 1)).await.unwrap();
        let write = || vec![Write::put("act", "x")];
        assert!(matches!(first.transact(vec![], write()).await, Ok(TransactionOutcome::Committed(_))));
        first.release().await;
        first.lost().await;
        let second = MasterLock::acquire(&chubby, TTL, &master("b:1", 2)).await.unwrap();
        assert!(second.epoch(7) > first.epoch(7));
        assert_eq!(first.transact(vec![], write()).await.unwrap_err().reason, Reason::NotMaster);
    }

    #[tokio::test]
    async fn a_conflict_of_files_is_not_treated_as_a_lost_lock() {
        let chubby = chubby();
        let lock = MasterLock::acquire(&chubby, TTL, &master("a:1", 1)).await.unwrap();
        let compare = vec![Compare::Exists("nothing".to_owned())];
        assert_eq!(lock.transact(compare, vec![]).await, Ok(TransactionOutcome::Conflict));
    }
}
