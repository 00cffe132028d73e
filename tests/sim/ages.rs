//! A client of a table whose cells have a maximum age, while clocks run fast or slow and hosts are suspended.
//!
//! With the plan `leap` all wall clocks are an hour ahead for a second at the beginning.
//!
//! A cell must be visible for a part of that age at least: ages are evaluated at a time that clocks of different rates have advanced, that
//! may catch up at twice the rate of time, and that follows a leader whose clock is ahead of the last one's. After the load all cells must expire.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use ebla_client::{Admin, Client, ReadOptions, Table};
use ebla_model::error::{Error, Reason};
use ebla_model::gc::GcRule;
use ebla_model::key::RowSet;
use ebla_model::mutation::{Mutation, WriteTime};
use ebla_model::schema::TableName;
use ebla_runtime::Runtime;

use crate::cluster::{Phase, SimCluster};
use crate::load::{any_address, key, name, wait_for};
use crate::time::{self, HostTime};

/// The maximum age of cells.
const AGE_MAX: Duration = Duration::from_secs(40);
/// A younger cell must be visible: twice this time at a rate of 1.1, a suspension of 8 s in which a wall clock stood still, and the
/// difference of two clocks are less than the maximum age.
const VISIBLE: Duration = Duration::from_secs(8);
/// Timeout until all cells have expired after the load.
const EXPIRED: Duration = Duration::from_secs(120);
/// The timeout of a call.
const CALL: Duration = Duration::from_secs(5);
/// Between two calls, about.
const PAUSE: Duration = Duration::from_millis(100);

/// A written row.
struct Written {
    row: String,
    began: Duration,
    acknowledged: Duration,
}

/// The client's host.
pub(crate) async fn client(cluster: Arc<SimCluster>) -> turmoil::Result {
    let runtime = cluster.runtime("ager", &HostTime::default(), 0);
    wait_for(&cluster, Phase::Load).await;
    let mut written: Vec<Written> = Vec::new();
    let mut is_created = false;
    while cluster.phase() == Phase::Load {
        let call = if !is_created { 0 } else { 1 + runtime.rng.below(2) };
        let outcome = match call {
            0 => create(&cluster, &runtime).await.map(|()| is_created = true),
            1 => write(&cluster, &runtime, &mut written).await,
            _ => read(&cluster, &runtime, &written).await,
        };
        let reason = outcome.as_ref().err().map_or("ok", |error| error.reason.name());
        cluster.note("ager", "call", &format!("{call} {reason}"));
        tokio::time::sleep(runtime.rng.jitter(PAUSE)).await;
    }
    cluster.drained.fetch_add(1, Ordering::Relaxed);
    cluster.note("ager", "drained", "");
    Ok(())
}

/// Waits until all cells have expired; what is wrong if they do not.
pub(crate) async fn prove(cluster: &SimCluster, runtime: &Runtime) -> Vec<String> {
    let end = time::elapsed() + EXPIRED;
    loop {
        let rows = table(cluster, runtime).read_rows(RowSet::all(), ReadOptions::default()).await;
        let left = match rows {
            Ok(rows) if rows.is_empty() => return Vec::new(),
            Err(error) if error.reason == Reason::NotFoundTable => return Vec::new(),
            Ok(rows) => format!("{} rows are left", rows.len()),
            Err(error) => error.to_string(),
        };
        if time::elapsed() > end {
            return vec![format!("ages: not expired {EXPIRED:?} after the load: {left}")];
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

fn table_name() -> TableName {
    TableName::from_parts("sim", "sim", "ages").unwrap()
}

fn table(cluster: &SimCluster, runtime: &Runtime) -> Table {
    let client = Client::endpoint(&any_address(cluster, &runtime.rng), runtime.clone());
    client.table(&table_name()).with_timeout(CALL)
}

async fn create(cluster: &SimCluster, runtime: &Runtime) -> Result<(), Error> {
    let admin = Admin::connect(&any_address(cluster, &runtime.rng), runtime).with_timeout(CALL);
    let families = [("a".to_owned(), Some(GcRule::MaxAge(AGE_MAX)))];
    match tokio::time::timeout(CALL, admin.create_table(&table_name(), &families, &[])).await {
        Ok(Err(error)) if error.reason == Reason::AlreadyExists => Ok(()),
        Ok(created) => created,
        Err(_elapsed) => Err(Error::new(Reason::Deadline, "no answer")),
    }
}

async fn write(cluster: &SimCluster, runtime: &Runtime, written: &mut Vec<Written>) -> Result<(), Error> {
    let (row, began) = (format!("{:08}", time::elapsed().as_micros()), time::elapsed());
    let cell = Mutation::SetCell {
        family: "a".to_owned(),
        qualifier: Bytes::from_static(b"q"),
        // After a leap the servers' timestamps are ahead of time: such cells would not expire for as long.
        timestamp: if cluster.leaps {
            WriteTime::At(runtime.clock.wall().truncate_to_millis())
        } else {
            WriteTime::Server
        },
        value: Bytes::from_static(b"v"),
    };
    table(cluster, runtime).mutate_row(&key(&row), &[cell]).await?;
    written.push(Written { row, began, acknowledged: time::elapsed() });
    Ok(())
}

/// Reads all rows: the young ones must be there.
async fn read(cluster: &SimCluster, runtime: &Runtime, written: &[Written]) -> Result<(), Error> {
    let began = time::elapsed();
    let rows = table(cluster, runtime).read_rows(RowSet::all(), ReadOptions::default()).await?;
    let ended = time::elapsed();
    let seen: BTreeSet<String> = rows.iter().map(name).collect();
    let is_due = |one: &&Written| one.acknowledged <= began && ended < one.began + VISIBLE;
    for one in written.iter().filter(is_due).filter(|one| !seen.contains(&one.row)) {
        let wrong = format!("ages: the row written at {:?} is gone in a read at {began:?}", one.began);
        cluster.history.lock().wrong.push(wrong);
    }
    Ok(())
}
