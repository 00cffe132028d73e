//! Fault injection: faults as values, schedules drawn from a seed, a driver that injects them into any [`Cluster`] and records
//! the times, and the attribution of a load's stalls to faults.
//!
//! ```text
//!   ScheduleItem x times  --schedule(seed)-->  Nemesis …  --Driver-->  FaultRecord …  --attribute_stalls(stalls)-->  a table by kind
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::time::Duration;

use ebla_model::time::Micros;
use ebla_runtime::{Clock, Rng, Runtime};

use crate::cluster::{Cluster, Direction, Node, Role};

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// SIGKILL; started again when the time is over.
    Kill,
    /// SIGTERM, a graceful stop; started again when the time is over.
    Stop,
    /// SIGSTOP; resumed when the time is over.
    Pause,
    /// Partitioned from all other nodes.
    Partition(Direction),
}

/// The nodes that a fault affects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// One node.
    Node(Node),
    /// The node that has this role when the fault begins.
    Role(Role),
    /// These nodes, simultaneously.
    Nodes(Vec<Node>),
    /// All members of etcd.
    Etcd,
    /// Every node, simultaneously.
    Everything,
}

/// A fault with a beginning and an end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nemesis {
    /// A kind of fault.
    pub fault: Fault,
    /// The affected nodes.
    pub target: Target,
    /// Its duration.
    pub lasts: Duration,
    /// Another fault that begins at half of the duration and ends before this one.
    pub within: Option<Box<Nemesis>>,
}

impl Nemesis {
    /// A fault alone.
    #[must_use]
    pub fn new(fault: Fault, target: Target, lasts: Duration) -> Self {
        Self { fault, target, lasts, within: None }
    }

    /// The kind of fault that its stalls are counted under.
    #[must_use]
    pub fn kind(&self) -> String {
        let whom = match &self.target {
            Target::Node(Node::TabletServer(_)) => "a tablet server".to_owned(),
            Target::Node(Node::Master(_)) => "a master".to_owned(),
            Target::Node(Node::Etcd(_)) => "an etcd member".to_owned(),
            Target::Node(Node::Mounttable(_)) => "a mounttable".to_owned(),
            Target::Role(Role::ActiveMaster) => "the active master".to_owned(),
            Target::Role(Role::EtcdLeader) => "etcd's leader".to_owned(),
            Target::Role(Role::BusiestTabletServer) => "the busiest tablet server".to_owned(),
            Target::Nodes(nodes) => format!("{} nodes at once", nodes.len()),
            Target::Etcd => "all of etcd".to_owned(),
            Target::Everything => "everything at once".to_owned(),
        };
        let what = match self.fault {
            Fault::Kill => "kill".to_owned(),
            Fault::Stop => "graceful stop".to_owned(),
            Fault::Pause => "pause".to_owned(),
            Fault::Partition(direction) => format!("partition {direction}"),
        };
        let within = self.within.as_ref().map(|inner| format!(", with {}", inner.kind())).unwrap_or_default();
        format!("{what}: {whom}{within}")
    }
}

impl fmt::Display for Nemesis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kind())?;
        match &self.target {
            Target::Node(node) => write!(f, " ({node})")?,
            Target::Nodes(nodes) => {
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
pub struct ScheduleItem {
    /// A kind of fault.
    pub fault: Fault,
    /// The targets, in turn.
    pub targets: Vec<Target>,
    /// Minimum and maximum duration.
    pub lasts: (Duration, Duration),
    /// Total number of faults.
    pub times: usize,
}

/// All items with their number of faults, targets in turn, in random order and with random durations from `seed`: the same seed
/// gives the same schedule.
#[must_use]
pub fn schedule(seed: u64, items: &[ScheduleItem]) -> Vec<Nemesis> {
    let rng = Rng::seeded(seed);
    let mut left: Vec<_> = items.iter().map(|item| (item, item.targets.iter().cycle(), item.times)).collect();
    let mut drawn = Vec::new();
    loop {
        left.retain(|(item, _, times)| *times > 0 && !item.targets.is_empty());
        let total: usize = left.iter().map(|(_, _, times)| times).sum();
        // One draw among all remaining faults, so that the position of a rare kind is uniform.
        let mut at = rng.below(u64::try_from(total).unwrap_or(u64::MAX));
        let Some((item, targets, times)) = left.iter_mut().find(|(_, _, times)| {
            let times = u64::try_from(*times).unwrap_or(u64::MAX);
            let here = at < times;
            at = at.saturating_sub(times);
            here
        }) else {
            return drawn;
        };
        *times -= 1;
        let Some(target) = targets.next() else { continue };
        drawn.push(Nemesis::new(item.fault, target.clone(), between(&rng, item.lasts)));
    }
}

fn between(rng: &Rng, (least, most): (Duration, Duration)) -> Duration {
    let span = u64::try_from(most.saturating_sub(least).as_millis()).unwrap_or(u64::MAX);
    least + Duration::from_millis(rng.below(span.saturating_add(1)))
}

/// The number of faults of a kind: the environment variable `name`, or `usual`.
///
/// # Panics
/// When the variable is not a number, because a typing error must not turn a long run into a short one.
#[must_use]
#[expect(clippy::panic, reason = "a test with a wrong parameter must not pass")]
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

/// A fault that was injected; times are from the driver's clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultRecord {
    /// [`Nemesis::kind`].
    pub kind: String,
    /// Start of the fault.
    pub began: Duration,
    /// End of the fault.
    pub lifted: Duration,
    /// When the cluster was healthy again.
    pub whole: Duration,
    /// The load's tablets of which no target was the leader when the fault began, as far as leaders are known.
    pub unaffected: BTreeSet<u32>,
}

/// Injects faults, one after the other.
pub struct Driver<'a, C> {
    cluster: &'a mut C,
    clock: Clock,
    records: Vec<FaultRecord>,
}

impl<'a, C: Cluster> Driver<'a, C> {
    /// A driver of `cluster`.
    pub fn new(cluster: &'a mut C, clock: Clock) -> Self {
        Self { cluster, clock, records: Vec::new() }
    }

    /// Injects a fault, ends it, and returns when the cluster is healthy again.
    ///
    /// # Errors
    /// An error of the cluster: the fault cannot be injected, or the cluster is not healthy in time.
    pub async fn inject(&mut self, nemesis: &Nemesis) -> io::Result<()> {
        self.inject_with_leaders(nemesis, &Leaders::new()).await
    }

    /// Like [`Self::inject`], with known leaders.
    ///
    /// # Errors
    /// As [`Self::inject`].
    pub async fn inject_with_leaders(&mut self, nemesis: &Nemesis, leaders: &Leaders) -> io::Result<()> {
        let targets = self.targets(&nemesis.target).await?;
        let (began, lifted) = self.apply(nemesis, &targets).await?;
        self.cluster.wait_healthy().await.map_err(|error| after(nemesis, &error))?;
        let whole = self.clock.monotonic();
        let spared = leaders.iter().filter(|(_tablet, leaders)| targets.iter().all(|target| !leaders.contains(target)));
        let unaffected = spared.map(|(tablet, _leaders)| *tablet).collect();
        self.records.push(FaultRecord { kind: nemesis.kind(), began, lifted, whole, unaffected });
        Ok(())
    }

    /// The injected faults.
    #[must_use]
    pub fn finish(self) -> Vec<FaultRecord> {
        self.records
    }

    /// Injects and ends a fault; returns the times.
    async fn apply(&mut self, nemesis: &Nemesis, targets: &[Node]) -> io::Result<(Duration, Duration)> {
        let began = self.clock.monotonic();
        if nemesis.fault == Fault::Kill {
            self.cluster.kill_all(targets).await?;
        }
        for node in targets {
            match nemesis.fault {
                Fault::Kill => (),
                Fault::Stop => self.cluster.stop(*node).await?,
                Fault::Pause => self.cluster.pause(*node).await?,
                Fault::Partition(direction) => self.cluster.partition(*node, direction).await?,
            }
        }
        match &nemesis.within {
            None => tokio::time::sleep(nemesis.lasts).await,
            Some(inner) => {
                tokio::time::sleep(nemesis.lasts / 2).await;
                let inner_targets = self.targets(&inner.target).await?;
                Box::pin(self.apply(inner, &inner_targets)).await?;
                // The targets of the outer fault are still unavailable; those of the inner one must recover without them.
                self.cluster.wait_ready(&inner_targets).await.map_err(|error| after(nemesis, &error))?;
                let over = began + nemesis.lasts;
                tokio::time::sleep(over.saturating_sub(self.clock.monotonic())).await;
            }
        }
        match nemesis.fault {
            Fault::Kill | Fault::Stop => {
                for node in targets {
                    self.cluster.restart(*node).await?;
                }
            }
            Fault::Pause => {
                for node in targets {
                    self.cluster.resume(*node).await?;
                }
            }
            Fault::Partition(_) => self.cluster.heal().await?,
        }
        Ok((began, self.clock.monotonic()))
    }

    async fn targets(&mut self, target: &Target) -> io::Result<Vec<Node>> {
        let all = self.cluster.nodes();
        Ok(match target {
            Target::Node(node) => vec![*node],
            Target::Nodes(nodes) => nodes.clone(),
            Target::Etcd => all.into_iter().filter(|node| matches!(node, Node::Etcd(_))).collect(),
            Target::Everything => all,
            Target::Role(role) => {
                let found = self.cluster.find(*role).await;
                vec![
                    found.ok_or_else(|| {
                        io::Error::new(io::ErrorKind::NotFound, format!("no node has the role {role:?}"))
                    })?,
                ]
            }
        })
    }
}

fn after(nemesis: &Nemesis, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("after {nemesis}: {error}"))
}

/// A time without responses for a tablet of the load; the same clock as the driver's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stall {
    /// The last response before it.
    pub from: Duration,
    /// The first response after it.
    pub until: Duration,
    /// The tablet, as numbered by the load.
    pub tablet: u32,
}

/// Converts stalls of a load to the machine's clock since boot. The load began at `began`; `stalls` has the start of each stall
/// relative to that, its duration, and its tablet.
#[must_use]
pub fn since_boot(
    clock: &Clock,
    began: Micros,
    stalls: impl IntoIterator<Item = (Duration, Duration, u32)>,
) -> Vec<Stall> {
    let began = clock.monotonic().saturating_sub(clock.wall().since(began));
    let stall = |(at, lasted, tablet)| Stall { from: began + at, until: began + at + lasted, tablet };
    stalls.into_iter().map(stall).collect()
}

/// The impact of a kind of fault.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// The longest duration.
    pub lasted: Duration,
    /// For each fault, the longest stall attributed to it; zero when there is none.
    pub stalls: Vec<Duration>,
    /// For each fault, the number of stalled tablets.
    pub tablets: Vec<usize>,
    /// For each fault with unaffected tablets, the longest stall of those.
    pub unaffected: Vec<Duration>,
    /// The longest time from its end until the cluster was healthy.
    pub recovery: Duration,
}

impl Cost {
    /// The longest stall.
    #[must_use]
    pub fn longest(&self) -> Duration {
        self.stalls.iter().copied().max().unwrap_or_default()
    }

    /// The median stall.
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

/// Attributes each stall to the last fault that overlaps it, including its recovery. Unexplained stalls have the kind `none`.
#[must_use]
pub fn attribute_stalls(records: &[FaultRecord], stalls: &[Stall]) -> BTreeMap<String, Cost> {
    let mut each = vec![Attribution::default(); records.len()];
    let mut costs: BTreeMap<String, Cost> = BTreeMap::new();
    for stall in stalls {
        let lasted = stall.until.saturating_sub(stall.from);
        let cause = records.iter().zip(&mut each).rfind(|(one, _)| one.began <= stall.until && stall.from <= one.whole);
        match cause {
            Some((one, blame)) => {
                blame.longest = lasted.max(blame.longest);
                blame.tablets.insert(stall.tablet);
                if one.unaffected.contains(&stall.tablet) {
                    blame.unaffected_longest = lasted.max(blame.unaffected_longest);
                }
            }
            None => {
                let unexplained = costs.entry("none".to_owned()).or_default();
                unexplained.stalls.push(lasted);
                unexplained.tablets.push(1);
            }
        }
    }
    for (one, Attribution { longest, tablets, unaffected_longest }) in records.iter().zip(each) {
        let cost = costs.entry(one.kind.clone()).or_default();
        cost.stalls.push(longest);
        cost.tablets.push(tablets.len());
        if !one.unaffected.is_empty() {
            cost.unaffected.push(unaffected_longest);
        }
        cost.lasted = cost.lasted.max(one.lifted.saturating_sub(one.began));
        cost.recovery = cost.recovery.max(one.whole.saturating_sub(one.lifted));
    }
    costs
}

/// Stalls attributed to one fault.
#[derive(Clone, Debug, Default)]
struct Attribution {
    longest: Duration,
    tablets: BTreeSet<u32>,
    /// The longest stall of unaffected tablets.
    unaffected_longest: Duration,
}

/// The costs as a Markdown table.
#[must_use]
pub fn table(costs: &BTreeMap<String, Cost>) -> String {
    let mut text = String::from(
        "| fault | times | lasted, longest | writer's longest stall, median | of all | tablets that stalled, median \
         | stall of tablets led elsewhere, median | of all | healthy again after |\n\
         |---|---:|---:|---:|---:|---:|---:|---:|---:|\n",
    );
    let seconds = |time: Duration| format!("{:.1} s", time.as_secs_f64());
    for (kind, cost) in costs {
        let (times, tablets) = (cost.stalls.len(), median(&cost.tablets));
        let [lasted, median_stall, longest, recovery] =
            [cost.lasted, cost.median(), cost.longest(), cost.recovery].map(seconds);
        let elsewhere = match cost.unaffected.iter().max() {
            Some(longest) => format!("{} | {}", seconds(median(&cost.unaffected)), seconds(*longest)),
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

    fn items() -> Vec<ScheduleItem> {
        let servers = (0..3).map(|n| Target::Node(Node::TabletServer(n))).collect();
        let short = (Duration::from_millis(200), seconds(2));
        let long = (seconds(12), seconds(15));
        vec![
            ScheduleItem { fault: Fault::Kill, targets: servers, lasts: short, times: 5 },
            ScheduleItem { fault: Fault::Kill, targets: vec![Target::Everything], lasts: short, times: 2 },
            ScheduleItem {
                fault: Fault::Pause,
                targets: vec![Target::Role(Role::ActiveMaster)],
                lasts: long,
                times: 1,
            },
            ScheduleItem {
                fault: Fault::Partition(Direction::Out),
                targets: vec![Target::Role(Role::BusiestTabletServer)],
                lasts: long,
                times: 1,
            },
        ]
    }

    /// The golden file is `testdata/nemesis/schedule.txt`; `UPDATE=1` rewrites it.
    #[test]
    fn a_seed_determines_the_schedule() {
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
    fn every_item_has_its_number_of_faults_with_targets_in_turn() {
        let drawn = schedule(7, &items());
        assert_eq!(drawn.len(), 9);
        let servers = drawn.iter().filter_map(|one| match one.target {
            Target::Node(Node::TabletServer(n)) => Some(n),
            _ => None,
        });
        assert_eq!(servers.collect::<Vec<_>>(), [0, 1, 2, 0, 1]);
    }

    #[test]
    fn a_stall_is_attributed_to_the_fault_it_overlaps() {
        let at = |kind: &str, began, lifted, whole| FaultRecord {
            kind: kind.to_owned(),
            began: seconds(began),
            lifted: seconds(lifted),
            whole: seconds(whole),
            unaffected: if kind == "kill" { BTreeSet::from([2, 3]) } else { BTreeSet::new() },
        };
        let records = [at("kill", 10, 11, 14), at("pause", 20, 35, 36), at("kill", 50, 52, 53)];
        let stall = |from, until, tablet| Stall { from: seconds(from), until: seconds(until), tablet };
        let costs =
            attribute_stalls(&records, &[stall(9, 12, 1), stall(13, 15, 2), stall(21, 23, 1), stall(40, 41, 1)]);
        assert_eq!((costs["kill"].longest(), costs["kill"].recovery), (seconds(3), seconds(3)));
        assert_eq!(costs["kill"].stalls, [seconds(3), Duration::ZERO]);
        assert_eq!(costs["kill"].tablets, [2, 0]);
        assert_eq!(costs["kill"].unaffected, [seconds(2), Duration::ZERO], "of tablet 2");
        assert_eq!(costs["pause"].longest(), seconds(2));
        assert_eq!(costs["none"], Cost { stalls: vec![seconds(1)], tablets: vec![1], ..Cost::default() });
        assert!(table(&costs).contains("| kill | 2 | 2.0 s | 3.0 s | 3.0 s | 2 | 2.0 s | 2.0 s | 3.0 s |"));
        assert!(table(&costs).contains("| pause | 1 | 15.0 s | 2.0 s | 2.0 s | 1 | |  | 1.0 s |"));
    }
}
