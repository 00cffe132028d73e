//! Faults put into the code on purpose, so that the tests can show that they would find them.
//!
//! Each is a switch at the true place of the code. A process has no fault unless its own code calls [`plant`], and only
//! the simulation (`tests/sim`) does: no variable, flag or message of the shipped program reaches it, and the linker
//! leaves it out there (`cli/tests/planted.rs` looks). `docs/inside/testing.md` lists place, test and seeds of each.

use std::sync::atomic::{AtomicU8, Ordering};

use tracing::error;

/// A fault that can be planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A restarted replica votes at once: it has forgotten whom it promised not to.
    VoteAfterRestart,
    /// The commit log tells that records are on disk before they are.
    AckBeforeSync,
    /// A vote is given and not written down.
    VoteNotSaved,
    /// Recovery loses the last batch of the commit log.
    LogTailLost,
    /// A replica that leads, or believes to, answers reads without a lease and without asking.
    ReadWithoutLease,
    /// A leader believes in its lease for longer than others keep their promise.
    LeaseTooLong,
    /// The answer of a decided write goes out before the write is committed.
    AnswerBeforeCommit,
    /// A write that was applied is applied again when it comes again.
    AppliedTwice,
    /// A write takes a new number with each attempt.
    RetryUnderNewNumber,
    /// The child of a split does not know which writes were applied before it.
    SplitForgetsSessions,
    /// Times follow the wall clock back.
    TimeGoesBack,
    /// Decided writes of one row do not exclude each other.
    DecisionUnlatched,
    /// Reads are answered whatever generation they were meant for.
    GenerationUnchecked,
    /// A bulk write reports rows as written that were not sent.
    UnsentReportedWritten,
    /// Apply looks at the clock of its own machine.
    ApplyReadsClock,
    /// A scan goes on behind a tablet that it has not finished.
    ScanSkipsRest,
}

impl Bug {
    /// All of them.
    pub const ALL: [Self; 16] = [
        Self::VoteAfterRestart,
        Self::AckBeforeSync,
        Self::VoteNotSaved,
        Self::LogTailLost,
        Self::ReadWithoutLease,
        Self::LeaseTooLong,
        Self::AnswerBeforeCommit,
        Self::AppliedTwice,
        Self::RetryUnderNewNumber,
        Self::SplitForgetsSessions,
        Self::TimeGoesBack,
        Self::DecisionUnlatched,
        Self::GenerationUnchecked,
        Self::UnsentReportedWritten,
        Self::ApplyReadsClock,
        Self::ScanSkipsRest,
    ];
}

/// Stands in every program that can plant a fault.
const MARK: &str = "EBLA-FAULT-PLANTED-ON-PURPOSE";

/// What [`PLANTED`] holds in a process without a fault.
const NONE: u8 = u8::MAX;

/// The fault of this process, as its place in [`Bug::ALL`].
static PLANTED: AtomicU8 = AtomicU8::new(NONE);

/// Whether this process has the fault. One relaxed load of a byte that never changes in the shipped program.
#[inline]
#[must_use]
pub fn planted(bug: Bug) -> bool {
    PLANTED.load(Ordering::Relaxed) == bug as u8
}

/// Gives this process the fault, for as long as it runs, in place of any other. For tests of the tests only.
#[inline(never)]
pub fn plant(bug: Bug) {
    error!(?bug, "{MARK}");
    PLANTED.store(bug as u8, Ordering::Relaxed);
}
