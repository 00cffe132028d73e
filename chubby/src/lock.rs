//! Locks, on top of the trait alone.

use bytes::Bytes;

use crate::{Chubby, Compare, Error, Revision, Session, TransactionOutcome, WatchEvent, Write};

/// Takes the lock at `path` for the session if it is free, and writes `value` into it. The revision is the lock's
/// sequencer: compare [`Compare::Created`] with it in every transaction that needs the lock.
///
/// # Errors
/// As [`Chubby::transact`]; after `Unavailable` the lock may have been taken.
pub async fn try_lock(
    chubby: &dyn Chubby,
    session: &dyn Session,
    path: &str,
    value: Bytes,
) -> Result<Option<Revision>, Error> {
    let write = Write::put_leased(path, value, session.lease());
    match chubby.transact(vec![Compare::Absent(path.to_owned())], vec![write]).await? {
        TransactionOutcome::Committed(revision) => Ok(Some(revision)),
        TransactionOutcome::Conflict => Ok(None),
    }
}

/// As [`try_lock`], but waits until the lock is free. Cancel-safe: dropped while it waits, it holds nothing; dropped
/// while it takes the lock, the lock is released with the session.
///
/// # Errors
/// As [`try_lock`].
pub async fn acquire(chubby: &dyn Chubby, session: &dyn Session, path: &str, value: Bytes) -> Result<Revision, Error> {
    loop {
        if let Some(revision) = try_lock(chubby, session, path, value.clone()).await? {
            return Ok(revision);
        }
        wait_until_free(chubby, path).await?;
    }
}

/// Returns when `path` may be free; a wrong guess costs one more attempt.
async fn wait_until_free(chubby: &dyn Chubby, path: &str) -> Result<(), Error> {
    let (files, revision) = chubby.list(path).await?;
    if !files.iter().any(|file| file.path == path) {
        return Ok(());
    }
    let mut watch = chubby.watch(path, revision).await?;
    loop {
        match watch.next().await {
            Some(WatchEvent::Deleted { path: deleted, .. }) if deleted == path => return Ok(()),
            Some(WatchEvent::Gap) | None => return Ok(()),
            Some(WatchEvent::Put(_) | WatchEvent::Deleted { .. }) => {}
        }
    }
}
