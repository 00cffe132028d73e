//! The resources of a tablet server in reports. 0 means "not known"; a real limit is never 0.

use ebla_model::capacity::{DiskSpace, Resources, Usage, WriteState};

use crate::record;

/// The resources of a server.
pub fn resources_to_proto(resources: &Resources, writes: WriteState) -> record::Resources {
    let Resources { disk, files, memory, connections, sharers } = *resources;
    let [files, memory, connections] = [files, memory, connections].map(Option::unwrap_or_default);
    let disk = disk.unwrap_or_default();
    record::Resources {
        disk_free_bytes: disk.free_bytes,
        disk_total_bytes: disk.total_bytes,
        disk_reserve_bytes: disk.reserve_bytes,
        files_open: files.used,
        files_limit: files.limit,
        memory_bytes: memory.used,
        memory_limit_bytes: memory.limit,
        sharers,
        refuses_writes: writes == WriteState::Refuses,
        connections_open: connections.used,
        connections_limit: connections.limit,
    }
}

/// The resources of a server, and whether it refuses writes.
pub fn resources_from_proto(resources: &record::Resources) -> (Resources, WriteState) {
    let usage = |used, limit: u64| (limit > 0).then_some(Usage { used, limit });
    let disk = DiskSpace {
        free_bytes: resources.disk_free_bytes,
        total_bytes: resources.disk_total_bytes,
        reserve_bytes: resources.disk_reserve_bytes,
    };
    let found = Resources {
        disk: (disk.total_bytes > 0).then_some(disk),
        files: usage(resources.files_open, resources.files_limit),
        memory: usage(resources.memory_bytes, resources.memory_limit_bytes),
        connections: usage(resources.connections_open, resources.connections_limit),
        sharers: resources.sharers,
    };
    let writes = if resources.refuses_writes { WriteState::Refuses } else { WriteState::Accepts };
    (found, writes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resources_round_trip() {
        let known = Resources {
            disk: Some(DiskSpace { free_bytes: 0, total_bytes: 9, reserve_bytes: 3 }),
            files: Some(Usage { used: 4, limit: 5 }),
            memory: Some(Usage { used: 6, limit: 7 }),
            connections: Some(Usage { used: 8, limit: 9 }),
            sharers: 3,
        };
        for resources in [known, Resources::default()] {
            for writes in [WriteState::Accepts, WriteState::Refuses] {
                assert_eq!(resources_from_proto(&resources_to_proto(&resources, writes)), (resources, writes));
            }
        }
    }
}
