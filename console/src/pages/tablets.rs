//! The page `/tables/{t}/tablets`: the tablets of a table in key order, a page at a time, with a bar of their ranges; and the history of one.

use std::collections::BTreeMap;

use ebla_client::encoding::{escape, shell_quote};
use ebla_client::history::{TableEvent, of_tablet};
use ebla_client::locate::LeaderHint;
use ebla_model::capacity::readable_bytes;
use ebla_model::error::Error;
use ebla_model::id::TabletId;
use ebla_model::key::RowKey;
use ebla_model::limit::RowLimit;
use ebla_model::metadata::TabletDescriptor;
use ebla_model::schema::TableName;
use ebla_model::tablet_load::TabletLoad;

use super::{Page, events, note, section, server_link, shown_key, tables};
use crate::Context;
use crate::context::{short_name, table_name};
use crate::html::{Html, Path, element, link, query_form, row, table, text};
use crate::request::PageRequest;

/// Tablets of one page. A table has thousands.
const PAGE_TABLETS: usize = 100;
/// Colours of servers: beyond them two servers have the same one.
const COLOURS: [&str; 8] = ["s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8"];
/// The colour of a tablet without a known leader.
const NO_COLOUR: &str = "s0";

/// A tablet with its recorded leader.
type Listed = (TabletDescriptor, Option<LeaderHint>);
/// Sizes in bytes and loads, by tablet.
type Loads = BTreeMap<TabletId, (u64, TabletLoad)>;

/// The page.
///
/// # Errors
/// `NotFoundTable`, `InvalidArgument`; otherwise as [`Context::metadata`].
pub async fn page(context: &Context, given: &str, request: &PageRequest) -> Result<Page, Error> {
    let name = table_name(given)?;
    let client = context.metadata().await?;
    if let Some(tablet) = request.number("tablet", u64::MAX)? {
        let read = async { Ok::<_, Error>(of_tablet(client.tablet_events(Some(&name)).await?, TabletId::new(tablet))) };
        return Ok(render_history(&name, tablet, &context.history(read).await?));
    }
    let from = request.key("from")?.unwrap_or(RowKey::EMPTY);
    let limit = RowLimit::new(PAGE_TABLETS.saturating_add(1) as u64);
    let tablets = client.tablets_from(&name, &from, limit).await?;
    // Without a master the list is still worth seeing.
    let loads = context.admin().tablet_loads(&name).await;
    context.render(move || render(&name, &from, tablets, &loads)).await
}

/// The page of these tablets: one more than fit says that there is a next page. Pure.
fn render(name: &TableName, from: &RowKey, mut tablets: Vec<Listed>, loads: &Result<Loads, Error>) -> Page {
    let here = Path::of(&["tables", short_name(name), "tablets"]);
    let next = tablets.get(PAGE_TABLETS).map(|(tablet, _leader)| tablet.range.start().clone());
    tablets.truncate(PAGE_TABLETS);
    let start = element("input").attr("name", "from").attr("value", escape(from.as_bytes()));
    let mut moves = query_form(&here)
        .class("fields")
        .child(element("label").text("From the tablet with this key").child(start))
        .child(element("button").text("Show"));
    if !from.is_empty() {
        moves = moves.child(link(&here, "First page").test_id("first"));
    }
    if let Some(next) = &next {
        let to = here.clone().with("from", &escape(next.as_bytes()));
        moves = moves.child(link(&to, "Next page").test_id("next"));
    }
    let no_loads = Loads::new();
    let (loads, trouble) = match loads {
        Ok(loads) => (loads, Html::empty()),
        Err(error) => (&no_loads, note(&format!("sizes and loads are unknown: {error}")).into()),
    };
    let shown: Html = match tablets.as_slice() {
        [] => note("no tablets").into(),
        listed => Html::join([bar(listed), legend(listed), list(name, listed, loads)]),
    };
    let command = format!("ebla tablet list {}", shell_quote(short_name(name)));
    Page::new(format!("Tablets of {}", name.table()), command)
        .fixed(element("p").children(tables::links(name)))
        .fixed(moves)
        .live("tablets", Html::join([trouble, shown]))
}

/// The ranges side by side, each in the colour of its leader; equally wide, because keys have no size.
fn bar(tablets: &[Listed]) -> Html {
    let segment = |(at, (tablet, leader)): (usize, &Listed)| {
        let title = format!(
            "tablet {}: {} to {}, {}",
            tablet.tablet,
            shown_key(tablet.range.start(), "(start)"),
            tablet.range.end().map_or("(end)".to_owned(), |end| shown_key(end, "")),
            leader.map_or("no known leader".to_owned(), |leader| format!("led by server {}", leader.server))
        );
        element("rect")
            .class(colour(*leader))
            .attr("x", at)
            .attr("y", 0)
            // A gap after each but the last one, which ends at the border.
            .attr("width", if at.saturating_add(1) == tablets.len() { "1" } else { "0.96" })
            .attr("height", 1)
            .child(element("title").text(title))
    };
    element("svg")
        .class("bar")
        .attr("viewBox", format!("0 0 {} 1", tablets.len()))
        .attr("preserveAspectRatio", "none")
        .attr("role", "img")
        .attr("aria-label", "key ranges of the tablets, in the colours of their leaders")
        .test_id("key-range-bar")
        .children(tablets.iter().enumerate().map(segment))
        .into()
}

fn colour(leader: Option<LeaderHint>) -> &'static str {
    let Some(leader) = leader else { return NO_COLOUR };
    let count = COLOURS.len() as u64;
    let at = usize::try_from(leader.server.get().wrapping_sub(1) % count).unwrap_or_default();
    COLOURS.get(at).copied().unwrap_or(NO_COLOUR)
}

fn legend(tablets: &[Listed]) -> Html {
    let leaders: BTreeMap<u64, LeaderHint> =
        tablets.iter().filter_map(|(_tablet, leader)| leader.map(|leader| (leader.server.get(), leader))).collect();
    let entry = |(server, leader): (&u64, &LeaderHint)| {
        let square = element("rect").class(colour(Some(*leader))).attr("width", 1).attr("height", 1);
        let picture = element("svg").attr("viewBox", "0 0 1 1").attr("aria-hidden", "true").child(square);
        element("li").child(picture).text("server ").child(server_link(*server))
    };
    element("ul").class("legend").children(leaders.iter().map(entry)).into()
}

fn list(name: &TableName, tablets: &[Listed], loads: &Loads) -> Html {
    let hot_row =
        |(_bytes, load): &(u64, TabletLoad)| load.hot_row.as_ref().map(|row| shown_key(row, "")).unwrap_or_default();
    let line = |(tablet, leader): &Listed| {
        let id = tablet.tablet;
        let known = loads.get(&id);
        let shown = |value: &dyn Fn(&(u64, TabletLoad)) -> String| text(known.map_or_else(|| "?".to_owned(), value));
        let replicas = tablet.membership.replicas().map(|replica| {
            let leads = leader.is_some_and(|leader| leader.server == replica.server);
            element("span").child(server_link(replica.server.get())).text(if leads { "* " } else { " " })
        });
        let history = Path::of(&["tables", short_name(name), "tablets"]).with("tablet", &id.to_string());
        row([
            element("span").test_id("tablet").text(id).into(),
            link(&Path::of(&["groups", &tablet.group.to_string()]), tablet.group).into(),
            text(tablet.generation),
            key(&shown_key(tablet.range.start(), "(start)")),
            key(&tablet.range.end().map_or("(end)".to_owned(), |end| shown_key(end, ""))),
            shown(&|(bytes, _load)| readable_bytes(*bytes)),
            shown(&|(_bytes, load)| load.reads_per_second.to_string()),
            shown(&|(_bytes, load)| load.writes_per_second.to_string()),
            element("span").test_id(format!("hot-row-{id}")).child(shown(&hot_row)).into(),
            element("span").test_id(format!("replicas-{id}")).children(replicas).into(),
            link(&history, "history").into(),
        ])
    };
    let heading = [
        "Tablet",
        "Group",
        "Generation",
        "Start",
        "End",
        "Size",
        "Reads/s",
        "Writes/s",
        "Hot row",
        "Servers (* leads)",
        "",
    ];
    element("div").class("scroll").child(table(&heading, tablets.iter().map(line))).into()
}

fn key(shown: &str) -> Html {
    element("span").class("key").text(shown).into()
}

fn render_history(name: &TableName, tablet: u64, events: &[TableEvent]) -> Page {
    let back = Path::of(&["tables", short_name(name), "tablets"]);
    let meaning = "METADATA keeps the last 64 events of the row that lists a tablet, those of tablets that had the same rows before included.";
    Page::new(format!("History of tablet {tablet}"), format!("ebla tablet history {tablet}"))
        .fixed(element("p").child(link(&back, format!("Tablets of {}", name.table()))))
        .fixed(note(meaning))
        .live("events", section("Events", [events::newest_first(events)]))
}

#[cfg(test)]
mod tests {
    use ebla_model::id::{ServerId, Term};
    use ebla_model::key::KeyRange;

    use super::*;
    use crate::pages::golden;

    fn leader(server: u64) -> Option<LeaderHint> {
        Some(LeaderHint { server: ServerId::new(server), term: Term::new(3) })
    }

    #[test]
    fn tablets_are_shown_as_before() {
        let name = table_name("web").unwrap();
        let tablets: Vec<Listed> = golden::tablets().into_iter().zip([leader(2), None]).collect();
        let load = TabletLoad { reads_per_second: 12, hot_row: Some(RowKey::new("<k>")), ..TabletLoad::default() };
        let loads = Ok([(TabletId::new(10), (5 << 20, load))].into());
        golden::check("tablets", &render(&name, &RowKey::EMPTY, tablets, &loads));
        golden::check("tablets-none", &render(&name, &RowKey::new("x"), Vec::new(), &Err(Error::invalid("no master"))));
        golden::check("tablet-history", &render_history(&name, 10, &golden::events()));
    }

    #[test]
    fn many_tablets_are_paged() {
        let name = table_name("web").unwrap();
        let first = golden::tablets().remove(0);
        let key = |at: usize| RowKey::new(format!("k{at:05}"));
        let tablet = |at: usize| {
            let range = KeyRange::new(key(at), Some(key(at + 1))).unwrap();
            (TabletDescriptor { tablet: TabletId::new(at as u64), range, ..first.clone() }, leader(at as u64 % 3 + 1))
        };
        let listed: Vec<Listed> = (0..=PAGE_TABLETS).map(tablet).collect();
        let page = render(&name, &key(0), listed.clone(), &Ok(Loads::new()));
        let html: String = page.parts.iter().map(|part| part.html.as_str()).collect();
        assert_eq!(html.matches("data-testid=\"tablet\"").count(), PAGE_TABLETS);
        assert!(html.contains(&format!("from=k{PAGE_TABLETS:05}\" data-testid=\"next\"")), "{html}");
        assert!(html.contains("data-testid=\"first\""));
        let (bar, _rest) = html.split_once("</svg>").unwrap();
        let last = format!("x=\"{}\" y=\"0\" width=\"1\"", PAGE_TABLETS - 1);
        assert!(bar.contains(&last), "the last range ends at the border: {bar}");
        assert_eq!(bar.matches("width=\"0.96\"").count(), PAGE_TABLETS - 1);
        let last = render(&name, &RowKey::EMPTY, listed[..3].to_vec(), &Ok(Loads::new()));
        assert!(!last.parts[1].html.as_str().contains("data-testid"), "one page needs no links");
    }
}
