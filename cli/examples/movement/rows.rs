//! The table of a measurement: one family, rows whose keys begin with the number of their tablet.

use std::time::Duration;

use bytes::Bytes;
use ebla_client::table::ReadOptions;
use ebla_client::{Admin, Client, Table};
use ebla_model::id::{GroupId, TabletId};
use ebla_model::key::{RowKey, RowSet};
use ebla_model::metadata::TabletDescriptor;
use ebla_model::mutation::{Mutation, WriteTime};
use ebla_model::schema::TableName;
use ebla_runtime::Runtime;
use futures::StreamExt as _;

use crate::Outcome;

/// The family of all rows.
const FAMILY: &str = "f";
/// The size of a value.
const VALUE_BYTES: u64 = 1_000;
/// Rows of a request.
const BATCH: usize = 200;
/// Requests that are under way at the same time.
const REQUESTS: usize = 8;
/// The timeout of a request that fills the table.
const FILL_TIMEOUT: Duration = Duration::from_secs(60);

/// A table and the addresses to use.
pub(crate) struct Rows {
    pub(crate) name: TableName,
    pub(crate) client: Client,
    pub(crate) admin: Admin,
    runtime: Runtime,
    random: Bytes,
}

/// The first key of the tablet of this number.
pub(crate) fn first_key(tablet: u64) -> RowKey {
    RowKey::copy_from_slice(format!("{tablet:05}").as_bytes())
}

/// A row of the tablet of this number.
pub(crate) fn row_key(tablet: u64, row: u64) -> RowKey {
    RowKey::copy_from_slice(format!("{tablet:05}/{row:09}").as_bytes())
}

/// A write of this value.
pub(crate) fn set(value: Bytes) -> Mutation {
    Mutation::SetCell {
        family: FAMILY.to_owned(),
        qualifier: Bytes::from_static(b"q"),
        timestamp: WriteTime::Server,
        value,
    }
}

impl Rows {
    /// Creates a table with tablets of the numbers 0 to `tablets`.
    pub(crate) async fn create(name: &str, addresses: &[String], tablets: u64, runtime: &Runtime) -> Outcome<Self> {
        let name = TableName::from_parts("movement", "movement", name)?;
        let client = Client::connect_any(addresses, runtime.clone()).await?;
        let address = addresses.first().ok_or("the cluster has no address")?;
        let admin = Admin::connect(address, runtime);
        let splits: Vec<RowKey> = (1..tablets).map(first_key).collect();
        admin.create_table(&name, &[(FAMILY.to_owned(), None)], &splits).await?;
        let random: Vec<u8> = (0..(2 << 20) / 8).flat_map(|_| runtime.rng.u64().to_le_bytes()).collect();
        Ok(Self { name, client, admin, runtime: runtime.clone(), random: random.into() })
    }

    /// The table, with this timeout for each request.
    pub(crate) fn table(&self, timeout: Duration) -> Table {
        self.client.table(&self.name).with_timeout(timeout)
    }

    /// Incompressible bytes of a row.
    pub(crate) fn value(&self, length: u64) -> Bytes {
        let length = usize::try_from(length).unwrap_or_default();
        let room = (self.random.len().saturating_sub(length)).max(1) as u64;
        let start = usize::try_from(self.runtime.rng.below(room)).unwrap_or_default();
        self.random.slice(start..(start + length).min(self.random.len()))
    }

    /// Writes rows of about `kilobytes` in all into the tablet of this number.
    pub(crate) async fn fill(&self, tablet: u64, kilobytes: u64) -> Outcome<()> {
        let rows: Vec<u64> = (0..kilobytes * 1_000 / VALUE_BYTES).collect();
        self.write(&rows, |row| (row_key(tablet, row), vec![set(self.value(VALUE_BYTES))])).await
    }

    /// Sends the write of each of these rows, in batches.
    pub(crate) async fn write(&self, rows: &[u64], write: impl Fn(u64) -> (RowKey, Vec<Mutation>)) -> Outcome<()> {
        let table = self.table(FILL_TIMEOUT);
        let batches = rows.chunks(BATCH).map(|rows| {
            let batch: Vec<_> = rows.iter().map(|row| write(*row)).collect();
            let table = table.clone();
            async move { table.mutate_rows(&batch).await }
        });
        let mut written = futures::stream::iter(batches).buffer_unordered(REQUESTS);
        while let Some(outcomes) = written.next().await {
            for outcome in outcomes? {
                outcome?;
            }
        }
        Ok(())
    }

    /// The keys of all rows.
    pub(crate) async fn keys(&self) -> Outcome<Vec<RowKey>> {
        let rows = self.table(FILL_TIMEOUT).read_rows(RowSet::all(), ReadOptions::default()).await?;
        Ok(rows.into_iter().map(|row| row.key).collect())
    }

    /// The tablets, in order of their keys.
    pub(crate) async fn tablets(&self) -> Outcome<Vec<TabletDescriptor>> {
        let listed = self.client.tablets(&self.name).await?;
        Ok(listed.into_iter().map(|(tablet, _leader)| tablet).collect())
    }

    /// The tablet that holds the row.
    pub(crate) async fn tablet_of(&self, key: &RowKey) -> Outcome<TabletDescriptor> {
        let tablets = self.tablets().await?;
        let found = tablets.into_iter().find(|tablet| tablet.range.contains(key.as_bytes()));
        Ok(found.ok_or_else(|| format!("no tablet holds {key}"))?)
    }

    /// A group of tables other than this one.
    pub(crate) async fn other_group(&self, group: GroupId) -> Outcome<GroupId> {
        let groups = self.admin.groups().await?.into_iter().map(|one| one.group.group);
        let mut others = groups.filter(|other| *other != GroupId::METADATA && *other != group);
        Ok(others.next().ok_or("there is one group only")?)
    }

    /// Moves a tablet to another group.
    pub(crate) async fn move_away(&self, tablet: &TabletDescriptor) -> Outcome<()> {
        let group = self.other_group(tablet.group).await?;
        self.move_to(tablet.tablet, group).await
    }

    /// Moves a tablet to this group.
    pub(crate) async fn move_to(&self, tablet: TabletId, group: GroupId) -> Outcome<()> {
        self.admin.move_tablet(tablet, group).await?;
        Ok(())
    }
}
