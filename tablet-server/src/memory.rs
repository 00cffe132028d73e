//! What a server remembers of its cluster over a restart: the directory's copy of Chubby's files, in its own folder.
//!
//! Rewritten as a whole a moment after it has changed, which is rare: a server comes or goes, a table is made, the root
//! tablet moves. It holds hints and nothing else, so it may be old, or missing: then the server has to hear from
//! Chubby before it can find the others, as at its first start. Who leads is decided by Raft.

use std::path::Path;
use std::time::Duration;

use ebla_chubby::SharedChubby;
use ebla_model::error::Error;
use ebla_model::id::ClusterId;
use ebla_proto::{convert, record};
use ebla_routing::ChubbyDirectory;
use ebla_runtime::{Blocking, Runtime};
use ebla_storage::kept::KeptFile;
use tracing::{info, warn};

/// The file in the data folder.
const FILE: &str = "directory";
/// How long changes are gathered before they are written: many servers come at once, and a table is two files.
const GATHER: Duration = Duration::from_secs(1);

/// The file with what it holds.
#[derive(Debug)]
pub(crate) struct Memory {
    file: KeptFile,
    kept: record::DirectoryCopy,
}

impl Memory {
    /// What was kept in this data folder, when it is of this cluster; `None`: the server does not know its cluster yet.
    /// Blocks on the disk.
    pub(crate) fn load(data_dir: &Path, cluster: Option<ClusterId>) -> Self {
        let file = KeptFile::new(&data_dir.join(FILE));
        let kept = read(&file).unwrap_or_else(|error| {
            warn!(%error, "no memory of the cluster");
            None
        });
        let kept = match kept {
            Some(kept) if cluster.is_some() && cluster_of(&kept) == cluster => kept,
            Some(strange) => {
                warn!(cluster = ?cluster_of(&strange), "the memory of another cluster is left alone");
                only_name(cluster)
            }
            None => only_name(cluster),
        };
        Self { file, kept }
    }

    /// A directory that begins with what was kept.
    pub(crate) fn directory(&self, chubby: SharedChubby, runtime: &Runtime) -> ChubbyDirectory {
        let (servers, tables) = (self.kept.servers.len(), self.kept.tables.len());
        info!(servers, tables, "remembers the cluster");
        ChubbyDirectory::start_from(self.kept.clone(), chubby, runtime)
    }

    /// Keeps what the directory learns from now on; the task ends with `runtime.tasks`.
    pub(crate) fn keep(self, directory: &ChubbyDirectory, maintenance: &Blocking, runtime: &Runtime) {
        let keeping = self.follow(directory.clone(), maintenance.clone());
        runtime.tasks.spawn_until_stopped("memory", keeping);
    }

    async fn follow(mut self, directory: ChubbyDirectory, maintenance: Blocking) {
        let mut changes = directory.changes();
        while changes.changed().await.is_ok() {
            tokio::time::sleep(GATHER).await;
            changes.mark_unchanged();
            let copy = directory.copy();
            if copy == self.kept || copy.cluster.is_none() {
                continue;
            }
            let (file, content) = (self.file.clone(), convert::encode_record(copy.clone()));
            match maintenance.run(move || file.write(&content)).await {
                Ok(Ok(())) => self.kept = copy,
                Ok(Err(error)) => warn!(%error, "cannot keep the memory of the cluster"),
                // The next change brings it.
                Err(error) => warn!(%error, "the memory of the cluster is not kept now"),
            }
        }
    }
}

fn read(file: &KeptFile) -> Result<Option<record::DirectoryCopy>, Error> {
    let bytes = file.read().map_err(|error| Error::damaged(error.to_string()))?;
    bytes.map(|bytes| convert::decode_record(bytes.as_slice())).transpose()
}

fn cluster_of(copy: &record::DirectoryCopy) -> Option<ClusterId> {
    copy.cluster.as_ref().and_then(|cluster| ClusterId::from_bytes(&cluster.cluster))
}

/// All that is known without a copy: which cluster it is, so that no other one's files are taken for it.
fn only_name(cluster: Option<ClusterId>) -> record::DirectoryCopy {
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
        record::DirectoryCopy { version: convert::VERSION, servers: vec![server], ..only_name(OURS) }
    }

    fn folder() -> (tempfile::TempDir, KeptFile) {
        let folder = tempfile::tempdir().unwrap();
        let file = KeptFile::new(&folder.path().join(FILE));
        (folder, file)
    }

    #[test]
    fn the_memory_of_this_cluster_is_used_and_no_other() {
        let (folder, file) = folder();
        assert_eq!(Memory::load(folder.path(), OURS).kept, only_name(OURS), "nothing was kept");
        file.write(&convert::encode_record(known())).unwrap();
        assert_eq!(Memory::load(folder.path(), OURS).kept, known());
        let other = Some(ClusterId::new(6));
        assert_eq!(Memory::load(folder.path(), other).kept, only_name(other));
        assert_eq!(Memory::load(folder.path(), None).kept, record::DirectoryCopy::default());
    }

    #[test]
    fn a_damaged_memory_is_none() {
        let (folder, file) = folder();
        file.write(&convert::encode_record(known())).unwrap();
        let path = folder.path().join(FILE);
        let mut bytes = std::fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(Memory::load(folder.path(), OURS).kept, only_name(OURS));
        file.write(b"no record").unwrap();
        assert_eq!(Memory::load(folder.path(), OURS).kept, only_name(OURS));
    }

    #[tokio::test]
    async fn what_chubby_says_is_remembered_and_no_stranger_is_believed() {
        let (folder, file) = folder();
        let runtime = Runtime::system("test");
        let chubby = Embedded::in_memory(runtime.clock.clone(), &runtime.tasks).shared();
        let cluster = |id: u128| {
            let cluster = only_name(Some(ClusterId::new(id))).cluster.unwrap();
            Write::put(paths::CLUSTER, convert::encode_record(cluster))
        };
        let server = |address: &str| {
            let server = record::Server { server: 1, address: address.to_owned(), ..Default::default() };
            Write::put(paths::server(ServerId::new(1)), convert::encode_record(server))
        };
        chubby.transact(Vec::new(), vec![cluster(5), server("host:1")]).await.unwrap();
        let memory = Memory::load(folder.path(), None);
        let directory = memory.directory(chubby.clone(), &runtime);
        memory.keep(&directory, &Blocking::inline(), &runtime);
        while file.read().unwrap().is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(Memory::load(folder.path(), OURS).kept.servers, directory.servers());

        // The next run meets a Chubby that is another cluster's, and keeps to what it knows.
        chubby.transact(Vec::new(), vec![cluster(6), server("stranger:1")]).await.unwrap();
        let next = Memory::load(folder.path(), OURS).directory(chubby.clone(), &runtime);
        assert!(tokio::time::timeout(Duration::from_millis(200), next.ready()).await.is_err());
        assert_eq!((next.cluster(), next.servers()[0].address.as_str()), (OURS, "host:1"));
        runtime.tasks.stop(Duration::from_secs(30)).await;
    }
}
