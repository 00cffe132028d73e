//! What is mounted on a node: servers, each until its deadline, each with what it says of itself.
//!
//! A server whose deadline has come is as if it had never been mounted, whether or not anybody has removed it yet.

use std::time::Duration;

use ebla_model::Micros;
use serde::{Deserialize, Serialize};

use crate::address::ServerAddress;
use crate::error::{Error, Reason};
use crate::identity::UserId;

/// What a server is to those who resolve names through it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// Anything: what is below it, it says itself.
    #[default]
    Object,
    /// A mount table: resolution goes on there.
    MountTable,
    /// Nothing is below it.
    Leaf,
}

impl Target {
    /// What two answers say of a server. Of both, a mount table: what is a leaf to it, it says itself.
    pub const fn of(is_mount_table: bool, is_leaf: bool) -> Self {
        match (is_mount_table, is_leaf) {
            (true, _) => Self::MountTable,
            (false, true) => Self::Leaf,
            (false, false) => Self::Object,
        }
    }
}

/// Until when a server is mounted.
///
/// Exact to the millisecond, because storage keeps deadlines as the timestamps of cells.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Deadline(Micros);

/// The first millisecond of the year 9999: no deadline at all.
const FOREVER: Micros = Micros::new(253_370_764_800_000_000);

impl Deadline {
    /// No deadline.
    pub const FOREVER: Self = Self(FOREVER);

    /// `ttl` after `now`, down to the millisecond; a `ttl` of zero is for ever, and so is one that reaches beyond the
    /// year 9999.
    pub fn after(now: Micros, ttl: Duration) -> Self {
        if ttl.is_zero() { Self::FOREVER } else { Self::at(now.plus(ttl).truncate_to_millis()) }
    }

    /// The deadline that storage keeps as `at`.
    pub fn at(at: Micros) -> Self {
        Self(at.min(FOREVER))
    }

    /// The time as storage keeps it.
    pub fn as_micros(self) -> Micros {
        self.0
    }

    /// Whether it has come.
    pub fn is_over(self, now: Micros) -> bool {
        self != Self::FOREVER && self.0 <= now
    }
}

/// A server mounted on a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MountedServer {
    /// Where it is, and which object in there.
    pub address: ServerAddress,
    /// What it is.
    pub target: Target,
    /// Until when.
    pub deadline: Deadline,
    /// For how long it was mounted or refreshed the last time; zero is for ever, or not known.
    pub ttl: Duration,
    /// Who is charged for it.
    pub mounter: UserId,
}

/// Whether a mount adds to what is there or takes its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MountMode {
    /// The others stay.
    Add,
    /// The others go.
    Replace,
}

/// Servers of `servers` whose deadline has not come.
pub fn live(servers: &[MountedServer], now: Micros) -> impl Iterator<Item = &MountedServer> {
    servers.iter().filter(move |server| !server.deadline.is_over(now))
}

/// Checks that a server that is a `target` can be mounted beside those of `servers` that are live.
///
/// Those who resolve through a node take any of its servers, so all must be of one sort. A server that is live and
/// changes its own sort conflicts with itself: it has to replace.
///
/// # Errors
/// `FLAGS_CONFLICT`.
pub fn check_target(
    servers: &[MountedServer],
    address: &ServerAddress,
    target: Target,
    mode: MountMode,
    now: Micros,
) -> Result<(), Error> {
    let other = live(servers, now).find(|server| server.target != target);
    match other.filter(|_| mode == MountMode::Add) {
        Some(other) => Err(Error::new(
            Reason::FlagsConflict,
            format!("{address} is to be mounted as {target:?} beside {}, which is {:?}", other.address, other.target),
        )),
        None => Ok(()),
    }
}
