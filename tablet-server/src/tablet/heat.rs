//! The key heat of one tablet at its leader: counts of the present window, and which of its keys they are of.
//!
//! ```text
//!   read, write ── count ──► HeatMeter: six counters; of the sampled rows, ranges and frequent rows (`sketch`)
//!                                │
//!   heat collector ── take ──────┘  once a window: the counts, divided among at most 16 ranges as the samples are
//! ```
//!
//! A meter does nothing until the collector switches it on, which it does for tablets that are led here; ranges are for the busiest
//! tablets alone, so memory does not grow with the number of tablets. A request adds to a few counters, without a lock, unless its row is
//! sampled: the first rows of a window all are, later ones one in 64.

pub(crate) mod sketch;

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use ebla_model::heat::{HeatCounts, HeatWindow, RangeHeat};
use ebla_model::id::TabletId;
use ebla_model::key::{KeyRange, RowKey};
use ebla_model::time::whole_micros;
use parking_lot::Mutex;

use self::sketch::RangeSketch;
use crate::tablet::load::{SAMPLING_BITS, is_sampled};

/// The number of rows at the beginning of each window that are all sampled, of reads and of writes.
const SAMPLED_FIRST: u64 = 256;

/// What a meter counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeatDetail {
    /// Nothing.
    Off,
    /// The tablet as a whole.
    Tablet,
    /// Ranges of its keys.
    Ranges,
}

impl HeatDetail {
    const fn number(self) -> u8 {
        match self {
            Self::Off => 0,
            Self::Tablet => 1,
            Self::Ranges => 2,
        }
    }

    const fn of_number(number: u8) -> Self {
        match number {
            0 => Self::Off,
            1 => Self::Tablet,
            _ => Self::Ranges,
        }
    }
}

/// Whether a row is read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowAccess {
    /// Read.
    Read,
    /// Written.
    Write,
}

/// Counts the key heat of a tablet.
#[derive(Debug, Default)]
pub(crate) struct HeatMeter {
    detail: AtomicU8,
    reads: AtomicU64,
    writes: AtomicU64,
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
    calls: AtomicU64,
    call_micros: AtomicU64,
    /// Ranges and frequent rows of this window. Locked for a sampled row, and once a window.
    sketch: Mutex<Option<Box<RangeSketch>>>,
}

impl HeatMeter {
    /// What it counts now.
    pub(crate) fn detail(&self) -> HeatDetail {
        HeatDetail::of_number(self.detail.load(Ordering::Relaxed))
    }

    /// Sets what it counts from now on.
    pub(crate) fn set_detail(&self, detail: HeatDetail) {
        if self.detail() == detail {
            return;
        }
        self.detail.store(detail.number(), Ordering::Relaxed);
        if detail != HeatDetail::Ranges {
            *self.sketch.lock() = None;
        }
    }

    /// Counts an access to a row, of this many bytes.
    pub(crate) fn count(&self, access: RowAccess, row: &RowKey, bytes: usize) {
        let detail = self.detail();
        if detail == HeatDetail::Off {
            return;
        }
        let bytes = bytes as u64;
        let (rows, all_bytes) = match access {
            RowAccess::Read => (&self.reads, &self.read_bytes),
            RowAccess::Write => (&self.writes, &self.written_bytes),
        };
        all_bytes.fetch_add(bytes, Ordering::Relaxed);
        let number = rows.fetch_add(1, Ordering::Relaxed);
        if detail != HeatDetail::Ranges {
            return;
        }
        let weight = match number {
            0..SAMPLED_FIRST => 1,
            _ if is_sampled(number) => 1 << SAMPLING_BITS,
            _ => return,
        };
        let mut sketch = self.sketch.lock();
        sketch.get_or_insert_default().add(access, row, weight, bytes);
    }

    /// Counts the latency of a request.
    pub(crate) fn count_call(&self, latency: Duration) {
        if self.detail() != HeatDetail::Off {
            self.calls.fetch_add(1, Ordering::Relaxed);
            self.call_micros.fetch_add(whole_micros(latency), Ordering::Relaxed);
        }
    }

    /// What was counted since the last call, and begins again. `range`: the keys of the tablet.
    pub(crate) fn take(&self, tablet: TabletId, range: &KeyRange) -> HeatWindow {
        let take = |counter: &AtomicU64| counter.swap(0, Ordering::Relaxed);
        let counts = HeatCounts {
            reads: take(&self.reads),
            writes: take(&self.writes),
            read_bytes: take(&self.read_bytes),
            written_bytes: take(&self.written_bytes),
            calls: take(&self.calls),
            call_micros: take(&self.call_micros),
        };
        let sketch = self.sketch.lock().take();
        if counts.is_zero() {
            return HeatWindow::default();
        }
        match sketch {
            Some(sketch) => sketch.window(tablet, range, &counts),
            None => {
                HeatWindow { ranges: vec![RangeHeat { range: range.clone(), tablet, counts }], ..HeatWindow::default() }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u64) -> RowKey {
        RowKey::new(format!("k{number:05}"))
    }

    fn taken(meter: &HeatMeter) -> HeatWindow {
        meter.take(TabletId::new(7), &KeyRange::all())
    }

    #[test]
    fn a_meter_counts_what_it_is_set_to() {
        let meter = HeatMeter::default();
        meter.count(RowAccess::Read, &key(1), 10);
        meter.count_call(Duration::from_millis(1));
        assert_eq!(taken(&meter), HeatWindow::default(), "it is off");

        meter.set_detail(HeatDetail::Tablet);
        (0..500).for_each(|number| meter.count(RowAccess::Write, &key(number), 10));
        meter.count_call(Duration::from_millis(2));
        let window = taken(&meter);
        assert_eq!(window.ranges.len(), 1);
        let total = window.total();
        assert_eq!((total.writes, total.written_bytes, total.latency_micros()), (500, 5_000, 2_000));
        assert_eq!(taken(&meter), HeatWindow::default(), "the next window begins at zero");

        meter.set_detail(HeatDetail::Ranges);
        (0..10_000).for_each(|number| meter.count(RowAccess::Read, &key(number % 1_000), 7));
        let window = taken(&meter);
        assert!((4..=20).contains(&window.ranges.len()), "{}", window.ranges.len());
        assert_eq!((window.total().reads, window.total().read_bytes), (10_000, 70_000), "sums are exact");
    }

    #[test]
    fn the_ranges_of_a_tablet_that_is_no_longer_busy_are_forgotten() {
        let meter = HeatMeter::default();
        meter.set_detail(HeatDetail::Ranges);
        (0..100).for_each(|number| meter.count(RowAccess::Write, &key(number), 1));
        meter.set_detail(HeatDetail::Tablet);
        assert_eq!(taken(&meter).ranges.len(), 1);
    }
}
