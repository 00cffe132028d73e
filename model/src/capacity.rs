//! What a tablet server can still take: its resources, and whether more tablets, groups or data fit.
//!
//! ```text
//!   Resources          what a server has: space on its disk, files, memory
//!   Demand             what something new needs: tablets, group replicas, bytes of data
//!   ResourceShortage   the resource that does not suffice, with what is needed and what is left
//! ```
//!
//! Not all of a resource may be used up by new tablets: a part is left for what the server does with the tablets that it has.
//!
//! | resource | left | why |
//! |---|---|---|
//! | disk | twice the reserve | below the reserve the server refuses writes; the second part delays that after something new |
//! | files | an eighth of the limit | connections, compactions, and stores that grow to more files |
//! | memory | a sixteenth of the limit | requests in flight; beyond the limit the system kills the process |
//!
//! A resource that is not known bounds nothing. Servers of one process share its files and memory, and usually the disk, so each
//! of them gets an equal part of what is left.

use std::fmt;

use crate::error::{Error, Reason};
use crate::id::ServerId;

/// Memory of a tablet's replica. Measured with 1,000 tablets in 3 groups: 9 KiB.
const TABLET_MEMORY_BYTES: u64 = 9 << 10;
/// Thousandths of an open file of a tablet's replica. Measured: 0.04; a tablet has no files of its own, but more of them fill more
/// files of their group.
const TABLET_MILLIFILES: u64 = 40;
/// Space on disk of an empty tablet's replica: its records in the log and in the store, which may be written twice.
const TABLET_DISK_BYTES: u64 = 4 << 10;
/// Memory of a group's replica without its memtables, which have a budget of their own. Measured: 320 to 435 KiB.
const GROUP_MEMORY_BYTES: u64 = 512 << 10;
/// Open files of a group's replica. Measured: 7 to 9 when it is small; a store opens at most 128 tables beside them, in files of
/// 16 MiB, so this is a group of half a GiB.
const GROUP_FILES: u64 = 40;
/// Space on disk of an empty group's replica: manifest, options, log of the engine.
const GROUP_DISK_BYTES: u64 = 1 << 20;

/// The default reserve of disk space is at most this. A server must be able to write what it has accepted: memtables up to
/// 512 MiB, requests in flight up to 256 MiB, a commit log of up to 1 GiB.
const RESERVE_BYTES_MAX: u64 = 2 << 30;
/// ... and at most this fraction of a small file system.
const RESERVE_FRACTION: u64 = 10;

/// The default reserve of disk space on a file system of `total_bytes`: the smaller of 2 GiB and a tenth of it.
#[must_use]
pub const fn default_reserve_bytes(total_bytes: u64) -> u64 {
    let fraction = total_bytes / RESERVE_FRACTION;
    if fraction < RESERVE_BYTES_MAX { fraction } else { RESERVE_BYTES_MAX }
}

/// The space on the file system of a server's data folder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskSpace {
    /// What the server may still write, in bytes.
    pub free_bytes: u64,
    /// The size of the file system in bytes.
    pub total_bytes: u64,
    /// The server refuses writes below this many free bytes.
    pub reserve_bytes: u64,
}

/// How much of a resource with a limit is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Used, by the process.
    pub used: u64,
    /// The limit.
    pub limit: u64,
}

impl Usage {
    /// The used part in percent, rounded down; `None` without a limit.
    #[must_use]
    pub fn percent(self) -> Option<u64> {
        let part = u128::from(self.used) * 100 / u128::from(self.limit).max(1);
        u64::try_from(part).ok().filter(|_part| self.limit > 0)
    }
}

/// The resources of a tablet server; `None`: not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// The file system of its data folder.
    pub disk: Option<DiskSpace>,
    /// Open files of the process, and the limit of the system.
    pub files: Option<Usage>,
    /// Resident memory of the process in bytes, and the limit of its control group or the memory of the machine.
    pub memory: Option<Usage>,
    /// Open connections of the process, and how many it accepts. They bound no tablets.
    pub connections: Option<Usage>,
    /// The servers of the process, which share all of this; 0 counts as 1.
    pub sharers: u64,
}

/// Whether a server accepts writes of clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WriteState {
    /// All are accepted.
    #[default]
    Accepts,
    /// The disk has too little space: only writes that delete are accepted.
    Refuses,
}

/// What something new needs on one server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// Replicas of tablets.
    pub tablets: u64,
    /// Replicas of groups.
    pub groups: u64,
    /// Bytes of data that are copied to the server.
    pub data_bytes: u64,
}

/// A kind of resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ResourceKind {
    /// Space on the disk, in bytes.
    Disk,
    /// Open files.
    Files,
    /// Memory, in bytes.
    Memory,
}

impl ResourceKind {
    const ALL: [Self; 3] = [Self::Disk, Self::Files, Self::Memory];

    /// What an operator can do when it does not suffice.
    const fn next_step(self) -> &'static str {
        match self {
            Self::Disk => "free disk space",
            Self::Files => "raise the limit of open files (ulimit -n, LimitNOFILE) and restart the server",
            Self::Memory => "give the server more memory",
        }
    }

    fn amount(self, amount: u64) -> String {
        match self {
            Self::Disk | Self::Memory => readable_bytes(amount),
            Self::Files => amount.to_string(),
        }
    }
}

impl fmt::Display for ResourceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Disk => "disk space",
            Self::Files => "open files",
            Self::Memory => "memory",
        })
    }
}

/// A resource that does not suffice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResourceShortage {
    /// The resource.
    pub kind: ResourceKind,
    /// What is needed.
    pub needed: u64,
    /// What new tablets and groups may still use.
    pub left: u64,
    /// What the server has, with what is left for other purposes.
    pub resources: Resources,
}

impl ResourceShortage {
    /// The refusal of `what` by reason of the shortage on `server`.
    #[must_use]
    pub fn refusal(&self, what: &str, server: ServerId) -> Error {
        let next = self.kind.next_step();
        let message =
            format!("no room for {what}: server {server} {self}; {next}, delete tables, or add tablet servers");
        Error::new(Reason::ResourceExhausted, message)
    }
}

impl fmt::Display for ResourceShortage {
    /// As the end of a sentence about the server: `has 1.0 GiB of disk space left for it, and 3.0 GiB are needed (…)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (left, needed) = (self.kind.amount(self.left), self.kind.amount(self.needed));
        let of = if self.kind == ResourceKind::Files { "" } else { "of " };
        write!(f, "needs {needed} {of}{} and may use {left} (", self.kind)?;
        let usage = |usage: Option<Usage>| usage.unwrap_or_default();
        match self.kind {
            ResourceKind::Disk => {
                let DiskSpace { free_bytes, total_bytes, reserve_bytes } = self.resources.disk.unwrap_or_default();
                let (free, total) = (readable_bytes(free_bytes), readable_bytes(total_bytes));
                write!(
                    f,
                    "{free} of {total} are free, twice the reserve of {} stays free",
                    readable_bytes(reserve_bytes)
                )?;
            }
            ResourceKind::Files => {
                let Usage { used, limit } = usage(self.resources.files);
                write!(f, "{used} of {limit} are open, {} stay free", files_kept(limit))?;
            }
            ResourceKind::Memory => {
                let Usage { used, limit } = usage(self.resources.memory);
                let (used, all, kept) =
                    (readable_bytes(used), readable_bytes(limit), readable_bytes(memory_kept(limit)));
                write!(f, "{used} of {all} are used, {kept} stay free")?;
            }
        }
        if self.resources.sharers > 1 {
            write!(f, ", and {} servers share the rest", self.resources.sharers)?;
        }
        f.write_str(")")
    }
}

const fn files_kept(limit: u64) -> u64 {
    limit / 8
}

const fn memory_kept(limit: u64) -> u64 {
    limit / 16
}

impl Demand {
    /// What more tablets of existing groups need.
    #[must_use]
    pub const fn tablets(tablets: u64) -> Self {
        Self { tablets, groups: 0, data_bytes: 0 }
    }

    /// What a group needs that gets its tablets and `data_bytes` of their data.
    #[must_use]
    pub const fn group(tablets: u64, data_bytes: u64) -> Self {
        Self { tablets, groups: 1, data_bytes }
    }

    /// Both together.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            tablets: self.tablets.saturating_add(other.tablets),
            groups: self.groups.saturating_add(other.groups),
            data_bytes: self.data_bytes.saturating_add(other.data_bytes),
        }
    }

    /// The demand `count` times.
    #[must_use]
    pub const fn times(self, count: u64) -> Self {
        Self {
            tablets: self.tablets.saturating_mul(count),
            groups: self.groups.saturating_mul(count),
            data_bytes: self.data_bytes.saturating_mul(count),
        }
    }

    fn of(&self, kind: ResourceKind) -> u64 {
        let Self { tablets, groups, data_bytes } = *self;
        let sum = |tablet: u64, group: u64| tablets.saturating_mul(tablet).saturating_add(groups.saturating_mul(group));
        match kind {
            ResourceKind::Disk => sum(TABLET_DISK_BYTES, GROUP_DISK_BYTES).saturating_add(data_bytes),
            ResourceKind::Files => sum(TABLET_MILLIFILES, GROUP_FILES.saturating_mul(1_000)).div_ceil(1_000),
            ResourceKind::Memory => sum(TABLET_MEMORY_BYTES, GROUP_MEMORY_BYTES),
        }
    }
}

impl Resources {
    /// The first resource that does not suffice for the demand; `None` when it fits.
    #[must_use]
    pub fn shortage(&self, demand: Demand) -> Option<ResourceShortage> {
        ResourceKind::ALL.into_iter().find_map(|kind| {
            let (needed, left) = (demand.of(kind), self.left(kind)?);
            (needed > left).then_some(ResourceShortage { kind, needed, left, resources: *self })
        })
    }

    /// How many times `each` fits beside `base`, at most `max` times.
    #[must_use]
    pub fn room_for(&self, base: Demand, each: Demand, max: u64) -> u64 {
        // Between them: the largest number that is known to fit, and the smallest that does not fit or is not wanted.
        let (mut fits, mut beyond) = (0, max.saturating_add(1));
        while beyond - fits > 1 {
            let middle = fits + (beyond - fits) / 2;
            if self.shortage(base.plus(each.times(middle))).is_none() {
                fits = middle;
            } else {
                beyond = middle;
            }
        }
        fits
    }

    /// What new tablets and groups of one server may still use; `None`: not known.
    fn left(&self, kind: ResourceKind) -> Option<u64> {
        let left_of = |usage: Usage, kept: u64| usage.limit.saturating_sub(kept).saturating_sub(usage.used);
        let left = match kind {
            ResourceKind::Disk => {
                self.disk.map(|disk| disk.free_bytes.saturating_sub(disk.reserve_bytes.saturating_mul(2)))
            }
            ResourceKind::Files => self.files.map(|files| left_of(files, files_kept(files.limit))),
            ResourceKind::Memory => self.memory.map(|memory| left_of(memory, memory_kept(memory.limit))),
        };
        left.map(|left| left / self.sharers.max(1))
    }
}

/// Bytes as people read them: `512 B`, `1.5 GiB`.
#[must_use]
pub fn readable_bytes(bytes: u64) -> String {
    let units = [(40_u32, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    let Some((shift, unit)) = units.into_iter().find(|(shift, _unit)| bytes >> shift > 0) else {
        return format!("{bytes} B");
    };
    let (whole, rest) = (bytes >> shift, bytes & ((1 << shift) - 1));
    format!("{whole}.{} {unit}", ((rest >> (shift - 10)) * 10) >> 10)
}

#[cfg(test)]
mod tests {
    //! The golden script `testdata/capacity/room.txt`:
    //!
    //! ```text
    //! disk free=10G total=100G reserve=2G       a resource of the server; one that is absent is not known
    //! files used=100 limit=1024
    //! memory used=1G limit=4G
    //! sharers 3                                 servers of the process
    //! fits tablets=1000 groups=1 data=3G        whether this fits
    //! ---
    //! the answers
    //! ```

    use std::path::Path;

    use super::*;

    fn number(text: &str) -> u64 {
        let (digits, shift) = match text.split_at(text.len() - 1) {
            (digits, "K") => (digits, 10),
            (digits, "M") => (digits, 20),
            (digits, "G") => (digits, 30),
            (digits, "T") => (digits, 40),
            _ => (text, 0),
        };
        digits.parse::<u64>().unwrap() << shift
    }

    fn value(words: &[&str], key: &str) -> u64 {
        words.iter().find_map(|word| word.strip_prefix(key)?.strip_prefix('=')).map_or(0, number)
    }

    fn run(case: &str) -> String {
        let script = case.split("---\n").next().unwrap();
        let (mut resources, mut out) = (Resources::default(), format!("{script}---\n"));
        for line in script.lines().filter(|line| !line.starts_with('#')) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let of = |key: &str| value(&words, key);
            match words[0] {
                "disk" => {
                    let (free_bytes, total_bytes, reserve_bytes) = (of("free"), of("total"), of("reserve"));
                    resources.disk = Some(DiskSpace { free_bytes, total_bytes, reserve_bytes });
                }
                "files" => resources.files = Some(Usage { used: of("used"), limit: of("limit") }),
                "memory" => resources.memory = Some(Usage { used: of("used"), limit: of("limit") }),
                "sharers" => resources.sharers = number(words[1]),
                "fits" => {
                    let demand = Demand { tablets: of("tablets"), groups: of("groups"), data_bytes: of("data") };
                    let answer = match resources.shortage(demand) {
                        None => format!("yes, {} times", resources.room_for(Demand::default(), demand, 1_000_000)),
                        Some(shortage) => shortage.refusal("it", ServerId::new(7)).message,
                    };
                    out.push_str(&format!("{answer}\n"));
                }
                other => panic!("unknown line {other:?}"),
            }
        }
        out
    }

    #[test]
    fn golden_scripts() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/capacity/room.txt");
        crate::golden::check_cases(&file, run);
    }

    #[test]
    fn the_default_reserve_is_a_tenth_of_a_small_disk() {
        assert_eq!(default_reserve_bytes(1 << 30), (1 << 30) / 10);
        assert_eq!([20 << 30, 10 << 40].map(default_reserve_bytes), [2 << 30; 2]);
    }

    #[test]
    fn a_usage_without_a_limit_has_no_part() {
        let percent = |used, limit| Usage { used, limit }.percent();
        assert_eq!([percent(199, 200), percent(5, 2), percent(0, 7)], [Some(99), Some(250), Some(0)]);
        assert_eq!([percent(1, 0), percent(u64::MAX, 1)], [None, None], "no limit, and more than can be shown");
    }

    #[test]
    fn bytes_are_readable() {
        let shown = [0, 1023, 1024, 1536, (1 << 30) - 1, 3 << 30, 5 << 40].map(readable_bytes);
        assert_eq!(shown, ["0 B", "1023 B", "1.0 KiB", "1.5 KiB", "1023.9 MiB", "3.0 GiB", "5.0 TiB"]);
    }
}
