//! `ebla table`: list, create, update, delete, describe, hot.

mod list;
#[cfg(test)]
pub(super) use self::list::to_json as names_json;

use std::time::Duration;

use ebla_client::Client;
use ebla_client::admin::NamedFamily;
use ebla_model::error::Error;
use ebla_model::gc::GcRule;
use ebla_model::key::RowKey;
use ebla_model::quota::QuotaLimits;
use ebla_model::schema::{Protection, TableName};
use ebla_proto::operate;
use ebla_runtime::Runtime;
use serde_json::{Map, Value, json};

use super::hot::{self, Hot};
use super::locality_group::{self, LocalityGroup};
use super::quota::{self, QuotaCommand};
use super::{ClusterArguments, TableArguments, documents};
use crate::output::{self, Failure, Format};
use crate::watch::{WatchArguments, repeat};
use ebla_client::encoding;

/// List, create, update, delete and describe tables
///
/// Examples:
///   ebla table create web --family anchor --family contents:maxversions=3
///   ebla table list
#[derive(Debug, clap::Subcommand)]
#[command(verbatim_doc_comment)]
pub enum Table {
    /// List the tables of the instance
    ///
    /// With -o wide also their tablets, sizes and loads, which need a master, and with access control the token of an administrator.
    ///
    /// Examples:
    ///   ebla table list
    ///   ebla table list -o wide --watch=5
    #[command(verbatim_doc_comment)]
    List {
        /// Which cluster
        #[command(flatten)]
        cluster: ClusterArguments,
        /// How often
        #[command(flatten)]
        watch: WatchArguments,
    },
    /// Create a table
    ///
    /// Examples:
    ///   ebla table create web --family anchor --family contents:maxversions=3
    ///   ebla table create logs --family 'lines:maxage=30d&&maxversions=1' --split m --split t
    ///   ebla table create web --family anchor --family contents --locality-group 'pages=contents;compression=two-pass'
    #[command(verbatim_doc_comment)]
    Create {
        /// Which table
        #[command(flatten)]
        of: TableArguments,
        /// NAME, or NAME:maxversions=N, NAME:maxage=30d, or both joined by && or ||: cells that the rule matches are
        /// garbage collected
        #[arg(long = "family", value_name = "FAMILY")]
        families: Vec<String>,
        /// First key of a further tablet; bytes as \xHH
        #[arg(long = "split", value_name = "KEY", value_parser = encoding::parse_split_key, allow_hyphen_values = true)]
        splits: Vec<RowKey>,
        /// NAME=FAMILY,FAMILY or NAME=FAMILY;option=value: families that are stored in files of their own, see
        /// `ebla table locality-group set`
        #[arg(long = "locality-group", value_name = "GROUP")]
        locality_groups: Vec<String>,
    },
    /// Change the settings of a table
    ///
    /// Example:
    ///   ebla table update web --deletion-protection on
    ///
    /// Families are changed by `ebla family`.
    #[command(verbatim_doc_comment)]
    Update {
        /// Which table
        #[command(flatten)]
        of: TableArguments,
        /// Refuse to delete the table
        #[arg(long, value_enum)]
        deletion_protection: Switch,
    },
    /// Delete a table and everything in it
    ///
    /// Example:
    ///   ebla table delete web --yes
    #[command(verbatim_doc_comment)]
    Delete(Deletion),
    /// Show a table: its families, what they cost, their garbage collection rules, locality groups and quotas, and the number of tablets
    ///
    /// FILES, MEMORY and CELLS are those of one replica of each tablet: bytes in files, compressed; bytes that are not flushed yet or belong to a
    /// locality group in memory; cells, those that garbage collection has not removed yet included. They are estimates for tablets with more
    /// than some thousands of cells. READ and WRITTEN are cells since the server of each tablet's leader started.
    ///
    /// Examples:
    ///   ebla table describe web
    ///   ebla table describe web --tablets
    #[command(verbatim_doc_comment)]
    Describe {
        /// Which table
        #[command(flatten)]
        of: TableArguments,
        /// Show what each tablet costs too
        #[arg(long)]
        tablets: bool,
    },
    /// Show which keys of a table are used when; without a table, the busiest tablets of the instance
    ///
    /// A line for each range of keys that had about the same share, with the tablet that has it; time goes from left to right, and darker
    /// characters mean more. Then what the counts say: a row that takes much of the load, writes that move through the keys in order, few
    /// tablets that take most of it. Minutes are kept for six hours, ten minutes for four days, hours for 28 days. The shares of ranges
    /// within a tablet come from samples. CPU % is an estimate from reads, writes and bytes, of one processor of the tablet's server.
    ///
    /// Examples:
    ///   ebla table hot web
    ///   ebla table hot web --since 7d --metric writes --prefix com.
    ///   ebla table hot
    #[command(verbatim_doc_comment)]
    Hot(Box<Hot>),
    /// Limit how much a table or a family may store
    ///
    /// Examples:
    ///   ebla table quota set web --bytes 10GiB
    ///   ebla table quota remove web
    #[command(subcommand, verbatim_doc_comment)]
    Quota(QuotaCommand),
    /// Show and change the locality groups of a table
    ///
    /// Families of one group are stored in the same files, those of different groups in different ones. A read of some families
    /// opens only the files of their groups.
    ///
    /// Examples:
    ///   ebla table locality-group describe web
    ///   ebla table locality-group set web pages compression=two-pass
    #[command(subcommand, verbatim_doc_comment)]
    LocalityGroup(LocalityGroup),
}

/// A table to delete, as a whole or all its rows.
#[derive(Debug, clap::Args)]
pub struct Deletion {
    /// Which table
    #[command(flatten)]
    pub of: TableArguments,
    /// Do not ask for confirmation
    #[arg(long)]
    pub yes: bool,
}

/// A setting that is on or off.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum Switch {
    /// Enabled.
    On,
    /// Disabled.
    Off,
}

/// Carries out the command.
///
/// # Errors
/// What the cluster answers.
pub async fn run(command: Table, runtime: Runtime) -> Result<(), Failure> {
    match command {
        Table::List { cluster, watch } => repeat(watch.period(), async || list::list(&cluster, &runtime).await).await,
        Table::Create { of, families, splits, locality_groups } => {
            create(&of, (&families, &locality_groups), &splits, &runtime).await
        }
        Table::LocalityGroup(command) => locality_group::run(command, runtime).await,
        Table::Update { of, deletion_protection } => {
            let protection = match deletion_protection {
                Switch::On => Protection::On,
                Switch::Off => Protection::Off,
            };
            update(&of, protection, &runtime).await
        }
        Table::Delete(deletion) => delete(&deletion, &runtime).await,
        Table::Hot(command) => hot::run(&command, &runtime).await,
        Table::Quota(command) => quota::run(command, runtime).await,
        Table::Describe { of: TableArguments { cluster, table }, tablets } => {
            let name = cluster.table(&table)?;
            let description = Description::of(&cluster.client(&runtime).await?, &name).await?;
            let shown = if tablets { description.usage.as_ref() } else { None };
            match cluster.output {
                Format::Json => {
                    let mut json = description.json();
                    if let (Some(usage), Some(json)) = (shown, json.as_object_mut()) {
                        json.insert("tablet_usage".to_owned(), quota::tablets_json(usage));
                    }
                    output::print_json(&json);
                }
                Format::Table => {
                    output::print(&description.text());
                    if let Some(usage) = shown {
                        output::print(&format!("\n{}", quota::tablets_text(usage)));
                    }
                }
            }
            if let Some(usage) = description.usage.filter(|usage| usage.unknown_tablets > 0) {
                let count = usage.unknown_tablets;
                output::note(&format!(
                    "the costs of {count} tablets are missing: they have no leader that answers; try again"
                ));
            }
            Ok(())
        }
    }
}

async fn create(
    of: &TableArguments,
    (families, locality_groups): (&[String], &[String]),
    splits: &[RowKey],
    runtime: &Runtime,
) -> Result<(), Failure> {
    let TableArguments { cluster, table } = of;
    let name = of.name()?;
    let families = families.iter().map(|text| parse_family(text)).collect::<Result<Vec<_>, _>>()?;
    let groups =
        locality_groups.iter().map(|text| locality_group::parse(text)).collect::<Result<Vec<_>, _>>()?.concat();
    let client = cluster.client(runtime).await?;
    client.admin().create_table(&name, &families, splits).await?;
    if !groups.is_empty() {
        let changed = client.admin().change_locality_groups(&name, &groups).await;
        let explain = |error: Error| {
            Error::new(
                error.reason,
                format!("{table} was created, and all its families are in one locality group: {}", error.message),
            )
        };
        changed.map_err(explain)?;
    }
    changed(cluster, &client, &name, &format!("created {table}")).await
}

async fn update(of: &TableArguments, protection: Protection, runtime: &Runtime) -> Result<(), Failure> {
    let TableArguments { cluster, table } = of;
    let name = of.name()?;
    let client = cluster.client(runtime).await?;
    client.admin().set_protection(&name, protection).await?;
    let state = match protection {
        Protection::On => "on",
        Protection::Off => "off",
    };
    changed(cluster, &client, &name, &format!("deletion protection of {table} is {state}")).await
}

/// Reports a change: a line for people, the changed table as JSON for programs.
pub(super) async fn changed(
    cluster: &ClusterArguments,
    client: &Client,
    name: &TableName,
    done: &str,
) -> Result<(), Failure> {
    match cluster.output {
        Format::Json => output::print_json(&Description::of(client, name).await?.json()),
        Format::Table => output::note(done),
    }
    Ok(())
}

async fn delete(Deletion { of, yes }: &Deletion, runtime: &Runtime) -> Result<(), Failure> {
    let TableArguments { cluster, table } = of;
    let name = of.name()?;
    if !yes {
        confirm(&format!("delete table {table} and everything in it"), table)?;
    }
    cluster.client(runtime).await?.admin().delete_table(&name).await?;
    match cluster.output {
        Format::Json => output::print_json(&documents::deleted(&name)),
        Format::Table => output::note(&format!("deleted {table}")),
    }
    Ok(())
}

/// Asks the user to type `name` before an operation that cannot be undone.
///
/// # Errors
/// Usage when stdin is not a terminal; 1 when something else was typed.
pub(super) fn confirm(what: &str, name: &str) -> Result<(), Failure> {
    use std::io::{IsTerminal as _, Write as _};
    if !std::io::stdin().is_terminal() {
        return Err(Failure::usage(format!("to {what} cannot be undone; confirm it with --yes")));
    }
    let mut stderr = std::io::stderr();
    write!(stderr, "To {what} cannot be undone. To confirm, type {name}: ")?;
    stderr.flush()?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    if answer.trim() == name { Ok(()) } else { Err(Failure::other("nothing deleted")) }
}

/// The current state of a table.
pub(super) struct Description {
    name: TableName,
    tablets: usize,
    families: Vec<NamedFamily>,
    locality_groups: Vec<operate::LocalityGroup>,
    usage: Option<operate::TableUsageReply>,
    protection: Protection,
}

impl Description {
    /// Fetches it.
    ///
    /// # Errors
    /// What the cluster answers.
    pub(super) async fn of(client: &Client, name: &TableName) -> Result<Self, Failure> {
        let admin = client.admin();
        let is_protected = admin.get_table(name).await?.deletion_protection;
        Ok(Self {
            name: name.clone(),
            tablets: client.tablets(name).await?.len(),
            families: admin.families(name).await?,
            locality_groups: locality_group::groups(client, name).await?,
            usage: quota::usage(client, name).await?,
            protection: if is_protected { Protection::On } else { Protection::Off },
        })
    }

    /// One with a family in a table without other groups, for tests.
    #[cfg(test)]
    pub(super) fn example(families: Vec<NamedFamily>, usage: Option<operate::TableUsageReply>) -> Self {
        let name = TableName::from_parts("p", "i", "t").unwrap();
        Self { name, tablets: 1, families, locality_groups: Vec::new(), usage, protection: Protection::On }
    }

    pub(super) fn json(&self) -> Value {
        let mut families = families_json(&self.families);
        for cost in self.usage.iter().flat_map(|usage| &usage.families) {
            let (usage, quota) = quota::of_family(cost);
            if let Some(family) = families.get_mut(&cost.family).and_then(Value::as_object_mut) {
                family.insert("usage".to_owned(), quota::usage_json(&usage));
                family.insert("quota".to_owned(), quota::quota_json(&quota));
            }
        }
        json!({
            "name": self.name.as_str(),
            "tablets": self.tablets,
            "deletion_protection": self.protection == Protection::On,
            "quota": self.usage.as_ref().map(|usage| quota::quota_json(&quota::of_table(usage))),
            "families": families,
            "locality_groups": locality_group::to_json(&self.locality_groups),
        })
    }

    /// The families with what they cost, if that is known.
    fn families_text(&self) -> String {
        let Some(usage) = &self.usage else { return families_text(&self.families) };
        let header = ["FAMILY", "FILES", "MEMORY", "CELLS", "READ", "WRITTEN", "QUOTA", "GARBAGE COLLECTION"];
        let mut shown = output::Table::new(&header);
        for (name, gc) in &self.families {
            let cost = usage.families.iter().find(|cost| cost.family == *name);
            let (usage, quota) = cost.map(quota::of_family).unwrap_or_default();
            let mut cells = vec![name.clone()];
            cells.extend(quota::columns(&usage));
            cells.extend([quota.to_string(), rule_text(gc.as_ref())]);
            shown.row(cells);
        }
        shown.render()
    }

    fn text(&self) -> String {
        let protection = match self.protection {
            Protection::On => "protected against deletion",
            Protection::Off => "not protected against deletion",
        };
        let counted = match self.tablets {
            1 => "1 tablet".to_owned(),
            count => format!("{count} tablets"),
        };
        let quota = match self.usage.as_ref().map(quota::of_table) {
            Some(quota) if quota.limits != QuotaLimits::default() => format!(", quota {quota}"),
            _ => String::new(),
        };
        let families = self.families_text();
        let groups = match self.locality_groups.as_slice() {
            [] | [_] => String::new(),
            groups => format!("\n{}", locality_group::to_text(groups)),
        };
        format!("{}\n{counted}, {protection}{quota}\n\n{families}{groups}", self.name.as_str())
    }
}

/// Families by name with their rules as JSON; `null` for a family without a rule.
pub(super) fn families_json(families: &[NamedFamily]) -> Value {
    let one = |(name, gc): &NamedFamily| (name.clone(), json!({ "gc": gc.as_ref().map(GcRule::notation) }));
    Value::Object(families.iter().map(one).collect::<Map<_, _>>())
}

/// The same for people.
pub(super) fn families_text(families: &[NamedFamily]) -> String {
    let mut shown = output::Table::new(&["FAMILY", "GARBAGE COLLECTION"]);
    for (name, gc) in families {
        shown.row(vec![name.clone(), rule_text(gc.as_ref())]);
    }
    shown.render()
}

fn rule_text(rule: Option<&GcRule>) -> String {
    rule.map_or("none: keeps all cells".to_owned(), GcRule::notation)
}

/// `contents:maxversions=3&&maxage=30d` as a name and a rule.
///
/// # Errors
/// Usage, with the grammar.
pub fn parse_family(text: &str) -> Result<(String, Option<GcRule>), Failure> {
    match text.split_once(':') {
        None => Ok((text.to_owned(), None)),
        Some((name, rule)) => Ok((name.to_owned(), Some(parse_rule(rule)?))),
    }
}

/// `&&` has higher precedence than `||`, as in cbt.
fn parse_rule(text: &str) -> Result<GcRule, Failure> {
    let any = text.split("||").map(|all| {
        let rules = all.split("&&").map(parse_term).collect::<Result<Vec<_>, _>>()?;
        Ok(one_or(rules, GcRule::All))
    });
    Ok(one_or(any.collect::<Result<Vec<_>, Failure>>()?, GcRule::Any))
}

fn one_or(mut rules: Vec<GcRule>, many: fn(Vec<GcRule>) -> GcRule) -> GcRule {
    match rules.pop() {
        Some(only) if rules.is_empty() => only,
        last => {
            rules.extend(last);
            many(rules)
        }
    }
}

fn parse_term(text: &str) -> Result<GcRule, Failure> {
    let wrong = || {
        Failure::usage(format!(
            "`{text}` is not a garbage collection rule: write maxversions=3 or maxage=30d (units d h m s ms)"
        ))
    };
    let (kind, value) = text.trim().split_once('=').ok_or_else(wrong)?;
    match kind {
        "maxversions" => value.parse().map(GcRule::MaxVersions).map_err(|_| wrong()),
        "maxage" => parse_age(value).map(GcRule::MaxAge).ok_or_else(wrong),
        _ => Err(wrong()),
    }
}

fn parse_age(text: &str) -> Option<Duration> {
    let unit = text.trim_start_matches(|letter: char| letter.is_ascii_digit());
    let number: u64 = text.strip_suffix(unit)?.parse().ok()?;
    let millis = match unit {
        "d" => 86_400_000,
        "h" => 3_600_000,
        "m" => 60_000,
        "s" => 1_000,
        "ms" => 1,
        _ => return None,
    };
    number.checked_mul(millis).map(Duration::from_millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_read_as_cbt_writes_them() {
        let shown = |text| parse_rule(text).unwrap().notation();
        assert_eq!(shown("maxversions=3"), "maxversions=3");
        assert_eq!(shown("maxage=30d && maxversions=3"), "maxage=30d && maxversions=3");
        assert_eq!(shown("maxage=90s||maxversions=1&&maxage=48h"), "maxage=90s || maxversions=1 && maxage=2d");
        assert!(parse_rule("maxversions").is_err() && parse_rule("maxage=3y").is_err() && parse_rule("").is_err());
    }

    #[test]
    fn a_family_may_come_without_a_rule() {
        assert_eq!(parse_family("anchor").unwrap(), ("anchor".to_owned(), None));
        assert_eq!(parse_family("c:maxversions=2").unwrap().1, Some(GcRule::MaxVersions(2)));
    }
}
