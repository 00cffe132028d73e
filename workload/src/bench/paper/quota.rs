//! Processor quotas of Linux: what a control group is given, and how the folder of the controller is found. Pure: functions of
//! the texts of `/proc` and of control files.

use std::path::PathBuf;

/// The shortest processor time that Linux accepts as a quota, in microseconds.
const TIME_MICROS_MIN: f64 = 1_000.0;
/// The period, unless the quota of such a period would be too short.
const PERIOD_MICROS: f64 = 10_000.0;

/// A limit of processor time per period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Processor time in a period, in microseconds.
    pub time_micros: u64,
    /// The period, in microseconds.
    pub period_micros: u64,
}

impl Quota {
    /// A share of one core, in percent. The period is 10 ms, or long enough for a quota of 1 ms, the least that Linux accepts.
    ///
    /// `None` below 0.1 or above 100.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 1,000 and 1,000,000")]
    pub fn percent_of_core(percent: f64) -> Option<Self> {
        if !(0.1..=100.0).contains(&percent) {
            return None;
        }
        let share = percent / 100.0;
        let period = PERIOD_MICROS.max((TIME_MICROS_MIN / share).round());
        Some(Self { time_micros: (period * share).round().max(TIME_MICROS_MIN) as u64, period_micros: period as u64 })
    }

    /// The number of periods in this time, at least one.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "periods are at most a second")]
    pub fn periods(&self, time: std::time::Duration) -> f64 {
        (time.as_secs_f64() * 1e6 / self.period_micros as f64).max(1.0)
    }
}

/// The version of the control groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// A hierarchy for each controller: `cpu.cfs_quota_us`, `cpu.cfs_period_us`.
    One,
    /// One hierarchy: `cpu.max`.
    Two,
}

/// Where the groups of the processor controller are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hierarchy {
    /// The version.
    pub version: Version,
    /// The folder of the group of this process, to create groups in.
    pub own: PathBuf,
    /// The folder at which the hierarchy is mounted, if `own` is not visible.
    pub mount: PathBuf,
}

/// Finds the controller in the texts of `/proc/self/mounts` and `/proc/self/cgroup`; the older version first, because a machine
/// with both has its processor controller there. `None` when it is not mounted.
#[must_use]
pub fn hierarchy(mounts: &str, own_groups: &str) -> Option<Hierarchy> {
    let mount = |wanted: &str, is_right: fn(&str) -> bool| {
        mounts.lines().find_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let (folder, kind, options) = (fields.next()?, fields.next()?, fields.next()?);
            (kind == wanted && is_right(options)).then(|| PathBuf::from(folder))
        })
    };
    let path = |is_right: fn(&str) -> bool| {
        own_groups.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            let (controllers, path) = (fields.next()?, fields.next()?);
            is_right(controllers).then(|| path.trim_start_matches('/').to_owned())
        })
    };
    let names_cpu = |list: &str| list.split(',').any(|one| one == "cpu");
    let of = |version, mount: PathBuf, path: Option<String>| Hierarchy {
        version,
        own: path.map_or_else(|| mount.clone(), |path| mount.join(path)),
        mount,
    };
    let first = mount("cgroup", names_cpu).map(|folder| of(Version::One, folder, path(names_cpu)));
    first.or_else(|| mount("cgroup2", |_| true).map(|folder| of(Version::Two, folder, path(str::is_empty))))
}

/// The number of periods in which a group was throttled, from the text of `cpu.stat`.
#[must_use]
pub fn throttled_periods(stat: &str) -> Option<u64> {
    stat.lines().find_map(|line| line.strip_prefix("nr_throttled ")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_quota_has_at_least_a_millisecond() {
        let quota = |percent| Quota::percent_of_core(percent).map(|quota| (quota.time_micros, quota.period_micros));
        assert_eq!(quota(8.0), Some((1_000, 12_500)));
        assert_eq!(quota(25.0), Some((2_500, 10_000)));
        assert_eq!(quota(0.1), Some((1_000, 1_000_000)));
        assert_eq!((quota(0.0), quota(101.0), quota(f64::NAN)), (None, None, None));
        assert_eq!(Quota::percent_of_core(8.0).unwrap().periods(Duration::from_secs(1)), 80.0);
    }

    #[test]
    fn the_processor_controller_is_found_in_both_versions() {
        let first = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\ncgroup /sys/fs/cgroup/cpuset cgroup rw,cpuset 0 0\n\
                     cgroup /sys/fs/cgroup/cpu cgroup rw,relatime,cpu,cpuacct 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        let found = hierarchy(first, "3:cpuset:/\n1:cpu,cpuacct:/docker/1\n0::/\n").unwrap();
        assert_eq!((found.version, found.own), (Version::One, "/sys/fs/cgroup/cpu/docker/1".into()));
        assert_eq!(found.mount, PathBuf::from("/sys/fs/cgroup/cpu"));
        let second = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n";
        let found = hierarchy(second, "0::/user.slice/a:b\n").unwrap();
        assert_eq!((found.version, found.own), (Version::Two, "/sys/fs/cgroup/user.slice/a:b".into()));
        assert_eq!(hierarchy("proc /proc proc rw 0 0\n", "0::/\n"), None);
    }

    #[test]
    fn throttled_periods_are_read_from_both_versions() {
        assert_eq!(throttled_periods("nr_periods 244\nnr_throttled 242\nthrottled_time 2656052319\n"), Some(242));
        assert_eq!(throttled_periods("usage_usec 5\nnr_periods 0\nnr_throttled 0\nthrottled_usec 0\n"), Some(0));
        assert_eq!(throttled_periods("usage_usec 5\n"), None);
    }
}
