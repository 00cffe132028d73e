//! gRPC channels by address, each created at its first use and cached.
//!
//! A channel reconnects by itself. It is dropped when it has not been used for [`CHANNEL_IDLE`], and its connection is closed when no
//! call is in progress on it. The stream of small calls to a server (`small_calls.rs`) is such a call, and stays open.
//!
//! The number of channels is bounded too: addresses may come from others, such as names that anyone may mount. When there are too
//! many, those that were not used for the longest time are dropped. Calls in progress on them are completed.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use ebla_runtime::net::{Origin, Windows};
use ebla_runtime::{Clock, Net, Runtime};
use parking_lot::Mutex;
use tonic::transport::Channel;

/// The maximum size of a message in either direction: a row may be as large as the API allows.
pub const MESSAGE_BYTES_MAX: usize = 256 << 20;

/// The largest number of channels, more than the servers of a cluster; at this number half of them are dropped.
pub const CHANNELS_MAX: usize = 1_024;

/// A channel is dropped when it has not been used for this long. Idle channels are looked for when any channel is used, at most once in
/// half of this time.
pub const CHANNEL_IDLE: Duration = Duration::from_secs(300);

/// Channels by address. Cheap to share behind an `Arc`.
pub struct Channels {
    net: Net,
    clock: Clock,
    origin: Origin,
    windows: Windows,
    /// Guards the map; held for one map operation.
    open: Mutex<Recent<Channel>>,
}

impl fmt::Debug for Channels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channels").field("net", &self.net).finish_non_exhaustive()
    }
}

impl Channels {
    /// An empty set of channels to any servers, as a public client.
    pub fn new(runtime: &Runtime) -> Self {
        let (net, clock) = (runtime.net.clone(), runtime.clock.clone());
        Self { net, clock, origin: Origin::Public, windows: Windows::CALLS, open: Mutex::new(Recent::new()) }
    }

    /// An empty set of channels to servers of one cluster, for its internal services: those servers allow many concurrent calls on each.
    pub fn to_peers(runtime: &Runtime, windows: Windows) -> Self {
        Self { origin: Origin::Peer, windows, ..Self::new(runtime) }
    }

    /// The channel to an address; does not wait for a connection.
    pub fn get(&self, address: &str) -> Channel {
        let now = self.clock.monotonic();
        self.open.lock().get_or_create(address, now, || self.net.channel_of(self.origin, address, self.windows))
    }
}

/// At most [`CHANNELS_MAX`] values by address: the most recently used ones.
struct Recent<T> {
    values: HashMap<String, Used<T>>,
    /// The number of uses so far.
    uses: u64,
    /// When values that are idle were last looked for, in time since boot.
    examined: Duration,
}

struct Used<T> {
    value: T,
    /// The number of the last use.
    number: u64,
    /// Its time since boot.
    time: Duration,
}

impl<T: Clone> Recent<T> {
    fn new() -> Self {
        Self { values: HashMap::new(), uses: 0, examined: Duration::ZERO }
    }

    fn get_or_create(&mut self, address: &str, now: Duration, create: impl FnOnce() -> T) -> T {
        self.uses = self.uses.saturating_add(1);
        if now.saturating_sub(self.examined) >= CHANNEL_IDLE / 2 {
            self.examined = now;
            self.values.retain(|known, used| known == address || now.saturating_sub(used.time) < CHANNEL_IDLE);
        }
        if let Some(used) = self.values.get_mut(address) {
            (used.number, used.time) = (self.uses, now);
            return used.value.clone();
        }
        if self.values.len() >= CHANNELS_MAX {
            self.drop_half();
        }
        let value = create();
        let used = Used { value: value.clone(), number: self.uses, time: now };
        self.values.insert(address.to_owned(), used);
        value
    }

    fn drop_half(&mut self) {
        let mut numbers: Vec<_> = self.values.values().map(|used| used.number).collect();
        numbers.sort_unstable();
        let oldest_kept = numbers.get(numbers.len() / 2).copied().unwrap_or_default();
        self.values.retain(|_, used| used.number >= oldest_kept);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_are_not_used_are_dropped() {
        let mut values = Recent::new();
        let mut created = Vec::new();
        let mut get = |address: String| {
            values.get_or_create(&address, Duration::ZERO, || created.push(address.clone()));
            values.values.len()
        };
        for number in 0..10 * CHANNELS_MAX {
            assert!(get(format!("h:{number}")) <= CHANNELS_MAX);
            // In use all the time, so it is never created again.
            get("busy:1".to_owned());
        }
        assert_eq!(created.iter().filter(|address| *address == "busy:1").count(), 1);
        assert_eq!(created.len(), 10 * CHANNELS_MAX + 1);
    }

    #[test]
    fn idle_values_are_dropped_at_the_next_use_of_another() {
        let mut values = Recent::new();
        let mut created = Vec::new();
        let mut get = |address: &str, seconds: u64| {
            values.get_or_create(address, Duration::from_secs(seconds), || created.push(address.to_owned()));
            let mut kept: Vec<_> = values.values.keys().cloned().collect();
            kept.sort_unstable();
            kept.join(" ")
        };
        assert_eq!(get("idle:1", 1_000), "idle:1");
        assert_eq!(get("busy:1", 1_100), "busy:1 idle:1");
        assert_eq!(get("busy:1", 1_299), "busy:1 idle:1");
        assert_eq!(get("busy:1", 1_450), "busy:1");
        // One that is asked for is kept, however long it was idle.
        assert_eq!(get("busy:1", 10_000), "busy:1");
        assert_eq!(get("idle:1", 10_001), "busy:1 idle:1");
        assert_eq!(created, ["idle:1", "busy:1", "idle:1"]);
    }
}
