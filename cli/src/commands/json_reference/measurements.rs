//! The documents of commands that put a load on a cluster, for the reference.

use std::time::Duration;

use ebla_proto::operate::LocalityGroup;
use ebla_proto::record::StoredBytes;
use ebla_runtime::Rng;
use ebla_workload::bench::Combination;
use ebla_workload::bench::closed_loop::LoopResult;
use ebla_workload::bench::counters::ServerCounters;
use ebla_workload::bench::processes::Spent;
use ebla_workload::bench::report::Comparison;
use ebla_workload::bench::round::Round;
use ebla_workload::verify::history::Process;
use ebla_workload::verify::rows::Slot;
use ebla_workload::verify::{Anomaly, Counts, Finding, Moment, Report, Stall};
use serde_json::Value;

use crate::commands::bench;
use crate::commands::load::{self, Loaded};

/// The command, what its document is, and documents that together have every type of every field.
pub(super) fn documents() -> Vec<(&'static str, &'static str, Vec<Value>)> {
    vec![
        (
            "ebla bench",
            "A list of results, an element for each combination of workload, clients and tablets. What a target does not report is null. \
             `ratio` is the throughput of the first target divided by that of this one, with an interval of 95 %; null for the first.",
            vec![bench::to_json(&[comparison(Some(1)), comparison(None)])],
        ),
        (
            "ebla verify",
            "The report. `lost`, `stale`, `doubled`, `half` and `invented` are the numbers of findings of each kind; `errors` are by reason, \
             here `REASON`. In `stalls`, `at_ms` counts from `began_micros`.",
            vec![report().json()],
        ),
        (
            "ebla load webtable",
            "What was loaded. `pages` have contents, with `versions` of them in total; `locality_groups` are by name, here `GROUP`, as in \
             `ebla table locality-group describe`.",
            vec![loaded()],
        ),
    ]
}

/// Of a target of which everything is known, and of one of which nothing is.
fn comparison(tablets: Option<u64>) -> Comparison {
    let latencies = LoopResult::none().latencies;
    let unknown =
        Round { rows: 1, took: Duration::from_secs(1), latencies, spent: None, generator_micros: None, servers: None };
    let known = Round {
        spent: Some(Spent { cpu_micros: 1, switches: 1, write_calls: Some(1) }),
        generator_micros: Some(1),
        servers: Some(ServerCounters { entry_frames: 1, ..ServerCounters::default() }),
        ..unknown.clone()
    };
    let targets = [known, unknown].map(|round| ("ebla".to_owned(), vec![round]));
    Comparison::new(Combination { workload: "write", clients: 1, tablets }, &targets, &Rng::seeded(1))
}

fn report() -> Report {
    let stall = Stall {
        at: Moment::after(Duration::ZERO),
        lasted: Duration::from_secs(1),
        who: Process::Writer(1),
        slot: Slot(1),
    };
    let finding = Finding { around: vec!["what".to_owned()], ..Finding::new(Anomaly::Lost, "r", "1", "nothing") };
    Report {
        counts: Counts { stalls: vec![stall], errors: [("REASON".to_owned(), 1)].into(), ..Counts::default() },
        findings: vec![finding],
        read_through: vec!["host:1".to_owned()],
        silent: vec!["host:2".to_owned()],
        ..Report::default()
    }
}

fn loaded() -> Value {
    let loaded = Loaded {
        rows: 1,
        cells: 1,
        bytes: 1,
        contents: (1, 1),
        origin: "generated pages".to_owned(),
        took: Duration::from_secs(1),
    };
    let group = LocalityGroup {
        name: "GROUP".to_owned(),
        families: vec!["f".to_owned()],
        options: "compression=zstd".to_owned(),
        bytes: Some(StoredBytes { data: 1, files: 1 }),
    };
    load::to_json(&loaded, &[group])
}
