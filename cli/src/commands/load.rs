//! `ebla load webtable`: a real data set through the public write path, with a progress bar.

use std::io::IsTerminal as _;
use std::time::Duration;

use bytes::Bytes;
use ebla_client::Client;
use ebla_model::gc::GcRule;
use ebla_model::key::RowKey;
use ebla_model::mutation::{Mutation, WriteTime};
use ebla_model::schema::TableName;
use ebla_model::time::Micros;
use ebla_runtime::Runtime;
use futures::{StreamExt as _, TryStreamExt as _};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::json;

use super::Place;
use crate::output::{self, Failure, Format};
use crate::webtable::{self, Column, FAMILIES, Pages};

/// Rows of one request.
const BATCH_ROWS: usize = 200;
/// Requests under way at a time.
const BATCHES_AT_ONCE: usize = 8;
/// Tablets that the table is made with.
const TABLETS: usize = 4;

/// Load a data set
///
/// Example:
///   ebla load webtable
#[derive(Debug, clap::Subcommand)]
#[command(verbatim_doc_comment)]
pub enum Load {
    /// Load the home pages in this machine's Debian package index, linked by dependencies
    ///
    /// Examples:
    ///   ebla load webtable
    ///   ebla load webtable --table pages
    ///
    /// Every cell has a fixed timestamp, so that a load that was interrupted is finished by another one.
    #[command(verbatim_doc_comment)]
    Webtable {
        /// Which cluster
        #[command(flatten)]
        place: Place,
        /// Name of the table, created when it does not exist
        #[arg(long, default_value = "webtable")]
        table: String,
    },
}

/// What a load did.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// Rows in the table.
    pub rows: usize,
    /// Cells written.
    pub cells: usize,
    /// Bytes of values and qualifiers written.
    pub bytes: usize,
    /// Where the data came from.
    pub origin: String,
    /// How long the writing took.
    pub took: Duration,
}

/// Carries out the command.
///
/// # Errors
/// What the cluster answers.
pub async fn run(command: Load, runtime: Runtime) -> Result<(), Failure> {
    let Load::Webtable { place, table } = command;
    let client = place.client(&runtime).await?;
    let loaded = webtable(&client, &place.table(&table)?, Webtable::find(), &runtime).await?;
    match place.output {
        Format::Json => output::print_json(&json!({
            "rows": loaded.rows, "cells": loaded.cells, "bytes": loaded.bytes, "origin": loaded.origin,
            "seconds": loaded.took.as_secs_f64(),
        })),
        Format::Table => output::print(&describe(&loaded)),
    }
    Ok(())
}

/// What was loaded, in a sentence.
pub fn describe(loaded: &Loaded) -> String {
    format!(
        "loaded {} rows, {} cells, {} from {} in {:.1} s\n",
        loaded.rows,
        loaded.cells,
        output::size(loaded.bytes as u64),
        loaded.origin,
        loaded.took.as_secs_f64(),
    )
}

/// The data set before it is loaded.
pub struct Webtable {
    pages: Pages,
    origin: String,
}

impl Webtable {
    /// The pages of this machine's package index.
    pub fn find() -> Self {
        let source = webtable::source::find();
        Self { pages: webtable::pages(&webtable::index::parse(&source.text)), origin: source.origin }
    }

    /// How many rows it makes.
    pub fn rows(&self) -> usize {
        self.pages.len()
    }
}

/// Makes the table where it is absent and writes every page. Written again, it is the same table: each cell has a fixed
/// timestamp. So a load that was interrupted is finished by another one.
///
/// # Errors
/// What the cluster answers; the first refused row.
pub async fn webtable(
    client: &Client,
    name: &TableName,
    webtable: Webtable,
    runtime: &Runtime,
) -> Result<Loaded, Failure> {
    let Webtable { pages, origin } = webtable;
    create(client, name, &pages).await?;
    let started = runtime.clock.monotonic();
    let bar = progress_bar(pages.len() as u64);
    let rows: Vec<(RowKey, Vec<Mutation>)> =
        pages.iter().map(|(key, columns)| (row_key(key), mutations(columns))).collect();
    let table = client.table(name);
    futures::stream::iter(rows.chunks(BATCH_ROWS))
        .map(|batch| {
            let (table, bar) = (&table, &bar);
            async move {
                for result in table.mutate_rows(batch).await? {
                    result?;
                }
                bar.inc(batch.len() as u64);
                Ok::<_, Failure>(())
            }
        })
        .buffer_unordered(BATCHES_AT_ONCE)
        .try_collect::<()>()
        .await?;
    bar.finish_and_clear();
    let columns = || pages.values().flatten();
    Ok(Loaded {
        rows: pages.len(),
        cells: columns().count(),
        bytes: columns().map(|column| column.qualifier.len() + column.value.len()).sum(),
        origin,
        took: runtime.clock.monotonic().saturating_sub(started),
    })
}

async fn create(client: &Client, name: &TableName, pages: &Pages) -> Result<(), Failure> {
    let families: Vec<_> = FAMILIES.iter().map(|name| ((*name).to_owned(), Some(GcRule::MaxVersions(1)))).collect();
    let splits: Vec<_> = webtable::split_keys(pages, TABLETS).iter().map(|key| row_key(key)).collect();
    match client.admin().create_table(name, &families, &splits).await {
        Err(error) if error.reason == ebla_model::error::Reason::AlreadyExists => Ok(()),
        other => Ok(other?),
    }
}

fn row_key(key: &str) -> RowKey {
    RowKey::copy_from_slice(key.as_bytes())
}

fn mutations(columns: &[Column]) -> Vec<Mutation> {
    let cell = |column: &Column| Mutation::SetCell {
        family: column.family.to_owned(),
        qualifier: Bytes::copy_from_slice(column.qualifier.as_bytes()),
        timestamp: WriteTime::At(Micros::ZERO),
        value: Bytes::copy_from_slice(column.value.as_bytes()),
    };
    columns.iter().map(cell).collect()
}

/// On a terminal only: a log file wants no bars.
fn progress_bar(rows: u64) -> ProgressBar {
    let target =
        if std::io::stderr().is_terminal() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let bar = ProgressBar::with_draw_target(Some(rows), target);
    let style = ProgressStyle::with_template("  loading {bar:40} {pos}/{len} rows  {per_sec}  {eta} left");
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
