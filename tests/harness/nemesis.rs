//! Faults as values: what is done to whom and for how long; a schedule drawn from a seed; a driver that carries it out on
//! any [`Cluster`] and notes when, so that stalls of a load can be laid at a fault's door.
//!
//! ```text
//!   Item x times  --schedule(seed)-->  Nemesis …  --Driver-->  Happened …  --blame(stalls)-->  a table by kind
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::time::Duration;

use ebla_model::time::Micros;
use ebla_runtime::{Clock, Rng, Runtime};

use crate::cluster::{Cluster, Direction, Node, Role};

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// SIGKILL; started again when the time is over.
    Kill,
    /// SIGTERM, an end in order; started again when the time is over.
    Stop,
    /// SIGSTOP; goes on when the time is over, unaware of it.
    Pause,
    /// Cut off from all other nodes.
    Cut(Direction),
}

/// To whom it is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Victim {
    /// One node.
    Node(Node),
    /// Whoever plays this role when it begins.
    Role(Role),
    /// These nodes, at once.
    Nodes(Vec<Node>),
    /// All members of etcd.
    Etcd,
    /// Every node, at once.
    Everything,
}

/// A fault with a beginning and an end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nemesis {
    /// What is done.
    pub fault: Fault,
    /// To whom.
    pub victim: Victim,
    /// For how long.
    pub lasts: Duration,
    /// Another one that begins at half time and ends before this one is lifted.
    pub within: Option<Box<Nemesis>>,
}

impl Nemesis {
    /// A fault alone.
    #[must_use]
    pub fn new(fault: Fault, victim: Victim, lasts: Duration) -> Self {
        Self { fault, victim, lasts, within: None }
    }

    /// The kind of fault that its stalls are counted under.
    #[must_use]
    pub fn kind(&self) -> String {
        let whom = match &self.victim {
            Victim::Node(Node::TabletServer(_)) => "a tablet server".to_owned(),
            Victim::Node(Node::Master(_)) => "a master".to_owned(),
            Victim::Node(Node::Etcd(_)) => "an etcd member".to_owned(),
            Victim::Node(Node::Mounttable(_)) => "a mounttable".to_owned(),
            Victim::Role(Role::MasterInOffice) => "the master in office".to_owned(),
            Victim::Role(Role::EtcdLeader) => "etcd's leader".to_owned(),
            Victim::Role(Role::BusiestTabletServer) => "the busiest tablet server".to_owned(),
            Victim::Nodes(nodes) => format!("{} nodes at once", nodes.len()),
            Victim::Etcd => "all of etcd".to_owned(),
            Victim::Everything => "everything at once".to_owned(),
        };
        let what = match self.fault {
            Fault::Kill => "kill".to_owned(),
            Fault::Stop => "stop in order".to_owned(),
            Fault::Pause => "pause".to_owned(),
            Fault::Cut(direction) => format!("cut {direction}"),
        };
        let within = self.within.as_ref().map(|inner| format!(", with {}", inner.kind())).unwrap_or_default();
        format!("{what}: {whom}{within}")
    }
}

impl fmt::Display for Nemesis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kind())?;
        match &self.victim {
            Victim::Node(node) => write!(f, " ({node})")?,
            Victim::Nodes(nodes) => {
                let names: Vec<_> = nodes.iter().map(Node::to_string).collect();
                write!(f, " ({})", names.join(", "))?;
            }
            _ => (),
        }
        write!(f, " for {:.1} s", self.lasts.as_secs_f64())
    }
}

/// One kind of fault in a schedule.
#[derive(Clone, Debug)]
pub struct Item {
    /// What is done.
    pub fault: Fault,
    /// Those it is done to, in turn.
    pub victims: Vec<Victim>,
    /// Each lasts between these two.
    pub lasts: (Duration, Duration),
    /// How often, in total.
    pub times: usize,
}

/// Every item as often as it says, its victims in turn, mixed and timed by `seed`: the same seed gives the same schedule.
#[must_use]
pub fn schedule(seed: u64, items: &[Item]) -> Vec<Nemesis> {
    let rng = Rng::seeded(seed);
    let mut left: Vec<_> = items.iter().map(|item| (item, item.victims.iter().cycle(), item.times)).collect();
    let mut drawn = Vec::new();
    loop {
        left.retain(|(item, _, times)| *times > 0 && !item.victims.is_empty());
        let total: usize = left.iter().map(|(_, _, times)| times).sum();
        // One draw among all that is left, so that a rare kind is as likely to come late as early.
        let mut at = rng.below(u64::try_from(total).unwrap_or(u64::MAX));
        let Some((item, victims, times)) = left.iter_mut().find(|(_, _, times)| {
            let times = u64::try_from(*times).unwrap_or(u64::MAX);
            let here = at < times;
            at = at.saturating_sub(times);
            here
        }) else {
            return drawn;
        };
        *times -= 1;
        let Some(victim) = victims.next() else { continue };
        drawn.push(Nemesis::new(item.fault, victim.clone(), between(&rng, item.lasts)));
    }
}

fn between(rng: &Rng, (least, most): (Duration, Duration)) -> Duration {
    let span = u64::try_from(most.saturating_sub(least).as_millis()).unwrap_or(u64::MAX);
    least + Duration::from_millis(rng.below(span.saturating_add(1)))
}

/// How often a kind of fault is asked for: the environment variable `name`, or else `usual`.
///
/// # Panics
/// When the variable is not a number: a long run must not turn into a short one by a slip.
#[must_use]
#[expect(clippy::panic, reason = "a test that was asked for something else must not pass")]
pub fn times(name: &str, usual: usize) -> usize {
    let Ok(text) = std::env::var(name) else { return usual };
    text.parse().unwrap_or_else(|error| panic!("{name}={text}: {error}"))
}

/// The seed of a schedule: `EBLA_CHAOS_SEED`, or else a fresh one.
#[must_use]
pub fn seed(runtime: &Runtime) -> u64 {
    u64::try_from(times("EBLA_CHAOS_SEED", 0))
        .ok()
        .filter(|seed| *seed > 0)
        .unwrap_or_else(|| runtime.rng.below(1 << 32))
}

/// The nodes that lead a load's tablets, by the tablet's number; more than one for a tablet that was split since.
pub type Leaders = BTreeMap<u32, BTreeSet<Node>>;

/// A fault that was carried out; times as the driver's clock tells them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Happened {
    /// [`Nemesis::kind`].
    pub kind: String,
    /// It was there.
    pub began: Duration,
    /// It was lifted.
    pub lifted: Duration,
    /// Everything served again.
    pub whole: Duration,
    /// The load's tablets that none of the victims led when it began, as far as that is known.
    pub bystanders: BTreeSet<u32>,
}

/// Carries faults out, one after the other.
pub struct Driver<'a, C> {
    cluster: &'a mut C,
    clock: Clock,
    happened: Vec<Happened>,
}

impl<'a, C: Cluster> Driver<'a, C> {
    /// A driver of `cluster`.
    pub fn new(cluster: &'a mut C, clock: Clock) -> Self {
        Self { cluster, clock, happened: Vec::new() }
    }

    /// Does it, lifts it, and returns when everything serves again.
    ///
    /// # Errors
    /// What the cluster says: a fault that cannot be made, or a cluster that does not come back in time.
    pub async fn carry_out(&mut self, nemesis: &Nemesis) -> io::Result<()> {
        self.carry_out_among(nemesis, &Leaders::new()).await
    }

    /// As [`Self::carry_out`], where it is known who leads what.
    ///
    /// # Errors
    /// As [`Self::carry_out`].
    pub async fn carry_out_among(&mut self, nemesis: &Nemesis, leaders: &Leaders) -> io::Result<()> {
        let victims = self.victims(&nemesis.victim).await?;
        let (began, lifted) = self.strike(nemesis, &victims).await?;
        self.cluster.whole().await.map_err(|error| after(nemesis, &error))?;
        let whole = self.clock.monotonic();
        let spared = leaders.iter().filter(|(_tablet, leaders)| victims.iter().all(|victim| !leaders.contains(victim)));
        let bystanders = spared.map(|(tablet, _leaders)| *tablet).collect();
        self.happened.push(Happened { kind: nemesis.kind(), began, lifted, whole, bystanders });
        Ok(())
    }

    /// What was carried out so far, and the end of the driving.
    #[must_use]
    pub fn finish(self) -> Vec<Happened> {
        self.happened
    }

    /// When it was there, and when it was lifted.
    async fn strike(&mut self, nemesis: &Nemesis, victims: &[Node]) -> io::Result<(Duration, Duration)> {
        let began = self.clock.monotonic();
        if nemesis.fault == Fault::Kill {
            self.cluster.kill_all(victims).await?;
        }
        for node in victims {
            match nemesis.fault {
                Fault::Kill => (),
                Fault::Stop => self.cluster.stop(*node).await?,
                Fault::Pause => self.cluster.pause(*node).await?,
                Fault::Cut(direction) => self.cluster.cut(*node, direction).await?,
            }
        }
        match &nemesis.within {
            None => tokio::time::sleep(nemesis.lasts).await,
            Some(inner) => {
                tokio::time::sleep(nemesis.lasts / 2).await;
                let inner_victims = self.victims(&inner.victim).await?;
                Box::pin(self.strike(inner, &inner_victims)).await?;
                // What is still struck cannot be asked; what was struck within must come back without it.
                self.cluster.ready(&inner_victims).await.map_err(|error| after(nemesis, &error))?;
                let over = began + nemesis.lasts;
                tokio::time::sleep(over.saturating_sub(self.clock.monotonic())).await;
            }
        }
        match nemesis.fault {
            Fault::Kill | Fault::Stop => {
                for node in victims {
                    self.cluster.restart(*node).await?;
                }
            }
            Fault::Pause => {
                for node in victims {
                    self.cluster.resume(*node).await?;
                }
            }
            Fault::Cut(_) => self.cluster.heal().await?,
        }
        Ok((began, self.clock.monotonic()))
    }

    async fn victims(&mut self, victim: &Victim) -> io::Result<Vec<Node>> {
        let all = self.cluster.nodes();
        Ok(match victim {
            Victim::Node(node) => vec![*node],
            Victim::Nodes(nodes) => nodes.clone(),
            Victim::Etcd => all.into_iter().filter(|node| matches!(node, Node::Etcd(_))).collect(),
            Victim::Everything => all,
            Victim::Role(role) => {
                let found = self.cluster.find(*role).await;
                vec![found.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("nobody is {role:?}")))?]
            }
        })
    }
}

fn after(nemesis: &Nemesis, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("after {nemesis}: {error}"))
}

/// A time without an answer that one part of a load saw; the same clock as the driver's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stall {
    /// The last answer before it.
    pub from: Duration,
    /// The first one after it.
    pub until: Duration,
    /// The tablet that did not answer, as the load numbers its own.
    pub tablet: u32,
}

/// Stalls as a load tells them, by the machine's clock since boot: the load began at `began`; each stall began so long after
/// that, lasted so long, and was of this tablet.
#[must_use]
pub fn since_boot(
    clock: &Clock,
    began: Micros,
    told: impl IntoIterator<Item = (Duration, Duration, u32)>,
) -> Vec<Stall> {
    let began = clock.monotonic().saturating_sub(clock.wall().since(began));
    let stall = |(at, lasted, tablet)| Stall { from: began + at, until: began + at + lasted, tablet };
    told.into_iter().map(stall).collect()
}

/// What a kind of fault cost.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// The longest time from its beginning until it was lifted.
    pub lasted: Duration,
    /// For each time that it happened, the longest stall that is laid at its door: zero when none is.
    pub stalls: Vec<Duration>,
    /// For each time that it happened, how many tablets stalled for long enough to be told.
    pub tablets: Vec<usize>,
    /// For each time that it happened beside tablets that the victims did not lead, the longest stall of those.
    pub bystanders: Vec<Duration>,
    /// The longest time from its lifting until everything served.
    pub recovery: Duration,
}

impl Cost {
    /// The longest stall.
    #[must_use]
    pub fn longest(&self) -> Duration {
        self.stalls.iter().copied().max().unwrap_or_default()
    }

    /// The stall that as many were shorter than as longer.
    #[must_use]
    pub fn median(&self) -> Duration {
        median(&self.stalls)
    }
}

fn median<T: Copy + Ord + Default>(values: &[T]) -> T {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}

/// Lays each stall at the door of the last fault that began before it ended, when it began before that was over.
/// What no fault explains stands under `none`.
#[must_use]
pub fn blame(happened: &[Happened], stalls: &[Stall]) -> BTreeMap<String, Cost> {
    let mut each = vec![Blame::default(); happened.len()];
    let mut costs: BTreeMap<String, Cost> = BTreeMap::new();
    for stall in stalls {
        let lasted = stall.until.saturating_sub(stall.from);
        let culprit =
            happened.iter().zip(&mut each).rfind(|(one, _)| one.began <= stall.until && stall.from <= one.whole);
        match culprit {
            Some((one, blame)) => {
                blame.longest = lasted.max(blame.longest);
                blame.tablets.insert(stall.tablet);
                if one.bystanders.contains(&stall.tablet) {
                    blame.bystander = lasted.max(blame.bystander);
                }
            }
            None => {
                let unexplained = costs.entry("none".to_owned()).or_default();
                unexplained.stalls.push(lasted);
                unexplained.tablets.push(1);
            }
        }
    }
    for (one, Blame { longest, tablets, bystander }) in happened.iter().zip(each) {
        let cost = costs.entry(one.kind.clone()).or_default();
        cost.stalls.push(longest);
        cost.tablets.push(tablets.len());
        if !one.bystanders.is_empty() {
            cost.bystanders.push(bystander);
        }
        cost.lasted = cost.lasted.max(one.lifted.saturating_sub(one.began));
        cost.recovery = cost.recovery.max(one.whole.saturating_sub(one.lifted));
    }
    costs
}

/// What is laid at the door of one fault.
#[derive(Clone, Debug, Default)]
struct Blame {
    longest: Duration,
    tablets: BTreeSet<u32>,
    /// The longest of tablets that should not have noticed.
    bystander: Duration,
}

/// The costs as a table that a document can take over.
#[must_use]
pub fn table(costs: &BTreeMap<String, Cost>) -> String {
    let mut text = String::from(
        "| fault | times | lasted, longest | writer's longest stall, median | of all | tablets that stalled, median \
         | stall of tablets led elsewhere, median | of all | all serves again after |\n\
         |---|---:|---:|---:|---:|---:|---:|---:|---:|\n",
    );
    let seconds = |time: Duration| format!("{:.1} s", time.as_secs_f64());
    for (kind, cost) in costs {
        let (times, tablets) = (cost.stalls.len(), median(&cost.tablets));
        let [lasted, median_stall, longest, recovery] =
            [cost.lasted, cost.median(), cost.longest(), cost.recovery].map(seconds);
        let elsewhere = match cost.bystanders.iter().max() {
            Some(longest) => format!("{} | {}", seconds(median(&cost.bystanders)), seconds(*longest)),
            None => "| ".to_owned(),
        };
        text.push_str(&format!(
            "| {kind} | {times} | {lasted} | {median_stall} | {longest} | {tablets} | {elsewhere} | {recovery} |\n"
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    fn items() -> Vec<Item> {
        let servers = (0..3).map(|n| Victim::Node(Node::TabletServer(n))).collect();
        let short = (Duration::from_millis(200), seconds(2));
        let long = (seconds(12), seconds(15));
        vec![
            Item { fault: Fault::Kill, victims: servers, lasts: short, times: 5 },
            Item { fault: Fault::Kill, victims: vec![Victim::Everything], lasts: short, times: 2 },
            Item { fault: Fault::Pause, victims: vec![Victim::Role(Role::MasterInOffice)], lasts: long, times: 1 },
            Item {
                fault: Fault::Cut(Direction::Out),
                victims: vec![Victim::Role(Role::BusiestTabletServer)],
                lasts: long,
                times: 1,
            },
        ]
    }

    /// The golden file is `testdata/nemesis/schedule.txt`; `UPDATE=1` rewrites it.
    #[test]
    fn a_seed_draws_its_schedule_again() {
        let mut text = String::new();
        for seed in [1, 2] {
            text.push_str(&format!("seed {seed}\n"));
            for nemesis in schedule(seed, &items()) {
                text.push_str(&format!("  {nemesis}\n"));
            }
        }
        let golden = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/nemesis/schedule.txt");
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(&golden, &text).unwrap();
        }
        assert_eq!(text, std::fs::read_to_string(&golden).unwrap(), "UPDATE=1 rewrites the golden file");
    }

    #[test]
    fn every_item_comes_as_often_as_it_says_and_its_victims_in_turn() {
        let drawn = schedule(7, &items());
        assert_eq!(drawn.len(), 9);
        let servers = drawn.iter().filter_map(|one| match one.victim {
            Victim::Node(Node::TabletServer(n)) => Some(n),
            _ => None,
        });
        assert_eq!(servers.collect::<Vec<_>>(), [0, 1, 2, 0, 1]);
    }

    #[test]
    fn a_stall_is_laid_at_the_door_of_the_fault_it_overlaps() {
        let at = |kind: &str, began, lifted, whole| Happened {
            kind: kind.to_owned(),
            began: seconds(began),
            lifted: seconds(lifted),
            whole: seconds(whole),
            bystanders: if kind == "kill" { BTreeSet::from([2, 3]) } else { BTreeSet::new() },
        };
        let happened = [at("kill", 10, 11, 14), at("pause", 20, 35, 36), at("kill", 50, 52, 53)];
        let stall = |from, until, tablet| Stall { from: seconds(from), until: seconds(until), tablet };
        let costs = blame(&happened, &[stall(9, 12, 1), stall(13, 15, 2), stall(21, 23, 1), stall(40, 41, 1)]);
        assert_eq!((costs["kill"].longest(), costs["kill"].recovery), (seconds(3), seconds(3)));
        assert_eq!(costs["kill"].stalls, [seconds(3), Duration::ZERO]);
        assert_eq!(costs["kill"].tablets, [2, 0]);
        assert_eq!(costs["kill"].bystanders, [seconds(2), Duration::ZERO], "of tablet 2");
        assert_eq!(costs["pause"].longest(), seconds(2));
        assert_eq!(costs["none"], Cost { stalls: vec![seconds(1)], tablets: vec![1], ..Cost::default() });
        assert!(table(&costs).contains("| kill | 2 | 2.0 s | 3.0 s | 3.0 s | 2 | 2.0 s | 2.0 s | 3.0 s |"));
        assert!(table(&costs).contains("| pause | 1 | 15.0 s | 2.0 s | 2.0 s | 1 | |  | 1.0 s |"));
    }
}
