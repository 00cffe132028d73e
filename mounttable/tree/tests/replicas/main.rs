//! Several servers of one table over a storage with failures: their caches, and the effect of outages on mounts. The
//! tests control time and the order of steps.

#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail, and then says where")]

mod caching;
mod large;
mod outages;
mod storage;

use std::time::Duration;

use ebla_mounttable_tree::outage::Credit;
use ebla_mounttable_tree::store::cache;
use ebla_mounttable_tree::store::caching::CachingStore;
use ebla_mounttable_tree::table::{Mount, Resolved, TableOptions};
use ebla_mounttable_tree::{BlessingPattern, Caller, Error, MountMode, NodeName, Permissions, Table, Target};

use crate::storage::{Storage, alone};

pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const MILLI: Duration = Duration::from_millis(1);

pub(crate) fn caller() -> Caller {
    Caller::new(vec!["root".parse().unwrap()], &[BlessingPattern::new("root")])
}

pub(crate) fn name(text: &str) -> NodeName {
    text.parse().unwrap()
}

/// One server of a table.
pub(crate) struct Replica {
    pub(crate) store: CachingStore<Storage>,
    pub(crate) table: Table<CachingStore<Storage>>,
}

impl Replica {
    /// A server of the table in `storage`, which is created if necessary. Empty nodes are collected at once.
    pub(crate) fn of(storage: &Storage) -> Self {
        Self::with(storage, Credit::Off)
    }

    pub(crate) fn with(storage: &Storage, credit: Credit) -> Self {
        let store = CachingStore::new(storage.clone(), cache::CacheOptions::default());
        let options = TableOptions { grace: Duration::ZERO, credit, ..TableOptions::default() };
        let table = Table::new(store.clone(), options);
        alone(table.setup(Permissions::open())).unwrap();
        Self { store, table }
    }

    pub(crate) fn mount(&self, at: &str, server: &str, ttl: Duration) -> Result<(), Error> {
        let mount = Mount { address: server.parse()?, target: Target::Object, ttl, mode: MountMode::Add };
        alone(self.table.mount(&caller(), &name(at), &mount)).map(drop)
    }

    pub(crate) fn look_up(&self, at: &str) -> Result<Resolved, Error> {
        alone(self.table.resolve_recent(&caller(), &name(at)))
    }

    /// The addresses that a name resolves to; empty if it does not resolve.
    pub(crate) fn servers(&self, at: &str) -> Vec<String> {
        let found = self.look_up(at).map(|found| found.servers).unwrap_or_default();
        found.iter().map(|server| server.address.to_string()).collect()
    }
}
