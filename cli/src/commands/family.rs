//! `ebla family`: the column families of a table.

use ebla_client::admin::{FamilyChange, NamedFamily};
use ebla_model::cell::FamilyName;
use ebla_model::error::Error;
use ebla_model::gc::GcRule;
use ebla_model::locality::LocalityGroupChange;
use ebla_model::schema::{NewFamily, TableName};
use ebla_runtime::Runtime;
use serde_json::{Value, json};

use super::TableArguments;
use super::table::{confirm, families_json, families_text, parse_family};
use crate::output::{self, Failure, Format};

/// List, add, update and drop the column families of a table
///
/// Examples:
///   ebla family add web language:maxversions=1
///   ebla family list web
#[derive(Debug, clap::Subcommand)]
#[command(verbatim_doc_comment)]
pub enum Family {
    /// List the families of a table and their garbage collection rules
    ///
    /// Example:
    ///   ebla family list web
    #[command(verbatim_doc_comment)]
    List(TableArguments),
    /// Add families to a table, all or none
    ///
    /// Examples:
    ///   ebla family add web language
    ///   ebla family add web 'contents:maxage=30d&&maxversions=3'
    ///   ebla family add web language --locality-group small
    #[command(verbatim_doc_comment)]
    Add {
        /// The families
        #[command(flatten)]
        named: Named,
        /// Locality group for them, which must exist [default: the group `default`]
        #[arg(long, value_name = "GROUP")]
        locality_group: Option<String>,
    },
    /// Replace the garbage collection rules of families, all or none
    ///
    /// Examples:
    ///   ebla family update web contents:maxversions=1
    ///   ebla family update web contents
    ///
    /// A family given without a rule keeps every cell.
    #[command(verbatim_doc_comment)]
    Update(Named),
    /// Drop families with all their cells, all or none
    ///
    /// Example:
    ///   ebla family drop web language --yes
    #[command(verbatim_doc_comment)]
    Drop {
        /// Which table
        #[command(flatten)]
        of: TableArguments,
        /// Families to drop
        #[arg(required = true, value_name = "FAMILY")]
        families: Vec<String>,
        /// Do not ask for confirmation
        #[arg(long)]
        yes: bool,
    },
}

/// Families with their rules.
#[derive(Debug, clap::Args)]
pub struct Named {
    /// Which table
    #[command(flatten)]
    pub of: TableArguments,
    /// NAME, or NAME:maxversions=N, NAME:maxage=30d, or both joined by && or ||
    #[arg(required = true, value_name = "FAMILY")]
    pub families: Vec<String>,
}

/// Carries out the command.
///
/// # Errors
/// What the cluster answers.
pub async fn run(command: Family, runtime: Runtime) -> Result<(), Failure> {
    match command {
        Family::List(TableArguments { cluster, table }) => {
            let name = cluster.table(&table)?;
            let families = cluster.client(&runtime).await?.admin().families(&name).await?;
            match cluster.output {
                Format::Json => output::print_json(&families_json(&families)),
                Format::Table if families.is_empty() => {
                    output::note(&format!("no families in {table}: add one with `ebla family add`"));
                }
                Format::Table => output::print(&families_text(&families)),
            }
            Ok(())
        }
        Family::Add { named, locality_group: None } => change(&named, FamilyChange::Create, "added to", &runtime).await,
        Family::Add { named, locality_group: Some(group) } => add_to_group(&named, &group, &runtime).await,
        Family::Update(named) => change(&named, FamilyChange::Update, "updated in", &runtime).await,
        Family::Drop { of, families, yes } => {
            let table = &of.table;
            if !yes {
                confirm(&format!("drop {} and all their cells", families.join(", ")), table)?;
            }
            let changes: Vec<_> = families.iter().cloned().map(FamilyChange::Drop).collect();
            apply(&of, &changes, &format!("dropped from {table}: {}", families.join(", ")), &runtime).await
        }
    }
}

/// Adds families in a locality group, all or none.
async fn add_to_group(named: &Named, group: &str, runtime: &Runtime) -> Result<(), Failure> {
    let of = &named.of;
    let table = of.name()?;
    let families = named.families.iter().map(|text| parse_family(text)).collect::<Result<Vec<_>, _>>()?;
    let names: Vec<_> = families.iter().map(|(name, _rule)| name.clone()).collect();
    let add = |(name, gc): (String, Option<GcRule>)| -> Result<LocalityGroupChange, Error> {
        let family = NewFamily::plain(FamilyName::new(&name)?, gc);
        Ok(LocalityGroupChange::Add { family, group: group.to_owned() })
    };
    let changes = families.into_iter().map(add).collect::<Result<Vec<_>, Error>>()?;
    let client = of.cluster.client(runtime).await?;
    client.admin().change_locality_groups(&table, &changes).await?;
    match of.cluster.output {
        Format::Json => {
            let families = client.admin().families(&table).await?;
            output::print_json(&changed_json(&table, &families));
        }
        Format::Table => output::note(&format!("added to {}, group {group}: {}", of.table, names.join(", "))),
    }
    Ok(())
}

async fn change(
    named: &Named,
    to_change: fn((String, Option<GcRule>)) -> FamilyChange,
    done: &str,
    runtime: &Runtime,
) -> Result<(), Failure> {
    let families = named.families.iter().map(|text| parse_family(text)).collect::<Result<Vec<_>, _>>()?;
    let names: Vec<_> = families.iter().map(|(name, _)| name.clone()).collect();
    let changes: Vec<_> = families.into_iter().map(to_change).collect();
    let done = format!("{done} {}: {}", named.of.table, names.join(", "));
    apply(&named.of, &changes, &done, runtime).await
}

async fn apply(of: &TableArguments, changes: &[FamilyChange], done: &str, runtime: &Runtime) -> Result<(), Failure> {
    let name = of.name()?;
    let families = of.cluster.client(runtime).await?.admin().modify_families(&name, changes).await?;
    match of.cluster.output {
        Format::Json => output::print_json(&changed_json(&name, &families)),
        Format::Table => output::note(done),
    }
    Ok(())
}

/// A table whose families were changed, with all its families.
pub(super) fn changed_json(table: &TableName, families: &[NamedFamily]) -> Value {
    json!({ "name": table.as_str(), "families": families_json(families) })
}
