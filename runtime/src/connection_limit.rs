//! How many connections a process has at once.
//!
//! Each connection costs memory and a file descriptor, whether it sends something or not, and anybody can open one. Connections of members of
//! the cluster do not count, so that others cannot keep them out; their certificate proves what they are. A connection that only begins as
//! that of a peer counts: any client can send these bytes. Without TLS every connection counts.
//!
//! One address has a share of them, half unless it is configured otherwise, so that one machine cannot take them all. Of an IPv6 address the
//! first 64 bits count: who has one address of such a network usually has all.
//!
//! Connections whose handshake has not ended are bounded by [`crate::serve()`].

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use ebla_model::capacity::Usage;
use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::warn;

use crate::resource_counter::{Reservation, ResourceCounter};
use crate::tls::{Role, Security};

/// The connections of a process that is not configured otherwise.
pub const CONNECTIONS_MAX: usize = 10_000;
/// The least time between two lines of the log about refused connections.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// A limit of connections. Clones share the count.
#[derive(Clone, Debug)]
pub struct ConnectionLimit {
    max: usize,
    max_of_address: usize,
    open: ResourceCounter,
    addresses: Addresses,
    /// Refused connections since the last line of the log, and when that was. Guards plain values.
    refused: Arc<Mutex<(u64, Option<Instant>)>>,
}

/// Open connections by address; no more entries than connections. Guards plain values, for one operation of the map.
type Addresses = Arc<Mutex<HashMap<IpAddr, usize>>>;

impl Default for ConnectionLimit {
    fn default() -> Self {
        Self::new(CONNECTIONS_MAX).with_max_of_address(CONNECTIONS_MAX / 2)
    }
}

/// A connection that may stay open: it counts until this is dropped, if it counts.
#[derive(Debug)]
pub(crate) struct Slot(#[expect(dead_code, reason = "it is released on drop")] Option<(Reservation, AddressSlot)>);

/// The part of a connection in the count of its address.
#[derive(Debug)]
struct AddressSlot {
    addresses: Addresses,
    /// `None`: the network has no addresses.
    address: Option<IpAddr>,
}

impl Drop for AddressSlot {
    fn drop(&mut self) {
        let Some(address) = self.address else { return };
        let mut addresses = self.addresses.lock();
        if let Some(count) = addresses.get_mut(&address) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                addresses.remove(&address);
            }
        }
    }
}

impl ConnectionLimit {
    /// At most `max` connections at once, also of one address.
    #[must_use]
    pub fn new(max: usize) -> Self {
        let (open, addresses, refused) = (ResourceCounter::default(), Arc::default(), Arc::default());
        Self { max, max_of_address: max, open, addresses, refused }
    }

    /// The same limit, with at most `max` connections of one address.
    #[must_use]
    pub fn with_max_of_address(self, max: usize) -> Self {
        Self { max_of_address: max, ..self }
    }

    /// A place for a connection; `None`: there are too many.
    pub(crate) fn admit(&self, peer: Option<SocketAddr>, security: &Security) -> Option<Slot> {
        let is_member =
            security.identity().is_some_and(|identity| matches!(identity.role(), Role::Master | Role::TabletServer));
        if is_member {
            return Some(Slot(None));
        }
        let Some(of_address) = self.admit_address(peer.map(counted_address)) else {
            self.report(peer, "connection refused: too many of this address are open (--connections-per-address)");
            return None;
        };
        let Some(reserved) = self.open.try_reserve(1, self.max) else {
            self.report(peer, "connection refused: too many are open (--connections)");
            return None;
        };
        Some(Slot(Some((reserved, of_address))))
    }

    /// How many connections that count are open, and how many may be.
    #[must_use]
    pub fn usage(&self) -> Usage {
        Usage { used: self.open.in_use() as u64, limit: self.max as u64 }
    }

    fn admit_address(&self, address: Option<IpAddr>) -> Option<AddressSlot> {
        if let Some(address) = address {
            let mut addresses = self.addresses.lock();
            let count = addresses.get(&address).copied().unwrap_or_default();
            if count >= self.max_of_address {
                return None;
            }
            addresses.insert(address, count + 1);
        }
        Some(AddressSlot { addresses: Arc::clone(&self.addresses), address })
    }

    fn report(&self, peer: Option<SocketAddr>, message: &'static str) {
        let now = Instant::now();
        let mut refused = self.refused.lock();
        let (others, last) = &mut *refused;
        if last.is_some_and(|last| now.saturating_duration_since(last) < REPORT_INTERVAL) {
            *others = others.saturating_add(1);
            return;
        }
        let others = std::mem::take(others);
        *last = Some(now);
        drop(refused);
        let peer = peer.map(|peer| peer.to_string()).unwrap_or_default();
        warn!(peer, others, max = self.max, max_of_address = self.max_of_address, "{message}");
    }
}

/// The address under which a connection is counted.
fn counted_address(peer: SocketAddr) -> IpAddr {
    match peer.ip().to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(address: &str) -> Option<SocketAddr> {
        Some(SocketAddr::new(address.parse().unwrap(), 4711))
    }

    #[test]
    fn one_address_has_a_share_of_the_connections() {
        let limit = ConnectionLimit::new(4).with_max_of_address(2);
        let admit = |address: &str| limit.admit(from(address), &Security::Plain);
        let one = admit("10.0.0.1").unwrap();
        let _two = admit("::ffff:10.0.0.1").unwrap();
        assert!(admit("10.0.0.1").is_none(), "a third one of the address");
        let _others = [admit("2001:db8::1").unwrap(), admit("2001:db8::2").unwrap()];
        assert!(admit("2001:db8::3").is_none(), "of a network of IPv6");
        assert!(admit("10.0.0.2").is_none(), "a fifth one of all");
        drop(one);
        let _again = admit("10.0.0.1").unwrap();
        assert!(admit("10.0.0.1").is_none());
    }

    #[test]
    fn an_address_without_connections_is_not_remembered() {
        let limit = ConnectionLimit::new(1);
        for last in 0..=255 {
            drop(limit.admit(from(&format!("10.0.0.{last}")), &Security::Plain).unwrap());
        }
        let held = limit.admit(from("10.0.1.1"), &Security::Plain);
        // Refused by the limit of all: it does not count for its address either.
        assert!(limit.admit(from("10.0.1.2"), &Security::Plain).is_none());
        assert_eq!(limit.addresses.lock().len(), 1);
        drop(held);
        assert!(limit.addresses.lock().is_empty());
    }
}
