//! Reports of a replica: its size, and its status for the master.

use std::time::Duration;

use ebla_model::id::{LogId, ReplicaId, SchemaVersion, Term};
use ebla_model::metadata::TabletDescriptor;

use crate::tablet::Tablet;

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
    /// The tablet as this replica has applied it.
    pub descriptor: TabletDescriptor,
    /// The replica's id.
    pub replica: ReplicaId,
    /// Whether it is the leader.
    pub is_leader: bool,
    /// Its Raft term.
    pub term: Term,
    /// Approximate size in bytes, on disk and in memory.
    pub size_bytes: u64,
    /// The schema it has applied.
    pub schema_version: SchemaVersion,
    /// The last entry it has applied.
    pub applied: LogId,
    /// At the leader: a majority has confirmed the leadership a moment ago, and `descriptor` has the last membership of
    /// the log, with one set of voters. So no other replica is a member or becoming one.
    pub settled: bool,
    /// At the leader: the other replicas that have responded recently.
    pub heard: Vec<ReplicaId>,
}

/// A replica that has not responded to its leader for this number of election timeouts counts as silent.
const SILENT_AFTER_ELECTIONS: u32 = 3;

impl Tablet {
    /// The tablet's size on this replica. Any replica may be used.
    #[must_use]
    pub fn sample(&self) -> Sample {
        Sample { size_bytes: self.state_machine.size_bytes(), descriptor: self.descriptor() }
    }

    /// The replica's report to the master.
    #[must_use]
    pub fn report(&self) -> ReplicaReport {
        let now = self.runtime.clock.monotonic();
        // The lease first: no other leader had changed the membership before this moment, and the status contains the changes
        // that this leader has made since.
        let holds_lease = self.group.can_lease_read(now);
        let status = self.group.status();
        let applied_state = self.state_machine.applied_state();
        let descriptor = &applied_state.metadata.descriptor;
        let is_last = status.membership_log_id == Some(descriptor.membership_log_id);
        let silence = self.group.timings().election_max * SILENT_AFTER_ELECTIONS;
        let is_near = |at: &Duration| now.saturating_sub(*at) < silence;
        ReplicaReport {
            settled: holds_lease && status.is_leader && is_last && descriptor.membership.is_uniform(),
            heard: status.last_contact.iter().filter(|(_, at)| is_near(at)).map(|(id, _)| *id).collect(),
            descriptor: descriptor.clone(),
            replica: self.id.replica,
            is_leader: status.is_leader,
            term: status.term,
            size_bytes: self.state_machine.size_bytes(),
            schema_version: applied_state.metadata.schema.version,
            applied: applied_state.applied,
        }
    }
}
