//! A fixture: a large directory written directly into the table behind a mounttable, as if its children had been mounted.
//!
//! Mounting a new name takes ten storage requests, so a million names take an hour. Measurements of a large directory only read
//! it, so its rows can be written directly: as [`ebla_mounttable_tree::node`] encodes them, with a reference to each child and
//! charges for its user. The directory must not be changed concurrently.

use std::time::Duration;

use ebla_client::{Client, Table};
use ebla_model::error::Error;
use ebla_model::key::RowKey;
use ebla_model::mutation::Mutation;
use ebla_model::schema::TableName;
use ebla_model::time::Micros;
use ebla_mounttable_tree::file::Stickiness;
use ebla_mounttable_tree::node::{self, Epoch, Incarnation, Node, Reference};
use ebla_mounttable_tree::store::bigtable::BigtableStore;
use ebla_mounttable_tree::store::{Change, ChildSelection, filters};
use ebla_mounttable_tree::table::QuotaKind;
use ebla_mounttable_tree::{Caller, Deadline, MountedServer, NodeName, Store, Target, rules};
use ebla_runtime::Runtime;
use futures::{StreamExt, TryStreamExt};

use super::load_client::TTL;
use super::shape::Names;

/// Children per request; the children of one user are a multiple of it.
const BATCH: u64 = 500;

/// Concurrent requests.
const TOGETHER: usize = 8;

/// Timeout of a request.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The table behind a mounttable.
#[derive(Clone)]
pub struct Fixture {
    nodes: Table,
    store: BigtableStore,
    runtime: Runtime,
}

impl Fixture {
    /// The table `name` of the cluster that the tablet server at `address` belongs to.
    ///
    /// # Errors
    /// `Unavailable` when the server does not answer.
    pub async fn of(address: &str, name: &TableName, runtime: &Runtime) -> Result<Self, Error> {
        let client = Client::connect_cluster(address, runtime.clone()).await?;
        let nodes = client.table(name).with_timeout(TIMEOUT);
        Ok(Self { nodes, store: BigtableStore::new(&client, name)?, runtime: runtime.clone() })
    }

    /// Writes the names of one directory from `start` on. The directory exists, and these names do not.
    ///
    /// # Errors
    /// The error of the storage; the directory is incomplete then.
    pub async fn write(&self, names: &Names, user_prefix: &str, start: u64) -> Result<(), Error> {
        let directory: NodeName = names.directory().parse().map_err(to_error)?;
        let key = ebla_mounttable_tree::row_key(&directory);
        let rows = self.store.read(&[key], &ChildSelection::none()).await.map_err(to_error)?;
        let row = rows.into_iter().next().flatten();
        let row = row.ok_or_else(|| {
            Error::invalid(format!("no row of {directory:?}: check that this is the table behind the mounttable"))
        })?;
        let parent = &Node::decode(&directory, &row).map_err(to_error)?;
        let firsts = std::iter::once(start).chain((start / BATCH + 1..).map(|batch| batch * BATCH));
        let batches = firsts.take_while(|first| *first < names.count());
        futures::stream::iter(batches)
            .map(|first| self.write_some(parent, names, user_prefix, first, (first / BATCH + 1) * BATCH))
            .buffer_unordered(TOGETHER)
            .try_collect()
            .await
    }

    /// Writes the existing numbers of `[first, end)`: first the charges, then the nodes, then the references.
    async fn write_some(
        &self,
        parent: &Node,
        names: &Names,
        user_prefix: &str,
        first: u64,
        end: u64,
    ) -> Result<(), Error> {
        let now = self.runtime.clock.wall();
        let numbers = first..end.min(names.count());
        let user = format!("{user_prefix}-{}", names.item(first).user);
        let caller = Caller::new(vec![user.parse().map_err(to_error)?], &[]);
        let (mut rows, mut references) = (Vec::new(), Vec::new());
        for number in numbers.clone() {
            let (child, changes) = self.child(parent, names, &caller, number, now)?;
            let (_, element) = child.name.split_last().unwrap_or_default();
            references.extend(node::reference_changes(element, Reference::Committed(child.incarnation), child.created));
            rows.push(written(&child.name, changes));
        }
        references.extend(node::version_changes(self.runtime.rng.u64(), now.truncate_to_millis()));
        for charge in QuotaKind::ALL {
            let count = i64::try_from(rows.len()).unwrap_or(i64::MAX);
            self.store.add(&charge.counter(&caller.user_id()), count).await.map_err(to_error)?;
        }
        self.nodes.mutate_rows(&rows).await?.into_iter().collect::<Result<(), _>>()?;
        let (key, changes) = written(&parent.name, references);
        self.nodes.mutate_row(&key, &changes).await
    }

    /// A child with its server, as a mount by its user would create it.
    fn child(
        &self,
        parent: &Node,
        names: &Names,
        caller: &Caller,
        number: u64,
        now: Micros,
    ) -> Result<(Node, Vec<Change>), Error> {
        let item = names.item(number);
        let name: NodeName = item.name.parse().map_err(to_error)?;
        let (_, element) = name.split_last().unwrap_or_default();
        let child = Node {
            incarnation: Incarnation::new(self.runtime.rng.u64()),
            version: self.runtime.rng.u64(),
            epoch: Epoch::Alive(0),
            parent: parent.incarnation,
            creator: caller.user_id(),
            created: now.truncate_to_millis(),
            stickiness: Stickiness::Collected,
            permissions: rules::create_child(caller, &parent.permissions, element).map_err(to_error)?,
            servers: Vec::new(),
            children: [].into(),
            name,
        };
        let server = MountedServer {
            address: item.server.parse().map_err(to_error)?,
            target: Target::Object,
            deadline: Deadline::after(now, TTL),
            ttl: TTL,
            mounter: caller.user_id(),
        };
        let changes = child.write().into_iter().chain(node::mount_changes(&server)).collect();
        Ok((child, changes))
    }
}

fn written(name: &NodeName, changes: Vec<Change>) -> (RowKey, Vec<Mutation>) {
    let key = RowKey::copy_from_slice(ebla_mounttable_tree::row_key(name).as_bytes());
    (key, changes.into_iter().map(filters::mutation).collect())
}

fn to_error(error: ebla_mounttable_tree::Error) -> Error {
    Error::internal(error.message).context("write a directory")
}
