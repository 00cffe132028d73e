//! Heartbeats: servers of a table note that they can write, and learn of outages.

use std::sync::{Arc, Mutex, PoisonError};

use crate::error::Error;
use crate::name::NodeName;
use crate::node::Node;
use crate::outage::{self, Credit, Outage, Record};
use crate::store::{Row, Store, Surroundings};
use crate::table::Table;

/// What this server knows of outages. Clones know the same.
#[derive(Clone, Debug, Default)]
pub(super) struct Outages {
    /// Held for a look, never while anybody waits.
    record: Arc<Mutex<Record>>,
}

impl<S: Store + Surroundings> Table<S> {
    /// Notes that the server of this number can write, and learns what others have noted; the outage that is over with
    /// that, if there was one. To be called every [`outage::BEAT`].
    ///
    /// # Errors
    /// `UNAVAILABLE`: then what was known stays known, and if that gets old there is an outage.
    pub async fn beat(&self, server: u64) -> Result<Option<Outage>, Error> {
        let mut notes = self.counters_of(outage::BEATS).await?;
        notes.extend(self.counters_of(outage::OUTAGES).await?);
        // Reading may have taken until the storage was back.
        let now = self.store.now();
        let round = outage::round(&notes, now);
        if let Some(over) = round.over {
            self.store.set_counter(&over.counter(), Some(over.end.get())).await?;
        }
        let mine = outage::beat_counter(server);
        self.store.set_counter(&mine, Some(now.get())).await?;
        *self.outages.record.lock().unwrap_or_else(PoisonError::into_inner) = round.record;
        for useless in round.useless.iter().filter(|name| **name != mine) {
            self.store.set_counter(useless, None).await?;
        }
        Ok(round.over)
    }

    /// Reads a row; deadlines are those that hold.
    pub(super) fn decode(&self, name: &NodeName, row: &Row) -> Result<Node, Error> {
        let node = Arc::new(Node::decode(name, row)?);
        Ok(Arc::unwrap_or_clone(self.credited(node)))
    }

    /// The node with the deadlines that hold. Outages are rare: without one it is the same, not a copy.
    pub(super) fn credited(&self, mut node: Arc<Node>) -> Arc<Node> {
        if self.options.credit == Credit::On && !node.servers.is_empty() {
            let now = self.store.now();
            let record = self.outages.record.lock().unwrap_or_else(PoisonError::into_inner);
            if node.servers.iter().any(|server| record.deadline(server, now) != server.deadline) {
                Arc::make_mut(&mut node).servers.iter_mut().for_each(|server| record.put_off(server, now));
            }
        }
        node
    }
}
