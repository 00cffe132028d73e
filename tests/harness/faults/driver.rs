//! The driver: which fault begins and ends when. It has no clock and injects nothing itself.
//!
//! A caller plans faults, or gives rates at which they recur, and asks for the next [`Step`] when one is due. Invariants:
//!
//! - A part of a node or link has at most one fault: a node that is down is not killed, a link that is cut is not cut.
//! - A fault lifts what it has injected, and nothing else.
//! - After [`Driver::end_all`] every injected fault is lifted, and only faults that are planned later begin.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ebla_runtime::Rng;

use crate::cluster::{Node, Role};
use crate::faults::fault::{Action, Fault, FaultKind, Place, Target};
use crate::faults::rates::{Rates, Recurring};
use crate::faults::view::View;

/// Decides when faults begin and end. Times are durations since a moment that the caller chooses.
#[derive(Debug, Default)]
pub struct Driver {
    /// The rates of recurring faults, and the random numbers that they are drawn with.
    recurring: Option<(Rates, Rng)>,
    /// By time; those of one time in the order in which they were planned.
    events: BTreeMap<(Duration, u64), Event>,
    /// Faults that were injected and not yet lifted.
    active: BTreeMap<FaultId, Active>,
    /// The last number of an event or a fault.
    last_number: u64,
}

type FaultId = u64;

#[derive(Debug)]
enum Event {
    /// The next fault of this kind must be drawn.
    Draw(Recurring),
    /// A fault begins, alone or within another one.
    Begin(Fault, Option<Outer>),
    End(FaultId),
}

/// The fault that another one is within.
#[derive(Clone, Copy, Debug)]
struct Outer {
    id: FaultId,
    /// When it ends, unless the inner one ends later.
    ends: Duration,
}

#[derive(Debug)]
struct Active {
    kind: FaultKind,
    places: Vec<Place>,
    outer: Option<Outer>,
}

/// What happens at one event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Faults of this kind were drawn; they begin in later steps.
    Drawn(Recurring),
    /// The shell must carry these out simultaneously. May be empty.
    Actions(Vec<Action>),
}

impl Driver {
    /// A driver without faults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A driver that draws faults at these rates from `from` on.
    #[must_use]
    pub fn with_rates(rates: Rates, rng: Rng, from: Duration) -> Self {
        let mut driver = Self { recurring: Some((rates, rng)), ..Self::default() };
        for kind in Recurring::ALL {
            driver.plan_draw(from, kind);
        }
        driver
    }

    /// Plans a fault.
    pub fn plan(&mut self, at: Duration, fault: Fault) {
        self.push(at, Event::Begin(fault, None));
    }

    /// When the next event is due.
    #[must_use]
    pub fn next_at(&self) -> Option<Duration> {
        self.events.first_key_value().map(|((at, _), _)| *at)
    }

    /// The role whose node the next event needs in its view.
    #[must_use]
    pub fn next_role(&self) -> Option<Role> {
        match self.events.first_key_value() {
            Some((_, Event::Begin(Fault { target: Target::Role(role), .. }, _))) => Some(*role),
            _ => None,
        }
    }

    /// Whether no fault is active.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.active.is_empty()
    }

    /// The nodes whose process was killed or stopped.
    #[must_use]
    pub fn down(&self) -> BTreeSet<Node> {
        let down = self.active.values().filter(|one| one.kind.is_down()).flat_map(|one| &one.places);
        down.filter_map(|place| if let Place::Node(node) = place { Some(*node) } else { None }).collect()
    }

    /// The next event, if it is due.
    pub fn step(&mut self, now: Duration, view: &View) -> Option<Step> {
        let ((at, _), _) = self.events.first_key_value()?;
        if *at > now {
            return None;
        }
        let (_, event) = self.events.pop_first()?;
        Some(match event {
            Event::Draw(kind) => self.draw(now, kind, view),
            Event::Begin(fault, outer) => Step::Actions(self.begin(now, fault, outer, view)),
            Event::End(id) => Step::Actions(self.end(now, id)),
        })
    }

    /// Ends every fault. What was planned or would recur does not begin any more.
    pub fn end_all(&mut self) -> Vec<Action> {
        self.recurring = None;
        self.events.clear();
        std::mem::take(&mut self.active).values().flat_map(Active::lifts).collect()
    }

    fn number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    fn push(&mut self, at: Duration, event: Event) {
        let number = self.number();
        self.events.insert((at, number), event);
    }

    fn plan_draw(&mut self, now: Duration, kind: Recurring) {
        let Some((rates, rng)) = &self.recurring else { return };
        if let Some(mean) = rates.mean(kind) {
            let wait = rng.jitter(mean);
            self.push(now + wait, Event::Draw(kind));
        }
    }

    fn draw(&mut self, now: Duration, kind: Recurring, view: &View) -> Step {
        let Some((rates, rng)) = &self.recurring else { return Step::Actions(Vec::new()) };
        let faults = rates.draw(kind, rng, view, &self.down());
        let is_none = faults.is_empty();
        for (after, fault) in faults {
            self.plan(now + after, fault);
        }
        self.plan_draw(now, kind);
        if is_none { Step::Actions(Vec::new()) } else { Step::Drawn(kind) }
    }

    fn begin(&mut self, now: Duration, fault: Fault, outer: Option<Outer>, view: &View) -> Vec<Action> {
        let Fault { kind, target, lasts, within } = fault;
        let mut places: Vec<Place> = Vec::new();
        for place in target.places(view) {
            if self.is_free(kind, place) && !places.iter().any(|other| other.overlaps(place)) {
                places.push(place);
            }
        }
        let actions = places.iter().map(|place| Action::Inject(kind, *place)).collect();
        if places.is_empty() || !kind.is_lasting() {
            self.end_outer(now, outer);
            return actions;
        }
        let id = self.number();
        self.active.insert(id, Active { kind, places, outer });
        let ends = now + lasts;
        match within {
            Some(inner) => self.push(now + lasts / 2, Event::Begin(*inner, Some(Outer { id, ends }))),
            None => self.push(ends, Event::End(id)),
        }
        actions
    }

    fn is_free(&self, kind: FaultKind, place: Place) -> bool {
        let same_part = self.active.values().filter(|active| active.kind.part() == kind.part());
        !same_part.flat_map(|active| &active.places).any(|taken| taken.overlaps(place))
    }

    fn end(&mut self, now: Duration, id: FaultId) -> Vec<Action> {
        let Some(ended) = self.active.remove(&id) else { return Vec::new() };
        self.end_outer(now, ended.outer);
        ended.lifts().collect()
    }

    /// A fault with another one within ends after that one.
    fn end_outer(&mut self, now: Duration, outer: Option<Outer>) {
        if let Some(Outer { id, ends }) = outer {
            self.push(ends.max(now), Event::End(id));
        }
    }
}

impl Active {
    fn lifts(&self) -> impl Iterator<Item = Action> {
        self.places.iter().map(|place| Action::Lift(self.kind, *place))
    }
}
