//! Checks of each tablet server.

use ebla_model::Micros;
use ebla_model::capacity::{DiskSpace, Usage, WriteState, readable_bytes};
use ebla_model::near_capacity::LimitedResource;
use ebla_proto::operate::ProblemKind;

use super::{Finding, Severity, counted, first_of};
use crate::html::Path;
use ebla_client::snapshot::{ClusterSnapshot, ServerSnapshot};

pub(super) fn findings(snapshot: &ClusterSnapshot) -> Vec<Finding> {
    let checks = [server, writes, clock, slow_disk, damage, lag, disk, memory, files, connections, memory_groups];
    let of_server = |server| checks.iter().filter_map(move |check| check(snapshot, server));
    snapshot.servers.iter().flat_map(of_server).collect()
}

/// A finding about a server. `kind`: the problem by which the master knows its time.
fn about(
    snapshot: &ClusterSnapshot,
    server: &ServerSnapshot,
    check: &'static str,
    kind: Option<ProblemKind>,
    (problem, next_step): (String, String),
) -> Finding {
    let place = match &server.address {
        Some(address) => format!("tablet server {} at {address}", server.id),
        None => format!("tablet server {}", server.id),
    };
    let since: Option<Micros> = kind.and_then(|kind| snapshot.since(kind, Some(server.id)));
    let page = Some(Path::of(&["servers", &server.id.to_string()]));
    Finding { check, page, severity: Severity::Warning, place, since, problem, next_step }
}

fn server(snapshot: &ClusterSnapshot, one: &ServerSnapshot) -> Option<Finding> {
    if one.is_retired() || (one.is_reachable && one.is_registered) {
        return None;
    }
    // Without a master, no lease is known for a server that is not registered.
    let said = if !one.is_reachable {
        let replicas = match one.assigned {
            Some(0) | None => String::new(),
            Some(assigned) => format!("; it should have {}", counted(assigned, "replica", "replicas")),
        };
        (
            format!("it does not answer{replicas}"),
            "start its process, or check its machine and network; without it the master replaces its replicas"
                .to_owned(),
        )
    } else {
        (
            "it answers, but has no lease in the lock service: it gets no new replicas".to_owned(),
            "check its connection to the lock service, and its log".to_owned(),
        )
    };
    Some(about(snapshot, one, "server", Some(ProblemKind::NoResponse), said))
}

fn writes(snapshot: &ClusterSnapshot, one: &ServerSnapshot) -> Option<Finding> {
    let disk = one.resources.disk.filter(|_disk| one.writes == WriteState::Refuses)?;
    let [free, reserve] = [disk.free_bytes, disk.reserve_bytes].map(readable_bytes);
    let said = (
        format!("it refuses writes: {free} of its disk are free, and {reserve} are reserved"),
        "free disk space, delete data, or move replicas away: ebla server drain".to_owned(),
    );
    let severity = if one.leads == Some(0) { Severity::Warning } else { Severity::Critical };
    Some(Finding { severity, ..about(snapshot, one, "writes", Some(ProblemKind::RefusesWrites), said) })
}

fn clock(snapshot: &ClusterSnapshot, one: &ServerSnapshot) -> Option<Finding> {
    let micros = one.clock.offset_micros.filter(|_offset| one.clock.is_off)?;
    let direction = if micros < 0 { "behind" } else { "ahead of" };
    let seconds = micros.unsigned_abs() / 1_000_000;
    let said = (
        format!("its clock is {seconds} s {direction} the others, so it leads no tablets"),
        "synchronise the clock (NTP), then check that it stays so".to_owned(),
    );
    Some(about(snapshot, one, "clock", Some(ProblemKind::ClockOff), said))
}

fn slow_disk(snapshot: &ClusterSnapshot, one: &ServerSnapshot) -> Option<Finding> {
    let delay = one.sync.delay.filter(|_delay| one.sync.is_slow)?;
    let said = (
        format!("its disk is slow: a sync of the commit log takes {} ms, so it leads no tablets", delay.as_millis()),
        format!("check the disk and what else uses it, or replace the server: ebla server drain {}", one.id),
    );
    Some(about(snapshot, one, "slow-disk", Some(ProblemKind::SlowDisk), said))
}

fn damage(snapshot: &ClusterSnapshot, one: &ServerSnapshot) -> Option<Finding> {
    let said = (
        format!(
            "{} in use, because their groups have no majority without them",
            counted(one.scrub.kept, "damaged replica is", "damaged replicas are")
        ),
        "start the other servers of these groups, or restore the rows that cannot be read from a copy; check the disk"
            .to_owned(),
    );
    (one.scrub.kept > 0).then(|| about(snapshot, one, "damage", Some(ProblemKind::Damaged), said))
}

fn lag(snapshot: &ClusterSnapshot, one: &ServerSnapshot) -> Option<Finding> {
    let lag = one.lag.as_ref().filter(|lag| lag.replicas > 0)?;
    let said = (
        format!(
            "{} far behind the leaders, by up to {} log entries and {} s (groups {})",
            counted(lag.replicas, "replica is", "replicas are"),
            lag.entries_max,
            lag.time_max.as_secs(),
            first_of(lag.replicas, &lag.groups_first)
        ),
        "compare its disk, processor and network with those of the other servers; a restart makes it catch up from the leaders"
            .to_owned(),
    );
    Some(about(snapshot, one, "lag", Some(ProblemKind::Lagging), said))
}

fn disk(snapshot: &ClusterSnapshot, one: &ServerSnapshot) -> Option<Finding> {
    let used = one.resources.near_limit(LimitedResource::Disk, one.writes)?;
    let DiskSpace { free_bytes, total_bytes, reserve_bytes } = one.resources.disk?;
    let [free, total, reserve] = [free_bytes, total_bytes, reserve_bytes].map(readable_bytes);
    let said = (
        format!("its disk is {used} % full: {free} of {total} are free, and below {reserve} it refuses writes"),
        "free disk space, delete tables, or add tablet servers".to_owned(),
    );
    Some(about(snapshot, one, "disk", Some(ProblemKind::DiskNearlyFull), said))
}

/// What is said about a resource that is nearly used up: the name of the check, how the master calls it, the noun, how an amount is shown, and
/// the next step.
struct Words<'a> {
    check: &'static str,
    kind: ProblemKind,
    noun: &'a str,
    show: &'a dyn Fn(u64) -> String,
    next_step: &'a str,
}

fn near(
    (snapshot, one): (&ClusterSnapshot, &ServerSnapshot),
    (resource, usage): (LimitedResource, Option<Usage>),
    words: &Words<'_>,
) -> Option<Finding> {
    let percent = one.resources.near_limit(resource, one.writes)?;
    let [used, limit] = [usage?.used, usage?.limit].map(words.show);
    let problem = format!("its process uses {percent} % of its {}: {used} of {limit}", words.noun);
    Some(about(snapshot, one, words.check, Some(words.kind), (problem, words.next_step.to_owned())))
}

fn memory(snapshot: &ClusterSnapshot, one: &ServerSnapshot) -> Option<Finding> {
    let words = Words {
        check: "memory",
        kind: ProblemKind::MemoryNearlyUsed,
        noun: "memory",
        show: &readable_bytes,
        next_step: "give the server more memory, or lower its caches (docs/operate/sizing.md); beyond the limit the system ends the process",
    };
    near((snapshot, one), (LimitedResource::Memory, one.resources.memory), &words)
}

fn files(snapshot: &ClusterSnapshot, one: &ServerSnapshot) -> Option<Finding> {
    let words = Words {
        check: "files",
        kind: ProblemKind::FilesNearlyUsed,
        noun: "open files",
        show: &|count| count.to_string(),
        next_step: "raise the limit of open files (ulimit -n, LimitNOFILE) and restart the server",
    };
    near((snapshot, one), (LimitedResource::Files, one.resources.files), &words)
}

fn connections(snapshot: &ClusterSnapshot, one: &ServerSnapshot) -> Option<Finding> {
    let words = Words {
        check: "connections",
        kind: ProblemKind::ConnectionsNearlyUsed,
        noun: "connections",
        show: &|count| count.to_string(),
        next_step: "let clients share connections, spread them over the servers, or raise --connections; a further connection is closed",
    };
    near((snapshot, one), (LimitedResource::Connections, one.resources.connections), &words)
}

fn memory_groups(snapshot: &ClusterSnapshot, one: &ServerSnapshot) -> Option<Finding> {
    let groups = one.memory_groups.filter(|groups| groups.excess_bytes > 0)?;
    let [needed, limit, excess] = [groups.needed_bytes, groups.limit_bytes, groups.excess_bytes].map(readable_bytes);
    let said = (
        format!("its locality groups in memory need {needed} and have {limit}: {excess} are served from files"),
        "give it more (--memory-groups), or set in-memory=no for some groups".to_owned(),
    );
    Some(about(snapshot, one, "memory-groups", None, said))
}
