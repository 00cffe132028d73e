//! The expected state of each name as a function of the responses. Each name has one user, whose calls are sequential.
//!
//! | call | acknowledged | unknown: an error, or no answer |
//! |---|---|---|
//! | mount | the server is mounted | it may be mounted now or later |
//! | unmount, delete | the servers are removed | they may be removed now or later, with servers mounted meanwhile |
//!
//! A call of unknown outcome may still be in progress and take effect after later calls: a server that may be mounted stays
//! possible, and a name that may still be emptied is *indeterminate* forever. Its user switches to another name.

use std::collections::{BTreeMap, BTreeSet};

/// How a call ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CallOutcome {
    /// It was done.
    Acknowledged,
    /// The outcome is unknown.
    Unknown,
}

/// The expected state of all names.
#[derive(Default, Debug)]
pub(crate) struct Expectations(BTreeMap<String, Expectation>);

/// The expected state of one name.
#[derive(Clone, Default, Debug)]
struct Expectation {
    /// Servers that must be there.
    must: BTreeSet<String>,
    /// Servers that may be there.
    may: BTreeSet<String>,
    is_indeterminate: bool,
}

/// A difference between a name and its expected state.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Violation {
    pub(crate) kind: Kind,
    pub(crate) name: String,
    pub(crate) server: String,
}

/// Kinds of violations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Acknowledged, not removed, and missing.
    Lost,
    /// Mounted, although its removal was acknowledged or it was never mounted.
    Resurrected,
}

impl Expectations {
    /// A call of `mount` has ended.
    pub(crate) fn mounted(&mut self, name: &str, server: &str, ended: CallOutcome) {
        let expectation = self.0.entry(name.to_owned()).or_default();
        if ended == CallOutcome::Acknowledged && !expectation.is_indeterminate {
            expectation.must.insert(server.to_owned());
        } else if !expectation.must.contains(server) {
            expectation.may.insert(server.to_owned());
        }
    }

    /// A call has ended that takes all servers from the name, or deletes it.
    pub(crate) fn emptied(&mut self, name: &str, ended: CallOutcome) {
        if let Some(expectation) = self.0.get_mut(name) {
            expectation.empty(ended);
        }
    }

    /// A call has ended that deletes `node` and everything below it.
    pub(crate) fn deleted(&mut self, node: &str, ended: CallOutcome) {
        let below = format!("{node}/");
        for (_, expectation) in self.0.iter_mut().filter(|(name, _)| *name == node || name.starts_with(&below)) {
            expectation.empty(ended);
        }
    }

    /// Whether a call that empties the name may still be under way.
    pub(crate) fn is_indeterminate(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|expectation| expectation.is_indeterminate)
    }

    /// Whether these servers of a name are as expected.
    pub(crate) fn allows(&self, name: &str, servers: &BTreeSet<String>) -> bool {
        self.0.get(name).is_none_or(|expectation| expectation.violations(servers).next().is_none())
    }

    /// The names that were ever used.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// How many servers must be there.
    pub(crate) fn required_count(&self) -> usize {
        self.0.values().map(|expectation| expectation.must.len()).sum()
    }

    /// Adds the expectations of another user, for other names.
    pub(crate) fn add(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// All violations. `found`: the servers of each name; names without servers may be missing.
    pub(crate) fn violations(&self, found: &BTreeMap<String, BTreeSet<String>>) -> Vec<Violation> {
        let mut violations = Vec::new();
        let nothing = BTreeSet::new();
        for (name, expectation) in &self.0 {
            for (kind, server) in expectation.violations(found.get(name).unwrap_or(&nothing)) {
                violations.push(Violation { kind, name: name.clone(), server: server.clone() });
            }
        }
        violations
    }
}

impl Expectation {
    fn violations<'a>(&'a self, servers: &'a BTreeSet<String>) -> impl Iterator<Item = (Kind, &'a String)> {
        let lost = self.must.difference(servers).map(|server| (Kind::Lost, server));
        let strange = servers.iter().filter(|one| !self.must.contains(*one) && !self.may.contains(*one));
        lost.chain(strange.map(|server| (Kind::Resurrected, server)))
    }

    fn empty(&mut self, ended: CallOutcome) {
        if ended == CallOutcome::Unknown {
            self.is_indeterminate = true;
            self.may.append(&mut self.must);
        }
        self.must.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use CallOutcome::{Acknowledged, Unknown};

    fn found(servers: &[&str]) -> BTreeMap<String, BTreeSet<String>> {
        BTreeMap::from([("a/b".to_owned(), servers.iter().map(|server| (*server).to_owned()).collect())])
    }

    fn violation(kind: Kind, server: &str) -> Vec<Violation> {
        vec![Violation { kind, name: "a/b".to_owned(), server: server.to_owned() }]
    }

    #[test]
    fn what_was_acknowledged_is_there_and_what_was_taken_away_is_not() {
        let mut expectations = Expectations::default();
        expectations.mounted("a/b", "h:1", Acknowledged);
        assert_eq!(expectations.violations(&found(&["h:1"])), []);
        assert!(expectations.allows("a/b", &found(&["h:1"])["a/b"]) && !expectations.allows("a/b", &BTreeSet::new()));
        assert_eq!(expectations.violations(&BTreeMap::new()), violation(Kind::Lost, "h:1"));
        expectations.emptied("a/b", Acknowledged);
        assert_eq!(expectations.violations(&found(&[])), []);
        assert_eq!(expectations.violations(&found(&["h:1"])), violation(Kind::Resurrected, "h:1"));
        assert_eq!(expectations.required_count(), 0);
    }

    #[test]
    fn a_mount_without_an_answer_may_come_after_what_follows_it() {
        let mut expectations = Expectations::default();
        expectations.mounted("a/b", "h:1", Unknown);
        expectations.emptied("a/b", Acknowledged);
        expectations.mounted("a/b", "h:2", Acknowledged);
        assert_eq!(expectations.violations(&found(&["h:2"])), []);
        assert_eq!(expectations.violations(&found(&["h:1", "h:2"])), []);
        assert_eq!(expectations.violations(&found(&["h:1"])), violation(Kind::Lost, "h:2"));
    }

    #[test]
    fn what_may_still_be_emptied_promises_nothing_any_more() {
        let mut expectations = Expectations::default();
        expectations.mounted("a/b", "h:1", Acknowledged);
        expectations.emptied("a/b", Acknowledged);
        expectations.mounted("a/b", "h:2", Acknowledged);
        expectations.deleted("a", Unknown);
        assert!(expectations.is_indeterminate("a/b"));
        expectations.mounted("a/b", "h:3", Acknowledged);
        for servers in [&["h:2", "h:3"][..], &["h:3"], &[]] {
            assert_eq!(expectations.violations(&found(servers)), []);
        }
        assert_eq!(
            expectations.violations(&found(&["h:1"])),
            violation(Kind::Resurrected, "h:1"),
            "it was removed before"
        );
    }

    #[test]
    fn a_deletion_takes_what_is_below_and_nothing_beside() {
        let mut expectations = Expectations::default();
        expectations.mounted("a/b", "h:1", Acknowledged);
        expectations.mounted("a-b", "h:2", Acknowledged);
        expectations.deleted("a", Acknowledged);
        assert_eq!((expectations.required_count(), expectations.names().count()), (1, 2));
        assert_eq!(expectations.violations(&found(&["h:1"])).len(), 2);
    }
}
