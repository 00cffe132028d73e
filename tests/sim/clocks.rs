//! The check of wrong clocks at the end: a server whose clock most others contradict must not lead a group that another one can lead.

use std::collections::BTreeSet;
use std::time::Duration;

use ebla_model::clock_offset::clock_state;
use ebla_model::id::ServerId;

use crate::cluster::SimCluster;

/// A clock that is off by more than this from most others is surely found out: the servers' own bound is a little lower.
const SURELY_OFF: Duration = Duration::from_secs(6);
/// Clocks that differ by less than this surely agree.
const SURELY_AGREE: Duration = Duration::from_secs(4);

/// The servers that lead although their clocks are off, as text.
pub(crate) fn wrong_leaders(cluster: &SimCluster) -> Vec<String> {
    let clocks: Vec<i64> = cluster.servers.iter().map(|host| host.time.off()).collect();
    let running = || cluster.servers.iter().filter_map(|host| Some((host, host.hosted()?)));
    let trusted: BTreeSet<ServerId> = running()
        .filter(|(host, _hosted)| !clock_state(&clocks, host.time.off()).is_off)
        // A server with a slow disk gets no leadership.
        .filter(|(_host, hosted)| !hosted.disk_speeds().state().is_slow)
        .map(|(_host, hosted)| hosted.server())
        .collect();
    let mut wrong = Vec::new();
    for (host, hosted) in running().filter(|(host, _hosted)| is_surely_off(&clocks, host.time.off())) {
        for group in hosted.groups().iter().filter(|group| group.is_leader()) {
            let membership = group.raft().status().membership;
            let can_lead = membership
                .replicas()
                .any(|replica| membership.is_voter(replica.replica) && trusted.contains(&replica.server));
            if can_lead {
                wrong.push(format!("{} leads group {} with clocks {clocks:?}", host.name, group.id()));
            }
        }
    }
    wrong
}

/// Whether every server that knows these clocks finds that the one that shows `at` is off.
fn is_surely_off(clocks: &[i64], at: i64) -> bool {
    let state = clock_state(clocks, at);
    let Some(offset) = state.offset_micros else { return false };
    let agrees = |clock: &&i64| u128::from(clock.abs_diff(at - offset)) <= SURELY_AGREE.as_micros();
    let agreeing = clocks.iter().filter(agrees).count();
    state.is_off && u128::from(offset.unsigned_abs()) > SURELY_OFF.as_micros() && 2 * agreeing > clocks.len()
}
