//! `ebla row`: get, set, delete, scan, count.

use bytes::Bytes;
use ebla_client::Direction;
use ebla_client::table::ReadOptions;
use ebla_model::Micros;
use ebla_model::cell::{Cell, Row as ModelRow};
use ebla_model::filter::Filter;
use ebla_model::key::{KeyRange, RowKey, RowSet};
use ebla_model::mutation::{Mutation, WriteTime};
use ebla_runtime::Runtime;
use futures::TryStreamExt as _;
use serde_json::{Value, json};

use super::{ClusterArguments, TableArguments, cbt};
use crate::output::{self, Failure, Format, Layout, Table};
use ebla_client::encoding;

/// Read and write rows
///
/// `ebla get`, `set`, `scan` and `count` are the same commands without `row`.
///
/// Examples:
///   ebla row set web com.cnn.www anchor:cnnsi.com=CNN
///   ebla row scan web --prefix com.
///
/// Keys, qualifiers and values are printable text; any other byte is written \xHH, and a backslash \\. Output is
/// escaped in the same way, so that it can be typed back. With -o json and -o ndjson the fields `key`, `qualifier` and `value`
/// are base64.
#[derive(Debug, clap::Subcommand)]
#[command(verbatim_doc_comment)]
#[expect(missing_docs, reason = "documentation of a variant would replace the help of its command")]
pub enum Row {
    Get(Get),
    Set(Set),
    Delete(Delete),
    Scan(Scan),
    Count(Count),
}

/// Show one row with all its cells
///
/// Examples:
///   ebla row get web com.cnn.www
///   ebla get web com.cnn.www --hex
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Get {
    /// Which row
    #[command(flatten)]
    pub of: RowArguments,
    /// Show values as hexadecimal digits
    #[arg(long)]
    pub hex: bool,
}

/// Write cells of one row, all or none
///
/// Examples:
///   ebla row set web com.cnn.www anchor:cnnsi.com=CNN
///   ebla row set web com.cnn.www 'contents:raw=\xff\x00'
///   ebla set web com.cnn.www --hex contents:raw=ff00
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Set {
    /// Which row
    #[command(flatten)]
    pub of: RowArguments,
    /// FAMILY:QUALIFIER=VALUE; bytes as \xHH, and `=` in a qualifier as \x3d
    #[arg(required = true, value_name = "CELL")]
    pub cells: Vec<String>,
    /// Values are hexadecimal digits
    #[arg(long)]
    pub hex: bool,
}

/// Delete a row, a family of it, or a column of it
///
/// Deleting a row that does not exist is not an error.
///
/// Examples:
///   ebla row delete web com.cnn.www
///   ebla row delete web com.cnn.www --column anchor:cnnsi.com
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Delete {
    /// Which row
    #[command(flatten)]
    pub of: RowArguments,
    /// Delete only the cells of this family
    #[arg(long, conflicts_with = "column")]
    pub family: Option<String>,
    /// Delete only the cells of this column: FAMILY:QUALIFIER; bytes as \xHH
    #[arg(long, value_parser = column)]
    pub column: Option<Column>,
}

/// Show rows in key order
///
/// Examples:
///   ebla row scan web --prefix com.
///   ebla scan web --start a --end m --limit 0
///   ebla scan web -o csv --limit 0 > web.csv
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Scan {
    /// Which table
    #[command(flatten)]
    pub of: TableArguments,
    /// Which rows
    #[command(flatten)]
    pub keys: Keys,
    /// Show at most this many rows; 0 shows all
    #[arg(long, default_value_t = 100)]
    pub limit: u64,
    /// Show rows in descending key order
    #[arg(long)]
    pub reversed: bool,
    /// Show values as hexadecimal digits
    #[arg(long)]
    pub hex: bool,
}

/// Count rows
///
/// Every row is read on its server; only its key is sent. Rows without cells do not exist and are not counted.
///
/// Examples:
///   ebla row count web
///   ebla count web --prefix com.
///   ebla count web prefix=com.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Count {
    /// Which table
    #[command(flatten)]
    pub of: TableArguments,
    /// Which rows
    #[command(flatten)]
    pub keys: Keys,
    /// As `--prefix KEY`, in the syntax of cbt
    #[arg(value_name = "prefix=KEY", value_parser = cbt::parse_prefix, conflicts_with = "prefix")]
    pub prefix_argument: Option<RowKey>,
}

/// A row of a table.
#[derive(Debug, clap::Args)]
pub struct RowArguments {
    /// Which cluster
    #[command(flatten)]
    pub cluster: ClusterArguments,
    /// Name of the table
    pub table: String,
    /// Key of the row; bytes as \xHH
    #[arg(value_parser = encoding::parse_key)]
    pub row: RowKey,
}

/// A range of rows.
#[derive(Clone, Debug, clap::Args)]
pub struct Keys {
    /// Only keys that start with this; bytes as \xHH
    #[arg(long, value_name = "KEY", value_parser = encoding::parse_key, allow_hyphen_values = true)]
    pub prefix: Option<RowKey>,
    /// Only this key and those after it
    #[arg(long, value_name = "KEY", value_parser = encoding::parse_key, allow_hyphen_values = true)]
    pub start: Option<RowKey>,
    /// Only keys before this one
    #[arg(long, value_name = "KEY", value_parser = encoding::parse_key, allow_hyphen_values = true)]
    pub end: Option<RowKey>,
}

impl Keys {
    fn rows(self) -> Result<RowSet, Failure> {
        row_set(self.prefix.as_ref(), self.start, self.end)
    }
}

/// A column of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// Name of its family.
    pub family: String,
    /// The qualifier in the family.
    pub qualifier: Bytes,
}

/// Representation of values on the command line and in the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Values {
    /// Printable text; any other byte is `\xHH`.
    Escaped,
    /// Hexadecimal digits.
    Hex,
}

impl Values {
    fn of(hex: bool) -> Self {
        if hex { Self::Hex } else { Self::Escaped }
    }

    fn show(self, value: &[u8]) -> String {
        match self {
            Self::Escaped => encoding::escape(value),
            Self::Hex => encoding::to_hex(value),
        }
    }

    fn parse(self, text: &str) -> Result<Bytes, String> {
        match self {
            Self::Escaped => encoding::unescape(text),
            Self::Hex => encoding::parse_hex(text),
        }
    }
}

/// Carries out the command.
///
/// # Errors
/// An error from the cluster; 3 when the row does not exist.
pub async fn run(command: Row, runtime: Runtime) -> Result<(), Failure> {
    match command {
        Row::Get(Get { of, hex }) => show_row(&of, None, Values::of(hex), &runtime).await,
        Row::Set(Set { of, cells, hex }) => set(&of, &cells, Values::of(hex), &runtime).await,
        Row::Delete(delete) => self::delete(delete, runtime).await,
        Row::Scan(Scan { of, keys, limit, reversed, hex }) => {
            let direction = if reversed { Direction::Descending } else { Direction::Ascending };
            let query = Query { keys, limit, direction, filter: None, syntax: Syntax::Options };
            scan(&of, query, Values::of(hex), &runtime).await
        }
        Row::Count(count) => self::count(count, runtime).await,
    }
}

/// Shows one row, or what passes the filter of it.
///
/// # Errors
/// 3 when nothing of the row passes; errors of the cluster.
pub(super) async fn show_row(
    of: &RowArguments,
    filter: Option<Filter>,
    values: Values,
    runtime: &Runtime,
) -> Result<(), Failure> {
    let RowArguments { cluster, table, row } = of;
    let view = View::new(cluster, values)?;
    let what = if filter.is_some() { "no such cells in row" } else { "no row" };
    let found = cluster.client(runtime).await?.table(&cluster.table(table)?).read_row(row, filter).await?;
    let absent = || Failure { message: format!("table {table} has {what} {}", shown(row)), code: 3 };
    let row = found.ok_or_else(absent)?;
    match view {
        View::Json => output::print_json(&json!([row_json(&row)])),
        View::Lines => output::print_json(&row_json(&row)),
        View::Cells(values) => {
            output::print(&heading().render());
            output::print(&cells(&row, values).render());
        }
        View::Text(values) => output::print(&row_text(&row, values)),
    }
    Ok(())
}

async fn delete(Delete { of, family, column }: Delete, runtime: Runtime) -> Result<(), Failure> {
    let RowArguments { cluster, table, row } = of;
    let (what, mutation) = deletion(family, column);
    let name = cluster.table(&table)?;
    cluster.client(&runtime).await?.table(&name).mutate_row(&row, &[mutation]).await?;
    match cluster.output {
        Format::Json => output::print_json(&delete_json(&row, &what)),
        Format::Table => output::note(&format!("deleted {what} {} of {table}", shown(&row))),
    }
    Ok(())
}

async fn count(Count { of, keys, prefix_argument }: Count, runtime: Runtime) -> Result<(), Failure> {
    let name = of.name()?;
    let keys = Keys { prefix: keys.prefix.or(prefix_argument), ..keys };
    let filter = Filter::Chain(vec![Filter::CellsPerRowLimit(1), Filter::StripValue]);
    let options = ReadOptions { filter: Some(filter), ..ReadOptions::default() };
    let mut found = of.cluster.client(&runtime).await?.table(&name).stream_rows(keys.rows()?, options);
    let mut rows = 0_u64;
    while found.try_next().await?.is_some() {
        rows = rows.saturating_add(1);
    }
    match of.cluster.output {
        Format::Json => output::print_json(&count_json(rows)),
        Format::Table => output::print(&format!("{rows}\n")),
    }
    Ok(())
}

/// The mutations of `set`. `app-profile=NAME` of cbt is no cell, which has a colon before its equals sign; it has no effect.
fn mutations(cells: &[String], values: Values) -> Result<Vec<Mutation>, Failure> {
    let cells: Vec<&String> = cells.iter().filter(|text| !text.starts_with("app-profile=")).collect();
    if cells.is_empty() {
        return Err(Failure::usage("no cell is given: write FAMILY:QUALIFIER=VALUE"));
    }
    cells.into_iter().map(|text| parse_cell(text, values)).collect()
}

async fn set(of: &RowArguments, cells: &[String], values: Values, runtime: &Runtime) -> Result<(), Failure> {
    let RowArguments { cluster, table, row } = of;
    let name = cluster.table(table)?;
    let mutations = mutations(cells, values)?;
    cluster.client(runtime).await?.table(&name).mutate_row(row, &mutations).await?;
    if cluster.output == Format::Json {
        output::print_json(&set_json(row, mutations.len()));
    }
    Ok(())
}

/// The rows that a scan shows.
pub(super) struct Query {
    /// Which keys.
    pub(super) keys: Keys,
    /// At most this many rows; 0: all.
    pub(super) limit: u64,
    /// The order of the rows.
    pub(super) direction: Direction,
    /// What is shown of them; `None`: all.
    pub(super) filter: Option<Filter>,
    /// How the note about further rows is written.
    pub(super) syntax: Syntax,
}

/// How arguments are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Syntax {
    /// `--start KEY`
    Options,
    /// `start=KEY`, as in cbt.
    Arguments,
}

/// Shows rows as they arrive, and notes when there are more than the limit.
///
/// # Errors
/// Usage, for an empty range; errors of the cluster.
pub(super) async fn scan(of: &TableArguments, query: Query, values: Values, runtime: &Runtime) -> Result<(), Failure> {
    let view = View::new(&of.cluster, values)?;
    let name = of.name()?;
    let Query { keys, limit, direction, filter, syntax } = query;
    // One row beyond the limit is requested, to know whether there are more.
    let asked = if limit == 0 { 0 } else { limit.saturating_add(1) };
    let options = ReadOptions { limit: asked, direction, filter };
    let mut found = of.cluster.client(runtime).await?.table(&name).stream_rows(keys.rows()?, options);
    let (mut count, mut documents) = (0_u64, Vec::new());
    let mut last = RowKey::EMPTY;
    let mut next = None;
    if let View::Cells(_) = view {
        output::print(&heading().render());
    }
    while let Some(row) = found.try_next().await? {
        if limit > 0 && count == limit {
            next = Some(row.key);
            break;
        }
        match view {
            View::Json => documents.push(row_json(&row)),
            View::Lines => output::print_json(&row_json(&row)),
            View::Cells(values) => output::print(&cells(&row, values).render()),
            View::Text(values) => output::print(&row_text(&row, values)),
        }
        if output::is_closed() {
            return Ok(());
        }
        count = count.saturating_add(1);
        last = row.key;
    }
    match view {
        View::Json => output::print_json(&Value::Array(documents)),
        _ if count == 0 => output::note("no rows"),
        _ => {}
    }
    if let Some(next) = next {
        output::note(&more(count, direction, syntax, &last, &next));
    }
    Ok(())
}

/// The note when a scan ends at its limit: how to see the rest.
fn more(count: u64, direction: Direction, syntax: Syntax, last: &RowKey, next: &RowKey) -> String {
    // Bounds are those of ascending ranges: the start is inclusive, the end exclusive.
    let (bound, key) = match direction {
        Direction::Ascending => ("start", next),
        Direction::Descending => ("end", last),
    };
    let key = shown(key);
    let (bound, all) = match syntax {
        Syntax::Options => (format!("--{bound} {key}"), "with --limit 0"),
        Syntax::Arguments => (format!("{bound}={key}"), "without count="),
    };
    format!("there are more rows than these {count}: continue with {bound}, or show all {all}")
}

/// A key in a message, quoted for a shell.
fn shown(key: &RowKey) -> String {
    encoding::shell_quote(&encoding::escape(key.as_bytes()))
}

/// Output representation of rows.
#[derive(Clone, Copy, Debug)]
enum View {
    /// One document with all rows.
    Json,
    /// A document for each row, on a line of its own.
    Lines,
    /// A line for each cell.
    Cells(Values),
    /// For people.
    Text(Values),
}

impl View {
    fn new(cluster: &ClusterArguments, values: Values) -> Result<Self, Failure> {
        match (cluster.output, output::layout()) {
            (Format::Json, _) if values == Values::Hex => Err(Failure::usage(
                "--hex applies to table output only, because JSON has values as base64; remove --hex or -o json",
            )),
            (Format::Json, Layout::Ndjson) => Ok(Self::Lines),
            (Format::Json, _) => Ok(Self::Json),
            (Format::Table, Layout::Csv | Layout::Raw) => Ok(Self::Cells(values)),
            (Format::Table, _) => Ok(Self::Text(values)),
        }
    }
}

fn parse_cell(text: &str, values: Values) -> Result<Mutation, Failure> {
    let wrong = |why: &str| Failure::usage(format!("`{text}` is not a cell: {why}"));
    let shape = "write FAMILY:QUALIFIER=VALUE";
    let (left, value) = text.split_once('=').ok_or_else(|| wrong(shape))?;
    let Column { family, qualifier } = column(left).map_err(|why| wrong(&why))?;
    let value = values.parse(value).map_err(|why| wrong(&why))?;
    Ok(Mutation::SetCell { family, qualifier, timestamp: WriteTime::Server, value })
}

fn column(text: &str) -> Result<Column, String> {
    let (family, qualifier) = text.split_once(':').ok_or("a column is FAMILY:QUALIFIER")?;
    Ok(Column { family: family.to_owned(), qualifier: encoding::unescape(qualifier)? })
}

/// A description of what is deleted, and the mutation that deletes it.
fn deletion(family: Option<String>, column: Option<Column>) -> (String, Mutation) {
    match (family, column) {
        (_, Some(Column { family, qualifier })) => {
            let what = format!("column {} of row", encoding::escape_column(&family, &qualifier));
            (what, Mutation::DeleteColumn { family, qualifier, start: Micros::ZERO, end: None })
        }
        (Some(family), None) => (format!("family {family} of row"), Mutation::DeleteFamily { family }),
        (None, None) => ("row".to_owned(), Mutation::DeleteRow),
    }
}

/// A deletion: what was deleted, as a text.
pub(super) fn delete_json(row: &RowKey, what: &str) -> Value {
    json!({ "key": encoding::to_base64(row.as_bytes()), "deleted": what })
}

/// The number of rows.
pub(super) fn count_json(rows: u64) -> Value {
    json!({ "rows": rows })
}

/// A write of that many cells.
pub(super) fn set_json(row: &RowKey, cells: usize) -> Value {
    json!({ "key": encoding::to_base64(row.as_bytes()), "cells": cells })
}

fn row_set(prefix: Option<&RowKey>, start: Option<RowKey>, end: Option<RowKey>) -> Result<RowSet, Failure> {
    let range = KeyRange::new(start.unwrap_or(RowKey::EMPTY), end)
        .ok_or_else(|| Failure::usage("--start must be less than --end"))?;
    let range = match prefix {
        Some(prefix) => range
            .intersect(&KeyRange::prefix(prefix.as_bytes()))
            .ok_or_else(|| Failure::usage("no key with this --prefix is between --start and --end"))?,
        None => range,
    };
    Ok(RowSet::from_ranges([range]))
}

fn row_text(row: &ModelRow, values: Values) -> String {
    let mut text = format!("{}\n", encoding::escape(row.key.as_bytes()));
    for cell in &row.cells {
        let column = encoding::escape_column(cell.family.as_str(), &cell.qualifier);
        let value = values.show(&cell.value);
        text.push_str(&format!("  {column:<40} {}  {value}\n", output::time(cell.timestamp)));
    }
    text
}

/// The heading of [`cells`].
fn heading() -> Table {
    Table::new(&["KEY", "FAMILY", "QUALIFIER", "TIMESTAMP_MICROS", "VALUE"])
}

/// A line for each cell, without a heading.
fn cells(row: &ModelRow, values: Values) -> Table {
    let mut table = Table::default();
    for cell in &row.cells {
        table.row(vec![
            encoding::escape(row.key.as_bytes()),
            cell.family.as_str().to_owned(),
            encoding::escape(&cell.qualifier),
            cell.timestamp.get().to_string(),
            values.show(&cell.value),
        ]);
    }
    table
}

pub(super) fn row_json(row: &ModelRow) -> Value {
    let cell = |cell: &Cell| {
        json!({
            "family": cell.family.as_str(),
            "qualifier": encoding::to_base64(&cell.qualifier),
            "timestamp_micros": cell.timestamp.get(),
            "value": encoding::to_base64(&cell.value),
        })
    };
    json!({ "key": encoding::to_base64(row.key.as_bytes()), "cells": row.cells.iter().map(cell).collect::<Vec<_>>() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> RowKey {
        encoding::parse_key(text).unwrap()
    }

    #[test]
    fn set_accepts_the_app_profile_of_cbt() {
        let of = |texts: &[&str]| {
            let cells: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
            mutations(&cells, Values::Escaped).map(|mutations| mutations.len())
        };
        assert_eq!(of(&["app-profile=default", "anchor:cnnsi.com=CNN"]).unwrap(), 1);
        assert_eq!(of(&["app-profile:x=1"]).unwrap(), 1, "a family of that name");
        assert_eq!(of(&["app-profile=default"]).unwrap_err().code, 2);
    }

    #[test]
    fn cells_are_family_qualifier_value() {
        let cell = |text: &str, values| match parse_cell(text, values).unwrap() {
            Mutation::SetCell { family, qualifier, value, .. } => (family, qualifier.to_vec(), value.to_vec()),
            other => panic!("{other:?}"),
        };
        let of = |family: &str, qualifier: &[u8], value: &[u8]| (family.to_owned(), qualifier.to_vec(), value.to_vec());
        assert_eq!(cell("anchor:a:b=c=d", Values::Escaped), of("anchor", b"a:b", b"c=d"));
        assert_eq!(cell(r"f:a\x3db=\xff\\x", Values::Escaped), of("f", b"a=b", b"\xff\\x"));
        assert_eq!(cell("f:q=", Values::Escaped), of("f", b"q", b""));
        assert_eq!(cell("f:q=ff00", Values::Hex), of("f", b"q", b"\xff\x00"));
        for (wrong, says) in [("anchor=x", "FAMILY:QUALIFIER"), ("anchor:x", "=VALUE"), (r"f:q=\q", "backslash")] {
            let failure = parse_cell(wrong, Values::Escaped).unwrap_err();
            assert!(failure.code == 2 && failure.message.contains(says), "{failure:?}");
        }
        assert!(parse_cell("f:q=xyz", Values::Hex).unwrap_err().message.contains("hexadecimal"));
    }

    #[test]
    fn ranges_must_not_be_empty() {
        assert!(row_set(None, Some(key("b")), Some(key("a"))).is_err());
        assert!(row_set(Some(&key("com.")), None, None).unwrap().contains(b"com.cnn"));
        let rest = row_set(Some(&key("com.")), Some(key("com.d")), None).unwrap();
        assert!(rest.contains(b"com.d") && !rest.contains(b"com.cnn") && !rest.contains(b"d"));
        assert!(row_set(Some(&key("com.")), Some(key("d")), None).is_err());
    }

    #[test]
    fn a_limited_scan_says_how_to_continue() {
        let (last, next) = (key("a"), key(r"b c\xff"));
        let up = more(2, Direction::Ascending, Syntax::Options, &last, &next);
        assert_eq!(
            up,
            r"there are more rows than these 2: continue with --start 'b c\xff', or show all with --limit 0"
        );
        assert!(more(2, Direction::Descending, Syntax::Options, &last, &next).contains("--end a,"));
        let as_cbt = more(2, Direction::Ascending, Syntax::Arguments, &last, &next);
        assert!(as_cbt.ends_with(r"continue with start='b c\xff', or show all without count="), "{as_cbt}");
    }

    #[test]
    fn a_deletion_covers_the_named_part() {
        assert_eq!(deletion(None, None).1, Mutation::DeleteRow);
        let (what, family) = deletion(Some("f".to_owned()), None);
        assert_eq!((what.as_str(), family), ("family f of row", Mutation::DeleteFamily { family: "f".to_owned() }));
        let (what, _) = deletion(None, Some(column("f:a=b").unwrap()));
        assert_eq!(what, "column f:a\\x3db of row");
    }
}
