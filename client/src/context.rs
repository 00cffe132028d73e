//! The state that the clones of a cluster handle share, and that each of its calls uses.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ebla_proto::tablet;
use parking_lot::Mutex;

use crate::deadline::Deadline;
use crate::locate::CachedTablet;
use crate::lookup::Lookups;
use crate::options::ClusterOptions;
use crate::retry::RetryBudget;
use crate::session::{Sessions, Ticket};

/// The timeout of one attempt at a write or another small call; then the next server is tried.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(3);

/// The shared state of a cluster handle.
pub(crate) struct ClusterContext {
    pub(crate) options: ClusterOptions,
    sessions: Sessions,
    pub(crate) lookups: Arc<Lookups>,
    /// Guards a counter.
    pub(crate) retry_budget: Mutex<RetryBudget>,
}

impl ClusterContext {
    /// A context with an empty cache and its own sessions.
    pub(crate) fn new(options: ClusterOptions) -> Self {
        let sessions = Sessions::new(options.runtime.rng.clone(), options.runtime.clock.clone());
        let round_robin_start = usize::try_from(options.runtime.rng.below(1 << 16)).unwrap_or(0);
        let lookups = Arc::new(Lookups::new(options.clone(), round_robin_start));
        Self { options, sessions, lookups, retry_budget: Mutex::default() }
    }

    /// The id of a write that is about to be sent to this tablet. The first attempt determines it.
    pub(crate) fn write_id(&self, ticket: &OnceLock<Ticket>, tablet: &CachedTablet) -> tablet::WriteId {
        let descriptor = &tablet.descriptor;
        ticket.get_or_init(|| self.sessions.begin(descriptor.group, descriptor.tablet)).write_id()
    }

    /// The timeout of the next attempt.
    pub(crate) fn attempt_timeout(&self, deadline: Deadline) -> Duration {
        deadline.remaining(&self.options.runtime.clock).min(ATTEMPT_TIMEOUT)
    }
}
