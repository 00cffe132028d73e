//! Counts visits: increments that are applied exactly once, and a conditional write.
//!
//! `cargo run --release -p ebla-client --example counter [HOST:PORT]`, with `ebla up` running. Each run adds 100.

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use bytes::Bytes;
use ebla_client::{Client, Table};
use ebla_model::error::{Error, Reason};
use ebla_model::filter::Filter;
use ebla_model::gc::GcRule;
use ebla_model::key::RowKey;
use ebla_model::mutation::{Mutation, WriteTime};
use ebla_model::rmw::{Operation, Rule};
use ebla_model::schema::TableName;
use ebla_runtime::Runtime;
use futures::future::try_join_all;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:8086".to_owned());
    let client = Client::connect_cluster(&address, Runtime::system("counter")).await?;

    let name = TableName::from_parts("example", "example", "counters")?;
    let families = [("c".to_owned(), Some(GcRule::MaxVersions(1)))];
    match client.admin().create_table(&name, &families, &[]).await {
        Err(error) if error.reason == Reason::AlreadyExists => {}
        created => created?,
    }
    let table = client.table(&name);
    let page = RowKey::copy_from_slice(b"com.cnn.www");

    let before = visits(&table, &page).await?;
    // Concurrent calls: the tablet serializes them.
    try_join_all((0..100).map(|_visit| count_one(&table, &page))).await?;
    let after = visits(&table, &page).await?;
    println!("visits: {before} before, {after} after");
    if after != before.wrapping_add(100) {
        return Err(Error::internal("increments were lost or duplicated"));
    }

    // At most one of the concurrent callers becomes the owner.
    let claims = ["ann", "ben", "eve"].map(|owner| claim(&table, &page, owner));
    let won = try_join_all(claims).await?.into_iter().filter(|won| *won).count();
    println!("new owners: {won} (0 if an earlier run has set one)");
    if won > 1 { Err(Error::internal("a conditional write was applied twice")) } else { Ok(()) }
}

async fn count_one(table: &Table, page: &RowKey) -> Result<(), Error> {
    let rule =
        Rule { family: "c".to_owned(), qualifier: Bytes::from_static(b"visits"), operation: Operation::Increment(1) };
    table.read_modify_write(page, &[rule]).await.map(drop)
}

async fn visits(table: &Table, page: &RowKey) -> Result<i64, Error> {
    let row = table.read_row(page, None).await?.unwrap_or_default();
    let counter = row.cells.iter().find(|cell| cell.qualifier == b"visits".as_slice());
    let bytes = counter.and_then(|cell| cell.value.as_ref().try_into().ok());
    Ok(bytes.map_or(0, i64::from_be_bytes))
}

/// Writes `owner` into the row's owner column if it is empty; returns whether it was written.
async fn claim(table: &Table, page: &RowKey, owner: &'static str) -> Result<bool, Error> {
    let has_owner = Filter::ColumnQualifierRegex(Bytes::from_static(b"owner"));
    let own = Mutation::SetCell {
        family: "c".to_owned(),
        qualifier: Bytes::from_static(b"owner"),
        timestamp: WriteTime::Server,
        value: Bytes::from_static(owner.as_bytes()),
    };
    let had_owner = table.check_and_mutate(page, Some(has_owner), &[], &[own]).await?;
    Ok(!had_owner)
}
