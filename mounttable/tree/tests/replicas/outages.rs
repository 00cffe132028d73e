//! The effect of storage outages on mounts: T117.

use std::time::Duration;

use ebla_mounttable_tree::Reason;
use ebla_mounttable_tree::outage::{Credit, HEARTBEAT_INTERVAL};

use crate::storage::{Health, Storage, alone};
use crate::{Replica, SECOND};

/// Longer than [`TTL`], and shorter than the largest extension of a deadline.
const OUTAGE: Duration = Duration::from_secs(300);

/// The time to live of publishers' mounts: their period plus slack.
const TTL: Duration = Duration::from_secs(80);

/// Two servers of one table, which record heartbeats while the storage is available.
struct World {
    storage: Storage,
    replicas: [Replica; 2],
}

impl World {
    fn with(credit: Credit) -> Self {
        let storage = Storage::new();
        let replica = || Replica::with(&storage, credit);
        let replicas = [replica(), replica()];
        let world = Self { storage, replicas };
        world.heartbeat();
        world
    }

    fn heartbeat(&self) {
        for (number, replica) in (1..).zip(&self.replicas) {
            drop(alone(replica.table.heartbeat(number)));
        }
    }

    /// Advances the time, in steps of a heartbeat.
    fn pass(&self, time: Duration) {
        for _ in 0..time.as_secs() / HEARTBEAT_INTERVAL.as_secs() {
            self.storage.advance(HEARTBEAT_INTERVAL);
            self.heartbeat();
        }
    }

    /// The storage is unavailable for this time; no server has recorded its return yet.
    fn outage(&self) {
        self.storage.turn(Health::Away);
        self.pass(OUTAGE - HEARTBEAT_INTERVAL);
        self.storage.advance(HEARTBEAT_INTERVAL);
        self.storage.turn(Health::Fine);
    }

    fn servers(&self, at: &str) -> [Vec<String>; 2] {
        self.replicas.each_ref().map(|replica| replica.servers(at))
    }

    fn mount(&self, at: &str, ttl: Duration) {
        self.replicas[0].mount(at, "h:1", ttl).unwrap();
    }

    fn sweep(&self) -> usize {
        self.replicas.iter().map(|replica| alone(replica.table.sweep()).unwrap().expired).sum()
    }
}

fn there() -> [Vec<String>; 2] {
    [vec!["h:1".to_owned()], vec!["h:1".to_owned()]]
}

fn gone() -> [Vec<String>; 2] {
    [Vec::new(), Vec::new()]
}

/// T117: the name of a live publisher resolves at every moment, whichever server looks, sweeps or writes first.
#[test]
fn an_outage_longer_than_the_time_to_live_expires_no_name() {
    let world = World::with(Credit::On);
    world.mount("living", TTL);
    world.mount("dead", TTL);
    world.pass(SECOND * 10);
    world.outage();
    // Before any server has recorded the outage.
    assert_eq!((world.sweep(), world.servers("living")), (0, there()));
    world.heartbeat();
    world.storage.advance(SECOND);
    assert_eq!((world.sweep(), world.servers("living")), (0, there()));
    // The publisher's next refresh.
    world.pass(TTL - HEARTBEAT_INTERVAL);
    assert_eq!(world.servers("living"), there());
    world.mount("living", TTL);
    // A mount that is not refreshed expires at its deadline, extended by the outage and its time to live.
    world.pass(SECOND * 70);
    assert_eq!((world.servers("living"), world.servers("dead")), (there(), there()));
    world.pass(SECOND * 5);
    assert_eq!((world.servers("living"), world.servers("dead")), (there(), gone()));
    world.pass(SECOND * 5);
    assert_eq!(
        world.servers("living"),
        gone(),
        "its publisher stopped without an outage: the name expires at its deadline"
    );
}

/// A server that starts after the outage learns of it from the records.
#[test]
fn a_later_server_learns_of_the_outage() {
    let world = World::with(Credit::On);
    world.mount("living", TTL);
    world.outage();
    world.heartbeat();
    let third = Replica::with(&world.storage, Credit::On);
    assert!(alone(third.table.heartbeat(3)).unwrap().is_none(), "it is recorded already");
    assert_eq!(third.servers("living"), ["h:1"]);
}

/// During an outage a cached name resolves, also after its deadline.
#[test]
fn a_deadline_that_comes_during_the_outage_is_put_off() {
    let world = World::with(Credit::On);
    world.mount("living", TTL);
    assert_eq!(world.servers("living"), there());
    world.storage.turn(Health::Away);
    world.pass(TTL + SECOND * 20);
    assert_eq!(world.servers("living"), there());
}

/// Without outages no deadline is extended; with the extension switched off, all names expire during an outage.
#[test]
fn deadlines_hold_without_outages_and_without_credit() {
    let world = World::with(Credit::On);
    world.mount("a", TTL);
    world.pass(TTL);
    assert_eq!(world.servers("a"), gone());
    let world = World::with(Credit::Off);
    world.mount("a", TTL);
    world.outage();
    assert_eq!(world.servers("a"), gone());
    assert_eq!(world.replicas[0].look_up("a").unwrap_err().reason, Reason::NoSuchName);
}
