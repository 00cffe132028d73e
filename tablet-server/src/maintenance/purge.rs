//! The purge policy: how far Raft logs are truncated below the flushed entries.
//!
//! A division stays in the log until a majority of the new group has its rows: see [`TabletManager::purgeable`].

use std::collections::BTreeMap;
use std::sync::Arc;

use ebla_model::id::{GroupId, LogIndex};
use ebla_runtime::Runtime;
use ebla_storage::log::CommitLog;

use super::GroupProbe;
use crate::tablet::TabletGroup;
use crate::tablet::lifecycle::manager::TabletManager;

/// A log is purged only when this many flushed entries have accumulated: a purge is a log record, too.
const PURGE_ENTRIES: u64 = 1024;
/// Flushed entries stay in the log until it uses this fraction of its budget: a follower that was briefly unavailable
/// catches up from the log instead of receiving a snapshot.
const LOG_RETAINED_FRACTION: u64 = 4;

/// How much of the commit log is retained beyond the entries that are not flushed.
#[derive(Clone)]
pub(super) struct LogRetention {
    log: CommitLog,
    retained_bytes: u64,
}

impl LogRetention {
    pub(super) fn new(log: CommitLog, budget_bytes: u64) -> Self {
        Self { log, retained_bytes: budget_bytes / LOG_RETAINED_FRACTION }
    }

    /// Whether the log is large enough to purge flushed entries.
    pub(super) fn is_exceeded(&self) -> bool {
        self.log.bytes() > self.retained_bytes
    }
}

/// Purges log entries below what the engine has flushed by itself.
pub(super) struct LogPurger {
    manager: Arc<TabletManager>,
    retention: LogRetention,
    /// Up to which index the purge of each group's log was last requested.
    purged: BTreeMap<GroupId, LogIndex>,
    runtime: Runtime,
}

impl LogPurger {
    pub(super) fn new(manager: &Arc<TabletManager>, retention: LogRetention, runtime: &Runtime) -> Self {
        Self { manager: Arc::clone(manager), retention, purged: BTreeMap::new(), runtime: runtime.clone() }
    }

    /// Starts the purges that are due.
    pub(super) fn apply(&mut self, groups: &[Arc<TabletGroup>], probes: &[GroupProbe]) {
        if !self.retention.is_exceeded() {
            return;
        }
        for (group, probe) in groups.iter().zip(probes) {
            let last = self.purged.entry(group.id()).or_default();
            let due = last.plus(PURGE_ENTRIES);
            if probe.flushed_index < due {
                continue;
            }
            let upto = self.manager.purgeable(group, probe.flushed_index);
            if upto < due {
                continue;
            }
            *last = upto;
            let raft = Arc::clone(group.raft());
            self.runtime.tasks.spawn_until_stopped("purge", async move { raft.purge(upto).await });
        }
        self.purged.retain(|id, _| groups.iter().any(|group| group.id() == *id));
    }
}
