//! What becomes of a replica that cannot run, as a pure function of the failure.
//!
//! | failure | reason | recovery |
//! |---|---|---|
//! | the disk is full, no more files can be opened | `ResourceExhausted` | the replica is closed and opened again after a pause |
//! | bytes are damaged, files are missing | `DataDamaged` | quarantine: the master replaces the replica from its peers |
//! | a store cannot be opened for another reason | any other | opened again after a pause: no other replica is concerned |
//! | the core of a running replica ended for another reason | any other | the process ends: an invariant or the disk is broken |
//! | the server stops | `Cancelled`, `Unavailable` | none is needed; opening again fails in the same way |
//!
//! A replica that waits is reported as one that does not run, so the master replaces it if it waits for longer than the grace.

use std::time::Duration;

use ebla_model::Reason;

/// The pause before the first attempt to open a replica again.
const PAUSE_MIN: Duration = Duration::from_millis(500);
/// The longest pause between two attempts.
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// When a replica failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// While it was opened.
    Opening,
    /// While it ran.
    Running,
}

/// What becomes of the replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Recovery {
    /// It is opened again after a pause.
    Reopen,
    /// It is quarantined, and replaced by the master.
    Quarantine,
    /// The process ends.
    EndProcess,
}

/// What becomes of a replica that failed for this reason.
pub(super) const fn recovery(stage: Stage, reason: Reason) -> Recovery {
    match (stage, reason) {
        (_, Reason::DataDamaged) => Recovery::Quarantine,
        (_, Reason::ResourceExhausted | Reason::Cancelled | Reason::Unavailable) | (Stage::Opening, _) => {
            Recovery::Reopen
        }
        (Stage::Running, _) => Recovery::EndProcess,
    }
}

/// The pause before an attempt to open a replica again; `attempt`: from 0. It doubles up to 30 s.
pub(super) fn reopen_pause(attempt: u32) -> Duration {
    PAUSE_MIN.saturating_mul(2_u32.saturating_pow(attempt)).min(PAUSE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_is_quarantined_whenever_it_is_found() {
        for stage in [Stage::Opening, Stage::Running] {
            assert_eq!(recovery(stage, Reason::DataDamaged), Recovery::Quarantine);
        }
    }

    #[test]
    fn a_replica_without_resources_waits() {
        for stage in [Stage::Opening, Stage::Running] {
            assert_eq!(recovery(stage, Reason::ResourceExhausted), Recovery::Reopen);
        }
    }

    #[test]
    fn only_a_running_replica_ends_the_process() {
        for reason in Reason::ALL {
            assert_ne!(recovery(Stage::Opening, *reason), Recovery::EndProcess, "{reason}");
        }
        assert_eq!(recovery(Stage::Running, Reason::Internal), Recovery::EndProcess);
        assert_eq!(recovery(Stage::Running, Reason::Cancelled), Recovery::Reopen, "the server is stopping");
    }

    #[test]
    fn the_pause_grows_to_its_maximum() {
        let pauses = [0, 1, 2, 9, 1_000].map(reopen_pause);
        assert_eq!(pauses[..3], [500, 1_000, 2_000].map(Duration::from_millis));
        assert_eq!(pauses[3..], [PAUSE_MAX; 2]);
    }
}
