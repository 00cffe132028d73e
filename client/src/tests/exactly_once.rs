//! Writes that are repeated: servers remember them for a time only. The time of these tests is virtual.

use std::sync::Arc;
use std::time::Duration;

use ebla_model::error::Reason;
use ebla_model::session::{IDLE_MAX, RESEND_MAX};
use ebla_model::time::Micros;
use ebla_runtime::clock::TimeSource;
use ebla_runtime::{Clock, Runtime};
use tokio::time::Instant;

use super::fake::{ClusterEvent, Fake, TABLE, key};
use super::{first_replica_rng, set};
use crate::{Check, Cluster, ClusterOptions};

/// The time of the test's runtime.
#[derive(Debug)]
struct VirtualTime(Instant);

impl TimeSource for VirtualTime {
    fn wall(&self) -> Micros {
        Micros::ZERO.plus(self.monotonic())
    }

    fn monotonic(&self) -> Duration {
        Duration::from_secs(1_000) + self.0.elapsed()
    }
}

fn cluster(fake: &Fake) -> Cluster {
    let clock = Clock::custom(Arc::new(VirtualTime(Instant::now())));
    let runtime = Runtime { rng: first_replica_rng(), clock, ..Runtime::system("test") };
    let (directory, transport) = (Arc::new(fake.clone()), Arc::new(fake.clone()));
    Cluster::new(ClusterOptions { directory, transport, runtime, home: None })
}

const HOUR: Duration = Duration::from_secs(3_600);

#[tokio::test(start_paused = true)]
async fn a_write_of_unknown_outcome_is_given_up_before_its_session_is_forgotten() {
    assert!(HOUR > IDLE_MAX);
    for bulk in [false, true] {
        let fake = Fake::new(&[]);
        fake.trigger(ClusterEvent::LoseResponses(u32::MAX));
        let (cluster, started) = (cluster(&fake), Instant::now());
        let (write, deadline) = (set(&key("a"), "v"), cluster.deadline(HOUR));
        let result = if bulk {
            cluster.mutate_rows(TABLE, vec![write], deadline).await.remove(0)
        } else {
            cluster.mutate_row(TABLE, write, deadline).await
        };
        assert_eq!(fake.state().applied[&key("a")], 1, "applied once");
        assert_eq!(result.unwrap_err().reason, Reason::OutcomeUnknown);
        let (elapsed, expected) = (started.elapsed(), RESEND_MAX..RESEND_MAX + Duration::from_secs(5));
        assert!(expected.contains(&elapsed), "{elapsed:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_that_was_refused_is_repeated_until_its_deadline() {
    let fake = Fake::new(&[]);
    fake.trigger(ClusterEvent::NoLeader { key: "a" });
    let (cluster, started) = (cluster(&fake), Instant::now());
    let check = Check { row: key("a"), predicate: None, then: vec![], otherwise: vec![], token: None };
    let error = cluster.check(TABLE, check, cluster.deadline(HOUR)).await.unwrap_err();
    assert_eq!(error.reason, Reason::Unavailable, "{error}");
    assert!(started.elapsed() >= HOUR);
}

#[tokio::test(start_paused = true)]
async fn a_write_that_is_stuck_holds_back_no_write_to_another_group() {
    // In the fake each tablet is a group.
    let fake = Fake::new(&["m"]);
    fake.trigger(ClusterEvent::NoLeader { key: "a" });
    let cluster = cluster(&fake);
    let stuck = cluster.mutate_row(TABLE, set(&key("a"), "v"), cluster.deadline(HOUR));
    let others = async {
        for _write in 0..1_000 {
            cluster.mutate_row(TABLE, set(&key("z"), "v"), cluster.deadline(HOUR)).await.unwrap();
        }
    };
    tokio::select! {
        biased;
        _ended = stuck => panic!("no replica leads its tablet"),
        () = others => {}
    }
    assert_eq!(fake.state().held_back_max, 0);
}
