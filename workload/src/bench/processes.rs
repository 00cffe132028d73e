//! Processor time, context switches, write calls, memory and open files of the processes of a system and their descendants, from /proc.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ebla_model::error::Error;
use procfs::process::{self, Process, all_processes};
use procfs::{CpuTime, CurrentSI as _, KernelStats};

/// Processes of one system; empty when they are unknown.
#[derive(Clone, Debug, Default)]
pub struct Processes(Vec<u32>);

impl Processes {
    /// `PID,PID…`.
    ///
    /// # Errors
    /// When one is not a number.
    pub fn parse(list: &str) -> Result<Self, Error> {
        let pid = |pid: &str| pid.parse().map_err(|_| Error::invalid(format!("{pid:?} is not a process id")));
        list.split(',').map(pid).collect::<Result<_, _>>().map(Self)
    }

    /// This process: the load generator.
    #[must_use]
    pub fn own() -> Self {
        Self(vec![std::process::id()])
    }

    /// Processor time since their start, in microseconds; `None` when there are none, or one has exited.
    #[must_use]
    pub fn cpu_micros(&self) -> Option<u64> {
        let all = all();
        if self.0.is_empty() || self.0.iter().any(|pid| !all.contains_key(pid)) {
            return None;
        }
        let ticks: u64 = all.iter().filter(|(pid, _)| self.started(**pid, &all)).map(|(_, one)| one.ticks).sum();
        ticks.checked_mul(1_000_000)?.checked_div(procfs::ticks_per_second())
    }

    /// What they have used since their start; `None` as for [`Self::cpu_micros`].
    #[must_use]
    pub fn usage(&self) -> Option<Usage> {
        let cpu_micros = self.cpu_micros()?;
        let all = all();
        let pids: Vec<u32> = all.keys().copied().filter(|pid| self.started(*pid, &all)).collect();
        let switches = pids.iter().flat_map(|pid| thread_switches(*pid)).collect();
        let write_calls = pids.iter().map(|pid| write_calls(*pid)).sum();
        Some(Usage { cpu_micros, switches, write_calls })
    }

    /// Sum of their resident sets in bytes; `None` as for [`Self::cpu_micros`].
    #[must_use]
    pub fn resident_bytes(&self) -> Option<u64> {
        let all = all();
        if self.0.is_empty() || self.0.iter().any(|pid| !all.contains_key(pid)) {
            return None;
        }
        all.keys().filter(|pid| self.started(**pid, &all)).map(|pid| resident(*pid)).sum()
    }

    /// Whether `pid` is one of them or a descendant of one.
    fn started(&self, pid: u32, all: &BTreeMap<u32, Stat>) -> bool {
        let ancestors = std::iter::successors(Some(pid), |pid| all.get(pid).map(|one| one.parent));
        // Process ids may be reused while /proc is read: the bound prevents an endless loop.
        ancestors.take(all.len()).any(|one| self.0.contains(&one))
    }
}

/// What processes have used since their start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    cpu_micros: u64,
    /// By the id of the thread.
    switches: BTreeMap<u32, u64>,
    write_calls: Option<u64>,
}

/// What processes used between two moments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// Processor time.
    pub cpu_micros: u64,
    /// Context switches of all threads, voluntary and involuntary. Those of threads that have exited meanwhile are missing.
    pub switches: u64,
    /// System calls of the `write` family (write, writev, pwrite), for files, sockets and event counters; `send` is not counted.
    /// `None` where the system does not permit to read it.
    pub write_calls: Option<u64>,
}

impl Usage {
    /// What was used since `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Spent {
        let grown = |(thread, switches): (&u32, &u64)| {
            switches.saturating_sub(before.switches.get(thread).copied().unwrap_or_default())
        };
        Spent {
            cpu_micros: self.cpu_micros.saturating_sub(before.cpu_micros),
            switches: self.switches.iter().map(grown).sum(),
            write_calls: self.write_calls.zip(before.write_calls).map(|(after, before)| after.saturating_sub(before)),
        }
    }
}

/// The voluntary and involuntary context switches of each thread of a process, by the thread's id.
fn thread_switches(pid: u32) -> Vec<(u32, u64)> {
    let tasks = process(pid).and_then(|process| process.tasks().ok()).into_iter().flatten().flatten();
    let switches =
        |status: &process::Status| status.voluntary_ctxt_switches?.checked_add(status.nonvoluntary_ctxt_switches?);
    // A thread may exit while /proc is read.
    tasks.filter_map(|task| Some((u32::try_from(task.tid).ok()?, switches(&task.status().ok()?)?))).collect()
}

fn write_calls(pid: u32) -> Option<u64> {
    Some(process(pid)?.io().ok()?.syscw)
}

fn process(pid: u32) -> Option<Process> {
    Process::new(i32::try_from(pid).ok()?).ok()
}

/// Processor time of the running threads of a process, with the resolution of the scheduler's clock, while
/// [`Processes::cpu_micros`] counts hundredths of a second. The time of threads that have exited is missing. `None` when the
/// process has exited, or Linux does not count it.
#[must_use]
pub fn thread_time(pid: u32) -> Option<Duration> {
    let tasks = process(pid)?.tasks().ok()?.flatten();
    // A thread may exit while /proc is read.
    let times = tasks.filter_map(|task| task.schedstat().ok()).map(|one| Duration::from_nanos(one.sum_exec_runtime));
    Some(times.sum::<Duration>()).filter(|time| !time.is_zero())
}

/// Processor time of all cores of this machine since its start, in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MachineTime {
    busy: u64,
    all: u64,
}

impl MachineTime {
    /// Reads it; `None` when Linux does not report it.
    #[must_use]
    pub fn now() -> Option<Self> {
        Some(Self::of(&KernelStats::current().ok()?.total))
    }

    /// Time for which a hypervisor has used a core otherwise is busy, too.
    fn of(time: &CpuTime) -> Self {
        let optional = [time.irq, time.softirq, time.steal].into_iter().flatten();
        let busy = [time.user, time.nice, time.system].into_iter().chain(optional).sum();
        let idle = time.idle.saturating_add(time.iowait.unwrap_or_default());
        Self { busy, all: idle.saturating_add(busy) }
    }

    /// The share of the time since `before` for which cores were busy, from 0 to 1; `None` when no tick has passed.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "ticks of one measurement are far below 2^52")]
    pub fn busy_since(&self, before: &Self) -> Option<f64> {
        let all = self.all.checked_sub(before.all).filter(|all| *all > 0)?;
        Some(self.busy.saturating_sub(before.busy) as f64 / all as f64)
    }
}

/// Number of open files of a process; `None` when it has exited.
#[must_use]
pub fn open_files(pid: u32) -> Option<usize> {
    process(pid)?.fd_count().ok()
}

/// The running child processes of `parent`.
#[must_use]
pub fn children(parent: u32) -> BTreeSet<u32> {
    all().into_iter().filter(|(_, one)| one.parent == parent).map(|(pid, _)| pid).collect()
}

/// The resident set of a process, in bytes; `None` when it has exited.
#[must_use]
pub fn resident(pid: u32) -> Option<u64> {
    process(pid)?.status().ok()?.vmrss?.checked_mul(1024)
}

/// Fields of /proc/PID/stat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stat {
    parent: u32,
    /// Its processor time and that of its exited children.
    ticks: u64,
}

fn all() -> BTreeMap<u32, Stat> {
    // A process may exit while /proc is read.
    let stats = all_processes().into_iter().flatten().filter_map(|process| process.ok()?.stat().ok());
    stats.filter_map(|stat| Some((u32::try_from(stat.pid).ok()?, Stat::of(&stat)?))).collect()
}

impl Stat {
    fn of(stat: &process::Stat) -> Option<Self> {
        let children = u64::try_from(stat.cutime.checked_add(stat.cstime)?).ok()?;
        let ticks = stat.utime.checked_add(stat.stime)?.checked_add(children)?;
        Some(Self { parent: u32::try_from(stat.ppid).ok()?, ticks })
    }
}

#[cfg(test)]
mod tests {
    use procfs::FromRead as _;

    use super::*;

    #[test]
    fn times_are_parsed_after_any_program_name() {
        let fields = "S 1 2 3 4 5 6 7 8 9 10 250 50 7 3 20 0 1 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0";
        let parse = |line: &str| process::Stat::from_read(line.as_bytes()).ok();
        let stat = parse(&format!("42 (a ) b) {fields}")).unwrap();
        assert_eq!(Stat::of(&stat), Some(Stat { parent: 1, ticks: 310 }));
        assert!(parse("42 (a").is_none());
        assert!(parse("42 (a) S 1 2").is_none());
    }

    #[test]
    fn this_process_is_a_child_of_its_parent() {
        let own = std::process::id();
        assert!(children(all()[&own].parent).contains(&own));
    }

    #[test]
    fn a_thread_that_exits_does_not_reduce_the_switches_of_others() {
        let usage = |cpu_micros, threads: &[(u32, u64)], write_calls| Usage {
            cpu_micros,
            switches: threads.iter().copied().collect(),
            write_calls,
        };
        let before = usage(10_000, &[(1, 100), (2, 5_000)], Some(40));
        let spent = usage(40_000, &[(1, 130), (3, 7)], Some(60)).since(&before);
        assert_eq!(spent, Spent { cpu_micros: 30_000, switches: 37, write_calls: Some(20) });
        assert_eq!(usage(0, &[], None).since(&before).write_calls, None);
    }

    #[test]
    fn descendants_are_included() {
        let stat = |parent| Stat { parent, ticks: 1 };
        let all = BTreeMap::from([(1, stat(0)), (7, stat(1)), (8, stat(7)), (9, stat(8)), (10, stat(1))]);
        let of_seven: Vec<_> = all.keys().filter(|pid| Processes(vec![7]).started(**pid, &all)).copied().collect();
        assert_eq!(of_seven, [7, 8, 9]);
    }

    #[test]
    fn the_machine_is_busy_for_a_share_of_its_time() {
        let (before, after) = (MachineTime { busy: 10, all: 100 }, MachineTime { busy: 40, all: 160 });
        assert_eq!(after.busy_since(&before), Some(0.5));
        assert_eq!(after.busy_since(&after), None);
        assert!(MachineTime::now().is_some_and(|now| now.all >= now.busy && now.busy > 0));
    }

    #[test]
    fn threads_have_times() {
        // A kernel without scheduler statistics has none.
        assert!(thread_time(std::process::id()).is_none_or(|time| !time.is_zero()));
        assert_eq!(thread_time(u32::MAX), None);
    }

    #[test]
    fn an_empty_set_has_no_time_and_no_memory() {
        assert_eq!(Processes::default().cpu_micros(), None);
        assert!(Processes::own().cpu_micros().is_some());
        assert_eq!(Processes::default().resident_bytes(), None);
        assert!(Processes::own().resident_bytes().is_some_and(|bytes| bytes > 0));
        assert_eq!(Processes::default().usage(), None);
        assert!(Processes::own().usage().is_some_and(|usage| !usage.switches.is_empty()));
        assert!(open_files(std::process::id()).is_some_and(|files| files > 0));
        assert!(Processes::parse("1,x").is_err());
    }
}
