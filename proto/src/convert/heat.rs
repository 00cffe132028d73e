//! Key heat: the windows that are stored, as cells of their table.

use bytes::Bytes;
use ebla_model::heat::{HeatCounts, HeatWindow, RangeHeat, RowHeat};
use ebla_model::{Error, KeyRange, RowKey, TabletId};
use prost::Message;

use crate::record;

/// The version of the stored message.
const HEAT_VERSION: u32 = 1;
/// The largest count that is read: sums of very many counts do not overflow.
const COUNT_MAX: u64 = 1 << 40;

/// A window as it is stored.
#[must_use]
pub fn heat_window_to_bytes(window: &HeatWindow) -> Bytes {
    let nexts = window.ranges.iter().skip(1).map(Some).chain(std::iter::once(None));
    let range = |(range, next): (&RangeHeat, Option<&RangeHeat>)| {
        let end = range.range.end();
        let adjacent = end.is_some() && next.map(|next| next.range.start()) == end;
        record::HeatRange {
            start: range.range.start().bytes().clone(),
            end: end.filter(|_end| !adjacent).map(|end| end.bytes().clone()),
            adjacent,
            tablet: range.tablet.get(),
            counts: Some(counts_to_proto(&range.counts)),
        }
    };
    let row = |row: &RowHeat| record::HeatRow { row: row.row.bytes().clone(), reads: row.reads, writes: row.writes };
    let message = record::HeatWindow {
        version: HEAT_VERSION,
        ranges: window.ranges.iter().zip(nexts).map(range).collect(),
        rows: window.rows.iter().map(row).collect(),
        other: (!window.other.is_zero()).then(|| counts_to_proto(&window.other)),
    };
    message.encode_to_vec().into()
}

/// Inverse of [`heat_window_to_bytes`]. Ranges whose end is not after their start are left out. The keys are copies: they would keep a whole
/// response with many windows in memory if they were parts of it.
///
/// # Errors
/// `DataDamaged` when it does not decode, or has another version.
pub fn heat_window_from_bytes(bytes: &[u8]) -> Result<HeatWindow, Error> {
    let message =
        record::HeatWindow::decode(bytes).map_err(|error| Error::damaged(format!("window of key heat: {error}")))?;
    if message.version != HEAT_VERSION {
        return Err(Error::damaged(format!("window of key heat: version {} is not known", message.version)));
    }
    let nexts = message.ranges.iter().skip(1).map(Some).chain(std::iter::once(None));
    let range = |(range, next): (&record::HeatRange, Option<&record::HeatRange>)| {
        let end = if range.adjacent { next.map(|next| next.start.clone()) } else { range.end.clone() };
        let range_of_keys = KeyRange::new(RowKey::new(range.start.clone()), end.map(RowKey::new))?;
        let counts = counts_from_proto(range.counts.as_ref());
        Some(RangeHeat { range: range_of_keys, tablet: TabletId::new(range.tablet), counts })
    };
    let row = |row: &record::HeatRow| RowHeat {
        row: RowKey::new(row.row.clone()),
        reads: row.reads.min(COUNT_MAX),
        writes: row.writes.min(COUNT_MAX),
    };
    Ok(HeatWindow {
        ranges: message.ranges.iter().zip(nexts).filter_map(range).collect(),
        rows: message.rows.iter().map(row).collect(),
        other: counts_from_proto(message.other.as_ref()),
    })
}

const fn counts_to_proto(counts: &HeatCounts) -> record::HeatCounts {
    record::HeatCounts {
        reads: counts.reads,
        writes: counts.writes,
        read_bytes: counts.read_bytes,
        written_bytes: counts.written_bytes,
        calls: counts.calls,
        call_micros: counts.call_micros,
    }
}

fn counts_from_proto(counts: Option<&record::HeatCounts>) -> HeatCounts {
    let Some(counts) = counts else { return HeatCounts::default() };
    HeatCounts {
        reads: counts.reads.min(COUNT_MAX),
        writes: counts.writes.min(COUNT_MAX),
        read_bytes: counts.read_bytes.min(COUNT_MAX),
        written_bytes: counts.written_bytes.min(COUNT_MAX),
        calls: counts.calls.min(COUNT_MAX),
        call_micros: counts.call_micros.min(COUNT_MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: &'static str, end: Option<&'static str>) -> RangeHeat {
        RangeHeat {
            range: KeyRange::new(RowKey::new(start), end.map(RowKey::new)).unwrap(),
            tablet: TabletId::new(7),
            counts: HeatCounts { reads: 1, writes: 2, read_bytes: 3, written_bytes: 4, calls: 5, call_micros: 6 },
        }
    }

    #[test]
    fn windows_survive_a_round_trip() {
        let whole = HeatWindow {
            ranges: vec![range("", Some("b")), range("b", Some("c")), range("k", Some("l")), range("x", None)],
            rows: vec![RowHeat { row: RowKey::new("k"), reads: 0, writes: 9 }],
            other: HeatCounts { reads: 8, ..HeatCounts::default() },
        };
        let last_ends = HeatWindow { ranges: vec![range("a", Some("b"))], ..HeatWindow::default() };
        for window in [HeatWindow::default(), whole, last_ends] {
            assert_eq!(heat_window_from_bytes(&heat_window_to_bytes(&window)), Ok(window));
        }
    }

    #[test]
    fn keys_do_not_keep_the_response_in_memory() {
        let window = HeatWindow {
            ranges: vec![range("first", Some("second"))],
            rows: vec![RowHeat { row: RowKey::new("row"), reads: 1, writes: 1 }],
            ..HeatWindow::default()
        };
        let response = heat_window_to_bytes(&window);
        let read = heat_window_from_bytes(&response).unwrap();
        let ends = read.ranges.iter().filter_map(|range| range.range.end());
        let keys: Vec<&RowKey> = read
            .ranges
            .iter()
            .map(|range| range.range.start())
            .chain(ends)
            .chain(read.rows.iter().map(|row| &row.row))
            .collect();
        assert_eq!(keys.len(), 3);
        let within = response.as_ptr_range();
        assert!(keys.iter().all(|key| !within.contains(&key.as_bytes().as_ptr())));
    }

    #[test]
    fn damaged_windows_are_refused_and_impossible_ones_have_no_effect() {
        assert!(heat_window_from_bytes(b"\xff\xff").is_err());
        assert!(heat_window_from_bytes(b"").is_err(), "without a version");
        let counts = Some(record::HeatCounts { reads: u64::MAX, ..Default::default() });
        let reversed = record::HeatRange { start: "z".into(), end: Some("a".into()), counts, ..Default::default() };
        let huge = record::HeatRange { start: "a".into(), end: None, ..reversed.clone() };
        let message = record::HeatWindow { version: 1, ranges: vec![reversed, huge], ..Default::default() };
        let read = heat_window_from_bytes(&message.encode_to_vec()).unwrap();
        assert_eq!(read.ranges.iter().map(|range| range.counts.reads).collect::<Vec<_>>(), [COUNT_MAX]);
    }
}
