//! The text of a trace: a line for each operation, and below it a bar for each of its stages, on one axis of time. docs/operate/observe.md
//! has an example.

use ebla_client::waterfall::{
    Axis, TraceRecords, code_name, duration, percent, process_name, trace_id, with_followers,
};
use ebla_model::Micros;
use ebla_proto::trace::Record;

use crate::output;

/// The width of the axis, in characters.
const WIDTH: u64 = 48;

/// The text of one trace.
pub(super) fn waterfall(trace: &TraceRecords) -> String {
    let trace = &with_followers(trace);
    let axis = Axis::of(trace);
    let names = trace.iter().flat_map(|(depth, record)| {
        axis.shown(record).into_iter().map(move |time| 2 * (depth + 1) + time.stage.chars().count())
    });
    let column = names.max().unwrap_or_default();
    let mut text = String::new();
    for (number, (depth, record)) in trace.iter().enumerate() {
        let place = if number == 0 { Place::First } else { Place::Later };
        text.push_str(&heading(*depth, place, record));
        for time in axis.shown(record) {
            let indent = 2 * (depth + 1);
            let name = format!("{:indent$}{}", "", time.stage);
            let repeated = if time.count > 1 { format!("  {} times", time.count) } else { String::new() };
            let bar = axis.stage(record, time, WIDTH);
            let repeat = |text: &str, count: u64| text.repeat(usize::try_from(count).unwrap_or_default());
            text.push_str(&format!(
                "{name:<column$}  {:>9}  |{}{}{}|{:>4} %{repeated}\n",
                duration(time.total_micros),
                repeat(" ", bar.from),
                repeat("■", bar.to - bar.from),
                repeat(" ", WIDTH - bar.to),
                percent(time.total_micros, record.elapsed_micros),
            ));
        }
    }
    text
}

/// The place of an operation in its trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// It has the time, the table and the trace of all.
    First,
    Later,
}

fn heading(depth: usize, place: Place, record: &Record) -> String {
    let is_first = place == Place::First;
    let mut parts = Vec::new();
    if is_first {
        parts.push(output::time(Micros::new(record.began_micros)));
    }
    // An earlier release may have recorded control characters of terminals.
    parts.push(record.method.escape_debug().to_string());
    parts.push(duration(record.elapsed_micros));
    parts.push(code_name(record.code));
    if is_first && !record.table.is_empty() {
        parts.push(record.table.rsplit('/').next().unwrap_or_default().to_owned());
    }
    if is_first && record.tablet > 0 {
        parts.push(format!("tablet {}", record.tablet));
    }
    parts.push(match record.leader {
        0 => process_name(record.server),
        leader if leader == record.server => format!("server {leader}"),
        leader if record.server == 0 => format!("master -> server {leader}"),
        leader => format!("server {} -> {leader}", record.server),
    });
    if let Some(batch) = &record.batch {
        let rows = if batch.writes == 1 { "row" } else { "rows" };
        parts.push(format!(
            "group {} command {}.{} with {} {rows}",
            record.group, batch.term, batch.index, batch.writes
        ));
    }
    if is_first {
        parts.push(format!("trace {}", trace_id(record)));
    }
    format!("{:indent$}{}\n", "", parts.join("  "), indent = 2 * depth)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use ebla_client::waterfall::{example_records, traces};

    use super::*;

    #[test]
    fn a_trace_is_shown_with_its_calls_and_stages() {
        let records = example_records("projects/dev/instances/dev/tables/web");
        let shown: Vec<_> = traces(records).iter().map(waterfall).collect();
        let shown = shown.join("\n");
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/waterfall.txt");
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(&path, &shown).unwrap();
        }
        assert_eq!(shown, std::fs::read_to_string(&path).unwrap(), "UPDATE=1 rewrites {}", path.display());
    }
}
