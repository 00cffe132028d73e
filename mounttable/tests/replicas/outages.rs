//! What an outage of the storage does to mounts: T117.

use std::time::Duration;

use ebla_mounttable::Reason;
use ebla_mounttable::outage::{BEAT, Credit, PERIOD};

use crate::storage::{Health, Storage, alone};
use crate::{Replica, SECOND};

/// Longer than the time to live of [`TTL`], and shorter than what a deadline is put off by at most.
const OUTAGE: Duration = Duration::from_secs(300);

/// As publishers mount: their period and a little.
const TTL: Duration = Duration::from_secs(80);

/// Two servers of one table, which note that they can write for as long as the storage is there.
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
        world.beat();
        world
    }

    fn beat(&self) {
        for (number, replica) in (1..).zip(&self.replicas) {
            drop(alone(replica.table.beat(number)));
        }
    }

    /// Lets time go by, in steps of a beat.
    fn pass(&self, time: Duration) {
        for _ in 0..time.as_secs() / BEAT.as_secs() {
            self.storage.advance(BEAT);
            self.beat();
        }
    }

    /// The storage is away for so long; nobody has noted yet that it is back.
    fn outage(&self) {
        self.storage.turn(Health::Away);
        self.pass(OUTAGE - BEAT);
        self.storage.advance(BEAT);
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

/// T117: at no moment does the name of a publisher that lives vanish, whoever looks, sweeps or comes by first.
#[test]
fn an_outage_longer_than_the_time_to_live_takes_no_name_away() {
    let world = World::with(Credit::On);
    world.mount("living", TTL);
    world.mount("dead", TTL);
    world.pass(SECOND * 10);
    world.outage();
    // Before anybody has noted that there was an outage.
    assert_eq!((world.sweep(), world.servers("living")), (0, there()));
    world.beat();
    world.storage.advance(SECOND);
    assert_eq!((world.sweep(), world.servers("living")), (0, there()));
    // The publisher's next round.
    world.pass(PERIOD - BEAT);
    assert_eq!(world.servers("living"), there());
    world.mount("living", TTL);
    // What nobody refreshes ends at its deadline, later by the outage and a period, and no later.
    world.pass(SECOND * 70);
    assert_eq!((world.servers("living"), world.servers("dead")), (there(), there()));
    world.pass(SECOND * 5);
    assert_eq!((world.servers("living"), world.servers("dead")), (there(), gone()));
    world.pass(SECOND * 5);
    assert_eq!(world.servers("living"), gone(), "its publisher died when all was well, and is missed on time");
}

/// A server that begins after the outage has not lived through it, and learns of it from the notes.
#[test]
fn who_comes_later_knows_of_the_outage() {
    let world = World::with(Credit::On);
    world.mount("living", TTL);
    world.outage();
    world.beat();
    let third = Replica::with(&world.storage, Credit::On);
    assert!(alone(third.table.beat(3)).unwrap().is_none(), "it is recorded already");
    assert_eq!(third.servers("living"), ["h:1"]);
}

/// While the storage is away a name that is known is answered, also when its deadline has come.
#[test]
fn a_deadline_that_comes_during_the_outage_is_put_off() {
    let world = World::with(Credit::On);
    world.mount("living", TTL);
    assert_eq!(world.servers("living"), there());
    world.storage.turn(Health::Away);
    world.pass(TTL + SECOND * 20);
    assert_eq!(world.servers("living"), there());
}

/// Without outages nothing is put off, and it can be switched off: then the names of all who live vanish.
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
