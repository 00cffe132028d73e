//! Id counters, on top of the trait alone.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::{Chubby, Compare, Error, TransactionOutcome, Write, paths};

/// A counter that never gives the same id twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Counter {
    /// Tablet servers.
    Servers,
    /// Tables; 0 is METADATA.
    Tables,
    /// Replication groups; 1 is METADATA's.
    Groups,
    /// Tablets; 1 and 2 are METADATA's first.
    Tablets,
    /// Admin operations.
    Operations,
    /// Replicas that are added to existing groups; a group's first replicas have lower numbers.
    Replicas,
}

impl Counter {
    /// All counters.
    pub const ALL: [Self; 6] =
        [Self::Servers, Self::Tables, Self::Groups, Self::Tablets, Self::Operations, Self::Replicas];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Servers => "servers",
            Self::Tables => "tables",
            Self::Groups => "groups",
            Self::Tablets => "tablets",
            Self::Operations => "operations",
            Self::Replicas => "replicas",
        }
    }

    /// The path of the counter.
    #[must_use]
    pub fn path(self) -> String {
        format!("{}{}", paths::COUNTERS, self.name())
    }

    /// The first id that it gives.
    #[must_use]
    pub fn first(self) -> u64 {
        match self {
            Self::Servers | Self::Tables | Self::Operations => 1,
            Self::Groups => 2,
            Self::Tablets => 3,
            Self::Replicas => 1001,
        }
    }
}

/// Allocates `count` ids that were never given before and never will be again. Ids that are allocated and not used
/// are lost, which is harmless.
///
/// # Errors
/// Those of the service; `Damaged` when the counter is not a number.
pub async fn next_ids(chubby: &dyn Chubby, counter: Counter, count: u64) -> Result<Range<u64>, Error> {
    let path = counter.path();
    loop {
        let (next, compare) = read_next(chubby, counter, &path).await?;
        if let Some(ids) = take(chubby, &path, (next, compare), count).await? {
            return Ok(ids);
        }
    }
}

/// As [`next_ids_above`], for one id.
///
/// # Errors
/// As [`next_ids`].
pub async fn next_id_above(chubby: &dyn Chubby, counter: Counter, known: u64) -> Result<Option<u64>, Error> {
    Ok(next_ids_above(chubby, counter, known, 1).await?.map(|ids| ids.start))
}

/// Allocates ids as [`next_ids`] does, if the counter is above `known`, an id that is in use. `None`: it is not, because Chubby was
/// restored from an older backup. Nothing is allocated then: with each id that is taken the counter would come closer to `known`, and
/// once it is above, it does not show any more that Chubby lacks changes.
///
/// # Errors
/// As [`next_ids`].
pub async fn next_ids_above(
    chubby: &dyn Chubby,
    counter: Counter,
    known: u64,
    count: u64,
) -> Result<Option<Range<u64>>, Error> {
    let path = counter.path();
    loop {
        let (next, compare) = read_next(chubby, counter, &path).await?;
        if next <= known {
            return Ok(None);
        }
        if let Some(ids) = take(chubby, &path, (next, compare), count).await? {
            return Ok(Some(ids));
        }
    }
}

/// The next id of a counter, and the precondition that it is still the next one.
async fn read_next(chubby: &dyn Chubby, counter: Counter, path: &str) -> Result<(u64, Compare), Error> {
    Ok(match chubby.read(path).await? {
        Some(file) => (parse_counter(path, &file.value)?, Compare::Modified(path.to_owned(), file.modified)),
        None => (counter.first(), Compare::Absent(path.to_owned())),
    })
}

/// Takes `count` ids from `next` on; `None` when others were faster.
async fn take(
    chubby: &dyn Chubby,
    path: &str,
    (next, compare): (u64, Compare),
    count: u64,
) -> Result<Option<Range<u64>>, Error> {
    let after = next.checked_add(count).ok_or_else(|| Error::Damaged(format!("{path} is exhausted")))?;
    let write = Write::put(path, after.to_string());
    let outcome = chubby.transact(vec![compare], vec![write]).await?;
    Ok(matches!(outcome, TransactionOutcome::Committed(_)).then_some(next..after))
}

/// The next id of each counter.
///
/// # Errors
/// Those of the service; `Damaged` when a counter is not a number.
pub async fn read_counters(chubby: &dyn Chubby) -> Result<BTreeMap<Counter, u64>, Error> {
    let (files, _revision) = chubby.list(paths::COUNTERS).await?;
    let next = |counter: Counter| {
        let path = counter.path();
        let file = files.iter().find(|file| file.path == path);
        Ok((counter, file.map_or(Ok(counter.first()), |file| parse_counter(&path, &file.value))?))
    };
    Counter::ALL.into_iter().map(next).collect()
}

/// Raises a counter, so that the next id is `next`. A counter that is as high already stays. Ids that are skipped are lost, which
/// is harmless.
///
/// # Errors
/// Those of the service; `Damaged` when the counter is not a number.
pub async fn raise_counter(chubby: &dyn Chubby, counter: Counter, next: u64) -> Result<(), Error> {
    let path = counter.path();
    loop {
        let compare = match chubby.read(&path).await? {
            Some(file) if parse_counter(&path, &file.value)? >= next => return Ok(()),
            Some(file) => Compare::Modified(path.clone(), file.modified),
            None => Compare::Absent(path.clone()),
        };
        let write = Write::put(path.clone(), next.to_string());
        if let TransactionOutcome::Committed(_) = chubby.transact(vec![compare], vec![write]).await? {
            return Ok(());
        }
    }
}

fn parse_counter(path: &str, value: &[u8]) -> Result<u64, Error> {
    let text = std::str::from_utf8(value).ok();
    text.and_then(|text| text.parse().ok()).ok_or_else(|| Error::Damaged(format!("{path} is not a number")))
}

#[cfg(test)]
mod tests {
    use ebla_runtime::{Clock, Tasks};

    use super::*;
    use crate::embedded::Embedded;

    #[tokio::test]
    async fn a_raised_counter_gives_only_higher_ids() {
        let chubby = Embedded::in_memory(Clock::system(), &Tasks::new("test"));
        assert_eq!(next_ids(&chubby, Counter::Tables, 3).await, Ok(1..4));
        for (next, first) in [(9, 9), (5, 10), (11, 11), (20, 20)] {
            raise_counter(&chubby, Counter::Tables, next).await.unwrap();
            assert_eq!(next_ids(&chubby, Counter::Tables, 1).await, Ok(first..first + 1));
        }
        raise_counter(&chubby, Counter::Replicas, 1007).await.unwrap();
        let counters = read_counters(&chubby).await.unwrap();
        let expected = [1, 21, 2, 3, 1, 1007];
        assert_eq!(counters.into_values().collect::<Vec<_>>(), expected, "in the order of the kinds");
    }

    #[tokio::test]
    async fn a_counter_that_is_not_above_an_id_in_use_gives_nothing() {
        let chubby = Embedded::in_memory(Clock::system(), &Tasks::new("test"));
        assert_eq!(next_id_above(&chubby, Counter::Servers, 1).await, Ok(None));
        assert_eq!(next_id_above(&chubby, Counter::Servers, 0).await, Ok(Some(1)));
        assert_eq!(next_id_above(&chubby, Counter::Servers, 2).await, Ok(None));
        assert_eq!(next_id_above(&chubby, Counter::Servers, 1).await, Ok(Some(2)), "nothing was taken");
    }
}
