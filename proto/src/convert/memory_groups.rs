//! The locality groups in memory of a tablet server in reports.

use ebla_model::memory_groups::MemoryGroups;

use crate::record;

/// The groups in memory of a server.
pub fn memory_groups_to_proto(groups: &MemoryGroups) -> record::MemoryGroups {
    let MemoryGroups { limit_bytes, needed_bytes, excess_bytes, cached_bytes, disk_reads } = *groups;
    record::MemoryGroups { limit_bytes, needed_bytes, excess_bytes, cached_bytes, disk_reads }
}

/// The groups in memory of a server.
pub fn memory_groups_from_proto(groups: &record::MemoryGroups) -> MemoryGroups {
    let record::MemoryGroups { limit_bytes, needed_bytes, excess_bytes, cached_bytes, disk_reads } = *groups;
    MemoryGroups { limit_bytes, needed_bytes, excess_bytes, cached_bytes, disk_reads }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_in_memory_round_trip() {
        let groups = MemoryGroups { limit_bytes: 1, needed_bytes: 2, excess_bytes: 3, cached_bytes: 4, disk_reads: 5 };
        assert_eq!(memory_groups_from_proto(&memory_groups_to_proto(&groups)), groups);
    }
}
