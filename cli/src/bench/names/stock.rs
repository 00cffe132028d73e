//! A large directory written straight into the table behind a mounttable, as if its children had been mounted one by one.
//!
//! A mount of a new name is ten requests to the storage, which for a million names takes an hour. What is measured of a
//! large directory is how it is read, and for that it need only be there: rows as [`ebla_mounttable::node`] writes them, a
//! reference to each, and its user charged. Nobody may change the directory meanwhile.

use std::time::Duration;

use ebla_client::{Client, Table};
use ebla_model::error::Error;
use ebla_model::key::RowKey;
use ebla_model::mutation::Mutation;
use ebla_model::schema::TableName;
use ebla_model::time::Micros;
use ebla_mounttable::file::Stickiness;
use ebla_mounttable::node::{self, Epoch, Incarnation, Node, Reference};
use ebla_mounttable::store::bigtable::Bigtable;
use ebla_mounttable::store::{Change, Children, filters};
use ebla_mounttable::table::Charge;
use ebla_mounttable::{Caller, Deadline, MountedServer, NodeName, Store, Target, rules};
use ebla_runtime::Runtime;
use futures::{StreamExt, TryStreamExt};

use super::asker::TTL;
use super::shape::Names;

/// Children of one request; those of one user are a multiple of it.
const BATCH: u64 = 500;

/// Requests at the same time.
const TOGETHER: usize = 8;

/// How long one may take.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The table behind a mounttable.
#[derive(Clone)]
pub struct Stock {
    nodes: Table,
    store: Bigtable,
    runtime: Runtime,
}

impl Stock {
    /// The table `name` of the cluster that the tablet server at `address` belongs to.
    ///
    /// # Errors
    /// `Unavailable` when nothing answers there.
    pub async fn of(address: &str, name: &TableName, runtime: &Runtime) -> Result<Self, Error> {
        let client = Client::connect_cluster(address, runtime.clone()).await?;
        let nodes = client.table(name).with_timeout(TIMEOUT);
        Ok(Self { nodes, store: Bigtable::new(&client, name)?, runtime: runtime.clone() })
    }

    /// Writes the names of one directory from `start` on. The directory is there, and nothing else of it is.
    ///
    /// # Errors
    /// What the storage answers; the directory is then there in part.
    pub async fn write(&self, names: &Names, called: &str, start: u64) -> Result<(), Error> {
        let directory: NodeName = names.directory().parse().map_err(told)?;
        let key = ebla_mounttable::row_key(&directory);
        let rows = self.store.read(&[key], &Children::none()).await.map_err(told)?;
        let row = rows.into_iter().next().flatten();
        let row =
            row.ok_or_else(|| Error::invalid(format!("no row of {directory:?}: is this the table behind it?")))?;
        let parent = &Node::decode(&directory, &row).map_err(told)?;
        let firsts = std::iter::once(start).chain((start / BATCH + 1..).map(|batch| batch * BATCH));
        let batches = firsts.take_while(|first| *first < names.count());
        futures::stream::iter(batches)
            .map(|first| self.write_some(parent, names, called, first, (first / BATCH + 1) * BATCH))
            .buffer_unordered(TOGETHER)
            .try_collect()
            .await
    }

    /// Writes those of `[first, end)` that there are: charged, then there, then referred to.
    async fn write_some(&self, parent: &Node, names: &Names, called: &str, first: u64, end: u64) -> Result<(), Error> {
        let now = self.runtime.clock.wall();
        let numbers = first..end.min(names.count());
        let user = format!("{called}-{}", names.item(first).user);
        let caller = Caller::new(vec![user.parse().map_err(told)?], &[]);
        let (mut rows, mut references) = (Vec::new(), Vec::new());
        for number in numbers.clone() {
            let (child, changes) = self.child(parent, names, &caller, number, now)?;
            let (_, element) = child.name.split_last().unwrap_or_default();
            references.extend(node::refer(element, Reference::Committed(child.incarnation), child.created));
            rows.push(written(&child.name, changes));
        }
        references.extend(node::new_version(self.runtime.rng.u64(), now.truncate_to_millis()));
        for charge in Charge::ALL {
            let count = i64::try_from(rows.len()).unwrap_or(i64::MAX);
            self.store.add(&charge.counter(&caller.user_id()), count).await.map_err(told)?;
        }
        self.nodes.mutate_rows(&rows).await?.into_iter().collect::<Result<(), _>>()?;
        let (key, changes) = written(&parent.name, references);
        self.nodes.mutate_row(&key, &changes).await
    }

    /// A child with its server, as its user would have made it.
    fn child(
        &self,
        parent: &Node,
        names: &Names,
        caller: &Caller,
        number: u64,
        now: Micros,
    ) -> Result<(Node, Vec<Change>), Error> {
        let item = names.item(number);
        let name: NodeName = item.name.parse().map_err(told)?;
        let (_, element) = name.split_last().unwrap_or_default();
        let child = Node {
            incarnation: Incarnation::new(self.runtime.rng.u64()),
            version: self.runtime.rng.u64(),
            epoch: Epoch::Alive(0),
            parent: parent.incarnation,
            creator: caller.user_id(),
            created: now.truncate_to_millis(),
            stickiness: Stickiness::Collected,
            permissions: rules::create_child(caller, &parent.permissions, element).map_err(told)?,
            servers: Vec::new(),
            children: [].into(),
            name,
        };
        let server = MountedServer {
            address: item.server.parse().map_err(told)?,
            target: Target::Object,
            deadline: Deadline::after(now, TTL),
            ttl: TTL,
            mounter: caller.user_id(),
        };
        let changes = child.write().into_iter().chain(node::mount(&server)).collect();
        Ok((child, changes))
    }
}

fn written(name: &NodeName, changes: Vec<Change>) -> (RowKey, Vec<Mutation>) {
    let key = RowKey::copy_from_slice(ebla_mounttable::row_key(name).as_bytes());
    (key, changes.into_iter().map(filters::mutation).collect())
}

fn told(error: ebla_mounttable::Error) -> Error {
    Error::internal(error.message).context("write a directory")
}
