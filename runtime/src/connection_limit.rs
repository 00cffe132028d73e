//! How many connections a process has at once.
//!
//! Each connection costs memory and a file descriptor, whether it sends something or not, and anybody can open one. Connections of members of
//! the cluster do not count, so that others cannot keep them out; their certificate proves what they are. A connection that only begins as
//! that of a peer counts: any client can send these bytes. Without TLS every connection counts.
//!
//! Connections whose handshake has not ended are bounded by [`crate::serve()`].

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

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
    open: ResourceCounter,
    /// Refused connections since the last line of the log, and when that was. Guards plain values.
    refused: Arc<Mutex<(u64, Option<Instant>)>>,
}

impl Default for ConnectionLimit {
    fn default() -> Self {
        Self::new(CONNECTIONS_MAX)
    }
}

/// A connection that may stay open: it counts until this is dropped, if it counts.
#[derive(Debug)]
pub(crate) struct Slot(#[expect(dead_code, reason = "it is released on drop")] Option<Reservation>);

impl ConnectionLimit {
    /// At most `max` connections at once.
    #[must_use]
    pub fn new(max: usize) -> Self {
        Self { max, open: ResourceCounter::default(), refused: Arc::default() }
    }

    /// A place for a connection; `None`: there are too many.
    pub(crate) fn admit(&self, peer: Option<SocketAddr>, security: &Security) -> Option<Slot> {
        let is_member =
            security.identity().is_some_and(|identity| matches!(identity.role(), Role::Master | Role::TabletServer));
        if is_member {
            return Some(Slot(None));
        }
        let reserved = self.open.try_reserve(1, self.max);
        if reserved.is_none() {
            self.report(peer);
        }
        reserved.map(|reserved| Slot(Some(reserved)))
    }

    fn report(&self, peer: Option<SocketAddr>) {
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
        warn!(peer, others, max = self.max, "connection refused: too many are open (--connections)");
    }
}
