//! Validation of public data requests, before the first row is read or written.
//!
//! This module validates names, keys and counts. Filters, mutations and rules are passed on encoded; the tablet decodes
//! them and refuses the row, or the read, before it does any work.
//!
//! | refused | status |
//! |---|---|
//! | an invalid table name, an empty or too long row key, an empty range, a negative limit | INVALID_ARGUMENT |
//! | no or too many mutations, entries or rules; an invalid idempotency token | INVALID_ARGUMENT |
//! | a table and a view at once, or neither | INVALID_ARGUMENT |
//! | materialized views, reversed reads for clients that did not announce them | UNIMPLEMENTED |

use std::fmt;

use bytes::Bytes;
use ebla_client::{Check, Direction, Modify, Read, RowWrite, Stats};
use ebla_model::{
    Error, InstanceName, KeyRange, RowKey, RowLimit, RowSet, TableId, TableName,
    access::ViewName,
    idempotency::IdempotencyToken,
    mutation::{MUTATIONS_MAX, validate_row_key},
};
use ebla_proto::{
    convert::{LargeRows, row_range_from_proto, row_set_from_proto},
    data::{self, FeatureFlags, read_rows_request::RequestStatsView},
};

use super::access::Permit;
use super::idempotency;

/// What a request names: a table, or a view of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Named {
    /// The table.
    pub(super) table: TableName,
    /// The authorized view, if the request names one.
    pub(super) view: Option<ViewName>,
}

impl From<TableName> for Named {
    fn from(table: TableName) -> Self {
        Self { table, view: None }
    }
}

impl From<ViewName> for Named {
    fn from(view: ViewName) -> Self {
        Self { table: view.table().clone(), view: Some(view) }
    }
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.view {
            Some(view) => view.fmt(f),
            None => self.table.fmt(f),
        }
    }
}

/// A valid request, and what it names. Its content is reached through access control alone.
#[derive(Debug)]
pub(super) struct Validated<T> {
    named: Named,
    request: T,
}

impl<T> Validated<T> {
    /// The table that it names.
    pub(super) const fn table(&self) -> &TableName {
        &self.named.table
    }

    /// The table or view that it names.
    pub(super) const fn named(&self) -> &Named {
        &self.named
    }

    /// The request, for access control: only it has permits.
    pub(super) fn into_request(self, _permit: &Permit) -> T {
        self.request
    }
}

/// A read without the table's id.
#[derive(Clone, Debug)]
pub(super) struct ReadSpec {
    rows: RowSet,
    filter: Option<Bytes>,
    limit: RowLimit,
    direction: Direction,
    pub(super) stats: Stats,
    large_rows: LargeRows,
}

impl ReadSpec {
    /// The encoded filter of the caller.
    pub(super) const fn filter(&self) -> Option<&Bytes> {
        self.filter.as_ref()
    }

    /// The same read with another filter.
    pub(super) fn with_filter(self, filter: Option<Bytes>) -> Self {
        Self { filter, ..self }
    }

    /// The same read of other rows.
    pub(super) fn with_rows(self, change: impl FnOnce(RowSet) -> RowSet) -> Self {
        Self { rows: change(self.rows), ..self }
    }

    /// The read of this table.
    pub(super) fn for_table(&self, table: TableId) -> Read {
        let Self { rows, filter, limit, direction, stats, large_rows } = self.clone();
        Read { table, rows, filter, limit, direction, stats, large_rows }
    }
}

pub(super) fn read(
    request: data::ReadRowsRequest,
    features: &FeatureFlags,
    large_rows: LargeRows,
) -> Result<Validated<ReadSpec>, Error> {
    refuse_materialized(&request.materialized_view_name)?;
    let named = named(&request.table_name, &request.authorized_view_name)?;
    let stats = match request.request_stats_view() {
        RequestStatsView::RequestStatsFull => Stats::Count,
        RequestStatsView::Unspecified | RequestStatsView::RequestStatsNone => Stats::Skip,
    };
    let read = ReadSpec {
        // An older release accepted a row with the empty key. Clients treat such a row as a broken stream.
        rows: row_set_from_proto(request.rows.as_ref())?.after(&RowKey::EMPTY),
        filter: request.filter,
        limit: row_limit(request.rows_limit)?,
        direction: direction(request.reversed, features)?,
        stats,
        large_rows,
    };
    Ok(Validated { named, request: read })
}

/// The limit of a read; 0 means no limit.
fn row_limit(limit: i64) -> Result<RowLimit, Error> {
    let limit = u64::try_from(limit).map_err(|_| Error::invalid("rows_limit must not be negative"))?;
    Ok(RowLimit::new(limit))
}

/// Clients that do not support reversed reads would treat their rows as a broken stream.
fn direction(reversed: bool, features: &FeatureFlags) -> Result<Direction, Error> {
    match (reversed, features.reverse_scans) {
        (false, _) => Ok(Direction::Ascending),
        (true, true) => Ok(Direction::Descending),
        (true, false) => Err(Error::unimplemented(
            "reversed reads require the feature reverse_scans in the header bigtable-features",
        )),
    }
}

pub(super) fn mutate_row(
    request: data::MutateRowRequest,
    header: Option<IdempotencyToken>,
) -> Result<Validated<RowWrite>, Error> {
    let named = named(&request.table_name, &request.authorized_view_name)?;
    let token = match (idempotency::of_message(request.idempotency)?, header) {
        (Some(_), Some(_)) => {
            return Err(Error::invalid("two idempotency tokens: give one in the message or in the header, not both"));
        }
        (message, header) => message.or(header),
    };
    Ok(Validated { named, request: row_write(request.row_key, request.mutations, token)? })
}

/// The rows of a bulk write. An invalid row is reported by its own outcome; an entry without mutations fails the call.
pub(super) fn mutate_rows(
    request: data::MutateRowsRequest,
    header: Option<IdempotencyToken>,
) -> Result<Validated<Vec<Result<RowWrite, Error>>>, Error> {
    if header.is_some() {
        return Err(Error::invalid("a bulk write takes an idempotency token in each entry, not in the header"));
    }
    let named = named(&request.table_name, &request.authorized_view_name)?;
    if request.entries.is_empty() {
        return Err(Error::invalid("No mutations provided"));
    }
    if let Some(index) = request.entries.iter().position(|entry| entry.mutations.is_empty()) {
        return Err(Error::invalid(format!("No mutations provided for entry {index}")));
    }
    check_count(request.entries.iter().map(|entry| entry.mutations.len()).sum(), "mutations")?;
    let entry = |entry: data::mutate_rows_request::Entry| {
        let token = idempotency::of_message(entry.idempotency)?;
        row_write(entry.row_key, entry.mutations, token)
    };
    Ok(Validated { named, request: request.entries.into_iter().map(entry).collect() })
}

pub(super) fn check(
    request: data::CheckAndMutateRowRequest,
    token: Option<IdempotencyToken>,
) -> Result<Validated<Check>, Error> {
    let named = named(&request.table_name, &request.authorized_view_name)?;
    if request.true_mutations.is_empty() && request.false_mutations.is_empty() {
        return Err(Error::invalid("No mutations provided"));
    }
    check_count(request.true_mutations.len(), "true_mutations")?;
    check_count(request.false_mutations.len(), "false_mutations")?;
    let read = Check {
        row: row_key(request.row_key)?,
        predicate: request.predicate_filter,
        then: request.true_mutations,
        otherwise: request.false_mutations,
        token,
    };
    Ok(Validated { named, request: read })
}

pub(super) fn modify(
    request: data::ReadModifyWriteRowRequest,
    token: Option<IdempotencyToken>,
) -> Result<Validated<Modify>, Error> {
    let named = named(&request.table_name, &request.authorized_view_name)?;
    if request.rules.is_empty() {
        return Err(Error::invalid("No rules provided"));
    }
    check_count(request.rules.len(), "rules")?;
    Ok(Validated { named, request: Modify { row: row_key(request.row_key)?, rules: request.rules, token } })
}

pub(super) fn sample(request: &data::SampleRowKeysRequest) -> Result<Validated<KeyRange>, Error> {
    refuse_materialized(&request.materialized_view_name)?;
    let named = named(&request.table_name, &request.authorized_view_name)?;
    let range = request.row_range.as_ref().map_or_else(|| Ok(KeyRange::all()), row_range_from_proto)?;
    Ok(Validated { named, request: range })
}

/// The instance that a ping names. Every instance exists: it is created on first use.
pub(super) fn ping(request: &data::PingAndWarmRequest) -> Result<InstanceName, Error> {
    let invalid =
        || Error::invalid(format!("invalid instance name {:?}: expected projects/P/instances/I", request.name));
    request.name.parse().map_err(|_invalid: Error| invalid())
}

/// The table or the authorized view that a request names: one of the two.
fn named(table: &str, view: &str) -> Result<Named, Error> {
    match (table.is_empty(), view.is_empty()) {
        (false, false) => Err(Error::invalid("the request names a table and an authorized view: name one of them")),
        (true, false) => Ok(view.parse::<ViewName>()?.into()),
        (_, true) => Ok(table.parse::<TableName>()?.into()),
    }
}

fn refuse_materialized(view: &str) -> Result<(), Error> {
    if view.is_empty() {
        return Ok(());
    }
    Err(Error::unimplemented("materialized views are not supported: name the table itself"))
}

fn row_write(row: Bytes, mutations: Vec<Bytes>, token: Option<IdempotencyToken>) -> Result<RowWrite, Error> {
    if mutations.is_empty() {
        return Err(Error::invalid("No mutations provided"));
    }
    check_count(mutations.len(), "mutations")?;
    Ok(RowWrite { row: row_key(row)?, mutations, token })
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
    Err(Error::invalid(format!("too many {name}: {count}, the limit is {MUTATIONS_MAX}")))
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
        reason(read(request, &FeatureFlags::default(), LargeRows::Split))
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
        let materialized_view_name = "projects/p/instances/i/materializedViews/v".to_owned();
        let materialized = data::ReadRowsRequest { materialized_view_name, ..read_request() };
        assert_eq!(read_reason(materialized), Some(Reason::Unimplemented));
    }

    #[test]
    fn a_request_names_a_table_or_a_view() {
        let view = format!("{TABLE}/authorizedViews/v");
        let of_view = named("", &view).unwrap();
        assert_eq!((of_view.to_string(), of_view.table.as_str()), (view.clone(), TABLE));
        let of_table = named(TABLE, "").unwrap();
        assert_eq!((of_table.to_string().as_str(), of_table.view), (TABLE, None));
        for (table, view) in [("", ""), (TABLE, view.as_str()), ("", TABLE), (view.as_str(), "")] {
            assert_eq!(reason(named(table, view)), Some(Reason::InvalidArgument), "{table} {view}");
        }
    }

    #[test]
    fn the_row_with_the_empty_key_is_never_requested() {
        let range = |start: &'static str, end: Option<&'static str>| data::RowRange {
            start_key: Some(data::row_range::StartKey::StartKeyClosed(start.into())),
            end_key: end.map(|end| data::row_range::EndKey::EndKeyOpen(end.into())),
        };
        let ranges = |row_ranges| {
            let rows = Some(data::RowSet { row_keys: Vec::new(), row_ranges });
            let request = data::ReadRowsRequest { rows, ..read_request() };
            let read =
                read(request, &FeatureFlags::default(), LargeRows::Split).unwrap().request.for_table(TableId::new(7));
            read.rows.ranges().iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(ranges(Vec::new()), ["[\\x00, -)"]);
        assert_eq!(ranges(vec![range("", Some("b")), range("c", None)]), ["[\\x00, b)", "[c, -)"]);
        assert!(ranges(vec![range("", Some("\0"))]).is_empty());
    }

    #[test]
    fn reversed_reads_require_the_feature() {
        let reversed = || data::ReadRowsRequest { reversed: true, ..read_request() };
        assert_eq!(read_reason(reversed()), Some(Reason::Unimplemented));
        let features = FeatureFlags { reverse_scans: true, ..Default::default() };
        let read = read(reversed(), &features, LargeRows::Split).unwrap().request.for_table(TableId::new(7));
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
        assert_eq!(reason(mutate_row(request("k", vec![Bytes::new()]), None)), None);
        assert_eq!(reason(mutate_row(request("", vec![Bytes::new()]), None)), Some(Reason::InvalidArgument));
        assert_eq!(reason(mutate_row(request("k", Vec::new()), None)), Some(Reason::InvalidArgument));
        let many = vec![Bytes::new(); MUTATIONS_MAX + 1];
        assert_eq!(reason(mutate_row(request("k", many), None)), Some(Reason::InvalidArgument));
    }

    fn idempotency(token: &'static str) -> Option<data::Idempotency> {
        Some(data::Idempotency { token: token.into(), start_time: None })
    }

    fn header() -> Option<IdempotencyToken> {
        Some(IdempotencyToken { token: "12345678".into(), started: None })
    }

    #[test]
    fn a_token_is_accepted_once_and_passed_on() {
        let request = |idempotency| data::MutateRowRequest {
            table_name: TABLE.into(),
            row_key: "k".into(),
            mutations: vec![Bytes::new()],
            idempotency,
            ..Default::default()
        };
        let token = |idempotency, header| mutate_row(request(idempotency), header).map(|checked| checked.request.token);
        assert_eq!(token(None, None), Ok(None));
        assert_eq!(token(idempotency("12345678"), None), Ok(header()));
        assert_eq!(token(None, header()), Ok(header()));
        assert_eq!(reason(token(idempotency("12345678"), header())), Some(Reason::InvalidArgument));
        assert_eq!(reason(token(idempotency("1234567"), None)), Some(Reason::InvalidArgument), "7 bytes");
    }

    #[test]
    fn each_entry_of_a_bulk_write_has_its_own_token() {
        let entry = |token| data::mutate_rows_request::Entry {
            row_key: "k".into(),
            mutations: vec![Bytes::new()],
            idempotency: idempotency(token),
        };
        let entries = vec![entry("12345678"), entry("short")];
        let request = data::MutateRowsRequest { table_name: TABLE.into(), entries, ..Default::default() };
        assert_eq!(reason(mutate_rows(request.clone(), header())), Some(Reason::InvalidArgument));
        let tokens: Vec<_> =
            mutate_rows(request, None).unwrap().request.into_iter().map(|row| row.map(|row| row.token)).collect();
        assert_eq!(tokens[0], Ok(header()));
        assert_eq!(reason(tokens[1].clone()), Some(Reason::InvalidArgument));
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
            assert_eq!(reason(mutate_rows(request(entries), None)), Some(Reason::InvalidArgument));
        }
        let outcomes = mutate_rows(request(vec![entry("a", 1), entry("", 1)]), None).unwrap().request;
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
        assert_eq!(reason(check(request(Vec::new(), vec![Bytes::new()]), None)), None);
        let refused = check(request(Vec::new(), Vec::new()), None).unwrap_err();
        assert_eq!(refused.message, "No mutations provided");
        let no_rules =
            data::ReadModifyWriteRowRequest { table_name: TABLE.into(), row_key: "k".into(), ..Default::default() };
        assert_eq!(reason(modify(no_rules, None)), Some(Reason::InvalidArgument));
    }

    /// The largest accepted counts, and one more. Tablets check the rows themselves again.
    #[test]
    fn counts_are_limited_to_100_000() {
        for (count, outcome) in [(MUTATIONS_MAX, None), (MUTATIONS_MAX + 1, Some(Reason::InvalidArgument))] {
            let many = vec![Bytes::new(); count];
            let (table_name, row_key) = (TABLE.to_owned(), Bytes::from("k"));
            let single = data::MutateRowRequest {
                table_name: table_name.clone(),
                row_key: row_key.clone(),
                mutations: many.clone(),
                ..Default::default()
            };
            assert_eq!(reason(mutate_row(single, None)), outcome);
            let entry =
                |mutations| data::mutate_rows_request::Entry { row_key: row_key.clone(), mutations, idempotency: None };
            let entries = vec![entry(many[1..].to_vec()), entry(vec![Bytes::new()])];
            let bulk = data::MutateRowsRequest { table_name: table_name.clone(), entries, ..Default::default() };
            assert_eq!(reason(mutate_rows(bulk, None)), outcome);
            for (then, otherwise) in [(many.clone(), Vec::new()), (Vec::new(), many.clone())] {
                let conditional = data::CheckAndMutateRowRequest {
                    table_name: table_name.clone(),
                    row_key: row_key.clone(),
                    true_mutations: then,
                    false_mutations: otherwise,
                    ..Default::default()
                };
                assert_eq!(reason(check(conditional, None)), outcome);
            }
            let computed = data::ReadModifyWriteRowRequest { table_name, row_key, rules: many, ..Default::default() };
            assert_eq!(reason(modify(computed, None)), outcome);
        }
    }

    #[test]
    fn pings_name_an_instance() {
        let ping = |name: &str| super::ping(&data::PingAndWarmRequest { name: name.into(), ..Default::default() });
        assert_eq!(reason(ping("projects/p/instances/i")), None);
        assert_eq!(reason(ping("projects//instances/i")), Some(Reason::InvalidArgument));
        assert_eq!(reason(ping(TABLE)), Some(Reason::InvalidArgument));
    }
}
