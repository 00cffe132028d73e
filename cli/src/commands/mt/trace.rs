//! `ebla mt resolve --trace`: the steps of a resolution.

use ebla_mounttable_namespace::{Hop, Source, Trace};
use serde_json::{Value, json};

use crate::output::{self, Format};

/// Shows each step: as lines on stderr for people, as a JSON document with the outcome for programs.
pub(super) fn show(format: Format, trace: &Trace) {
    match format {
        Format::Json => output::print(&document(trace)),
        Format::Table => output::note(lines(trace).trim_end()),
    }
}

/// The steps and the outcome as JSON.
pub(super) fn document(trace: &Trace) -> String {
    let reason = trace.outcome.as_ref().err().map(|error| error.reason.name());
    let names = trace.outcome.as_ref().map(|entry| entry.names()).unwrap_or_default();
    let hops: Vec<_> = trace.hops.iter().map(hop).collect();
    output::json_text(&json!({"hops": hops, "names": names, "reason": reason}))
}

/// The steps, one line each.
pub(super) fn lines(trace: &Trace) -> String {
    let line = |(step, hop): (usize, &Hop)| {
        let answer = match &hop.answer {
            Ok(entry) => entry.names().join(" "),
            Err(error) => format!("{} ({})", error.message, error.reason),
        };
        let (asked, micros) = (hop.asked.join(" "), hop.took.as_micros());
        format!("{}  {asked}  {}  {micros} us  {answer}\n", step.saturating_add(1), source(hop))
    };
    trace.hops.iter().enumerate().map(line).collect()
}

fn hop(hop: &Hop) -> Value {
    json!({
        "asked": hop.asked,
        "source": source(hop),
        "micros": u64::try_from(hop.took.as_micros()).unwrap_or(u64::MAX),
        "names": hop.answer.as_ref().map(|entry| entry.names()).unwrap_or_default(),
        "reason": hop.answer.as_ref().err().map(|error| error.reason.name()),
    })
}

const fn source(hop: &Hop) -> &'static str {
    match hop.source {
        Source::Table => "table",
        Source::Cache => "cache",
        Source::Stale => "stale",
    }
}
