//! `ebla view`: authorized views of a table.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use ebla_client::StoredView;
use ebla_model::access::{AuthorizedView, FamilySubset, Policy, SubsetView, ViewName};
use ebla_model::cell::FamilyName;
use ebla_model::error::Error;
use ebla_model::key::RowKey;
use ebla_model::schema::Protection;
use ebla_runtime::Runtime;
use serde_json::{Value, json};

use super::table::{Switch, confirm};
use super::{ClusterArguments, TableArguments, documents};
use crate::output::{self, Failure, Format, Table};

/// Give access to a part of a table: create, show and change authorized views
///
/// Examples:
///   ebla view create web german --row-prefix de. --family contents
///   ebla iam set web --view german --add roles/bigtable.reader=group:partners
#[derive(Debug, clap::Subcommand)]
#[command(verbatim_doc_comment)]
pub enum View {
    /// Create an authorized view
    ///
    /// Examples:
    ///   ebla view create web german --row-prefix de. --family contents
    ///   ebla view create web titles --all-rows --column contents:title --column-prefix anchor:com.
    ///
    /// The view includes the cells that are in one of its rows and in one of its columns.
    #[command(verbatim_doc_comment)]
    Create {
        /// Which view
        #[command(flatten)]
        of: Target,
        /// What it includes
        #[command(flatten)]
        included: Included,
        /// Refuse to delete the view, and its table
        #[arg(long, value_enum, default_value = "off")]
        deletion_protection: Switch,
    },
    /// List the authorized views of a table
    ///
    /// Example:
    ///   ebla view list web
    #[command(verbatim_doc_comment)]
    List(TableArguments),
    /// Show what an authorized view includes
    ///
    /// Example:
    ///   ebla view get web german
    #[command(verbatim_doc_comment)]
    Get(Target),
    /// Change what an authorized view includes, or its protection
    ///
    /// Examples:
    ///   ebla view update web german --row-prefix de. --row-prefix at.
    ///   ebla view update web german --deletion-protection on
    ///
    /// If rows are given, they replace the rows of the view; if families or columns are given, they replace all of its columns.
    #[command(verbatim_doc_comment)]
    Update {
        /// Which view
        #[command(flatten)]
        of: Target,
        /// What it includes
        #[command(flatten)]
        included: Included,
        /// Refuse to delete the view, and its table
        #[arg(long, value_enum)]
        deletion_protection: Option<Switch>,
    },
    /// Delete an authorized view with its policy; the rows of the table stay
    ///
    /// Example:
    ///   ebla view delete web german --yes
    #[command(verbatim_doc_comment)]
    Delete {
        /// Which view
        #[command(flatten)]
        of: Target,
        /// Do not ask for confirmation
        #[arg(long)]
        yes: bool,
    },
}

/// A view of a table.
#[derive(Debug, clap::Args)]
pub struct Target {
    /// Which cluster
    #[command(flatten)]
    cluster: ClusterArguments,
    /// Name of the table
    table: String,
    /// Name of the view
    view: String,
}

impl Target {
    fn name(&self) -> Result<ViewName, Failure> {
        Ok(ViewName::new(self.cluster.table(&self.table)?, &self.view)?)
    }
}

/// Rows and columns of a view.
#[derive(Debug, Default, clap::Args)]
pub struct Included {
    /// Rows that begin with this, with \xHH for other bytes; repeat for several
    #[arg(long, value_name = "PREFIX", value_parser = parse_bytes)]
    row_prefix: Vec<Bytes>,
    /// All rows
    #[arg(long, conflicts_with = "row_prefix")]
    all_rows: bool,
    /// All columns of a family; repeat for several
    #[arg(long, value_name = "FAMILY", value_parser = FamilyName::new)]
    family: Vec<FamilyName>,
    /// One column; repeat for several
    #[arg(long, value_name = "FAMILY:QUALIFIER", value_parser = parse_column)]
    column: Vec<(FamilyName, Bytes)>,
    /// The columns of a family that begin with this; repeat for several
    #[arg(long, value_name = "FAMILY:PREFIX", value_parser = parse_column)]
    column_prefix: Vec<(FamilyName, Bytes)>,
}

fn parse_bytes(text: &str) -> Result<Bytes, Error> {
    RowKey::parse_escaped(text).map(|key| key.bytes().clone())
}

fn parse_column(text: &str) -> Result<(FamilyName, Bytes), Error> {
    let (family, column) =
        text.split_once(':').ok_or_else(|| Error::invalid("expected FAMILY:QUALIFIER, such as contents:title"))?;
    Ok((FamilyName::new(family)?, parse_bytes(column)?))
}

impl Included {
    /// The given rows; `None`: none are given.
    fn rows(&self) -> Option<Vec<Bytes>> {
        match (self.all_rows, self.row_prefix.is_empty()) {
            (true, _) => Some(vec![Bytes::new()]),
            (false, false) => Some(self.row_prefix.clone()),
            (false, true) => None,
        }
    }

    /// The given columns; `None`: none are given.
    fn families(&self) -> Option<Vec<(FamilyName, FamilySubset)>> {
        let mut columns: BTreeMap<FamilyName, (BTreeSet<Bytes>, BTreeSet<Bytes>)> = BTreeMap::new();
        for family in &self.family {
            columns.entry(family.clone()).or_default().1.insert(Bytes::new());
        }
        for (family, qualifier) in &self.column {
            columns.entry(family.clone()).or_default().0.insert(qualifier.clone());
        }
        for (family, prefix) in &self.column_prefix {
            columns.entry(family.clone()).or_default().1.insert(prefix.clone());
        }
        let subset = |(family, (qualifiers, prefixes))| (family, FamilySubset::new(qualifiers, prefixes));
        (!columns.is_empty()).then(|| columns.into_iter().map(subset).collect())
    }

    /// The subset with what is given, and the rest of `present`.
    fn applied_to(&self, present: &SubsetView) -> SubsetView {
        let rows = self.rows().unwrap_or_else(|| present.row_prefixes().cloned().collect());
        let families = self
            .families()
            .unwrap_or_else(|| present.families().map(|(name, columns)| (name.clone(), columns.clone())).collect());
        SubsetView::new(rows, families)
    }
}

const fn protection(switch: Switch) -> Protection {
    match switch {
        Switch::On => Protection::On,
        Switch::Off => Protection::Off,
    }
}

/// Carries out the command.
///
/// # Errors
/// What the cluster answers.
pub async fn run(command: View, runtime: Runtime) -> Result<(), Failure> {
    match command {
        View::Create { of, included, deletion_protection } => {
            if included.rows().is_none() {
                return Err(Failure::usage("give the rows of the view: --row-prefix PREFIX, or --all-rows"));
            }
            if included.families().is_none() {
                return Err(Failure::usage("give the columns of the view: --family, --column or --column-prefix"));
            }
            let subset = included.applied_to(&SubsetView::default());
            let view =
                AuthorizedView { subset, protection: protection(deletion_protection), policy: Policy::default() };
            of.cluster.client(&runtime).await?.admin().create_view(&of.name()?, &view).await?;
            show_stored(&of, &runtime).await
        }
        View::List(TableArguments { cluster, table }) => {
            let names = cluster.client(&runtime).await?.admin().views(&cluster.table(&table)?).await?;
            match cluster.output {
                Format::Json => output::print_json(&names_json(&names)),
                Format::Table if names.is_empty() => output::note(&format!("{table} has no authorized views")),
                Format::Table => names.iter().for_each(|name| output::print(&format!("{}\n", name.id()))),
            }
            Ok(())
        }
        View::Get(of) => show_stored(&of, &runtime).await,
        View::Update { of, included, deletion_protection } => {
            let admin = of.cluster.client(&runtime).await?.admin();
            let mut next = admin.view(&of.name()?).await?;
            next.view.subset = included.applied_to(&next.view.subset);
            next.view.protection = deletion_protection.map_or(next.view.protection, protection);
            admin.update_view(&next).await?;
            show_stored(&of, &runtime).await
        }
        View::Delete { of, yes } => {
            let name = of.name()?;
            if !yes {
                confirm(&format!("delete the view {} and its policy", of.view), &of.view)?;
            }
            of.cluster.client(&runtime).await?.admin().delete_view(&name).await?;
            match of.cluster.output {
                Format::Json => output::print_json(&documents::deleted(&name)),
                Format::Table => output::note(&format!("view {} of {} deleted", of.view, of.table)),
            }
            Ok(())
        }
    }
}

/// The full names of views.
pub(super) fn names_json(names: &[ViewName]) -> Value {
    names.iter().map(|name| json!(name.to_string())).collect()
}

async fn show_stored(of: &Target, runtime: &Runtime) -> Result<(), Failure> {
    let stored = of.cluster.client(runtime).await?.admin().view(&of.name()?).await?;
    match of.cluster.output {
        Format::Json => output::print_json(&to_json(&stored)),
        Format::Table => output::print(&to_text(&stored)),
    }
    Ok(())
}

fn escaped(bytes: &Bytes) -> String {
    RowKey::new(bytes.clone()).to_string()
}

/// Each line is a part of the view: rows, then columns, then the protection.
fn to_text(stored: &StoredView) -> String {
    let mut table = Table::new(&["PART", "INCLUDED"]);
    let mut line = |part: &str, included: String| table.row(vec![part.to_owned(), included]);
    for prefix in stored.view.subset.row_prefixes() {
        line("rows", if prefix.is_empty() { "all".to_owned() } else { format!("{}…", escaped(prefix)) });
    }
    for (family, columns) in stored.view.subset.families() {
        columns.qualifiers().for_each(|qualifier| line("column", format!("{family}:{}", escaped(qualifier))));
        columns.prefixes().for_each(|prefix| line("columns", format!("{family}:{}…", escaped(prefix))));
    }
    line("deletion protection", if stored.view.protection == Protection::On { "on" } else { "off" }.to_owned());
    table.render()
}

pub(super) fn to_json(stored: &StoredView) -> Value {
    let texts = |texts: &mut dyn Iterator<Item = &Bytes>| texts.map(|text| json!(escaped(text))).collect::<Vec<_>>();
    let subset = &stored.view.subset;
    let families: serde_json::Map<_, _> = subset
        .families()
        .map(|(family, columns)| {
            let (qualifiers, prefixes) = (texts(&mut columns.qualifiers()), texts(&mut columns.prefixes()));
            (family.to_string(), json!({"qualifiers": qualifiers, "qualifierPrefixes": prefixes}))
        })
        .collect();
    json!({
        "name": stored.name.to_string(),
        "rowPrefixes": texts(&mut subset.row_prefixes()),
        "families": families,
        "deletionProtection": stored.view.protection == Protection::On,
    })
}

#[cfg(test)]
pub(super) use tests::example_subset;

#[cfg(test)]
mod tests {
    use super::*;

    /// What an example of a view includes.
    pub(in crate::commands) fn example_subset() -> SubsetView {
        included().applied_to(&SubsetView::default())
    }

    fn included() -> Included {
        Included {
            row_prefix: vec![parse_bytes("de\\x00").unwrap()],
            family: vec![FamilyName::new("f").unwrap()],
            column: vec![parse_column("g:a:b").unwrap()],
            column_prefix: vec![parse_column("g:p").unwrap()],
            ..Included::default()
        }
    }

    #[test]
    fn a_view_is_read_from_options() {
        let subset = included().applied_to(&SubsetView::default());
        assert!(subset.includes_row(&RowKey::new("de\0x")) && !subset.includes_row(&RowKey::new("de")));
        for (family, qualifier, expected) in
            [("f", "x", true), ("g", "a:b", true), ("g", "pq", true), ("g", "a", false)]
        {
            assert_eq!(subset.includes_column(family, qualifier.as_bytes()), expected, "{family}:{qualifier}");
        }
        assert!(parse_column("family").is_err() && parse_column("not a name:q").is_err());
    }

    #[test]
    fn an_update_keeps_what_is_not_given() {
        let present = included().applied_to(&SubsetView::default());
        assert_eq!(Included::default().applied_to(&present), present);
        let rows = Included { all_rows: true, ..Included::default() }.applied_to(&present);
        assert!(rows.includes_row(&RowKey::new("x")) && rows.includes_column("g", b"a:b"));
        let columns = Included { family: vec![FamilyName::new("h").unwrap()], ..Included::default() };
        let columns = columns.applied_to(&present);
        assert!(columns.includes_column("h", b"") && !columns.includes_column("f", b"x"));
    }

    #[test]
    fn a_view_is_shown_in_parts() {
        let stored = StoredView {
            name: "projects/p/instances/i/tables/t/authorizedViews/v".parse().unwrap(),
            view: AuthorizedView {
                subset: included().applied_to(&SubsetView::default()),
                protection: Protection::On,
                policy: Policy::default(),
            },
            etag: "7".to_owned(),
        };
        let text = to_text(&stored);
        for part in ["de\\x00…", "f:…", "g:a:b", "g:p…", "on"] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert_eq!(to_json(&stored)["families"]["g"], json!({"qualifiers": ["a:b"], "qualifierPrefixes": ["p"]}));
    }
}
