//! The load of a tablet: how many reads and writes its leader serves, and of which rows.
//!
//! ```text
//!   read, write ── count ──► LoadMeter: two counters, and every 64th row on average in a ring of 64
//!                                │
//!   maintenance loop ── measure ─┘  every two seconds: decaying rates, and since when the tablet has been quiet
//! ```
//!
//! Counting takes no lock, except for a row that is sampled. Which calls are sampled depends on a hash of the counter, so that rows
//! that are asked for in a fixed rotation are all sampled.
//!
//! A meter is of one tablet in one generation at one leader: a split, a move, and another leader start with a new one.
//! A merged tablet continues those of its parts.
//!
//! [`load_center`] finds the key that halves the load; it is a function of values.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use ebla_model::key::{KeyRange, RowKey};
use ebla_model::tablet_load::{QUIET_PER_SECOND, TabletLoad};
use parking_lot::Mutex;

use crate::tablet::heat::{HeatDetail, HeatMeter, RowAccess};
use crate::tablet::lifecycle::split_point::split_point;

/// One row in this number is sampled, on average: 2 to this power.
pub(super) const SAMPLING_BITS: u32 = 6;
/// How many of the last sampled rows count.
const SAMPLES_MAX: usize = 64;
/// The fewest samples that say something.
const SAMPLES_MIN: usize = 32;
/// The maximum length of a sampled key: a longer one is cut, which is still a key to split at.
const SAMPLE_BYTES_MAX: usize = 256;
/// The time constant of the rates: after a minute five percent of a burst are left. The rates of a meter that has measured for a shorter time
/// are averages of that time, so that a leader reports its whole load from its second measurement on.
const DECAY: Duration = Duration::from_secs(20);

/// Measures the load of a tablet.
#[derive(Debug, Default)]
pub struct LoadMeter {
    /// Which keys are read and written, if that is collected.
    heat: HeatMeter,
    reads: AtomicU64,
    writes: AtomicU64,
    /// Locked for a sampled row and for a measurement.
    state: Mutex<MeterState>,
}

/// What is known of the load besides the counters.
#[derive(Clone, Debug, Default)]
struct MeterState {
    /// The last measurement; `None` before the first one.
    last: Option<Measurement>,
    /// When the first measurement was, since when the rates are averages.
    measured_since: Option<Duration>,
    reads_per_second: f64,
    writes_per_second: f64,
    /// Since when the tablet has been quiet, or when the first measurement was.
    quiet_since: Option<Duration>,
    /// The last sampled rows, in any order.
    samples: Vec<RowKey>,
    /// The sample that the next one replaces.
    oldest: usize,
}

#[derive(Clone, Copy, Debug)]
struct Measurement {
    at: Duration,
    reads: u64,
    writes: u64,
}

impl LoadMeter {
    /// Counts a read: of a row by its key, or of a batch of a scan, with its first or last row. `bytes`: what it returns.
    pub fn count_read(&self, row: &RowKey, bytes: usize) {
        self.count(&self.reads, row);
        self.heat.count(RowAccess::Read, row, bytes);
    }

    /// Counts the write of a row, with the bytes of its mutations.
    pub fn count_write(&self, row: &RowKey, bytes: usize) {
        self.count(&self.writes, row);
        self.heat.count(RowAccess::Write, row, bytes);
    }

    /// When a call begins, if its latency is counted. `now`: reads the monotonic clock.
    pub fn call_start(&self, now: impl FnOnce() -> Duration) -> Option<Duration> {
        (self.heat.detail() != HeatDetail::Off).then(now)
    }

    /// Counts how long a batch of a read took, or a call that writes. `started`: see [`Self::call_start`].
    pub fn count_latency(&self, started: Option<Duration>, now: impl FnOnce() -> Duration) {
        if let (Some(started), true) = (started, self.heat.detail() != HeatDetail::Off) {
            self.heat.count_call(now().saturating_sub(started));
        }
    }

    /// Which keys are read and written.
    pub(crate) const fn heat(&self) -> &HeatMeter {
        &self.heat
    }

    fn count(&self, counter: &AtomicU64, row: &RowKey) {
        let number = counter.fetch_add(1, Ordering::Relaxed);
        if is_sampled(number) {
            self.state.lock().add_sample(row);
        }
    }

    /// Measures the rates since the last measurement. For the leader, every few seconds; `now`: monotonic.
    pub fn measure(&self, now: Duration) {
        let (reads, writes) = (self.reads.load(Ordering::Relaxed), self.writes.load(Ordering::Relaxed));
        self.state.lock().measure(Measurement { at: now, reads, writes });
    }

    /// Forgets everything: this replica does not lead.
    pub fn reset(&self) {
        let mut state = self.state.lock();
        if state.last.is_some() || !state.samples.is_empty() {
            *state = MeterState::default();
        }
    }

    /// The load as of the last measurement. `now`: monotonic.
    #[must_use]
    pub fn load(&self, now: Duration) -> TabletLoad {
        let state = self.state.lock();
        let (reads_per_second, writes_per_second) = (whole(state.reads_per_second), whole(state.writes_per_second));
        let is_quiet = reads_per_second.saturating_add(writes_per_second) < QUIET_PER_SECOND;
        let quiet_since = state.quiet_since.filter(|_since| is_quiet);
        TabletLoad {
            reads_per_second,
            writes_per_second,
            quiet_for: quiet_since.map_or(Duration::ZERO, |since| now.saturating_sub(since)),
            hot_row: if is_quiet { None } else { hot_row(&state.samples) },
        }
    }

    /// The rows that were sampled last, in any order.
    #[must_use]
    pub fn samples(&self) -> Vec<RowKey> {
        self.state.lock().samples.clone()
    }

    /// The meter of a tablet that these were merged into: it has been quiet since the last of them has, and has the rates of all.
    #[must_use]
    pub fn merged(parts: &[Arc<Self>]) -> Self {
        let states: Vec<MeterState> = parts.iter().map(|part| part.state.lock().clone()).collect();
        let are_measured = states.iter().all(|state| state.quiet_since.is_some());
        let last = states.iter().filter_map(|state| state.last).map(|last| last.at).max();
        let state = MeterState {
            // Its counters start at zero.
            last: last.map(|at| Measurement { at, reads: 0, writes: 0 }),
            measured_since: states.iter().filter_map(|state| state.measured_since).min(),
            reads_per_second: states.iter().map(|state| state.reads_per_second).sum(),
            writes_per_second: states.iter().map(|state| state.writes_per_second).sum(),
            quiet_since: states.iter().filter_map(|state| state.quiet_since).max().filter(|_since| are_measured),
            samples: states.into_iter().flat_map(|state| state.samples).take(SAMPLES_MAX).collect(),
            oldest: 0,
        };
        Self { state: Mutex::new(state), ..Self::default() }
    }
}

impl MeterState {
    fn measure(&mut self, new: Measurement) {
        let Some(last) = self.last.replace(new) else {
            self.quiet_since = Some(new.at);
            self.measured_since = Some(new.at);
            return;
        };
        let elapsed = new.at.saturating_sub(last.at).as_secs_f64();
        if elapsed > 0.0 {
            let measured = new.at.saturating_sub(self.measured_since.unwrap_or(last.at)).as_secs_f64();
            // The weights of all measurements so far add up to one: the first one counts whole.
            let share = weight(elapsed) / weight(measured);
            let blend = |rate: &mut f64, count: u64| *rate += (number(count) / elapsed - *rate) * share;
            blend(&mut self.reads_per_second, new.reads.saturating_sub(last.reads));
            blend(&mut self.writes_per_second, new.writes.saturating_sub(last.writes));
        }
        if whole(self.reads_per_second).saturating_add(whole(self.writes_per_second)) >= QUIET_PER_SECOND {
            self.quiet_since = Some(new.at);
        } else if !self.samples.is_empty() && new.reads == last.reads && new.writes == last.writes {
            // A tablet without reads and writes takes no memory for samples.
            self.samples = Vec::new();
            self.oldest = 0;
        }
        self.quiet_since.get_or_insert(new.at);
    }

    fn add_sample(&mut self, row: &RowKey) {
        // A copy: the key may be a part of a large message.
        let key = row.as_bytes().get(..SAMPLE_BYTES_MAX).unwrap_or(row.as_bytes());
        let sample = RowKey::new(Bytes::copy_from_slice(key));
        if self.samples.len() < SAMPLES_MAX {
            self.samples.push(sample);
            return;
        }
        if let Some(replaced) = self.samples.get_mut(self.oldest) {
            *replaced = sample;
        }
        self.oldest = (self.oldest + 1) % SAMPLES_MAX;
    }
}

/// Whether the call with this number is sampled: a hash of it has zeros in its highest bits (the finalizer of `SplitMix64`).
pub(super) const fn is_sampled(number: u64) -> bool {
    let mut hash = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (hash ^ (hash >> 31)) >> (u64::BITS - SAMPLING_BITS) == 0
}

/// How often each sampled row occurs, ascending by row.
fn counts(samples: &[RowKey]) -> BTreeMap<&RowKey, u64> {
    let mut counts = BTreeMap::new();
    for row in samples {
        *counts.entry(row).or_default() += 1;
    }
    counts
}

/// The row of more than half of the samples, if there are enough of them.
fn hot_row(samples: &[RowKey]) -> Option<RowKey> {
    if samples.len() < SAMPLES_MIN {
        return None;
    }
    let (row, count) = counts(samples).into_iter().max_by_key(|(_row, count)| *count)?;
    (count > samples.len() as u64 / 2).then(|| row.clone())
}

/// Where the load of a tablet is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadCenter {
    /// Too few samples, or no key inside the range divides them.
    Unknown,
    /// This key halves the load best.
    Key(RowKey),
    /// Most of the load is on this row: no split would help.
    Row(RowKey),
}

/// Where the load of a tablet with this range is, by its sampled rows.
#[must_use]
pub fn load_center(range: &KeyRange, samples: &[RowKey]) -> LoadCenter {
    let inside: Vec<RowKey> = samples.iter().filter(|row| range.contains(row.as_bytes())).cloned().collect();
    if inside.len() < SAMPLES_MIN {
        return LoadCenter::Unknown;
    }
    if let Some(row) = hot_row(&inside) {
        return LoadCenter::Row(row);
    }
    let weights: Vec<(RowKey, u64)> = counts(&inside).into_iter().map(|(row, count)| (row.clone(), count)).collect();
    split_point(range, &weights).map_or(LoadCenter::Unknown, LoadCenter::Key)
}

/// The weight of the last `seconds`, of all time before now.
fn weight(seconds: f64) -> f64 {
    1.0 - (-seconds / DECAY.as_secs_f64()).exp()
}

#[expect(clippy::cast_precision_loss, reason = "a rate needs no more digits")]
const fn number(count: u64) -> f64 {
    count as f64
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "rates are not negative, and the conversion saturates"
)]
fn whole(rate: f64) -> u64 {
    rate.round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: Duration = Duration::from_secs(2);

    fn row(number: usize) -> RowKey {
        RowKey::new(format!("row{number:04}"))
    }

    /// Counts `per_tick` writes before each of `ticks` measurements, the first one at `from` ticks.
    fn run(meter: &LoadMeter, from: u32, ticks: u32, per_tick: usize) -> TabletLoad {
        let mut now = Duration::ZERO;
        for tick in from..from + ticks {
            (0..per_tick).for_each(|at| meter.count_write(&row(at % 100), 0));
            now = TICK * tick;
            meter.measure(now);
        }
        meter.load(now)
    }

    #[test]
    fn rates_follow_the_load_within_a_minute() {
        let meter = LoadMeter::default();
        let busy = run(&meter, 1, 30, 2_000);
        assert!((900..=1_000).contains(&busy.writes_per_second), "{busy:?}");
        assert_eq!((busy.reads_per_second, busy.quiet_for, busy.hot_row), (0, Duration::ZERO, None));
        let after = run(&meter, 31, 30, 0);
        assert!((10..=60).contains(&after.writes_per_second), "{after:?}");
        let later = run(&meter, 61, 60, 0);
        assert_eq!(later.per_second(), 0);
        assert!((60..=110).contains(&later.quiet_for.as_secs()), "{later:?}");
        assert!(meter.samples().is_empty(), "a quiet tablet keeps none");
    }

    #[test]
    fn a_new_meter_has_the_whole_rate_from_its_second_measurement_on() {
        let meter = LoadMeter::default();
        assert_eq!(run(&meter, 1, 1, 2_000).writes_per_second, 0, "since when these were is not known");
        assert_eq!(run(&meter, 2, 1, 2_000).writes_per_second, 1_000);
        let less = run(&meter, 3, 1, 1_000).writes_per_second;
        assert!((720..=740).contains(&less), "the later half of the time counts a little more: {less}");
    }

    #[test]
    fn a_tablet_is_quiet_from_its_first_measurement_on_and_again_after_a_burst() {
        let meter = LoadMeter::default();
        assert_eq!(meter.load(TICK * 100), TabletLoad::default(), "not measured yet");
        meter.measure(TICK * 100);
        assert_eq!(run(&meter, 101, 10, 4).quiet_for, TICK * 10, "two writes per second are quiet");
        assert_eq!(run(&meter, 111, 1, 1_000).quiet_for, Duration::ZERO);
        meter.reset();
        assert_eq!(meter.load(TICK * 200), TabletLoad::default(), "another replica leads");
    }

    #[test]
    fn a_merged_tablet_has_been_quiet_since_the_later_of_its_parts() {
        let (one, two) = (Arc::new(LoadMeter::default()), Arc::new(LoadMeter::default()));
        run(&one, 1, 20, 2);
        run(&two, 11, 10, 2);
        let merged = LoadMeter::merged(&[Arc::clone(&one), two]);
        assert_eq!(merged.load(TICK * 20).quiet_for, TICK * 9);
        assert_eq!(run(&merged, 21, 5, 4).quiet_for, TICK * 14, "its own counters start at zero");
        let unknown = LoadMeter::merged(&[one, Arc::default()]);
        assert_eq!(unknown.load(TICK * 20).quiet_for, Duration::ZERO);
    }

    #[test]
    fn about_one_call_in_64_is_sampled_also_in_a_rotation_of_64_rows() {
        let sampled: Vec<u64> = (0..64_000).filter(|number| is_sampled(*number)).collect();
        assert!((800..1_200).contains(&sampled.len()), "{}", sampled.len());
        let meter = LoadMeter::default();
        (0..20_000).for_each(|at| meter.count_read(&row(at % 64), 0));
        let samples = meter.samples();
        assert_eq!((samples.len(), hot_row(&samples)), (SAMPLES_MAX, None));
    }

    #[test]
    fn the_center_of_the_load_is_a_key_or_one_row() {
        let rows = |of: &[(usize, usize)]| -> Vec<RowKey> {
            of.iter().flat_map(|(at, count)| std::iter::repeat_n(row(*at), *count)).collect()
        };
        let all = KeyRange::all();
        assert_eq!(load_center(&all, &rows(&[(1, 20), (2, 11)])), LoadCenter::Unknown, "too few");
        assert_eq!(load_center(&all, &rows(&[(1, 20), (2, 20)])), LoadCenter::Key(row(2)));
        assert_eq!(load_center(&all, &rows(&[(1, 20), (2, 21)])), LoadCenter::Row(row(2)));
        assert_eq!(load_center(&all, &rows(&[(7, 10), (1, 10), (9, 15), (3, 10)])), LoadCenter::Key(row(7)));
        let range = KeyRange::new(row(2), Some(row(5))).unwrap();
        assert_eq!(load_center(&range, &rows(&[(1, 40), (2, 16), (3, 16)])), LoadCenter::Key(row(3)));
        assert_eq!(load_center(&range, &rows(&[(1, 40), (2, 16)])), LoadCenter::Unknown, "most are of other tablets");
        let long = RowKey::new(vec![b'k'; 1_000]);
        let meter = LoadMeter::default();
        (0..10_000).for_each(|_| meter.count_write(&long, 0));
        assert_eq!(meter.samples()[0].as_bytes().len(), SAMPLE_BYTES_MAX);
    }
}
