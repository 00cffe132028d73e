//! The page `/slow`: slow and failed operations, the newest first, each with the bars of its stages on one axis of time.

use ebla_client::encoding::{shell_quote, time};
use ebla_client::waterfall::{
    Axis, Bar, TraceRecords, code_name, duration, percent, process_name, trace_id, traces, with_followers,
};
use ebla_model::Micros;
use ebla_model::error::Error;
use ebla_proto::trace::{ListReply, ListRequest, Record, StageTime};

use super::time_range::{self, TimeRange};
use super::{Page, note, server_link, state};
use crate::Context;
use crate::context::table_name;
use crate::html::{Html, Path, element, query_form, row, text};
use crate::request::PageRequest;

/// The most records on a page.
const RECORDS_MAX: u64 = 200;
/// Records without a choice.
const RECORDS_DEFAULT: u64 = 50;
/// The units of the axis.
const WIDTH: u64 = 1_000;

/// Which operations are shown.
#[derive(Clone, Debug, Default)]
struct Choice {
    table: Option<String>,
    server: Option<u64>,
    kinds: Kinds,
    number: u64,
    range: Option<TimeRange>,
}

/// Which sorts of operations are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Kinds {
    /// Slow ones.
    #[default]
    Slow,
    /// Also those that failed.
    Failed,
    /// Also those whose traces are sampled.
    All,
}

impl Kinds {
    const ALL: [Self; 3] = [Self::Slow, Self::Failed, Self::All];

    const fn name(self) -> &'static str {
        match self {
            Self::Slow => "slow",
            Self::Failed => "failed",
            Self::All => "all",
        }
    }

    const fn label(self) -> &'static str {
        match self {
            Self::Slow => "slow ones",
            Self::Failed => "slow and failed ones",
            Self::All => "slow, failed and sampled ones",
        }
    }
}

/// The page.
///
/// # Errors
/// `PermissionDenied` for a table that the viewer may not see, `InvalidArgument`; otherwise as calls of the operators' API.
pub async fn page(context: &Context, request: &PageRequest) -> Result<Page, Error> {
    let kinds = request.get("kinds").and_then(|name| Kinds::ALL.into_iter().find(|kinds| kinds.name() == name));
    let choice = Choice {
        table: request.get("table").map(str::to_owned),
        server: request.number("server", u64::MAX)?,
        kinds: kinds.unwrap_or_default(),
        number: request.number("n", RECORDS_MAX)?.unwrap_or(RECORDS_DEFAULT),
        range: TimeRange::of(request)?,
    };
    let table = choice.table.as_deref().map(table_name).transpose()?;
    let begins = choice.range.map(|range| range.begins(context.runtime().clock.wall()));
    let request = ListRequest {
        since_micros: begins.map_or(0, |begins| begins.get().max(0)),
        server: choice.server.unwrap_or_default(),
        table: table.map(|table| table.as_str().to_owned()).unwrap_or_default(),
        // Of no record the server would make the default.
        limit: u32::try_from(choice.number.max(1)).unwrap_or(u32::MAX),
        failed: choice.kinds != Kinds::Slow,
        sampled: choice.kinds == Kinds::All,
    };
    let records = context.admin().traces(request).await?;
    context.render(move || render(records, &choice)).await
}

fn render(ListReply { records, unreachable }: ListReply, choice: &Choice) -> Page {
    let field = |name: &'static str, label: &str, value: String| {
        let input = element("input").attr("name", name).attr("value", value);
        element("label").text(label).child(input)
    };
    let option = |kinds: Kinds| {
        let option = element("option").attr("value", kinds.name()).text(kinds.label());
        if kinds == choice.kinds { option.flag("selected") } else { option }
    };
    let kinds = element("select").attr("name", "kinds").children(Kinds::ALL.map(option));
    let form = query_form(&Path::of(&["slow"]))
        .class("fields")
        .child(field("table", "Table", choice.table.clone().unwrap_or_default()))
        .child(field("server", "Server", choice.server.map(|server| server.to_string()).unwrap_or_default()))
        .child(element("label").text("Operations").child(kinds))
        .child(time_range::field(choice.range, Some("all")))
        .child(field("n", "Number", choice.number.to_string()))
        .child(element("button").text("Show"));
    let missing = unreachable.iter().map(|missing| {
        note(&format!("the records of {} are missing: {}", process_name(missing.server), missing.message))
    });
    let mut live = Html::join(missing);
    let traces = traces(records);
    if traces.is_empty() {
        live.push(note("no slow operations"));
    }
    traces.iter().rev().for_each(|one| live.push(trace(one)));
    Page::new("Slow operations", command(choice)).fixed(form).live("slow", live)
}

/// The command that shows the same.
fn command(choice: &Choice) -> String {
    let mut command = "ebla slow".to_owned();
    if let Some(table) = &choice.table {
        command.push_str(&format!(" --table {}", shell_quote(table)));
    }
    if let Some(server) = choice.server {
        command.push_str(&format!(" --server {server}"));
    }
    if let Some(range) = choice.range {
        command.push_str(&format!(" --since {}", range.name));
    }
    if choice.kinds != Kinds::Slow {
        command.push_str(" --failed");
    }
    format!("{command} -n {}", choice.number)
}

/// One trace: what it is, and a table of its operations and their stages.
fn trace(records: &TraceRecords) -> Html {
    let records = &with_followers(records);
    let Some((_depth, first)) = records.first() else { return Html::empty() };
    let axis = Axis::of(records);
    let at = time(Micros::new(first.began_micros));
    let mut title = element("h2")
        .child(element("span").test_id("method").text(&first.method))
        .text(format!(" {} ", duration(first.elapsed_micros)))
        .child(state(if first.code == 0 { "ok" } else { "bad" }, &code_name(first.code)));
    if let Some(table) = first.table.rsplit('/').next().filter(|table| !table.is_empty()) {
        title = title.text(format!(" {table}"));
    }
    let facts = element("p")
        .class("time")
        .child(element("time").attr("datetime", &at).text(&at))
        .text(if first.tablet > 0 { format!(" tablet {}", first.tablet) } else { String::new() })
        .text(" trace ")
        .child(element("code").test_id("trace").text(trace_id(first)));
    let lines = records.iter().flat_map(|(depth, record)| operation(*depth, record, axis));
    let table = crate::html::table(&["Operation or stage", "Time", "Result or share", "When"], lines);
    element("section")
        .test_id("operation")
        .child(title)
        .child(facts)
        .child(element("div").class("scroll").child(table))
        .into()
}

/// The rows of an operation: itself, then its stages.
fn operation(depth: usize, record: &Record, axis: Axis) -> Vec<Html> {
    let indent = "\u{a0}".repeat(4 * depth);
    let name = element("span");
    let mut name = match record.server {
        0 => name.text(format!("{indent}{} master", record.method)),
        server => name.text(format!("{indent}{} server ", record.method)).child(server_link(server)),
    };
    if record.leader != 0 && record.leader != record.server {
        name = name.text(" calls server ").child(server_link(record.leader));
    }
    if let Some(batch) = &record.batch {
        let rows = if batch.writes == 1 { "row" } else { "rows" };
        name = name.text(format!(
            ", group {} command {}.{} with {} {rows}",
            record.group, batch.term, batch.index, batch.writes
        ));
    }
    let own = row([
        name.into(),
        text(duration(record.elapsed_micros)),
        text(code_name(record.code)),
        picture("s0", axis.operation(record, WIDTH), &record.method),
    ]);
    let stage = |time: &StageTime| {
        let part = percent(time.total_micros, record.elapsed_micros);
        let repeated = if time.count > 1 { format!(", {} times", time.count) } else { String::new() };
        row([
            element("span").test_id("stage").text(format!("{indent}\u{a0}\u{a0}{}", time.stage)).into(),
            text(duration(time.total_micros)),
            text(format!("{part} %{repeated}")),
            picture(colour(&time.stage), axis.stage(record, time, WIDTH), &time.stage),
        ])
        .into()
    };
    std::iter::once(own.into()).chain(axis.shown(record).into_iter().map(stage)).collect()
}

/// A bar on the axis.
fn picture(colour: &'static str, bar: Bar, name: &str) -> Html {
    let filled = element("rect")
        .class(colour)
        .attr("x", bar.from)
        .attr("y", 0)
        .attr("width", bar.to - bar.from)
        .attr("height", 1);
    element("svg")
        .class("timeline")
        .attr("viewBox", format!("0 0 {WIDTH} 1"))
        .attr("preserveAspectRatio", "none")
        .attr("role", "img")
        .attr("aria-label", name)
        .child(filled)
        .into()
}

/// Stages of one sort have one colour: other servers, queues and locks, disks, replication, work.
fn colour(stage: &str) -> &'static str {
    match stage {
        "forward" | "master" | "server" | "chubby" | "lookup" => "s1",
        "sync" | "read" => "s2",
        "replication" | "leadership" | "outcome" => "s3",
        "admission" | "memory" | "queue" | "read-queue" => "s4",
        "latch" | "retry" => "s5",
        "client" => "s6",
        _ => "s7",
    }
}

#[cfg(test)]
mod tests {
    use ebla_client::waterfall::example_records;
    use ebla_proto::trace::Unreachable;

    use super::*;
    use crate::pages::golden::check;

    /// The table needs to be escaped.
    const TABLE: &str = "projects/dev/instances/dev/tables/<web>";

    #[test]
    fn slow_operations_are_shown_as_before() {
        let choice =
            Choice { table: Some("web".to_owned()), server: Some(1), kinds: Kinds::Failed, number: 50, range: None };
        check("slow", &render(ListReply { records: example_records(TABLE), unreachable: Vec::new() }, &choice));
        let unreachable = vec![Unreachable { server: 3, message: "it did not respond in time".to_owned() }];
        let none = render(ListReply { records: Vec::new(), unreachable }, &Choice { number: 5, ..Choice::default() });
        check("slow-none", &none);
    }

    #[test]
    fn a_range_of_time_is_in_the_form_and_in_the_command() {
        let choice = Choice { range: Some(TimeRange::HOUR), number: 5, ..Choice::default() };
        let page = render(ListReply::default(), &choice);
        assert_eq!(page.command, "ebla slow --since 1h -n 5");
        assert!(page.parts[0].html.as_str().contains("<option value=\"1h\" selected>"), "{page:?}");
    }

    #[test]
    fn each_operation_and_stage_has_a_bar() {
        let page = render(ListReply { records: example_records(TABLE), unreachable: Vec::new() }, &Choice::default());
        let html = page.parts[1].html.as_str();
        // Five operations, two of them those of followers, with the stages that are long enough.
        assert_eq!((html.matches("<svg").count(), html.matches("data-testid=\"stage\"").count()), (12, 7), "{html}");
        assert!(html.contains("&lt;web&gt;") && !html.contains("<web>"), "{html}");
    }
}
