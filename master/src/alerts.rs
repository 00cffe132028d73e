//! Alerts: debounces the problems of the cluster, and reports each change once.
//!
//! [`Alerts::observe`] takes a view of the cluster and returns the events to log. A problem is reported when it has
//! lasted for [`DEBOUNCE`]: elections, splits and the start of a cluster take less. A recovery is reported at once. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ebla_model::id::ServerId;

use crate::events::{ClusterEvent, ClusterView, ServerState, ServerView, events, is_worse};

/// How long a problem lasts before it is reported.
pub const DEBOUNCE: Duration = Duration::from_secs(2);

/// What an alert is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum AlertSubject {
    Server(ServerId),
    Metadata,
    Quorum,
    Unknown,
    Shortage,
    Repair,
}

/// Debounces problems, and remembers what was reported.
#[derive(Clone, Debug, Default)]
pub struct Alerts {
    reported: Option<ClusterView>,
    /// Since when it has been worse than reported.
    worse_since: BTreeMap<AlertSubject, Duration>,
}

impl Alerts {
    /// Takes a view of the time `now`, as time since boot. Returns the events to log.
    pub fn observe(&mut self, observed: &ClusterView, now: Duration) -> Vec<ClusterEvent> {
        let reported = self.reported.clone().unwrap_or_else(|| observed.without_problems());
        let current = self.debounce(&reported, observed, now);
        let events = events(&reported, &current);
        self.reported = Some(current);
        events
    }

    /// The time until a pending problem must be reported; `None` when there is none.
    #[must_use]
    pub fn next_due(&self, now: Duration) -> Option<Duration> {
        self.worse_since.values().map(|since| since.saturating_add(DEBOUNCE).saturating_sub(now)).min()
    }

    /// The reported view, updated with all recoveries and with all problems that have lasted.
    fn debounce(&mut self, reported: &ClusterView, observed: &ClusterView, now: Duration) -> ClusterView {
        let mut current = ClusterView::default();
        let ids: BTreeSet<ServerId> = reported.servers.keys().chain(observed.servers.keys()).copied().collect();
        self.worse_since.retain(|subject, _since| !matches!(subject, AlertSubject::Server(id) if !ids.contains(id)));
        for id in ids {
            if let Some(server) = self.debounce_server(reported.servers.get(&id), observed.servers.get(&id), id, now) {
                current.servers.insert(id, server);
            }
        }
        let worse = reported.metadata.is_none() && observed.metadata.is_some();
        current.metadata =
            self.debounce_value(AlertSubject::Metadata, worse, now, &reported.metadata, &observed.metadata);
        let worse = !observed.without_quorum.is_subset(&reported.without_quorum);
        current.without_quorum =
            self.debounce_value(AlertSubject::Quorum, worse, now, &reported.without_quorum, &observed.without_quorum);
        let worse = !observed.unknown_tables.is_subset(&reported.unknown_tables);
        current.unknown_tables =
            self.debounce_value(AlertSubject::Unknown, worse, now, &reported.unknown_tables, &observed.unknown_tables);
        let worse = observed.shortage.is_some_and(|short| is_worse(reported.shortage, short));
        current.shortage =
            self.debounce_value(AlertSubject::Shortage, worse, now, &reported.shortage, &observed.shortage);
        // It lasts until an operator acts.
        current.changes_refused.clone_from(&observed.changes_refused);
        // Repairs may pause for a moment while there is still something to repair.
        let pauses = reported.repairs > 0 && observed.repairs == 0 && observed.shortage.is_some();
        current.repairs = self.debounce_value(AlertSubject::Repair, pauses, now, &reported.repairs, &observed.repairs);
        current
    }

    fn debounce_server(
        &mut self,
        reported: Option<&ServerView>,
        observed: Option<&ServerView>,
        id: ServerId,
        now: Duration,
    ) -> Option<ServerView> {
        let subject = AlertSubject::Server(id);
        let Some(observed) = observed else {
            // No replica should be on it any more: it was down until now, or it stopped when it had no replicas.
            let reported = reported.filter(|reported| !reported.state.is_down())?;
            let down = ServerView { state: ServerState::Down, lease: None, ..reported.clone() };
            return Some(self.debounce_value(subject, true, now, reported, &down));
        };
        let mut observed = observed.clone();
        if let Some(reported) = reported
            && observed.address.is_empty()
        {
            observed.address = reported.address.clone();
        }
        // A server that does not respond may refuse writes still.
        observed.writes = observed.writes.or(reported.and_then(|reported| reported.writes));
        let Some(reported) = reported else {
            return match observed.state {
                ServerState::Up => Some(observed),
                _ => self.debounce_value(subject, true, now, &None, &Some(observed)),
            };
        };
        let is_worse = match observed.state {
            ServerState::Up => false,
            ServerState::Unresponsive | ServerState::Down => !reported.state.is_down(),
            ServerState::Unregistered => reported.state == ServerState::Up,
        };
        Some(self.debounce_value(subject, is_worse, now, reported, &observed))
    }

    /// The reported value, while the observed one is worse and has not lasted.
    fn debounce_value<T: Clone>(
        &mut self,
        subject: AlertSubject,
        is_worse: bool,
        now: Duration,
        reported: &T,
        observed: &T,
    ) -> T {
        if !is_worse {
            self.worse_since.remove(&subject);
            return observed.clone();
        }
        let since = *self.worse_since.entry(subject).or_insert(now);
        if now.saturating_sub(since) < DEBOUNCE {
            return reported.clone();
        }
        self.worse_since.remove(&subject);
        observed.clone()
    }
}

#[cfg(test)]
mod tests {
    //! The golden scripts of `testdata/events`: what is observed at which time, and which events are logged then.
    //!
    //! ```text
    //! at 0                                       seconds
    //! server 1 up | unregistered | unresponsive | down | removed
    //! server 1 up 2                              with a lease of its second start; otherwise of its first one
    //! writes 1 refused | accepted
    //! changes refused | accepted
    //! short 24 2/3                               24 tablets are under-replicated, the worst has 2 of 3; `short none`
    //! quorum 5 6 7                               these tablets have no quorum; `quorum all`: all have one
    //! metadata unreadable | readable
    //! repairs 4
    //! unknown 5 6                                Chubby does not know these tables; `unknown none`
    //! ---
    //! 12 warn server-lost …
    //! ```
    //!
    //! Everything else is as before. Every `at` but the first ends a view.

    use std::fmt::Write as _;
    use std::path::Path;

    use ebla_model::capacity::WriteState;
    use ebla_model::id::{Incarnation, TableId, TabletId};

    use super::*;
    use crate::events::ShortageView;
    use crate::health::Shortage;

    fn state(word: &str) -> Option<ServerState> {
        match word {
            "up" => Some(ServerState::Up),
            "unregistered" => Some(ServerState::Unregistered),
            "unresponsive" => Some(ServerState::Unresponsive),
            "down" => Some(ServerState::Down),
            "removed" => None,
            other => panic!("unknown state {other:?}"),
        }
    }

    fn shortage(words: &[&str]) -> Option<ShortageView> {
        let [tablets, of] = words else { return None };
        let (live, wanted) = of.split_once('/').unwrap();
        let worst = Shortage { live: live.parse().unwrap(), wanted: wanted.parse().unwrap() };
        Some(ShortageView { tablets: tablets.parse().unwrap(), worst })
    }

    fn change(view: &mut ClusterView, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["server", id, word, start @ ..] => {
                let number = ServerId::new(id.parse().unwrap());
                let Some(state) = state(word) else {
                    view.servers.remove(&number);
                    return;
                };
                let incarnation = Incarnation::new(start.first().map_or(1, |start| start.parse().unwrap()));
                let has_lease = matches!(state, ServerState::Up | ServerState::Unresponsive);
                let responds = matches!(state, ServerState::Up | ServerState::Unregistered);
                let server = ServerView {
                    address: format!("host-{id}:1"),
                    state,
                    lease: has_lease.then_some(incarnation),
                    writes: responds.then_some(WriteState::Accepts),
                };
                view.servers.insert(number, server);
            }
            ["writes", id, word] => {
                let server = view.servers.get_mut(&ServerId::new(id.parse().unwrap())).unwrap();
                server.writes = Some(if *word == "refused" { WriteState::Refuses } else { WriteState::Accepts });
            }
            ["changes", word] => view.changes_refused = (*word == "refused").then(|| "no table 9".to_owned()),
            ["short", rest @ ..] => view.shortage = shortage(rest),
            ["quorum", "all"] => view.without_quorum.clear(),
            ["quorum", ids @ ..] => {
                view.without_quorum = ids.iter().map(|id| TabletId::new(id.parse().unwrap())).collect();
            }
            ["metadata", word] => view.metadata = (*word == "unreadable").then(|| "no leader".to_owned()),
            ["unknown", "none"] => view.unknown_tables.clear(),
            ["unknown", ids @ ..] => {
                view.unknown_tables = ids.iter().map(|id| TableId::new(id.parse().unwrap())).collect();
            }
            ["repairs", count] => view.repairs = count.parse().unwrap(),
            _ => panic!("unknown line {line:?}"),
        }
    }

    fn run(case: &str) -> String {
        let script = case.split("---\n").next().unwrap();
        let (mut alerts, mut view, mut now) = (Alerts::default(), ClusterView::default(), None);
        let mut out = format!("{script}---\n");
        let mut report = |view: &ClusterView, now: u64| {
            for event in alerts.observe(view, Duration::from_secs(now)) {
                let severity = format!("{:?}", event.severity()).to_lowercase();
                writeln!(out, "{now} {severity} {event}").unwrap();
            }
        };
        for line in script.lines().filter(|line| !line.starts_with('#')) {
            match line.strip_prefix("at ") {
                Some(time) => {
                    if let Some(before) = now.replace(time.parse().unwrap()) {
                        report(&view, before);
                    }
                }
                None => change(&mut view, line),
            }
        }
        report(&view, now.unwrap());
        out
    }

    #[test]
    fn golden_scripts() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/events/outages.txt");
        crate::golden::check_cases(&file, run);
    }

    #[test]
    fn a_pending_alert_is_checked_again_when_it_is_due() {
        let mut alerts = Alerts::default();
        let seconds = Duration::from_secs;
        let broken = ClusterView { metadata: Some("no leader".to_owned()), ..ClusterView::default() };
        assert!(alerts.observe(&broken, seconds(10)).is_empty());
        assert_eq!(alerts.next_due(seconds(11)), Some(seconds(1)));
        assert_eq!(alerts.observe(&broken, seconds(12)), [ClusterEvent::MetadataUnreadable("no leader".to_owned())]);
        assert_eq!(alerts.next_due(seconds(12)), None);
    }
}
