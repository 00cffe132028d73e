//! A snapshot of Chubby's files: the cluster directory, and its record that a server stores for its next start. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use ebla_chubby::{File, paths};
use ebla_model::access::{AuthorizedView, Policy, TableAccess};
use ebla_model::error::Error;
use ebla_model::id::{ClusterId, Incarnation, ServerId, TableId};
use ebla_model::metadata::TabletDescriptor;
use ebla_model::schema::{TableName, TableSchema};
use ebla_proto::{convert, record};
use prost::Message;
use tracing::warn;

/// The active master, as the file of its lock describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActiveMaster {
    /// Its `host:port`.
    pub address: String,
    /// The incarnation of its process.
    pub incarnation: Incarnation,
}

/// The last known files.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ClusterSnapshot {
    pub(crate) cluster: Option<record::Cluster>,
    pub(crate) root: Option<TabletDescriptor>,
    pub(crate) master: Option<ActiveMaster>,
    /// The previous master, while none is active.
    pub(crate) last_master: Option<ActiveMaster>,
    pub(crate) servers: BTreeMap<ServerId, record::Server>,
    /// The addresses of all known servers: a server without a lease may still lead tablets.
    pub(crate) addresses: BTreeMap<ServerId, String>,
    /// By path.
    names: BTreeMap<String, TableId>,
    pub(crate) schemas: BTreeMap<TableId, Arc<TableSchema>>,
    /// The files of policies and views as they were read, by path.
    access_files: BTreeMap<String, Bytes>,
    /// The policies of instances, by path. One that cannot be read grants nothing.
    instance_access: BTreeMap<String, Arc<Policy>>,
    /// The policies of tables and their families.
    table_access: BTreeMap<TableId, Arc<TableAccess>>,
    /// The authorized views, by path.
    views: BTreeMap<String, Arc<AuthorizedView>>,
}

impl ClusterSnapshot {
    pub(crate) fn from_files(files: &[File]) -> Self {
        let mut snapshot = Self::default();
        files.iter().for_each(|file| snapshot.put(file));
        snapshot
    }

    /// Applies a write of a file. An invalid file is skipped and logged, so that the rest of the cluster works.
    pub(crate) fn put(&mut self, file: &File) {
        if let Err(error) = self.try_put(file) {
            warn!(path = file.path, %error, "skipping invalid Chubby file");
        }
    }

    fn try_put(&mut self, file: &File) -> Result<(), Error> {
        let path = file.path.as_str();
        if path == paths::ROOT {
            self.root = Some(convert::descriptor_from_bytes(file.value.clone())?);
        } else if path == paths::CLUSTER {
            self.cluster = Some(decode(file)?);
        } else if path == paths::MASTER {
            let master: record::Master = decode(file)?;
            self.master =
                Some(ActiveMaster { address: master.address, incarnation: Incarnation::new(master.incarnation) });
        } else if let Some(server) = paths::parse_server(path) {
            self.put_server(server, decode(file)?);
        } else if let Some(table) = paths::parse_table(path) {
            self.schemas.insert(table, Arc::new(convert::schema_from_bytes(file.value.clone())?));
        } else if is_access(path) {
            self.put_access(path, file.value.clone());
        } else if path.starts_with(paths::NAMES) {
            self.names.insert(path.to_owned(), parse_id(file)?);
        }
        Ok(())
    }

    /// Policies that cannot be read must not give access: the file may restrict what another one grants.
    fn put_access(&mut self, path: &str, value: Bytes) {
        self.access_files.insert(path.to_owned(), value.clone());
        if let Some(table) = paths::parse_table_access(path) {
            let access = valid_or_log("policies of a table", convert::access::table_access_from_bytes(value));
            self.table_access.insert(table, Arc::new(access.unwrap_or_else(TableAccess::unreadable)));
        } else if path.starts_with(paths::VIEWS) {
            let view = valid_or_log("authorized view", convert::view::view_from_bytes(value));
            self.views.insert(path.to_owned(), Arc::new(view.unwrap_or_else(AuthorizedView::unreadable)));
        } else if path.starts_with(paths::INSTANCE_ACCESS) {
            let policy = valid_or_log("policy of an instance", convert::access::instance_access_from_bytes(value));
            self.instance_access.insert(path.to_owned(), Arc::new(policy.unwrap_or_default()));
        }
    }

    fn put_server(&mut self, server: ServerId, registered: record::Server) {
        self.addresses.insert(server, registered.address.clone());
        self.servers.insert(server, registered);
    }

    pub(crate) fn delete(&mut self, path: &str) {
        if path == paths::MASTER {
            self.last_master = self.master.take().or_else(|| self.last_master.take());
        } else if let Some(server) = paths::parse_server(path) {
            self.servers.remove(&server);
        } else if let Some(table) = paths::parse_table(path) {
            self.schemas.remove(&table);
        } else if is_access(path) {
            self.access_files.remove(path);
            self.views.remove(path);
            self.instance_access.remove(path);
            paths::parse_table_access(path).and_then(|table| self.table_access.remove(&table));
        } else {
            self.names.remove(path);
        }
    }

    pub(crate) fn cluster_id(&self) -> Option<ClusterId> {
        self.cluster.as_ref().and_then(|cluster| ClusterId::from_bytes(&cluster.cluster))
    }

    pub(crate) fn schema(&self, name: &TableName) -> Option<&Arc<TableSchema>> {
        self.schemas.get(self.names.get(&paths::name(name))?)
    }

    /// The policy of an instance.
    pub(crate) fn instance_policy(&self, project: &str, instance: &str) -> Option<Arc<Policy>> {
        self.instance_access.get(&paths::instance_access(project, instance)).cloned()
    }

    /// The policies of a table.
    pub(crate) fn policies_of(&self, table: TableId) -> Option<Arc<TableAccess>> {
        self.table_access.get(&table).cloned()
    }

    /// An authorized view of a table.
    pub(crate) fn view(&self, table: TableId, id: &str) -> Option<Arc<AuthorizedView>> {
        self.views.get(&paths::view(table, id)).cloned()
    }

    /// Adds the addresses of servers that only the older snapshot has, and its last master.
    pub(crate) fn inherit(&mut self, older: &Self) {
        self.last_master = older.master.clone().or_else(|| older.last_master.clone());
        for (server, address) in &older.addresses {
            self.addresses.entry(*server).or_insert_with(|| address.clone());
        }
    }

    /// The record of the snapshot. Without the master: its lease expires while Chubby is unavailable.
    pub(crate) fn to_record(&self) -> record::DirectoryCopy {
        let without_lease = self.addresses.iter().filter(|(server, _)| !self.servers.contains_key(server));
        record::DirectoryCopy {
            version: convert::VERSION,
            cluster: self.cluster.clone(),
            root: self.root.as_ref().map(convert::descriptor_to_proto),
            servers: self.servers.values().cloned().collect(),
            gone: without_lease.map(|(server, address)| address_record(*server, address)).collect(),
            tables: self.schemas.values().map(|schema| convert::schema_to_proto(schema)).collect(),
            names: self.names.iter().map(|(path, table)| name_record(path, *table)).collect(),
            access: self.access_files.iter().map(|(path, value)| copied(path, value)).collect(),
        }
    }

    /// The snapshot of a record. Invalid parts are skipped and logged, as with files.
    pub(crate) fn from_record(record: record::DirectoryCopy) -> Self {
        let mut snapshot = Self { cluster: record.cluster, ..Self::default() };
        snapshot.root = record.root.and_then(|root| valid_or_log("root tablet", convert::descriptor_from_proto(&root)));
        for server in record.servers {
            snapshot.put_server(ServerId::new(server.server), server);
        }
        for server in record.gone {
            snapshot.addresses.entry(ServerId::new(server.server)).or_insert(server.address);
        }
        let schemas =
            record.tables.iter().filter_map(|table| valid_or_log("table schema", convert::schema_from_proto(table)));
        snapshot.schemas = schemas.map(|schema| (schema.table, Arc::new(schema))).collect();
        snapshot.names = record.names.into_iter().map(|name| (name.path, TableId::new(name.table))).collect();
        record.access.into_iter().for_each(|file| snapshot.put_access(&file.path, file.value));
        snapshot
    }
}

/// Whether a file says who has access to what.
fn is_access(path: &str) -> bool {
    path.starts_with(paths::ACCESS) || path.starts_with(paths::VIEWS)
}

fn valid_or_log<T>(part: &str, decoded: Result<T, Error>) -> Option<T> {
    decoded.inspect_err(|error| warn!(part, %error, "skipping invalid part of the cached cluster directory")).ok()
}

fn address_record(server: ServerId, address: &str) -> record::Server {
    record::Server { server: server.get(), address: address.to_owned(), ..Default::default() }
}

fn name_record(path: &str, table: TableId) -> record::NamedTable {
    record::NamedTable { path: path.to_owned(), table: table.get() }
}

fn copied(path: &str, value: &Bytes) -> record::CopiedFile {
    record::CopiedFile { path: path.to_owned(), value: value.clone() }
}

fn decode<M: Message + Default>(file: &File) -> Result<M, Error> {
    M::decode(file.value.clone()).map_err(|error| Error::damaged(error.to_string()))
}

/// The table id in a file below `names/`.
pub(crate) fn parse_id(file: &File) -> Result<TableId, Error> {
    let text = std::str::from_utf8(&file.value).ok();
    text.and_then(|text| text.parse().ok()).ok_or_else(|| Error::damaged("invalid table id"))
}

#[cfg(test)]
mod tests {
    use ebla_chubby::Revision;
    use ebla_model::metadata::first_tablets;
    use ebla_model::schema::{Protection, TableState};

    use super::*;

    fn file(path: impl Into<String>, value: impl Into<Bytes>) -> File {
        let revision = Revision::new(7);
        File { path: path.into(), value: value.into(), created: revision, modified: revision, lease: None }
    }

    fn full() -> ClusterSnapshot {
        let server = |id: u64| {
            let server = record::Server { server: id, address: format!("host-{id}:1"), ..Default::default() };
            file(paths::server(ServerId::new(id)), convert::encode_record(server))
        };
        let [root, _rest] = first_tablets(&[ServerId::new(1)]);
        let name: TableName = "projects/p/instances/i/tables/t".parse().unwrap();
        let schema = TableSchema::new(TableId::new(7), name.clone(), Vec::new()).unwrap();
        let schema = TableSchema { state: TableState::Active, ..schema };
        let cluster = record::Cluster { cluster: ClusterId::new(5).to_bytes().to_vec().into(), ..Default::default() };
        let mut snapshot = ClusterSnapshot::from_files(&[
            file(paths::CLUSTER, convert::encode_record(cluster)),
            file(paths::ROOT, convert::descriptor_to_bytes(&root)),
            server(1),
            server(2),
            file(paths::name(&name), "7"),
            file(paths::table(TableId::new(7)), convert::schema_to_bytes(&schema)),
            file(paths::table_access(TableId::new(7)), Bytes::from_static(b"\xff")),
            file(paths::view(TableId::new(7), "v"), Bytes::from_static(b"\xff")),
        ]);
        snapshot.delete(&paths::server(ServerId::new(2)));
        snapshot
    }

    #[test]
    fn the_record_has_everything_except_the_master() {
        let known = full();
        let mut current = known.clone();
        let master = record::Master { address: "host:2".to_owned(), ..Default::default() };
        current.put(&file(paths::MASTER, convert::encode_record(master)));
        assert!(current.master.is_some());
        let stored = convert::encode_record(current.to_record());
        let read = ClusterSnapshot::from_record(convert::decode_record(stored).unwrap());
        assert_eq!(read, known);
        assert_eq!(read.addresses.get(&ServerId::new(2)).map(String::as_str), Some("host-2:1"));
        assert!(!read.servers.contains_key(&ServerId::new(2)), "its lease had expired");
        assert_eq!(read.cluster_id(), Some(ClusterId::new(5)));
    }

    #[test]
    fn policies_that_cannot_be_read_close_the_table() {
        let mut snapshot = full();
        assert!(snapshot.policies_of(TableId::new(7)).unwrap().is_unreadable);
        let path = paths::table_access(TableId::new(7));
        snapshot.put(&file(path.clone(), convert::access::table_access_to_bytes(&TableAccess::default())));
        assert_eq!(*snapshot.policies_of(TableId::new(7)).unwrap(), TableAccess::default());
        snapshot.delete(&path);
        assert_eq!(snapshot.policies_of(TableId::new(7)), None);
    }

    #[test]
    fn a_view_that_cannot_be_read_includes_nothing() {
        let mut snapshot = full();
        assert_eq!(*snapshot.view(TableId::new(7), "v").unwrap(), AuthorizedView::unreadable());
        assert_eq!(snapshot.view(TableId::new(8), "v"), None);
        let view = AuthorizedView { protection: Protection::Off, ..AuthorizedView::unreadable() };
        let path = paths::view(TableId::new(7), "v");
        snapshot.put(&file(path.clone(), convert::view::view_to_bytes(&view).unwrap()));
        assert_eq!(*snapshot.view(TableId::new(7), "v").unwrap(), view);
        snapshot.delete(&path);
        assert_eq!(snapshot.view(TableId::new(7), "v"), None);
    }

    #[test]
    fn an_empty_snapshot_has_an_empty_record() {
        assert_eq!(ClusterSnapshot::from_record(record::DirectoryCopy::default()), ClusterSnapshot::default());
        assert_eq!(ClusterSnapshot::from_record(ClusterSnapshot::default().to_record()), ClusterSnapshot::default());
    }

    #[test]
    fn an_invalid_part_is_skipped() {
        let mut record = full().to_record();
        record.tables[0].name = "no name".to_owned();
        let read = ClusterSnapshot::from_record(record);
        assert!(read.schemas.is_empty());
        assert_eq!((read.root.is_some(), read.addresses.len()), (true, 2));
    }
}
