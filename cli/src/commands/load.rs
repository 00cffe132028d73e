//! `ebla load webtable`: a real data set through the public write path, with a progress bar.

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use ebla_client::Client;
use ebla_client::admin::{FamilyChange, NamedFamily};
use ebla_model::capacity::readable_bytes;
use ebla_model::error::Reason;
use ebla_model::gc::GcRule;
use ebla_model::key::RowKey;
use ebla_model::locality::{GroupSizes, LocalityGroupChange};
use ebla_model::mutation::{Mutation, WriteTime};
use ebla_model::schema::TableName;
use ebla_proto::operate;
use ebla_runtime::Runtime;
use futures::{StreamExt as _, TryStreamExt as _};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Value, json};

use super::{ClusterArguments, locality_group};
use crate::output::{self, Failure, Format};
use ebla_workload::webtable::{self, Column, FAMILIES, LOCALITY_GROUPS, Pages};

/// Rows of one request, and their bytes if there are several.
const BATCH_ROWS: usize = 200;
const BATCH_BYTES: usize = 1 << 20;
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
    /// Load pages with several versions of their contents, and the home pages in this machine's Debian package index
    ///
    /// The families are in three locality groups; the last lines say what each costs in files.
    ///
    /// Examples:
    ///   ebla load webtable
    ///   ebla load webtable --pages ~/.cache/ebla/pages --table pages
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
        /// What the pages contain
        #[command(flatten)]
        contents: Contents,
    },
}

/// Where the contents of pages come from.
#[derive(Clone, Debug, clap::Args)]
pub struct Contents {
    /// Folder of pages, FOLDER/CRAWL/HOST/PATH.html: one folder for each crawl of the Web, in the order of their names; without it the
    /// contents are generated
    #[arg(long, value_name = "FOLDER")]
    pub pages: Option<PathBuf>,
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
    /// Pages with contents, and the versions of all of them.
    pub contents: (usize, usize),
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
    let Load::Webtable { cluster, table, contents } = command;
    let (client, name) = (cluster.client(&runtime).await?, cluster.table(&table)?);
    let loaded = webtable(&client, &name, Webtable::find(&contents)?, &runtime).await?;
    let groups = groups(&client, &name).await?;
    match cluster.output {
        Format::Json => output::print_json(&to_json(&loaded, &groups)),
        Format::Table => output::print(&format!("{}\n{}", describe(&loaded), locality_group::to_text(&groups))),
    }
    Ok(())
}

/// The result, with the locality groups of the table.
pub(super) fn to_json(loaded: &Loaded, groups: &[operate::LocalityGroup]) -> Value {
    let (pages, versions) = loaded.contents;
    json!({
        "rows": loaded.rows,
        "cells": loaded.cells,
        "bytes": loaded.bytes,
        "origin": loaded.origin,
        "pages": pages,
        "versions": versions,
        "seconds": loaded.took.as_secs_f64(),
        "locality_groups": locality_group::to_json(groups),
    })
}

/// The result in two sentences.
pub fn describe(loaded: &Loaded) -> String {
    let (pages, versions) = loaded.contents;
    format!(
        "loaded {} rows, {} cells, {} from {} in {:.1} s\n{pages} pages have contents, {versions} versions in total\n",
        loaded.rows,
        loaded.cells,
        readable_bytes(loaded.bytes as u64),
        loaded.origin,
        loaded.took.as_secs_f64(),
    )
}

/// The locality groups that have families, with their sizes after a flush; none if the server is no Ebla.
///
/// # Errors
/// What the cluster answers.
pub async fn groups(client: &Client, name: &TableName) -> Result<Vec<operate::LocalityGroup>, Failure> {
    let mut groups = match client.admin().describe_locality_groups(name, GroupSizes::Flushed).await {
        Err(error) if error.reason == Reason::Unimplemented => Vec::new(),
        groups => groups?,
    };
    groups.retain(|group| !group.families.is_empty());
    Ok(groups)
}

/// The data set in memory.
pub struct Webtable {
    pages: Pages,
    origin: String,
}

impl Webtable {
    /// Reads the pages of a folder, or generates them, and reads this machine's package index.
    ///
    /// # Errors
    /// When the folder cannot be read, or has no pages.
    pub fn find(contents: &Contents) -> Result<Self, Failure> {
        let source = webtable::source::find();
        let packages = webtable::index::parse(&source.text);
        let mut pages = webtable::pages(&packages);
        let (crawled, origin) = match &contents.pages {
            Some(folder) => (crawled(folder)?, folder.display().to_string()),
            None => (webtable::generate::crawl(&packages), "generated pages".to_owned()),
        };
        webtable::crawl::add(&mut pages, &crawled);
        Ok(Self { pages, origin: format!("{origin} and {}", source.origin) })
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.pages.len()
    }

    /// The page with contents that most others link to.
    pub fn most_linked_page(&self) -> Option<RowKey> {
        let links = |columns: &[Column]| columns.iter().filter(|column| column.family == "anchor").count();
        let with_contents = self.pages.iter().filter(|(_row, columns)| versions(columns) > 0);
        with_contents.max_by_key(|(_row, columns)| links(columns)).map(|(row, _columns)| row_key(row))
    }
}

fn crawled(folder: &Path) -> Result<webtable::crawl::CrawledPages, Failure> {
    let pages = webtable::source::crawled(folder)?;
    if pages.is_empty() {
        let form = "expected FOLDER/CRAWL/HOST/PATH.html";
        return Err(Failure::usage(format!("--pages {}: the folder has no pages: {form}", folder.display())));
    }
    Ok(pages)
}

/// Versions of the contents of a page.
fn versions(columns: &[Column]) -> usize {
    columns.iter().filter(|column| column.family == "contents").count()
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
    prepare(client, name, &pages).await?;
    let started = runtime.clock.monotonic();
    let bar = progress_bar(pages.len() as u64);
    let rows: Vec<(RowKey, Vec<Mutation>)> =
        pages.iter().map(|(key, columns)| (row_key(key), mutations(columns))).collect();
    let table = client.table(name);
    futures::stream::iter(batches(&rows))
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
        contents: (
            pages.values().filter(|columns| versions(columns) > 0).count(),
            pages.values().map(|columns| versions(columns)).sum(),
        ),
        origin,
        took: runtime.clock.monotonic().saturating_sub(started),
    })
}

/// The rows in requests of at most [`BATCH_ROWS`] rows, and of at most [`BATCH_BYTES`] unless one row has more.
fn batches(mut rows: &[(RowKey, Vec<Mutation>)]) -> Vec<&[(RowKey, Vec<Mutation>)]> {
    let mut batches = Vec::new();
    while !rows.is_empty() {
        let mut bytes = 0;
        let fits = |(_row, mutations): &&(RowKey, Vec<Mutation>)| {
            bytes += mutations.iter().map(value_bytes).sum::<usize>();
            bytes <= BATCH_BYTES
        };
        let count = rows.iter().take(BATCH_ROWS).take_while(fits).count().max(1);
        let (batch, rest) = rows.split_at(count);
        batches.push(batch);
        rows = rest;
    }
    batches
}

fn value_bytes(mutation: &Mutation) -> usize {
    match mutation {
        Mutation::SetCell { value, .. } => value.len(),
        _ => 0,
    }
}

/// Creates the table with its families and locality groups, or what an existing one lacks of them.
async fn prepare(client: &Client, name: &TableName, pages: &Pages) -> Result<(), Failure> {
    let admin = client.admin();
    let families: Vec<NamedFamily> =
        FAMILIES.iter().map(|(name, versions)| ((*name).to_owned(), Some(GcRule::MaxVersions(*versions)))).collect();
    let splits: Vec<_> = webtable::split_keys(pages, TABLETS).iter().map(|key| row_key(key)).collect();
    match admin.create_table(name, &families, &splits).await {
        Err(error) if error.reason == Reason::AlreadyExists => {
            let known = admin.families(name).await?;
            let missing = families.into_iter().filter(|(name, _gc)| !known.iter().any(|(known, _gc)| known == name));
            let missing: Vec<_> = missing.map(FamilyChange::Create).collect();
            if !missing.is_empty() {
                admin.modify_families(name, &missing).await?;
            }
        }
        created => created?,
    }
    match admin.change_locality_groups(name, &group_changes()).await {
        Err(error) if error.reason == Reason::Unimplemented => {}
        changed => drop(changed?),
    }
    Ok(())
}

fn group_changes() -> Vec<LocalityGroupChange> {
    let changes = LOCALITY_GROUPS.iter().flat_map(|(group, families, options)| {
        let set = LocalityGroupChange::Set { name: (*group).to_owned(), options: (*options).to_owned() };
        let moves = families
            .iter()
            .map(move |family| LocalityGroupChange::Move { family: (*family).to_owned(), group: (*group).to_owned() });
        std::iter::once(set).chain(moves)
    });
    changes.collect()
}

fn row_key(key: &str) -> RowKey {
    RowKey::copy_from_slice(key.as_bytes())
}

fn mutations(columns: &[Column]) -> Vec<Mutation> {
    let cell = |column: &Column| Mutation::SetCell {
        family: column.family.to_owned(),
        qualifier: Bytes::copy_from_slice(column.qualifier.as_bytes()),
        timestamp: WriteTime::At(column.timestamp),
        value: column.value.clone(),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_at_most_so_many_rows_and_bytes() {
        let cell = |bytes: usize| Mutation::SetCell {
            family: "contents".to_owned(),
            qualifier: Bytes::new(),
            timestamp: WriteTime::Server,
            value: vec![0; bytes].into(),
        };
        let rows = |sizes: &[usize]| -> Vec<(RowKey, Vec<Mutation>)> {
            sizes.iter().map(|bytes| (RowKey::copy_from_slice(b"row"), vec![cell(*bytes)])).collect()
        };
        let lengths = |sizes: &[usize]| batches(&rows(sizes)).iter().map(|batch| batch.len()).collect::<Vec<_>>();
        let half = BATCH_BYTES / 2;
        assert_eq!(lengths(&[half, half, half]), [2, 1]);
        assert_eq!(lengths(&[10, 3 * BATCH_BYTES, 10]), [1, 1, 1]);
        assert_eq!(lengths(&vec![1; BATCH_ROWS + 1]), [BATCH_ROWS, 1]);
        assert!(lengths(&[]).is_empty());
    }

    #[test]
    fn every_family_is_in_a_locality_group_with_valid_options() {
        let mut families: Vec<&str> =
            LOCALITY_GROUPS.iter().flat_map(|(_group, families, _options)| *families).copied().collect();
        let mut all: Vec<&str> = FAMILIES.iter().map(|(family, _versions)| *family).collect();
        families.sort_unstable();
        all.sort_unstable();
        assert_eq!(families, all);
        for (_group, _families, options) in LOCALITY_GROUPS {
            options.parse::<ebla_model::locality::LocalityGroupOptions>().unwrap();
        }
    }
}
