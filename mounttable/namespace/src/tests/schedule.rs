//! The schedule of a publisher with time, random numbers and outcomes controlled by the test.

use std::collections::BTreeSet;
use std::time::Duration;

use ebla_mounttable_tree::{Error, Reason, ServerAddress, Target};
use ebla_runtime::Rng;

use crate::publisher::schedule::{Action, ActionKind, PairState, SLACK, Schedule};

const PERIOD: Duration = Duration::from_secs(60);
const SECOND: Duration = Duration::from_secs(1);

/// A mount table that is available or not.
struct World {
    schedule: Schedule,
    now: Duration,
    outcome: Result<(), Reason>,
    chance: Rng,
    /// The time of each action, in order.
    done: Vec<(Duration, Action)>,
}

impl World {
    fn new() -> Self {
        let (schedule, chance) = (Schedule::new(PERIOD), Rng::seeded(7));
        Self { schedule, now: SECOND * 1_000, outcome: Ok(()), chance, done: Vec::new() }
    }

    /// Executes the due actions until `by` has passed.
    fn pass(&mut self, by: Duration) {
        let end = self.now + by;
        loop {
            while let Some(action) = self.schedule.next_action(self.now) {
                let outcome = self.outcome.map_err(|reason| Error::new(reason, "so it is"));
                self.schedule.done(&action, outcome, self.now, self.now, self.chance.u64());
                self.done.push((self.now, action));
            }
            match self.schedule.next_due() {
                Some(due) if due <= end => self.now = due,
                _ => break,
            }
        }
        self.now = end;
    }

    fn states(&self) -> Vec<PairState> {
        self.schedule.status(self.now).pairs.into_iter().map(|pair| pair.state).collect()
    }

    fn add(&mut self, names: &[&str], servers: &[&str]) {
        names.iter().for_each(|name| self.schedule.add_name(name, Target::Object, self.now));
        servers.iter().for_each(|server| self.schedule.add_server(&address(server), self.now));
    }
}

fn address(text: &str) -> ServerAddress {
    text.parse().unwrap()
}

/// T105
#[test]
fn each_name_is_mounted_with_each_server() {
    let mut world = World::new();
    let count = |world: &World| world.schedule.status(world.now).pairs.len();
    world.add(&["a"], &[]);
    assert_eq!(count(&world), 0);
    world.add(&[], &["h:1"]);
    assert_eq!(count(&world), 1);
    world.add(&["b"], &["h:2"]);
    assert_eq!(count(&world), 4);
    assert_eq!(world.states(), [PairState::Mounting; 4]);
    world.pass(Duration::ZERO);
    assert_eq!(world.states(), [PairState::Mounted; 4]);
    let status = world.schedule.status(world.now);
    assert_eq!(status.names, ["a", "b"]);
    assert_eq!(status.servers, [address("h:1"), address("h:2")]);
    world.schedule.remove_name("a", world.now);
    assert_eq!(world.states(), [PairState::Unmounting, PairState::Unmounting, PairState::Mounted, PairState::Mounted]);
    world.pass(Duration::ZERO);
    assert_eq!(count(&world), 2);
}

#[test]
fn mounts_are_refreshed_before_they_expire_with_jitter() {
    let mut world = World::new();
    world.add(&["a"], &["h:1", "h:2", "h:3"]);
    world.pass(PERIOD * 100);
    for server in ["h:1", "h:2", "h:3"] {
        let times: Vec<_> = world.done.iter().filter(|(_, it)| it.server == address(server)).map(|it| it.0).collect();
        assert!((90..=112).contains(&times.len()), "{} mounts of {server}", times.len());
        let is_right = |pause: Duration| (PERIOD * 9 / 10..=PERIOD * 11 / 10).contains(&pause);
        assert!(times.windows(2).all(|pair| is_right(pair[1] - pair[0])), "{times:?}");
    }
    let moments: BTreeSet<_> = world.done.iter().skip(3).map(|(at, _)| *at).collect();
    assert_eq!(moments.len(), world.done.len() - 3, "those that began together do not stay together");
}

/// T106
#[test]
fn a_refused_mount_is_not_unmounted() {
    let mut world = World::new();
    world.outcome = Err(Reason::NoMountTable);
    world.add(&["a"], &["h:1"]);
    world.pass(SECOND * 10);
    assert_eq!(world.states(), [PairState::Mounting]);
    let error = world.schedule.status(world.now).pairs[0].error.clone().unwrap();
    assert_eq!(error.reason, Reason::NoMountTable);
    world.schedule.remove_name("a", world.now);
    assert_eq!(world.states(), []);
    assert!(world.done.iter().all(|(_, action)| action.kind == ActionKind::Mount(Target::Object)));
}

/// T108
#[test]
fn after_an_outage_every_pair_is_mounted_within_a_period() {
    let mut world = World::new();
    world.add(&["a", "b", "c", "d"], &["h:1", "h:2", "h:3", "h:4"]);
    world.pass(PERIOD);
    world.outcome = Err(Reason::Unavailable);
    world.pass(SECOND * 300);
    assert_eq!(world.states(), [PairState::Mounting; 16]);
    let tries = world.done.len();
    assert!(tries < 16 * 30, "{tries} tries: the service is not stormed");
    world.outcome = Ok(());
    world.pass(PERIOD);
    assert_eq!(world.states(), [PairState::Mounted; 16]);
    let first: BTreeSet<_> = world.done[tries..].iter().map(|(at, _)| *at).collect();
    assert!(first.len() > 12, "not all at once");
}

#[test]
fn unmounting_is_retried_until_the_mount_has_expired() {
    let mut world = World::new();
    world.add(&["a"], &["h:1"]);
    world.pass(SECOND);
    world.outcome = Err(Reason::Unavailable);
    world.schedule.remove_server(&address("h:1"), world.now);
    world.pass(SECOND * 30);
    assert_eq!(world.states(), [PairState::Unmounting]);
    assert!(world.done.len() > 3);
    world.pass(PERIOD + SLACK);
    assert_eq!(world.states(), []);
}

#[test]
fn a_wish_that_comes_back_while_a_deed_is_under_way_is_done_after_it() {
    let mut world = World::new();
    world.add(&["a"], &["h:1"]);
    let action = world.schedule.next_action(world.now).unwrap();
    world.schedule.remove_name("a", world.now);
    assert_eq!(world.schedule.next_action(world.now), None, "one thing at a time");
    world.schedule.done(&action, Ok(()), world.now, world.now, 0);
    let second = world.schedule.next_action(world.now).unwrap();
    assert_eq!(second.kind, ActionKind::Unmount);
    world.schedule.add_name("a", Target::Leaf, world.now);
    world.schedule.done(&second, Ok(()), world.now, world.now, 0);
    assert_eq!(world.schedule.next_action(world.now).unwrap().kind, ActionKind::Mount(Target::Leaf));
}
