//! `ebla row`: get, set, scan.

use ebla_client::Direction;
use ebla_client::table::ReadOptions;
use ebla_model::cell::Row as ModelRow;
use ebla_model::key::{KeyRange, RowKey, RowSet};
use ebla_model::mutation::{Mutation, WriteTime};
use ebla_runtime::Runtime;
use serde_json::{Value, json};

use super::Place;
use crate::output::{self, Failure, Format};

/// Rows.
#[derive(Debug, clap::Subcommand)]
pub enum Row {
    /// One row with all its cells
    Get {
        /// Which cluster
        #[command(flatten)]
        place: Place,
        /// The table's name
        table: String,
        /// The row's key; bytes as \xHH
        row: String,
    },
    /// Write cells of one row, all or none
    ///
    /// Example:
    ///   ebla row set web com.cnn.www anchor:cnnsi.com=CNN
    #[command(verbatim_doc_comment)]
    Set {
        /// Which cluster
        #[command(flatten)]
        place: Place,
        /// The table's name
        table: String,
        /// The row's key; bytes as \xHH
        row: String,
        /// FAMILY:QUALIFIER=VALUE
        #[arg(required = true, value_name = "CELL")]
        cells: Vec<String>,
    },
    /// Rows in key order
    Scan {
        /// Which cluster
        #[command(flatten)]
        place: Place,
        /// The table's name
        table: String,
        /// Only keys that start with this
        #[arg(long, conflicts_with_all = ["start", "end"])]
        prefix: Option<String>,
        /// From this key on
        #[arg(long)]
        start: Option<String>,
        /// Up to this key, exclusive
        #[arg(long)]
        end: Option<String>,
        /// At most so many rows; 0: all
        #[arg(long, default_value_t = 100)]
        limit: u64,
        /// From the last row to the first
        #[arg(long)]
        reversed: bool,
    },
}

/// Carries out the command.
///
/// # Errors
/// What the cluster answers; 3 when the row is not there.
pub async fn run(command: Row, runtime: Runtime) -> Result<(), Failure> {
    match command {
        Row::Get { place, table, row } => get(place, &table, &row, runtime).await,
        Row::Set { place, table, row, cells } => set(place, &table, &row, &cells, runtime).await,
        Row::Scan { place, table, prefix, start, end, limit, reversed } => {
            let rows = row_set(prefix.as_deref(), start.as_deref(), end.as_deref())?;
            let table_name = place.table(&table)?;
            let client = place.client(&runtime).await?;
            let direction = if reversed { Direction::Descending } else { Direction::Ascending };
            let options = ReadOptions { limit, direction, filter: None };
            let rows = client.table(&table_name).read_rows(rows, options).await?;
            show(&place, &rows);
            Ok(())
        }
    }
}

async fn get(place: Place, table: &str, row: &str, runtime: Runtime) -> Result<(), Failure> {
    let name = place.table(table)?;
    let key = RowKey::parse_escaped(row)?;
    let client = place.client(&runtime).await?;
    match client.table(&name).read_row(&key, None).await? {
        Some(found) => show(&place, &[found]),
        None => return Err(Failure { message: format!("{table} has no row {key}"), code: 3 }),
    }
    Ok(())
}

async fn set(place: Place, table: &str, row: &str, cells: &[String], runtime: Runtime) -> Result<(), Failure> {
    let name = place.table(table)?;
    let key = RowKey::parse_escaped(row)?;
    let mutations = cells.iter().map(|text| parse_cell(text)).collect::<Result<Vec<_>, _>>()?;
    place.client(&runtime).await?.table(&name).mutate_row(&key, &mutations).await?;
    Ok(())
}

fn parse_cell(text: &str) -> Result<Mutation, Failure> {
    let wrong = || Failure::usage(format!("`{text}` is no cell: write FAMILY:QUALIFIER=VALUE"));
    let (column, value) = text.split_once('=').ok_or_else(wrong)?;
    let (family, qualifier) = column.split_once(':').ok_or_else(wrong)?;
    Ok(Mutation::SetCell {
        family: family.to_owned(),
        qualifier: RowKey::parse_escaped(qualifier)?.bytes().clone(),
        timestamp: WriteTime::Server,
        value: bytes::Bytes::copy_from_slice(value.as_bytes()),
    })
}

fn row_set(prefix: Option<&str>, start: Option<&str>, end: Option<&str>) -> Result<RowSet, Failure> {
    let range = match prefix {
        Some(prefix) => KeyRange::prefix(RowKey::parse_escaped(prefix)?.as_bytes()),
        None => {
            let start = start.map_or(Ok(RowKey::EMPTY), RowKey::parse_escaped)?;
            let end = end.map(RowKey::parse_escaped).transpose()?;
            KeyRange::new(start, end).ok_or_else(|| Failure::usage("--start must lie before --end"))?
        }
    };
    Ok(RowSet::from_ranges([range]))
}

/// Rows as a person reads them, or as JSON.
pub fn show(place: &Place, rows: &[ModelRow]) {
    if place.output == Format::Json {
        return output::print_json(&json!(rows.iter().map(row_json).collect::<Vec<_>>()));
    }
    for row in rows {
        output::print(&format!("{}\n", row.key));
        for cell in &row.cells {
            let column = format!("{}:{}", cell.family.as_str(), output::escaped(&cell.qualifier));
            output::print(&format!("  {column:<40} {}  {}\n", cell.timestamp.get(), output::readable(&cell.value)));
        }
    }
}

fn row_json(row: &ModelRow) -> Value {
    let cell = |cell: &ebla_model::cell::Cell| {
        json!({
            "family": cell.family.as_str(),
            "qualifier": output::escaped(&cell.qualifier),
            "timestamp_micros": cell.timestamp.get(),
            "value": output::escaped(&cell.value),
        })
    };
    json!({ "key": row.key.to_string(), "cells": row.cells.iter().map(cell).collect::<Vec<_>>() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_family_qualifier_value() {
        let Mutation::SetCell { family, qualifier, value, .. } = parse_cell("anchor:a:b=c=d").unwrap() else {
            panic!("a cell")
        };
        assert_eq!((family.as_str(), &qualifier[..], &value[..]), ("anchor", &b"a:b"[..], &b"c=d"[..]));
        assert!(parse_cell("anchor=x").is_err() && parse_cell("anchor:x").is_err());
    }

    #[test]
    fn ranges_must_not_be_empty() {
        assert!(row_set(None, Some("b"), Some("a")).is_err());
        assert!(row_set(Some("com."), None, None).unwrap().contains(b"com.cnn"));
    }
}
