//! SIGKILL of the whole `ebla up` under a verifying load, again and again: nothing acknowledged is lost, nothing is
//! applied twice, no row is half written.
//!
//! `EBLA_KILL_ROUNDS` sets the number of rounds (50 when unset).

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail, and then says where")]

use crate::support;

use std::time::Duration;

use ebla_cli::verify::{Load, Plan, create_table, through};
use ebla_model::schema::TableName;
use ebla_runtime::Runtime;
use support::Up;

#[test]
fn fifty_kills_lose_nothing_and_double_nothing() {
    let rounds: u64 = std::env::var("EBLA_KILL_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(50);
    support::block_on(kills(rounds));
}

async fn kills(rounds: u64) {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let runtime = Runtime::system("kill");
    let table = TableName::from_parts("test", "test", "ledger").unwrap();
    let mut up = Up::start(&data, &[]);
    let plan = Plan::default();
    create_table(&up.addresses[0], &table, plan.slots, &runtime).await.unwrap();
    let mut load = Load::new(plan, &runtime);
    let (mut unknown, mut undecided, mut slowest_start) = (0, 0, Duration::ZERO);
    for round in 0..rounds {
        let running = load.start(&through(&up.addresses, &table, &runtime)).await.unwrap();
        tokio::time::sleep(runtime.rng.jitter(Duration::from_millis(500))).await;
        up.kill();
        let notes = load.finish(running).await;
        unknown += notes.unknown;
        up = Up::start(&data, &[]);
        slowest_start = slowest_start.max(up.took());
        assert!(notes.acknowledged > 0, "round {round} wrote nothing: the check would check nothing");
        let one = &up.addresses[(round % 3) as usize..][..1];
        let report = load.check(&through(one, &table, &runtime)).await.unwrap();
        assert!(report.is_good(), "after kill {round}\n{}", report.text());
        undecided = report.undecided;
    }
    println!(
        "{rounds} kills: {} writes acknowledged, {unknown} unknown, 0 lost, 0 stale, 0 doubled, 0 half, {undecided} rows undecided; slowest start {slowest_start:?}",
        load.acknowledged()
    );
}
