//! SIGKILL of the whole `ebla up` under a verifying load, again and again: nothing acknowledged is lost, nothing is
//! applied twice, no row is half written.
//!
//! `EBLA_KILL_ROUNDS` sets the number of rounds (50 when unset).

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail, and then says where")]

mod support;

use std::time::Duration;

use ebla_runtime::Runtime;
use ebla_tests::api::Api;
use ebla_tests::load::{FAMILIES, Load};
use support::Up;

const WRITERS: usize = 12;

#[test]
fn fifty_kills_lose_nothing_and_double_nothing() {
    let rounds: u64 = std::env::var("EBLA_KILL_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(50);
    let tokio = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    tokio.block_on(Box::pin(kills(rounds)));
    tokio.shutdown_background();
}

async fn kills(rounds: u64) {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let runtime = Runtime::system("kill");
    let mut up = Up::start(&data, &[]);
    let mut api = Api::new(&runtime.net, &up.addresses[0], "ledger");
    api.create(&FAMILIES, &["count/", "list/", "w004", "w008"]).await.unwrap();
    let mut load = Load::new(&runtime, "ledger", WRITERS);
    let (mut unknown, mut slowest_start) = (0, Duration::ZERO);
    for round in 0..rounds {
        let running = load.start(&up.addresses);
        tokio::time::sleep(runtime.rng.jitter(Duration::from_millis(500))).await;
        up.kill();
        let notes = load.finish(running).await;
        unknown += notes.unknown;
        up = Up::start(&data, &[]);
        slowest_start = slowest_start.max(up.took);
        assert_eq!(notes.stale, Vec::<String>::new(), "stale reads in round {round}");
        assert!(notes.acknowledged > 0, "round {round} wrote nothing: the check would check nothing");
        let wrong = load.verify(&up.addresses[(round % 3) as usize]).await.unwrap();
        assert_eq!(wrong, Vec::<String>::new(), "after kill {round}");
    }
    println!(
        "{rounds} kills: {} writes acknowledged, {unknown} unknown, 0 lost, 0 doubled, 0 half; slowest start {slowest_start:?}",
        load.acknowledged()
    );
}
