//! The directory cache: a copy of Chubby's files in the server's own data folder, for restarts while Chubby is unavailable.
//!
//! The file is rewritten as a whole shortly after a change, which is rare: a server joins or leaves, a table is created, the
//! root tablet moves. It holds hints only, so it may be stale or missing: without it the server must wait for Chubby before
//! it finds other servers, as at its first start. Raft decides which replica leads.

use std::path::Path;
use std::time::Duration;

use ebla_chubby::SharedChubby;
use ebla_model::error::Error;
use ebla_model::id::ClusterId;
use ebla_proto::{convert, record};
use ebla_routing::ChubbyDirectory;
use ebla_runtime::{Blocking, Runtime};
use ebla_storage::hint_file::HintFile;
use tracing::{info, warn};

/// The file in the data folder.
const FILE_NAME: &str = "directory";
/// How long changes are collected before a write: many servers register at once, and a table is two files.
const WRITE_DELAY: Duration = Duration::from_secs(1);

/// The file and its content.
#[derive(Debug)]
pub(crate) struct DirectoryCache {
    file: HintFile,
    cached: record::DirectoryCopy,
}

impl DirectoryCache {
    /// Loads the copy from this data folder if it belongs to `cluster`; `None`: the server does not know its cluster yet.
    /// Blocking.
    pub(crate) fn load(data_dir: &Path, cluster: Option<ClusterId>) -> Self {
        let file = HintFile::new(&data_dir.join(FILE_NAME));
        let cached = read(&file).unwrap_or_else(|error| {
            warn!(%error, "cannot read cached cluster directory; starting without it");
            None
        });
        let cached = match cached {
            Some(cached) if cluster.is_some() && cluster_id(&cached) == cluster => cached,
            Some(other) => {
                warn!(cluster = ?cluster_id(&other), "ignoring cached cluster directory: written by another cluster");
                empty_copy(cluster)
            }
            None => empty_copy(cluster),
        };
        Self { file, cached }
    }

    /// A directory that starts from the cached copy.
    pub(crate) fn directory(&self, chubby: SharedChubby, runtime: &Runtime) -> ChubbyDirectory {
        let (servers, tables) = (self.cached.servers.len(), self.cached.tables.len());
        info!(servers, tables, "loaded cached cluster directory");
        ChubbyDirectory::start_from(self.cached.clone(), chubby, runtime)
    }

    /// Persists later changes of the directory; the task ends with `runtime.tasks`.
    pub(crate) fn persist_changes(self, directory: &ChubbyDirectory, maintenance: &Blocking, runtime: &Runtime) {
        let persisting = self.run(directory.clone(), maintenance.clone());
        runtime.tasks.spawn_until_stopped("directory-cache", persisting);
    }

    async fn run(mut self, directory: ChubbyDirectory, maintenance: Blocking) {
        let mut changes = directory.changes();
        while changes.changed().await.is_ok() {
            tokio::time::sleep(WRITE_DELAY).await;
            changes.mark_unchanged();
            let copy = directory.copy();
            if copy == self.cached || copy.cluster.is_none() {
                continue;
            }
            let (file, content) = (self.file.clone(), convert::encode_record(copy.clone()));
            match maintenance.run(move || file.write(&content)).await {
                Ok(Ok(())) => self.cached = copy,
                Ok(Err(error)) => warn!(%error, "cannot write cached cluster directory"),
                // The next change is written with it.
                Err(error) => warn!(%error, "cached cluster directory not updated; retrying at the next change"),
            }
        }
    }
}

fn read(file: &HintFile) -> Result<Option<record::DirectoryCopy>, Error> {
    let bytes = file.read().map_err(|error| Error::damaged(error.to_string()))?;
    bytes.map(|bytes| convert::decode_record(bytes.as_slice())).transpose()
}

fn cluster_id(copy: &record::DirectoryCopy) -> Option<ClusterId> {
    copy.cluster.as_ref().and_then(|cluster| ClusterId::from_bytes(&cluster.cluster))
}

/// A copy without content: only the cluster's id, so that files of another cluster are rejected.
fn empty_copy(cluster: Option<ClusterId>) -> record::DirectoryCopy {
    let cluster = cluster.map(|id| record::Cluster {
        version: convert::VERSION,
        cluster: id.to_bytes().to_vec().into(),
        ..Default::default()
    });
    record::DirectoryCopy { cluster, ..Default::default() }
}

#[cfg(test)]
mod tests {
    use ebla_chubby::embedded::Embedded;
    use ebla_chubby::{Write, paths};
    use ebla_model::id::ServerId;

    use super::*;

    const OURS: Option<ClusterId> = Some(ClusterId::new(5));

    fn known() -> record::DirectoryCopy {
        let server = record::Server { server: 1, address: "host:1".to_owned(), ..Default::default() };
        record::DirectoryCopy { version: convert::VERSION, servers: vec![server], ..empty_copy(OURS) }
    }

    fn folder() -> (tempfile::TempDir, HintFile) {
        let folder = tempfile::tempdir().unwrap();
        let file = HintFile::new(&folder.path().join(FILE_NAME));
        (folder, file)
    }

    #[test]
    fn only_a_copy_of_the_same_cluster_is_used() {
        let (folder, file) = folder();
        assert_eq!(DirectoryCache::load(folder.path(), OURS).cached, empty_copy(OURS), "no file");
        file.write(&convert::encode_record(known())).unwrap();
        assert_eq!(DirectoryCache::load(folder.path(), OURS).cached, known());
        let other = Some(ClusterId::new(6));
        assert_eq!(DirectoryCache::load(folder.path(), other).cached, empty_copy(other));
        assert_eq!(DirectoryCache::load(folder.path(), None).cached, record::DirectoryCopy::default());
    }

    #[test]
    fn a_damaged_file_is_ignored() {
        let (folder, file) = folder();
        file.write(&convert::encode_record(known())).unwrap();
        let path = folder.path().join(FILE_NAME);
        let mut bytes = std::fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(DirectoryCache::load(folder.path(), OURS).cached, empty_copy(OURS));
        file.write(b"no record").unwrap();
        assert_eq!(DirectoryCache::load(folder.path(), OURS).cached, empty_copy(OURS));
    }

    #[tokio::test]
    async fn chubbys_files_are_cached_and_those_of_another_cluster_are_rejected() {
        let (folder, file) = folder();
        let runtime = Runtime::system("test");
        let chubby = Embedded::in_memory(runtime.clock.clone(), &runtime.tasks).shared();
        let cluster = |id: u128| {
            let cluster = empty_copy(Some(ClusterId::new(id))).cluster.unwrap();
            Write::put(paths::CLUSTER, convert::encode_record(cluster))
        };
        let server = |address: &str| {
            let server = record::Server { server: 1, address: address.to_owned(), ..Default::default() };
            Write::put(paths::server(ServerId::new(1)), convert::encode_record(server))
        };
        chubby.transact(Vec::new(), vec![cluster(5), server("host:1")]).await.unwrap();
        let cache = DirectoryCache::load(folder.path(), None);
        let directory = cache.directory(chubby.clone(), &runtime);
        cache.persist_changes(&directory, &Blocking::inline(), &runtime);
        while file.read().unwrap().is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(DirectoryCache::load(folder.path(), OURS).cached.servers, directory.servers());

        // At the next start Chubby belongs to another cluster: the server keeps its cached copy.
        chubby.transact(Vec::new(), vec![cluster(6), server("foreign:1")]).await.unwrap();
        let next = DirectoryCache::load(folder.path(), OURS).directory(chubby.clone(), &runtime);
        assert!(tokio::time::timeout(Duration::from_millis(200), next.ready()).await.is_err());
        assert_eq!((next.cluster(), next.servers()[0].address.as_str()), (OURS, "host:1"));
        runtime.tasks.stop(Duration::from_secs(30)).await;
    }
}
