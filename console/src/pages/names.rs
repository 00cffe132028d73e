//! The page `/mt`: the tree of a mounttable, a level at a time, with servers and their leases, the details and permissions of a node, and the
//! steps of a resolution. All calls have the viewer's identity.

use ebla_client::encoding::{shell_quote, time};
use ebla_model::Micros;
use ebla_model::error::Error;
use ebla_mounttable_namespace::{GlobEntry, Namespace, Node, Server, Source, Trace};
use ebla_mounttable_tree::file::Stickiness;
use ebla_mounttable_tree::{Deadline, Target, naming};
use futures::StreamExt as _;

use super::{Page, note, section};
use crate::Context;
use crate::context::of_names;
use crate::html::{Element, Html, Path, element, facts, link, query_form, row, table, text};
use crate::request::PageRequest;

/// Children of a page; `ebla mt ls` lists more.
const CHILDREN_MAX: usize = 500;

/// What is known of a name.
struct Shown {
    name: String,
    now: Micros,
    children: Vec<GlobEntry>,
    /// Whether some children are left out: too many, or a part that could not be listed.
    incomplete: Option<String>,
    node: Result<Node, String>,
    /// The permissions as JSON.
    permissions: Result<String, String>,
    /// The result of the resolve box.
    trace: Option<Trace>,
    /// Lookups of the mounttable's server: from its cache, and by reads of its storage.
    lookups: Option<(u64, u64)>,
}

/// The page.
///
/// # Errors
/// As [`Context::names`] and [`Context::require_own_name`]; those of the mounttable for a pattern.
pub async fn page(context: &Context, request: &PageRequest) -> Result<Page, Error> {
    let names = context.names().await?;
    let name = naming::clean(request.get("name").unwrap_or_default());
    context.require_own_name(&name)?;
    context.require_own_name(request.get("resolve").unwrap_or_default())?;
    let (children, incomplete) = children(&names, &name).await?;
    let (node, permissions) = tokio::join!(names.node(&name), names.permissions(&name));
    let trace = match request.get("resolve") {
        Some(wanted) => Some(names.trace(wanted).await),
        None => None,
    };
    let lookups = match names.operator() {
        Ok(operator) => operator.counters().await.ok().map(|(lookups, _requests)| (lookups.hits, lookups.misses)),
        Err(_) => None,
    };
    Ok(render(&Shown {
        now: context.runtime().clock.wall(),
        name,
        children,
        incomplete,
        node: node.map_err(|error| of_names(error).message),
        permissions: permissions
            .map(|(permissions, _etag)| permissions.to_json())
            .map_err(|error| of_names(error).message),
        trace,
        lookups,
    }))
}

/// The children of a name, in order.
async fn children(names: &Namespace, name: &str) -> Result<(Vec<GlobEntry>, Option<String>), Error> {
    let mut items = names.glob(&naming::join(&[&escaped(name), "*"])).map_err(of_names)?;
    let (mut found, mut incomplete) = (Vec::new(), None);
    while let Some(item) = items.next().await {
        match item {
            Ok(_more) if found.len() >= CHILDREN_MAX => {
                incomplete = Some(format!("only {CHILDREN_MAX} children are shown"));
                break;
            }
            Ok(entry) => found.push(entry),
            Err(place) => incomplete = Some(format!("a part cannot be listed: {}", of_names(place.error).message)),
        }
    }
    found.sort_by(|one, other| one.name.cmp(&other.name));
    Ok((found, incomplete))
}

/// A pattern that matches this name only.
fn escaped(name: &str) -> String {
    let escape = |c: char| if "*?[\\".contains(c) { vec!['\\', c] } else { vec![c] };
    name.chars().flat_map(escape).collect()
}

fn at(name: &str) -> Path {
    if name.is_empty() { Path::of(&["mt"]) } else { Path::of(&["mt"]).with("name", name) }
}

fn render(shown: &Shown) -> Page {
    let Shown { name, now, children, incomplete, node, permissions, trace, lookups } = shown;
    let resolve = query_form(&Path::of(&["mt"]))
        .class("fields")
        .child(element("input").attr("type", "hidden").attr("name", "name").attr("value", name))
        .child(element("label").text("Name").child(element("input").attr("name", "resolve").flag("required")))
        .child(element("button").text("Resolve"));
    let trouble = incomplete.as_deref().map_or(Html::empty(), |why| note(why).into());
    let list: Html = match children.as_slice() {
        [] => note("no children").into(),
        children => {
            table(&["Name", "Kind", "Servers and their leases"], children.iter().map(|entry| child(entry, *now))).into()
        }
    };
    let mut page = Page::new("Names", format!("ebla mt ls {} --long", shell_quote(name)))
        .fixed(way(name))
        .live("children", section("Children", [trouble, list]))
        .live("node", section("Node", [details(node, *lookups)]))
        .live("permissions", section("Permissions", [access(permissions)]))
        .fixed(section("Resolve", [resolve]));
    if let Some(trace) = trace {
        page = page.fixed(steps(trace));
    }
    page
}

/// Links to the names above.
fn way(name: &str) -> Element {
    let mut way = element("p").child(link(&at(""), "root"));
    let mut above = String::new();
    for part in naming::elements(name) {
        above = naming::join(&[&above, part]);
        way = way.text(" / ").child(link(&at(&above), part));
    }
    way
}

fn child(entry: &GlobEntry, now: Micros) -> Element {
    let kind = match (entry.servers.is_empty(), entry.target) {
        (true, _) => "node",
        (false, Target::MountTable) => "mounttable",
        (false, Target::Leaf) => "leaf",
        (false, Target::Object) => "object",
    };
    let server = |server: &Server| {
        let left = element("span").class("time").test_id("lease").text(lease(server, now));
        element("li").child(element("code").text(&server.address)).text(" ").child(left)
    };
    let servers = element("ul").class("versions").children(entry.servers.iter().map(server));
    let last = naming::elements(&entry.name).last().unwrap_or_default();
    let to = if entry.has_children || entry.servers.is_empty() || entry.target == Target::MountTable {
        link(&at(&entry.name), last)
    } else {
        element("span").text(last)
    };
    row([to.test_id("name"), element("span").text(kind), servers])
}

fn lease(server: &Server, now: Micros) -> String {
    if server.deadline == Deadline::FOREVER {
        return "never expires".to_owned();
    }
    format!("expires in {} s", server.deadline.as_micros().since(now).as_secs())
}

fn details(node: &Result<Node, String>, lookups: Option<(u64, u64)>) -> Html {
    let node = match node {
        Ok(node) => node,
        Err(error) => return note(error).into(),
    };
    let counted =
        lookups.map_or("-".to_owned(), |(hits, misses)| format!("{hits} from the cache, {misses} from the storage"));
    let sticky = match node.stickiness {
        Stickiness::Sticky => "yes: it stays when it is empty",
        Stickiness::Collected => "no: it is removed when it is empty",
    };
    let values = [
        ("creator", node.creator.clone()),
        ("created", time(node.created)),
        ("sticky", sticky.to_owned()),
        ("version", node.version.clone()),
        ("servers", node.servers.to_string()),
        ("children", node.children.to_string()),
        ("lookups of the server", counted),
    ];
    facts("node", values).into()
}

fn access(permissions: &Result<String, String>) -> Html {
    match permissions {
        Ok(json) => element("pre").test_id("permissions").text(json).into(),
        Err(error) => note(error).into(),
    }
}

fn steps(trace: &Trace) -> Element {
    let step = |hop: &ebla_mounttable_namespace::Hop| {
        let source = match hop.source {
            Source::Table => "table",
            Source::Cache => "cache",
            Source::Stale => "stale",
        };
        let answer = match &hop.answer {
            Ok(entry) => entry.names().join(" "),
            Err(error) => format!("{} ({})", error.message, error.reason),
        };
        row([hop.asked.join(" "), source.to_owned(), format!("{} µs", hop.took.as_micros()), answer].map(text))
    };
    let outcome = match &trace.outcome {
        Ok(entry) => entry.names().join(" "),
        Err(error) => format!("{} ({})", error.message, error.reason),
    };
    let steps: Html = table(&["Asked", "From", "Time", "Answer"], trace.hops.iter().map(step)).into();
    let outcome = element("p").text("Result: ").child(element("code").test_id("resolved").text(outcome));
    section("Steps of the resolution", [steps, outcome.into()])
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::pages::golden::check;

    #[test]
    fn a_level_of_the_tree_is_shown_as_before() {
        let now = Micros::new(1_000_000_000);
        let server = |address: &str, deadline| Server { address: address.parse().unwrap(), deadline };
        let expires = Deadline::at(now.plus(Duration::from_secs(40)));
        let entry = |name: &str, servers: Vec<Server>, target| GlobEntry {
            name: name.to_owned(),
            has_children: servers.is_empty(),
            servers,
            target,
        };
        let shown = Shown {
            name: "a/<b>".to_owned(),
            now,
            children: vec![
                entry("a/<b>/c", vec![server("10.0.0.1:80", expires)], Target::Leaf),
                entry("a/<b>/d", Vec::new(), Target::Object),
            ],
            incomplete: Some("only some".to_owned()),
            node: Err("no access".to_owned()),
            permissions: Ok("{\"Admin\":{\"In\":[\"<x>\"]}}".to_owned()),
            trace: None,
            lookups: None,
        };
        check("names", &render(&shown));
    }
}
