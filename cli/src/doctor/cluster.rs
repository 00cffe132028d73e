//! Checks of the cluster as a whole.

use std::collections::BTreeMap;

use ebla_model::Micros;
use ebla_proto::operate::{Health, ProblemKind};

use super::{Facts, Finding, Severity, counted, first_of};
use crate::process::ClusterSecurity;

/// The tablets of the cluster as a place.
const TABLETS: &str = "tablets";

/// Nothing answers.
pub(super) fn unreachable(facts: &Facts, error: &str) -> Finding {
    Finding {
        check: "cluster",
        page: None,
        severity: Severity::Critical,
        place: facts.addresses.join(", "),
        since: None,
        problem: error.to_owned(),
        next_step: "start a cluster with ebla up, or name one of its tablet servers with --addr HOST:PORT".to_owned(),
    }
}

pub(super) fn findings(facts: &Facts) -> Vec<Finding> {
    if let Some(start) = start(facts) {
        return vec![start];
    }
    let health = facts.snapshot.health.clone().unwrap_or_default();
    let mut found: Vec<Finding> = Vec::new();
    found.extend(master(facts));
    found.extend(metadata(facts));
    found.extend(quorum(facts, &health));
    found.extend(leader(facts, &health));
    found.extend(replicas(facts, &health));
    found.extend(unknown_tables(&health));
    found.extend(lock_service(&health));
    found.extend(tls(facts));
    found.extend(release(facts));
    found.extend(cluster_version(facts));
    found
}

fn start(facts: &Facts) -> Option<Finding> {
    let awaited = facts.snapshot.awaited.as_ref()?;
    let more = awaited.wanted.saturating_sub(awaited.registered);
    Some(Finding {
        check: "start",
        page: None,
        severity: Severity::Critical,
        place: "cluster".to_owned(),
        since: None,
        problem: format!("it waits for tablet servers: {} of {} are there", awaited.registered, awaited.wanted),
        next_step: format!(
            "start {}; if the lock service has lost the data of this cluster, run ebla recover",
            counted(more, "more tablet server", "more tablet servers")
        ),
    })
}

fn master(facts: &Facts) -> Option<Finding> {
    let error = facts.snapshot.master_error.as_ref()?;
    let lost = facts.snapshot.master_lost.map(|lost| {
        let micros = i64::try_from(lost.as_micros()).unwrap_or(i64::MAX);
        Micros::new(facts.now.get().saturating_sub(micros))
    });
    let is_lock_service = error.contains("the lock service is unavailable");
    let next_step = if is_lock_service { "start etcd: without it no master can be active" } else { "start a master" };
    Some(Finding {
        check: "master",
        page: None,
        severity: Severity::Critical,
        place: facts.snapshot.master.clone().map_or("master".to_owned(), |last| format!("master, last at {last}")),
        since: lost,
        problem: format!(
            "no master is available ({error}): reads and writes of tablets with a leader go on, nothing is repaired"
        ),
        next_step: next_step.to_owned(),
    })
}

fn metadata(facts: &Facts) -> Option<Finding> {
    let error = facts.snapshot.metadata_error.as_ref()?;
    Some(Finding {
        check: "metadata",
        page: None,
        severity: Severity::Critical,
        place: "METADATA".to_owned(),
        since: facts.snapshot.since(ProblemKind::MetadataUnreadable, None),
        problem: error.clone(),
        next_step: "start the tablet servers that do not answer: ebla server list shows them".to_owned(),
    })
}

fn quorum(facts: &Facts, health: &Health) -> Option<Finding> {
    let lost = health.without_quorum;
    let silent = facts.snapshot.servers.iter().filter(|server| !server.is_reachable && !server.is_retired());
    let silent: Vec<String> = silent.map(|server| server.id.to_string()).collect();
    let start = if silent.is_empty() { String::new() } else { format!("start tablet servers {}; ", silent.join(", ")) };
    (lost > 0).then(|| Finding {
        check: "quorum",
        page: None,
        severity: Severity::Critical,
        place: TABLETS.to_owned(),
        since: facts.snapshot.since(ProblemKind::NoQuorum, None),
        problem: format!(
            "{} of {} cannot be read or written: most of their replicas are lost ({})",
            lost,
            counted(health.tablets, "tablet", "tablets"),
            first_of(lost, &health.without_quorum_first)
        ),
        next_step: format!("{start}if these are lost permanently, run ebla tablet recover --dry-run"),
    })
}

fn leader(facts: &Facts, health: &Health) -> Option<Finding> {
    let unled = health.without_leader;
    let first = match health.without_leader_first.as_slice() {
        [] => String::new(),
        first => format!(" ({})", first_of(unled, first)),
    };
    (unled > 0).then(|| Finding {
        check: "leader",
        page: None,
        severity: Severity::Critical,
        place: TABLETS.to_owned(),
        since: facts.snapshot.since(ProblemKind::NoLeader, None),
        problem: format!("{} of {} have no leader{first}", unled, counted(health.tablets, "tablet", "tablets")),
        next_step:
            "wait a few seconds for an election; if it lasts, look for errors of Raft in the logs of their servers \
                    (ebla tablet list shows these)"
                .to_owned(),
    })
}

fn replicas(facts: &Facts, health: &Health) -> Option<Finding> {
    let missing: u64 = health.shortages.iter().map(|short| short.tablets).sum();
    let wanted = health.shortages.iter().map(|short| short.wanted).max()?;
    let worst = health.shortages.iter().map(|short| short.live).min()?;
    let up = facts.snapshot.servers.iter().filter(|server| server.is_reachable).count() as u64;
    let next_step = if up < wanted {
        format!("start {}", counted(wanted - up, "more tablet server", "more tablet servers"))
    } else if health.repairs_without_room > 0 {
        format!("make room: {}", health.no_room)
    } else if facts.snapshot.master_error.is_some() {
        "start a master to repair them".to_owned()
    } else if health.repairs > 0 {
        format!("wait: {} being repaired now", counted(health.repairs, "group is", "groups are"))
    } else {
        "wait: the master repairs them unless the servers return".to_owned()
    };
    Some(Finding {
        check: "replicas",
        page: None,
        severity: Severity::Warning,
        place: TABLETS.to_owned(),
        since: facts.snapshot.since(ProblemKind::UnderReplicated, None),
        problem: format!(
            "{} too few live replicas; the fewest are {worst} of {wanted}",
            counted(missing, "tablet has", "tablets have")
        ),
        next_step,
    })
}

fn unknown_tables(health: &Health) -> Option<Finding> {
    let count = health.unknown_tables;
    (count > 0).then(|| Finding {
        check: "unknown-tables",
        page: None,
        severity: Severity::Critical,
        place: "lock service".to_owned(),
        since: None,
        problem: format!(
            "it does not know {} of which tablet servers have tablets ({})",
            counted(count, "table", "tables"),
            first_of(count, &health.unknown_tables_first)
        ),
        next_step: "ebla recover --dry-run shows what is missing; ebla recover restores it".to_owned(),
    })
}

fn lock_service(health: &Health) -> Option<Finding> {
    (!health.behind.is_empty()).then(|| Finding {
        check: "lock-service",
        page: None,
        severity: Severity::Warning,
        place: "lock service".to_owned(),
        since: None,
        problem: format!(
            "it lacks changes that tablet servers have ({}), so changes of tables are refused",
            health.behind.join(", ")
        ),
        next_step: "run ebla recover --dry-run, then ebla recover".to_owned(),
    })
}

fn tls(facts: &Facts) -> Option<Finding> {
    (facts.security == ClusterSecurity::Insecure).then(|| {
        let addresses = facts.snapshot.servers.iter().filter_map(|server| server.address.as_deref());
        let mut shown: Vec<&str> = addresses.filter(|address| !crate::process::is_loopback(address)).collect();
        let more = if shown.len() > 3 { ", …" } else { "" };
        shown.truncate(3);
        let place = if shown.is_empty() { facts.addresses.join(", ") } else { shown.join(", ") };
        Finding {
            check: "tls",
            page: None,
            severity: Severity::Warning,
            place: format!("{place}{more}"),
            since: None,
            problem: "connections have no TLS, and the addresses are not only of this machine: others on the network can read \
                      and change everything"
                .to_owned(),
            next_step: "make certificates with ebla cert init, start the processes with --tls-cert, --tls-key and --tls-ca \
                        instead of --insecure (docs/operate/secure.md)"
                .to_owned(),
        }
    })
}

fn release(facts: &Facts) -> Option<Finding> {
    let mut releases: BTreeMap<String, Vec<String>> = BTreeMap::new();
    match &facts.versions {
        Some(versions) => {
            for process in versions.processes.iter().filter(|process| !process.release.is_empty()) {
                let name = match process.server {
                    0 => format!("master {}", process.address),
                    id => format!("tablet server {id}"),
                };
                releases.entry(process.release.clone()).or_default().push(name);
            }
        }
        None => {
            let known = facts.snapshot.servers.iter().filter_map(|one| Some((one.id, one.release.clone()?)));
            known.for_each(|(id, release)| releases.entry(release).or_default().push(format!("tablet server {id}")));
        }
    }
    (releases.len() > 1).then(|| {
        let one = |(release, processes): (&String, &Vec<String>)| {
            let more = if processes.len() > 3 { ", …" } else { "" };
            let first: Vec<_> = processes.iter().take(3).map(String::as_str).collect();
            format!("{release}: {}{more}", first.join(", "))
        };
        Finding {
            check: "release",
            page: None,
            severity: Severity::Warning,
            place: "cluster".to_owned(),
            since: None,
            problem: format!(
                "its processes run different releases ({})",
                releases.iter().map(one).collect::<Vec<_>>().join("; ")
            ),
            next_step: "restart the others with the newest release, one after the other (docs/operate/upgrade.md)"
                .to_owned(),
        }
    })
}

fn cluster_version(facts: &Facts) -> Option<Finding> {
    let versions = facts.versions.as_ref().filter(|versions| versions.next_version > 0 || versions.held)?;
    let (active, next) = (versions.active_version, versions.next_version);
    let (problem, next_step) = if versions.held {
        (
            format!("version {active} is held by an operator"),
            "run ebla cluster upgrade continue after the upgrade".to_owned(),
        )
    } else {
        let why = match versions.obstacles.as_slice() {
            [] => "it becomes active soon".to_owned(),
            obstacles => obstacles.join("; "),
        };
        (
            format!("version {active} is active and {next} is possible: {why}"),
            "finish the upgrade: ebla cluster upgrade status".to_owned(),
        )
    };
    Some(Finding {
        check: "cluster-version",
        page: None,
        severity: Severity::Note,
        place: "cluster".to_owned(),
        since: None,
        problem,
        next_step,
    })
}
