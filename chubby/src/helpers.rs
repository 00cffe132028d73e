//! What is built on the trait alone: id counters and locks; and what every implementation refuses.

use std::collections::BTreeSet;
use std::ops::Range;

use bytes::Bytes;

use crate::{Chubby, Compare, Error, Event, Outcome, Revision, Session, Write, paths};

/// Refuses a transaction that writes a path twice or names none.
pub(crate) fn validate(writes: &[Write]) -> Result<(), Error> {
    let mut seen = BTreeSet::new();
    for write in writes {
        let (Write::Put { path, .. } | Write::Delete { path }) = write;
        if path.is_empty() || !seen.insert(path) {
            return Err(Error::Invalid(format!("path {path:?} is empty or written twice")));
        }
    }
    Ok(())
}

/// A counter of ids that are never given twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counter {
    /// Tablet servers.
    Servers,
    /// Tables; 0 is METADATA.
    Tables,
    /// Tablets; 1 and 2 are METADATA's first.
    Tablets,
    /// Admin operations.
    Operations,
    /// Replicas that are added to tablets after their making; a tablet's first ones have the numbers below.
    Replicas,
}

impl Counter {
    /// Where it is kept.
    #[must_use]
    pub fn path(self) -> String {
        let name = match self {
            Self::Servers => "servers",
            Self::Tables => "tables",
            Self::Tablets => "tablets",
            Self::Operations => "operations",
            Self::Replicas => "replicas",
        };
        format!("{}{name}", paths::COUNTERS)
    }

    /// The first id that it gives.
    #[must_use]
    pub fn first(self) -> u64 {
        match self {
            Self::Servers | Self::Tables | Self::Operations => 1,
            Self::Tablets => 3,
            Self::Replicas => 1001,
        }
    }
}

/// Takes `count` ids that nobody has been given before or will be again. Ids taken and not used are lost, which is fine.
///
/// # Errors
/// As the service; `Damaged` when the counter is no number.
pub async fn next_ids(chubby: &dyn Chubby, counter: Counter, count: u64) -> Result<Range<u64>, Error> {
    let path = counter.path();
    loop {
        let (next, compare) = match chubby.read(&path).await? {
            Some(file) => (parse_counter(&path, &file.value)?, Compare::Modified(path.clone(), file.modified)),
            None => (counter.first(), Compare::Absent(path.clone())),
        };
        let after = next.checked_add(count).ok_or_else(|| Error::Damaged(format!("{path} has run out")))?;
        let write = Write::put(path.clone(), after.to_string());
        if let Outcome::Done(_) = chubby.transact(vec![compare], vec![write]).await? {
            return Ok(next..after);
        }
    }
}

fn parse_counter(path: &str, value: &[u8]) -> Result<u64, Error> {
    let text = std::str::from_utf8(value).ok();
    text.and_then(|text| text.parse().ok()).ok_or_else(|| Error::Damaged(format!("{path} is no number")))
}

/// Takes the lock at `path` for the session if nobody has it, and says so in `value`. The revision is the lock's
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
        Outcome::Done(revision) => Ok(Some(revision)),
        Outcome::Conflict => Ok(None),
    }
}

/// As [`try_lock`], but waits until the lock is free. Cancel-safe: dropped while it waits, it holds nothing; dropped while
/// it takes the lock, the lock goes with the session.
///
/// # Errors
/// As [`try_lock`].
pub async fn acquire(chubby: &dyn Chubby, session: &dyn Session, path: &str, value: Bytes) -> Result<Revision, Error> {
    loop {
        if let Some(revision) = try_lock(chubby, session, path, value.clone()).await? {
            return Ok(revision);
        }
        until_free(chubby, path).await?;
    }
}

/// Returns when `path` may be free; being wrong costs one more attempt.
async fn until_free(chubby: &dyn Chubby, path: &str) -> Result<(), Error> {
    let (files, revision) = chubby.list(path).await?;
    if !files.iter().any(|file| file.path == path) {
        return Ok(());
    }
    let mut watch = chubby.watch(path, revision).await?;
    loop {
        match watch.next().await {
            Some(Event::Deleted { path: deleted, .. }) if deleted == path => return Ok(()),
            Some(Event::Gap) | None => return Ok(()),
            Some(Event::Put(_) | Event::Deleted { .. }) => {}
        }
    }
}
