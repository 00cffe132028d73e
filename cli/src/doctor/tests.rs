//! The golden scripts of `testdata/doctor`: facts, then what the command shows.
//!
//! ```text
//! servers 3                                 that are up, at host-1:1, host-2:1, …; 20 tablets
//! server 2 gone | unreachable | retired | unregistered | refuses | damaged=1 | slow=712 | clock=-9 | lag=2/5000/41 | leads=0
//!          | disk=10/100/2 | memory=95/100 | files=95/100 | connections=95/100 | excess=4/1 | release=0.0.9 | address=10.0.0.2:1
//! problem slow-disk 2 -754                  the master has observed it for 754 s; server 0: tablets; hot-row 12: the tablet
//! health leaderless 3 7 8 9 | lost 2 5 6 | short 2/3 20 | repairs 1 | no-room 1 why | unknown 1 9 | behind why
//! master 34 no master is active             lost 34 s ago
//! metadata late
//! awaits 1/3
//! insecure
//! table web 5000                            with this many requests per second
//! tablet web 12 4900 | tablet web 12 4900 hot
//! quota web f cells 95/100                  a family, or - for the table
//! version 1 2 why | version 1 held
//! local clock=12/1 | certificate | variables
//! unreachable refused
//! skip quota why
//! ---
//! the text
//! ```

use std::path::Path;
use std::time::Duration;

use ebla_model::capacity::{DiskSpace, Usage, WriteState};
use ebla_model::memory_groups::MemoryGroups;
use ebla_proto::operate::{
    Awaited, DrainState, Health, LoadedTablet, ObservedProblem, ProblemKind, QuotaUse, Shortage, TableLoad,
    UpgradeProcess,
};
use ebla_proto::record::{self, QuotaMeasure};

use super::*;
use ebla_client::snapshot::{ReplicaLag, ServerSnapshot};

const SECOND: i64 = 1_000_000;
const NOW: i64 = 1_000_000 * SECOND;

fn number(text: &str) -> u64 {
    text.parse().unwrap_or_else(|_| panic!("no number: {text:?}"))
}

/// Numbers with slashes between them.
fn numbers(text: &str) -> Vec<u64> {
    text.split('/').map(number).collect()
}

fn healthy() -> Facts {
    Facts {
        addresses: vec!["host-1:1".to_owned()],
        unreachable: None,
        snapshot: ClusterSnapshot {
            tablets: Some(20),
            health: Some(Health { tablets: 20, ..Health::default() }),
            ..ClusterSnapshot::default()
        },
        security: ClusterSecurity::Tls,
        loads: Some(LoadsReply::default()),
        versions: None,
        local: LocalFacts::default(),
        release: "0.1.0".to_owned(),
        now: Micros::new(NOW),
        not_checked: Vec::new(),
    }
}

fn usage(text: &str) -> Usage {
    let parts = numbers(text);
    Usage { used: parts[0], limit: parts[1] }
}

fn change_server(server: &mut ServerSnapshot, word: &str) {
    let (name, value) = word.split_once('=').unwrap_or((word, ""));
    match name {
        "gone" => (server.is_registered, server.is_reachable, server.assigned) = (false, false, Some(4)),
        "unreachable" => server.is_reachable = false,
        "unregistered" => server.is_registered = false,
        "retired" => {
            (server.is_registered, server.is_reachable, server.drain) = (false, false, DrainState::Drained);
        }
        "refuses" => server.writes = WriteState::Refuses,
        "leads" => server.leads = Some(number(value)),
        "damaged" => server.scrub.kept = number(value),
        "slow" => {
            server.sync.is_slow = true;
            server.sync.delay = Some(Duration::from_millis(number(value)));
        }
        "clock" => {
            server.clock.is_off = true;
            server.clock.offset_micros = Some(value.parse::<i64>().unwrap() * SECOND);
        }
        "lag" => {
            let parts = numbers(value);
            server.lag = Some(ReplicaLag {
                replicas: parts[0],
                entries_max: parts[1],
                time_max: Duration::from_secs(parts[2]),
                groups_first: vec![4, 6],
            });
        }
        "disk" => {
            let parts = numbers(value).into_iter().map(|gibibytes| gibibytes << 30).collect::<Vec<_>>();
            server.resources.disk =
                Some(DiskSpace { free_bytes: parts[0], total_bytes: parts[1], reserve_bytes: parts[2] });
        }
        "memory" => server.resources.memory = Some(usage(value)),
        "files" => server.resources.files = Some(usage(value)),
        "connections" => server.resources.connections = Some(usage(value)),
        "excess" => {
            let parts = numbers(value);
            let groups =
                MemoryGroups { needed_bytes: parts[0] << 20, limit_bytes: parts[1] << 20, ..MemoryGroups::default() };
            let excess_bytes = groups.needed_bytes - groups.limit_bytes;
            server.memory_groups = Some(MemoryGroups { excess_bytes, ..groups });
        }
        "release" => server.release = Some(value.to_owned()),
        "address" => server.address = Some(value.to_owned()),
        other => panic!("unknown state {other:?}"),
    }
}

fn kind(name: &str) -> ProblemKind {
    match name {
        "no-response" => ProblemKind::NoResponse,
        "refuses-writes" => ProblemKind::RefusesWrites,
        "clock-off" => ProblemKind::ClockOff,
        "slow-disk" => ProblemKind::SlowDisk,
        "damaged" => ProblemKind::Damaged,
        "lagging" => ProblemKind::Lagging,
        "no-leader" => ProblemKind::NoLeader,
        "no-quorum" => ProblemKind::NoQuorum,
        "under-replicated" => ProblemKind::UnderReplicated,
        "metadata" => ProblemKind::MetadataUnreadable,
        "disk-full" => ProblemKind::DiskNearlyFull,
        "memory-used" => ProblemKind::MemoryNearlyUsed,
        "files-used" => ProblemKind::FilesNearlyUsed,
        "connections-used" => ProblemKind::ConnectionsNearlyUsed,
        "hot-row" => ProblemKind::HotRow,
        "hot-tablet" => ProblemKind::HotTablet,
        other => panic!("unknown problem {other:?}"),
    }
}

fn change_health(health: &mut Health, words: &[&str]) {
    let ids = |words: &[&str]| words.iter().map(|id| number(id)).collect::<Vec<_>>();
    match words {
        ["leaderless", count, first @ ..] => {
            (health.without_leader, health.without_leader_first) = (number(count), ids(first));
        }
        ["lost", count, first @ ..] => {
            (health.without_quorum, health.without_quorum_first) = (number(count), ids(first))
        }
        ["short", of, tablets] => {
            let (live, wanted) = of.split_once('/').unwrap();
            let short = Shortage { live: number(live), wanted: number(wanted), tablets: number(tablets) };
            health.shortages.push(short);
        }
        ["repairs", count] => health.repairs = number(count),
        ["no-room", count, why @ ..] => (health.repairs_without_room, health.no_room) = (number(count), why.join(" ")),
        ["unknown", count, first @ ..] => {
            (health.unknown_tables, health.unknown_tables_first) = (number(count), ids(first));
        }
        ["behind", why @ ..] => health.behind = vec![why.join(" ")],
        other => panic!("unknown health {other:?}"),
    }
}

fn full_name(table: &str) -> String {
    if table == "METADATA" { table.to_owned() } else { format!("projects/p/instances/i/tables/{table}") }
}

fn change_loads(loads: &mut LoadsReply, words: &[&str]) {
    match words {
        ["table", name, load] => {
            let table = full_name(name);
            let load = TableLoad { table, reads_per_second: number(load), ..TableLoad::default() };
            loads.tables.push(load);
        }
        ["tablet", name, id, load, hot @ ..] => loads.tablets.push(LoadedTablet {
            table: full_name(name),
            tablet: Some(record::TabletRecord {
                table: u64::from(*name != "METADATA"),
                tablet: number(id),
                ..record::TabletRecord::default()
            }),
            leader: 2,
            load: Some(record::TabletLoad {
                writes_per_second: number(load),
                hot_row: (!hot.is_empty()).then(|| "secret".into()),
                ..record::TabletLoad::default()
            }),
            ..LoadedTablet::default()
        }),
        ["quota", name, family, measure, of] => {
            let (parts, end) = (numbers(of), format!("/{name}"));
            let table = loads.tables.iter_mut().find(|table| table.table.ends_with(&end)).unwrap();
            let measure = if *measure == "cells" { QuotaMeasure::Cells } else { QuotaMeasure::StoredBytes };
            table.quotas.push(QuotaUse {
                family: if *family == "-" { String::new() } else { (*family).to_owned() },
                measure: measure.into(),
                used: parts[0],
                limit: parts[1],
                exceeded: parts[0] > parts[1],
            });
        }
        other => panic!("unknown load {other:?}"),
    }
}

fn change(facts: &mut Facts, line: &str) {
    let words: Vec<&str> = line.split_whitespace().collect();
    let snapshot = &mut facts.snapshot;
    match words.as_slice() {
        ["servers", count] => {
            snapshot.servers = (1..=number(count))
                .map(|id| ServerSnapshot {
                    id,
                    address: Some(format!("host-{id}:1")),
                    is_registered: true,
                    is_reachable: true,
                    release: Some("0.1.0".to_owned()),
                    leads: Some(5),
                    ..ServerSnapshot::default()
                })
                .collect();
        }
        ["server", id, states @ ..] => {
            let server = snapshot.servers.iter_mut().find(|server| server.id == number(id)).unwrap();
            states.iter().for_each(|word| change_server(server, word));
        }
        ["problem", name, server, seconds] => snapshot.problems.push(ObservedProblem {
            kind: kind(name).into(),
            server: if name.starts_with("hot-") { 0 } else { number(server) },
            tablet: if name.starts_with("hot-") { number(server) } else { 0 },
            since_micros: NOW + seconds.parse::<i64>().unwrap() * SECOND,
        }),
        ["health", rest @ ..] => change_health(snapshot.health.as_mut().unwrap(), rest),
        ["master", seconds, why @ ..] => {
            snapshot.master = Some("host-0:1".to_owned());
            snapshot.master_lost = Some(Duration::from_secs(number(seconds)));
            snapshot.master_error = Some(why.join(" "));
        }
        ["metadata", why @ ..] => snapshot.metadata_error = Some(format!("METADATA cannot be read: {}", why.join(" "))),
        ["awaits", of] => {
            let parts = numbers(of);
            snapshot.awaited = Some(Awaited { registered: parts[0], wanted: parts[1] });
        }
        ["insecure"] => facts.security = ClusterSecurity::Insecure,
        ["table" | "tablet" | "quota", ..] => change_loads(facts.loads.as_mut().unwrap(), &words),
        ["version", active, rest @ ..] => {
            let process = |(server, release): (u64, &str)| UpgradeProcess {
                server,
                address: format!("host-{server}:1"),
                release: release.to_owned(),
                ..UpgradeProcess::default()
            };
            let mut versions =
                UpgradeStatusReply { active_version: u32::try_from(number(active)).unwrap(), ..Default::default() };
            versions.processes = [(0, "0.1.0"), (1, "0.1.0"), (2, "0.1.0"), (3, "0.0.9")].map(process).into();
            match rest {
                ["held"] => versions.held = true,
                ["done"] => versions.processes.truncate(3),
                [next, why @ ..] => {
                    (versions.next_version, versions.obstacles) =
                        (u32::try_from(number(next)).unwrap(), vec![why.join(" ")]);
                }
                [] => {}
            }
            facts.versions = Some(versions);
        }
        ["local", word] => match word.split_once('=').unwrap_or((word, "")) {
            ("clock", value) => {
                let (ahead, error) = value.split_once('/').unwrap();
                let micros = |text: &str| text.parse::<i64>().unwrap() * SECOND;
                facts.local.clock = Some((micros(ahead), micros(error).unsigned_abs()));
            }
            ("certificate", _) => facts.local.certificate_expires = true,
            ("variables", _) => facts.local.variables = Some(("a:1".to_owned(), "b:1".to_owned())),
            other => panic!("unknown fact {other:?}"),
        },
        ["unreachable", why @ ..] => facts.unreachable = Some(why.join(" ")),
        ["skip", check, why @ ..] => {
            let name = CHECKS.iter().find(|(name, _what)| name == check).unwrap().0;
            facts.not_checked.push((name, why.join(" ")));
        }
        _ => panic!("unknown line {line:?}"),
    }
}

/// Replaces empty lines, which end a case of a golden file.
fn run(case: &str) -> String {
    let script = case.split("---\n").next().unwrap();
    let mut facts = healthy();
    script.lines().filter(|line| !line.starts_with('#')).for_each(|line| change(&mut facts, line));
    let shown = diagnose(&facts).to_text(facts.now).replace("\n\n", "\n.\n");
    format!("{script}---\n{shown}")
}

#[test]
fn golden_scripts() {
    for name in ["cluster", "servers", "loads", "local"] {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("testdata/doctor/{name}.txt"));
        crate::golden::check_cases(&file, run);
    }
}

#[test]
fn every_check_has_a_case() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/doctor");
    let cases: String =
        std::fs::read_dir(folder).unwrap().map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap()).collect();
    let missing: Vec<_> = CHECKS.iter().filter(|(name, _what)| !cases.contains(&format!("({name})"))).collect();
    assert!(missing.is_empty(), "add cases to testdata/doctor that find these: {missing:?}");
    assert!(!cases.contains("secret"), "a finding shows a key");
}

#[test]
fn the_worst_finding_comes_first_and_is_the_verdict() {
    let mut facts = healthy();
    for line in ["servers 3", "server 2 slow=700", "health leaderless 1 7", "local variables"] {
        change(&mut facts, line);
    }
    let diagnosis = diagnose(&facts);
    let checks: Vec<_> = diagnosis.findings.iter().map(|finding| finding.check).collect();
    assert_eq!(checks, ["leader", "slow-disk", "local-environment"]);
    assert_eq!(diagnosis.level().exit_code(), 6);
    let json = diagnosis.to_json();
    assert_eq!(
        (json["verdict"].as_str(), json["findings"][1]["severity"].as_str()),
        (Some("unavailable"), Some("warning"))
    );
    assert_eq!(diagnosis.table().render().lines().count(), 4);
    facts.snapshot.health = None;
    assert_eq!(diagnose(&facts).level().exit_code(), 5);
    assert_eq!(diagnose(&healthy()).level().exit_code(), 0);
}

#[test]
fn spans_are_shown_in_their_largest_unit() {
    let shown = [0, 119, 120, 7_199, 7_200, 172_800].map(|seconds| span(Micros::new(seconds * SECOND), Micros::ZERO));
    assert_eq!(shown, ["0 s", "119 s", "2 min", "119 min", "2 h", "2 d"]);
    assert_eq!(span(Micros::ZERO, Micros::new(9)), "0 s", "a clock that was set back");
}
