//! `ebla table locality-group`: which families of a table are stored together, and how.

use ebla_client::Client;
use ebla_model::error::Reason;
use ebla_model::locality::LocalityGroupChange;
use ebla_model::schema::TableName;
use ebla_proto::operate;
use ebla_runtime::Runtime;
use serde_json::{Value, json};

use super::ClusterArguments;
use crate::output::{self, Failure, Format};

/// Show and change the locality groups of a table
#[derive(Debug, clap::Subcommand)]
pub enum LocalityGroup {
    /// Create a group, or change options of one
    ///
    /// Options, separated by `;`:
    ///   compression=none|lz4|lz4-then-zstd|zstd:LEVEL|two-pass
    ///   block=4k to 1024k: size of an uncompressed block, the unit of a random read
    ///   bloom=none|rows|columns: Bloom filters for reads of rows that do not exist, or of single columns that do not
    ///   in-memory=no|yes: hold all cells of the group in memory too, within the budget of each server (--memory-groups)
    ///
    /// Options that are not named stay as they are. The group of all other families is called `default`.
    ///
    /// Example:
    ///   ebla table locality-group set web pages 'compression=two-pass;block=64k'
    #[command(verbatim_doc_comment)]
    Set {
        /// Which cluster
        #[command(flatten)]
        cluster: ClusterArguments,
        /// Name of the table
        table: String,
        /// Name of the group
        group: String,
        /// Options
        #[arg(default_value = "")]
        options: String,
    },
    /// Assign a family to a group
    ///
    /// Reads and writes go on while its cells are moved in the background.
    ///
    /// Example:
    ///   ebla table locality-group move web contents pages
    #[command(verbatim_doc_comment)]
    Move {
        /// Which cluster
        #[command(flatten)]
        cluster: ClusterArguments,
        /// Name of the table
        table: String,
        /// Name of the family
        family: String,
        /// Name of its new group
        group: String,
    },
    /// Remove a group that has no families
    ///
    /// Example:
    ///   ebla table locality-group remove web pages
    #[command(verbatim_doc_comment)]
    Remove {
        /// Which cluster
        #[command(flatten)]
        cluster: ClusterArguments,
        /// Name of the table
        table: String,
        /// Name of the group
        group: String,
    },
    /// Show the groups of a table, their families and options
    ///
    /// Example:
    ///   ebla table locality-group describe web
    #[command(verbatim_doc_comment)]
    Describe {
        /// Which cluster
        #[command(flatten)]
        cluster: ClusterArguments,
        /// Name of the table
        table: String,
    },
}

/// Carries out the command.
///
/// # Errors
/// What the cluster answers.
pub async fn run(command: LocalityGroup, runtime: Runtime) -> Result<(), Failure> {
    let (cluster, table, change) = match command {
        LocalityGroup::Set { cluster, table, group, options } => {
            (cluster, table, Some(LocalityGroupChange::Set { name: group, options }))
        }
        LocalityGroup::Move { cluster, table, family, group } => {
            (cluster, table, Some(LocalityGroupChange::Move { family, group }))
        }
        LocalityGroup::Remove { cluster, table, group } => {
            (cluster, table, Some(LocalityGroupChange::Remove { name: group }))
        }
        LocalityGroup::Describe { cluster, table } => (cluster, table, None),
    };
    let name = cluster.table(&table)?;
    let client = cluster.client(&runtime).await?;
    let changes: Vec<LocalityGroupChange> = change.into_iter().collect();
    let groups = client.admin().change_locality_groups(&name, &changes).await?;
    match cluster.output {
        Format::Json => output::print_json(&to_json(&groups)),
        Format::Table => output::print(&to_text(&groups)),
    }
    Ok(())
}

/// `NAME=family,family;option=value;…` as changes of a table with these families.
///
/// # Errors
/// Usage, with the form.
pub(super) fn parse(text: &str) -> Result<Vec<LocalityGroupChange>, Failure> {
    let wrong = || Failure::usage(format!("`{text}` is not a locality group: write NAME=FAMILY,FAMILY;option=value"));
    let (name, rest) = text.split_once('=').ok_or_else(wrong)?;
    let (families, options) = rest.split_once(';').unwrap_or((rest, ""));
    let families: Vec<&str> = families.split(',').filter(|family| !family.is_empty()).collect();
    if name.is_empty() || families.is_empty() {
        return Err(wrong());
    }
    let mut changes = vec![LocalityGroupChange::Set { name: name.to_owned(), options: options.to_owned() }];
    changes.extend(
        families
            .into_iter()
            .map(|family| LocalityGroupChange::Move { family: family.to_owned(), group: name.to_owned() }),
    );
    Ok(changes)
}

/// The locality groups of a table; none if the server is no Ebla.
///
/// # Errors
/// What the cluster answers.
pub(super) async fn groups(client: &Client, table: &TableName) -> Result<Vec<operate::LocalityGroup>, Failure> {
    match client.admin().change_locality_groups(table, &[]).await {
        Err(error) if error.reason == Reason::Unimplemented => Ok(Vec::new()),
        groups => Ok(groups?),
    }
}

/// Groups by name as JSON.
pub(super) fn to_json(groups: &[operate::LocalityGroup]) -> Value {
    let group = |group: &operate::LocalityGroup| {
        let options = group.options.split(';').filter_map(|option| option.split_once('='));
        let options: serde_json::Map<_, _> = options.map(|(name, value)| (name.to_owned(), json!(value))).collect();
        (group.name.clone(), json!({ "families": group.families, "options": options }))
    };
    Value::Object(groups.iter().map(group).collect())
}

/// The same for people.
pub(super) fn to_text(groups: &[operate::LocalityGroup]) -> String {
    let mut shown = output::Table::new(&["LOCALITY GROUP", "FAMILIES", "OPTIONS"]);
    for group in groups {
        shown.row(vec![group.name.clone(), group.families.join(" "), group.options.clone()]);
    }
    shown.render()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_read_with_its_families_and_options() {
        let text = |text: &str| text.to_owned();
        let assign = |family| LocalityGroupChange::Move { family: text(family), group: text("pages") };
        let set = |options| LocalityGroupChange::Set { name: text("pages"), options: text(options) };
        assert_eq!(parse("pages=a,b").unwrap(), [set(""), assign("a"), assign("b")]);
        let long = parse("pages=a;compression=zstd:3;block=64k").unwrap();
        assert_eq!(long, [set("compression=zstd:3;block=64k"), assign("a")]);
        for wrong in ["pages", "=a", "pages=", "pages=;block=4k"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn groups_are_shown() {
        let group = |name: &str, families: &[&str]| operate::LocalityGroup {
            name: name.to_owned(),
            options: "compression=lz4;block=16k;bloom=rows;in-memory=no".to_owned(),
            families: families.iter().map(|family| (*family).to_owned()).collect(),
        };
        let groups = [group("default", &["a", "b"]), group("pages", &[])];
        assert!(to_text(&groups).contains("a b"));
        let options = json!({ "compression": "lz4", "block": "16k", "bloom": "rows", "in-memory": "no" });
        let expected = json!({
            "default": { "families": ["a", "b"], "options": options },
            "pages": { "families": [], "options": options },
        });
        assert_eq!(to_json(&groups), expected);
    }
}
