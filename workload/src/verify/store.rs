//! The store interface of the load: a few calls, implemented for any Bigtable and for test doubles.
//!
//! [`Table`] implements it, over the public API of one address or over the cluster's own client. Only the table's own retries
//! are used. The load sets a timeout for each call, and distinguishes failures by their reason (see [`outcome`]).

use std::future::Future;
use std::ops::Bound;

use bytes::Bytes;
use ebla_client::table::ReadOptions;
use ebla_client::{Admin, Client, Direction, Table};
use ebla_model::cell::Row;
use ebla_model::error::{Error, ErrorKind};
use ebla_model::filter::Filter;
use ebla_model::gc::GcRule;
use ebla_model::key::{KeyRange, RowKey, RowSet};
use ebla_model::mutation::Mutation;
use ebla_model::rmw::{Operation, Rule};
use ebla_model::schema::TableName;
use ebla_runtime::Runtime;

use super::history::Outcome;
use super::rows::{COUNT, Column, FAMILIES, LIST, Layout};

/// Rows of one table. The outcome of a dropped call is unknown.
pub trait Store: Clone + Send + Sync + 'static {
    /// Reads one row; `None` when it has no cells.
    fn read(&self, row: &RowKey) -> impl Future<Output = Result<Option<Row>, Error>> + Send;

    /// Reads rows of a range in order, at most `limit` of them (0: all).
    fn scan(
        &self,
        range: &KeyRange,
        direction: Direction,
        limit: u64,
    ) -> impl Future<Output = Result<Vec<Row>, Error>> + Send;

    /// Changes one row atomically.
    fn write(&self, row: &RowKey, mutations: &[Mutation]) -> impl Future<Output = Result<(), Error>> + Send;

    /// Changes rows independently; returns a result for each, in order.
    fn bulk(
        &self,
        rows: &[(RowKey, Vec<Mutation>)],
    ) -> impl Future<Output = Result<Vec<Result<(), Error>>, Error>> + Send;

    /// Appends `token` to the row's list and adds one to its counter atomically; returns both.
    fn append(&self, row: &RowKey, token: &str) -> impl Future<Output = Result<Row, Error>> + Send;

    /// Adds one to the row's counter; returns it.
    fn increment(&self, row: &RowKey) -> impl Future<Output = Result<Row, Error>> + Send;

    /// Changes one row if `column` has the value `expected` (`None`: if the row has no cells); returns whether it did.
    fn swap(
        &self,
        row: &RowKey,
        column: Column,
        expected: Option<Bytes>,
        mutations: &[Mutation],
    ) -> impl Future<Output = Result<bool, Error>> + Send;
}

impl Store for Table {
    async fn read(&self, row: &RowKey) -> Result<Option<Row>, Error> {
        self.read_row(row, None).await
    }

    async fn scan(&self, range: &KeyRange, direction: Direction, limit: u64) -> Result<Vec<Row>, Error> {
        let options = ReadOptions { limit, direction, filter: None };
        self.read_rows(RowSet::from_ranges([range.clone()]), options).await
    }

    async fn write(&self, row: &RowKey, mutations: &[Mutation]) -> Result<(), Error> {
        self.mutate_row(row, mutations).await
    }

    async fn bulk(&self, rows: &[(RowKey, Vec<Mutation>)]) -> Result<Vec<Result<(), Error>>, Error> {
        self.mutate_rows(rows).await
    }

    async fn append(&self, row: &RowKey, token: &str) -> Result<Row, Error> {
        let token = Operation::Append(Bytes::from(format!("{token},")));
        self.read_modify_write(row, &[rule(LIST, token), rule(COUNT, Operation::Increment(1))]).await
    }

    async fn increment(&self, row: &RowKey) -> Result<Row, Error> {
        self.read_modify_write(row, &[rule(COUNT, Operation::Increment(1))]).await
    }

    async fn swap(
        &self,
        row: &RowKey,
        column: Column,
        expected: Option<Bytes>,
        mutations: &[Mutation],
    ) -> Result<bool, Error> {
        match expected {
            Some(value) => self.check_and_mutate(row, Some(holds(column, value)), mutations, &[]).await,
            None => Ok(!self.check_and_mutate(row, None, &[], mutations).await?),
        }
    }
}

fn rule(column: Column, operation: Operation) -> Rule {
    Rule { family: column.family.to_owned(), qualifier: Bytes::from_static(column.qualifier.as_bytes()), operation }
}

/// A filter that passes the newest cell of a column if it has this value.
fn holds(column: Column, value: Bytes) -> Filter {
    Filter::Chain(vec![
        Filter::FamilyNameRegex(Bytes::from_static(column.family.as_bytes())),
        Filter::ColumnQualifierRegex(Bytes::from_static(column.qualifier.as_bytes())),
        Filter::CellsPerColumnLimit(1),
        Filter::ValueRange { start: Bound::Included(value.clone()), end: Bound::Included(value) },
    ])
}

/// The outcome of a write that returned an error.
///
/// A refused request and "unavailable", in every form, guarantee that nothing was applied, and the load checks that. After any
/// other error the outcome is unknown.
pub fn outcome(error: &Error) -> Outcome {
    let refused = error.kind == ErrorKind::FixRequest || ebla_proto::status::is_unavailable(error.reason);
    if refused { Outcome::Failed } else { Outcome::Unknown }
}

/// An endpoint of the store, with its name in reports.
#[derive(Clone, Debug)]
pub struct Endpoint<S> {
    /// Usually its address.
    pub name: String,
    /// The store through it.
    pub store: S,
}

/// The table `name` through the public API at each of the addresses.
pub fn endpoints(addresses: &[String], name: &TableName, runtime: &Runtime) -> Vec<Endpoint<Table>> {
    let client = |address: &str| Client::endpoint(address, runtime.clone());
    endpoints_of(addresses, name, client)
}

/// As [`endpoints`], through a client for each address, such as one with the token of a caller.
pub fn endpoints_of(addresses: &[String], name: &TableName, client: impl Fn(&str) -> Client) -> Vec<Endpoint<Table>> {
    addresses.iter().map(|address| Endpoint { name: address.clone(), store: client(address).table(name) }).collect()
}

/// Creates the load's table at `address`, pre-split into `slots` tablets. An existing table is used unchanged.
///
/// # Errors
/// The error of the server.
pub async fn create_table(address: &str, name: &TableName, slots: u32, runtime: &Runtime) -> Result<(), Error> {
    create_table_of(&Client::endpoint(address, runtime.clone()).admin(), name, slots).await
}

/// As [`create_table`], by the caller of these admin calls.
///
/// # Errors
/// The error of the server.
pub async fn create_table_of(admin: &Admin, name: &TableName, slots: u32) -> Result<(), Error> {
    let families: Vec<_> = FAMILIES.iter().map(|name| ((*name).to_owned(), Some(GcRule::MaxVersions(1)))).collect();
    match admin.create_table(name, &families, &Layout::splits(slots)).await {
        Err(error) if error.reason == ebla_model::error::Reason::AlreadyExists => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use ebla_model::error::Reason;

    use super::*;

    #[test]
    fn only_a_refusal_guarantees_that_nothing_was_applied() {
        let of = |reason| outcome(&Error::new(reason, "said so"));
        let refusals = [Reason::Unavailable, Reason::NoLeader, Reason::Busy, Reason::NotFoundTable];
        assert!(refusals.into_iter().all(|reason| of(reason) == Outcome::Failed));
        let open = [Reason::Deadline, Reason::OutcomeUnknown, Reason::Internal, Reason::Cancelled, Reason::Conflict];
        assert!(open.into_iter().all(|reason| of(reason) == Outcome::Unknown));
    }
}
