//! The agenda of a publisher with time, chance and outcomes in the test's hands.

use std::collections::BTreeSet;
use std::time::Duration;

use ebla_mounttable::{Error, Reason, ServerAddress, Target};
use ebla_runtime::Rng;

use crate::publisher::agenda::{Act, Agenda, Deed, SLACK, State};

const PERIOD: Duration = Duration::from_secs(60);
const SECOND: Duration = Duration::from_secs(1);

/// A mount table that is there or not.
struct World {
    agenda: Agenda,
    now: Duration,
    outcome: Result<(), Reason>,
    chance: Rng,
    /// When each deed was done, in order.
    done: Vec<(Duration, Deed)>,
}

impl World {
    fn new() -> Self {
        let (agenda, chance) = (Agenda::new(PERIOD), Rng::seeded(7));
        Self { agenda, now: SECOND * 1_000, outcome: Ok(()), chance, done: Vec::new() }
    }

    /// Does what is due until `by` has passed.
    fn pass(&mut self, by: Duration) {
        let end = self.now + by;
        loop {
            while let Some(deed) = self.agenda.next_deed(self.now) {
                let outcome = self.outcome.map_err(|reason| Error::new(reason, "so it is"));
                self.agenda.done(&deed, outcome, self.now, self.now, self.chance.u64());
                self.done.push((self.now, deed));
            }
            match self.agenda.next_due() {
                Some(due) if due <= end => self.now = due,
                _ => break,
            }
        }
        self.now = end;
    }

    fn states(&self) -> Vec<State> {
        self.agenda.status(self.now).pairs.into_iter().map(|pair| pair.state).collect()
    }

    fn add(&mut self, names: &[&str], servers: &[&str]) {
        names.iter().for_each(|name| self.agenda.add_name(name, Target::Object, self.now));
        servers.iter().for_each(|server| self.agenda.add_server(&address(server), self.now));
    }
}

fn address(text: &str) -> ServerAddress {
    text.parse().unwrap()
}

/// T105
#[test]
fn each_name_is_mounted_with_each_server() {
    let mut world = World::new();
    let count = |world: &World| world.agenda.status(world.now).pairs.len();
    world.add(&["a"], &[]);
    assert_eq!(count(&world), 0);
    world.add(&[], &["h:1"]);
    assert_eq!(count(&world), 1);
    world.add(&["b"], &["h:2"]);
    assert_eq!(count(&world), 4);
    assert_eq!(world.states(), [State::Mounting; 4]);
    world.pass(Duration::ZERO);
    assert_eq!(world.states(), [State::Mounted; 4]);
    let status = world.agenda.status(world.now);
    assert_eq!(status.names, ["a", "b"]);
    assert_eq!(status.servers, [address("h:1"), address("h:2")]);
    world.agenda.remove_name("a", world.now);
    assert_eq!(world.states(), [State::Unmounting, State::Unmounting, State::Mounted, State::Mounted]);
    world.pass(Duration::ZERO);
    assert_eq!(count(&world), 2);
}

#[test]
fn mounts_are_made_anew_before_they_end_and_drift_apart() {
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
fn what_was_refused_is_not_taken_away() {
    let mut world = World::new();
    world.outcome = Err(Reason::NoMountTable);
    world.add(&["a"], &["h:1"]);
    world.pass(SECOND * 10);
    assert_eq!(world.states(), [State::Mounting]);
    let error = world.agenda.status(world.now).pairs[0].error.clone().unwrap();
    assert_eq!(error.reason, Reason::NoMountTable);
    world.agenda.remove_name("a", world.now);
    assert_eq!(world.states(), []);
    assert!(world.done.iter().all(|(_, deed)| deed.act == Act::Mount(Target::Object)));
}

/// T108
#[test]
fn after_an_outage_every_pair_is_mounted_within_a_period() {
    let mut world = World::new();
    world.add(&["a", "b", "c", "d"], &["h:1", "h:2", "h:3", "h:4"]);
    world.pass(PERIOD);
    world.outcome = Err(Reason::Unavailable);
    world.pass(SECOND * 300);
    assert_eq!(world.states(), [State::Mounting; 16]);
    let tries = world.done.len();
    assert!(tries < 16 * 30, "{tries} tries: the service is not stormed");
    world.outcome = Ok(());
    world.pass(PERIOD);
    assert_eq!(world.states(), [State::Mounted; 16]);
    let first: BTreeSet<_> = world.done[tries..].iter().map(|(at, _)| *at).collect();
    assert!(first.len() > 12, "not all at once");
}

#[test]
fn taking_away_is_tried_until_the_mount_has_ended_by_itself() {
    let mut world = World::new();
    world.add(&["a"], &["h:1"]);
    world.pass(SECOND);
    world.outcome = Err(Reason::Unavailable);
    world.agenda.remove_server(&address("h:1"), world.now);
    world.pass(SECOND * 30);
    assert_eq!(world.states(), [State::Unmounting]);
    assert!(world.done.len() > 3);
    world.pass(PERIOD + SLACK);
    assert_eq!(world.states(), []);
}

#[test]
fn a_wish_that_comes_back_while_a_deed_is_under_way_is_done_after_it() {
    let mut world = World::new();
    world.add(&["a"], &["h:1"]);
    let deed = world.agenda.next_deed(world.now).unwrap();
    world.agenda.remove_name("a", world.now);
    assert_eq!(world.agenda.next_deed(world.now), None, "one thing at a time");
    world.agenda.done(&deed, Ok(()), world.now, world.now, 0);
    let second = world.agenda.next_deed(world.now).unwrap();
    assert_eq!(second.act, Act::Unmount);
    world.agenda.add_name("a", Target::Leaf, world.now);
    world.agenda.done(&second, Ok(()), world.now, world.now, 0);
    assert_eq!(world.agenda.next_deed(world.now).unwrap().act, Act::Mount(Target::Leaf));
}
