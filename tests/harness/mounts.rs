//! The servers that a name must and may lead to, as a function of the calls that change names and of their responses.
//!
//! A call takes effect at one moment between its start and its end. A call of unknown outcome takes effect at any moment after its start,
//! or never. A lookup sees each row as it was at some moment between its start and its end, or a little earlier, because servers cache rows.
//! From this follows which servers a lookup must return, and which it may return:
//!
//! | server | when |
//! |---|---|
//! | must | its mount was acknowledged before the lookup, its deadline is after the lookup, and no removal can have taken effect since the mount began |
//! | may | its mount has begun, its deadline is not before the lookup, and no removal has certainly taken effect since |

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

/// The calls that change names. Times are those of one clock, which all callers share.
#[derive(Clone, Debug, Default)]
pub struct MountHistory {
    mounts: Vec<MountCall>,
    /// The calls of each name, as indices of `mounts`.
    by_name: BTreeMap<String, Vec<usize>>,
    removals: Vec<Removal>,
}

#[derive(Clone, Debug)]
struct MountCall {
    server: String,
    began: Duration,
    acknowledged: Option<Mounted>,
}

/// An acknowledged mount.
#[derive(Clone, Copy, Debug)]
struct Mounted {
    ended: Duration,
    /// `None`: the mount does not expire.
    deadline: Option<Duration>,
}

#[derive(Clone, Debug)]
struct Removal {
    node: String,
    reach: Reach,
    began: Duration,
    /// When it was acknowledged.
    ended: Option<Duration>,
}

/// What a removal empties.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// The servers of one node.
    Node,
    /// A node and everything below it.
    Subtree,
}

/// The number of a call of its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallNumber(usize);

/// How old the rows of a lookup may be, and how its servers expire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tolerance {
    /// The age of rows, at most.
    pub age: Duration,
    /// How long after its deadline a server may be returned; `None`: forever.
    pub overdue: Option<Duration>,
}

/// A lookup of one name.
#[derive(Clone, Debug)]
pub struct Lookup<'a> {
    /// The name.
    pub name: &'a str,
    /// The returned servers.
    pub servers: &'a BTreeSet<String>,
    /// When it was sent.
    pub began: Duration,
    /// When it was answered.
    pub ended: Duration,
    /// What it may deviate by.
    pub tolerance: Tolerance,
}

/// A lookup whose response is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrongLookup {
    /// Kind of the violation.
    pub kind: WrongKind,
    /// The name.
    pub name: String,
    /// The server.
    pub server: String,
    /// When the lookup was sent.
    pub began: Duration,
}

/// Kinds of wrong responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WrongKind {
    /// The server must be returned and is not.
    Lost,
    /// The server was removed, or was never mounted, and is returned.
    Resurrected,
    /// The deadline of the server has passed, and it is returned.
    Expired,
}

impl fmt::Display for WrongLookup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.kind {
            WrongKind::Lost => "lost",
            WrongKind::Resurrected => "resurrected",
            WrongKind::Expired => "expired, and still returned",
        };
        write!(f, "names: {} on {} is {what} in a lookup at {:?}", self.server, self.name, self.began)
    }
}

impl MountHistory {
    /// A mount is about to be sent.
    pub fn begin_mount(&mut self, name: &str, server: &str, began: Duration) -> CallNumber {
        let number = self.mounts.len();
        self.mounts.push(MountCall { server: server.to_owned(), began, acknowledged: None });
        self.by_name.entry(name.to_owned()).or_default().push(number);
        CallNumber(number)
    }

    /// A mount was acknowledged with this deadline; `None`: it does not expire.
    pub fn acknowledge_mount(&mut self, number: CallNumber, ended: Duration, deadline: Option<Duration>) {
        if let Some(mount) = self.mounts.get_mut(number.0) {
            mount.acknowledged = Some(Mounted { ended, deadline });
        }
    }

    /// A removal is about to be sent.
    pub fn begin_removal(&mut self, node: &str, reach: Reach, began: Duration) -> CallNumber {
        self.removals.push(Removal { node: node.to_owned(), reach, began, ended: None });
        CallNumber(self.removals.len() - 1)
    }

    /// A removal was acknowledged.
    pub fn acknowledge_removal(&mut self, number: CallNumber, ended: Duration) {
        if let Some(removal) = self.removals.get_mut(number.0) {
            removal.ended = Some(ended);
        }
    }

    /// The names that were ever mounted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.by_name.keys().map(String::as_str)
    }

    /// The servers that a lookup of `name` between these moments must return.
    #[must_use]
    pub fn required(&self, name: &str, began: Duration, ended: Duration, age: Duration) -> BTreeSet<&str> {
        self.required_of(&Lookup {
            name,
            servers: &BTreeSet::new(),
            began,
            ended,
            tolerance: Tolerance { age, overdue: None },
        })
    }

    /// Everything that is wrong with a lookup.
    #[must_use]
    pub fn wrong(&self, lookup: &Lookup<'_>) -> Vec<WrongLookup> {
        let wrong = |kind, server: &str| {
            let (name, server) = (lookup.name.to_owned(), server.to_owned());
            WrongLookup { kind, name, server, began: lookup.began }
        };
        let missing = self.required_of(lookup).into_iter().filter(|server| !lookup.servers.contains(*server));
        let lost = missing.map(|server| wrong(WrongKind::Lost, server));
        let strange = lookup.servers.iter().filter_map(|server| Some(wrong(self.objection(lookup, server)?, server)));
        lost.chain(strange).collect()
    }

    fn required_of(&self, lookup: &Lookup<'_>) -> BTreeSet<&str> {
        let must = |mount: &&MountCall| {
            mount.acknowledged.is_some_and(|mounted| {
                mounted.ended + lookup.tolerance.age <= lookup.began
                    && mounted.deadline.is_none_or(|deadline| deadline > lookup.ended)
                    && !self.removals_of(lookup.name).any(|removal| {
                        removal.began < lookup.ended && removal.ended.is_none_or(|ended| ended > mount.began)
                    })
            })
        };
        self.mounts_of(lookup.name).filter(must).map(|mount| mount.server.as_str()).collect()
    }

    /// Why the server must not be returned, if so.
    fn objection(&self, lookup: &Lookup<'_>, server: &str) -> Option<WrongKind> {
        let mounts = self.mounts_of(lookup.name).filter(|mount| mount.server == server && mount.began < lookup.ended);
        let is_removed = |mount: &MountCall| {
            let Some(mounted) = mount.acknowledged else { return false };
            let is_over = |ended: Duration| ended + lookup.tolerance.age <= lookup.began;
            self.removals_of(lookup.name)
                .any(|removal| removal.began >= mounted.ended && removal.ended.is_some_and(is_over))
        };
        let is_overdue = |mount: &MountCall| {
            let deadline = mount.acknowledged.and_then(|mounted| mounted.deadline);
            let overdue = lookup.tolerance.overdue;
            deadline.zip(overdue).is_some_and(|(deadline, overdue)| deadline + overdue <= lookup.began)
        };
        let mut objection = Some(WrongKind::Resurrected);
        for mount in mounts {
            if !is_removed(mount) {
                if !is_overdue(mount) {
                    return None;
                }
                objection = Some(WrongKind::Expired);
            }
        }
        objection
    }

    fn mounts_of(&self, name: &str) -> impl Iterator<Item = &MountCall> {
        self.by_name.get(name).into_iter().flatten().filter_map(|number| self.mounts.get(*number))
    }

    fn removals_of(&self, name: &str) -> impl Iterator<Item = &Removal> {
        self.removals.iter().filter(move |removal| match name.strip_prefix(removal.node.as_str()) {
            Some("") => true,
            Some(rest) => removal.reach == Reach::Subtree && rest.starts_with('/'),
            None => false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AGE: Duration = Duration::from_secs(2);

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// What is wrong with a lookup of `a/b` that takes from the second `began` to the next one.
    fn wrong(history: &MountHistory, servers: &[&str], began: u64) -> Vec<(WrongKind, String)> {
        let servers = servers.iter().map(|server| (*server).to_owned()).collect();
        let tolerance = Tolerance { age: AGE, overdue: Some(Duration::ZERO) };
        let lookup = Lookup { name: "a/b", servers: &servers, began: at(began), ended: at(began + 1), tolerance };
        history.wrong(&lookup).into_iter().map(|wrong| (wrong.kind, wrong.server)).collect()
    }

    fn mounted(history: &mut MountHistory, server: &str, (began, ended): (u64, u64), deadline: Option<u64>) {
        let number = history.begin_mount("a/b", server, at(began));
        history.acknowledge_mount(number, at(ended), deadline.map(at));
    }

    fn removed(history: &mut MountHistory, node: &str, reach: Reach, (began, ended): (u64, u64)) {
        let number = history.begin_removal(node, reach, at(began));
        history.acknowledge_removal(number, at(ended));
    }

    fn one(kind: WrongKind, server: &str) -> Vec<(WrongKind, String)> {
        vec![(kind, server.to_owned())]
    }

    #[test]
    fn an_acknowledged_mount_is_returned_once_caches_are_too_old() {
        let mut history = MountHistory::default();
        mounted(&mut history, "h:1", (10, 11), None);
        assert_eq!(wrong(&history, &[], 12), []);
        assert_eq!(wrong(&history, &[], 13), one(WrongKind::Lost, "h:1"));
        assert_eq!(wrong(&history, &["h:1"], 13), []);
        assert_eq!(wrong(&history, &["h:1"], 8), one(WrongKind::Resurrected, "h:1"), "it had not begun");
    }

    #[test]
    fn a_removed_server_is_not_returned_and_one_that_may_be_removed_need_not_be() {
        for (node, reach) in [("a/b", Reach::Node), ("a", Reach::Subtree)] {
            let mut history = MountHistory::default();
            mounted(&mut history, "h:1", (10, 11), None);
            removed(&mut history, node, reach, (20, 21));
            assert_eq!(wrong(&history, &["h:1"], 22), [], "a cache may have it");
            assert_eq!(wrong(&history, &["h:1"], 23), one(WrongKind::Resurrected, "h:1"));
            assert_eq!(wrong(&history, &[], 20), []);
            mounted(&mut history, "h:1", (30, 31), None);
            assert_eq!(wrong(&history, &[], 40), one(WrongKind::Lost, "h:1"), "it was mounted again");
        }
    }

    #[test]
    fn a_removal_that_overlaps_a_mount_decides_nothing() {
        let mut history = MountHistory::default();
        mounted(&mut history, "h:1", (10, 15), None);
        removed(&mut history, "a/b", Reach::Node, (12, 13));
        assert_eq!(wrong(&history, &["h:1"], 40), []);
        assert_eq!(wrong(&history, &[], 40), []);
    }

    #[test]
    fn removals_elsewhere_have_no_effect() {
        let mut history = MountHistory::default();
        mounted(&mut history, "h:1", (10, 11), None);
        removed(&mut history, "a", Reach::Node, (12, 13));
        removed(&mut history, "a/bc", Reach::Subtree, (12, 13));
        removed(&mut history, "a/b/c", Reach::Subtree, (12, 13));
        assert_eq!(wrong(&history, &[], 40), one(WrongKind::Lost, "h:1"));
    }

    #[test]
    fn calls_of_unknown_outcome_may_take_effect_at_any_time() {
        let mut history = MountHistory::default();
        history.begin_mount("a/b", "h:1", at(10));
        removed(&mut history, "a/b", Reach::Node, (20, 21));
        assert_eq!(wrong(&history, &["h:1"], 40), [], "the mount may come after the removal");
        assert_eq!(wrong(&history, &[], 40), []);
        mounted(&mut history, "h:2", (41, 42), None);
        history.begin_removal("a", Reach::Subtree, at(43));
        assert_eq!(wrong(&history, &["h:2"], 60), []);
        assert_eq!(wrong(&history, &[], 60), []);
    }

    #[test]
    fn a_server_expires_unless_it_is_mounted_again() {
        let mut history = MountHistory::default();
        mounted(&mut history, "h:1", (10, 11), Some(20));
        assert_eq!(wrong(&history, &[], 18), one(WrongKind::Lost, "h:1"));
        assert_eq!(wrong(&history, &[], 19), [], "it expires during the lookup");
        assert_eq!(wrong(&history, &["h:1"], 19), []);
        assert_eq!(wrong(&history, &["h:1"], 20), one(WrongKind::Expired, "h:1"));
        mounted(&mut history, "h:1", (15, 16), Some(25));
        assert_eq!(wrong(&history, &["h:1"], 20), []);
        assert_eq!(wrong(&history, &[], 20), one(WrongKind::Lost, "h:1"));
        assert_eq!(history.required("a/b", at(20), at(21), AGE), BTreeSet::from(["h:1"]));
        assert_eq!(history.names().collect::<Vec<_>>(), ["a/b"]);
    }
}
