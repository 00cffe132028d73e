//! Control groups of Linux with a processor quota, one for each tablet server. Removed when dropped.
//!
//! | version | quota | the process enters |
//! |---|---|---|
//! | 1 | `cpu.cfs_period_us`, `cpu.cfs_quota_us` | before it becomes the program, through `cgroup.procs` |
//! | 2 | `cpu.max` | the same |

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ebla_workload::bench::paper::quota::{Hierarchy, Quota, Version, hierarchy, throttled_periods};

/// The name of a group is this, the id of this process, and a number.
const PREFIX: &str = "ebla-paper-";
/// The members of a group may still be exiting when it is removed: attempts, and the pause between them.
const REMOVALS: u32 = 50;
const REMOVAL_PAUSE: Duration = Duration::from_millis(20);

/// The groups of the servers of one cluster. They contain no processes any more when they are dropped.
pub(super) struct Groups {
    version: Version,
    folders: Vec<PathBuf>,
}

impl Groups {
    /// Creates groups without a quota.
    ///
    /// # Errors
    /// Why there can be none on this machine.
    pub(super) fn create(count: u8) -> Result<Self, String> {
        let read = |path: &str| fs::read_to_string(path).map_err(|error| format!("cannot read {path}: {error}"));
        let found = hierarchy(&read("/proc/self/mounts")?, &read("/proc/self/cgroup")?);
        let found = found.ok_or("the control group controller `cpu` is not mounted")?;
        let mut last = String::new();
        // The own group may not be visible in a container.
        for parent in [&found.own, &found.mount] {
            match Self::create_in(&found, parent, count) {
                Ok(groups) => return Ok(groups),
                Err(error) => last = format!("no control group can be created in {}: {error}", parent.display()),
            }
        }
        Err(last)
    }

    fn create_in(found: &Hierarchy, parent: &Path, count: u8) -> io::Result<Self> {
        remove_leftovers(parent)?;
        if found.version == Version::Two {
            // It may be enabled already; the check below decides.
            let _enabled = fs::write(parent.join("cgroup.subtree_control"), "+cpu");
        }
        let mut groups = Self { version: found.version, folders: Vec::new() };
        for number in 0..count {
            let folder = parent.join(format!("{PREFIX}{}-{number}", std::process::id()));
            fs::create_dir(&folder)?;
            groups.folders.push(folder);
        }
        groups.set(None)?;
        Ok(groups)
    }

    /// The prefix of a command line that starts its process in a group.
    pub(super) fn prefix(&self, number: usize) -> Vec<String> {
        let Some(folder) = self.folders.get(number) else { return Vec::new() };
        let script = r#"echo $$ > "$0/cgroup.procs" && exec "$@""#;
        ["sh", "-c", script, &folder.display().to_string()].map(str::to_owned).to_vec()
    }

    /// Sets the quota of every group, or removes it.
    ///
    /// # Errors
    /// When the system refuses it, or has no such controller.
    pub(super) fn set(&self, quota: Option<Quota>) -> io::Result<()> {
        self.folders.iter().try_for_each(|folder| self.set_one(folder, quota))
    }

    fn set_one(&self, folder: &Path, quota: Option<Quota>) -> io::Result<()> {
        let time = quota.map(|quota| quota.time_micros.to_string());
        // Files of a controller exist or not; they must not be created as ordinary files.
        let write = |name: &str, text: &str| {
            let mut file = fs::File::options().write(true).open(folder.join(name))?;
            io::Write::write_all(&mut file, text.as_bytes())
        };
        match self.version {
            Version::One => {
                // A period that is shorter than the present quota's may be refused.
                write("cpu.cfs_quota_us", "-1")?;
                if let Some(quota) = quota {
                    write("cpu.cfs_period_us", &quota.period_micros.to_string())?;
                }
                write("cpu.cfs_quota_us", time.as_deref().unwrap_or("-1"))
            }
            Version::Two => {
                let period = quota.map(|quota| format!(" {}", quota.period_micros)).unwrap_or_default();
                write("cpu.max", &(time.unwrap_or_else(|| "max".to_owned()) + &period))
            }
        }
    }

    /// For each group the number of periods in which it was throttled since its creation.
    ///
    /// # Errors
    /// When a group does not report it.
    pub(super) fn throttled(&self) -> io::Result<Vec<u64>> {
        let one = |folder: &PathBuf| {
            let stat = fs::read_to_string(folder.join("cpu.stat"))?;
            throttled_periods(&stat).ok_or_else(|| io::Error::other("cpu.stat does not count throttled periods"))
        };
        self.folders.iter().map(one).collect()
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        for folder in &self.folders {
            remove(folder);
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the system does not report when a group has become empty: it must be polled"
)]
fn remove(folder: &Path) {
    for _ in 0..REMOVALS {
        if fs::remove_dir(folder).is_ok() {
            return;
        }
        std::thread::sleep(REMOVAL_PAUSE);
    }
    eprintln!("the control group {} could not be removed", folder.display());
}

/// Removes empty groups of killed runs of this program.
fn remove_leftovers(parent: &Path) -> io::Result<()> {
    for entry in fs::read_dir(parent)?.flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split('-').next());
        if owner.is_some_and(|owner| !Path::new("/proc").join(owner).exists()) {
            // One that still has members stays.
            let _removed = fs::remove_dir(entry.path());
        }
    }
    Ok(())
}
