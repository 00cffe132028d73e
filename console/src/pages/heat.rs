//! The pages `/heat` and `/heat/TABLE`: which keys of a table are used when, and what that says about its schema and its clients.
//!
//! The map is one SVG picture of cells, each with a title and a link to the tablet that has its keys; choices are links and a form, so it
//! works without a script.

use ebla_client::encoding::{escape, shell_quote, time};
use ebla_client::heat::{HeatQuery, KeyHeat, KeyHeatColumn};
use ebla_model::error::{Error, Reason};
use ebla_model::heat::HeatMetric;
use ebla_model::id::TabletId;
use ebla_model::key::{KeyRange, RowKey};
use ebla_model::schema::TableName;

use super::time_range::{self, TimeRange};
use super::{Page, note, section, shown_key};
use crate::Context;
use crate::context::{DEFAULT_PARENT, short_name, table_name};
use crate::html::{Element, Html, Path, element, link, query_form, row, table, text};
use crate::request::PageRequest;

/// Rows of the picture.
const BUCKETS: u32 = 60;
/// Columns of the picture: more steps of time are joined.
const COLUMNS_MAX: usize = 120;
/// From little to much; the first one is for nothing.
const SHADES: [&str; 9] = ["h0", "h1", "h2", "h3", "h4", "h5", "h6", "h7", "h8"];
/// Ranges in the list of the busiest.
const BUSIEST: usize = 10;

/// What the viewer has chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Choice {
    metric: HeatMetric,
    range: TimeRange,
    /// Only keys that begin so.
    prefix: RowKey,
}

impl Choice {
    fn of(request: &PageRequest) -> Result<Self, Error> {
        let metric = request.get("metric").map_or(Ok(HeatMetric::default()), str::parse)?;
        let range = TimeRange::of(request)?.unwrap_or(TimeRange::HOUR);
        Ok(Self { metric, range, prefix: request.key("prefix")?.unwrap_or_default() })
    }
}

/// The page: the map of a table, or without one the tables to choose from.
///
/// # Errors
/// `InvalidArgument` for a choice that does not exist; `NotFoundTable`, `PermissionDenied`, `Unavailable`.
pub async fn page(context: &Context, request: &PageRequest) -> Result<Page, Error> {
    let given = request.segment(1);
    if given.is_empty() {
        let names = context.admin().list_tables(DEFAULT_PARENT.0, DEFAULT_PARENT.1).await?;
        return Ok(render_choice(&names));
    }
    let (name, choice) = (table_name(given)?, Choice::of(request)?);
    let query = HeatQuery {
        from: Some(choice.range.begins(context.runtime().clock.wall())),
        to: None,
        range: KeyRange::prefix(choice.prefix.as_bytes()),
        buckets: BUCKETS,
        metric: choice.metric,
    };
    match context.admin().key_heat(&name, &query).await {
        Ok(heat) => context.render(move || render(&name, &choice, &heat)).await,
        // It says what to do, and the choices stay.
        Err(error) if error.reason == Reason::FailedPrecondition => {
            Ok(frame(&name, &choice).fixed(note(&error.message)))
        }
        Err(error) => Err(error),
    }
}

fn render_choice(names: &[TableName]) -> Page {
    let item = |name: &TableName| element("li").child(link(&Path::of(&["heat", short_name(name)]), name.table()));
    let list: Html = match names {
        [] => note("no tables").into(),
        names => element("ul").children(names.iter().map(item)).into(),
    };
    Page::new("Heat map", "ebla table hot")
        .fixed(note("Which keys of a table are used when. Choose a table."))
        .fixed(list)
}

/// The page with its choices, without the map.
fn frame(name: &TableName, choice: &Choice) -> Page {
    let quoted = shell_quote(short_name(name));
    let mut command = format!("ebla table hot {quoted} --metric {} --since {}", choice.metric, choice.range.name);
    if !choice.prefix.is_empty() {
        command.push_str(&format!(" --prefix {}", shell_quote(&escape(choice.prefix.as_bytes()))));
    }
    Page::new(format!("Heat map of {}", name.table()), command).fixed(form(name, choice))
}

fn form(name: &TableName, choice: &Choice) -> Element {
    let select = |field: &'static str, label: &str, options: Vec<(&'static str, bool)>| {
        let option = |(value, is_chosen): (&'static str, bool)| {
            let option = element("option").attr("value", value).text(value);
            if is_chosen { option.flag("selected") } else { option }
        };
        let list = element("select").attr("name", field).children(options.into_iter().map(option));
        element("label").text(label).child(list)
    };
    let metrics = HeatMetric::ALL.iter().map(|metric| (metric.name(), *metric == choice.metric)).collect();
    let prefix = element("input").attr("name", "prefix").attr("value", escape(choice.prefix.as_bytes()));
    query_form(&Path::of(&["heat", short_name(name)]))
        .class("fields")
        .child(select("metric", "Metric", metrics))
        .child(time_range::field(Some(choice.range), None))
        .child(element("label").text(r"Keys that begin with (bytes as \xHH)").child(prefix))
        .child(element("button").text("Show"))
}

fn render(name: &TableName, choice: &Choice, heat: &KeyHeat) -> Page {
    let page = frame(name, choice);
    let findings: Html = match heat.findings.as_slice() {
        [] => note("nothing conspicuous").test_id("heat-finding-none").into(),
        findings => {
            let item = |finding: &String| element("li").class("warn").test_id("heat-finding").text(finding);
            element("ul").children(findings.iter().map(item)).into()
        }
    };
    let columns = joined(heat, choice.metric);
    let map: Html = if columns.is_empty() {
        note("nothing was counted in this time").into()
    } else {
        Html::join([
            picture(name, choice, heat, &columns),
            legend(choice.metric, &columns),
            busiest(name, choice, heat),
        ])
    };
    // Not live: it changes once a minute, and is read from a table.
    page.fixed(section("Findings", [findings])).fixed(section("Keys by time", [map]))
}

/// Columns of the picture: steps of time, or several of them as one.
fn joined(heat: &KeyHeat, metric: HeatMetric) -> Vec<KeyHeatColumn> {
    let each = heat.columns.len().div_ceil(COLUMNS_MAX).max(1);
    let join = |columns: &[KeyHeatColumn]| {
        let value = |at: usize| {
            let values = columns.iter().filter_map(|column| column.values.get(at).copied());
            match metric {
                HeatMetric::Latency => values.max().unwrap_or(0),
                _ => values.fold(0, u64::saturating_add),
            }
        };
        KeyHeatColumn {
            start: columns.first().map(|column| column.start).unwrap_or_default(),
            values: (0..heat.buckets.len()).map(value).collect(),
            other: columns.iter().fold(0, |sum: u64, column| sum.saturating_add(column.other)),
        }
    };
    heat.columns.chunks(each).map(join).collect()
}

/// Time from left to right, keys from top to bottom.
fn picture(name: &TableName, choice: &Choice, heat: &KeyHeat, columns: &[KeyHeatColumn]) -> Html {
    let max = largest(columns);
    let mut cells: Vec<Element> = Vec::new();
    for (y, (start, tablet)) in heat.buckets.iter().enumerate() {
        let end = heat.buckets.get(y + 1).map_or_else(|| "(end)".to_owned(), |(end, _tablet)| shown_key(end, ""));
        let keys = format!("{} to {end}", shown_key(start, "(start)"));
        let in_row = columns.iter().enumerate().filter_map(|(x, column)| Some((x, column, column.values.get(y)?)));
        // Cells without a count are the ground of the picture.
        let in_row = in_row.filter(|(_x, _column, value)| **value > 0).map(|(x, column, value)| {
            let title =
                format!("{}: {value} {}, keys {keys}{}", time(column.start), unit(choice.metric), of_tablet(*tablet));
            element("rect")
                .class(shade(*value, max))
                .attr("x", x)
                .attr("y", y)
                .attr("width", 1)
                .attr("height", 1)
                .attr("data-x", x)
                .attr("data-y", y)
                .child(element("title").text(title))
        });
        let to = tablet_path(name, *tablet, start);
        cells.push(element("a").href(&to).children(in_row));
    }
    element("svg")
        .class("heat")
        .attr("viewBox", format!("0 0 {} {}", columns.len(), heat.buckets.len()))
        .attr("preserveAspectRatio", "none")
        .attr("shape-rendering", "crispEdges")
        .attr("role", "img")
        .attr(
            "aria-label",
            format!("{} of keys over time: keys from top to bottom, time from left to right", choice.metric),
        )
        .test_id("heat-map")
        .children(cells)
        .into()
}

fn largest(columns: &[KeyHeatColumn]) -> u64 {
    columns.iter().flat_map(|column| &column.values).copied().max().unwrap_or(0)
}

const fn unit(metric: HeatMetric) -> &'static str {
    match metric {
        HeatMetric::Requests => "reads and writes",
        HeatMetric::Reads => "reads",
        HeatMetric::Writes => "writes",
        HeatMetric::ReadBytes => "bytes read",
        HeatMetric::WrittenBytes => "bytes written",
        HeatMetric::Latency => "microseconds",
    }
}

fn of_tablet(tablet: Option<TabletId>) -> String {
    tablet.map_or_else(String::new, |tablet| format!(", tablet {tablet}"))
}

/// The page of a tablet, or of the tablets from this key on.
fn tablet_path(name: &TableName, tablet: Option<TabletId>, start: &RowKey) -> Path {
    let path = Path::of(&["tables", short_name(name), "tablets"]);
    match tablet {
        Some(tablet) => path.with("tablet", &tablet.to_string()),
        None => path.with("from", &escape(start.as_bytes())),
    }
}

/// The class of a cell: the share of the largest value, by its square root, so that small values differ.
fn shade(value: u64, max: u64) -> &'static str {
    let darkest = SHADES.len() as u64 - 1;
    let square = u128::from(value) * u128::from(darkest * darkest);
    let level = square.checked_div(u128::from(max)).unwrap_or(0).isqrt();
    let level = usize::try_from(level).unwrap_or(0).clamp(usize::from(value > 0), SHADES.len() - 1);
    SHADES.get(level).copied().unwrap_or("h0")
}

fn legend(metric: HeatMetric, columns: &[KeyHeatColumn]) -> Html {
    let scale = SHADES.iter().map(|shade| {
        let square = element("rect").class(shade).attr("width", 1).attr("height", 1);
        element("svg").attr("viewBox", "0 0 1 1").attr("aria-hidden", "true").child(square)
    });
    let largest = largest(columns);
    let other = columns.iter().fold(0, |sum: u64, column| sum.saturating_add(column.other));
    let (first, last) = (columns.first().map(|column| column.start), columns.last().map(|column| column.start));
    let times = [first, last].into_iter().flatten().map(time).collect::<Vec<_>>().join(" to ");
    let mut list = element("ul")
        .class("legend")
        .child(
            element("li").text("0 ").children(scale).text(" ").child(element("span").test_id("heat-max").text(largest)),
        )
        .child(element("li").text(unit(metric)))
        .child(element("li").test_id("heat-times").text(times));
    if other > 0 && metric != HeatMetric::Latency {
        list = list.child(element("li").text(format!("{other} more in quiet tablets of servers with very many")));
    }
    list.into()
}

/// The ranges with the most, as a table: what the picture shows, for readers without it.
fn busiest(name: &TableName, choice: &Choice, heat: &KeyHeat) -> Html {
    let value = |at: usize| {
        let values = heat.columns.iter().filter_map(|column| column.values.get(at).copied());
        match choice.metric {
            HeatMetric::Latency => values.max().unwrap_or(0),
            _ => values.fold(0, u64::saturating_add),
        }
    };
    let mut ranked: Vec<(usize, u64)> = (0..heat.buckets.len()).map(|at| (at, value(at))).collect();
    ranked.retain(|(_at, value)| *value > 0);
    ranked.sort_by_key(|(at, value)| (std::cmp::Reverse(*value), *at));
    let line = |(at, value): (usize, u64)| {
        let (start, tablet) = heat.buckets.get(at)?;
        let end = heat.buckets.get(at + 1).map_or_else(|| "(end)".to_owned(), |(end, _tablet)| shown_key(end, ""));
        let shown = tablet.map_or_else(|| "-".to_owned(), |tablet| tablet.to_string());
        Some(row([
            element("span").class("key").text(shown_key(start, "(start)")).into(),
            element("span").class("key").text(end).into(),
            Html::from(link(&tablet_path(name, *tablet, start), shown)),
            text(value),
        ]))
    };
    let lines = ranked.into_iter().take(BUSIEST).filter_map(line);
    let heading = ["From", "To", "Tablet", if choice.metric == HeatMetric::Latency { "Highest" } else { "Sum" }];
    element("div").class("scroll").child(table(&heading, lines).test_id("heat-busiest")).into()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ebla_model::Micros;

    use super::*;
    use crate::pages::golden;

    fn heat() -> KeyHeat {
        let column = |(minute, values): (i64, [u64; 3])| KeyHeatColumn {
            start: Micros::from_millis(minute * 60_000),
            values: values.to_vec(),
            other: 0,
        };
        KeyHeat {
            buckets: vec![
                (RowKey::EMPTY, None),
                (RowKey::new("<k>\"&'"), Some(TabletId::new(10))),
                (RowKey::new("x"), Some(TabletId::new(11))),
            ],
            columns: [(1, [0, 400, 1]), (2, [0, 100, 0])].into_iter().map(column).collect(),
            step: Duration::from_secs(60),
            findings: vec!["one row takes 90 % of the writes: <k>".to_owned()],
        }
    }

    fn choice(query: &str) -> Result<Choice, Error> {
        Choice::of(&PageRequest::parse(&format!("/heat/web{query}"), "").unwrap())
    }

    #[test]
    fn maps_are_shown_as_before() {
        let name = table_name("web").unwrap();
        golden::check("heat", &render(&name, &choice("?metric=writes&time=6h&prefix=%3Ck").unwrap(), &heat()));
        golden::check("heat-nothing", &render(&name, &choice("").unwrap(), &KeyHeat::default()));
        golden::check("heat-choice", &render_choice(std::slice::from_ref(&name)));
    }

    #[test]
    fn choices_that_do_not_exist_are_refused() {
        assert_eq!(choice("").unwrap().range.name, "1h");
        assert_eq!(choice("?metric=latency&time=28d").unwrap().metric, HeatMetric::Latency);
        assert!(choice("?metric=x").is_err() && choice("?time=2h").is_err());
        assert_eq!(choice("?prefix=%5Cxff").unwrap().prefix.as_bytes(), b"\xff");
    }

    #[test]
    fn shades_grow_with_values() {
        assert_eq!([0, 1, 25, 100].map(|value| shade(value, 100)), ["h0", "h1", "h4", "h8"]);
        assert_eq!((shade(0, 0), shade(u64::MAX, u64::MAX)), ("h0", "h8"));
    }

    #[test]
    fn long_times_are_joined() {
        let columns = vec![KeyHeatColumn { values: vec![1, 2, 3], ..KeyHeatColumn::default() }; COLUMNS_MAX * 2 + 1];
        let long = KeyHeat { columns, ..heat() };
        let shown = joined(&long, HeatMetric::Reads);
        assert_eq!((shown.len(), shown[0].values.clone()), (81, vec![3, 6, 9]));
        assert_eq!(joined(&long, HeatMetric::Latency)[0].values, [1, 2, 3]);
    }
}
