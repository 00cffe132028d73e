//! Mounted servers: each has a deadline and a kind.
//!
//! A server whose deadline has passed is treated as not mounted, whether or not its cell is removed yet.

use std::time::Duration;

use ebla_model::Micros;
use serde::{Deserialize, Serialize};

use crate::address::ServerAddress;
use crate::error::{Error, Reason};
use crate::identity::UserId;

/// The kind of a server, for clients that resolve names through it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// Unspecified: the server itself knows its names.
    #[default]
    Object,
    /// A mount table: resolution continues there.
    MountTable,
    /// A leaf: there are no names below it.
    Leaf,
}

/// The kind of a server as messages and commands give it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TargetFlags {
    /// It is a mount table.
    pub serves_mount_table: bool,
    /// It is a leaf.
    pub is_leaf: bool,
}

/// When both flags are set, it is a mount table.
impl From<TargetFlags> for Target {
    fn from(flags: TargetFlags) -> Self {
        match flags {
            TargetFlags { serves_mount_table: true, .. } => Self::MountTable,
            TargetFlags { is_leaf: true, .. } => Self::Leaf,
            TargetFlags { .. } => Self::Object,
        }
    }
}

/// The deadline of a mount.
///
/// Exact to the millisecond, because it is stored as the timestamp of a cell.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Deadline(Micros);

/// The first millisecond of the year 9999, which means no deadline.
const FOREVER: Micros = Micros::new(253_370_764_800_000_000);

impl Deadline {
    /// No deadline.
    pub const FOREVER: Self = Self(FOREVER);

    /// The time `ttl` after `now`, rounded down to the millisecond; no deadline if `ttl` is zero, or if the result is
    /// after the year 9999.
    pub fn after(now: Micros, ttl: Duration) -> Self {
        if ttl.is_zero() { Self::FOREVER } else { Self::at(now.plus(ttl).truncate_to_millis()) }
    }

    /// The deadline that is stored as `at`.
    pub fn at(at: Micros) -> Self {
        Self(at.min(FOREVER))
    }

    /// The stored form.
    pub fn as_micros(self) -> Micros {
        self.0
    }

    /// Whether the deadline has passed.
    pub fn is_over(self, now: Micros) -> bool {
        self != Self::FOREVER && self.0 <= now
    }
}

/// A server mounted on a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MountedServer {
    /// Its address, perhaps with a name inside the server.
    pub address: ServerAddress,
    /// Its kind.
    pub target: Target,
    /// Its deadline.
    pub deadline: Deadline,
    /// The time to live of the last mount or refresh; zero: no deadline, or unknown.
    pub ttl: Duration,
    /// The user who is charged for it.
    pub mounter: UserId,
}

/// Whether a mount adds to the mounted servers or replaces them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MountMode {
    /// The others stay.
    Add,
    /// The others go.
    Replace,
}

/// The servers whose deadline has not passed.
pub fn live(servers: &[MountedServer], now: Micros) -> impl Iterator<Item = &MountedServer> {
    servers.iter().filter(move |server| !server.deadline.is_over(now))
}

/// Checks that a server of the kind `target` can be mounted beside the live ones of `servers`.
///
/// Clients that resolve a name use any of its servers, so all must have the same kind. A live server that changes its
/// own kind conflicts with itself: the mount must replace it.
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
            format!("cannot mount {address} as {target:?} beside {}, which is {:?}", other.address, other.target),
        )),
        None => Ok(()),
    }
}
