//! Requests per second and latencies: of a server, and of all servers together. Pure.

use ebla_client::snapshot::ServerSnapshot;
use ebla_client::waterfall::duration;
use ebla_model::call_times::{CallCounts, CallTimes, LatencyBound, LatencyCounts};
use ebla_runtime::metrics::LATENCY_BOUNDS;

use super::{note, or_dash};
use crate::html::{Html, facts};

/// The median, in thousandths.
const P50: u64 = 500;
/// The 99th percentile, in thousandths.
const P99: u64 = 990;

/// The requests of the cluster, from those servers that are known.
pub(super) fn cluster(servers: &[ServerSnapshot]) -> Html {
    let known: Vec<&CallTimes> = servers.iter().filter_map(|server| server.calls.as_ref()).collect();
    let mut calls = CallCounts::default();
    for times in &known {
        calls.reads.add(&times.calls.reads);
        calls.writes.add(&times.calls.writes);
    }
    let per_second = known.iter().fold(0, |sum: u64, times| sum.saturating_add(times.per_second()));
    let rows = |of: fn(&ServerSnapshot) -> Option<u64>| {
        let known: Vec<u64> = servers.iter().filter_map(of).collect();
        let sum = known.iter().fold(0, |sum: u64, one| sum.saturating_add(*one));
        or_dash((!known.is_empty()).then_some(sum))
    };
    let mut all = Html::from(facts(
        "traffic",
        [
            ("requests per second", or_dash((!known.is_empty()).then_some(per_second))),
            ("rows read per second", rows(|server| server.reads_per_second)),
            ("rows written per second", rows(|server| server.writes_per_second)),
            ("read p50", quantile(&calls.reads, P50)),
            ("read p99", quantile(&calls.reads, P99)),
            ("write p50", quantile(&calls.writes, P50)),
            ("write p99", quantile(&calls.writes, P99)),
        ],
    ));
    let live = servers.iter().filter(|server| server.is_reachable).count();
    let unknown = servers.iter().filter(|server| server.is_reachable && server.calls.is_none()).count();
    all.push(note(
        "Requests of clients that ended within about the last 10 s, with the time from the arrival to the end of the response. A latency is an \
         upper bound. Rows count at the leaders of their tablets.",
    ));
    if unknown > 0 {
        all.push(
            note(&format!("the requests of {unknown} of {live} servers are not known")).test_id("traffic-unknown"),
        );
    }
    all
}

/// The requests per second of a server.
pub(super) fn rate(server: &ServerSnapshot) -> String {
    or_dash(server.calls.as_ref().map(CallTimes::per_second))
}

/// The latencies of a server's reads: median and 99th percentile.
pub(super) fn reads(server: &ServerSnapshot) -> String {
    latencies(server, |calls| &calls.reads)
}

/// The latencies of a server's writes: median and 99th percentile.
pub(super) fn writes(server: &ServerSnapshot) -> String {
    latencies(server, |calls| &calls.writes)
}

fn latencies(server: &ServerSnapshot, of: fn(&CallCounts) -> &LatencyCounts) -> String {
    let known = server.calls.as_ref().map(|times| of(&times.calls)).filter(|counts| counts.count() > 0);
    known.map_or("-".to_owned(), |counts| format!("{}, {}", quantile(counts, P50), quantile(counts, P99)))
}

fn quantile(counts: &LatencyCounts, per_mille: u64) -> String {
    let micros = |duration: std::time::Duration| u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
    match counts.quantile(per_mille) {
        None => "-".to_owned(),
        Some(LatencyBound::AtMost(bound)) => format!("≤ {}", duration(micros(bound))),
        Some(LatencyBound::Longer) => {
            let longest = LATENCY_BOUNDS.last().copied().unwrap_or_default();
            format!("> {}", duration(longest))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn server(reads: &[(u64, u64)], writes_without_bound: u64) -> ServerSnapshot {
        let mut calls = CallCounts::default();
        reads.iter().for_each(|(bound, count)| calls.reads.add_calls(Some(*bound), *count));
        calls.writes.add_calls(None, writes_without_bound);
        ServerSnapshot {
            is_reachable: true,
            reads_per_second: Some(3),
            calls: Some(CallTimes { period: Duration::from_secs(10), calls }),
            ..ServerSnapshot::default()
        }
    }

    fn fact(html: &Html, name: &str) -> String {
        let begin = format!("data-testid=\"traffic-{name}\">");
        let (_before, rest) = html.as_str().split_once(&begin).unwrap();
        rest.split_once('<').unwrap().0.to_owned()
    }

    #[test]
    fn the_latencies_of_the_cluster_are_those_of_all_requests() {
        let fast = server(&[(500, 980)], 0);
        let slow = server(&[(2_500, 10), (250_000, 10)], 20);
        let html = cluster(&[fast.clone(), slow.clone()]);
        for (name, expected) in [
            ("requests-per-second", "102"),
            ("rows-read-per-second", "6"),
            ("rows-written-per-second", "-"),
            ("read-p50", "≤ 500 us"),
            ("read-p99", "≤ 2.5 ms"),
            ("write-p50", "&gt; 30.0 s"),
        ] {
            assert_eq!(fact(&html, name), expected, "{name}");
        }
        assert_eq!(
            (rate(&fast), reads(&slow), writes(&fast)),
            ("98".to_owned(), "≤ 2.5 ms, ≤ 250.0 ms".to_owned(), "-".to_owned())
        );
    }

    #[test]
    fn what_is_not_known_is_said() {
        let unknown = ServerSnapshot { is_reachable: true, ..ServerSnapshot::default() };
        let html = cluster(&[unknown.clone(), server(&[(500, 10)], 0)]);
        assert!(html.as_str().contains("requests of 1 of 2 servers are not known"), "{html:?}");
        assert_eq!(fact(&html, "requests-per-second"), "1");
        assert_eq!(fact(&cluster(std::slice::from_ref(&unknown)), "requests-per-second"), "-");
        assert_eq!((rate(&unknown), reads(&unknown)), ("-".to_owned(), "-".to_owned()));
    }
}
