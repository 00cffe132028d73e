//! Failpoints: injected faults at the place of the code that they break, so that the tests can show that they find them.
//!
//! No failpoint is enabled unless the process calls [`Failpoint::enable`], and only the simulation (`tests/sim`) does: no
//! variable, flag or message of the released program reaches it, and the linker leaves the call out there
//! (`cli/tests/planted.rs` checks this). `docs/inside/testing.md` lists place, test and seeds of each failpoint.

use std::sync::atomic::{AtomicU8, Ordering};

use tracing::error;

/// A fault that can be injected. The names are values of `EBLA_PLANTED_BUG`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failpoint {
    /// A restarted replica votes immediately, although it may have promised not to.
    VoteAfterRestart,
    /// The commit log reports that records are durable before they are.
    AckBeforeSync,
    /// A vote is granted and not persisted.
    VoteNotSaved,
    /// Recovery loses the last batch of the commit log.
    LogTailLost,
    /// A replica that is leader, or believes so, serves reads without a lease or a quorum check.
    ReadWithoutLease,
    /// A leader assumes a longer lease than its followers grant.
    LeaseTooLong,
    /// The response of a read-modify-write is sent before the write is committed.
    AnswerBeforeCommit,
    /// A retried write is applied twice.
    AppliedTwice,
    /// A write takes a new sequence number with each attempt.
    RetryUnderNewNumber,
    /// The new group of a divided one does not inherit the sessions of its parent.
    DivideForgetsSessions,
    /// The target of a move does not take over the sessions of the source.
    MoveForgetsSessions,
    /// Timestamps follow the wall clock backwards.
    TimeGoesBack,
    /// A leader's clock that jumps ahead ages cells.
    ClockJumpAgesCells,
    /// The GC time catches up to the log's time, also when a clock that was wrong has set that far ahead.
    CatchUpUnbounded,
    /// Read-modify-writes of one row do not exclude each other.
    DecisionUnlatched,
    /// Reads are served for any tablet generation.
    GenerationUnchecked,
    /// A bulk write reports rows as written that were not sent.
    UnsentReportedWritten,
    /// Apply reads the local clock.
    ApplyReadsClock,
    /// A scan skips the rest of an unfinished tablet.
    ScanSkipsRest,
    /// The response of a read-modify-write is not stored with its session.
    ResultForgotten,
    /// A write's latch is released when the write is queued, not when it is applied.
    LatchReleasedEarly,
    /// Additions to the aggregates of one row do not exclude each other.
    AdditionUnlatched,
    /// Apply does not record idempotency tokens.
    TokenForgotten,
    /// A garbage collection counts the versions of all columns of a row together.
    CollectMixesColumns,
    /// Rows are dropped in a tablet while it is copied to another group.
    DropIgnoresMove,
    /// A drop of rows or a change of a table's schema does not wait for writes that were evaluated before.
    DropUnlatched,
    /// A tablet accepts writes while it is copied to another group.
    MoveKeepsWriting,
    /// The target of a move does not take over the idempotency tokens of the source.
    MoveForgetsTokens,
    /// The target of a move does not take over the times of the source.
    MoveForgetsTime,
    /// What has changed in a tablet since its copy is not sent when it departs.
    MoveForgetsDifference,
    /// A snapshot leaves out the sessions.
    SnapshotForgetsSessions,
    /// A snapshot leaves out the cells of one tablet.
    SnapshotLosesTablet,
    /// A schema change is not written to the store.
    SchemaNotSaved,
    /// A read index is not awaited: the entries before it may not be applied.
    ReadIndexUnapplied,
    /// The leader lease counts from the response of a follower, not from the request.
    LeaseFromResponse,
    /// A server does not compare its clock with others.
    ClocksNotCompared,
    /// The leader lease lasts as long as followers refuse to vote: there is no margin for clocks that run at different speeds.
    LeaseWithoutMargin,
    /// The time since boot does not count the time in which a host was suspended.
    BootClockStops,
    /// A write does not remove its rows from the scan cache.
    ScanCacheKeepsRows,
    /// A mounttable resolves a name to servers whose deadlines have passed.
    ExpiredServerReturned,
    /// A mounttable mounts a server on a node that is being deleted.
    MountOnDeletedNode,
    /// A mounttable removes an expired server that was mounted again meanwhile.
    ExpiryForgetsRefresh,
    /// A leader accepts writes on a full disk.
    FullDiskIgnored,
    /// The commit log acknowledges a batch that the disk has no space for.
    FullDiskAcknowledged,
    /// The commit log acknowledges a batch whose write or sync has failed.
    DiskErrorIgnored,
    /// A master changes tables before it has compared Chubby with what the tablet servers have, and a group takes an operation with the number of
    /// an earlier one for that one.
    ChubbyNotCompared,
    /// Recovery of the commit log takes damage of the last segment for a torn tail.
    LogDamageCut,
    /// Reports of damaged blocks have no effect.
    DamageNotExamined,
    /// The report of a recovery says that the replica has everything that was acknowledged until now.
    RecoveryReportsNow,
    /// A server whose disk is slow keeps its leaderships.
    SlowDiskIgnored,
    /// A replica whose store is damaged is opened again, as if nothing had happened.
    DamagedStoreReopened,
    /// A server accepts Raft messages for the server that had its address before.
    ReceiverUnchecked,
    /// An iterator over a store treats a read error as the end of the cells.
    IteratorStatusIgnored,
    /// A scan that continues after a failure begins with the last row that it has returned.
    ScanResumesInclusively,
    /// A later cluster version becomes active although a process has registered since the master listed them.
    VersionIgnoresStarts,
    /// A later cluster version becomes active although servers with replicas are not registered.
    VersionIgnoresAbsent,
    /// A tablet is copied ahead of its move although the active cluster version does not have that.
    CopyAheadUnchecked,
    /// The registry is replaced without a sync.
    RegistryNotSynced,
}

/// Written to the log when a failpoint is enabled, and so contained in every program that can enable one.
const MARK: &str = "EBLA-FAULT-PLANTED-ON-PURPOSE";

/// Value of [`ENABLED`] in a process without a fault.
const NONE: u8 = u8::MAX;

/// The enabled failpoint of this process, as its index in [`Failpoint::ALL`].
static ENABLED: AtomicU8 = AtomicU8::new(NONE);

impl Failpoint {
    /// All failpoints.
    pub const ALL: [Self; 58] = [
        Self::VoteAfterRestart,
        Self::AckBeforeSync,
        Self::VoteNotSaved,
        Self::LogTailLost,
        Self::ReadWithoutLease,
        Self::LeaseTooLong,
        Self::AnswerBeforeCommit,
        Self::AppliedTwice,
        Self::RetryUnderNewNumber,
        Self::DivideForgetsSessions,
        Self::MoveForgetsSessions,
        Self::TimeGoesBack,
        Self::ClockJumpAgesCells,
        Self::CatchUpUnbounded,
        Self::DecisionUnlatched,
        Self::GenerationUnchecked,
        Self::UnsentReportedWritten,
        Self::ApplyReadsClock,
        Self::ScanSkipsRest,
        Self::ResultForgotten,
        Self::LatchReleasedEarly,
        Self::AdditionUnlatched,
        Self::TokenForgotten,
        Self::CollectMixesColumns,
        Self::DropIgnoresMove,
        Self::DropUnlatched,
        Self::MoveKeepsWriting,
        Self::MoveForgetsTokens,
        Self::MoveForgetsTime,
        Self::MoveForgetsDifference,
        Self::SnapshotForgetsSessions,
        Self::SnapshotLosesTablet,
        Self::SchemaNotSaved,
        Self::ReadIndexUnapplied,
        Self::LeaseFromResponse,
        Self::ClocksNotCompared,
        Self::LeaseWithoutMargin,
        Self::BootClockStops,
        Self::ScanCacheKeepsRows,
        Self::ExpiredServerReturned,
        Self::MountOnDeletedNode,
        Self::ExpiryForgetsRefresh,
        Self::FullDiskIgnored,
        Self::FullDiskAcknowledged,
        Self::DiskErrorIgnored,
        Self::ChubbyNotCompared,
        Self::LogDamageCut,
        Self::DamageNotExamined,
        Self::RecoveryReportsNow,
        Self::SlowDiskIgnored,
        Self::DamagedStoreReopened,
        Self::ReceiverUnchecked,
        Self::IteratorStatusIgnored,
        Self::ScanResumesInclusively,
        Self::VersionIgnoresStarts,
        Self::VersionIgnoresAbsent,
        Self::CopyAheadUnchecked,
        Self::RegistryNotSynced,
    ];

    /// Whether this failpoint is enabled in this process. One relaxed load of a byte that never changes in the released
    /// program.
    #[inline]
    #[must_use]
    pub fn is_enabled(self) -> bool {
        ENABLED.load(Ordering::Relaxed) == self as u8
    }

    /// Enables this failpoint until the process exits, in place of any other. Only for tests of the tests.
    #[inline(never)]
    pub fn enable(self) {
        error!(failpoint = ?self, "{MARK}");
        ENABLED.store(self as u8, Ordering::Relaxed);
    }
}
