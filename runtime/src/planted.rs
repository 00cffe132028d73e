//! Faults put into the code on purpose, so that the tests can show that they would find them.
//!
//! Each is a switch at the true place of the code. Without the feature `planted` every switch is a constant `false` and
//! nothing of this is in the program. With it, the environment variable `EBLA_PLANTED_BUG` names the one fault
//! that the process has. `docs/testing.md` lists place, test and seeds of each.

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

/// Whether this process has the fault: never, in a program that is built without the feature.
#[cfg(not(feature = "planted"))]
#[inline(always)]
#[must_use]
pub const fn planted(_bug: Bug) -> bool {
    false
}

/// Whether this process has the fault.
#[cfg(feature = "planted")]
#[must_use]
pub fn planted(bug: Bug) -> bool {
    static CHOSEN: std::sync::OnceLock<Option<Bug>> = std::sync::OnceLock::new();
    let chosen = CHOSEN.get_or_init(|| {
        let name = std::env::var("EBLA_PLANTED_BUG").ok()?;
        Bug::ALL.into_iter().find(|bug| format!("{bug:?}") == name)
    });
    *chosen == Some(bug)
}
