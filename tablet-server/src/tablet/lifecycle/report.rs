//! Reports of a group's replica: its status and its tablets, for the master.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ebla_model::error::Error;
use ebla_model::id::{LogId, ReplicaId, SchemaVersion, TableId, TabletId, Term};
use ebla_model::key::KeyRange;
use ebla_model::locality::StoredBytes;
use ebla_model::metadata::{GroupDescriptor, TabletDescriptor};
use ebla_model::quota::{FamilyUsage, TableUsage};
use ebla_model::tablet_load::TabletLoad;
use ebla_model::time::Micros;

use crate::raft::GroupOrigin;
use crate::tablet::core::applied_state::TabletMetadata;
use crate::tablet::failure::Failure;
use crate::tablet::{Tablet, TabletGroup};

/// A tablet's size and descriptor.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Approximate size in bytes, on disk and in memory.
    pub size_bytes: u64,
    /// The current descriptor.
    pub descriptor: TabletDescriptor,
}

/// The replica's report to the master.
#[derive(Clone, Debug)]
pub struct ReplicaReport {
    /// The group as this replica has applied it.
    pub descriptor: GroupDescriptor,
    /// The replica's id.
    pub replica: ReplicaId,
    /// Whether it is the leader.
    pub is_leader: bool,
    /// Its Raft term.
    pub term: Term,
    /// The tablets of the group.
    pub tablets: Vec<TabletReport>,
    /// The last entry it has applied.
    pub applied: LogId,
    /// The last entry of its log.
    pub last: LogId,
    /// The last entry of its log that it knows to be committed.
    pub committed: Option<LogId>,
    /// The last entry in its last snapshot.
    pub snapshot: Option<LogId>,
    /// The time of the last command that it has applied.
    pub time: Micros,
    /// At the leader: a majority has confirmed the leadership a moment ago, and `descriptor` has the last membership of
    /// the log, with one set of voters. So no other replica is a member or becoming one.
    pub settled: bool,
    /// At the leader: the other replicas that have responded recently.
    pub heard: Vec<ReplicaId>,
    /// What created the group.
    pub origin: GroupOrigin,
}

/// A tablet in a report.
#[derive(Clone, Debug)]
pub struct TabletReport {
    /// The tablet as this replica has applied it.
    pub descriptor: TabletDescriptor,
    /// Approximate size in bytes, on disk and in memory.
    pub size_bytes: u64,
    /// The schema of its table that the replica has applied.
    pub schema_version: SchemaVersion,
    /// Its load, at the leader.
    pub load: TabletLoad,
}

/// What a table's tablets in some groups cost in files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableSizes {
    /// How many tablets are counted.
    pub tablets: u64,
    /// By the number of the locality group.
    pub groups: BTreeMap<u32, StoredBytes>,
}

/// A replica that has not responded to its leader for this number of election timeouts counts as silent.
const SILENT_AFTER_ELECTIONS: u32 = 3;

impl Tablet {
    /// The tablet's size on this replica. Any replica may be used.
    ///
    /// # Errors
    /// As [`Tablet::metadata`].
    pub fn sample(&self) -> Result<Sample, Failure> {
        Ok(Sample { size_bytes: self.state_machine.size_bytes(self.id()), descriptor: self.descriptor()? })
    }
}

impl TabletGroup {
    /// What the cells of a table in this replica would need in memory, by the number of their locality group. Unflushed data, of any table,
    /// counts for each group in full. Blocking.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn group_memory(&self, table: TableId) -> Result<BTreeMap<u32, u64>, Error> {
        let (store, metadata) = (self.state_machine.store(), Arc::clone(&self.state_machine.applied_state().metadata));
        let tablets = metadata.tablets.values().filter(|tablet| tablet.descriptor.table == table);
        let ranges: Vec<KeyRange> = tablets.map(|tablet| tablet.stored_range(&tablet.descriptor.range)).collect();
        let unflushed = if ranges.is_empty() { 0 } else { store.unflushed_bytes()? };
        let in_files = store.group_memory_bytes(&ranges)?;
        Ok(in_files.into_iter().map(|(number, bytes)| (number, bytes.saturating_add(unflushed))).collect())
    }

    /// The replica's report to the master.
    #[must_use]
    pub fn report(&self) -> ReplicaReport {
        let now = self.runtime.clock.monotonic();
        // The lease first: no other leader had changed the membership before this moment, and the status contains the changes
        // that this leader has made since.
        let holds_lease = self.raft.can_lease_read(now);
        let status = self.raft.status();
        let applied_state = self.state_machine.applied_state();
        let descriptor = &applied_state.metadata.descriptor;
        let is_last = status.membership_log_id == Some(descriptor.membership_log_id);
        let silence = self.raft.timings().election_max * SILENT_AFTER_ELECTIONS;
        let sizes = self.state_machine.sizes();
        let is_near = |at: &Duration| now.saturating_sub(*at) < silence;
        ReplicaReport {
            settled: holds_lease && status.is_leader && is_last && descriptor.membership.is_uniform(),
            heard: status.last_contact.iter().filter(|(_, at)| is_near(at)).map(|(id, _)| *id).collect(),
            descriptor: descriptor.clone(),
            replica: self.replica(),
            is_leader: status.is_leader,
            term: status.term,
            tablets: applied_state.metadata.tablets.values().map(|tablet| report_tablet(tablet, &sizes, now)).collect(),
            applied: applied_state.applied,
            last: status.last.max(Some(applied_state.applied)).unwrap_or_default(),
            committed: status.committed,
            snapshot: status.snapshot,
            time: applied_state.time,
            origin: self.raft.origin(),
        }
    }
}

impl TabletGroup {
    /// Adds what the tablets of a table cost in the files of this replica. Blocking.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn add_table_sizes(&self, table: TableId, sizes: &mut TableSizes) -> Result<(), Error> {
        let (store, metadata) = (self.state_machine.store(), Arc::clone(&self.state_machine.applied_state().metadata));
        for tablet in metadata.tablets.values().filter(|tablet| tablet.descriptor.table == table) {
            sizes.tablets += 1;
            for (group, bytes) in store.row_bytes_by_group(&tablet.stored_range(&tablet.descriptor.range))? {
                sizes.groups.entry(group).or_default().add(bytes);
            }
        }
        Ok(())
    }

    /// What the families of a table cost in each of its tablets in this group, on this replica. What is not in files is attributed evenly to
    /// the tablets, as far as they have so much. Blocking.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn table_usage(&self, table: TableId) -> Result<Vec<(TabletId, TableUsage)>, Error> {
        let (store, metadata) = (self.state_machine.store(), Arc::clone(&self.state_machine.applied_state().metadata));
        let unflushed = store.unflushed_bytes()? / u64::try_from(metadata.tablets.len()).unwrap_or(u64::MAX).max(1);
        let tablets = metadata.tablets.values().filter(|tablet| tablet.descriptor.table == table);
        let usage = |tablet: &Arc<TabletMetadata>| {
            let mut usage = store.family_usage(&tablet.stored_range(&tablet.descriptor.range), unflushed)?;
            // Cells of a dropped family wait for a compaction, and count for no family.
            usage.retain(|family, _usage| tablet.schema().family_by_id(*family).is_some());
            for (family, cells_read, cells_written) in tablet.counters.counts() {
                let usage = usage.entry(family).or_default();
                *usage = FamilyUsage { cells_read, cells_written, ..*usage };
            }
            Ok((tablet.descriptor.tablet, usage))
        };
        tablets.map(usage).collect()
    }

    /// Whether the replica leads the group, and the group has tablets of the table.
    #[must_use]
    pub fn leads_table(&self, table: TableId) -> bool {
        let metadata = Arc::clone(&self.state_machine.applied_state().metadata);
        self.raft.status().is_leader && metadata.tablets.values().any(|tablet| tablet.descriptor.table == table)
    }
}

fn report_tablet(tablet: &TabletMetadata, sizes: &BTreeMap<TabletId, u64>, now: Duration) -> TabletReport {
    TabletReport {
        descriptor: tablet.descriptor.clone(),
        size_bytes: sizes.get(&tablet.descriptor.tablet).copied().unwrap_or_default(),
        schema_version: tablet.schema().version,
        load: tablet.load.load(now),
    }
}
