//! A client that drops the rows of a prefix in the table of the other clients, while its tablets are split and moved.
//!
//! Each prefix is used once. After the drop was acknowledged, the rows that were written before must never be seen again, and
//! those that were written after it must be. One row of the prefix is incremented all the time: it begins again at 1 when it is dropped. A
//! prefix is given up after a call of unknown outcome.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use ebla_client::{Admin, Client, ReadOptions, Table};
use ebla_model::error::{Error, Reason};
use ebla_model::key::{KeyRange, RowSet};
use ebla_model::mutation::{Mutation, WriteTime};
use ebla_model::rmw::{Operation, Rule};
use ebla_runtime::Runtime;
use ebla_workload::verify::Finding;

use crate::cluster::{Phase, SimCluster};
use crate::load::{any_address, key, name, table_name, wait_for};
use crate::time::{self, HostTime};

/// The timeout of a call.
const CALL: Duration = Duration::from_secs(5);
/// Between two prefixes, about.
const PAUSE: Duration = Duration::from_millis(50);
/// Rows of a prefix that are dropped.
const ROWS: usize = 3;

/// Whether a row belongs to this load: `letter/drop-number/...`.
pub(crate) fn is_row(row: &str) -> bool {
    row.split('/').nth(1).is_some_and(|part| part.starts_with("drop-"))
}

/// The client's host.
pub(crate) async fn client(cluster: Arc<SimCluster>) -> turmoil::Result {
    let runtime = cluster.runtime("dropper", &HostTime::default(), 0);
    wait_for(&cluster, Phase::Load).await;
    let mut number = 0;
    while cluster.phase() == Phase::Load {
        let letter = char::from(b'a' + u8::try_from(runtime.rng.below(26)).unwrap());
        let prefix = format!("{letter}/drop-{number}/");
        number += 1;
        let outcome = drop_rows(&cluster, &runtime, &prefix).await;
        let kind = if outcome.is_ok() { "dropped" } else { "not-dropped" };
        let reason = outcome.as_ref().err().map_or("ok", |error| error.reason.name());
        cluster.trace.lock().count(time::elapsed(), "dropper", kind, &format!("{prefix} {reason}"));
        tokio::time::sleep(runtime.rng.jitter(PAUSE)).await;
    }
    cluster.drained.fetch_add(1, Ordering::Relaxed);
    cluster.note("dropper", "drained", "");
    Ok(())
}

/// Writes rows, drops them, and writes one again.
async fn drop_rows(cluster: &SimCluster, runtime: &Runtime, prefix: &str) -> Result<(), Error> {
    for number in 0..ROWS {
        write(cluster, runtime, &format!("{prefix}{number}")).await?;
    }
    let counted = format!("{prefix}count");
    let mut values = vec![increment(cluster, runtime, &counted).await?];
    let is_answered = AtomicBool::new(false);
    let increments = async {
        while !is_answered.load(Ordering::Relaxed) {
            values.push(increment(cluster, runtime, &counted).await?);
        }
        Ok::<(), Error>(())
    };
    let drops = async {
        let admin = Admin::connect(&any_address(cluster, &runtime.rng), runtime).with_timeout(CALL);
        let (table, range) = (table_name(), key(prefix));
        let answer = tokio::time::timeout(CALL, admin.drop_row_range(&table, &range)).await;
        is_answered.store(true, Ordering::Relaxed);
        answer.unwrap_or_else(|_elapsed| Err(Error::new(Reason::Deadline, "no answer")))
    };
    let (incremented, dropped) = futures::join!(increments, drops);
    dropped?;
    {
        let drops = &mut cluster.history.lock().drops;
        drops.note_dropped(prefix);
        drops.note_sent(prefix, &counted);
    }
    incremented?;
    values.push(increment(cluster, runtime, &counted).await?);
    if !begins_again(&values) {
        let wrong = format!("row {counted} was dropped while it was incremented, and returned {values:?}");
        cluster.history.lock().wrong.push(wrong);
    }
    check(cluster, runtime, prefix).await?;
    if runtime.rng.below(2) == 0 {
        let row = format!("{prefix}0");
        cluster.history.lock().drops.note_sent(prefix, &row);
        write(cluster, runtime, &row).await?;
        cluster.history.lock().drops.note_acknowledged(prefix, &row);
        check(cluster, runtime, prefix).await?;
    }
    Ok(())
}

async fn write(cluster: &SimCluster, runtime: &Runtime, row: &str) -> Result<(), Error> {
    let cell = Mutation::SetCell {
        family: "v".to_owned(),
        qualifier: Bytes::from_static(b"q"),
        timestamp: WriteTime::Server,
        value: Bytes::from_static(b"dropped"),
    };
    table(cluster, runtime).mutate_row(&key(row), &[cell]).await
}

async fn increment(cluster: &SimCluster, runtime: &Runtime, row: &str) -> Result<i64, Error> {
    let rule = Rule { family: "v".to_owned(), qualifier: Bytes::from_static(b"n"), operation: Operation::Increment(1) };
    let written = table(cluster, runtime).read_modify_write(&key(row), &[rule]).await?;
    let value = written.cells.first().and_then(|cell| cell.value.as_ref().try_into().ok());
    Ok(i64::from_be_bytes(value.unwrap()))
}

/// Whether each value is the one after the last or, at least once, 1 again: a drop may be carried out in two groups, one after the other.
fn begins_again(values: &[i64]) -> bool {
    let mut pairs = values.iter().zip(values.iter().skip(1));
    pairs.clone().all(|(last, next)| *next == 1 || *next == last + 1) && pairs.any(|(_last, next)| *next == 1)
}

/// Reads the rows of a prefix and checks them.
async fn check(cluster: &SimCluster, runtime: &Runtime, prefix: &str) -> Result<(), Error> {
    let rows = RowSet::from_ranges([KeyRange::prefix(prefix.as_bytes())]);
    let rows = table(cluster, runtime).read_rows(rows, ReadOptions::default()).await?;
    let rows: Vec<String> = rows.iter().map(name).collect();
    let mut history = cluster.history.lock();
    let found = history.drops.check(prefix, &rows);
    history.wrong.extend(found.iter().map(Finding::to_string));
    Ok(())
}

fn table(cluster: &SimCluster, runtime: &Runtime) -> Table {
    let client = Client::endpoint(&any_address(cluster, &runtime.rng), runtime.clone());
    client.table(&table_name()).with_timeout(CALL)
}
