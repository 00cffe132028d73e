//! Whether a server is near its capacity: from which use of a resource on an operator should act.
//!
//! | resource | near its limit | why not later |
//! |---|---|---|
//! | disk | 85 % are used, or at most twice the reserve is free | below the reserve the server refuses writes |
//! | memory | 90 % are used | caches fill most of it on purpose; beyond the limit the system ends the process |
//! | open files | 80 % are used | connections, compactions, and stores that grow to more files |
//! | connections | 80 % are used | a further connection is closed |
//!
//! A resource that is not known is not near its limit. A server that refuses writes has used its disk up, which is a problem of its own.

use crate::capacity::{DiskSpace, Resources, Usage, WriteState};

const DISK_PERCENT: u64 = 85;
const MEMORY_PERCENT: u64 = 90;
const FILES_PERCENT: u64 = 80;
const CONNECTIONS_PERCENT: u64 = 80;

/// A resource with a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LimitedResource {
    /// Space on the disk.
    Disk,
    /// Memory.
    Memory,
    /// Open files.
    Files,
    /// Connections.
    Connections,
}

impl LimitedResource {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Disk, Self::Memory, Self::Files, Self::Connections];
}

impl Resources {
    /// How much of a resource is used, in percent, if the server is near its limit; otherwise `None`. `writes`: whether the server accepts
    /// them.
    #[must_use]
    pub fn near_limit(&self, resource: LimitedResource, writes: WriteState) -> Option<u64> {
        let from = |usage: Option<Usage>, percent_min| usage?.percent().filter(|percent| *percent >= percent_min);
        match resource {
            LimitedResource::Disk => self.disk.filter(|_disk| writes == WriteState::Accepts).and_then(near_disk_limit),
            LimitedResource::Memory => from(self.memory, MEMORY_PERCENT),
            LimitedResource::Files => from(self.files, FILES_PERCENT),
            LimitedResource::Connections => from(self.connections, CONNECTIONS_PERCENT),
        }
    }
}

fn near_disk_limit(disk: DiskSpace) -> Option<u64> {
    let DiskSpace { free_bytes, total_bytes, reserve_bytes } = disk;
    let percent = Usage { used: total_bytes.saturating_sub(free_bytes), limit: total_bytes }.percent()?;
    (percent >= DISK_PERCENT || free_bytes <= reserve_bytes.saturating_mul(2)).then_some(percent)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(resources: &Resources) -> Vec<(LimitedResource, u64)> {
        let near = |one| Some((one, resources.near_limit(one, WriteState::Accepts)?));
        LimitedResource::ALL.into_iter().filter_map(near).collect()
    }

    #[test]
    fn each_resource_has_its_mark() {
        let below = Resources {
            disk: Some(DiskSpace { free_bytes: 16, total_bytes: 100, reserve_bytes: 2 }),
            memory: Some(Usage { used: 899, limit: 1_000 }),
            files: Some(Usage { used: 799, limit: 1_000 }),
            connections: Some(Usage { used: 79, limit: 100 }),
            sharers: 3,
        };
        assert_eq!(near(&below), []);
        let at = Resources {
            disk: Some(DiskSpace { free_bytes: 15, total_bytes: 100, reserve_bytes: 2 }),
            memory: Some(Usage { used: 900, limit: 1_000 }),
            files: Some(Usage { used: 800, limit: 1_000 }),
            connections: Some(Usage { used: 101, limit: 100 }),
            sharers: 1,
        };
        let [disk, memory, files, connections] = LimitedResource::ALL;
        assert_eq!(near(&at), [(disk, 85), (memory, 90), (files, 80), (connections, 101)]);
    }

    #[test]
    fn what_is_not_known_is_not_near_its_limit() {
        assert_eq!(near(&Resources::default()), []);
        let empty = Some(Usage::default());
        assert_eq!(
            near(&Resources { memory: empty, files: empty, connections: empty, ..Resources::default() }),
            [],
            "no limit"
        );
    }

    #[test]
    fn a_small_disk_is_near_its_limit_at_twice_the_reserve_until_the_server_refuses_writes() {
        let disk = |free_bytes| Resources {
            disk: Some(DiskSpace { free_bytes, total_bytes: 20, reserve_bytes: 2 }),
            ..Resources::default()
        };
        assert_eq!(near(&disk(5)), []);
        assert_eq!(near(&disk(4)), [(LimitedResource::Disk, 80)]);
        assert_eq!(disk(1).near_limit(LimitedResource::Disk, WriteState::Refuses), None);
    }
}
