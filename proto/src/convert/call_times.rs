//! The calls of a server within a period, in its reports.

use std::time::Duration;

use ebla_model::call_times::{CallCounts, CallTimes, LatencyCounts};

use crate::record;

/// The calls as a message; the period in whole milliseconds.
pub fn call_times_to_proto(times: &CallTimes) -> record::CallTimes {
    let timed = |counts: &LatencyCounts| {
        let timed = |(bound, calls): (Option<u64>, u64)| record::TimedCalls {
            at_most_micros: bound.unwrap_or_default(),
            calls,
        };
        counts.buckets().map(timed).collect()
    };
    record::CallTimes {
        period_millis: u64::try_from(times.period.as_millis()).unwrap_or(u64::MAX),
        reads: timed(&times.calls.reads),
        writes: timed(&times.calls.writes),
    }
}

/// The calls of a message.
pub fn call_times_from_proto(times: &record::CallTimes) -> CallTimes {
    let counts = |timed: &[record::TimedCalls]| {
        let mut counts = LatencyCounts::default();
        for one in timed {
            counts.add_calls(Some(one.at_most_micros).filter(|micros| *micros > 0), one.calls);
        }
        counts
    };
    let calls = CallCounts { reads: counts(&times.reads), writes: counts(&times.writes) };
    CallTimes { period: Duration::from_millis(times.period_millis), calls }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_survive_a_round_trip() {
        let mut times = CallTimes { period: Duration::from_millis(10_250), ..CallTimes::default() };
        assert_eq!(call_times_from_proto(&call_times_to_proto(&times)), times);
        times.calls.reads.add_calls(Some(500), 7);
        times.calls.reads.add_calls(None, 1);
        times.calls.writes.add_calls(Some(1_000), 3);
        assert_eq!(call_times_from_proto(&call_times_to_proto(&times)), times);
    }
}
