//! Heartbeats: servers of a table record that they can write, and so detect outages.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::error::Error;
use crate::name::NodeName;
use crate::node::Node;
use crate::outage::{self, Credit, Outage, OutageRecord};
use crate::store::{Environment, Row, Store};
use crate::table::Table;

/// The outages known to this server. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct Outages {
    /// Held for one operation, never across an await.
    record: Arc<Mutex<OutageRecord>>,
}

impl<S: Store + Environment> Table<S> {
    /// Records that the server with this number can write, and reads the records of the others; returns the outage that
    /// ends with this heartbeat, if any. Call it every [`outage::HEARTBEAT_INTERVAL`].
    ///
    /// # Errors
    /// `UNAVAILABLE`: the known outages stay, and an outage begins if this lasts.
    pub async fn heartbeat(&self, server: u64) -> Result<Option<Outage>, Error> {
        let mut records = self.counters_of(outage::HEARTBEAT_PREFIX).await?;
        records.extend(self.counters_of(outage::OUTAGE_PREFIX).await?);
        // The read may have taken until the end of an outage.
        let now = self.store.now();
        let round = outage::evaluate(&records, now);
        if let Some(ended) = round.ended {
            self.store.set_counter(&ended.counter(), Some(ended.end.get())).await?;
        }
        let own_counter = outage::heartbeat_counter(server);
        self.store.set_counter(&own_counter, Some(now.get())).await?;
        *self.outages.record.lock() = round.record;
        for obsolete in round.obsolete.iter().filter(|name| **name != own_counter) {
            self.store.set_counter(obsolete, None).await?;
        }
        Ok(round.ended)
    }

    /// Decodes a row; outages extend its deadlines.
    pub(super) fn decode(&self, name: &NodeName, row: &Row) -> Result<Node, Error> {
        let node = Arc::new(Node::decode(name, row)?);
        Ok(Arc::unwrap_or_clone(self.credited(node)))
    }

    /// The node with extended deadlines. Outages are rare: without one the node is returned as it is, without a copy.
    pub(super) fn credited(&self, mut node: Arc<Node>) -> Arc<Node> {
        if self.options.credit == Credit::On && !node.servers.is_empty() {
            let now = self.store.now();
            let record = self.outages.record.lock();
            if node.servers.iter().any(|server| record.deadline(server, now) != server.deadline) {
                Arc::make_mut(&mut node).servers.iter_mut().for_each(|server| record.extend_deadline(server, now));
            }
        }
        node
    }
}
