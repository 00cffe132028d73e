//! `ebla table`: list, create, delete, describe.

use std::time::Duration;

use ebla_model::gc::GcRule;
use ebla_model::key::RowKey;
use ebla_runtime::Runtime;
use serde_json::{Value, json};

use super::Place;
use crate::output::{self, Failure, Format};

/// Tables.
#[derive(Debug, clap::Subcommand)]
pub enum Table {
    /// The tables of the instance
    List {
        /// Which cluster
        #[command(flatten)]
        place: Place,
    },
    /// Make a table
    ///
    /// Example:
    ///   ebla table create web --family anchor --family contents:maxversions=3 --split org.
    #[command(verbatim_doc_comment)]
    Create {
        /// Which cluster
        #[command(flatten)]
        place: Place,
        /// The table's name
        table: String,
        /// NAME, or NAME:maxversions=N, NAME:maxage=30d, both joined by && or ||
        #[arg(long = "family", value_name = "FAMILY")]
        families: Vec<String>,
        /// First row of a further tablet; bytes as \xHH
        #[arg(long = "split", value_name = "KEY")]
        splits: Vec<String>,
    },
    /// Remove a table and everything in it
    Delete {
        /// Which cluster
        #[command(flatten)]
        place: Place,
        /// The table's name
        table: String,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
    /// Families, rules and number of tablets of a table
    Describe {
        /// Which cluster
        #[command(flatten)]
        place: Place,
        /// The table's name
        table: String,
    },
}

/// Carries out the command.
///
/// # Errors
/// What the cluster answers.
pub async fn run(command: Table, runtime: Runtime) -> Result<(), Failure> {
    match command {
        Table::List { place } => list(place, runtime).await,
        Table::Create { place, table, families, splits } => create(place, &table, &families, &splits, runtime).await,
        Table::Delete { place, table, yes } => delete(place, &table, yes, runtime).await,
        Table::Describe { place, table } => describe(place, &table, runtime).await,
    }
}

async fn list(place: Place, runtime: Runtime) -> Result<(), Failure> {
    let client = place.client(&runtime).await?;
    let names = client.admin().list_tables(&place.project, &place.instance).await?;
    let short: Vec<_> = names.iter().map(|name| name.table().to_owned()).collect();
    if place.output == Format::Json {
        output::print_json(&json!(short));
    } else {
        output::print(&short.iter().map(|name| format!("{name}\n")).collect::<String>());
    }
    Ok(())
}

async fn create(
    place: Place,
    table: &str,
    families: &[String],
    splits: &[String],
    runtime: Runtime,
) -> Result<(), Failure> {
    let name = place.table(table)?;
    let families = families.iter().map(|text| parse_family(text)).collect::<Result<Vec<_>, _>>()?;
    let splits = splits.iter().map(|text| RowKey::parse_escaped(text)).collect::<Result<Vec<_>, _>>()?;
    place.client(&runtime).await?.admin().create_table(&name, &families, &splits).await?;
    eprintln!("created {table}");
    Ok(())
}

async fn delete(place: Place, table: &str, yes: bool, runtime: Runtime) -> Result<(), Failure> {
    use std::io::IsTerminal as _;
    let name = place.table(table)?;
    if !yes {
        if !std::io::stdin().is_terminal() {
            return Err(Failure::usage(format!("deleting {table} cannot be undone: add --yes")));
        }
        eprint!("Delete {table} and everything in it? Type its name: ");
        let mut answer = String::new();
        std::io::stdin().read_line(&mut answer)?;
        if answer.trim() != table {
            return Err(Failure::other("nothing deleted"));
        }
    }
    place.client(&runtime).await?.admin().delete_table(&name).await?;
    eprintln!("deleted {table}");
    Ok(())
}

async fn describe(place: Place, table: &str, runtime: Runtime) -> Result<(), Failure> {
    let name = place.table(table)?;
    let client = place.client(&runtime).await?;
    let families = client.admin().families(&name).await?;
    let tablets = client.tablets(&name).await?.len();
    if place.output == Format::Json {
        let rule = |rule: &Option<GcRule>| rule.as_ref().map_or(Value::Null, |rule| json!(show_rule(rule)));
        let families: serde_json::Map<_, _> =
            families.iter().map(|(name, gc)| (name.clone(), json!({ "gc": rule(gc) }))).collect();
        output::print_json(&json!({ "name": name.as_str(), "tablets": tablets, "families": families }));
        return Ok(());
    }
    output::print(&format!("{}\n{tablets} tablets\n\n", name.as_str()));
    let mut shown = output::Table::new(&["FAMILY", "GARBAGE COLLECTION"]);
    for (name, gc) in families {
        shown.row(vec![name, gc.as_ref().map_or("keeps everything".to_owned(), show_rule)]);
    }
    output::print(&shown.render());
    Ok(())
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

/// `&&` binds closer than `||`, as in cbt.
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
    let wrong = || Failure::usage(format!("`{text}` is no rule: write maxversions=3 or maxage=30d (units d h m s ms)"));
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

fn show_rule(rule: &GcRule) -> String {
    match rule {
        GcRule::MaxVersions(count) => format!("maxversions={count}"),
        GcRule::MaxAge(age) => format!("maxage={}", show_age(*age)),
        GcRule::Any(rules) => rules.iter().map(show_rule).collect::<Vec<_>>().join(" || "),
        GcRule::All(rules) => rules.iter().map(show_rule).collect::<Vec<_>>().join(" && "),
    }
}

fn show_age(age: Duration) -> String {
    match age.as_millis() {
        millis if millis % 86_400_000 == 0 => format!("{}d", millis / 86_400_000),
        millis if millis % 1_000 == 0 => format!("{}s", millis / 1_000),
        millis => format!("{millis}ms"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_read_as_cbt_writes_them() {
        let shown = |text| show_rule(&parse_rule(text).unwrap());
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
