//! Servers with wrong clocks.

use std::time::Duration;

use ebla_model::clock_offset::ClockState;
use ebla_model::gc::GcRule;
use ebla_runtime::Clock;

use super::fixture::{Fixture, GROUP, TABLET, TIMEOUT, schema, until};
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

/// A read of cells with a maximum age has the time of its server recorded in the log, unless that time is wrong.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_read_moves_the_time_of_a_log_to_that_of_a_clock_that_is_ahead() {
    let fixture = Fixture::start(1 << 20).await;
    write(fixture.server(0).cluster(), 0, 50, 100).await;
    let group = fixture.led_group(GROUP).await;
    let mut aged = schema();
    aged.version = aged.version.next();
    aged.families[0].gc = Some(GcRule::MaxAge(Duration::from_secs(86_400)));
    group.tablet(TABLET).unwrap().set_schema(aged, TIMEOUT).await.unwrap();
    let leader = fixture.leader(TABLET).await;
    fixture.set_ahead(leader, HOUR);
    // The server learns of it now, and not with the next comparison.
    let (clocks, now) = (fixture.server(leader).tablet_manager().clocks(), Clock::system().monotonic());
    for at in [(leader + 1) % 3, (leader + 2) % 3] {
        clocks.record(fixture.server(at).id(), -HOUR * 1_000_000, now);
    }
    clocks.evaluate(now);
    expect_rows(&scan(fixture.server(leader).cluster()).await, 50, 100);
    tokio::time::sleep(Duration::from_millis(500)).await;
    let ahead = group.state_machine().applied_state().time.since(Clock::system().wall());
    assert!(ahead < Duration::from_secs(60), "{ahead:?}");
    fixture.stop().await;
}
