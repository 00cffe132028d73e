//! The suspicion that a store of a replica is damaged: reported by reads, by checkpoints and by the scrubber, and examined by the
//! manager.
//!
//! An error of a read can have another cause than damaged files, such as a value that no release wrote; it would be the same on
//! each replica. So a report only causes an examination, which reads all files.

use std::sync::atomic::{AtomicBool, Ordering};

use ebla_runtime::Failpoint;
use tokio::sync::Notify;

/// The reports of one replica.
#[derive(Debug, Default)]
pub struct DamageReports {
    reported: Notify,
    /// Whether an examination has found nothing: an error has another cause then.
    is_refuted: AtomicBool,
}

impl DamageReports {
    /// Reports that the store may be damaged.
    pub fn report(&self) {
        if !Failpoint::DamageNotExamined.is_enabled() {
            self.reported.notify_one();
        }
    }

    /// Returns when there is a report. Cancel-safe.
    pub async fn reported(&self) {
        self.reported.notified().await;
    }

    /// Records that an examination has found nothing.
    pub fn refute(&self) {
        self.is_refuted.store(true, Ordering::Relaxed);
    }

    /// Whether an examination has found nothing.
    #[must_use]
    pub fn is_refuted(&self) -> bool {
        self.is_refuted.load(Ordering::Relaxed)
    }
}
