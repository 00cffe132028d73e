//! What was measured with each number of tablet servers, and what follows from it. Pure.
//!
//! Two measurements answer how well servers scale on a machine that has fewer cores than servers:
//!
//! - **Rates under quotas.** Each server may use the same small share of a core, and closed loops use it up. The rate counts only if
//!   the quota was the limit: otherwise the measurement is void.
//! - **Work.** Without quotas, at a fixed rate far below saturation, the processor time of each server. With a core for each
//!   server, the busiest one would limit the cluster: its *capacity* is the rows divided by the processor time of that server.
//!
//! Efficiency is what a server achieves in a cluster, relative to a server in the smallest cluster that was measured.

use std::collections::BTreeMap;
use std::time::Duration;

use super::PaperWorkload;

/// A server limits the load if it was throttled in at least this share of the periods.
pub const THROTTLED_MIN: f64 = 0.5;
/// Above this share of all cores the machine limits the load.
pub const MACHINE_BUSY_MAX: f64 = 0.95;

/// A closed loop with quotas.
#[derive(Clone, Debug, PartialEq)]
pub struct QuotaRound {
    /// Rows per second of all servers together.
    pub rows_per_second: f64,
    /// For each server the share of periods in which it was throttled, from 0 to 1.
    pub throttled: Vec<f64>,
    /// The used share of the processor time of the whole machine, from 0 to 1; `None` when unknown.
    pub machine_busy: Option<f64>,
    /// Processor time of the load generator, in cores.
    pub generator_cores: Option<f64>,
}

impl QuotaRound {
    /// Why the round does not count; `None` when it does.
    #[must_use]
    pub fn void_reason(&self) -> Option<String> {
        let least = self.throttled.iter().copied().fold(f64::INFINITY, f64::min);
        if least < THROTTLED_MIN {
            return Some(format!("a server was throttled in only {:.0} % of the periods", least * 100.0));
        }
        let busy = self.machine_busy.filter(|busy| *busy > MACHINE_BUSY_MAX)?;
        Some(format!("the machine was busy for {:.0} % of its time", busy * 100.0))
    }
}

/// A load at a fixed rate, without quotas.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkRound {
    /// Rows read or written.
    pub rows: u64,
    /// Duration.
    pub took: Duration,
    /// Processor time of each tablet server.
    pub servers: Vec<Duration>,
    /// Processor time of the master and the lock service together; `None` when unknown.
    pub others: Option<Duration>,
}

#[expect(clippy::cast_precision_loss, reason = "counts of one round are far below 2^52")]
impl WorkRound {
    /// Rows per second that the servers could serve if each had a core: the busiest one is the limit. `None` when there were no rows.
    #[must_use]
    pub fn capacity(&self) -> Option<f64> {
        let busiest = self.servers.iter().max().filter(|time| !time.is_zero())?;
        (self.rows > 0).then(|| self.rows as f64 / busiest.as_secs_f64())
    }

    /// Processor time of all tablet servers per row, in microseconds.
    #[must_use]
    pub fn micros_per_row(&self) -> Option<f64> {
        self.per_row(self.servers.iter().sum())
    }

    /// The same of the master and the lock service.
    #[must_use]
    pub fn others_micros_per_row(&self) -> Option<f64> {
        self.per_row(self.others?)
    }

    fn per_row(&self, time: Duration) -> Option<f64> {
        (self.rows > 0).then(|| time.as_secs_f64() * 1e6 / self.rows as f64)
    }
}

/// All rounds of one workload with one number of servers.
#[derive(Clone, Debug, PartialEq)]
pub struct Measurement {
    /// The workload.
    pub workload: PaperWorkload,
    /// Tablet servers.
    pub servers: u64,
    /// With quotas.
    pub quota: Vec<QuotaRound>,
    /// Without.
    pub work: Vec<WorkRound>,
}

impl Measurement {
    /// Rows per second of all servers under quotas: the mean of the rounds that count.
    #[must_use]
    pub fn rate(&self) -> Option<f64> {
        mean(self.counted())
    }

    /// Half the difference of the highest and the lowest rate that count, relative to their mean; `None` with fewer than two.
    #[must_use]
    pub fn spread(&self) -> Option<f64> {
        let (low, high) =
            self.counted().fold((f64::INFINITY, 0.0_f64), |(low, high), rate| (low.min(rate), high.max(rate)));
        (self.counted().count() > 1).then(|| (high - low) / 2.0 / self.rate().unwrap_or(f64::NAN))
    }

    /// The mean of [`WorkRound::capacity`].
    #[must_use]
    pub fn capacity(&self) -> Option<f64> {
        mean(self.work.iter().filter_map(WorkRound::capacity))
    }

    /// The mean of [`WorkRound::micros_per_row`].
    #[must_use]
    pub fn micros_per_row(&self) -> Option<f64> {
        mean(self.work.iter().filter_map(WorkRound::micros_per_row))
    }

    /// The mean of [`WorkRound::others_micros_per_row`].
    #[must_use]
    pub fn others_micros_per_row(&self) -> Option<f64> {
        mean(self.work.iter().filter_map(WorkRound::others_micros_per_row))
    }

    /// Whether rates were measured, but none counts.
    #[must_use]
    pub fn is_void(&self) -> bool {
        !self.quota.is_empty() && self.rate().is_none()
    }

    fn counted(&self) -> impl Iterator<Item = f64> {
        self.quota.iter().filter(|round| round.void_reason().is_none()).map(|round| round.rows_per_second)
    }
}

/// All measurements.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures {
    measurements: BTreeMap<(PaperWorkload, u64), Measurement>,
    /// Clusters that could not be measured, or not completely: the number of servers, and what failed.
    pub failures: Vec<(u64, String)>,
}

impl Figures {
    /// The measurement of a workload with this number of servers, to which rounds are added.
    pub fn entry(&mut self, workload: PaperWorkload, servers: u64) -> &mut Measurement {
        let none = || Measurement { workload, servers, quota: Vec::new(), work: Vec::new() };
        self.measurements.entry((workload, servers)).or_insert_with(none)
    }

    /// All measurements, by workload and number of servers.
    pub fn measurements(&self) -> impl Iterator<Item = &Measurement> {
        self.measurements.values()
    }

    /// The numbers of servers, ascending.
    #[must_use]
    pub fn servers(&self) -> Vec<u64> {
        let mut servers: Vec<_> = self.measurements().map(|one| one.servers).collect();
        servers.sort_unstable();
        servers.dedup();
        servers
    }

    /// A measurement, if there is one.
    #[must_use]
    pub fn get(&self, workload: PaperWorkload, servers: u64) -> Option<&Measurement> {
        self.measurements.get(&(workload, servers))
    }

    /// A server's share of `figure` with this number of servers, relative to its share with the smallest number; 1 means that the
    /// figure grows with the number of servers. `None` when either is missing.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "few servers")]
    pub fn efficiency(
        &self,
        workload: PaperWorkload,
        servers: u64,
        figure: impl Fn(&Measurement) -> Option<f64>,
    ) -> Option<f64> {
        let share = |servers: u64| Some(figure(self.get(workload, servers)?)? / servers as f64);
        Some(share(servers)? / share(*self.servers().first()?)?)
    }
}

#[expect(clippy::cast_precision_loss, reason = "few rounds")]
fn mean(figures: impl Iterator<Item = f64>) -> Option<f64> {
    let figures: Vec<_> = figures.collect();
    (!figures.is_empty()).then(|| figures.iter().sum::<f64>() / figures.len() as f64)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    fn round(rows_per_second: f64, throttled: &[f64]) -> QuotaRound {
        let (machine_busy, generator_cores) = (Some(0.6), Some(0.3));
        QuotaRound { rows_per_second, throttled: throttled.to_vec(), machine_busy, generator_cores }
    }

    fn work(rows: u64, millis: &[u64]) -> WorkRound {
        let servers = millis.iter().copied().map(Duration::from_millis).collect();
        WorkRound { rows, took: Duration::from_secs(1), servers, others: Some(Duration::from_millis(2)) }
    }

    /// Random reads with one and two servers; scans with two are void.
    pub(crate) fn example() -> Figures {
        let mut figures = Figures::default();
        let reads = PaperWorkload::RandomReads;
        figures.entry(reads, 1).quota.extend([round(900.0, &[1.0]), round(1_100.0, &[0.9])]);
        figures.entry(reads, 1).work.push(work(1_000, &[50]));
        figures.entry(reads, 2).quota.extend([round(1_800.0, &[1.0, 0.8]), round(5_000.0, &[1.0, 0.2])]);
        figures.entry(reads, 2).work.push(work(2_000, &[60, 50]));
        figures.entry(PaperWorkload::Scans, 2).quota.push(round(9_000.0, &[0.1, 0.1]));
        figures.failures.push((2, "create: a | b".to_owned()));
        figures
    }

    #[test]
    fn a_round_counts_only_if_every_server_was_at_its_limit_and_the_machine_was_not() {
        assert_eq!(round(1.0, &[0.9, 0.5]).void_reason(), None);
        assert!(round(1.0, &[0.9, 0.4]).void_reason().is_some_and(|reason| reason.contains("40 %")));
        let full = QuotaRound { machine_busy: Some(0.97), ..round(1.0, &[1.0]) };
        assert!(full.void_reason().is_some_and(|reason| reason.contains("97 %")));
        let unknown = QuotaRound { machine_busy: None, ..round(1.0, &[1.0]) };
        assert_eq!(unknown.void_reason(), None);
    }

    #[test]
    fn a_rate_is_the_mean_of_the_rounds_that_count() {
        let figures = example();
        let rate = |workload, servers| figures.get(workload, servers).unwrap().rate();
        assert_eq!(rate(PaperWorkload::RandomReads, 1), Some(1_000.0));
        assert_eq!(rate(PaperWorkload::RandomReads, 2), Some(1_800.0));
        assert_eq!(figures.get(PaperWorkload::RandomReads, 1).unwrap().spread(), Some(0.1));
        assert_eq!(figures.get(PaperWorkload::RandomReads, 2).unwrap().spread(), None);
        assert!(figures.get(PaperWorkload::Scans, 2).unwrap().is_void());
    }

    #[test]
    fn efficiency_is_the_share_of_a_server_relative_to_the_smallest_cluster() {
        let figures = example();
        let reads = PaperWorkload::RandomReads;
        assert_eq!(figures.efficiency(reads, 1, Measurement::rate), Some(1.0));
        assert_eq!(figures.efficiency(reads, 2, Measurement::rate), Some(0.9));
        assert_eq!(figures.efficiency(PaperWorkload::Scans, 2, Measurement::rate), None);
    }

    #[test]
    fn the_busiest_server_limits_the_capacity() {
        let (one, two) = (work(1_000, &[50]), work(2_000, &[60, 50]));
        assert_eq!(one.capacity(), Some(20_000.0));
        assert!(two.capacity().is_some_and(|capacity| (capacity - 2_000.0 / 0.06).abs() < 1e-6));
        assert_eq!(two.micros_per_row(), Some(55.0));
        assert_eq!(two.others_micros_per_row(), Some(1.0));
        assert_eq!(work(0, &[50]).capacity(), None);
        let efficiency = example().efficiency(PaperWorkload::RandomReads, 2, Measurement::capacity);
        assert!(efficiency.is_some_and(|efficiency| (efficiency - 5.0 / 6.0).abs() < 1e-9));
    }
}
