//! gRPC channels by address, each created at its first use and cached.
//!
//! A channel reconnects by itself, and keeps its connection open while it is idle. The number of channels is bounded:
//! addresses may come from others, such as names that anyone may mount. When there are too many, those that were not used for
//! the longest time are dropped; calls in progress on them are completed.

use std::collections::HashMap;
use std::fmt;

use ebla_runtime::Net;
use ebla_runtime::net::{Origin, Windows};
use parking_lot::Mutex;
use tonic::transport::Channel;

/// The maximum size of a message in either direction: a row may be as large as the API allows.
pub const MESSAGE_BYTES_MAX: usize = 256 << 20;

/// The largest number of channels, more than the servers of a cluster; at this number half of them are dropped.
pub const CHANNELS_MAX: usize = 1_024;

/// Channels by address. Cheap to share behind an `Arc`.
pub struct Channels {
    net: Net,
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
    pub fn new(net: Net) -> Self {
        Self { net, origin: Origin::Public, windows: Windows::CALLS, open: Mutex::new(Recent::new()) }
    }

    /// An empty set of channels to servers of one cluster, for its internal services: those servers allow many concurrent calls on each.
    pub fn to_peers(net: Net, windows: Windows) -> Self {
        Self { origin: Origin::Peer, windows, ..Self::new(net) }
    }

    /// The channel to an address; does not wait for a connection.
    pub fn get(&self, address: &str) -> Channel {
        self.open.lock().get_or_create(address, || self.net.channel_of(self.origin, address, self.windows))
    }
}

/// At most [`CHANNELS_MAX`] values by address: the most recently used ones.
struct Recent<T> {
    /// Each with the number of its last use.
    values: HashMap<String, (T, u64)>,
    /// The number of uses so far.
    uses: u64,
}

impl<T: Clone> Recent<T> {
    fn new() -> Self {
        Self { values: HashMap::new(), uses: 0 }
    }

    fn get_or_create(&mut self, address: &str, create: impl FnOnce() -> T) -> T {
        self.uses = self.uses.saturating_add(1);
        if let Some((value, last)) = self.values.get_mut(address) {
            *last = self.uses;
            return value.clone();
        }
        if self.values.len() >= CHANNELS_MAX {
            self.drop_half();
        }
        let value = create();
        self.values.insert(address.to_owned(), (value.clone(), self.uses));
        value
    }

    fn drop_half(&mut self) {
        let mut uses: Vec<_> = self.values.values().map(|(_, last)| *last).collect();
        uses.sort_unstable();
        let oldest_kept = uses.get(uses.len() / 2).copied().unwrap_or_default();
        self.values.retain(|_, (_, last)| *last >= oldest_kept);
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
            values.get_or_create(&address, || created.push(address.clone()));
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
}
