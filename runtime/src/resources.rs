//! The resources of the machine that a process may use: the space on a disk, open files, memory.
//!
//! [`SystemResources`] reads them from Linux; elsewhere files and memory are not known. Tests and the simulation pass
//! [`FixedResources`], whose values they set.

use std::fs;
use std::path::{Path, PathBuf};

use ebla_model::capacity::{DiskSpace, Resources, Usage, default_reserve_bytes};
use parking_lot::Mutex;
use rustix::process::{Resource, getrlimit};

use crate::units::ByteSize;

/// Reads the resources of a process. Blocking: the calls read the file system's and the kernel's counters.
pub trait ResourceProbe: Send + Sync + 'static {
    /// The file system of the data folder; `None` when it cannot be read.
    fn disk(&self) -> Option<DiskSpace>;

    /// Open files of the process; `None` when they are not known or not limited.
    fn files(&self) -> Option<Usage>;

    /// Memory of the process in bytes; `None` when it is not known.
    fn memory(&self) -> Option<Usage>;

    /// All of them but the connections, for a process of `sharers` servers.
    fn all(&self, sharers: u64) -> Resources {
        Resources { disk: self.disk(), files: self.files(), memory: self.memory(), connections: None, sharers }
    }
}

/// The resources of this process, with a data folder.
#[derive(Clone, Debug)]
pub struct SystemResources {
    folder: PathBuf,
    reserve: Option<ByteSize>,
}

impl SystemResources {
    /// `reserve`: disk space below which writes are refused; `None`: [`default_reserve_bytes`].
    #[must_use]
    pub fn new(folder: &Path, reserve: Option<ByteSize>) -> Self {
        Self { folder: folder.to_owned(), reserve }
    }
}

impl ResourceProbe for SystemResources {
    fn disk(&self) -> Option<DiskSpace> {
        let found = rustix::fs::statvfs(&self.folder).ok()?;
        // Blocks for privileged processes only are not counted, so that other programs of the machine keep them.
        let (free_bytes, total_bytes) =
            (found.f_bavail.saturating_mul(found.f_frsize), found.f_blocks.saturating_mul(found.f_frsize));
        let reserve_bytes = self.reserve.map_or_else(|| default_reserve_bytes(total_bytes), ByteSize::bytes);
        Some(DiskSpace { free_bytes, total_bytes, reserve_bytes })
    }

    fn files(&self) -> Option<Usage> {
        let limit = getrlimit(Resource::Nofile).current?;
        let used = fs::read_dir("/proc/self/fd").ok()?.count();
        Some(Usage { used: used as u64, limit })
    }

    fn memory(&self) -> Option<Usage> {
        let used = status_bytes(&fs::read_to_string("/proc/self/status").ok()?, "VmRSS:")?;
        let machine = status_bytes(&fs::read_to_string("/proc/meminfo").ok()?, "MemTotal:")?;
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let limits = limit_files(&groups).into_iter().filter_map(|file| parse_limit(&fs::read_to_string(file).ok()?));
        Some(Usage { used, limit: limits.fold(machine, u64::min) })
    }
}

/// The value of a line such as `VmRSS:   1024 kB`, in bytes.
fn status_bytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// The files with the memory limits of the control groups of a process: of its own group and of those around it. `groups`: the
/// content of `/proc/self/cgroup`, whose lines are `number:controllers:path`; version 2 has number 0 and no controllers.
fn limit_files(groups: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(number), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let (root, name) = match (number, controllers) {
            ("0", "") => ("/sys/fs/cgroup", "memory.max"),
            (_, controllers) if controllers.split(',').any(|one| one == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => continue,
        };
        // In a container the path may be that of the host: then only the root exists.
        let group = Path::new(path.trim_start_matches('/'));
        files.extend(group.ancestors().map(|group| Path::new(root).join(group).join(name)));
    }
    files
}

/// A memory limit; `None`: unlimited.
fn parse_limit(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

/// Resources that a test sets. A new one knows none, so nothing is bounded.
#[derive(Debug, Default)]
pub struct FixedResources {
    /// Locked to copy or replace the values.
    resources: Mutex<Resources>,
}

impl FixedResources {
    /// Replaces the values.
    pub fn set(&self, resources: Resources) {
        *self.resources.lock() = resources;
    }
}

impl ResourceProbe for FixedResources {
    fn disk(&self) -> Option<DiskSpace> {
        self.resources.lock().disk
    }

    fn files(&self) -> Option<Usage> {
        self.resources.lock().files
    }

    fn memory(&self) -> Option<Usage> {
        self.resources.lock().memory
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_resources_of_this_process_are_plausible() {
        let here = SystemResources::new(&std::env::temp_dir(), Some(ByteSize::mebibytes(3)));
        let disk = here.disk().unwrap();
        assert!(disk.free_bytes <= disk.total_bytes && disk.total_bytes > 0 && disk.reserve_bytes == 3 << 20);
        assert!(SystemResources::new(Path::new("/absent"), None).disk().is_none());
        let (files, memory) = (here.files().unwrap(), here.memory().unwrap());
        assert!(files.used > 2 && files.used <= files.limit, "{files:?}");
        assert!(memory.used > 1 << 18 && memory.used < memory.limit, "{memory:?}");
        assert_eq!(here.all(3).sharers, 3);
    }

    #[test]
    fn an_open_file_is_counted() {
        let here = SystemResources::new(&std::env::temp_dir(), None);
        // Other tests of this process open files too, but not a hundred.
        let before = here.files().unwrap().used;
        let open: Vec<_> = (0..200).map(|_| fs::File::open("/proc/self/status").unwrap()).collect();
        assert!(here.files().unwrap().used >= before + 100);
        drop(open);
    }

    #[test]
    fn limits_are_those_of_all_control_groups_around_the_process() {
        let shown = |groups: &str| -> Vec<String> {
            limit_files(groups).iter().map(|file| file.display().to_string()).collect()
        };
        assert_eq!(
            shown("0::/a/b\n"),
            ["/sys/fs/cgroup/a/b/memory.max", "/sys/fs/cgroup/a/memory.max", "/sys/fs/cgroup/memory.max"]
        );
        assert_eq!(
            shown("5:cpu,cpuacct:/a\n4:memory:/a\n"),
            ["/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.limit_in_bytes"]
        );
        assert_eq!(shown("nonsense"), [""; 0]);
        assert_eq!((parse_limit("1073741824\n"), parse_limit("max\n")), (Some(1 << 30), None));
        assert_eq!(status_bytes("Name: x\nVmRSS:\t  12 kB\n", "VmRSS:"), Some(12 << 10));
    }
}
