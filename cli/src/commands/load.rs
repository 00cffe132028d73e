//! `ebla load webtable`: a real data set through the public write path, with a progress bar.

use std::io::IsTerminal as _;
use std::time::Duration;

use bytes::Bytes;
use ebla_client::Client;
use ebla_model::capacity::readable_bytes;
use ebla_model::gc::GcRule;
use ebla_model::key::RowKey;
use ebla_model::mutation::{Mutation, WriteTime};
use ebla_model::schema::TableName;
use ebla_model::time::Micros;
use ebla_runtime::Runtime;
use futures::{StreamExt as _, TryStreamExt as _};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::json;

use super::ClusterArguments;
use crate::output::{self, Failure, Format};
use ebla_workload::webtable::{self, Column, FAMILIES, Pages};

/// Rows of one request.
const BATCH_ROWS: usize = 200;
/// Concurrent requests.
const BATCHES_AT_ONCE: usize = 8;
/// Tablets that a new table starts with.
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
    /// Every cell has a fixed timestamp, so an interrupted load can be completed by running the command again.
    #[command(verbatim_doc_comment)]
    Webtable {
        /// Which cluster
        #[command(flatten)]
        cluster: ClusterArguments,
        /// Name of the table, created when it does not exist
        #[arg(long, default_value = "webtable")]
        table: String,
    },
}

/// Result of a load.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// Rows in the table.
    pub rows: usize,
    /// Cells written.
    pub cells: usize,
    /// Bytes of values and qualifiers written.
    pub bytes: usize,
    /// Source of the data.
    pub origin: String,
    /// Duration of the writes.
    pub took: Duration,
}

/// Carries out the command.
///
/// # Errors
/// What the cluster answers.
pub async fn run(command: Load, runtime: Runtime) -> Result<(), Failure> {
    let Load::Webtable { cluster, table } = command;
    let client = cluster.client(&runtime).await?;
    let loaded = webtable(&client, &cluster.table(&table)?, Webtable::find(), &runtime).await?;
    match cluster.output {
        Format::Json => output::print_json(&json!({
            "rows": loaded.rows, "cells": loaded.cells, "bytes": loaded.bytes, "origin": loaded.origin,
            "seconds": loaded.took.as_secs_f64(),
        })),
        Format::Table => output::print(&describe(&loaded)),
    }
    Ok(())
}

/// The result in one sentence.
pub fn describe(loaded: &Loaded) -> String {
    format!(
        "loaded {} rows, {} cells, {} from {} in {:.1} s\n",
        loaded.rows,
        loaded.cells,
        readable_bytes(loaded.bytes as u64),
        loaded.origin,
        loaded.took.as_secs_f64(),
    )
}

/// The data set in memory.
pub struct Webtable {
    pages: Pages,
    origin: String,
}

impl Webtable {
    /// Reads the pages of this machine's package index.
    pub fn find() -> Self {
        let source = webtable::source::find();
        Self { pages: webtable::pages(&webtable::index::parse(&source.text)), origin: source.origin }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.pages.len()
    }
}

/// Creates the table if it is missing and writes every page. Each cell has a fixed timestamp, so writing is idempotent and an
/// interrupted load can be completed by another one.
///
/// # Errors
/// An error from the cluster; the error of the first refused row.
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

/// Shown on a terminal only: progress bars are noise in a log file.
fn progress_bar(rows: u64) -> ProgressBar {
    let target =
        if std::io::stderr().is_terminal() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let bar = ProgressBar::with_draw_target(Some(rows), target);
    let style = ProgressStyle::with_template("  loading {bar:40} {pos}/{len} rows  {per_sec}  {eta} left");
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
