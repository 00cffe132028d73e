//! `ebla verify` as a container among the containers of `deploy/compose.yaml`, while tablet servers are killed, stopped,
//! paused, partitioned, two of five simultaneously, and all simultaneously; then while two servers join, another one is killed, and
//! the two are drained and removed.
//!
//! The cluster has TLS and access control, as `make cluster` starts it, unless `EBLA_SECURITY=off`; the load has the token of the operator.
//!
//! The schedule is drawn from a seed, which is printed; `EBLA_CHAOS_SEED` repeats it. The number of faults of each kind is set by
//! the variables in `items`; `make chaos` sets higher ones. Skipped with the reason if Docker is not available.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail, and then says where")]
#![expect(clippy::panic, reason = "a test may fail, and then says where")]

use crate::support;

use std::any::Any;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::path::Path;
use std::time::Duration;

use ebla_model::time::Micros;
use ebla_runtime::{Clock, Runtime};
use ebla_tests::cluster::{Cluster as _, Direction, Node};
use ebla_tests::containers::{ContainerCluster, missing};
use ebla_tests::faults::fault::{FaultKind, Target};
use ebla_tests::faults::nemesis::ClusterNemesis;
use ebla_tests::faults::parameters::{security, seed, times};
use ebla_tests::faults::schedule::{ScheduleItem, schedule};
use ebla_tests::faults::stalls::{Stall, attribute_stalls, since_boot, table};
use ebla_tests::secured::Security;
use futures::FutureExt as _;
use serde_json::Value;

const TABLET_SERVERS: usize = 5;
/// Minimum acknowledged writes per fault on average, also on a busy machine.
const EACH: u64 = 200;

#[test]
fn faults_of_containers_cause_no_anomalies() {
    if let Some(reason) = missing() {
        println!("skipped: {reason}");
        return;
    }
    let outcome = support::block_on(AssertUnwindSafe(come_and_go()).catch_unwind());
    if let Err(reason) = outcome {
        // Repeated after the logs of all containers, so that it is visible at the end.
        println!("{}", said(reason.as_ref()));
        resume_unwind(reason);
    }
}

fn said(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without a text")
}

/// Faults of tablet servers, and the variables with their numbers.
fn items(seed: u64) -> Vec<ScheduleItem> {
    let servers = || (0..TABLET_SERVERS).map(Node::TabletServer);
    let each = || servers().map(Target::Node).collect::<Vec<_>>();
    let pairs = servers().flat_map(|one| servers().map(move |other| (one, other))).filter(|(one, other)| one < other);
    let mut pairs = pairs.map(|(one, other)| Target::Nodes(vec![one, other])).collect::<Vec<_>>();
    // A short run has few of the ten pairs: different ones for each seed.
    pairs.rotate_left((seed % 10) as usize);
    let (short, long) = ((Duration::from_millis(200), Duration::from_secs(2)), (LEASE, LEASE + Duration::from_secs(2)));
    let item = |kind, targets, lasts, times| ScheduleItem { kind, targets, lasts, times };
    vec![
        item(FaultKind::Kill, each(), short, times("EBLA_CHAOS_CONTAINER_KILLS", 6)),
        item(FaultKind::Kill, pairs, short, times("EBLA_CHAOS_CONTAINER_PAIRS", 1)),
        item(FaultKind::Kill, vec![Target::Everything], short, times("EBLA_CHAOS_CONTAINER_EVERYTHING", 1)),
        item(FaultKind::Stop, each(), short, times("EBLA_CHAOS_CONTAINER_STOPS", 1)),
        item(FaultKind::Pause, each(), long, times("EBLA_CHAOS_CONTAINER_PAUSES", 1)),
        item(FaultKind::Partition(Direction::Both), each(), long, times("EBLA_CHAOS_CONTAINER_CUTS", 1)),
    ]
}

/// A little longer than every lease.
const LEASE: Duration = Duration::from_secs(11);

async fn come_and_go() {
    let runtime = Runtime::system("containers");
    let seed = seed(&runtime);
    let schedule = schedule(seed, &items(seed));
    println!("EBLA_CHAOS_SEED={seed}: {} faults", schedule.len());
    let began = runtime.clock.monotonic();
    let security = security(Security::On);
    println!("EBLA_SECURITY={}", security.name());
    let mut cluster = ContainerCluster::start(Path::new(support::ebla()), security).await.unwrap();
    let plain = "env -u EBLA_TLS_CA -u EBLA_TLS_CERT -u EBLA_TLS_KEY ebla status";
    match (security, cluster.ask(Node::TabletServer(0), &["sh", "-c", plain]).await) {
        (Security::Off, Ok(_status)) => {}
        (Security::On, Err(refused)) if refused.to_string().contains("this port requires TLS") => {}
        (_, said) => panic!("EBLA_SECURITY={}, and without TLS: {said:?}", security.name()),
    }
    let verifier = cluster.verify(&["--for", "86400", "--writers", "8", "--readers", "2"]).await.unwrap();

    let mut nemesis = ClusterNemesis::new(&mut cluster, runtime.clock.clone());
    for (number, fault) in schedule.iter().enumerate() {
        let at = (runtime.clock.monotonic() - began).as_secs_f64();
        println!("{at:6.1} s, {} of {}: {fault}", number + 1, schedule.len());
        nemesis.inject(fault).await.unwrap_or_else(|error| panic!("EBLA_CHAOS_SEED={seed}: {error}"));
    }
    let records = nemesis.finish();
    let at = || (runtime.clock.monotonic() - began).as_secs_f64();
    println!("{:6.1} s: two servers join", at());
    cluster.scale(TABLET_SERVERS + 2).await.unwrap();
    cluster.wait_spread().await.unwrap();
    println!("{:6.1} s: each server has a replica; a server is killed, and two are drained and removed", at());
    let killed = Node::TabletServer(2);
    cluster.kill(killed).await.unwrap();
    cluster.restart(killed).await.unwrap();
    cluster.scale(TABLET_SERVERS).await.unwrap();
    println!("{:6.1} s: removed", at());
    let report = verifier.finish().await.unwrap();

    let costs = attribute_stalls(&records, &stalls(&report, &runtime.clock));
    let shown = |field: &str| format!("{} {field}", report[field]);
    let counts =
        ["acknowledged", "unknown", "failed", "reads", "lost", "stale", "doubled", "half", "invented", "undecided"];
    println!("{}\n{}\nerrors: {}", table(&costs), counts.map(shown).join(", "), report["errors"]);
    for anomaly in ["lost", "stale", "doubled", "half", "invented"] {
        assert_eq!(report[anomaly], 0, "EBLA_CHAOS_SEED={seed}: {anomaly}: {report:#}");
    }
    let mut reasons = report["errors"].as_object().unwrap().keys();
    assert!(reasons.all(|reason| support::TROUBLE.contains(&reason.as_str())), "EBLA_CHAOS_SEED={seed}: {report:#}");
    assert_eq!(report["silent"], serde_json::json!([]), "EBLA_CHAOS_SEED={seed}: not every address reads back");
    assert!(report["acknowledged"].as_u64().unwrap() > EACH * schedule.len() as u64, "{report:#}");
}

/// The stalls that the report lists, by the machine's clock since boot, which containers share.
fn stalls(report: &Value, clock: &Clock) -> Vec<Stall> {
    let millis = |value: &Value| Duration::from_millis(value.as_u64().unwrap());
    let slot = |stall: &Value| u32::try_from(stall["slot"].as_u64().unwrap()).unwrap();
    let stalls = report["stalls"].as_array().unwrap().iter();
    let stalls = stalls.map(|stall| (millis(&stall["at_ms"]), millis(&stall["ms"]), slot(stall)));
    since_boot(clock, Micros::new(report["began_micros"].as_i64().unwrap()), stalls)
}
