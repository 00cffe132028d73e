//! Chubby's files as last heard of, and the same as a record that a server keeps for its next start. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use ebla_chubby::{File, paths};
use ebla_model::error::Error;
use ebla_model::id::{ClusterId, Incarnation, MasterEpoch, ServerId, TableId};
use ebla_model::metadata::TabletDescriptor;
use ebla_model::schema::{TableName, TableSchema};
use ebla_proto::{convert, record};
use prost::Message;
use tracing::warn;

/// The master as its lock says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MasterInOffice {
    /// Its `host:port`.
    pub address: String,
    /// One run of its process.
    pub incarnation: Incarnation,
    /// Its time in office.
    pub epoch: MasterEpoch,
}

/// The files as last heard of.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Picture {
    pub(super) cluster: Option<record::Cluster>,
    pub(super) root: Option<TabletDescriptor>,
    pub(super) master: Option<MasterInOffice>,
    /// The one before, while there is none.
    pub(super) last_master: Option<MasterInOffice>,
    pub(super) servers: BTreeMap<ServerId, record::Server>,
    /// Of all servers ever heard of: one that has lost its lease may still lead tablets.
    pub(super) addresses: BTreeMap<ServerId, String>,
    /// By path.
    names: BTreeMap<String, TableId>,
    pub(super) schemas: BTreeMap<TableId, Arc<TableSchema>>,
}

impl Picture {
    pub(super) fn of(files: &[File]) -> Self {
        let mut picture = Self::default();
        files.iter().for_each(|file| picture.put(file));
        picture
    }

    /// A file was written. One that cannot be read is left out, and noted: the rest of the cluster goes on.
    pub(super) fn put(&mut self, file: &File) {
        if let Err(error) = self.try_put(file) {
            warn!(path = file.path, %error, "cannot read a file of Chubby's");
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
            self.master = Some(MasterInOffice {
                address: master.address,
                incarnation: Incarnation::new(master.incarnation),
                epoch: MasterEpoch::new(file.created.get()),
            });
        } else if let Some(server) = paths::parse_server(path) {
            self.put_server(server, decode(file)?);
        } else if let Some(table) = paths::parse_table(path) {
            self.schemas.insert(table, Arc::new(convert::schema_from_bytes(file.value.clone())?));
        } else if path.starts_with(paths::NAMES) {
            self.names.insert(path.to_owned(), parse_id(file)?);
        }
        Ok(())
    }

    fn put_server(&mut self, server: ServerId, registered: record::Server) {
        self.addresses.insert(server, registered.address.clone());
        self.servers.insert(server, registered);
    }

    pub(super) fn deleted(&mut self, path: &str) {
        if path == paths::MASTER {
            self.last_master = self.master.take().or_else(|| self.last_master.take());
        } else if let Some(server) = paths::parse_server(path) {
            self.servers.remove(&server);
        } else if let Some(table) = paths::parse_table(path) {
            self.schemas.remove(&table);
        } else {
            self.names.remove(path);
        }
    }

    pub(super) fn cluster_id(&self) -> Option<ClusterId> {
        self.cluster.as_ref().and_then(|cluster| ClusterId::from_bytes(&cluster.cluster))
    }

    pub(super) fn schema(&self, name: &TableName) -> Option<&Arc<TableSchema>> {
        self.schemas.get(self.names.get(&paths::name(name))?)
    }

    /// Takes over the addresses of servers that this picture does not have, and the master of before.
    pub(super) fn remember(&mut self, older: &Self) {
        self.last_master = older.master.clone().or_else(|| older.last_master.clone());
        for (server, address) in &older.addresses {
            self.addresses.entry(*server).or_insert_with(|| address.clone());
        }
    }

    /// What is worth keeping. Without the master: none stays in office for long when Chubby is away.
    pub(super) fn to_copy(&self) -> record::DirectoryCopy {
        let gone = self.addresses.iter().filter(|(server, _)| !self.servers.contains_key(server));
        record::DirectoryCopy {
            version: convert::VERSION,
            cluster: self.cluster.clone(),
            root: self.root.as_ref().map(convert::descriptor_to_proto),
            servers: self.servers.values().cloned().collect(),
            gone: gone.map(|(server, address)| last_seen(*server, address)).collect(),
            tables: self.schemas.values().map(|schema| convert::schema_to_proto(schema)).collect(),
            names: self.names.iter().map(|(path, table)| named(path, *table)).collect(),
        }
    }

    /// The picture that was kept. What cannot be read is left out, and noted, as with files.
    pub(super) fn from_copy(copy: record::DirectoryCopy) -> Self {
        let mut picture = Self { cluster: copy.cluster, ..Self::default() };
        picture.root = copy.root.and_then(|root| readable("the root tablet", convert::descriptor_from_proto(&root)));
        for server in copy.servers {
            picture.put_server(ServerId::new(server.server), server);
        }
        for server in copy.gone {
            picture.addresses.entry(ServerId::new(server.server)).or_insert(server.address);
        }
        let schemas = copy.tables.iter().filter_map(|table| readable("a schema", convert::schema_from_proto(table)));
        picture.schemas = schemas.map(|schema| (schema.table, Arc::new(schema))).collect();
        picture.names = copy.names.into_iter().map(|name| (name.path, TableId::new(name.table))).collect();
        picture
    }
}

fn readable<T>(what: &str, read: Result<T, Error>) -> Option<T> {
    read.inspect_err(|error| warn!(what, %error, "cannot read a part of what was kept")).ok()
}

fn last_seen(server: ServerId, address: &str) -> record::Server {
    record::Server { server: server.get(), address: address.to_owned(), ..Default::default() }
}

fn named(path: &str, table: TableId) -> record::NamedTable {
    record::NamedTable { path: path.to_owned(), table: table.get() }
}

fn decode<M: Message + Default>(file: &File) -> Result<M, Error> {
    M::decode(file.value.clone()).map_err(|error| Error::damaged(error.to_string()))
}

/// The table that a file below `names/` stands for.
pub(super) fn parse_id(file: &File) -> Result<TableId, Error> {
    let text = std::str::from_utf8(&file.value).ok();
    text.and_then(|text| text.parse().ok()).ok_or_else(|| Error::damaged("it is no table id"))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use ebla_chubby::Revision;
    use ebla_model::metadata::first_tablets;
    use ebla_model::schema::TableState;

    use super::*;

    fn file(path: impl Into<String>, value: impl Into<Bytes>) -> File {
        let revision = Revision::new(7);
        File { path: path.into(), value: value.into(), created: revision, modified: revision, lease: None }
    }

    fn full() -> Picture {
        let server = |id: u64| {
            let server = record::Server { server: id, address: format!("host-{id}:1"), ..Default::default() };
            file(paths::server(ServerId::new(id)), convert::encode_record(server))
        };
        let [root, _rest] = first_tablets(&[ServerId::new(1)]);
        let name: TableName = "projects/p/instances/i/tables/t".parse().unwrap();
        let schema = TableSchema::new(TableId::new(7), name.clone(), Vec::new()).unwrap();
        let schema = TableSchema { state: TableState::Active, ..schema };
        let cluster = record::Cluster { cluster: ClusterId::new(5).to_bytes().to_vec().into(), ..Default::default() };
        let mut picture = Picture::of(&[
            file(paths::CLUSTER, convert::encode_record(cluster)),
            file(paths::ROOT, convert::descriptor_to_bytes(&root)),
            server(1),
            server(2),
            file(paths::name(&name), "7"),
            file(paths::table(TableId::new(7)), convert::schema_to_bytes(&schema)),
        ]);
        picture.deleted(&paths::server(ServerId::new(2)));
        picture
    }

    #[test]
    fn what_is_kept_is_what_was_heard_but_for_the_master() {
        let known = full();
        let mut heard = known.clone();
        let master = record::Master { address: "host:2".to_owned(), ..Default::default() };
        heard.put(&file(paths::MASTER, convert::encode_record(master)));
        assert!(heard.master.is_some());
        let kept = convert::encode_record(heard.to_copy());
        let read = Picture::from_copy(convert::decode_record(kept).unwrap());
        assert_eq!(read, known);
        assert_eq!(read.addresses.get(&ServerId::new(2)).map(String::as_str), Some("host-2:1"));
        assert!(!read.servers.contains_key(&ServerId::new(2)), "it was gone");
        assert_eq!(read.cluster_id(), Some(ClusterId::new(5)));
    }

    #[test]
    fn nothing_known_is_nothing_kept() {
        assert_eq!(Picture::from_copy(record::DirectoryCopy::default()), Picture::default());
        assert_eq!(Picture::from_copy(Picture::default().to_copy()), Picture::default());
    }

    #[test]
    fn a_part_that_cannot_be_read_is_left_out() {
        let mut copy = full().to_copy();
        copy.tables[0].name = "no name".to_owned();
        let read = Picture::from_copy(copy);
        assert!(read.schemas.is_empty());
        assert_eq!((read.root.is_some(), read.addresses.len()), (true, 2));
    }
}
