//! The memory of a tablet server for locality groups that are in memory (paper, section 6).

use crate::error::{Error, Reason};
use crate::id::ServerId;

/// The groups in memory of all stores of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryGroups {
    /// The budget, in bytes.
    pub limit_bytes: u64,
    /// What all blocks of the groups need.
    pub needed_bytes: u64,
    /// The part of it that does not fit and is served from files; 0: all groups are in memory.
    pub excess_bytes: u64,
    /// What the caches hold now.
    pub cached_bytes: u64,
    /// Blocks that reads of these groups had to read from files since the start of the process.
    pub disk_reads: u64,
}

impl MemoryGroups {
    /// Checks that `bytes` more fit.
    ///
    /// # Errors
    /// `ResourceExhausted` with the server, what is needed, what is left, and what to do.
    pub fn check_room(&self, bytes: u64, server: ServerId) -> Result<(), Error> {
        let left = self.limit_bytes.saturating_sub(self.needed_bytes);
        if bytes <= left {
            return Ok(());
        }
        Err(Error::new(
            Reason::ResourceExhausted,
            format!(
                "locality group not put in memory: its families need about {bytes} bytes on tablet server {server}, and {left} of {} are \
                 left for such groups (--memory-groups); the size is that of the group that they are in now, so move them to one of their \
                 own first, or give the servers more",
                self.limit_bytes
            ),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_refused_with_numbers() {
        let groups = MemoryGroups { limit_bytes: 100, needed_bytes: 60, ..MemoryGroups::default() };
        assert!(groups.check_room(40, ServerId::new(3)).is_ok());
        let refused = groups.check_room(41, ServerId::new(3)).unwrap_err();
        assert_eq!(refused.reason, Reason::ResourceExhausted);
        assert!(refused.message.contains("about 41 bytes on tablet server 3, and 40 of 100 are left"), "{refused}");
        let exceeded = MemoryGroups { needed_bytes: 200, ..groups };
        assert!(exceeded.check_room(1, ServerId::new(3)).is_err());
        assert!(exceeded.check_room(0, ServerId::new(3)).is_ok(), "an empty group always fits");
    }
}
