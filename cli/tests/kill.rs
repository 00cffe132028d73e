//! Repeated SIGKILL of the whole `ebla up` under a verifying load: no acknowledged write is lost or duplicated, no row is torn.
//!
//! `EBLA_KILL_ROUNDS` sets the number of rounds (50 when unset).

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail, and then says where")]

use crate::support;

use std::time::Duration;

use ebla_model::schema::TableName;
use ebla_runtime::Runtime;
use ebla_workload::verify::{Load, Plan, create_table, endpoints};
use support::Up;

#[test]
fn fifty_kills_cause_no_anomalies() {
    let rounds: u64 = std::env::var("EBLA_KILL_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(50);
    support::block_on(kills(rounds));
}

async fn kills(rounds: u64) {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let runtime = Runtime::system("kill");
    let table = TableName::from_parts("test", "test", "verified").unwrap();
    let mut up = Up::start(&data, &[]);
    let plan = Plan::default();
    create_table(&up.addresses[0], &table, plan.slots, &runtime).await.unwrap();
    let mut load = Load::new(plan, &runtime);
    let (mut unknown, mut undecided, mut slowest_start) = (0, 0, Duration::ZERO);
    for round in 0..rounds {
        let running = load.start(&endpoints(&up.addresses, &table, &runtime)).await.unwrap();
        // A slow machine may write nothing in half a second: the kill waits for the first acknowledged write of the round.
        let before = load.acknowledged();
        while running.acknowledged() == before {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        tokio::time::sleep(runtime.rng.jitter(Duration::from_millis(500))).await;
        up.kill();
        let notes = load.finish(running).await;
        unknown += notes.unknown;
        up = Up::start(&data, &[]);
        slowest_start = slowest_start.max(up.took());
        assert!(notes.acknowledged > 0, "round {round} wrote nothing, so the check is not meaningful");
        let one = &up.addresses[(round % 3) as usize..][..1];
        let report = load.check(&endpoints(one, &table, &runtime)).await.unwrap();
        assert!(report.is_good(), "after kill {round}\n{}", report.text());
        undecided = report.undecided;
    }
    println!(
        "{rounds} kills: {} writes acknowledged, {unknown} unknown, no anomalies, {undecided} rows undecided; slowest start {slowest_start:?}",
        load.acknowledged()
    );
}
