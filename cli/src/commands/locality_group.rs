//! `ebla table locality-group`: which families of a table are stored together, and how.

use ebla_client::Client;
use ebla_model::capacity::readable_bytes;
use ebla_model::error::Reason;
use ebla_model::locality::{GroupSizes, LocalityGroupChange};
use ebla_model::schema::TableName;
use ebla_proto::{operate, record};
use ebla_runtime::Runtime;
use serde_json::{Value, json};

use super::{ClusterArguments, TableArguments};
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
    /// Options that are not named stay as they are; a change to two-pass makes blocks of 1024k if it names none. The group of all other
    /// families is called `default`.
    ///
    /// Example:
    ///   ebla table locality-group set web pages compression=two-pass
    #[command(verbatim_doc_comment)]
    Set {
        /// Which table
        #[command(flatten)]
        of: TableArguments,
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
        /// Which table
        #[command(flatten)]
        of: TableArguments,
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
        /// Which table
        #[command(flatten)]
        of: TableArguments,
        /// Name of the group
        group: String,
    },
    /// Show the groups of a table, their families, sizes and options
    ///
    /// Sizes are those of one replica of each tablet: DATA are keys and values, IN FILES is what they take there. Both are estimates, and
    /// contain cells that were deleted and are still in files. What is in memory alone is not counted.
    ///
    /// Examples:
    ///   ebla table locality-group describe web
    ///   ebla table locality-group describe web --flush
    #[command(verbatim_doc_comment)]
    Describe {
        /// Which table
        #[command(flatten)]
        of: TableArguments,
        /// Write what is in memory alone to files first
        #[arg(long)]
        flush: bool,
    },
}

/// Carries out the command.
///
/// # Errors
/// What the cluster answers.
pub async fn run(command: LocalityGroup, runtime: Runtime) -> Result<(), Failure> {
    let (of, change) = match command {
        LocalityGroup::Set { of, group, options } => (of, LocalityGroupChange::Set { name: group, options }),
        LocalityGroup::Move { of, family, group } => (of, LocalityGroupChange::Move { family, group }),
        LocalityGroup::Remove { of, group } => (of, LocalityGroupChange::Remove { name: group }),
        LocalityGroup::Describe { of, flush } => {
            let sizes = if flush { GroupSizes::Flushed } else { GroupSizes::Files };
            return describe(&of, sizes, &runtime).await;
        }
    };
    let name = of.name()?;
    let client = of.cluster.client(&runtime).await?;
    let groups = client.admin().change_locality_groups(&name, &[change]).await?;
    show(&of.cluster, &groups);
    Ok(())
}

async fn describe(of: &TableArguments, sizes: GroupSizes, runtime: &Runtime) -> Result<(), Failure> {
    let name = of.name()?;
    let groups = of.cluster.client(runtime).await?.admin().describe_locality_groups(&name, sizes).await?;
    show(&of.cluster, &groups);
    if groups.iter().any(|group| group.bytes.is_none()) {
        output::note("the sizes are unknown: not every tablet has a leader that reports them; try again");
    }
    Ok(())
}

fn show(cluster: &ClusterArguments, groups: &[operate::LocalityGroup]) {
    match cluster.output {
        Format::Json => output::print_json(&to_json(groups)),
        Format::Table => output::print(&to_text(groups)),
    }
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
        let mut shown = json!({ "families": group.families, "options": options });
        if let (Some(shown), Some(bytes)) = (shown.as_object_mut(), group.bytes) {
            shown.insert("data_bytes".to_owned(), json!(bytes.data));
            shown.insert("file_bytes".to_owned(), json!(bytes.files));
        }
        (group.name.clone(), shown)
    };
    Value::Object(groups.iter().map(group).collect())
}

/// The same for people, with sizes where they are known.
pub(super) fn to_text(groups: &[operate::LocalityGroup]) -> String {
    if groups.iter().any(|group| group.bytes.is_none()) {
        let mut shown = output::Table::new(&["LOCALITY GROUP", "FAMILIES", "OPTIONS"]);
        for group in groups {
            shown.row(vec![group.name.clone(), group.families.join(" "), group.options.clone()]);
        }
        return shown.render();
    }
    let mut shown = output::Table::new(&["LOCALITY GROUP", "FAMILIES", "DATA", "IN FILES", "RATIO", "OPTIONS"]);
    for group in groups {
        let (name, families, options) = (group.name.clone(), group.families.join(" "), group.options.clone());
        let bytes = group.bytes.unwrap_or_default();
        let (data, files) = (readable_bytes(bytes.data), readable_bytes(bytes.files));
        shown.row(vec![name, families, data, files, ratio(bytes), options]);
    }
    shown.render()
}

/// How many bytes of data are in a byte of files, to one decimal place; `-` without files.
fn ratio(bytes: record::StoredBytes) -> String {
    match bytes.data.saturating_mul(10).checked_div(bytes.files) {
        Some(tenths) => format!("{}.{}", tenths / 10, tenths % 10),
        None => "-".to_owned(),
    }
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
            bytes: None,
        };
        let mut groups = [group("default", &["a", "b"]), group("pages", &[])];
        assert!(to_text(&groups).contains("a b"));
        let options = json!({ "compression": "lz4", "block": "16k", "bloom": "rows", "in-memory": "no" });
        let expected = json!({
            "default": { "families": ["a", "b"], "options": options },
            "pages": { "families": [], "options": options },
        });
        assert_eq!(to_json(&groups), expected);

        groups[0].bytes = Some(record::StoredBytes { files: 2048, data: 23_000 });
        assert!(!to_text(&groups).contains("RATIO"), "unknown for one group");
        groups[1].bytes = Some(record::StoredBytes::default());
        let words: Vec<Vec<String>> = to_text(&groups)
            .lines()
            .map(|line| line.split("  ").map(|word| word.trim().to_owned()).collect())
            .collect();
        let cells = |at: usize| words[at].iter().filter(|word| !word.is_empty()).cloned().collect::<Vec<_>>().join("|");
        assert_eq!(cells(0), "LOCALITY GROUP|FAMILIES|DATA|IN FILES|RATIO|OPTIONS");
        assert_eq!(cells(1), "default|a b|22.4 KiB|2.0 KiB|11.2|compression=lz4;block=16k;bloom=rows;in-memory=no");
        assert_eq!(cells(2), "pages|0 B|0 B|-|compression=lz4;block=16k;bloom=rows;in-memory=no");
        assert_eq!(to_json(&groups)["default"]["file_bytes"], json!(2048));
    }
}
