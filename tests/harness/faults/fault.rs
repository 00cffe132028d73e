//! The vocabulary of faults: what fails, where, and for how long.

use std::fmt;
use std::time::Duration;

use crate::cluster::{Direction, Node, Role};
use crate::faults::view::View;

/// A kind of fault. Each kind of cluster supports some of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// SIGKILL; started again when the time is over.
    Kill,
    /// SIGTERM, a graceful stop; started again when the time is over.
    Stop,
    /// The host loses its power, and the disk what was not synced; started again when the time is over.
    PowerFailure,
    /// The disk loses its power in the middle of an operation, after this number of operations; it has no duration.
    DiskFailure {
        /// Operations until then.
        operations: u64,
    },
    /// A sync of the commit log fails, after this number of operations, and its data never reaches the disk; it has no duration.
    SyncFailure {
        /// Operations until then.
        operations: u64,
    },
    /// Writes of stores fail with an input/output error.
    StoreFailure,
    /// SIGSTOP; resumed when the time is over.
    Pause,
    /// A node is partitioned from all other nodes, or a link is cut. Of a link the direction is seen from its first node.
    Partition(Direction),
    /// Messages wait in both directions, and arrive when the time is over.
    Hold,
    /// Each message takes this time.
    Slow(Duration),
    /// The wall clock is off by this time from now on; it has no duration.
    ClockStep {
        /// Ahead; behind if negative.
        micros: i64,
    },
    /// The clocks of a node run faster than time by this, in millionths, or slower if negative, from now on; it has no duration.
    ClockRate {
        /// Faster; slower if negative.
        ppm: i32,
    },
    /// A node stands still with its clocks, like a machine that is suspended. Its messages wait. Afterwards the time since boot has counted
    /// the time.
    Suspend(WallClock, Leases),
    /// The node does not reach the lock service.
    NoLockService(Leases),
    /// The lock service has no space: it refuses the node's writes and new leases.
    FullLockService,
    /// The disk of the node has little or no free space.
    FullDisk(SpaceLeft),
    /// Bytes of a file of the node change on its disk; it has no duration.
    Rot(RottenFile),
    /// A sync of the node's commit log takes about this time.
    SlowDisk(Duration),
}

/// The free space of a disk that is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpaceLeft {
    /// Less than a server's reserve.
    BelowReserve,
    /// Less than half of it.
    BelowHalf,
    /// None for stores; the commit log has the space that it needs.
    OnlyForLog,
    /// None at all.
    Nothing,
}

/// The file whose bytes change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RottenFile {
    /// A segment of the commit log.
    Log,
    /// The last segment of the commit log.
    LogTail,
    /// A table of a store.
    Table,
    /// The registry of the data folder.
    Registry,
}

/// The wall clock of a suspended machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WallClock {
    /// It shows the right time afterwards.
    GoesOn,
    /// It shows a time as if none had passed.
    Stops,
}

/// Leases of a node that does not reach the lock service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leases {
    /// They endure.
    Endure,
    /// They expire.
    Expire,
}

/// The part of a node or link that a fault affects. A part has at most one fault at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Process,
    Messages,
    Latency,
    Clock,
    LockService,
    Disk,
    Syncs,
}

impl FaultKind {
    pub(super) fn part(self) -> Part {
        match self {
            Self::Kill | Self::Stop | Self::PowerFailure | Self::Pause => Part::Process,
            Self::DiskFailure { .. } | Self::SyncFailure { .. } => Part::Process,
            Self::Partition(_) | Self::Hold | Self::Suspend(..) => Part::Messages,
            Self::Slow(_) => Part::Latency,
            Self::ClockStep { .. } | Self::ClockRate { .. } => Part::Clock,
            Self::NoLockService(_) | Self::FullLockService => Part::LockService,
            Self::FullDisk(_) | Self::Rot(_) | Self::StoreFailure => Part::Disk,
            Self::SlowDisk(_) => Part::Syncs,
        }
    }

    /// Whether the fault lasts until it is lifted.
    pub(super) fn is_lasting(self) -> bool {
        let is_of_disk = matches!(self, Self::DiskFailure { .. } | Self::SyncFailure { .. } | Self::Rot(_));
        !is_of_disk && !matches!(self, Self::ClockStep { .. } | Self::ClockRate { .. })
    }

    /// Whether the node's process does not run.
    pub(super) fn is_down(self) -> bool {
        matches!(self, Self::Kill | Self::Stop | Self::PowerFailure)
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kill => f.write_str("kill"),
            Self::Stop => f.write_str("graceful stop"),
            Self::PowerFailure => f.write_str("power failure"),
            Self::DiskFailure { operations } => write!(f, "power failure of the disk after {operations} operations"),
            Self::SyncFailure { operations } => write!(f, "failure of a sync after {operations} operations"),
            Self::StoreFailure => f.write_str("failure of the stores' writes"),
            Self::Pause => f.write_str("pause"),
            Self::Partition(direction) => write!(f, "partition {direction}"),
            Self::Hold => f.write_str("hold"),
            Self::Slow(latency) => write!(f, "latency of {} ms", latency.as_millis()),
            Self::ClockStep { micros } => write!(f, "clock step to {micros} us"),
            Self::ClockRate { ppm } => write!(f, "clock rate off by {ppm} ppm"),
            Self::Suspend(WallClock::GoesOn, _) => f.write_str("suspension"),
            Self::Suspend(WallClock::Stops, _) => f.write_str("suspension, the wall clock stops"),
            Self::NoLockService(Leases::Endure) => f.write_str("no lock service"),
            Self::NoLockService(Leases::Expire) => f.write_str("no lock service, leases expire"),
            Self::FullLockService => f.write_str("full lock service"),
            Self::FullDisk(SpaceLeft::BelowReserve) => f.write_str("full disk, some of the reserve is left"),
            Self::FullDisk(SpaceLeft::BelowHalf) => f.write_str("full disk, less than half of the reserve is left"),
            Self::FullDisk(SpaceLeft::OnlyForLog) => f.write_str("full disk, only the commit log has space"),
            Self::FullDisk(SpaceLeft::Nothing) => f.write_str("full disk, nothing is left"),
            Self::Rot(RottenFile::Log) => f.write_str("rot of the commit log"),
            Self::Rot(RottenFile::LogTail) => f.write_str("rot of the end of the commit log"),
            Self::Rot(RottenFile::Table) => f.write_str("rot of a table"),
            Self::Rot(RottenFile::Registry) => f.write_str("rot of the registry"),
            Self::SlowDisk(sync) => write!(f, "slow disk, a sync takes {} ms", sync.as_millis()),
        }
    }
}

/// Where a fault is injected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// One node.
    Node(Node),
    /// The messages between two nodes.
    Link(Node, Node),
}

impl Place {
    /// Whether the places have a link or a node in common.
    pub(super) fn overlaps(self, other: Self) -> bool {
        match (self, other) {
            (Self::Node(one), Self::Node(other)) => one == other,
            (Self::Link(a, b), Self::Link(c, d)) => (a, b) == (c, d) || (a, b) == (d, c),
            (Self::Node(node), Self::Link(a, b)) | (Self::Link(a, b), Self::Node(node)) => node == a || node == b,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(node) => write!(f, "{node}"),
            Self::Link(a, b) => write!(f, "{a} to {b}"),
        }
    }
}

/// What a shell must do to the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The fault begins here.
    Inject(FaultKind, Place),
    /// The fault ends here.
    Lift(FaultKind, Place),
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Inject(kind, place) => write!(f, "inject {kind}: {place}"),
            Self::Lift(kind, place) => write!(f, "lift {kind}: {place}"),
        }
    }
}

/// The nodes or links that a fault affects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// One node.
    Node(Node),
    /// The node that has this role when the fault begins.
    Role(Role),
    /// These nodes, simultaneously.
    Nodes(Vec<Node>),
    /// The messages between these pairs of nodes.
    Links(Vec<(Node, Node)>),
    /// All members of etcd.
    Etcd,
    /// Every node, simultaneously.
    Everything,
}

impl Target {
    /// The places when the fault begins. A role that no node has yields none.
    pub(super) fn places(&self, view: &View) -> Vec<Place> {
        let nodes = |nodes: &[Node]| nodes.iter().copied().map(Place::Node).collect::<Vec<_>>();
        match self {
            Self::Node(node) => vec![Place::Node(*node)],
            Self::Role(role) => view.roles.get(role).copied().map(Place::Node).into_iter().collect(),
            Self::Nodes(these) => nodes(these),
            Self::Links(links) => links.iter().filter(|(a, b)| a != b).map(|(a, b)| Place::Link(*a, *b)).collect(),
            Self::Etcd => nodes(&view.etcd()),
            Self::Everything => nodes(&view.nodes),
        }
    }
}

/// A fault with a beginning and an end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Its kind.
    pub kind: FaultKind,
    /// The affected nodes or links.
    pub target: Target,
    /// Its duration.
    pub lasts: Duration,
    /// Another fault that begins at half of the duration and ends before this one.
    pub within: Option<Box<Self>>,
}

impl Fault {
    /// A fault alone.
    #[must_use]
    pub fn new(kind: FaultKind, target: Target, lasts: Duration) -> Self {
        Self { kind, target, lasts, within: None }
    }

    /// The name that its stalls are counted under.
    #[must_use]
    pub fn name(&self) -> String {
        let target = match &self.target {
            Target::Node(Node::TabletServer(_)) => "a tablet server".to_owned(),
            Target::Node(Node::Master(_)) => "a master".to_owned(),
            Target::Node(Node::Etcd(_)) => "an etcd member".to_owned(),
            Target::Node(Node::Mounttable(_)) => "a mounttable".to_owned(),
            Target::Role(Role::ActiveMaster) => "the active master".to_owned(),
            Target::Role(Role::EtcdLeader) => "etcd's leader".to_owned(),
            Target::Role(Role::BusiestTabletServer) => "the busiest tablet server".to_owned(),
            Target::Nodes(nodes) => format!("{} nodes at once", nodes.len()),
            Target::Links(links) => format!("{} links", links.len()),
            Target::Etcd => "all of etcd".to_owned(),
            Target::Everything => "everything at once".to_owned(),
        };
        let within = self.within.as_ref().map(|inner| format!(", with {}", inner.name())).unwrap_or_default();
        format!("{}: {target}{within}", self.kind)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name())?;
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
