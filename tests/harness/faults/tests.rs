//! The driver and the sources of its faults, as transcripts; `UPDATE=1` rewrites the golden files in `testdata/nemesis`.

use std::collections::BTreeMap;
use std::time::Duration;

use ebla_runtime::Rng;

use crate::cluster::{Direction, Node, Role};
use crate::faults::driver::{Driver, Step};
use crate::faults::fault::{Action, Fault, FaultKind, Leases, Place, Target};
use crate::faults::rates::{Rates, Recurring};
use crate::faults::schedule::{ScheduleItem, schedule};
use crate::faults::view::View;

const fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn golden(name: &str, text: &str) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/nemesis").join(name);
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    assert_eq!(text, std::fs::read_to_string(&path).unwrap(), "UPDATE=1 rewrites the golden file");
}

fn items() -> Vec<ScheduleItem> {
    let servers = (0..3).map(|n| Target::Node(Node::TabletServer(n))).collect();
    let short = (Duration::from_millis(200), seconds(2));
    let long = (seconds(12), seconds(15));
    vec![
        ScheduleItem { kind: FaultKind::Kill, targets: servers, lasts: short, times: 5 },
        ScheduleItem { kind: FaultKind::Kill, targets: vec![Target::Everything], lasts: short, times: 2 },
        ScheduleItem { kind: FaultKind::Pause, targets: vec![Target::Role(Role::ActiveMaster)], lasts: long, times: 1 },
        ScheduleItem {
            kind: FaultKind::Partition(Direction::Out),
            targets: vec![Target::Role(Role::BusiestTabletServer)],
            lasts: long,
            times: 1,
        },
    ]
}

#[test]
fn a_seed_determines_the_schedule() {
    let mut text = String::new();
    for seed in [1, 2] {
        text.push_str(&format!("seed {seed}\n"));
        for fault in schedule(seed, &items()) {
            text.push_str(&format!("  {fault}\n"));
        }
    }
    golden("schedule.txt", &text);
}

#[test]
fn every_item_has_its_number_of_faults_with_targets_in_turn() {
    let drawn = schedule(7, &items());
    assert_eq!(drawn.len(), 9);
    let servers = drawn.iter().filter_map(|one| match one.target {
        Target::Node(Node::TabletServer(n)) => Some(n),
        _ => None,
    });
    assert_eq!(servers.collect::<Vec<_>>(), [0, 1, 2, 0, 1]);
}

/// Three members of etcd, two masters and three tablet servers, of which two lead.
fn view() -> View {
    let etcd = (0..3).map(Node::Etcd);
    let nodes = etcd.chain((0..2).map(Node::Master)).chain((0..3).map(Node::TabletServer)).collect();
    let leaders = vec![Node::TabletServer(0), Node::TabletServer(2)];
    let roles = BTreeMap::from([(Role::ActiveMaster, Node::Master(1)), (Role::EtcdLeader, Node::Etcd(0))]);
    View { nodes, leaders, roles }
}

/// Steps at the times at which events are due, until `end`.
fn steps(driver: &mut Driver, end: Duration) -> Vec<(Duration, Step)> {
    let mut steps = Vec::new();
    while let Some(now) = driver.next_at().filter(|due| *due <= end) {
        steps.extend(driver.step(now, &view()).map(|step| (now, step)));
    }
    steps
}

fn transcript(steps: &[(Duration, Step)]) -> String {
    let mut text = String::new();
    for (now, step) in steps {
        let at = format!("{:8.3} s", now.as_secs_f64());
        match step {
            Step::Drawn(kind) => text.push_str(&format!("{at}  draw {kind:?}\n")),
            Step::Actions(actions) if actions.is_empty() => text.push_str(&format!("{at}  nothing\n")),
            Step::Actions(actions) => {
                for action in actions {
                    text.push_str(&format!("{at}  {action}\n"));
                }
            }
        }
    }
    text
}

fn server(number: usize) -> Target {
    Target::Node(Node::TabletServer(number))
}

fn link(one: usize, other: usize) -> Target {
    Target::Links(vec![(Node::TabletServer(one), Node::TabletServer(other))])
}

fn kill(target: Target, lasts: Duration) -> Fault {
    Fault::new(FaultKind::Kill, target, lasts)
}

/// Titles, and faults with the times at which they are planned.
fn scenarios() -> Vec<(&'static str, Vec<(Duration, Fault)>)> {
    let start = Duration::ZERO;
    let cut = |one, other, lasts| Fault::new(FaultKind::Partition(Direction::Out), link(one, other), lasts);
    let within = |outer: Fault, inner: Fault| Fault { within: Some(Box::new(inner)), ..outer };
    let all_but_one = Target::Links((1..3).map(|other| (Node::TabletServer(0), Node::TabletServer(other))).collect());
    vec![
        ("A fault of several nodes is one step.", vec![(start, kill(Target::Etcd, seconds(1)))]),
        (
            "A role is that of the moment at which the fault begins.",
            vec![(start, Fault::new(FaultKind::Pause, Target::Role(Role::ActiveMaster), seconds(12)))],
        ),
        ("A role without a node: no fault.", vec![(start, kill(Target::Role(Role::BusiestTabletServer), seconds(1)))]),
        (
            "A fault within another one begins at half of its duration.",
            vec![(start, within(kill(Target::Etcd, seconds(10)), kill(server(0), seconds(1))))],
        ),
        (
            "The outer fault ends after the inner one, also when that lasts longer.",
            vec![(
                start,
                within(
                    Fault::new(FaultKind::Partition(Direction::Both), server(0), seconds(4)),
                    Fault::new(FaultKind::Stop, server(0), seconds(5)),
                ),
            )],
        ),
        (
            "The outer fault ends when the inner one finds its target down.",
            vec![(start, within(kill(server(0), seconds(4)), kill(server(0), seconds(1))))],
        ),
        (
            "A node that is down is not killed again, and starts when the fault that killed it ends.",
            vec![(start, kill(server(0), seconds(3))), (seconds(1), kill(Target::Everything, seconds(1)))],
        ),
        (
            "A link that is cut is not cut again, from either end, nor is a node of it partitioned.",
            vec![
                (start, cut(0, 1, seconds(5))),
                (seconds(1), Fault::new(FaultKind::Hold, link(1, 0), seconds(1))),
                (seconds(2), Fault::new(FaultKind::Partition(Direction::In), server(1), seconds(1))),
                (seconds(3), Fault::new(FaultKind::Hold, all_but_one, seconds(1))),
            ],
        ),
        (
            "Faults of different parts of a node overlap.",
            vec![
                (start, kill(server(0), seconds(2))),
                (start, Fault::new(FaultKind::Slow(Duration::from_millis(40)), link(0, 1), seconds(3))),
                (seconds(1), Fault::new(FaultKind::NoLockService(Leases::Expire), server(0), seconds(4))),
                (seconds(1), cut(0, 1, seconds(3))),
            ],
        ),
        (
            "A clock step is not lifted, and may follow another one.",
            vec![
                (start, Fault::new(FaultKind::ClockStep { micros: 5_000_000 }, server(1), Duration::ZERO)),
                (start, Fault::new(FaultKind::ClockStep { micros: -7 }, server(1), Duration::ZERO)),
            ],
        ),
        ("A node has no link to itself.", vec![(start, cut(1, 1, seconds(1)))]),
    ]
}

#[test]
fn the_driver_injects_and_lifts() {
    let mut text = String::new();
    for (title, faults) in scenarios() {
        let mut driver = Driver::new();
        for (at, fault) in faults {
            driver.plan(at, fault);
        }
        text.push_str(&format!("# {title}\n{}\n", transcript(&steps(&mut driver, seconds(100)))));
        assert!(driver.is_idle(), "{title}");
    }
    text.push_str("# All faults end early; what was planned does not begin, what is planned later does.\n");
    let mut driver = Driver::new();
    driver.plan(Duration::ZERO, kill(Target::Etcd, seconds(9)));
    driver.plan(Duration::ZERO, Fault::new(FaultKind::Hold, link(0, 1), seconds(9)));
    driver.plan(seconds(5), kill(server(0), seconds(1)));
    text.push_str(&transcript(&steps(&mut driver, seconds(4))));
    text.push_str(&transcript(&[(seconds(4), Step::Actions(driver.end_all()))]));
    driver.plan(seconds(6), kill(server(1), seconds(1)));
    text.push_str(&transcript(&steps(&mut driver, seconds(100))));
    golden("driver.txt", &text);
}

/// Every kind of recurring fault, each with a period of a few seconds.
fn rates() -> Rates {
    let mut rates = Rates::none(Duration::from_millis(500));
    for (kind, mean) in Recurring::ALL.into_iter().zip(3..) {
        rates = rates.every(kind, seconds(mean));
    }
    rates.replaced_after = Some(seconds(3));
    rates
}

#[test]
fn a_seed_and_rates_determine_the_faults() {
    let mut text = String::new();
    for seed in [1, 2] {
        let mut driver = Driver::with_rates(rates(), Rng::seeded(seed), seconds(10));
        let drawn = transcript(&steps(&mut driver, seconds(20)));
        text.push_str(&format!("seed {seed}\n{drawn}          end\n"));
        text.push_str(&transcript(&[(seconds(20), Step::Actions(driver.end_all()))]));
        assert!(driver.is_idle() && driver.next_at().is_none());
    }
    golden("rates.txt", &text);
}

/// What is faulty after these actions: an action must change it.
fn apply(faulty: &mut Vec<(FaultKind, Place)>, actions: &[Action]) {
    for action in actions {
        match *action {
            Action::Inject(
                FaultKind::ClockStep { .. }
                | FaultKind::ClockRate { .. }
                | FaultKind::DiskFailure { .. }
                | FaultKind::SyncFailure { .. }
                | FaultKind::Rot(_),
                _,
            ) => {}
            Action::Inject(kind, place) => {
                let overlaps = |one: &&(FaultKind, Place)| one.0.part() == kind.part() && one.1.overlaps(place);
                assert_eq!(faulty.iter().find(overlaps), None, "{action}");
                faulty.push((kind, place));
            }
            Action::Lift(kind, place) => {
                let at = faulty.iter().position(|one| *one == (kind, place));
                faulty.remove(at.unwrap_or_else(|| panic!("{action}: not injected")));
            }
        }
    }
}

#[test]
fn nothing_is_injected_twice_and_everything_is_lifted() {
    for seed in 0..200 {
        let mut driver = Driver::with_rates(rates(), Rng::seeded(seed), Duration::ZERO);
        let mut faulty = Vec::new();
        for (_now, step) in steps(&mut driver, seconds(60)) {
            if let Step::Actions(actions) = step {
                apply(&mut faulty, &actions);
            }
        }
        let down: Vec<_> = faulty.iter().filter(|(kind, _)| kind.is_down()).map(|(_, place)| *place).collect();
        assert_eq!(down.len(), driver.down().len(), "seed {seed}");
        apply(&mut faulty, &driver.end_all());
        assert_eq!(faulty, [], "seed {seed}");
    }
}
