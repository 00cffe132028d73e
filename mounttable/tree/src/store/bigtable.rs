//! A store in Bigtable, through the client library: the table of nodes, and a table of counters beside it.
//!
//! It uses only the public data API, so any Bigtable will do. [`BigtableStore::create_tables`] creates both tables. A
//! counter is a row of the second table: family `m`, column `c`, eight bytes, big endian.

use std::collections::BTreeMap;
use std::time::Duration;

use ebla_client::{Admin, Client, ReadOptions, Table};
use ebla_model::error::{Error as ModelError, Reason as ModelReason};
use ebla_model::filter::Filter;
use ebla_model::gc::GcRule;
use ebla_model::key::{KeyRange, RowKey, RowSet};
use ebla_model::mutation::{Mutation, WriteTime};
use ebla_model::rmw::{Operation, Rule};
use ebla_model::schema::TableName;
use ebla_model::time::Micros;

use crate::error::{Error, Reason};
use crate::store::filters::{self, ConditionFilter};
use crate::store::{Change, ChildSelection, Condition, Family, Row, ServerSelection, Store};

/// The suffix of the name of the counters' table.
const COUNTERS: &str = "-counters";

/// The counter's column.
const COUNTER: &str = "c";

/// The deadline of one call to the storage: longer than a tablet takes to elect another leader.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The time after which garbage collection removes an expired mount from a node that nobody visits.
const EXPIRED_AGE: Duration = Duration::from_secs(24 * 60 * 60);

/// The two tables. Cheap to clone.
#[derive(Clone, Debug)]
pub struct BigtableStore {
    nodes: Table,
    counters: Table,
}

impl BigtableStore {
    /// The store in the table `name` and in the table of counters beside it. Neither has to exist yet.
    ///
    /// # Errors
    /// `InvalidArgument` when the name is too long for the counters' table.
    pub fn new(client: &Client, name: &TableName) -> Result<Self, ModelError> {
        let counters = counters_name(name)?;
        let table = |name: &TableName| client.table(name).with_timeout(TIMEOUT);
        Ok(Self { nodes: table(name), counters: table(&counters) })
    }

    /// Creates both tables if they do not exist: three families, each with one version per column, in `tablets` (1 to
    /// 256) tablets with equal shares of the hash range that row keys begin with.
    ///
    /// # Errors
    /// Those of the admin API.
    pub async fn create_tables(&self, admin: &Admin, tablets: u16) -> Result<(), ModelError> {
        let one = || GcRule::MaxVersions(1);
        let family = |of, rule| (filters::name(of).to_owned(), Some(rule));
        let families = [
            family(Family::Meta, one()),
            // The timestamp of a server is its deadline, so this is exact.
            family(Family::Servers, GcRule::Any(vec![one(), GcRule::MaxAge(EXPIRED_AGE)])),
            family(Family::Children, one()),
        ];
        let tablets = u32::from(tablets).clamp(1, 256);
        let split = |number: u32| RowKey::copy_from_slice(format!("{:02x}", number * 256 / tablets).as_bytes());
        let splits: Vec<_> = (1..tablets).map(split).collect();
        ignore_existing(admin.create_table(self.nodes.name(), &families, &splits).await)?;
        let counter = [family(Family::Meta, one())];
        ignore_existing(admin.create_table(self.counters.name(), &counter, &[]).await)
    }
}

fn counters_name(name: &TableName) -> Result<TableName, ModelError> {
    TableName::from_parts(name.project(), name.instance(), &format!("{}{COUNTERS}", name.table()))
}

fn ignore_existing(created: Result<(), ModelError>) -> Result<(), ModelError> {
    match created {
        Err(error) if error.reason == ModelReason::AlreadyExists => Ok(()),
        created => created,
    }
}

impl Store for BigtableStore {
    async fn read_with(
        &self,
        keys: &[String],
        children: &ChildSelection,
        servers: &ServerSelection,
    ) -> Result<Vec<Option<Row>>, Error> {
        let points = keys.iter().map(|key| KeyRange::single(row_key(key)));
        let options = ReadOptions { filter: Some(filters::read(children, servers)), ..ReadOptions::default() };
        let rows = self.nodes.read_rows(RowSet::from_ranges(points), options).await.map_err(to_error)?;
        let mut found: BTreeMap<_, _> = rows.iter().map(|row| (row.key.as_bytes(), filters::row(row))).collect();
        Ok(keys.iter().map(|key| found.remove(key.as_bytes())).collect())
    }

    async fn change_if(&self, key: &str, when: Condition, then: Vec<Change>) -> Result<bool, Error> {
        let mutations: Vec<_> = then.into_iter().map(filters::mutation).collect();
        let key = row_key(key);
        match filters::condition_filter(&when) {
            ConditionFilter::Passes(filter) => self.nodes.check_and_mutate(&key, Some(filter), &mutations, &[]).await,
            ConditionFilter::Blocks(filter) => {
                self.nodes.check_and_mutate(&key, Some(filter), &[], &mutations).await.map(|passed| !passed)
            }
        }
        .map_err(to_error)
    }

    async fn keys(&self, after: Option<&str>, limit: usize) -> Result<Vec<String>, Error> {
        let filter = Filter::Chain(vec![Filter::CellsPerRowLimit(1), Filter::StripValue]);
        let rows = rows_after(&self.nodes, after, filter, limit).await?;
        Ok(rows.iter().map(|row| String::from_utf8_lossy(row.key.as_bytes()).into_owned()).collect())
    }

    async fn add(&self, counter: &str, by: i64) -> Result<i64, Error> {
        let rule = Rule {
            family: filters::name(Family::Meta).to_owned(),
            qualifier: COUNTER.into(),
            operation: Operation::Increment(by),
        };
        let row = self.counters.read_modify_write(&row_key(counter), &[rule]).await.map_err(to_error)?;
        counter_value(&row).ok_or_else(|| damaged(counter))
    }

    async fn counter(&self, counter: &str) -> Result<Option<i64>, Error> {
        let newest = Filter::CellsPerColumnLimit(1);
        let row = self.counters.read_row(&row_key(counter), Some(newest)).await.map_err(to_error)?;
        row.map(|row| counter_value(&row).ok_or_else(|| damaged(counter))).transpose()
    }

    async fn set_counter(&self, counter: &str, to: Option<i64>) -> Result<(), Error> {
        let family = || filters::name(Family::Meta).to_owned();
        let mutations = match to {
            Some(to) => vec![
                Mutation::DeleteColumn { family: family(), qualifier: COUNTER.into(), start: Micros::ZERO, end: None },
                Mutation::SetCell {
                    family: family(),
                    qualifier: COUNTER.into(),
                    timestamp: WriteTime::Server,
                    value: to.to_be_bytes().to_vec().into(),
                },
            ],
            None => vec![Mutation::DeleteRow],
        };
        self.counters.mutate_row(&row_key(counter), &mutations).await.map_err(to_error)
    }

    async fn counters(&self, after: Option<&str>, limit: usize) -> Result<Vec<(String, i64)>, Error> {
        let rows = rows_after(&self.counters, after, Filter::CellsPerColumnLimit(1), limit).await?;
        let named = |row: &ebla_model::cell::Row| {
            let name = String::from_utf8_lossy(row.key.as_bytes()).into_owned();
            counter_value(row).map(|held| (name.clone(), held)).ok_or_else(|| damaged(&name))
        };
        rows.iter().map(named).collect()
    }
}

/// Up to `limit` rows after a key.
async fn rows_after(
    table: &Table,
    after: Option<&str>,
    filter: Filter,
    limit: usize,
) -> Result<Vec<ebla_model::cell::Row>, Error> {
    let start = after.map_or(RowKey::EMPTY, |after| row_key(after).successor());
    let rows = RowSet::from_ranges(KeyRange::new(start, None));
    let limit = u64::try_from(limit).unwrap_or(u64::MAX);
    let options = ReadOptions { filter: Some(filter), limit, ..ReadOptions::default() };
    table.read_rows(rows, options).await.map_err(to_error)
}

fn row_key(text: &str) -> RowKey {
    RowKey::copy_from_slice(text.as_bytes())
}

fn counter_value(row: &ebla_model::cell::Row) -> Option<i64> {
    let cell = row.newest(filters::name(Family::Meta), COUNTER.as_bytes())?;
    cell.value.as_ref().try_into().ok().map(i64::from_be_bytes)
}

fn damaged(counter: &str) -> Error {
    Error::new(Reason::Damaged, format!("the counter {counter:?} is not a number"))
}

/// An error is permanent if the storage refuses the request as it is: then a caller that repeats it waits in vain. Others may be transient, or
/// the outcome is unknown.
fn to_error(error: ModelError) -> Error {
    match error.reason {
        ModelReason::DataDamaged => Error::new(Reason::Damaged, error.message),
        ModelReason::NotFoundTable | ModelReason::NotFoundFamily => {
            Error::new(Reason::NoSuchNameRoot, format!("the table was never set up: {}", error.message))
        }
        ModelReason::InvalidArgument
        | ModelReason::FailedPrecondition
        | ModelReason::NotFound
        | ModelReason::Unimplemented
        | ModelReason::PermissionDenied
        | ModelReason::Unauthenticated => {
            Error::new(Reason::StorageRefused, format!("the storage refuses this server's request: {}", error.message))
        }
        _ => Error::new(Reason::Unavailable, error.message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_that_cannot_pass_is_not_unavailable() {
        let permanent = [
            (ModelReason::DataDamaged, Reason::Damaged),
            (ModelReason::NotFoundTable, Reason::NoSuchNameRoot),
            (ModelReason::NotFoundFamily, Reason::NoSuchNameRoot),
            (ModelReason::InvalidArgument, Reason::StorageRefused),
            (ModelReason::FailedPrecondition, Reason::StorageRefused),
            (ModelReason::NotFound, Reason::StorageRefused),
            (ModelReason::Unimplemented, Reason::StorageRefused),
            (ModelReason::PermissionDenied, Reason::StorageRefused),
            (ModelReason::Unauthenticated, Reason::StorageRefused),
        ];
        for &reason in ModelReason::ALL {
            let expected = permanent.iter().find(|(permanent, _)| *permanent == reason);
            let expected = expected.map_or(Reason::Unavailable, |(_, expected)| *expected);
            assert_eq!(to_error(ModelError::new(reason, "said so")).reason, expected, "{reason}");
        }
    }
}
