//! Who should lead what: as many tablets on one server as on another.
//!
//! A leader does most of a tablet's work, and elections hand out leaderships as they fall: a server that was killed comes back to
//! none, and after some restarts the one that has been up longest leads nearly everything. Then the next crash is everybody's.
//!
//! A leadership goes to another voter when that server leads at least two tablets less, because only then are the two
//! more even afterwards; so moving ends by itself. Each move costs the tablet some milliseconds without writes, and only an heir
//! that could be elected at once is asked:
//!
//! - its server is registered and answers (one that is about to stop is not registered any more),
//! - its replica runs, and has applied nearly all that the leader has,
//! - the leader has heard of it lately, is confirmed by a majority, and no replicas are being changed.
//!
//! What it does not weigh: how busy a tablet is. Leaderships are counted, not their load.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use ebla_model::id::{ServerId, TableId, TabletId};
use ebla_model::metadata::TabletDescriptor;

use super::repair::Circumstances;
use super::{Action, is_kept};
use crate::cluster::{Cluster, Presence, ReplicaReport};

/// Leaderships moved in one round at most: the next one looks how things are then.
const AT_ONCE: usize = 16;
/// Entries that an heir may be behind in the picture. Its leader refuses writes until they are there.
const BEHIND: u64 = 1_000;

/// What the leader of each tablet says.
type Led<'a> = BTreeMap<TabletId, (ServerId, &'a ReplicaReport)>;

/// A leadership that may move.
struct Movable<'a> {
    tablet: &'a TabletDescriptor,
    leader: ServerId,
    heirs: Vec<ServerId>,
}

/// The moves that make the most uneven servers more even, first things first.
pub(super) fn leads(cluster: &Cluster, around: &Circumstances) -> Vec<Action> {
    let led = cluster.led();
    let mut counts = counts(cluster, &led);
    let mut movable = movable(cluster, around, &led);
    let mut moves = Vec::new();
    while moves.len() < AT_ONCE {
        let best = movable.iter().enumerate().filter_map(|(at, one)| Some((gap(&counts, one)?, at)));
        // Among equals the first, which is the one with the lowest number.
        let Some(((_gap, to), at)) = best.min_by_key(|((gap, _to), at)| (Reverse(*gap), *at)) else { break };
        let Movable { tablet, leader, .. } = movable.remove(at);
        *counts.entry(leader).or_default() -= 1;
        *counts.entry(to).or_default() += 1;
        moves.push(Action::MoveLeader { tablet: tablet.clone(), from: leader, to });
    }
    moves
}

/// How many tablets each server leads that could lead others.
fn counts(cluster: &Cluster, led: &Led<'_>) -> BTreeMap<ServerId, u64> {
    let mut counts: BTreeMap<ServerId, u64> = cluster.loads().into_keys().map(|server| (server, 0)).collect();
    for (leader, _report) in led.values() {
        if let Some(count) = counts.get_mut(leader) {
            *count += 1;
        }
    }
    counts
}

/// Tablets of users first: they are what a crash is felt by.
fn movable<'a>(cluster: &Cluster, around: &Circumstances, led: &Led<'a>) -> Vec<Movable<'a>> {
    let calm = led.values().filter(|(_leader, report)| {
        let tablet = &report.descriptor;
        report.settled && is_kept(cluster, tablet.table) && !around.under_way.contains_key(&tablet.tablet)
    });
    let mut movable: Vec<Movable<'a>> = calm
        .map(|&(leader, report)| Movable { tablet: &report.descriptor, leader, heirs: heirs(cluster, leader, report) })
        .collect();
    movable.sort_by_key(|one| (one.tablet.table == TableId::METADATA, one.tablet.tablet));
    movable
}

/// The servers that could lead the tablet at once.
fn heirs(cluster: &Cluster, leader: ServerId, leads: &ReplicaReport) -> Vec<ServerId> {
    let members = &leads.descriptor.membership;
    let others = members.replicas().filter(|member| member.server != leader && members.is_voter(member.replica));
    let heard = others.filter(|member| leads.heard.contains(&member.replica));
    let ready = heard.filter(|member| {
        let Some(server) = cluster.servers.get(&member.server) else { return false };
        let mut replicas = server.report.iter().flat_map(|report| &report.replicas);
        server.presence == Presence::Registered
            && replicas.any(|own| own.replica == member.replica && is_near(own, leads))
    });
    ready.map(|member| member.server).collect()
}

/// Whether a replica of the tablet has nearly all that its leader has.
fn is_near(own: &ReplicaReport, leads: &ReplicaReport) -> bool {
    own.descriptor.tablet == leads.descriptor.tablet && own.applied.index.saturating_add(BEHIND) >= leads.applied.index
}

/// By how many the leader has more than the heir who has least, and that heir; `None` when moving would not help.
fn gap(counts: &BTreeMap<ServerId, u64>, one: &Movable<'_>) -> Option<(u64, ServerId)> {
    let own = counts.get(&one.leader)?;
    let least = one.heirs.iter().filter_map(|heir| Some((*counts.get(heir)?, *heir))).min()?;
    let gap = own.checked_sub(least.0)?;
    (gap >= 2).then_some((gap, least.1))
}
