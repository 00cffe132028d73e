//! A table of many groups, most of which get no request from the beginning of the load to the end of all faults.
//!
//! Meanwhile servers crash, are suspended and are cut off, so every group changes its leader again and again, and each change is written to
//! METADATA. There is no special state of a group without requests: its leader sends the same heartbeats as that of any other group.
//!
//! ```text
//!   create   a table with a tablet for each group, and its rows; the groups of all tables are divided until there are enough
//!   load     the other clients use a table of a few tablets, and moves bring these to some of the groups
//!   prove    every row is read through every server, METADATA lists each tablet once, and every tablet accepts a write
//! ```
//!
//! At the end the replicas of these tablets are compared too (`replicas`).

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use ebla_client::{Client, ReadOptions, Table};
use ebla_model::id::GroupId;
use ebla_model::key::{RowKey, RowSet};
use ebla_model::mutation::{Mutation, WriteTime};
use ebla_model::schema::TableName;
use ebla_runtime::Runtime;

use crate::cluster::SimCluster;
use crate::load::{any_address, any_admin, create_table, key, name, outcome_name, wait_for_rows};
use crate::time;

/// Rows of each tablet that are written before the groups are divided: the new groups have them in their first stores.
const BEFORE_DIVISIONS: Range<u64> = 0..2;
/// Rows of each tablet that are written afterwards: they are in the logs of the new groups.
const AFTER_DIVISIONS: Range<u64> = 2..4;
/// Rows of each tablet that are written after all faults.
const AFTER_FAULTS: Range<u64> = 4..5;
/// Timeout of a call.
const CALL: Duration = Duration::from_secs(10);
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(100);
/// Timeout of the final reads and writes.
const PROVED: Duration = Duration::from_secs(60);
/// Divisions that are requested at once.
const AT_ONCE: usize = 8;
/// Rows that a report of differences lists at most.
const REPORTED_MAX: usize = 8;

/// Creates the table and its rows, and divides groups until tables have this number of them.
pub(crate) async fn create(cluster: &SimCluster, runtime: &Runtime, groups: usize) {
    let splits: Vec<RowKey> = (1..groups).map(|tablet| key(&tablet_start(tablet))).collect();
    create_table(cluster, runtime, &table_name(), &splits).await;
    write(cluster, runtime, groups, BEFORE_DIVISIONS).await;
    divide(cluster, runtime, groups).await;
    write(cluster, runtime, groups, AFTER_DIVISIONS).await;
}

/// What is wrong with the table after all faults.
pub(crate) async fn prove(cluster: &SimCluster, runtime: &Runtime, groups: usize) -> Vec<String> {
    let proved = async {
        let mut wrong = Vec::new();
        let written = rows(groups, BEFORE_DIVISIONS.start..AFTER_DIVISIONS.end);
        for server in &cluster.servers {
            let seen = read(&Client::endpoint(&server.address(), runtime.clone()).table(&table_name())).await;
            wrong.extend(difference(&server.name, &written, &seen));
        }
        write(cluster, runtime, groups, AFTER_FAULTS).await;
        let seen = read(&any_table(cluster, runtime)).await;
        wrong.extend(difference("a server", &rows(groups, BEFORE_DIVISIONS.start..AFTER_FAULTS.end), &seen));
        wrong
    };
    let Ok(mut wrong) = tokio::time::timeout(PROVED, proved).await else {
        return vec![format!("not live: some groups without requests still fail after {PROVED:?}")];
    };
    wrong.extend(wait_for_rows(cluster, runtime, &table_name()).await);
    wrong
}

pub(crate) fn table_name() -> TableName {
    TableName::from_parts("sim", "sim", "quiet").unwrap()
}

fn any_table(cluster: &SimCluster, runtime: &Runtime) -> Table {
    Client::endpoint(&any_address(cluster, &runtime.rng), runtime.clone()).table(&table_name())
}

/// The first row key of a tablet, and the prefix of its rows.
fn tablet_start(tablet: usize) -> String {
    format!("{tablet:04}/")
}

/// A row that a tablet has from the beginning.
pub(crate) fn first_row(tablet: usize) -> String {
    format!("{}{}", tablet_start(tablet), BEFORE_DIVISIONS.start)
}

/// Writes the value of this row.
pub(crate) fn value_of(row: &str) -> Mutation {
    Mutation::SetCell {
        family: "v".to_owned(),
        qualifier: Bytes::from_static(b"q"),
        timestamp: WriteTime::Server,
        value: Bytes::copy_from_slice(row.as_bytes()),
    }
}

/// These rows of all tablets; the value of each is its name.
fn rows(groups: usize, numbers: Range<u64>) -> BTreeSet<String> {
    let of_tablet = |tablet| numbers.clone().map(move |number| format!("{}{number}", tablet_start(tablet)));
    (0..groups).flat_map(of_tablet).collect()
}

/// Writes these rows of all tablets; repeats it until all are acknowledged.
async fn write(cluster: &SimCluster, runtime: &Runtime, groups: usize, numbers: Range<u64>) {
    let entry = |row: String| (key(&row), vec![value_of(&row)]);
    let entries: Vec<_> = rows(groups, numbers).into_iter().map(entry).collect();
    loop {
        match any_table(cluster, runtime).with_timeout(CALL).mutate_rows(&entries).await {
            Ok(written) if written.iter().all(Result::is_ok) => return,
            Ok(_written) => {}
            Err(error) => tracing::info!(%error, "rows not written; retrying"),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// The rows of the table, each with its values; retries until they can be read.
async fn read(table: &Table) -> BTreeSet<String> {
    loop {
        match table.with_timeout(CALL).read_rows(RowSet::all(), ReadOptions::default()).await {
            Ok(rows) => {
                return rows
                    .iter()
                    .map(|row| described(&name(row), row.cells.iter().map(|cell| &cell.value)))
                    .collect();
            }
            Err(error) => tracing::info!(%error, "rows not read; retrying"),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// A row, and what is wrong with its values.
fn described<'v>(row: &str, values: impl Iterator<Item = &'v Bytes>) -> String {
    let values: Vec<_> = values.map(|value| String::from_utf8_lossy(value)).collect();
    if values.len() == 1 && values[0] == row { row.to_owned() } else { format!("{row} with the values {values:?}") }
}

/// How the rows that were read through a server differ from those that were written.
fn difference(server: &str, written: &BTreeSet<String>, seen: &BTreeSet<String>) -> Option<String> {
    let different: Vec<&String> = written.symmetric_difference(seen).take(REPORTED_MAX).collect();
    let is_equal = different.is_empty();
    let counts = format!("{} of {} rows of groups without requests", seen.len(), written.len());
    (!is_equal).then(|| format!("quiet: {server} returns {counts}; differences: {different:?}"))
}

/// Divides the groups of tables with the most tablets until there are enough groups. No group has all of its tablets moved, so there is always
/// one with two tablets while there are fewer groups than tablets.
async fn divide(cluster: &SimCluster, runtime: &Runtime, wanted: usize) {
    loop {
        let admin = any_admin(cluster, runtime);
        if let Ok(Ok(groups)) = tokio::time::timeout(CALL, admin.groups()).await {
            let mut groups: Vec<_> = groups.into_iter().filter(|one| one.group.group != GroupId::METADATA).collect();
            let missing = wanted.saturating_sub(groups.len());
            if missing == 0 {
                return;
            }
            groups.retain(|one| one.tablets > 1);
            groups.sort_by_key(|one| Reverse(one.tablets));
            let chosen = groups.iter().take(missing.min(AT_ONCE)).map(|one| one.group.group);
            futures::future::join_all(chosen.map(|group| divide_group(cluster, runtime, group))).await;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn divide_group(cluster: &SimCluster, runtime: &Runtime, group: GroupId) {
    let admin = any_admin(cluster, runtime);
    let outcome = tokio::time::timeout(CALL, admin.divide_group(group)).await;
    let kind = if matches!(outcome, Ok(Ok(_))) { "divided" } else { "not-divided" };
    cluster.trace.lock().count(time::elapsed(), "overseer", kind, outcome_name(&outcome));
}
