//! gRPC channels by address, each created at its first use and cached.
//!
//! A channel reconnects by itself. Channels to addresses that are no longer used stay in the cache; their number is
//! that of the addresses that servers ever had, and an idle channel closes its connection.

use std::collections::HashMap;
use std::fmt;

use ebla_runtime::Net;
use parking_lot::Mutex;
use tonic::transport::Channel;

/// The maximum size of a message in either direction: a row may be as large as the API allows.
pub const MESSAGE_BYTES_MAX: usize = 256 << 20;

/// Channels by address. Cheap to share behind an `Arc`.
pub struct Channels {
    net: Net,
    /// Guards the map; held for one map operation.
    open: Mutex<HashMap<String, Channel>>,
}

impl fmt::Debug for Channels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channels").field("net", &self.net).finish_non_exhaustive()
    }
}

impl Channels {
    /// An empty set of channels.
    pub fn new(net: Net) -> Self {
        Self { net, open: Mutex::default() }
    }

    /// The channel to an address; does not wait for a connection.
    pub fn get(&self, address: &str) -> Channel {
        let mut open = self.open.lock();
        if let Some(channel) = open.get(address) {
            return channel.clone();
        }
        let channel = self.net.channel(address);
        open.insert(address.to_owned(), channel.clone());
        channel
    }
}
