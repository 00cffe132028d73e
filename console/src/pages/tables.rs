//! The pages `/tables` and `/tables/{t}`: tables, and the families, rules and costs of one.
//!
//! A table of the default project and instance is named by its last part in addresses, others by their whole name.

use ebla_client::admin::NamedFamily;
use ebla_client::encoding::shell_quote;
use ebla_model::capacity::readable_bytes;
use ebla_model::error::{Error, Reason};
use ebla_model::gc::GcRule;
use ebla_model::locality::GroupSizes;
use ebla_model::quota::FamilyUsage;
use ebla_model::schema::TableName;
use ebla_proto::{convert, operate};

use super::{Page, note, or_dash, section};
use crate::Context;
use crate::context::{DEFAULT_PARENT, short_name, table_name};
use crate::html::{Element, Html, Path, element, facts, link, query_form, row, table, text};
use crate::request::PageRequest;

/// Whose tables are listed.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Listed {
    /// Those of the cluster.
    All,
    /// Those of a project and an instance.
    Of(String, String),
}

/// The list: all tables for those who may see METADATA, those of an instance for others.
///
/// # Errors
/// `PermissionDenied` for an instance whose tables the viewer may not list; what the cluster answers.
pub async fn list(context: &Context, request: &PageRequest) -> Result<Page, Error> {
    let given = (request.get("project"), request.get("instance"));
    if given == (None, None) {
        match context.metadata().await {
            Ok(client) => return Ok(render_list(&client.table_names().await?, &Listed::All)),
            Err(error) if error.reason == Reason::PermissionDenied => {}
            Err(error) => return Err(error),
        }
    }
    let (project, instance) = (given.0.unwrap_or(DEFAULT_PARENT.0), given.1.unwrap_or(DEFAULT_PARENT.1));
    let names = context.admin().list_tables(project, instance).await?;
    Ok(render_list(&names, &Listed::Of(project.to_owned(), instance.to_owned())))
}

/// What is known of a table.
#[derive(Clone, Debug)]
struct Description {
    name: TableName,
    is_protected: bool,
    families: Vec<NamedFamily>,
    /// `None`: the viewer may not see it, or it is unknown now.
    tablets: Option<usize>,
    usage: Option<operate::TableUsageReply>,
    groups: Vec<operate::LocalityGroup>,
}

/// One table.
///
/// # Errors
/// `NotFoundTable`, `PermissionDenied`; what the cluster answers.
pub async fn one(context: &Context, given: &str) -> Result<Page, Error> {
    let name = table_name(given)?;
    let admin = context.admin();
    let is_protected = admin.get_table(&name).await?.deletion_protection;
    let families = admin.families(&name).await?;
    // What follows is for administrators: others see the schema.
    let tablets = match context.metadata().await {
        Ok(client) => Some(client.tablets(&name).await?.len()),
        Err(error) if error.reason == Reason::PermissionDenied => None,
        Err(error) => return Err(error),
    };
    let (usage, groups) = match tablets {
        Some(_) => (
            admin.table_usage(&name).await.ok(),
            admin.describe_locality_groups(&name, GroupSizes::None).await.unwrap_or_default(),
        ),
        None => (None, Vec::new()),
    };
    Ok(render_one(&Description { name, is_protected, families, tablets, usage, groups }))
}

fn render_list(names: &[TableName], listed: &Listed) -> Page {
    let (project, instance) = match listed {
        Listed::All => ("", ""),
        Listed::Of(project, instance) => (project.as_str(), instance.as_str()),
    };
    let field = |name: &'static str, label: &str, value: &str| {
        element("label").text(label).child(element("input").attr("name", name).attr("value", value))
    };
    let form = query_form(&Path::of(&["tables"]))
        .class("fields")
        .child(field("project", "Project", project))
        .child(field("instance", "Instance", instance))
        .child(element("button").text("List"));
    let line = |name: &TableName| {
        let short = short_name(name);
        row([
            link(&Path::of(&["tables", short]), name.table()).test_id("table"),
            element("span").text(name.project()),
            element("span").text(name.instance()),
            element("span").children(links(name)),
        ])
    };
    let shown: Html = match names {
        [] => note("no tables").into(),
        names => table(&["Table", "Project", "Instance", "Pages"], names.iter().map(line)).into(),
    };
    let command = match listed {
        Listed::All => "ebla table list".to_owned(),
        Listed::Of(project, instance) => {
            format!("ebla table list --project {} --instance {}", shell_quote(project), shell_quote(instance))
        }
    };
    Page::new("Tables", command).fixed(form).live("tables", shown)
}

/// The pages about a table.
pub(super) fn links(name: &TableName) -> Vec<Element> {
    let short = short_name(name);
    let to = |path: &Path, shown: &str| element("span").child(link(path, shown)).text(" ");
    vec![
        to(&Path::of(&["tables", short, "tablets"]), "tablets"),
        to(&Path::of(&["tables", short, "data"]), "rows"),
        to(&Path::of(&["heat", short]), "heat map"),
        to(&Path::of(&["events"]).with("table", short), "events"),
    ]
}

fn render_one(described: &Description) -> Page {
    let Description { name, is_protected, families, tablets, usage, groups } = described;
    let stored = usage.as_ref().map(|usage| {
        let sum = usage.families.iter().map(|cost| usage_of(cost).stored_bytes()).fold(0, u64::saturating_add);
        readable_bytes(sum)
    });
    let values = facts(
        "table",
        [
            ("name", name.to_string()),
            ("tablets", or_dash(*tablets)),
            ("families", families.len().to_string()),
            ("deletion protection", if *is_protected { "on" } else { "off" }.to_owned()),
            ("stored", or_dash(stored)),
        ],
    );
    let line = |(family, rule): &NamedFamily| {
        let cost = usage.as_ref().and_then(|usage| usage.families.iter().find(|cost| cost.family == *family));
        let usage = cost.map(usage_of);
        let cells = [
            family.clone(),
            rule.as_ref().map_or("none: keeps all cells".to_owned(), GcRule::notation),
            or_dash(usage.map(|usage| readable_bytes(usage.files_bytes))),
            or_dash(usage.map(|usage| readable_bytes(usage.memory_bytes()))),
            or_dash(usage.map(|usage| usage.cells)),
            or_dash(usage.map(|usage| usage.cells_read)),
            or_dash(usage.map(|usage| usage.cells_written)),
        ];
        row(cells.map(text)).test_id(format!("family-{family}"))
    };
    let heading = ["Family", "Garbage collection", "Files", "Memory", "Cells", "Read", "Written"];
    let families = section("Families", [table(&heading, families.iter().map(line))]);
    let group =
        |group: &operate::LocalityGroup| row([&group.name, &group.options, &group.families.join(", ")].map(text));
    let groups = match groups.as_slice() {
        [] => Html::empty(),
        groups => {
            section("Locality groups", [table(&["Group", "Options", "Families"], groups.iter().map(group))]).into()
        }
    };
    Page::new(name.table(), format!("ebla table describe {}", shell_quote(short_name(name))))
        .fixed(element("p").children(links(name)))
        .live("table", Html::join([Html::from(values), families.into(), groups]))
}

fn usage_of(cost: &operate::FamilyCost) -> FamilyUsage {
    cost.usage.as_ref().map(convert::family_usage_from_proto).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ebla_model::id::FamilyId;

    use super::*;
    use crate::pages::golden::check;

    fn name(text: &str) -> TableName {
        table_name(text).unwrap()
    }

    #[test]
    fn tables_are_shown_as_before() {
        let names = [name("web"), name("projects/p/instances/i/tables/t")];
        check("tables", &render_list(&names, &Listed::All));
        let of = Listed::Of("p<".to_owned(), "i".to_owned());
        check("tables-none", &render_list(&[], &of));
    }

    #[test]
    fn a_table_is_shown_as_before() {
        let usage = FamilyUsage { files_bytes: 2_048, unflushed_bytes: 100, cells: 5, ..FamilyUsage::default() };
        let cost = operate::FamilyCost {
            family: "anchor".to_owned(),
            usage: Some(convert::family_usage_to_proto(FamilyId::new(1), &usage)),
            quota: None,
        };
        let described = Description {
            name: name("web"),
            is_protected: true,
            families: vec![
                ("anchor".to_owned(), None),
                ("contents".to_owned(), Some(GcRule::MaxAge(Duration::from_secs(3 * 86_400)))),
            ],
            tablets: Some(2),
            usage: Some(operate::TableUsageReply { families: vec![cost], ..Default::default() }),
            groups: vec![operate::LocalityGroup { name: "default".to_owned(), ..Default::default() }],
        };
        check("table", &render_one(&described));
        check(
            "table-of-a-reader",
            &render_one(&Description { tablets: None, usage: None, groups: Vec::new(), ..described }),
        );
    }
}
