//! The health of a cluster with reasons: a pure function of its state.
//!
//! | verdict | when | exit code with `--exit-code` |
//! |---|---|---|
//! | `healthy` | each tablet has all its replicas and a leader, and a master is active | 0 |
//! | `degraded` | reads and writes continue; some tablet has too few live replicas, or a server does not answer | 5 |
//! | `unavailable` | some tablet has no quorum or no leader or its writes are refused, METADATA cannot be read, or no master is active | 6 |
//!
//! A server without room for more tablets is named with every verdict: nothing is missing yet.

use std::fmt;

use ebla_model::capacity::{Demand, WriteState, readable_bytes};
use ebla_model::id::ServerId;
use ebla_proto::operate;

use crate::snapshot::{ClusterSnapshot, ServerSnapshot};

/// Part of the error of a tablet server that cannot reach etcd to look up the master.
const LOCK_SERVICE_DOWN: &str = "the lock service is unavailable";

/// The health of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Nothing is missing.
    Healthy,
    /// All tablets are served, but replicas or servers are missing.
    Degraded,
    /// Some tablets are not served, or there is no master.
    Unavailable,
}

impl Level {
    /// Its name in output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Degraded => "degraded",
            Self::Unavailable => "unavailable",
        }
    }

    /// The exit code.
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Healthy => 0,
            Self::Degraded => 5,
            Self::Unavailable => 6,
        }
    }
}

/// The health of a cluster, with reasons, the worst first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The worst level of all reasons.
    pub level: Level,
    /// What is missing and what to do; empty when healthy.
    pub reasons: Vec<String>,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.level.name())?;
        if !self.reasons.is_empty() {
            write!(f, ": {}", self.reasons.join("; "))?;
        }
        Ok(())
    }
}

/// Evaluates the state of a cluster.
pub fn evaluate(snapshot: &ClusterSnapshot) -> Verdict {
    if let Some(awaited) = &snapshot.awaited {
        let more = awaited.wanted.saturating_sub(awaited.registered);
        let waits = format!(
            "waiting for tablet servers: {} of {}; {}; if the lock service has lost the data of this cluster, run ebla recover",
            awaited.registered,
            awaited.wanted,
            start(awaited.registered, more)
        );
        return Verdict { level: Level::Unavailable, reasons: vec![waits] };
    }
    let mut found: Vec<(Level, String)> = Vec::new();
    let health = snapshot.health.clone().unwrap_or_default();
    if snapshot.master_error.is_some() {
        found.push((Level::Unavailable, no_master(snapshot, &health)));
    }
    found.extend(snapshot.metadata_error.clone().map(|error| (Level::Unavailable, error)));
    if health.without_quorum > 0 {
        found.push((Level::Unavailable, no_quorum(snapshot, &health)));
    }
    found.extend(no_leader(snapshot, &health).map(|reason| (Level::Unavailable, reason)));
    found.extend(unknown_tables(&health).map(|reason| (Level::Unavailable, reason)));
    found.extend(behind(&health).map(|reason| (Level::Degraded, reason)));
    found.extend(snapshot.servers.iter().filter_map(refused_writes));
    found.extend(snapshot.servers.iter().filter_map(clock_off));
    found.extend(snapshot.servers.iter().filter_map(slow_disk));
    found.extend(snapshot.servers.iter().filter_map(damaged));
    found.extend(snapshot.servers.iter().filter_map(memory_exceeded));
    found.extend(shortages(snapshot, &health).map(|reason| (Level::Degraded, reason)));
    if health.shortages.is_empty() {
        let silent = snapshot.servers.iter().filter(|server| !server.is_reachable && !server.is_retired());
        found
            .extend(silent.map(|server| (Level::Degraded, format!("tablet server {} does not answer", named(server)))));
    }
    found.extend(snapshot.servers.iter().filter_map(no_room).map(|note| (Level::Healthy, note)));
    let level = found.iter().map(|(level, _reason)| *level).max().unwrap_or(Level::Healthy);
    Verdict { level, reasons: found.into_iter().map(|(_level, reason)| reason).collect() }
}

fn no_master(snapshot: &ClusterSnapshot, health: &operate::Health) -> String {
    let continues = snapshot.metadata_error.is_none() && health.without_quorum == 0;
    let rest = if continues { "; reads and writes continue" } else { "" };
    // The error of a tablet server that cannot look up the master: then there may be a standby.
    let is_etcd = snapshot.master_error.as_ref().is_some_and(|error| error.contains(LOCK_SERVICE_DOWN));
    let next = if is_etcd { "the lock service is unavailable: start etcd" } else { "start a master" };
    format!("no master is available{rest}; {next}")
}

/// The first of `count` ids.
fn first_of(count: u64, first: &[u64]) -> String {
    let mut shown: Vec<String> = first.iter().map(u64::to_string).collect();
    if count > shown.len() as u64 {
        shown.push("…".to_owned());
    }
    shown.join(", ")
}

/// Tables that the lock service has lost.
fn unknown_tables(health: &operate::Health) -> Option<String> {
    let count = health.unknown_tables;
    let first = first_of(count, &health.unknown_tables_first);
    let tables = if count == 1 { "1 table is".to_owned() } else { format!("{count} tables are") };
    let next = "the lock service has lost what the tablet servers keep; ebla recover --dry-run shows what is missing";
    (count > 0).then(|| format!("{tables} unknown ({first}): {next}"))
}

/// A lock service that lacks changes.
fn behind(health: &operate::Health) -> Option<String> {
    let reasons = health.behind.join(", ");
    (!reasons.is_empty()).then(|| {
        format!(
            "changes of tables are refused, because the lock service lacks changes that the tablet servers have ({reasons}): \
             run ebla recover --dry-run, then ebla recover"
        )
    })
}

fn no_quorum(snapshot: &ClusterSnapshot, health: &operate::Health) -> String {
    let first = first_of(health.without_quorum, &health.without_quorum_first);
    let lost: Vec<String> =
        snapshot.servers.iter().filter(|server| !server.is_reachable).map(|server| server.id.to_string()).collect();
    let next = match lost.as_slice() {
        [] => String::new(),
        [one] => format!("; start tablet server {one}"),
        several => format!("; start tablet servers {}", several.join(", ")),
    };
    let (lost, all) = (health.without_quorum, health.tablets);
    format!("{lost} of {} {} no quorum ({}){next}", tablets(all), have(lost), first)
}

/// A master of an earlier release reports only the number of tablets with a leader.
fn no_leader(snapshot: &ClusterSnapshot, health: &operate::Health) -> Option<String> {
    let unled = match (&snapshot.health, snapshot.tablets, snapshot.tablets_led) {
        (None, Some(tablets), Some(led)) => tablets.saturating_sub(led),
        _ => health.without_leader,
    };
    let all = snapshot.tablets.unwrap_or(health.tablets);
    let reason = format!("{unled} of {} {} no leader; an election takes a few seconds", tablets(all), have(unled));
    (unled > 0).then_some(reason)
}

/// A server that refuses writes. Without leaders on it the other servers accept writes for all tablets.
fn refused_writes(server: &ServerSnapshot) -> Option<(Level, String)> {
    let disk = server.resources.disk.filter(|_disk| server.writes == WriteState::Refuses)?;
    let level = if server.leads == Some(0) { Level::Degraded } else { Level::Unavailable };
    let [free, reserve] = [disk.free_bytes, disk.reserve_bytes].map(readable_bytes);
    let reason = format!(
        "tablet server {} refuses writes: disk ({free} free, {reserve} are reserved); free disk space or delete data",
        server.id
    );
    Some((level, reason))
}

/// A server whose clock is off: it gives its leaderships away, so reads and writes continue.
fn clock_off(server: &ServerSnapshot) -> Option<(Level, String)> {
    let seconds = server.clock.offset_micros.filter(|_offset| server.clock.is_off)? / 1_000_000;
    let direction = if seconds < 0 { "behind" } else { "ahead of" };
    let reason = format!(
        "the clock of tablet server {} is {} s {direction} the others: it leads no tablets; synchronise it (NTP)",
        server.id,
        seconds.unsigned_abs()
    );
    Some((Level::Degraded, reason))
}

/// A server whose disk is slow: it gives its leaderships away, so reads and writes continue.
fn slow_disk(server: &ServerSnapshot) -> Option<(Level, String)> {
    let delay = server.sync.delay.filter(|_delay| server.sync.is_slow)?;
    let (id, millis) = (server.id, delay.as_millis());
    let reason =
        format!("the disk of tablet server {id} is slow (a sync takes {millis} ms): check it, or replace the server");
    Some((Level::Degraded, reason))
}

/// A server whose locality groups in memory do not fit: some are served from files.
fn memory_exceeded(server: &ServerSnapshot) -> Option<(Level, String)> {
    let groups = server.memory_groups.filter(|groups| groups.excess_bytes > 0)?;
    let reason = format!(
        "the locality groups in memory of tablet server {} need {} and have {}, so {} are served from files: give it more          (--memory-groups), or set in-memory=no for some groups",
        server.id,
        readable_bytes(groups.needed_bytes),
        readable_bytes(groups.limit_bytes),
        readable_bytes(groups.excess_bytes)
    );
    Some((Level::Degraded, reason))
}

/// A server with damaged replicas that stay, because their groups have no majority without them: rows in their damaged blocks cannot be
/// read from them.
fn damaged(server: &ServerSnapshot) -> Option<(Level, String)> {
    let replicas = match server.scrub.kept {
        0 => return None,
        1 => "1 damaged replica that its group needs".to_owned(),
        several => format!("{several} damaged replicas that their groups need"),
    };
    let reason = format!(
        "tablet server {} has {replicas} for a majority: start the other servers, or restore the rows that cannot be read from a copy; \
         check the disk",
        server.id
    );
    Some((Level::Degraded, reason))
}

/// A server on which nothing new is created.
fn no_room(server: &ServerSnapshot) -> Option<String> {
    let shortage = server.resources.shortage(Demand::tablets(1)).filter(|_| server.writes == WriteState::Accepts)?;
    Some(shortage.refusal("more tablets", ServerId::new(server.id)).message)
}

/// The tablets with too few replicas, and what to do unless the lost servers are already listed.
fn shortages(snapshot: &ClusterSnapshot, health: &operate::Health) -> Option<String> {
    let wanted = health.shortages.iter().map(|short| short.wanted).max()?;
    let each: Vec<String> = health
        .shortages
        .iter()
        .map(|short| {
            let operate::Shortage { live, wanted, tablets: count } = *short;
            format!("{} {} {live} of {wanted} replicas", tablets(count), have(count))
        })
        .collect();
    if health.without_quorum > 0 {
        return Some(each.join(", "));
    }
    let up = snapshot.servers.iter().filter(|server| server.is_reachable).count() as u64;
    let next = if up < wanted {
        start(up, wanted - up)
    } else if health.repairs_without_room > 0 {
        match health.repairs_without_room {
            1 => format!("the repair of 1 group waits: {}", health.no_room),
            groups => format!("the repairs of {groups} groups wait: {}", health.no_room),
        }
    } else if snapshot.master_error.is_some() {
        "start a master to repair them".to_owned()
    } else if health.repairs > 0 {
        match health.repairs {
            1 => "1 group is being repaired now".to_owned(),
            repairs => format!("{repairs} groups are being repaired now"),
        }
    } else {
        "the master repairs them unless the servers return".to_owned()
    };
    Some(format!("{}; {next}", each.join(", ")))
}

/// What to do when `present` servers are up and `more` are needed.
fn start(present: u64, more: u64) -> String {
    match (more, present) {
        (1, 0) => "start a tablet server".to_owned(),
        (1, 1) => "start a second tablet server".to_owned(),
        (1, 2) => "start a third tablet server".to_owned(),
        (1, _) => "start one more tablet server".to_owned(),
        _ => format!("start {more} more tablet servers"),
    }
}

fn tablets(count: u64) -> String {
    if count == 1 { "1 tablet".to_owned() } else { format!("{count} tablets") }
}

const fn have(count: u64) -> &'static str {
    if count == 1 { "has" } else { "have" }
}

fn named(server: &ServerSnapshot) -> String {
    match &server.address {
        Some(address) => format!("{} at {address}", server.id),
        None => server.id.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use ebla_proto::operate::{Awaited, Health, Remembered, Shortage};

    use ebla_model::memory_groups::MemoryGroups;

    use super::*;

    /// A cluster of servers, some of which answer, with 24 tablets that all have leaders.
    fn snapshot(answering: &[bool]) -> ClusterSnapshot {
        let server = |(place, answers): (usize, &bool)| ServerSnapshot {
            id: place as u64 + 1,
            is_registered: *answers,
            is_reachable: *answers,
            ..ServerSnapshot::default()
        };
        ClusterSnapshot {
            tablets: Some(24),
            tablets_led: Some(24),
            health: Some(Health { tablets: 24, ..Health::default() }),
            servers: answering.iter().enumerate().map(server).collect(),
            ..ClusterSnapshot::default()
        }
    }

    fn short(live: u64, tablets: u64) -> Shortage {
        Shortage { live, wanted: 3, tablets }
    }

    fn with(mut snapshot: ClusterSnapshot, change: impl FnOnce(&mut Health)) -> ClusterSnapshot {
        change(snapshot.health.get_or_insert_default());
        snapshot
    }

    #[test]
    fn a_verdict_says_what_is_missing_and_what_to_do() {
        let lost_one = [true, true, false];
        let cases = [
            (snapshot(&[true; 3]), "healthy"),
            (
                with(snapshot(&lost_one), |health| health.shortages = vec![short(2, 24)]),
                "degraded: 24 tablets have 2 of 3 replicas; start a third tablet server",
            ),
            (
                with(snapshot(&[true]), |health| health.shortages = vec![short(1, 1)]),
                "degraded: 1 tablet has 1 of 3 replicas; start 2 more tablet servers",
            ),
            (
                with(snapshot(&[true, true, true, false]), |health| {
                    health.shortages = vec![short(1, 2), short(2, 6)];
                }),
                "degraded: 2 tablets have 1 of 3 replicas, 6 tablets have 2 of 3 replicas; the master repairs them unless \
                 the servers return",
            ),
            (
                with(snapshot(&[true; 3]), |health| (health.shortages, health.repairs) = (vec![short(2, 6)], 1)),
                "degraded: 6 tablets have 2 of 3 replicas; 1 group is being repaired now",
            ),
            (snapshot(&lost_one), "degraded: tablet server 3 does not answer"),
            (
                with(snapshot(&[true, false, false, false]), |health| {
                    (health.without_quorum, health.without_quorum_first) = (24, vec![0, 1, 2]);
                    health.shortages = vec![short(1, 24)];
                }),
                "unavailable: 24 of 24 tablets have no quorum (0, 1, 2, …); start tablet servers 2, 3, 4; 24 tablets have 1 \
                 of 3 replicas",
            ),
            (
                with(snapshot(&[true; 3]), |health| health.without_leader = 1),
                "unavailable: 1 of 24 tablets has no leader; an election takes a few seconds",
            ),
            (
                ClusterSnapshot { master_error: Some("refused".to_owned()), tablets_led: None, ..snapshot(&[true; 3]) },
                "unavailable: no master is available; reads and writes continue; start a master",
            ),
            (
                ClusterSnapshot { master_error: Some(LOCK_SERVICE_DOWN.to_owned()), ..snapshot(&[true; 3]) },
                "unavailable: no master is available; reads and writes continue; the lock service is unavailable: start etcd",
            ),
            (
                ClusterSnapshot {
                    metadata_error: Some("METADATA cannot be read: late".to_owned()),
                    master_error: Some("refused".to_owned()),
                    tablets: None,
                    health: None,
                    ..snapshot(&[true])
                },
                "unavailable: no master is available; start a master; METADATA cannot be read: late",
            ),
            (
                ClusterSnapshot {
                    metadata_error: Some("METADATA cannot be read: late".to_owned()),
                    remembered: Some(Remembered { age_millis: 1, tablets: 24 }),
                    tablets: None,
                    ..snapshot(&[true])
                },
                "unavailable: METADATA cannot be read: late",
            ),
            (
                ClusterSnapshot { awaited: Some(Awaited { registered: 1, wanted: 3 }), ..ClusterSnapshot::default() },
                "unavailable: waiting for tablet servers: 1 of 3; start 2 more tablet servers; if the lock service has lost the \
                 data of this cluster, run ebla recover",
            ),
            (
                with(snapshot(&[true; 3]), |health| {
                    (health.unknown_tables, health.unknown_tables_first) = (3, vec![40, 41]);
                }),
                "unavailable: 3 tables are unknown (40, 41, …): the lock service has lost what the tablet servers keep; \
                 ebla recover --dry-run shows what is missing",
            ),
            (
                with(snapshot(&[true; 3]), |health| health.behind = vec!["why".to_owned()]),
                "degraded: changes of tables are refused, because the lock service lacks changes that the tablet servers have \
                 (why): run ebla recover --dry-run, then ebla recover",
            ),
            (
                ClusterSnapshot { health: None, tablets_led: Some(20), ..snapshot(&[true; 3]) },
                "unavailable: 4 of 24 tablets have no leader; an election takes a few seconds",
            ),
        ];
        for (snapshot, expected) in cases {
            assert_eq!(evaluate(&snapshot).to_string(), expected);
        }
    }

    #[test]
    fn a_server_that_is_short_of_a_resource_is_named() {
        use ebla_model::capacity::{DiskSpace, Resources};
        let shown = |writes, free_bytes: u64, leads| {
            let disk = Some(DiskSpace { free_bytes, total_bytes: 50 << 30, reserve_bytes: 2 << 30 });
            let mut snapshot = snapshot(&[true; 3]);
            let server = &mut snapshot.servers[1];
            (server.writes, server.leads) = (writes, Some(leads));
            server.resources = Resources { disk, ..Resources::default() };
            evaluate(&snapshot).to_string()
        };
        assert_eq!(shown(WriteState::Accepts, 9 << 30, 1), "healthy");
        assert_eq!(
            shown(WriteState::Accepts, 3 << 30, 1),
            "healthy: no room for more tablets: server 2 needs 4.0 KiB of disk space and may use 0 B (3.0 GiB of 50.0 GiB are \
             free, twice the reserve of 2.0 GiB stays free); free disk space, delete tables, or add tablet servers"
        );
        let refused =
            "tablet server 2 refuses writes: disk (1.0 GiB free, 2.0 GiB are reserved); free disk space or delete data";
        assert_eq!(shown(WriteState::Refuses, 1 << 30, 1), format!("unavailable: {refused}"));
        assert_eq!(shown(WriteState::Refuses, 1 << 30, 0), format!("degraded: {refused}"));
        let waits = with(snapshot(&[true; 3]), |health| {
            (health.shortages, health.repairs_without_room, health.no_room) = (vec![short(2, 6)], 1, "why".to_owned());
        });
        assert_eq!(
            evaluate(&waits).to_string(),
            "degraded: 6 tablets have 2 of 3 replicas; the repair of 1 group waits: why"
        );
    }

    #[test]
    fn a_server_whose_disk_is_slow_is_named() {
        let mut snapshot = snapshot(&[true; 3]);
        snapshot.servers[1].sync.delay = Some(std::time::Duration::from_micros(712_345));
        assert_eq!(evaluate(&snapshot).to_string(), "healthy");
        snapshot.servers[1].sync.is_slow = true;
        assert_eq!(
            evaluate(&snapshot).to_string(),
            "degraded: the disk of tablet server 2 is slow (a sync takes 712 ms): check it, or replace the server"
        );
    }

    #[test]
    fn a_server_whose_groups_in_memory_do_not_fit_is_named() {
        let mut snapshot = snapshot(&[true]);
        let fits = MemoryGroups { limit_bytes: 3 << 20, needed_bytes: 2 << 20, ..MemoryGroups::default() };
        snapshot.servers[0].memory_groups = Some(fits);
        assert_eq!(evaluate(&snapshot).to_string(), "healthy");
        snapshot.servers[0].memory_groups = Some(MemoryGroups { needed_bytes: 5 << 20, excess_bytes: 4 << 20, ..fits });
        let said = evaluate(&snapshot).to_string();
        assert!(said.starts_with("degraded: the locality groups in memory of tablet server 1 need 5"), "{said}");
    }

    #[test]
    fn a_server_with_damaged_replicas_that_stay_is_named() {
        let mut snapshot = snapshot(&[true]);
        snapshot.servers[0].scrub.damaged = 2;
        assert_eq!(evaluate(&snapshot).to_string(), "healthy", "they were replaced");
        snapshot.servers[0].scrub.kept = 1;
        assert_eq!(
            evaluate(&snapshot).to_string(),
            "degraded: tablet server 1 has 1 damaged replica that its group needs for a majority: start the other servers, or restore the \
             rows that cannot be read from a copy; check the disk"
        );
    }

    #[test]
    fn exit_codes_follow_the_verdict() {
        let codes = [Level::Healthy, Level::Degraded, Level::Unavailable].map(Level::exit_code);
        assert_eq!(codes, [0, 5, 6]);
    }
}
