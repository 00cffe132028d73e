//! The layout of traces for people: which operation called which, and the bars of their stages on one axis of time. Pure.

use std::collections::BTreeMap;

use ebla_proto::status::CODE_NAMES;
use ebla_proto::trace::{Follower, Record, StageTime};

pub use self::examples::example_records;

mod examples;

/// Stages that took less than this fraction of the trace are not shown, unless an operation has no longer one.
const SHOWN_PERMILLE: u64 = 5;

/// The records of one trace, each with its depth: a caller, then what it called.
pub type TraceRecords = Vec<(usize, Record)>;

/// Divides records into traces, by the time at which each begins. Those whose caller is not among the records come first in their trace.
pub fn traces(records: Vec<Record>) -> Vec<TraceRecords> {
    let mut order = Vec::new();
    let mut by_trace: BTreeMap<(u64, u64), Vec<Record>> = BTreeMap::new();
    for record in records {
        let id = (record.trace_high, record.trace_low);
        if !by_trace.contains_key(&id) {
            order.push(id);
        }
        by_trace.entry(id).or_default().push(record);
    }
    order.into_iter().filter_map(|id| by_trace.remove(&id)).map(ordered).collect()
}

fn ordered(mut records: Vec<Record>) -> TraceRecords {
    records.sort_by_key(|record| (record.began_micros, record.span));
    let mut placed: TraceRecords = Vec::new();
    while !records.is_empty() {
        // A record whose caller is still to come waits; of records that wait for each other, the first one goes ahead.
        let next = records.iter().position(|record| !records.iter().any(|other| is_caller(other, record))).unwrap_or(0);
        let record = records.remove(next);
        let caller = placed.iter().position(|(_depth, caller)| is_caller(caller, &record));
        match caller.and_then(|at| Some((at, placed.get(at)?.0))) {
            Some((at, depth)) => {
                let below = placed.iter().skip(at + 1).take_while(|(other, _record)| *other > depth).count();
                placed.insert(at + 1 + below, (depth + 1, record));
            }
            None => placed.push((0, record)),
        }
    }
    placed
}

/// The same trace, with an operation below each write for each of its followers: what the follower did with the append of the command.
pub fn with_followers(trace: &TraceRecords) -> TraceRecords {
    let expanded = trace.iter().flat_map(|(depth, record)| {
        let followers = record.followers.iter().map(move |follower| (depth + 1, append_of(record, follower)));
        std::iter::once((*depth, record.clone())).chain(followers)
    });
    expanded.collect()
}

/// The append of a follower as an operation of its own. The clocks of servers differ, so its stages are in the middle of the time between the
/// message and its answer: as if both had taken equally long.
fn append_of(record: &Record, follower: &Follower) -> Record {
    let elapsed_micros = follower.answered_micros.saturating_sub(follower.sent_micros);
    let stage = |name: &str, begin: u64, length: u64| StageTime {
        stage: name.to_owned(),
        begin_micros: begin,
        end_micros: begin.saturating_add(length),
        total_micros: length,
        count: 1,
    };
    let arrived = elapsed_micros.saturating_sub(follower.total_micros) / 2;
    let appended = arrived.saturating_add(follower.queue_micros);
    let stages = vec![stage("queue", arrived, follower.queue_micros), stage("sync", appended, follower.sync_micros)];
    let sent = i64::try_from(follower.sent_micros).unwrap_or(i64::MAX);
    Record {
        server: follower.server,
        origin: "server".to_owned(),
        method: "Append".to_owned(),
        trace_high: record.trace_high,
        trace_low: record.trace_low,
        parent: record.span,
        began_micros: record.began_micros.saturating_add(sent),
        elapsed_micros,
        group: record.group,
        stages: if follower.is_measured { stages } else { Vec::new() },
        ..Record::default()
    }
}

fn is_caller(caller: &Record, record: &Record) -> bool {
    record.parent != 0 && caller.span == record.parent && caller.span != record.span
}

/// The axis of time of a trace: it begins with the first operation and ends with the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Axis {
    begin_micros: i64,
    length_micros: u64,
}

/// A part of an axis, in units of which the axis has a given number. It is at least one long and ends on the axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bar {
    /// Where it begins.
    pub from: u64,
    /// Where it ends.
    pub to: u64,
}

impl Axis {
    /// The axis of these records.
    pub fn of(trace: &TraceRecords) -> Self {
        let begin_micros = trace.iter().map(|(_depth, record)| record.began_micros).min().unwrap_or_default();
        let axis = Self { begin_micros, length_micros: 1 };
        let ends = trace.iter().map(|(_depth, record)| axis.begin(record).saturating_add(record.elapsed_micros));
        Self { length_micros: ends.max().unwrap_or_default().max(1), ..axis }
    }

    /// Its length in microseconds, at least 1.
    pub const fn length_micros(self) -> u64 {
        self.length_micros
    }

    /// Where a record begins, in microseconds.
    fn begin(self, record: &Record) -> u64 {
        u64::try_from(record.began_micros.saturating_sub(self.begin_micros)).unwrap_or_default()
    }

    /// The bar of a whole operation, on an axis of `width` units, at least 1.
    pub fn operation(self, record: &Record, width: u64) -> Bar {
        self.bar(self.begin(record), record.elapsed_micros, width)
    }

    /// The bar of a stage of an operation, on an axis of `width` units, at least 1.
    pub fn stage(self, record: &Record, stage: &StageTime, width: u64) -> Bar {
        let begin = self.begin(record).saturating_add(stage.begin_micros);
        self.bar(begin, stage.end_micros.saturating_sub(stage.begin_micros), width)
    }

    fn bar(self, begin: u64, length: u64, width: u64) -> Bar {
        let width = width.max(1);
        let place = |micros: u64| (micros.saturating_mul(width) / self.length_micros).min(width);
        let from = place(begin).min(width - 1);
        Bar { from, to: place(begin.saturating_add(length)).clamp(from + 1, width) }
    }

    /// The stages of an operation that matter on this axis, in the order in which they began.
    pub fn shown(self, record: &Record) -> Vec<&StageTime> {
        let longest = record.stages.iter().map(|time| time.total_micros).max().unwrap_or_default();
        let least = (self.length_micros / 1_000 * SHOWN_PERMILLE).min(longest);
        let mut shown: Vec<_> = record.stages.iter().filter(|time| time.total_micros >= least).collect();
        shown.sort_by_key(|time| (time.begin_micros, time.end_micros));
        shown
    }
}

/// A duration for people.
pub fn duration(micros: u64) -> String {
    let (millis, seconds) = (micros / 1_000, micros / 1_000_000);
    match micros {
        0..1_000 => format!("{micros} us"),
        1_000..10_000_000 => format!("{millis}.{} ms", micros % 1_000 / 100),
        _ => format!("{seconds}.{} s", micros % 1_000_000 / 100_000),
    }
}

/// The process with this number in a record.
pub fn process_name(server: u64) -> String {
    if server == 0 { "master".to_owned() } else { format!("server {server}") }
}

/// The part of a whole, in percent, at most 100.
pub fn percent(part: u64, whole: u64) -> u64 {
    part.saturating_mul(100).saturating_add(whole / 2).checked_div(whole).unwrap_or_default().min(100)
}

/// The name of a gRPC code.
pub fn code_name(code: u32) -> String {
    let known = usize::try_from(code).ok().and_then(|code| CODE_NAMES.get(code).copied());
    known.map_or_else(|| code.to_string(), str::to_owned)
}

/// The trace that a record belongs to, as in `traceparent`.
pub fn trace_id(record: &Record) -> String {
    format!("{:016x}{:016x}", record.trace_high, record.trace_low)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_whose_callers_are_missing_come_first_and_circles_end() {
        let record = |span, parent| Record { span, parent, ..Record::default() };
        let depths = |records| -> Vec<(usize, u64)> {
            ordered(records).into_iter().map(|(depth, record)| (depth, record.span)).collect()
        };
        assert_eq!(depths(vec![record(2, 1), record(3, 2), record(4, 1), record(5, 9)]).len(), 4);
        assert_eq!(depths(vec![record(3, 2), record(2, 9), record(4, 2)]), [(0, 2), (1, 3), (1, 4)]);
        assert_eq!(depths(vec![record(1, 2), record(2, 1)]), [(0, 1), (1, 2)]);
        assert_eq!(depths(vec![record(1, 1)]), [(0, 1)]);
    }

    #[test]
    fn the_followers_of_a_write_are_below_it() {
        let shown = with_followers(&traces(example_records("t")).swap_remove(0));
        let of: Vec<_> = shown.iter().map(|(depth, record)| (*depth, record.method.as_str(), record.server)).collect();
        assert_eq!(of, [(0, "MutateRow", 1), (1, "Write", 2), (2, "Append", 3), (2, "Append", 4)]);
        let (_depth, measured) = &shown[2];
        let stages: Vec<_> = measured.stages.iter().map(|time| (time.begin_micros, time.end_micros)).collect();
        // 306.5 ms between message and answer, of which 305.5 ms are the follower's.
        assert_eq!((measured.elapsed_micros, stages), (306_500, vec![(500, 2_500), (2_500, 305_500)]));
        assert_eq!(measured.began_micros, 1_763_879_499_005_300);
        assert_eq!((shown[3].1.elapsed_micros, shown[3].1.stages.len()), (48_000, 0), "an earlier release");
        let absurd = Follower { total_micros: u64::MAX, queue_micros: u64::MAX, ..Follower::default() };
        assert_eq!(append_of(&Record::default(), &absurd).elapsed_micros, 0);
    }

    #[test]
    fn bars_stay_on_the_axis() {
        let axis = Axis { begin_micros: 0, length_micros: 1_000 };
        for (begin, length) in [(0, 0), (0, 1_000), (999, 1), (1_000, 5), (5_000, u64::MAX), (500, 1)] {
            let Bar { from, to } = axis.bar(begin, length, 48);
            assert!(from < to && to <= 48, "{begin} {length}");
        }
        assert_eq!(axis.bar(250, 500, 48), Bar { from: 12, to: 36 });
        assert_eq!(axis.bar(0, 1, 0), Bar { from: 0, to: 1 });
    }

    #[test]
    fn durations_have_a_unit_that_fits() {
        let shown = [0, 999, 1_000, 9_999_999, 12_345_678].map(duration);
        assert_eq!(shown, ["0 us", "999 us", "1.0 ms", "9999.9 ms", "12.3 s"]);
        assert_eq!((percent(1, 0), percent(1, 3), percent(9, 3), code_name(99)), (0, 33, 100, "99".to_owned()));
    }
}
