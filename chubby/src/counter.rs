//! Id counters, on top of the trait alone.

use std::ops::Range;

use crate::{Chubby, Compare, Error, TransactionOutcome, Write, paths};

/// A counter that never gives the same id twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// The path of the counter.
    #[must_use]
    pub fn path(self) -> String {
        let name = match self {
            Self::Servers => "servers",
            Self::Tables => "tables",
            Self::Groups => "groups",
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
        let (next, compare) = match chubby.read(&path).await? {
            Some(file) => (parse_counter(&path, &file.value)?, Compare::Modified(path.clone(), file.modified)),
            None => (counter.first(), Compare::Absent(path.clone())),
        };
        let after = next.checked_add(count).ok_or_else(|| Error::Damaged(format!("{path} is exhausted")))?;
        let write = Write::put(path.clone(), after.to_string());
        if let TransactionOutcome::Committed(_) = chubby.transact(vec![compare], vec![write]).await? {
            return Ok(next..after);
        }
    }
}

fn parse_counter(path: &str, value: &[u8]) -> Result<u64, Error> {
    let text = std::str::from_utf8(value).ok();
    text.and_then(|text| text.parse().ok()).ok_or_else(|| Error::Damaged(format!("{path} is not a number")))
}
