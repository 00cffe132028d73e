//! What was promised of each name: a function of the answers that were given. Each name has one user, whose calls come one
//! after the other.
//!
//! | call | acknowledged | unknown: an error, or no answer |
//! |---|---|---|
//! | mount | the server is there | it may be there, or come later |
//! | unmount, delete | what was there is gone | it may be gone, or go later, and with it what comes after |
//!
//! A call of unknown outcome may still be under way, so nothing that follows it takes its effect away: a server that may
//! come stays one, and a name that somebody may still empty is *doubted* for ever. Its user takes another one.

use std::collections::{BTreeMap, BTreeSet};

/// How a call ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ended {
    /// It was done.
    Acknowledged,
    /// Nobody knows.
    Unknown,
}

/// What was promised of all names.
#[derive(Default, Debug)]
pub(crate) struct Promises(BTreeMap<String, Promise>);

/// What was promised of one.
#[derive(Clone, Default, Debug)]
struct Promise {
    /// Servers that must be there.
    must: BTreeSet<String>,
    /// Servers that may be there.
    may: BTreeSet<String>,
    is_doubted: bool,
}

/// What the tree holds against a promise.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Broken {
    pub(crate) kind: Kind,
    pub(crate) name: String,
    pub(crate) server: String,
}

/// How a promise is broken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Acknowledged, taken away by nobody, and not there.
    Lost,
    /// There, although it was taken away with an acknowledgement, or was never mounted.
    Resurrected,
}

impl Promises {
    /// A call of `mount` has ended.
    pub(crate) fn mounted(&mut self, name: &str, server: &str, ended: Ended) {
        let promise = self.0.entry(name.to_owned()).or_default();
        if ended == Ended::Acknowledged && !promise.is_doubted {
            promise.must.insert(server.to_owned());
        } else if !promise.must.contains(server) {
            promise.may.insert(server.to_owned());
        }
    }

    /// A call has ended that takes all servers from the name, or deletes it.
    pub(crate) fn emptied(&mut self, name: &str, ended: Ended) {
        if let Some(promise) = self.0.get_mut(name) {
            promise.empty(ended);
        }
    }

    /// A call has ended that deletes `node` and everything below it.
    pub(crate) fn deleted(&mut self, node: &str, ended: Ended) {
        let below = format!("{node}/");
        for (_, promise) in self.0.iter_mut().filter(|(name, _)| *name == node || name.starts_with(&below)) {
            promise.empty(ended);
        }
    }

    /// Whether a call that empties the name may still be under way.
    pub(crate) fn is_doubted(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|promise| promise.is_doubted)
    }

    /// Whether a name that has these servers keeps what was promised of it.
    pub(crate) fn allow(&self, name: &str, servers: &BTreeSet<String>) -> bool {
        self.0.get(name).is_none_or(|promise| promise.broken(servers).next().is_none())
    }

    /// The names that were ever used.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// How many servers must be there.
    pub(crate) fn standing(&self) -> usize {
        self.0.values().map(|promise| promise.must.len()).sum()
    }

    /// Takes in the promises of another user, who has other names.
    pub(crate) fn add(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// What `found` (the servers of each name; a name without any may be left out) holds against the promises.
    pub(crate) fn broken(&self, found: &BTreeMap<String, BTreeSet<String>>) -> Vec<Broken> {
        let mut broken = Vec::new();
        let nothing = BTreeSet::new();
        for (name, promise) in &self.0 {
            for (kind, server) in promise.broken(found.get(name).unwrap_or(&nothing)) {
                broken.push(Broken { kind, name: name.clone(), server: server.clone() });
            }
        }
        broken
    }
}

impl Promise {
    fn broken<'a>(&'a self, servers: &'a BTreeSet<String>) -> impl Iterator<Item = (Kind, &'a String)> {
        let lost = self.must.difference(servers).map(|server| (Kind::Lost, server));
        let strange = servers.iter().filter(|one| !self.must.contains(*one) && !self.may.contains(*one));
        lost.chain(strange.map(|server| (Kind::Resurrected, server)))
    }

    fn empty(&mut self, ended: Ended) {
        if ended == Ended::Unknown {
            self.is_doubted = true;
            self.may.append(&mut self.must);
        }
        self.must.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use Ended::{Acknowledged, Unknown};

    fn found(servers: &[&str]) -> BTreeMap<String, BTreeSet<String>> {
        BTreeMap::from([("a/b".to_owned(), servers.iter().map(|server| (*server).to_owned()).collect())])
    }

    fn broken(kind: Kind, server: &str) -> Vec<Broken> {
        vec![Broken { kind, name: "a/b".to_owned(), server: server.to_owned() }]
    }

    #[test]
    fn what_was_acknowledged_is_there_and_what_was_taken_away_is_not() {
        let mut promises = Promises::default();
        promises.mounted("a/b", "h:1", Acknowledged);
        assert_eq!(promises.broken(&found(&["h:1"])), []);
        assert!(promises.allow("a/b", &found(&["h:1"])["a/b"]) && !promises.allow("a/b", &BTreeSet::new()));
        assert_eq!(promises.broken(&BTreeMap::new()), broken(Kind::Lost, "h:1"));
        promises.emptied("a/b", Acknowledged);
        assert_eq!(promises.broken(&found(&[])), []);
        assert_eq!(promises.broken(&found(&["h:1"])), broken(Kind::Resurrected, "h:1"));
        assert_eq!(promises.standing(), 0);
    }

    #[test]
    fn a_mount_without_an_answer_may_come_after_what_follows_it() {
        let mut promises = Promises::default();
        promises.mounted("a/b", "h:1", Unknown);
        promises.emptied("a/b", Acknowledged);
        promises.mounted("a/b", "h:2", Acknowledged);
        assert_eq!(promises.broken(&found(&["h:2"])), []);
        assert_eq!(promises.broken(&found(&["h:1", "h:2"])), []);
        assert_eq!(promises.broken(&found(&["h:1"])), broken(Kind::Lost, "h:2"));
    }

    #[test]
    fn what_may_still_be_emptied_promises_nothing_any_more() {
        let mut promises = Promises::default();
        promises.mounted("a/b", "h:1", Acknowledged);
        promises.emptied("a/b", Acknowledged);
        promises.mounted("a/b", "h:2", Acknowledged);
        promises.deleted("a", Unknown);
        assert!(promises.is_doubted("a/b"));
        promises.mounted("a/b", "h:3", Acknowledged);
        for servers in [&["h:2", "h:3"][..], &["h:3"], &[]] {
            assert_eq!(promises.broken(&found(servers)), []);
        }
        assert_eq!(promises.broken(&found(&["h:1"])), broken(Kind::Resurrected, "h:1"), "it was taken away before");
    }

    #[test]
    fn a_deletion_takes_what_is_below_and_nothing_beside() {
        let mut promises = Promises::default();
        promises.mounted("a/b", "h:1", Acknowledged);
        promises.mounted("a-b", "h:2", Acknowledged);
        promises.deleted("a", Acknowledged);
        assert_eq!((promises.standing(), promises.names().count()), (1, 2));
        assert_eq!(promises.broken(&found(&["h:1"])).len(), 2);
    }
}
