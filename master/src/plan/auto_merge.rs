//! Automatic merges: which adjacent tablets are merged because they are small and have few reads and writes.
//!
//! ```text
//!   a pair       adjacent tablets of an active table, together smaller than the limit,
//!                both quiet for long enough, as their leaders report
//!   order        pairs in one group first, then the smallest; a tablet is in one pair at a time
//!   two groups   the smaller tablet is moved first; it is served while it is copied (from cluster version 2 on)
//! ```
//!
//! The limit is `merge_bytes`, and at most half of the size above which a server splits a tablet: a merged tablet must grow to twice
//! its size before it is split again, so merges and splits do not alternate.
//!
//! A tablet is quiet from its creation, its split, its move, or the election of its leader on, at the earliest. So the tablets of a
//! table that was created with split keys, and those that an operator has split, stay for `merge_after` even if nothing is ever
//! written. A merge does not start the time again: [`MergeMemory`] knows how long both tablets have been quiet before it, although
//! a move starts the measurement of the leader again. A new master knows less and waits for longer.
//!
//! No two adjacent tablets that are quiet and small together are left in the end. So a table with `n` bytes has at most about
//! `2 n / limit` tablets then.
//!
//! METADATA's tablets are merged by the same rules, with a limit of their own: half of the size above which servers split them. The root tablet is
//! never merged, and nothing of METADATA is while a server may run a release that cannot merge its tablets.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use ebla_model::id::{GroupId, TableId, TabletId};
use ebla_model::metadata::TabletDescriptor;

use super::Action;
use super::merge::{MergePair, metadata_split_bytes};
use super::repair::PlanContext;
use crate::cluster::{ClusterSnapshot, TabletReport};

/// The maximum number of merges at once.
const MERGES_MAX: usize = 16;
/// The maximum number of them that move a tablet first.
const MOVES_MAX: usize = 4;
/// A leader that reports a merged tablet as quiet for the time since the merge, except for this, has not seen it busy since. Longer than
/// the period of the leader's measurements.
const QUIET_SLACK: Duration = Duration::from_secs(10);
/// The pause after a failed merge of a tablet; it doubles with each further failure up to [`RETRY_AFTER_MAX`].
const RETRY_AFTER: Duration = Duration::from_secs(10);
/// See [`RETRY_AFTER`].
const RETRY_AFTER_MAX: Duration = Duration::from_secs(600);

/// When adjacent tablets are merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MergeRules {
    /// Tablets that have less than this together, in bytes; 0: none are merged.
    pub merge_bytes: u64,
    /// How long both must have been quiet.
    pub merge_after: Duration,
}

impl Default for MergeRules {
    /// 64 MiB, an hour.
    fn default() -> Self {
        Self { merge_bytes: 64 << 20, merge_after: Duration::from_secs(3_600) }
    }
}

impl MergeRules {
    /// No tablets are merged.
    pub const OFF: Self = Self { merge_bytes: 0, merge_after: Duration::ZERO };
}

/// What the planner knows besides the snapshot.
#[derive(Clone, Debug)]
pub struct MergeContext {
    /// When tablets are merged.
    pub rules: MergeRules,
    /// The merges of this master.
    pub memory: MergeMemory,
}

/// A merge that the plan contains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedMerge {
    /// The tablets.
    pub pair: MergePair,
    /// The tablet that is moved first, and the group to move it to.
    pub moved: Option<(TabletId, GroupId)>,
    /// For how long both have been quiet.
    pub quiet_for: Duration,
}

impl fmt::Display for PlannedMerge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MergePair { left, right } = &self.pair;
        write!(f, "merge-tablets table={} left={} right={}", left.table, left.tablet, right.tablet)?;
        match self.moved {
            Some((tablet, group)) => write!(f, " move={tablet} to-group={group}"),
            None => Ok(()),
        }
    }
}

/// The merges of one master: those that run, those that have ended, those that have failed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MergeMemory {
    /// By their right tablet, which remains.
    running: BTreeMap<TabletId, PlannedMerge>,
    ended: BTreeMap<TabletId, EndedMerge>,
    failed: BTreeMap<TabletId, FailedMerge>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct EndedMerge {
    at: Duration,
    /// For how long both tablets had been quiet before.
    quiet_for: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FailedMerge {
    /// No earlier than this another merge of the tablet begins.
    until: Duration,
    pause: Duration,
}

impl MergeMemory {
    /// A merge begins.
    pub fn begin(&mut self, merge: &PlannedMerge) {
        self.running.insert(merge.pair.right.tablet, merge.clone());
    }

    /// It has ended: the right tablet has all rows. `now`: monotonic, as for all calls.
    pub fn succeed(&mut self, merge: &PlannedMerge, now: Duration) {
        let MergePair { left, right } = &merge.pair;
        self.running.remove(&right.tablet);
        for tablet in [left.tablet, right.tablet] {
            self.failed.remove(&tablet);
            self.ended.remove(&tablet);
        }
        self.ended.insert(right.tablet, EndedMerge { at: now, quiet_for: merge.quiet_for });
    }

    /// It has failed, or its outcome is unknown.
    pub fn fail(&mut self, merge: &PlannedMerge, now: Duration) {
        let MergePair { left, right } = &merge.pair;
        self.running.remove(&right.tablet);
        for tablet in [left.tablet, right.tablet] {
            let pause = self.failed.get(&tablet).map_or(RETRY_AFTER, |last| (last.pause * 2).min(RETRY_AFTER_MAX));
            self.failed.insert(tablet, FailedMerge { until: now.saturating_add(pause), pause });
        }
    }

    /// Forgets the tablets that no server reports any more.
    pub fn retain(&mut self, cluster: &ClusterSnapshot) {
        let tablets = cluster.tablets();
        self.ended.retain(|tablet, _| tablets.contains_key(tablet));
        self.failed.retain(|tablet, _| tablets.contains_key(tablet));
    }

    /// For how long a tablet has been quiet of which its leader reports this.
    fn quiet_for(&self, tablet: TabletId, reported: Duration, now: Duration) -> Duration {
        let Some(EndedMerge { at, quiet_for }) = self.ended.get(&tablet) else { return reported };
        let since = now.saturating_sub(*at);
        if reported.saturating_add(QUIET_SLACK) >= since {
            quiet_for.saturating_add(since).max(reported)
        } else {
            reported
        }
    }

    fn is_paused(&self, tablet: TabletId, now: Duration) -> bool {
        self.failed.get(&tablet).is_some_and(|failed| now < failed.until)
    }

    /// The tablets of the merges that run.
    fn busy(&self) -> BTreeSet<TabletId> {
        self.running.values().flat_map(|merge| [merge.pair.left.tablet, merge.pair.right.tablet]).collect()
    }
}

/// A small tablet that has been quiet for long enough.
struct Candidate<'a> {
    report: &'a TabletReport,
    quiet_for: Duration,
}

impl Candidate<'_> {
    const fn descriptor(&self) -> &TabletDescriptor {
        &self.report.descriptor
    }
}

/// The merges that may begin now.
pub(super) fn merges(cluster: &ClusterSnapshot, ctx: &PlanContext) -> Vec<Action> {
    let limits = Limits::of(cluster, ctx.merges.rules.merge_bytes);
    let candidates = candidates(cluster, ctx, &limits);
    let mut pairs: Vec<(u64, PlannedMerge)> = candidates
        .values()
        .zip(candidates.values().skip(1))
        .filter_map(|(left, right)| pair(left, right, limits.of_table(left.descriptor().table)))
        .collect();
    pairs.sort_by_key(|(bytes, merge)| (merge.moved.is_some(), *bytes, merge.pair.left.table));
    let memory = &ctx.merges.memory;
    let mut busy = memory.busy();
    let mut left = MERGES_MAX.saturating_sub(memory.running.len());
    let mut moves_left =
        MOVES_MAX.saturating_sub(memory.running.values().filter(|merge| merge.moved.is_some()).count());
    let mut chosen = Vec::new();
    for (_bytes, merge) in pairs {
        let tablets = [merge.pair.left.tablet, merge.pair.right.tablet];
        let needs_move = merge.moved.is_some();
        if left == 0 || (needs_move && moves_left == 0) || tablets.iter().any(|tablet| busy.contains(tablet)) {
            continue;
        }
        left -= 1;
        moves_left -= usize::from(needs_move);
        busy.extend(tablets);
        chosen.push(Action::MergeTablets(merge));
    }
    chosen
}

/// The sizes below which two tablets are merged; 0: they are not.
struct Limits {
    user_tables: u64,
    metadata: u64,
}

impl Limits {
    /// Half of what any server splits, if that is less than `merge_bytes`.
    fn of(cluster: &ClusterSnapshot, merge_bytes: u64) -> Self {
        let reports = cluster.servers.values().filter_map(|server| server.report.as_ref());
        let split_bytes = reports.map(|report| report.split_bytes).filter(|bytes| *bytes > 0).min();
        let metadata_split_bytes = metadata_split_bytes(cluster).unwrap_or_default();
        Self {
            user_tables: split_bytes.map_or(merge_bytes, |split_bytes| merge_bytes.min(split_bytes / 2)),
            metadata: merge_bytes.min(metadata_split_bytes / 2),
        }
    }

    fn of_table(&self, table: TableId) -> u64 {
        if table == TableId::METADATA { self.metadata } else { self.user_tables }
    }
}

/// The tablets that may be merged, by table and first key.
fn candidates<'a>(
    cluster: &'a ClusterSnapshot,
    ctx: &PlanContext,
    limits: &Limits,
) -> BTreeMap<(TableId, &'a [u8]), Candidate<'a>> {
    let mut candidates: BTreeMap<(TableId, &[u8]), Candidate<'_>> = BTreeMap::new();
    let leaders = cluster.leader_reports();
    let settled = leaders
        .values()
        .filter(|(_server, report)| report.settled && !ctx.in_progress.contains_key(&report.group.group));
    for report in settled.flat_map(|(_server, report)| &report.tablets) {
        let tablet = &report.descriptor;
        let quiet_for = ctx.merges.memory.quiet_for(tablet.tablet, report.load.quiet_for, ctx.now);
        let may_merge = report.size_bytes < limits.of_table(tablet.table)
            && quiet_for >= ctx.merges.rules.merge_after
            && tablet.tablet != TabletId::ROOT
            && cluster.is_served(tablet.table)
            && !ctx.merges.memory.is_paused(tablet.tablet, ctx.now);
        let key = (tablet.table, tablet.range.start().as_bytes());
        // At the end of a move both groups may report the tablet.
        let is_newest = candidates.get(&key).is_none_or(|known| known.descriptor().generation < tablet.generation);
        if may_merge && is_newest {
            candidates.insert(key, Candidate { report, quiet_for });
        }
    }
    candidates
}

/// The merge of two tablets that follow each other among the candidates, and their bytes; `None` if they must not be merged.
fn pair(left: &Candidate<'_>, right: &Candidate<'_>, limit: u64) -> Option<(u64, PlannedMerge)> {
    let (lower, upper) = (left.descriptor(), right.descriptor());
    let are_adjacent = lower.table == upper.table && lower.range.end() == Some(upper.range.start());
    let bytes = left.report.size_bytes.saturating_add(right.report.size_bytes);
    if !are_adjacent || bytes >= limit {
        return None;
    }
    // As `merge::move_before_merge` chooses.
    let (smaller, other) =
        if left.report.size_bytes <= right.report.size_bytes { (left, upper) } else { (right, lower) };
    let is_together = lower.group == upper.group;
    let merge = PlannedMerge {
        pair: MergePair { left: lower.clone(), right: upper.clone() },
        moved: (!is_together).then(|| (smaller.descriptor().tablet, other.group)),
        quiet_for: left.quiet_for.min(right.quiet_for),
    };
    Some((bytes, merge))
}

#[cfg(test)]
mod tests;
