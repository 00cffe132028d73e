//! Requests of the public data API, checked before the first row is read or written.
//!
//! Here is checked what a request says about itself: names, keys, counts. Filters, mutations and rules are handed on
//! encoded; the tablet decodes each and refuses its row, or the read, before it does anything.
//!
//! | refused here | with |
//! |---|---|
//! | a name that is no table's, an empty or long row key, an empty range, a negative limit | INVALID_ARGUMENT |
//! | no mutations, no entries, no rules, or too many | INVALID_ARGUMENT |
//! | views, idempotency tokens, reversed reads for clients that did not announce them | UNIMPLEMENTED |

use bytes::Bytes;
use ebla_client::{Check, Direction, Read, RowWrite, Stats};
use ebla_model::{
    Error, KeyRange, RowKey, RowSet, TableId, TableName,
    mutation::{MUTATIONS_MAX, validate_row_key},
};
use ebla_proto::{
    convert::{row_range_from_proto, row_set_from_proto},
    data::{self, FeatureFlags, read_rows_request::RequestStatsView},
};

/// A request that is in order, and the table it names.
#[derive(Debug)]
pub(super) struct Checked<T> {
    pub(super) table: TableName,
    pub(super) ask: T,
}

/// What to read, but for the table's id.
#[derive(Clone, Debug)]
pub(super) struct ReadAsk {
    rows: RowSet,
    filter: Option<Bytes>,
    limit: u64,
    direction: Direction,
    pub(super) stats: Stats,
}

impl ReadAsk {
    /// The read of this table.
    pub(super) fn of(&self, table: TableId) -> Read {
        let Self { rows, filter, limit, direction, stats } = self.clone();
        Read { table, rows, filter, limit, direction, stats }
    }
}

/// Values to compute for one row.
#[derive(Debug)]
pub(super) struct Modify {
    pub(super) row: RowKey,
    pub(super) rules: Vec<Bytes>,
}

pub(super) fn read(request: data::ReadRowsRequest, features: &FeatureFlags) -> Result<Checked<ReadAsk>, Error> {
    let views = [&request.authorized_view_name, &request.materialized_view_name];
    let table = table_name(&request.table_name, &views)?;
    let stats = match request.request_stats_view() {
        RequestStatsView::RequestStatsFull => Stats::Count,
        RequestStatsView::Unspecified | RequestStatsView::RequestStatsNone => Stats::Skip,
    };
    let ask = ReadAsk {
        rows: row_set_from_proto(request.rows.as_ref())?,
        filter: request.filter,
        limit: u64::try_from(request.rows_limit).map_err(|_| Error::invalid("rows_limit must not be negative"))?,
        direction: direction(request.reversed, features)?,
        stats,
    };
    Ok(Checked { table, ask })
}

/// Clients that do not know of reversed reads would take their rows for a broken stream.
fn direction(reversed: bool, features: &FeatureFlags) -> Result<Direction, Error> {
    match (reversed, features.reverse_scans) {
        (false, _) => Ok(Direction::Ascending),
        (true, true) => Ok(Direction::Descending),
        (true, false) => Err(Error::unimplemented(
            "reversed reads are for clients that announce the feature reverse_scans in the header bigtable-features",
        )),
    }
}

pub(super) fn mutate_row(request: data::MutateRowRequest) -> Result<Checked<RowWrite>, Error> {
    let table = table_name(&request.table_name, &[&request.authorized_view_name])?;
    refuse_token(request.idempotency.as_ref())?;
    Ok(Checked { table, ask: row_write(request.row_key, request.mutations)? })
}

/// The rows of a bulk write. A row's own faults are told by its own outcome, except that none may be empty.
pub(super) fn mutate_rows(request: data::MutateRowsRequest) -> Result<Checked<Vec<Result<RowWrite, Error>>>, Error> {
    let table = table_name(&request.table_name, &[&request.authorized_view_name])?;
    if request.entries.is_empty() {
        return Err(Error::invalid("No mutations provided"));
    }
    if let Some(index) = request.entries.iter().position(|entry| entry.mutations.is_empty()) {
        return Err(Error::invalid(format!("No mutations provided for entry {index}")));
    }
    check_count(request.entries.iter().map(|entry| entry.mutations.len()).sum(), "mutations")?;
    let entry = |entry: data::mutate_rows_request::Entry| {
        refuse_token(entry.idempotency.as_ref())?;
        row_write(entry.row_key, entry.mutations)
    };
    Ok(Checked { table, ask: request.entries.into_iter().map(entry).collect() })
}

pub(super) fn check(request: data::CheckAndMutateRowRequest) -> Result<Checked<Check>, Error> {
    let table = table_name(&request.table_name, &[&request.authorized_view_name])?;
    if request.true_mutations.is_empty() && request.false_mutations.is_empty() {
        return Err(Error::invalid("No mutations provided"));
    }
    check_count(request.true_mutations.len(), "true_mutations")?;
    check_count(request.false_mutations.len(), "false_mutations")?;
    let ask = Check {
        row: row_key(request.row_key)?,
        predicate: request.predicate_filter,
        then: request.true_mutations,
        otherwise: request.false_mutations,
    };
    Ok(Checked { table, ask })
}

pub(super) fn modify(request: data::ReadModifyWriteRowRequest) -> Result<Checked<Modify>, Error> {
    let table = table_name(&request.table_name, &[&request.authorized_view_name])?;
    if request.rules.is_empty() {
        return Err(Error::invalid("No rules provided"));
    }
    check_count(request.rules.len(), "rules")?;
    Ok(Checked { table, ask: Modify { row: row_key(request.row_key)?, rules: request.rules } })
}

pub(super) fn sample(request: &data::SampleRowKeysRequest) -> Result<Checked<KeyRange>, Error> {
    let views = [&request.authorized_view_name, &request.materialized_view_name];
    let table = table_name(&request.table_name, &views)?;
    let range = request.row_range.as_ref().map_or_else(|| Ok(KeyRange::all()), row_range_from_proto)?;
    Ok(Checked { table, ask: range })
}

/// Any instance is there: it is made on first use.
pub(super) fn ping(request: &data::PingAndWarmRequest) -> Result<(), Error> {
    match request.name.split('/').collect::<Vec<_>>().as_slice() {
        ["projects", project, "instances", instance] if !project.is_empty() && !instance.is_empty() => Ok(()),
        _ => Err(Error::invalid(format!("invalid instance name {:?}: expected projects/P/instances/I", request.name))),
    }
}

/// The table that a request names. It names exactly one thing.
fn table_name(table: &str, views: &[&String]) -> Result<TableName, Error> {
    if views.iter().any(|view| !view.is_empty()) {
        return Err(Error::unimplemented(
            "authorized and materialized views are not served by this release: name the table itself",
        ));
    }
    table.parse()
}

fn row_write(row: Bytes, mutations: Vec<Bytes>) -> Result<RowWrite, Error> {
    if mutations.is_empty() {
        return Err(Error::invalid("No mutations provided"));
    }
    check_count(mutations.len(), "mutations")?;
    Ok(RowWrite { row: row_key(row)?, mutations })
}

fn row_key(key: Bytes) -> Result<RowKey, Error> {
    let key = RowKey::new(key);
    validate_row_key(&key)?;
    Ok(key)
}

fn check_count(count: usize, name: &str) -> Result<(), Error> {
    if count <= MUTATIONS_MAX {
        return Ok(());
    }
    Err(Error::invalid(format!("too many {name}: {count}, of which at most {MUTATIONS_MAX} are allowed")))
}

/// A token promises more than is kept here: it must not look accepted.
fn refuse_token(idempotency: Option<&data::Idempotency>) -> Result<(), Error> {
    match idempotency {
        Some(idempotency) if !idempotency.token.is_empty() => Err(Error::unimplemented(
            "idempotency tokens are for aggregate families, which this release does not serve: send without one",
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use ebla_model::Reason;

    use super::*;

    const TABLE: &str = "projects/p/instances/i/tables/t";

    fn reason<T>(result: Result<T, Error>) -> Option<Reason> {
        result.err().map(|error| error.reason)
    }

    fn read_request() -> data::ReadRowsRequest {
        data::ReadRowsRequest { table_name: TABLE.into(), ..Default::default() }
    }

    fn read_reason(request: data::ReadRowsRequest) -> Option<Reason> {
        reason(read(request, &FeatureFlags::default()))
    }

    #[test]
    fn reads_are_checked() {
        assert_eq!(read_reason(read_request()), None);
        assert_eq!(
            read_reason(data::ReadRowsRequest { table_name: "t".into(), ..read_request() }),
            Some(Reason::InvalidArgument)
        );
        assert_eq!(
            read_reason(data::ReadRowsRequest { rows_limit: -1, ..read_request() }),
            Some(Reason::InvalidArgument)
        );
        let no_key = data::RowSet { row_keys: vec![Bytes::new()], row_ranges: Vec::new() };
        assert_eq!(
            read_reason(data::ReadRowsRequest { rows: Some(no_key), ..read_request() }),
            Some(Reason::InvalidArgument)
        );
        assert_eq!(
            read_reason(data::ReadRowsRequest {
                authorized_view_name: format!("{TABLE}/authorizedViews/v"),
                ..read_request()
            }),
            Some(Reason::Unimplemented)
        );
    }

    #[test]
    fn reversed_reads_are_for_those_who_asked() {
        let reversed = || data::ReadRowsRequest { reversed: true, ..read_request() };
        assert_eq!(read_reason(reversed()), Some(Reason::Unimplemented));
        let features = FeatureFlags { reverse_scans: true, ..Default::default() };
        let read = read(reversed(), &features).unwrap().ask.of(TableId::new(7));
        assert_eq!((read.table, read.direction), (TableId::new(7), Direction::Descending));
    }

    #[test]
    fn single_writes_are_checked() {
        let request = |row_key: &'static str, mutations| data::MutateRowRequest {
            table_name: TABLE.into(),
            row_key: row_key.into(),
            mutations,
            ..Default::default()
        };
        assert_eq!(reason(mutate_row(request("k", vec![Bytes::new()]))), None);
        assert_eq!(reason(mutate_row(request("", vec![Bytes::new()]))), Some(Reason::InvalidArgument));
        assert_eq!(reason(mutate_row(request("k", Vec::new()))), Some(Reason::InvalidArgument));
        let many = vec![Bytes::new(); MUTATIONS_MAX + 1];
        assert_eq!(reason(mutate_row(request("k", many))), Some(Reason::InvalidArgument));
        let idempotency = Some(data::Idempotency { token: "12345678".into(), start_time: None });
        let with_token = data::MutateRowRequest { idempotency, ..request("k", vec![Bytes::new()]) };
        assert_eq!(reason(mutate_row(with_token)), Some(Reason::Unimplemented));
    }

    #[test]
    fn bulk_writes_are_refused_as_a_whole_only_when_something_is_empty_or_too_much() {
        let entry = |row_key: &'static str, count| data::mutate_rows_request::Entry {
            row_key: row_key.into(),
            mutations: vec![Bytes::new(); count],
            idempotency: None,
        };
        let request = |entries| data::MutateRowsRequest { table_name: TABLE.into(), entries, ..Default::default() };
        for entries in [Vec::new(), vec![entry("a", 1), entry("b", 0)], vec![entry("a", 60_000), entry("b", 60_000)]] {
            assert_eq!(reason(mutate_rows(request(entries))), Some(Reason::InvalidArgument));
        }
        let outcomes = mutate_rows(request(vec![entry("a", 1), entry("", 1)])).unwrap().ask;
        let reasons: Vec<_> = outcomes.into_iter().map(reason).collect();
        assert_eq!(reasons, [None, Some(Reason::InvalidArgument)], "one bad row does not hold up the others");
    }

    #[test]
    fn conditional_writes_need_a_mutation_in_some_branch() {
        let request = |then, otherwise| data::CheckAndMutateRowRequest {
            table_name: TABLE.into(),
            row_key: "k".into(),
            true_mutations: then,
            false_mutations: otherwise,
            ..Default::default()
        };
        assert_eq!(reason(check(request(Vec::new(), vec![Bytes::new()]))), None);
        let refused = check(request(Vec::new(), Vec::new())).unwrap_err();
        assert_eq!(refused.message, "No mutations provided");
        let no_rules =
            data::ReadModifyWriteRowRequest { table_name: TABLE.into(), row_key: "k".into(), ..Default::default() };
        assert_eq!(reason(modify(no_rules)), Some(Reason::InvalidArgument));
    }

    #[test]
    fn pings_name_an_instance() {
        let ping = |name: &str| super::ping(&data::PingAndWarmRequest { name: name.into(), ..Default::default() });
        assert_eq!(reason(ping("projects/p/instances/i")), None);
        assert_eq!(reason(ping("projects//instances/i")), Some(Reason::InvalidArgument));
        assert_eq!(reason(ping(TABLE)), Some(Reason::InvalidArgument));
    }
}
