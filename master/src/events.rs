//! What operators are told in the log: servers that are lost and come back, tablets that have too few replicas or no quorum,
//! METADATA that cannot be read, repairs. Once for each change, when it has lasted a moment.
//!
//! ```text
//!   picture -> View                    what matters of it
//!   Alerts::follow(view, now)          what has lasted becomes the settled view; what differs from the one before is told
//!   events(before, now) -> [Event]     the differences
//! ```
//!
//! All of it is pure but [`Event::log`]. A worsening is told when it has lasted [`SETTLE`]: elections, splits and the start of a
//! cluster pass in less. An improvement is told at once.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use ebla_model::id::{ServerId, TabletId};
use tracing::{error, info, warn};

use crate::cluster::{Cluster, Presence};
use crate::health::{Health, Shortage};

/// How long a worsening lasts before it is told.
pub const SETTLE: Duration = Duration::from_secs(2);
/// Ids that a line of the log names at most.
const NAMED_MAX: usize = 5;

/// How a server is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It is registered and answers.
    Up,
    /// It is not registered and answers: its lease has expired, or it is stopping.
    Unregistered,
    /// It is registered and does not answer.
    Silent,
    /// It is not registered and does not answer.
    Gone,
}

impl Standing {
    const fn is_lost(self) -> bool {
        matches!(self, Self::Silent | Self::Gone)
    }
}

/// A server as operators know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerView {
    /// Where it is or was; empty when that is not known.
    pub address: String,
    /// How it is.
    pub standing: Standing,
}

/// Too few replicas, over all tablets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShortageView {
    /// Tablets that have too few.
    pub tablets: usize,
    /// The fewest that one of them has, and how many it should have.
    pub worst: Shortage,
}

/// What matters of a picture.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// The servers that are registered, answer, or should have replicas.
    pub servers: BTreeMap<ServerId, ServerView>,
    /// Tablets with too few live replicas.
    pub shortage: Option<ShortageView>,
    /// Tablets that cannot commit.
    pub without_quorum: BTreeSet<TabletId>,
    /// Why METADATA cannot be read; `None` when it can.
    pub metadata: Option<String>,
    /// Tablets whose replicas are being changed.
    pub repairs: usize,
}

impl View {
    /// What matters of `cluster`. `addresses`: where servers that are not registered were last.
    #[must_use]
    pub fn of(cluster: &Cluster, health: &Health, addresses: &BTreeMap<ServerId, String>) -> Self {
        let mut servers: BTreeMap<ServerId, ServerView> = BTreeMap::new();
        let known = |id: &ServerId| addresses.get(id).cloned().unwrap_or_default();
        for (id, server) in &cluster.servers {
            let standing = match (server.presence, &server.report) {
                (Presence::Registered, Some(_)) => Standing::Up,
                (Presence::Registered, None) => Standing::Silent,
                (Presence::Unregistered, _) => Standing::Unregistered,
            };
            let address = if server.address.is_empty() { known(id) } else { server.address.clone() };
            servers.insert(*id, ServerView { address, standing });
        }
        for id in cluster.holders() {
            servers.entry(id).or_insert_with(|| ServerView { address: known(&id), standing: Standing::Gone });
        }
        let worst = health.shortages.keys().min().copied();
        let shortage = worst.map(|worst| ShortageView { tablets: health.short(), worst });
        Self { servers, shortage, without_quorum: health.without_quorum.clone(), metadata: None, repairs: 0 }
    }

    /// The same cluster with nothing to complain of: what a new master compares its first view with.
    fn untroubled(&self) -> Self {
        let up =
            |(id, server): (&ServerId, &ServerView)| (*id, ServerView { standing: Standing::Up, ..server.clone() });
        Self { servers: self.servers.iter().map(up).collect(), ..Self::default() }
    }
}

/// A change that operators should know of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A server that was never seen before is up.
    ServerJoined(ServerId, String),
    /// A server does not answer; whether it still has its lease.
    ServerLost(ServerId, String, Standing),
    /// A server is not registered any more and still answers.
    ServerUnregistered(ServerId, String),
    /// A server is up again.
    ServerReturned(ServerId, String),
    /// Tablets have fewer live replicas than they should have.
    UnderReplicated(ShortageView),
    /// All have as many as they should have.
    FullyReplicated,
    /// Tablets cannot commit: how many, and the first of them.
    QuorumLost(usize, Vec<TabletId>),
    /// All tablets can.
    QuorumRestored,
    /// METADATA cannot be read, and why.
    MetadataUnreadable(String),
    /// It can be read.
    MetadataReadable,
    /// Replicas of so many tablets are being changed.
    RepairStarted(usize),
    /// None are any more; so many tablets still have too few.
    RepairFinished(usize),
}

/// How much an event matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// For the record.
    Info,
    /// Something was lost and the cluster goes on.
    Warn,
    /// Data cannot be read or written.
    Error,
}

impl Event {
    /// How much it matters.
    #[must_use]
    pub const fn severity(&self) -> Severity {
        match self {
            Self::QuorumLost(..) | Self::MetadataUnreadable(_) => Severity::Error,
            Self::ServerLost(..) | Self::ServerUnregistered(..) | Self::UnderReplicated(_) => Severity::Warn,
            _ => Severity::Info,
        }
    }

    /// Writes it into the log.
    pub fn log(&self) {
        match self {
            Self::ServerJoined(server, address) => info!(%server, address, "tablet server joined"),
            Self::ServerLost(server, address, standing) => {
                warn!(%server, address, cause = cause(*standing), "tablet server lost");
            }
            Self::ServerUnregistered(server, address) => {
                warn!(%server, address, "tablet server has no lease and still answers");
            }
            Self::ServerReturned(server, address) => info!(%server, address, "tablet server returned"),
            Self::UnderReplicated(ShortageView { tablets, worst }) => {
                warn!(tablets, live = worst.live, wanted = worst.wanted, "tablets are under-replicated");
            }
            Self::FullyReplicated => info!("all tablets are fully replicated"),
            Self::QuorumLost(tablets, first) => {
                error!(tablets, first = named(first), "tablets have no quorum and serve nothing until servers return");
            }
            Self::QuorumRestored => info!("all tablets have a quorum"),
            Self::MetadataUnreadable(cause) => error!(error = cause, "cannot read METADATA"),
            Self::MetadataReadable => info!("METADATA can be read again"),
            Self::RepairStarted(tablets) => info!(tablets, "repair of replicas started"),
            Self::RepairFinished(left) => info!(under_replicated = left, "repair of replicas finished"),
        }
    }
}

/// Tablets as a line of the log names them.
#[must_use]
pub fn named(tablets: &[TabletId]) -> String {
    let shown: Vec<String> = tablets.iter().take(NAMED_MAX).map(ToString::to_string).collect();
    let more = if tablets.len() > NAMED_MAX { ",…" } else { "" };
    format!("{}{more}", shown.join(","))
}

const fn cause(standing: Standing) -> &'static str {
    match standing {
        Standing::Silent => "no answer",
        _ => "lease expired and no answer",
    }
}

/// A new cluster has not started yet.
pub fn log_waiting(registered: usize, wanted: usize) {
    info!(registered, wanted, "waiting for tablet servers: the cluster starts when enough are registered");
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ServerJoined(server, address) => write!(f, "server-joined {server} {address}"),
            Self::ServerLost(server, address, standing) => {
                write!(f, "server-lost {server} {address}: {}", cause(*standing))
            }
            Self::ServerUnregistered(server, address) => write!(f, "server-unregistered {server} {address}"),
            Self::ServerReturned(server, address) => write!(f, "server-returned {server} {address}"),
            Self::UnderReplicated(ShortageView { tablets, worst }) => {
                write!(f, "under-replicated {tablets} have {} of {}", worst.live, worst.wanted)
            }
            Self::FullyReplicated => f.write_str("fully-replicated"),
            Self::QuorumLost(tablets, first) => write!(f, "quorum-lost {tablets}: {}", named(first)),
            Self::QuorumRestored => f.write_str("quorum-restored"),
            Self::MetadataUnreadable(cause) => write!(f, "metadata-unreadable: {cause}"),
            Self::MetadataReadable => f.write_str("metadata-readable"),
            Self::RepairStarted(tablets) => write!(f, "repair-started {tablets}"),
            Self::RepairFinished(left) => write!(f, "repair-finished, {left} under-replicated"),
        }
    }
}

/// What is different in `now`, causes before consequences.
#[must_use]
pub fn events(before: &View, now: &View) -> Vec<Event> {
    let mut events: Vec<Event> =
        now.servers.iter().filter_map(|(id, server)| of_server(before.servers.get(id), *id, server)).collect();
    match (&before.metadata, &now.metadata) {
        (None, Some(cause)) => events.push(Event::MetadataUnreadable(cause.clone())),
        (Some(_), None) => events.push(Event::MetadataReadable),
        _ => {}
    }
    if !now.without_quorum.is_subset(&before.without_quorum) {
        let lost: Vec<TabletId> = now.without_quorum.iter().copied().collect();
        events.push(Event::QuorumLost(lost.len(), lost.into_iter().take(NAMED_MAX + 1).collect()));
    } else if now.without_quorum.is_empty() && !before.without_quorum.is_empty() {
        events.push(Event::QuorumRestored);
    }
    match (before.shortage, now.shortage) {
        (before, Some(short)) if is_worse(before, short) => events.push(Event::UnderReplicated(short)),
        (Some(_), None) => events.push(Event::FullyReplicated),
        _ => {}
    }
    match (before.repairs, now.repairs) {
        (0, 0) => {}
        (0, tablets) => events.push(Event::RepairStarted(tablets)),
        (_, 0) => events.push(Event::RepairFinished(now.shortage.map_or(0, |short| short.tablets))),
        _ => {}
    }
    events
}

fn of_server(before: Option<&ServerView>, id: ServerId, server: &ServerView) -> Option<Event> {
    let address = server.address.clone();
    let was = before.map(|before| before.standing);
    match (was, server.standing) {
        (None, Standing::Up) => Some(Event::ServerJoined(id, address)),
        (Some(was), Standing::Up) => (was != Standing::Up).then_some(Event::ServerReturned(id, address)),
        (Some(was), Standing::Silent | Standing::Gone) if was.is_lost() => None,
        (_, lost @ (Standing::Silent | Standing::Gone)) => Some(Event::ServerLost(id, address, lost)),
        (Some(Standing::Unregistered), Standing::Unregistered) => None,
        (_, Standing::Unregistered) => Some(Event::ServerUnregistered(id, address)),
    }
}

/// Whether more tablets are short than before, or one is shorter.
fn is_worse(before: Option<ShortageView>, now: ShortageView) -> bool {
    before.is_none_or(|before| now.tablets > before.tablets || now.worst.live < before.worst.live)
}

/// What may get worse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Subject {
    Server(ServerId),
    Metadata,
    Quorum,
    Shortage,
    Repair,
}

/// What operators were told, and what they will be told if it lasts.
#[derive(Clone, Debug, Default)]
pub struct Alerts {
    told: Option<View>,
    /// Since when it has been worse than told.
    since: BTreeMap<Subject, Duration>,
}

impl Alerts {
    /// Takes a view that was had at `now`, as time since boot; what is to be told.
    pub fn follow(&mut self, seen: &View, now: Duration) -> Vec<Event> {
        let told = self.told.clone().unwrap_or_else(|| seen.untroubled());
        let settled = self.settle(&told, seen, now);
        let events = events(&told, &settled);
        self.told = Some(settled);
        events
    }

    /// How long until something has lasted; `None` when nothing is waited for.
    #[must_use]
    pub fn due(&self, now: Duration) -> Option<Duration> {
        self.since.values().map(|since| since.saturating_add(SETTLE).saturating_sub(now)).min()
    }

    /// What was told, with what is better now and with what has been worse for long enough.
    fn settle(&mut self, told: &View, seen: &View, now: Duration) -> View {
        let mut settled = View::default();
        let ids: BTreeSet<ServerId> = told.servers.keys().chain(seen.servers.keys()).copied().collect();
        self.since.retain(|subject, _since| !matches!(subject, Subject::Server(id) if !ids.contains(id)));
        for id in ids {
            if let Some(server) = self.settle_server(told.servers.get(&id), seen.servers.get(&id), id, now) {
                settled.servers.insert(id, server);
            }
        }
        let worse = told.metadata.is_none() && seen.metadata.is_some();
        settled.metadata = self.choose(Subject::Metadata, worse, now, &told.metadata, &seen.metadata);
        let worse = !seen.without_quorum.is_subset(&told.without_quorum);
        settled.without_quorum = self.choose(Subject::Quorum, worse, now, &told.without_quorum, &seen.without_quorum);
        let worse = seen.shortage.is_some_and(|short| is_worse(told.shortage, short));
        settled.shortage = self.choose(Subject::Shortage, worse, now, &told.shortage, &seen.shortage);
        // Between two repairs there may be a moment without one, as long as there is something to repair.
        let pauses = told.repairs > 0 && seen.repairs == 0 && seen.shortage.is_some();
        settled.repairs = self.choose(Subject::Repair, pauses, now, &told.repairs, &seen.repairs);
        settled
    }

    fn settle_server(
        &mut self,
        told: Option<&ServerView>,
        seen: Option<&ServerView>,
        id: ServerId,
        now: Duration,
    ) -> Option<ServerView> {
        let subject = Subject::Server(id);
        let Some(seen) = seen else {
            // Nothing is expected of it any more: lost until now, or stopped when it had no replicas.
            let told = told.filter(|told| !told.standing.is_lost())?;
            let gone = ServerView { standing: Standing::Gone, ..told.clone() };
            return Some(self.choose(subject, true, now, told, &gone));
        };
        let mut seen = seen.clone();
        if let Some(told) = told
            && seen.address.is_empty()
        {
            seen.address = told.address.clone();
        }
        let Some(told) = told else {
            return match seen.standing {
                Standing::Up => Some(seen),
                _ => self.choose(subject, true, now, &None, &Some(seen)),
            };
        };
        let is_worse = match seen.standing {
            Standing::Up => false,
            Standing::Silent | Standing::Gone => !told.standing.is_lost(),
            Standing::Unregistered => told.standing == Standing::Up,
        };
        Some(self.choose(subject, is_worse, now, told, &seen))
    }

    /// What was told, while what was seen is worse and has not lasted.
    fn choose<T: Clone>(&mut self, subject: Subject, is_worse: bool, now: Duration, told: &T, seen: &T) -> T {
        if !is_worse {
            self.since.remove(&subject);
            return seen.clone();
        }
        let since = *self.since.entry(subject).or_insert(now);
        if now.saturating_sub(since) < SETTLE {
            return told.clone();
        }
        self.since.remove(&subject);
        seen.clone()
    }
}

#[cfg(test)]
mod tests {
    //! The golden scripts of `testdata/events`: what is seen at which time, and what is told then.
    //!
    //! ```text
    //! at 0                                       seconds
    //! server 1 up | unregistered | silent | gone | forgotten
    //! short 24 2/3                               24 tablets, the worst has 2 of 3 replicas; `short none`
    //! quorum 5 6 7                               these tablets have none; `quorum all`: all have one
    //! metadata unreadable | readable
    //! repairs 4
    //! ---
    //! 12 warn server-lost …
    //! ```
    //!
    //! What is not mentioned is as it was before. Every `at` but the first closes a view.

    use std::fmt::Write as _;
    use std::path::Path;

    use super::*;

    fn standing(word: &str) -> Option<Standing> {
        match word {
            "up" => Some(Standing::Up),
            "unregistered" => Some(Standing::Unregistered),
            "silent" => Some(Standing::Silent),
            "gone" => Some(Standing::Gone),
            "forgotten" => None,
            other => panic!("unknown standing {other:?}"),
        }
    }

    fn shortage(words: &[&str]) -> Option<ShortageView> {
        let [tablets, of] = words else { return None };
        let (live, wanted) = of.split_once('/').unwrap();
        let worst = Shortage { live: live.parse().unwrap(), wanted: wanted.parse().unwrap() };
        Some(ShortageView { tablets: tablets.parse().unwrap(), worst })
    }

    fn change(view: &mut View, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["server", id, word] => {
                let number = ServerId::new(id.parse().unwrap());
                match standing(word) {
                    Some(standing) => {
                        _ = view.servers.insert(number, ServerView { address: format!("host-{id}:1"), standing });
                    }
                    None => _ = view.servers.remove(&number),
                }
            }
            ["short", rest @ ..] => view.shortage = shortage(rest),
            ["quorum", "all"] => view.without_quorum.clear(),
            ["quorum", ids @ ..] => {
                view.without_quorum = ids.iter().map(|id| TabletId::new(id.parse().unwrap())).collect();
            }
            ["metadata", word] => view.metadata = (*word == "unreadable").then(|| "no leader".to_owned()),
            ["repairs", count] => view.repairs = count.parse().unwrap(),
            _ => panic!("unknown line {line:?}"),
        }
    }

    fn run(case: &str) -> String {
        let script = case.split("---\n").next().unwrap();
        let (mut alerts, mut view, mut now) = (Alerts::default(), View::default(), None);
        let mut out = format!("{script}---\n");
        let mut tell = |view: &View, now: u64| {
            for event in alerts.follow(view, Duration::from_secs(now)) {
                let severity = format!("{:?}", event.severity()).to_lowercase();
                writeln!(out, "{now} {severity} {event}").unwrap();
            }
        };
        for line in script.lines().filter(|line| !line.starts_with('#')) {
            match line.strip_prefix("at ") {
                Some(time) => {
                    if let Some(before) = now.replace(time.parse().unwrap()) {
                        tell(&view, before);
                    }
                }
                None => change(&mut view, line),
            }
        }
        tell(&view, now.unwrap());
        out
    }

    #[test]
    fn golden_scripts() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/events/outages.txt");
        let script = std::fs::read_to_string(&file).unwrap();
        let cases: Vec<_> = script.trim_end().split("\n\n").map(|case| run(&format!("{case}\n"))).collect();
        let told = cases.join("\n");
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(&file, &told).unwrap();
        }
        assert_eq!(told, std::fs::read_to_string(&file).unwrap(), "{}", file.display());
    }

    #[test]
    fn what_has_not_lasted_is_looked_at_again_in_time() {
        let mut alerts = Alerts::default();
        let seconds = Duration::from_secs;
        let broken = View { metadata: Some("no leader".to_owned()), ..View::default() };
        assert!(alerts.follow(&broken, seconds(10)).is_empty());
        assert_eq!(alerts.due(seconds(11)), Some(seconds(1)));
        assert_eq!(alerts.follow(&broken, seconds(12)), [Event::MetadataUnreadable("no leader".to_owned())]);
        assert_eq!(alerts.due(seconds(12)), None);
    }

    #[test]
    fn few_tablets_are_named() {
        let tablets: Vec<_> = (1..=6).map(TabletId::new).collect();
        assert_eq!(named(&tablets), "1,2,3,4,5,…");
        assert_eq!(named(&tablets[..2]), "1,2");
    }
}
