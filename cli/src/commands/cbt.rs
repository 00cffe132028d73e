//! The verbs of cbt as commands of `ebla`, with the arguments of cbt where they can be the same.
//!
//! ```text
//!   ls [TABLE]                               ebla table list, ebla family list
//!   read, lookup                             ebla scan, ebla get; with patterns of keys, columns and versions
//!   createtable, deletetable                 ebla table create, ebla table delete
//!   createfamily, setgcpolicy, deletefamily  ebla family add, update, drop
//!   deleterow, deletecolumn                  ebla row delete
//!   deleteallrows                            all rows of a table, which keeps its families
//!   count, set                               the commands of that name: [`super::row`]
//! ```
//!
//! Arguments of the form NAME=VALUE are parsed here; an unknown name is refused with the names that exist. What differs from cbt: the
//! output is that of `ebla`, keys and patterns are written as everywhere in `ebla` (a byte as `\xHH`), and what cannot be undone asks
//! for confirmation.

use std::collections::BTreeMap;

use bytes::Bytes;
use ebla_client::Direction;
use ebla_model::filter::Filter;
use ebla_model::key::RowKey;
use ebla_model::schema::TableName;
use ebla_runtime::Runtime;
use serde_json::{Value, json};

use super::family::{self, Named};
use super::row::{self, Keys, Query, RowArguments, Syntax, Values};
use super::table::{self, Deletion, confirm};
use super::{ClusterArguments, Command, TableArguments};
use crate::output::{self, Failure, Format};
use crate::watch::WatchArguments;
use ebla_client::encoding;

/// Arguments of `read`.
const READ: [&str; 9] =
    ["start", "end", "prefix", "regex", "columns", "count", "cells-per-column", "reversed", "app-profile"];
/// Arguments of `lookup`.
const LOOKUP: [&str; 3] = ["columns", "cells-per-column", "app-profile"];
/// Arguments of `createtable`.
const CREATE: [&str; 2] = ["families", "splits"];
/// Arguments of `deleterow` and `deletecolumn`.
const DELETE: [&str; 1] = ["app-profile"];

/// The verbs.
#[derive(Debug, clap::Subcommand)]
pub enum Cbt {
    /// List tables, or the families of a table: `ebla table list`, `ebla family list`
    ///
    /// Examples:
    ///   ebla ls
    ///   ebla ls web
    #[command(verbatim_doc_comment)]
    Ls {
        /// Which cluster
        #[command(flatten)]
        cluster: ClusterArguments,
        /// Name of the table
        table: Option<String>,
    },
    /// Show rows, with the arguments of cbt: `ebla scan`
    ///
    /// Examples:
    ///   ebla read web prefix=com. count=10
    ///   ebla read web start=a end=m columns=anchor:.*,contents: cells-per-column=1
    ///   ebla read web 'regex=com\..*' reversed=true
    ///
    /// Arguments: start=KEY, end=KEY, prefix=KEY, regex=PATTERN of whole keys, columns=FAMILY:QUALIFIER,… with patterns, count=N,
    /// cells-per-column=N, reversed=true. app-profile=NAME is accepted and has no effect. Patterns are those of filters (RE2).
    #[command(verbatim_doc_comment)]
    Read {
        /// Which table
        #[command(flatten)]
        of: TableArguments,
        /// Which rows, and what of them
        #[arg(value_name = "NAME=VALUE")]
        arguments: Vec<String>,
    },
    /// Show one row, with the arguments of cbt: `ebla get`
    ///
    /// Examples:
    ///   ebla lookup web com.cnn.www
    ///   ebla lookup web com.cnn.www columns=anchor: cells-per-column=1
    ///
    /// Arguments: columns=FAMILY:QUALIFIER,… with patterns, cells-per-column=N. app-profile=NAME is accepted and has no effect.
    #[command(verbatim_doc_comment)]
    Lookup {
        /// Which row
        #[command(flatten)]
        of: RowArguments,
        /// What of the row
        #[arg(value_name = "NAME=VALUE")]
        arguments: Vec<String>,
    },
    /// Create a table, with the arguments of cbt: `ebla table create`
    ///
    /// Example:
    ///   ebla createtable web families=anchor,contents:maxversions=3 splits=m,t
    ///
    /// Arguments: families=NAME:RULE,…, splits=KEY,…
    #[command(verbatim_doc_comment)]
    Createtable {
        /// Which table
        #[command(flatten)]
        of: TableArguments,
        /// Families and first keys of further tablets
        #[arg(value_name = "NAME=VALUE")]
        arguments: Vec<String>,
    },
    /// Delete a table and everything in it: `ebla table delete`
    ///
    /// Example:
    ///   ebla deletetable web --yes
    #[command(verbatim_doc_comment)]
    Deletetable(Deletion),
    /// Delete all rows of a table; the table stays
    ///
    /// Example:
    ///   ebla deleteallrows web --yes
    #[command(verbatim_doc_comment)]
    Deleteallrows(Deletion),
    /// Add a family to a table: `ebla family add`
    ///
    /// Examples:
    ///   ebla createfamily web language
    ///   ebla createfamily web contents:maxversions=3
    #[command(verbatim_doc_comment)]
    Createfamily {
        /// Which table
        #[command(flatten)]
        of: TableArguments,
        /// NAME, or NAME:RULE with a garbage collection rule
        family: String,
    },
    /// Set the garbage collection rule of a family: `ebla family update`
    ///
    /// Examples:
    ///   ebla setgcpolicy web contents maxversions=3
    ///   ebla setgcpolicy web contents maxage=30d and maxversions=3
    ///   ebla setgcpolicy web contents never
    #[command(verbatim_doc_comment)]
    Setgcpolicy {
        /// Which table
        #[command(flatten)]
        of: TableArguments,
        /// Name of the family
        family: String,
        /// maxversions=N, maxage=30d, or both joined by and, or, && or ||; never: keep every cell
        #[arg(required = true, value_name = "RULE")]
        rule: Vec<String>,
    },
    /// Drop a family with all its cells: `ebla family drop`
    ///
    /// Example:
    ///   ebla deletefamily web language --yes
    #[command(verbatim_doc_comment)]
    Deletefamily {
        /// Which table
        #[command(flatten)]
        of: TableArguments,
        /// Name of the family
        family: String,
        /// Do not ask for confirmation
        #[arg(long)]
        yes: bool,
    },
    /// Delete a row: `ebla row delete`
    ///
    /// Example:
    ///   ebla deleterow web com.cnn.www
    #[command(verbatim_doc_comment)]
    Deleterow {
        /// Which row
        #[command(flatten)]
        of: RowArguments,
        /// app-profile=NAME, as in cbt; it has no effect
        #[arg(value_name = "NAME=VALUE")]
        arguments: Vec<String>,
    },
    /// Delete the cells of a column in a row: `ebla row delete --column`
    ///
    /// Example:
    ///   ebla deletecolumn web com.cnn.www anchor cnnsi.com
    #[command(verbatim_doc_comment)]
    Deletecolumn {
        /// Which row
        #[command(flatten)]
        of: RowArguments,
        /// Name of the family
        family: String,
        /// The qualifier; bytes as \xHH
        #[arg(value_parser = encoding::unescape)]
        column: Bytes,
        /// app-profile=NAME, as in cbt; it has no effect
        #[arg(value_name = "NAME=VALUE")]
        arguments: Vec<String>,
    },
}

/// Carries out the command.
///
/// # Errors
/// Usage, for arguments that do not exist; what the cluster answers.
pub async fn run(command: Cbt, runtime: Runtime) -> Result<(), Failure> {
    match command {
        Cbt::Read { of, arguments } => row::scan(&of, query(&arguments)?, Values::Escaped, &runtime).await,
        Cbt::Lookup { of, arguments } => {
            let filter = cells_filter(&Given::parse("lookup", &arguments, &LOOKUP)?)?;
            row::show_row(&of, filter, Values::Escaped, &runtime).await
        }
        Cbt::Deleteallrows(deletion) => delete_all_rows(&deletion, &runtime).await,
        other => Box::pin(super::execute(as_own(other)?, runtime)).await,
    }
}

/// The command of `ebla` that does the same.
fn as_own(command: Cbt) -> Result<Command, Failure> {
    let family = Command::Family;
    Ok(match command {
        Cbt::Ls { cluster, table: None } => {
            Command::Table(table::Table::List { cluster, watch: WatchArguments::default() })
        }
        Cbt::Ls { cluster, table: Some(table) } => family(family::Family::List(TableArguments { cluster, table })),
        Cbt::Createtable { of, arguments } => {
            let given = Given::parse("createtable", &arguments, &CREATE)?;
            let families = given.list("families").map(ToOwned::to_owned).collect();
            let splits = given.list("splits").map(encoding::parse_split_key).collect::<Result<_, _>>();
            let splits = splits.map_err(|why| Failure::usage(format!("splits: {why}")))?;
            Command::Table(table::Table::Create { of, families, splits, locality_groups: Vec::new() })
        }
        Cbt::Deletetable(deletion) => Command::Table(table::Table::Delete(deletion)),
        Cbt::Createfamily { of, family: name } => {
            family(family::Family::Add { named: Named { of, families: vec![name] }, locality_group: None })
        }
        Cbt::Setgcpolicy { of, family: name, rule } => {
            let families = vec![with_rule(&name, &rule)];
            family(family::Family::Update(Named { of, families }))
        }
        Cbt::Deletefamily { of, family: name, yes } => family(family::Family::Drop { of, families: vec![name], yes }),
        Cbt::Deleterow { of, arguments } => {
            Given::parse("deleterow", &arguments, &DELETE)?;
            Command::Row(row::Row::Delete(row::Delete { of, family: None, column: None }))
        }
        Cbt::Deletecolumn { of, family, column, arguments } => {
            Given::parse("deletecolumn", &arguments, &DELETE)?;
            let column = Some(row::Column { family, qualifier: column });
            Command::Row(row::Row::Delete(row::Delete { of, family: None, column }))
        }
        same @ (Cbt::Read { .. } | Cbt::Lookup { .. } | Cbt::Deleteallrows(_)) => Command::Cbt(Box::new(same)),
    })
}

async fn delete_all_rows(Deletion { of, yes }: &Deletion, runtime: &Runtime) -> Result<(), Failure> {
    let TableArguments { cluster, table } = of;
    let name = of.name()?;
    if !yes {
        confirm(&format!("delete all rows of {table}"), table)?;
    }
    cluster.client(runtime).await?.admin().drop_row_range(&name, &RowKey::EMPTY).await?;
    match cluster.output {
        Format::Json => output::print_json(&rows_deleted_json(&name)),
        Format::Table => output::note(&format!("deleted all rows of {table}")),
    }
    Ok(())
}

/// A table without its rows.
pub(super) fn rows_deleted_json(table: &TableName) -> Value {
    json!({ "name": table.as_str(), "rows_deleted": "all" })
}

/// Arguments of the form NAME=VALUE.
#[derive(Debug, PartialEq, Eq)]
struct Given<'a>(BTreeMap<&'a str, &'a str>);

impl<'a> Given<'a> {
    /// # Errors
    /// Usage, for text without `=`, for a name that is not in `known`, and for one that is given twice.
    fn parse(verb: &str, arguments: &'a [String], known: &[&str]) -> Result<Self, Failure> {
        let list = || known.iter().map(|name| format!("{name}=")).collect::<Vec<_>>().join(", ");
        let mut given = BTreeMap::new();
        for text in arguments {
            let (name, value) =
                text.split_once('=').filter(|(name, _value)| known.contains(name)).ok_or_else(|| {
                    Failure::usage(format!(
                        "`{text}` is not an argument of {verb}, which has {}; see ebla {verb} --help",
                        list()
                    ))
                })?;
            if given.insert(name, value).is_some() {
                return Err(Failure::usage(format!("{name}= is given twice")));
            }
        }
        Ok(Self(given))
    }

    fn text(&self, name: &str) -> Option<&'a str> {
        self.0.get(name).copied()
    }

    /// The parts of a value between commas; none if it is empty or was not given.
    fn list(&self, name: &str) -> impl Iterator<Item = &'a str> {
        self.text(name).into_iter().flat_map(|value| value.split(',')).filter(|part| !part.is_empty())
    }

    fn key(&self, name: &str) -> Result<Option<RowKey>, Failure> {
        let parse = |text| encoding::parse_key(text).map_err(|why| Failure::usage(format!("{name}: {why}")));
        self.text(name).map(parse).transpose()
    }

    fn pattern(name: &str, text: &str) -> Result<Bytes, Failure> {
        // A pattern has escapes of its own, so its bytes are those that were typed.
        if text.is_empty() {
            Err(Failure::usage(format!("{name}= is empty")))
        } else {
            Ok(Bytes::copy_from_slice(text.as_bytes()))
        }
    }

    /// A number of at least one.
    fn number<N: std::str::FromStr + PartialOrd + From<u8>>(&self, name: &str) -> Result<Option<N>, Failure> {
        let wrong = |text: &str| Failure::usage(format!("{name}={text}: write a number of at least 1"));
        let parse = |text: &str| text.parse().ok().filter(|number| *number >= N::from(1)).ok_or_else(|| wrong(text));
        self.text(name).map(parse).transpose()
    }
}

/// What `read` shows.
fn query(arguments: &[String]) -> Result<Query, Failure> {
    let given = Given::parse("read", arguments, &READ)?;
    let direction = match given.text("reversed") {
        None | Some("false") => Direction::Ascending,
        Some("true") => Direction::Descending,
        Some(other) => return Err(Failure::usage(format!("reversed={other}: write true or false"))),
    };
    let keys = Keys { prefix: given.key("prefix")?, start: given.key("start")?, end: given.key("end")? };
    let of_keys = given.text("regex").map(|text| Given::pattern("regex", text).map(Filter::RowKeyRegex)).transpose()?;
    let filter = chain(of_keys.into_iter().chain(cells_filter(&given)?).collect());
    let limit = given.number("count")?.unwrap_or(0);
    Ok(Query { keys, limit, direction, filter, syntax: Syntax::Arguments })
}

/// The filter of `columns=` and `cells-per-column=`.
fn cells_filter(given: &Given<'_>) -> Result<Option<Filter>, Failure> {
    let columns = given.list("columns").map(columns_filter).collect::<Result<Vec<_>, _>>()?;
    let columns = one_or(columns, Filter::Interleave);
    let versions = given.number("cells-per-column")?.map(Filter::CellsPerColumnLimit);
    Ok(chain(columns.into_iter().chain(versions).collect()))
}

/// `FAMILY:QUALIFIER`, `FAMILY:`, `:QUALIFIER`, or a qualifier alone; both are patterns.
fn columns_filter(text: &str) -> Result<Filter, Failure> {
    let (family, qualifier) = text.split_once(':').unwrap_or(("", text));
    let pattern = |text: &str| (!text.is_empty()).then(|| Bytes::copy_from_slice(text.as_bytes()));
    let parts = pattern(family).map(Filter::FamilyNameRegex).into_iter();
    let parts = parts.chain(pattern(qualifier).map(Filter::ColumnQualifierRegex)).collect();
    chain(parts).ok_or_else(|| Failure::usage(format!("columns: `{text}` names no family and no qualifier")))
}

fn chain(filters: Vec<Filter>) -> Option<Filter> {
    one_or(filters, Filter::Chain)
}

/// The only filter, or several combined; a combination of one is not valid.
fn one_or(mut filters: Vec<Filter>, many: fn(Vec<Filter>) -> Filter) -> Option<Filter> {
    if filters.len() > 1 { Some(many(filters)) } else { filters.pop() }
}

/// A family with a rule, as `ebla family update` takes it. Without a rule it keeps every cell.
fn with_rule(family: &str, rule: &[String]) -> String {
    let words = rule.iter().flat_map(|text| text.split_whitespace());
    let words = words.map(|word| match word {
        "and" => "&&",
        "or" => "||",
        other => other,
    });
    match words.collect::<String>().as_str() {
        "never" => family.to_owned(),
        rule => format!("{family}:{rule}"),
    }
}

/// `prefix=KEY` of `ebla count`.
///
/// # Errors
/// When the text does not begin with `prefix=`, or the rest is not a key.
pub(super) fn parse_prefix(text: &str) -> Result<RowKey, String> {
    let key = text.strip_prefix("prefix=").ok_or("the only argument after the table is prefix=KEY")?;
    encoding::parse_key(key)
}

#[cfg(test)]
mod tests;
