//! Servers with wrong clocks.

use ebla_model::clock_offset::ClockState;

use super::fixture::{Fixture, TABLET, until};
use super::rows::{expect_rows, scan, write};

const HOUR: i64 = 3_600;

/// How many groups this server leads.
fn led(fixture: &Fixture, at: usize) -> usize {
    fixture.server(at).tablet_manager().groups().iter().filter(|group| group.is_leader()).count()
}

fn clock(fixture: &Fixture, at: usize) -> ClockState {
    fixture.server(at).tablet_manager().clocks().state()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_server_whose_clock_is_off_leads_nothing_until_it_agrees() {
    let fixture = Fixture::start(1 << 20).await;
    write(fixture.server(0).cluster(), 0, 50, 100).await;
    for hours in [1, -1] {
        let leader = fixture.leader(TABLET).await;
        let other = (leader + 1) % 3;
        fixture.set_ahead(leader, hours * HOUR);
        until("the leaderships are with other servers", || led(&fixture, leader) == 0).await;
        let off = clock(&fixture, leader);
        let seconds = off.offset_micros.unwrap() / 1_000_000;
        assert!(off.is_off && (hours * HOUR - seconds).abs() < 5, "{off:?}");
        assert!(!clock(&fixture, other).is_off);
        assert!(fixture.leader(TABLET).await != leader);
        write(fixture.server(leader).cluster(), 0, 50, 120).await;
        expect_rows(&scan(fixture.server(other).cluster()).await, 50, 120);
        fixture.set_ahead(leader, 0);
        until("the clock agrees again", || !clock(&fixture, leader).is_off).await;
    }
    fixture.stop().await;
}

/// Elections after a start do not wait for the comparison, so the server may lead at first.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_server_that_starts_with_a_wrong_clock_leads_nothing_once_it_has_compared_it() {
    let mut fixture = Fixture::start(1 << 20).await;
    write(fixture.server(0).cluster(), 0, 50, 100).await;
    for server in &mut fixture.servers {
        server.take().unwrap().abort().await;
    }
    fixture.set_ahead(0, HOUR);
    for at in 0..3 {
        let server = fixture.open(at, 1 << 20).await;
        fixture.servers[at] = Some(server);
    }
    until("the comparison", || clock(&fixture, 0).is_off).await;
    until("the leaderships are with other servers", || led(&fixture, 0) == 0).await;
    assert!(!clock(&fixture, 1).is_off && !clock(&fixture, 2).is_off);
    write(fixture.server(0).cluster(), 0, 50, 120).await;
    expect_rows(&scan(fixture.server(1).cluster()).await, 50, 120);
    fixture.stop().await;
}
