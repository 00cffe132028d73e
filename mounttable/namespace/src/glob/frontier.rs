//! Which tables a listing must ask, and what it tells: as a function of what was found.
//!
//! A table tells of a mounted server even if the pattern goes on, and what is left of the pattern is asked of that
//! server. For what is found:
//!
//! ```text
//!   no element of the pattern is left     it is told of
//!   the pattern asks for more below it    its servers are asked, unless
//!       it has none, or is a leaf
//!       it is no mount table and the rest is ***
//!       the same rest was asked there before          a circle
//!       ten servers are on the way already that no
//!       element of the pattern led beyond             told as an error
//! ```
//!
//! `*/*/*` leads no further than it is long, however many servers that takes. What has no such end is `...`, where a server
//! may have another one below it for ever.

use std::collections::{HashSet, VecDeque};

use ebla_mounttable::glob::Recursion;
use ebla_mounttable::{Error, Pattern, Reason, Target, naming};

use crate::entry::{MountEntry, Place, Server};

/// Most servers on the way from the first to a name, those apart that an element of the pattern led to.
pub const DEPTH_MAX: usize = 10;

/// Most servers that one listing asks: what waits to be asked stands in memory.
pub const VISITS_MAX: usize = 100_000;

/// A name that a pattern asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GlobEntry {
    /// The name: relative to the roots, or rooted if the pattern is.
    pub name: String,
    /// What is mounted there.
    pub servers: Vec<Server>,
    /// What the servers are.
    pub target: Target,
    /// Whether its table knows children of it.
    pub has_children: bool,
}

/// What could not be listed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GlobError {
    /// The name of what was to be listed.
    pub name: String,
    /// Why it was not.
    pub error: Error,
}

/// Servers that are to be asked for what is left of the pattern.
#[derive(Clone, Debug)]
pub struct Visit {
    /// The name of what is asked.
    pub name: String,
    /// Where it is asked.
    pub entry: MountEntry,
    /// What it is asked for.
    pub rest: Pattern,
    /// Whether the listing begins here.
    is_first: bool,
    /// Servers on the way that no element of the pattern led to.
    depth: usize,
}

/// What a table tells of.
#[derive(Clone, Debug)]
pub struct Found {
    /// Relative to what was asked.
    pub name: String,
    /// Its servers; the suffix is of no account.
    pub entry: MountEntry,
    /// Whether it has children.
    pub has_children: bool,
}

/// A listing on its way.
#[derive(Clone, Debug)]
pub struct Frontier {
    ahead: VecDeque<Visit>,
    visited: HashSet<(Place, String)>,
    visits: usize,
    told: VecDeque<Result<GlobEntry, GlobError>>,
}

impl Frontier {
    /// Begins at `entry`, whose name is `name`.
    pub fn begin(name: String, entry: MountEntry, pattern: Pattern) -> Self {
        let mut frontier = Self { ahead: VecDeque::new(), visited: HashSet::new(), visits: 0, told: VecDeque::new() };
        frontier.visit(Visit { name, entry, rest: pattern, is_first: true, depth: 0 });
        frontier
    }

    /// Whom to ask next.
    pub fn next_visit(&mut self) -> Option<Visit> {
        self.ahead.pop_front()
    }

    /// What to tell next.
    pub fn tell(&mut self) -> Option<Result<GlobEntry, GlobError>> {
        self.told.pop_front()
    }

    /// The table that was visited tells of a name.
    pub fn found(&mut self, visit: &Visit, found: Found) {
        let name = naming::join(&[&visit.name, &found.name]);
        let rest = naming::elements(&found.name).fold(visit.rest.clone(), |rest, _| rest.tail());
        let servers = found.entry.servers.clone();
        let target = found.entry.target;
        // The root of a mounted table is what was told of where it is mounted.
        let is_news = visit.is_first || !found.name.is_empty();
        if rest.left().is_empty() && is_news {
            let has_children = found.has_children;
            self.told.push_back(Ok(GlobEntry { name: name.clone(), servers, target, has_children }));
        }
        let entry = MountEntry { suffix: String::new(), ..found.entry };
        if !entry.servers.is_empty() && goes_on(&rest, target) {
            let is_spelled = rest.depth() < visit.rest.depth();
            let depth = visit.depth.saturating_add(usize::from(!is_spelled));
            self.visit(Visit { name, entry, rest, is_first: false, depth });
        }
    }

    /// The table that was visited could not list a name below it.
    pub fn failed(&mut self, visit: &Visit, name: &str, error: Error) {
        // Only who asks a server by its address wants to hear that it is none.
        if error.reason != Reason::NotAMountTable || visit.is_first {
            self.told.push_back(Err(GlobError { name: naming::join(&[&visit.name, name]), error }));
        }
    }

    fn visit(&mut self, visit: Visit) {
        let rest = visit.rest.to_string();
        let mut is_new = true;
        for place in visit.entry.places() {
            is_new &= self.visited.insert((place, rest.clone()));
        }
        if !is_new {
            return;
        }
        let refusal = if visit.depth > DEPTH_MAX {
            Some((Reason::DepthExceeded, format!("there are more than {DEPTH_MAX} servers below each other")))
        } else if self.visits == VISITS_MAX {
            Some((Reason::BadPattern, format!("the pattern leads to more than {VISITS_MAX} servers")))
        } else {
            None
        };
        if let Some((reason, message)) = refusal {
            return self.told.push_back(Err(GlobError { name: visit.name, error: Error::new(reason, message) }));
        }
        self.visits = self.visits.saturating_add(1);
        self.ahead.push_back(visit);
    }
}

/// Whether there may be more below a server that is a `target`.
fn goes_on(rest: &Pattern, target: Target) -> bool {
    let is_restricted = rest.left().is_empty() && rest.recursion() == Recursion::Restricted;
    match target {
        Target::MountTable => !rest.is_used_up(),
        Target::Object => !rest.is_used_up() && !is_restricted,
        Target::Leaf => false,
    }
}
