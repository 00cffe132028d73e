//! The tables that a listing must ask, and its results, as a function of what was found.
//!
//! A table reports a mounted server even if the pattern is not used up; its servers are then asked for the rest of the
//! pattern. For each match:
//!
//! ```text
//!   the pattern is used up        it is a result
//!   the pattern reaches further   its servers are asked, unless
//!       it has none, or is a leaf
//!       it is not a mount table and the rest is ***
//!       the same rest was asked there before          a cycle
//!       it is below ten servers already that no
//!       element of the pattern matched                an error
//! ```
//!
//! `*/*/*` reaches no further than its length, however many servers that takes. `...` has no such bound, and servers
//! may be nested without end.

use std::collections::{HashSet, VecDeque};

use ebla_mounttable_tree::glob::Recursion;
use ebla_mounttable_tree::{Error, Pattern, Reason, Target, naming};

use crate::entry::{MountEntry, ObjectLocation, Server};

/// The largest number of nested servers, not counting those that an element of the pattern matched.
pub const DEPTH_MAX: usize = 10;

/// The largest number of servers that one listing asks: pending visits are in memory.
pub const VISITS_MAX: usize = 100_000;

/// A match of the pattern.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GlobEntry {
    /// The name: relative to the roots, or rooted if the pattern is.
    pub name: String,
    /// Its servers.
    pub servers: Vec<Server>,
    /// The kind of the servers.
    pub target: Target,
    /// Whether its table has children of it.
    pub has_children: bool,
}

/// A part that could not be listed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GlobError {
    /// Its name.
    pub name: String,
    /// The error.
    pub error: Error,
}

/// Servers to ask for the rest of the pattern.
#[derive(Clone, Debug)]
pub struct Visit {
    /// The name of the object.
    pub name: String,
    /// The servers.
    pub entry: MountEntry,
    /// The rest of the pattern.
    pub rest: Pattern,
    /// Whether it is the first visit.
    is_first: bool,
    /// The number of nested servers that no element of the pattern matched.
    depth: usize,
}

/// A match reported by a table.
#[derive(Clone, Debug)]
pub struct Found {
    /// Relative to the visited object.
    pub name: String,
    /// Its servers; the suffix is ignored.
    pub entry: MountEntry,
    /// Whether it has children.
    pub has_children: bool,
}

/// A listing in progress.
#[derive(Clone, Debug)]
pub struct Frontier {
    pending: VecDeque<Visit>,
    visited: HashSet<(ObjectLocation, String)>,
    visits: usize,
    results: VecDeque<Result<GlobEntry, GlobError>>,
}

impl Frontier {
    /// Starts at `entry`, whose name is `name`.
    pub fn begin(name: String, entry: MountEntry, pattern: Pattern) -> Self {
        let mut frontier =
            Self { pending: VecDeque::new(), visited: HashSet::new(), visits: 0, results: VecDeque::new() };
        frontier.visit(Visit { name, entry, rest: pattern, is_first: true, depth: 0 });
        frontier
    }

    /// The next servers to ask.
    pub fn next_visit(&mut self) -> Option<Visit> {
        self.pending.pop_front()
    }

    /// The next result.
    pub fn next_result(&mut self) -> Option<Result<GlobEntry, GlobError>> {
        self.results.pop_front()
    }

    /// Handles a match from a visited table.
    pub fn found(&mut self, visit: &Visit, found: Found) {
        let name = naming::join(&[&visit.name, &found.name]);
        let rest = naming::elements(&found.name).fold(visit.rest.clone(), |rest, _| rest.tail());
        let servers = found.entry.servers.clone();
        let target = found.entry.target;
        // The root of a mounted table was already reported where it is mounted.
        let is_news = visit.is_first || !found.name.is_empty();
        if rest.left().is_empty() && is_news {
            let has_children = found.has_children;
            self.results.push_back(Ok(GlobEntry { name: name.clone(), servers, target, has_children }));
        }
        let entry = MountEntry { suffix: String::new(), ..found.entry };
        if !entry.servers.is_empty() && can_descend(&rest, target) {
            let is_spelled = rest.depth() < visit.rest.depth();
            let depth = visit.depth.saturating_add(usize::from(!is_spelled));
            self.visit(Visit { name, entry, rest, is_first: false, depth });
        }
    }

    /// Handles an error from a visited table.
    pub fn failed(&mut self, visit: &Visit, name: &str, error: Error) {
        // This error is of interest only if the caller named the server itself.
        if error.reason != Reason::NotAMountTable || visit.is_first {
            self.results.push_back(Err(GlobError { name: naming::join(&[&visit.name, name]), error }));
        }
    }

    fn visit(&mut self, visit: Visit) {
        let rest = visit.rest.to_string();
        let mut is_new = true;
        for location in visit.entry.locations() {
            is_new &= self.visited.insert((location, rest.clone()));
        }
        if !is_new {
            return;
        }
        let refusal = if visit.depth > DEPTH_MAX {
            Some((Reason::DepthExceeded, format!("more than {DEPTH_MAX} nested servers")))
        } else if self.visits == VISITS_MAX {
            Some((Reason::BadPattern, format!("the pattern reaches more than {VISITS_MAX} servers")))
        } else {
            None
        };
        if let Some((reason, message)) = refusal {
            return self.results.push_back(Err(GlobError { name: visit.name, error: Error::new(reason, message) }));
        }
        self.visits = self.visits.saturating_add(1);
        self.pending.push_back(visit);
    }
}

/// Whether there may be names below a server of the kind `target`.
fn can_descend(rest: &Pattern, target: Target) -> bool {
    let is_restricted = rest.left().is_empty() && rest.recursion() == Recursion::Restricted;
    match target {
        Target::MountTable => !rest.is_used_up(),
        Target::Object => !rest.is_used_up() && !is_restricted,
        Target::Leaf => false,
    }
}
