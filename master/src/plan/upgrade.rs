//! The active cluster version: when the next one may become active, and what prevents it.
//!
//! A version becomes active when every process that takes part in the cluster supports it, and has done so for a while: a release that
//! is being rolled out may be replaced again. Masters take part while they run. Tablet servers take part as long as a group has a replica on
//! them, also while they are down: one that returns must be able to read what was written meanwhile. The active version never goes down.

use std::fmt;
use std::time::Duration;

use ebla_model::cluster_version::{ClusterVersion, SupportedVersions};
use ebla_model::id::ServerId;

/// Whether an operator holds the active version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hold {
    /// The next one becomes active by itself.
    #[default]
    Released,
    /// It stays.
    Held,
}

/// A process that takes part in the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Participant {
    /// Which one.
    pub process: Process,
    /// Where it listens, `host:port`; empty: not known.
    pub address: String,
    /// The release that it runs; empty: not known.
    pub release: String,
    /// What it supports; `None`: it is not registered, so that is not known.
    pub versions: Option<SupportedVersions>,
}

/// The kind of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Process {
    /// A master, active or standby.
    Master,
    /// A tablet server.
    TabletServer(ServerId),
}

impl Participant {
    /// Why the cluster cannot change to `version`, and what to do; `None`: this process supports it.
    fn obstacle(&self, version: ClusterVersion) -> Option<String> {
        let Some(versions) = self.versions else {
            return Some(format!(
                "{self} is not registered, and groups have replicas on it: start it with a release that supports version {version}, or \
                 make its replicas move away (ebla server drain)"
            ));
        };
        if versions.contains(version) {
            return None;
        }
        let release =
            if self.release.is_empty() { "an earlier release".to_owned() } else { format!("release {}", self.release) };
        Some(format!(
            "{self} runs {release}, which supports versions {versions}: restart it with a release that supports version {version}"
        ))
    }
}

impl fmt::Display for Participant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.process {
            Process::Master => "master".to_owned(),
            Process::TabletServer(server) => format!("tablet server {server}"),
        };
        if self.address.is_empty() { f.write_str(&name) } else { write!(f, "{name} ({})", self.address) }
    }
}

/// What decides about the next version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Upgrade {
    /// The active version.
    pub active: ClusterVersion,
    /// Whether an operator holds it.
    pub hold: Hold,
    /// The masters, then the tablet servers by id.
    pub participants: Vec<Participant>,
}

/// What follows the active version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing: no process supports a later version.
    Newest,
    /// A later version, when these obstacles are gone.
    Blocked {
        /// The version that follows.
        version: ClusterVersion,
        /// In words, with what to do.
        obstacles: Vec<String>,
    },
    /// This version: every process supports it.
    Ready(ClusterVersion),
}

impl Upgrade {
    /// What follows the active version: the newest one that every process supports.
    #[must_use]
    pub fn next(&self) -> Next {
        let known = || self.participants.iter().filter_map(|participant| participant.versions);
        let newest = known().map(|versions| versions.newest).max().unwrap_or_default();
        if newest <= self.active {
            return Next::Newest;
        }
        let common = known().map(|versions| versions.newest).min().unwrap_or_default();
        let version = common.max(self.active.next());
        let held = (self.hold == Hold::Held).then(|| {
            format!("version {} is held by an operator: ebla cluster upgrade continue ends that", self.active)
        });
        let unsupported = self.participants.iter().filter_map(|participant| participant.obstacle(version));
        let obstacles: Vec<_> = held.into_iter().chain(unsupported).collect();
        if obstacles.is_empty() { Next::Ready(version) } else { Next::Blocked { version, obstacles } }
    }
}

/// Since when the next version could be active.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readiness(Option<(ClusterVersion, Duration)>);

impl Readiness {
    /// Notes what follows now. `now`: time since boot.
    pub fn observe(&mut self, next: &Next, now: Duration) {
        self.0 = match (next, self.0) {
            (Next::Ready(version), Some((known, since))) if *version == known => Some((known, since)),
            (Next::Ready(version), _) => Some((*version, now)),
            (Next::Newest | Next::Blocked { .. }, _) => None,
        };
    }

    /// The version that follows and the time until it becomes active, which is after `delay`; `None` while something prevents it.
    #[must_use]
    pub fn remaining(&self, now: Duration, delay: Duration) -> Option<(ClusterVersion, Duration)> {
        self.0.map(|(version, since)| (version, since.saturating_add(delay).saturating_sub(now)))
    }
}

#[cfg(test)]
mod tests;
