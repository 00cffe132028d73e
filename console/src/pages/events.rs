//! The page `/events`: what happens to tablets, the newest first.

use ebla_client::encoding::time;
use ebla_client::history::TableEvent;
use ebla_model::error::Error;
use ebla_model::time::Micros;

use super::time_range::{self, TimeRange};
use super::{Page, note, server_link};
use crate::Context;
use crate::context::table_name;
use crate::html::{Html, Path, element, query_form, row, text};
use crate::recent::{EVENTS_MAX, Selection};
use crate::request::PageRequest;

/// Events without a choice.
const EVENTS_DEFAULT: u64 = 100;

/// Which events are shown.
#[derive(Clone, Debug, Default)]
struct Choice {
    table: Option<String>,
    /// A word that the event, its cause or its detail contains.
    word: Option<String>,
    number: u64,
    range: Option<TimeRange>,
}

/// The page.
///
/// # Errors
/// `NotFoundTable`, `InvalidArgument`; otherwise as [`Context::metadata`].
pub async fn page(context: &Context, request: &PageRequest) -> Result<Page, Error> {
    let choice = Choice {
        table: request.get("table").map(str::to_owned),
        word: request.get("word").map(str::to_owned),
        number: request.number("n", EVENTS_MAX as u64)?.unwrap_or(EVENTS_DEFAULT),
        range: TimeRange::of(request)?,
    };
    let table = choice.table.as_deref().map(table_name).transpose()?;
    let events = context.recent_events(&Selection { table, word: choice.word.clone() }).await?;
    let number = usize::try_from(choice.number).unwrap_or(usize::MAX);
    let begins = choice.range.map(|range| range.begins(context.runtime().clock.wall()));
    Ok(render(newest(since(&events, begins), number), &choice))
}

/// Those of these events, which are ascending by time, that are not before this time.
fn since(events: &[TableEvent], begins: Option<Micros>) -> &[TableEvent] {
    let first = events.partition_point(|one| begins.is_some_and(|begins| one.event.time < begins));
    events.get(first..).unwrap_or_default()
}

/// The last events of these.
pub(super) fn newest(events: &[TableEvent], number: usize) -> &[TableEvent] {
    events.get(events.len().saturating_sub(number)..).unwrap_or_default()
}

fn render(events: &[TableEvent], choice: &Choice) -> Page {
    let field = |name: &'static str, label: &str, value: Option<&str>| {
        let input = element("input").attr("name", name).attr("value", value.unwrap_or_default());
        element("label").text(label).child(input)
    };
    let form = query_form(&Path::of(&["events"]))
        .class("fields")
        .child(field("table", "Table", choice.table.as_deref()))
        .child(field("word", "Contains", choice.word.as_deref()))
        .child(time_range::field(choice.range, Some("all")))
        .child(field("n", "Number", Some(&choice.number.to_string())))
        .child(element("button").text("Show"));
    let table = choice.table.as_deref().map(|table| format!(" {}", ebla_client::encoding::shell_quote(table)));
    let command = format!("ebla events{} -n {}", table.unwrap_or_default(), choice.number);
    Page::new("Events", command).fixed(form).live("events", newest_first(events))
}

/// The events as a table, the newest first.
pub(super) fn newest_first(events: &[TableEvent]) -> Html {
    if events.is_empty() {
        return note("no events").into();
    }
    let line = |TableEvent { table, event }: &TableEvent| {
        let by = match event.server {
            Some(server) => server_link(server.get()).into(),
            None => text("master"),
        };
        row([
            element("time").class("time").attr("datetime", time(event.time)).text(time(event.time)).into(),
            text(table),
            text(event.tablet),
            text(event.generation),
            element("span").test_id("event").text(&event.what).into(),
            text(&event.cause),
            by,
            text(&event.detail),
        ])
        .test_id("event-row")
    };
    let heading = ["Time", "Table", "Tablet", "Generation", "Event", "Cause", "Recorded by", "Detail"];
    element("div").class("scroll").child(crate::html::table(&heading, events.iter().rev().map(line))).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::golden::{check, events};

    #[test]
    fn events_are_shown_as_before() {
        let choice = Choice { table: Some("web".to_owned()), word: None, number: 100, range: None };
        check("events", &render(&events(), &choice));
        assert_eq!([newest(&events(), 0).len(), newest(&events(), 9).len()], [0, 2]);
        assert_eq!(newest(&events(), 1), &events()[1..]);
        let [first, second] = [0, 1].map(|at| events()[at].event.time);
        let number = |begins| since(&events(), begins).len();
        assert_eq!([number(None), number(Some(first)), number(Some(second))], [2, 2, 1]);
        assert_eq!(since(&events(), Some(Micros::new(i64::MAX))).len(), 0);
        check("events-none", &render(&[], &Choice { number: 5, ..Choice::default() }));
    }
}
