//! Fuzz targets: functions on untrusted bytes that must hold for every input.
//!
//! Each takes any bytes, panics on a failure, and returns whether the bytes were accepted. `cargo fuzz` searches inputs
//! guided by coverage; `proto/tests/fuzz.rs` runs the same functions on the bytes of `inputs.rs` in every test run.

use std::fmt::Debug;

use bytes::Bytes;
use ebla_model::cell::{Cell, FamilyName, Row};
use ebla_model::codec::{CellKey, ColumnKey, decode_value, encode_value, escaped_len, unescape};
use ebla_model::filter::{CompiledFilter, Filter};
use ebla_model::id::{GroupId, ServerId, TabletId};
use ebla_model::key::{KeyRange, RowKey};
use ebla_model::metadata::GroupDescriptor;
use ebla_model::time::Micros;
use ebla_model::{Error, Reason, metadata};
use ebla_proto::convert::{app_profile, instance, operation, tablet_move};
use ebla_proto::{convert, data, record};
use prost::Message;

/// Whether the bytes were accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum InputOutcome {
    /// The bytes are valid.
    Accepted,
    /// The bytes were refused.
    Refused,
}

/// A name and its function.
pub(crate) type Target = (&'static str, fn(&[u8]) -> InputOutcome);

/// All targets.
pub(crate) const TARGETS: [Target; 9] = [
    ("filter_tree", filter_tree),
    ("pattern", pattern),
    ("row_set", row_set),
    ("cell_codec", cell_codec),
    ("metadata_row", metadata_row),
    ("request", request),
    ("log_command", log_command),
    ("chubby_file", chubby_file),
    ("group_record", group_record),
];

/// A filter of a request: it round-trips, compiles or is refused, and runs on a row.
pub(crate) fn filter_tree(bytes: &[u8]) -> InputOutcome {
    let Ok(filter) = convert::filter_from_bytes(&Bytes::copy_from_slice(bytes)) else { return InputOutcome::Refused };
    let encoded = convert::filter_to_bytes(&filter);
    let again = convert::filter_from_bytes(&encoded).expect("encoded bytes decode");
    assert_eq!(again, filter, "a filter does not round-trip");
    run(filter);
    InputOutcome::Accepted
}

/// A regular expression, as the filter of a value.
pub(crate) fn pattern(bytes: &[u8]) -> InputOutcome {
    run(Filter::ValueRegex(Bytes::copy_from_slice(bytes)))
}

/// Compiles a filter and runs it on a row.
fn run(filter: Filter) -> InputOutcome {
    let compiled = match CompiledFilter::compile(filter) {
        Ok(compiled) => compiled,
        Err(error) => {
            assert_eq!(error.reason, Reason::InvalidArgument, "{error}");
            return InputOutcome::Refused;
        }
    };
    let row = sample_row();
    let matches = compiled.matches(&row, &|| false);
    match (compiled.apply(row, &|| false), matches) {
        (Ok(passed), Ok(matches)) => {
            assert_eq!(matches, !passed.cells.is_empty(), "matches and apply disagree");
            assert!(passed.cells.is_sorted_by(|a, b| a.order(b).is_le()), "out of order");
        }
        // Too many copies; a match may be found before that.
        (Err(error), _) | (_, Err(error)) => assert_eq!(error.reason, Reason::FailedPrecondition, "{error}"),
    }
    InputOutcome::Accepted
}

fn sample_row() -> Row {
    let values: [&[u8]; 5] = [b"", b"a", b"b\n", b"\x00\xff", b"\x00\x00\x00\x00\x00\x00\x00\x01"];
    let cells = ["f", "g"].iter().flat_map(|family| {
        values.iter().zip(0..).flat_map(move |(value, number)| {
            [3_000, 1_000].map(|time| {
                let qualifier = Bytes::copy_from_slice(&[b'a' + number]);
                Cell::new(
                    FamilyName::new(family).expect("a name"),
                    qualifier,
                    Micros::new(time),
                    Bytes::from_static(value),
                )
            })
        })
    });
    Row { key: RowKey::new("row"), cells: cells.collect() }
}

/// The row set of a read: ascending ranges that neither overlap nor touch and contain exactly the requested keys.
pub(crate) fn row_set(bytes: &[u8]) -> InputOutcome {
    let Ok(message) = data::RowSet::decode(bytes) else { return InputOutcome::Refused };
    let Ok(rows) = convert::row_set_from_proto(Some(&message)) else { return InputOutcome::Refused };
    let ranges = rows.ranges();
    for (one, next) in ranges.iter().zip(ranges.iter().skip(1)) {
        assert!(one.end().is_some_and(|end| end < next.start()), "{one:?} and {next:?}");
    }
    for key in &message.row_keys {
        assert!(rows.contains(key));
        let key = RowKey::new(key.clone());
        let (before, after) = (rows.before(&key), rows.after(&key));
        assert!(!before.contains(key.as_bytes()) && !after.contains(key.as_bytes()));
        assert!(before.ranges().iter().chain(after.ranges()).all(|part| ranges.iter().any(|range| range.covers(part))));
    }
    for range in &message.row_ranges {
        let range: KeyRange = convert::row_range_from_proto(range).expect("it was accepted");
        assert!(ranges.iter().any(|whole| whole.covers(&range)));
    }
    InputOutcome::Accepted
}

/// The key of a stored cell: it round-trips, and encoded keys sort like decoded ones.
pub(crate) fn cell_codec(bytes: &[u8]) -> InputOutcome {
    if let Ok((plain, rest)) = unescape(bytes) {
        let length = escaped_len(bytes).expect("an unescaped string has a length");
        assert_eq!(length + rest.len(), bytes.len());
        assert!(plain.len() < length);
    }
    if let Ok(value) = decode_value(Bytes::copy_from_slice(bytes)) {
        assert_eq!(encode_value(&value), bytes);
    }
    drop(ColumnKey::decode(bytes));
    let Ok(key) = CellKey::decode(bytes) else { return InputOutcome::Refused };
    assert_eq!(key.encode(), bytes);
    let next = CellKey { row: key.row.successor(), ..key.clone() };
    assert!(next.encode().as_slice() > bytes, "rows are out of order");
    InputOutcome::Accepted
}

/// A row of METADATA: its key and the descriptor in it.
pub(crate) fn metadata_row(bytes: &[u8]) -> InputOutcome {
    let key = RowKey::copy_from_slice(bytes);
    let parsed = metadata::parse_row_key(&key);
    if let Ok((table, end)) = &parsed {
        assert_eq!(metadata::row_key(*table, end.as_ref()), key);
        if end.as_ref().is_none_or(|end| !end.is_empty()) {
            assert!(metadata::table_range(*table).contains(bytes));
        }
    }
    let descriptor = stored(bytes, convert::descriptor_from_bytes, convert::descriptor_to_bytes);
    if parsed.is_ok() { InputOutcome::Accepted } else { descriptor }
}

/// A public request of any kind, with its encoded parts.
pub(crate) fn request(bytes: &[u8]) -> InputOutcome {
    let bytes = Bytes::copy_from_slice(bytes);
    mutation(&bytes);
    rule(&bytes);
    let known = [read(&bytes), sample(&bytes), write(&bytes), bulk_write(&bytes), check(&bytes), modify(&bytes)];
    if known.iter().any(Option::is_some) { InputOutcome::Accepted } else { InputOutcome::Refused }
}

fn read(bytes: &Bytes) -> Option<()> {
    let read = data::ReadRowsRequest::decode(bytes.clone()).ok()?;
    filter_tree(&read.filter.unwrap_or_default());
    drop(convert::row_set_from_proto(read.rows.as_ref()));
    Some(())
}

fn sample(bytes: &Bytes) -> Option<()> {
    let sample = data::SampleRowKeysRequest::decode(bytes.clone()).ok()?;
    drop(sample.row_range.as_ref().map(convert::row_range_from_proto));
    Some(())
}

fn write(bytes: &Bytes) -> Option<()> {
    data::MutateRowRequest::decode(bytes.clone()).ok()?.mutations.iter().for_each(mutation);
    Some(())
}

fn bulk_write(bytes: &Bytes) -> Option<()> {
    let writes = data::MutateRowsRequest::decode(bytes.clone()).ok()?;
    writes.entries.iter().flat_map(|entry| &entry.mutations).for_each(mutation);
    Some(())
}

fn check(bytes: &Bytes) -> Option<()> {
    let check = data::CheckAndMutateRowRequest::decode(bytes.clone()).ok()?;
    filter_tree(&check.predicate_filter.unwrap_or_default());
    check.true_mutations.iter().chain(&check.false_mutations).for_each(mutation);
    Some(())
}

fn modify(bytes: &Bytes) -> Option<()> {
    data::ReadModifyWriteRowRequest::decode(bytes.clone()).ok()?.rules.iter().for_each(rule);
    Some(())
}

fn mutation(bytes: &Bytes) {
    match convert::mutation_from_bytes(bytes) {
        Ok(mutation) => {
            let again = convert::mutation_from_bytes(&convert::mutation_to_bytes(&mutation));
            assert_eq!(again.as_ref(), Ok(&mutation), "a mutation does not round-trip");
        }
        Err(error) => refused(&error),
    }
}

fn rule(bytes: &Bytes) {
    match convert::rule_from_bytes(bytes) {
        Ok(rule) => {
            let again = convert::rule_from_bytes(&convert::rule_to_bytes(&rule));
            assert_eq!(again.as_ref(), Ok(&rule), "a rule does not round-trip");
        }
        Err(error) => refused(&error),
    }
}

/// A client's input is refused as invalid or as unsupported.
fn refused(error: &Error) {
    assert!(matches!(error.reason, Reason::InvalidArgument | Reason::Unimplemented), "{error}");
}

/// A command of a tablet's log: it round-trips.
pub(crate) fn log_command(bytes: &[u8]) -> InputOutcome {
    drop(convert::command::decode_reply(bytes));
    let Ok(command) = convert::command::decode(bytes) else { return InputOutcome::Refused };
    let again = convert::command::decode(convert::command::encode(&command));
    assert_eq!(again.as_ref(), Ok(&command), "a command does not round-trip");
    InputOutcome::Accepted
}

/// The value of a file in Chubby: a schema, an instance, a profile, an operation, a registration or a plan.
pub(crate) fn chubby_file(bytes: &[u8]) -> InputOutcome {
    any_accepted(&[
        stored(bytes, convert::schema_from_bytes, convert::schema_to_bytes),
        stored(bytes, instance::instance_from_bytes, instance::instance_to_bytes),
        stored(bytes, app_profile::app_profile_from_bytes, app_profile::app_profile_to_bytes),
        stored(bytes, operation::finished_operation_from_bytes, operation::finished_operation_to_bytes),
        plain_record::<record::Server>(bytes),
        plain_record::<record::Master>(bytes),
        stored(bytes, cluster_record, |cluster: &record::Cluster| convert::cluster_to_bytes(cluster.clone())),
        plain_record::<record::TablePlan>(bytes),
        plain_record::<record::GroupPlan>(bytes),
        plain_record::<record::DirectoryCopy>(bytes),
    ])
}

/// The record of a cluster, without its version, which follows from the content.
fn cluster_record(bytes: Bytes) -> Result<record::Cluster, Error> {
    Ok(record::Cluster { version: 0, ..convert::decode_record(bytes)? })
}

/// A value in the state of a group.
pub(crate) fn group_record(bytes: &[u8]) -> InputOutcome {
    let servers = [1, 2, 3].map(ServerId::new);
    let group = GroupDescriptor::initial(GroupId::new(5), &servers);
    let tablet = |bytes: Bytes| convert::tablet_record_from_proto(&convert::decode_record(bytes)?, &group);
    let session = |bytes: Bytes| convert::session_from_proto(&convert::decode_record(bytes)?);
    let arrival = |arrival: &_| tablet_move::arrival_to_bytes(TabletId::new(1), arrival);
    any_accepted(&[
        stored(bytes, convert::group_from_bytes, convert::group_to_bytes),
        stored(bytes, tablet, |tablet| convert::tablet_record_to_proto(tablet).encode_to_vec().into()),
        stored(bytes, session, |session| convert::session_to_proto(session).encode_to_vec().into()),
        stored(bytes, convert::token_record_from_bytes, convert::token_record_to_bytes),
        stored(bytes, tablet_move::departure_from_bytes, tablet_move::departure_to_bytes),
        stored(bytes, tablet_move::arrival_from_bytes, arrival),
        stored(bytes, tablet_move::dropped_rows_from_bytes, tablet_move::dropped_rows_to_bytes),
    ])
}

/// A record without a type in the model.
fn plain_record<R: convert::Record + Clone + PartialEq + Debug>(bytes: &[u8]) -> InputOutcome {
    stored(bytes, convert::decode_record::<R>, |record: &R| convert::encode_record(record.clone()))
}

/// A stored value: accepted and round-trips, or refused as damaged.
fn stored<T: PartialEq + Debug>(
    bytes: &[u8],
    decode: impl Fn(Bytes) -> Result<T, Error>,
    encode: impl Fn(&T) -> Bytes,
) -> InputOutcome {
    match decode(Bytes::copy_from_slice(bytes)) {
        Ok(value) => {
            assert_eq!(decode(encode(&value)).as_ref(), Ok(&value), "a stored value does not round-trip");
            InputOutcome::Accepted
        }
        Err(error) => {
            assert_eq!(error.reason, Reason::DataDamaged, "{error}");
            InputOutcome::Refused
        }
    }
}

fn any_accepted(outcomes: &[InputOutcome]) -> InputOutcome {
    if outcomes.contains(&InputOutcome::Accepted) { InputOutcome::Accepted } else { InputOutcome::Refused }
}
