//! The page `/locate`: the three-level lookup of a row (paper section 5.1), walked when the page is loaded, with the time of each step.
//!
//! It is walked twice by a client that begins with an empty cache, and once by the tablet server of this process with its own.

use std::time::Duration;

use ebla_client::Lookup;
use ebla_client::encoding::{escape, shell_quote};
use ebla_client::locate::Hop;
use ebla_model::error::Error;
use ebla_model::key::RowKey;

use super::{Page, note, section, server_link, shown_key};
use crate::Context;
use crate::context::table_name;
use crate::html::{Element, Html, Path, element, facts, query_form, row, table, text};
use crate::request::PageRequest;

/// A walk and what it is an example of.
type Walk = (&'static str, Lookup);

/// The page.
///
/// # Errors
/// `NotFoundTable`, `InvalidArgument`; otherwise as [`Context::fresh_metadata`].
pub async fn page(context: &Context, request: &PageRequest) -> Result<Page, Error> {
    let (Some(given), Some(key)) = (request.get("table"), request.key("key")?) else {
        context.require_administrator().await?;
        return Ok(form_alone(request.get("table").unwrap_or_default()));
    };
    let name = table_name(given)?;
    let fresh = context.fresh_metadata().await?;
    let walks = [
        ("From an empty cache", fresh.locate(&name, &key).await?),
        ("Again, with the cache of the first walk", fresh.locate(&name, &key).await?),
        ("With the cache of this tablet server", context.metadata().await?.locate(&name, &key).await?),
    ];
    Ok(render(given, &key, &walks))
}

fn form(table: &str, key: &str) -> Element {
    let field = |name: &'static str, label: &str, value: &str| {
        let input = element("input").attr("name", name).attr("value", value).flag("required");
        element("label").text(label).child(input)
    };
    query_form(&Path::of(&["locate"]))
        .class("fields")
        .child(field("table", "Table", table))
        .child(field("key", r"Row key (bytes as \xHH)", key))
        .child(element("button").text("Look up"))
}

fn form_alone(table: &str) -> Page {
    let meaning = "A row is found in three steps: the lock service's file names the root tablet, the root tablet lists the tablets of METADATA, \
                   and these list all others.";
    Page::new("Location", "ebla meta lookup TABLE KEY").fixed(form(table, "")).fixed(note(meaning))
}

fn render(given: &str, key: &RowKey, walks: &[Walk]) -> Page {
    let shown = escape(key.as_bytes());
    let command = format!("ebla meta lookup {} {}", shell_quote(given), shell_quote(&shown));
    let page = Page::new("Location", command).fixed(form(given, &shown));
    let Some((_kind, lookup)) = walks.last() else { return page };
    let tablet = &lookup.tablet.descriptor;
    let replicas = tablet.membership.replicas().map(|replica| {
        let leads = lookup.tablet.leader.is_some_and(|leader| leader.server == replica.server);
        element("span").child(server_link(replica.server.get())).text(if leads { "* " } else { " " })
    });
    let values = facts(
        "locate",
        [
            ("tablet", tablet.tablet.to_string()),
            ("group", tablet.group.to_string()),
            ("generation", tablet.generation.to_string()),
            ("start", shown_key(tablet.range.start(), "(start)")),
            ("end", tablet.range.end().map_or("(end)".to_owned(), |end| shown_key(end, ""))),
            ("leader", lookup.tablet.leader.map_or("unknown".to_owned(), |leader| format!("server {}", leader.server))),
        ],
    );
    let servers =
        element("p").text("Servers (* leads): ").child(element("span").test_id("locate-servers").children(replicas));
    let walked = walks.iter().map(|(kind, lookup)| section(kind, [walk(&lookup.trace)]));
    page.fixed(Html::join([values.into(), servers.into(), Html::join(walked)]))
}

fn walk(trace: &[Hop]) -> Html {
    let millis = |took: Duration| format!("{:.3} ms", took.as_secs_f64() * 1000.0);
    let line = |(at, hop): (usize, &Hop)| {
        let cells = [
            at.saturating_add(1).to_string(),
            hop.level.to_string(),
            hop.tablet.to_string(),
            hop.group.to_string(),
            hop.source.to_string(),
            hop.round_trips.to_string(),
            millis(hop.took),
        ];
        row(cells.map(text)).test_id("hop")
    };
    let total = trace.iter().map(|hop| hop.took).sum();
    let heading = ["Step", "Finds", "Tablet", "Group", "From", "Round trips", "Time"];
    let steps = table(&heading, trace.iter().enumerate().map(line));
    Html::join([Html::from(steps), note(&format!("{} in all", millis(total))).into()])
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ebla_client::locate::{CachedTablet, Level, Source};
    use ebla_model::id::{GroupId, TabletId};

    use super::*;
    use crate::pages::golden;

    #[test]
    fn a_walk_is_shown_as_before() {
        let hop = |level, source, tablet, micros| Hop {
            level,
            source,
            tablet: TabletId::new(tablet),
            group: GroupId::new(1),
            round_trips: u32::from(micros > 0),
            took: Duration::from_micros(micros),
        };
        let descriptor = golden::tablets().remove(1);
        let range = descriptor.range.clone();
        let tablet = CachedTablet::new(Arc::new(descriptor), range);
        let cold = Lookup {
            tablet: tablet.clone(),
            trace: vec![
                hop(Level::Root, Source::Chubby, 1, 310),
                hop(Level::Metadata, Source::RootTablet, 2, 480),
                hop(Level::Tablet, Source::MetadataTablet, 11, 512),
            ],
        };
        let warm = Lookup { tablet, trace: vec![hop(Level::Tablet, Source::Cache, 11, 0)] };
        golden::check("locate", &render("web", &RowKey::new("<z>\u{0}"), &[("First", cold), ("Again", warm)]));
        golden::check("locate-form", &form_alone("web"));
    }
}
