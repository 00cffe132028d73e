//! Whether a process can serve, as it changes during its life.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

/// Answers whether the process can serve; the error is the reason why it cannot. It is asked for each request, so it must not block.
type Check = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// Whether a process can serve; clones are the same state.
#[derive(Clone)]
pub struct Readiness {
    /// Locked to copy or replace the check.
    check: Arc<Mutex<Check>>,
}

impl fmt::Debug for Readiness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Readiness").field(&self.now()).finish()
    }
}

impl Readiness {
    /// A process that cannot serve yet. `reason`: what it does instead, such as `opening its stores`.
    #[must_use]
    pub fn not_ready(reason: &str) -> Self {
        Self { check: Arc::new(Mutex::new(refusal(reason))) }
    }

    /// From now on the process cannot serve, for this reason.
    pub fn refuse(&self, reason: &str) {
        *self.check.lock() = refusal(reason);
    }

    /// From now on `check` answers. It must not block.
    pub fn decide_by(&self, check: impl Fn() -> Result<(), String> + Send + Sync + 'static) {
        *self.check.lock() = Arc::new(check);
    }

    /// Whether the process can serve.
    ///
    /// # Errors
    /// The reason why it cannot.
    pub fn now(&self) -> Result<(), String> {
        let check = Arc::clone(&self.check.lock());
        check()
    }
}

fn refusal(reason: &str) -> Check {
    let reason = reason.to_owned();
    Arc::new(move || Err(reason.clone()))
}
