//! Commands of a group's log and the results of applying them.
//!
//! A command with unknown content is an error and never skipped: the replica must stop. Decoding from [`Bytes`] shares keys
//! and values with the entry instead of copying them.

use std::time::Duration;

use bytes::{Buf, Bytes};
use ebla_model::{
    Error, FamilyId, GroupId, Micros, OperationId, RowKey, Sequence, SessionId, TableId, TabletId,
    command::{CallToken, Command, CommandKind, NewTablet, Refusal, RefusalKind, Reply, RowReply, RowWrite},
    idempotency::{CallKind, IdempotencyToken},
    mutation::Change,
};
use prost::Message;

use super::{
    VERSION, check_versions,
    record::{descriptor_from_proto, descriptor_to_proto, key_range_from_proto, key_range_to_proto},
    required,
    schema::{schema_from_proto, schema_to_proto},
    tablet_move,
};
use crate::command as wire;

/// The version of a command with an idempotency token.
const TOKENS_VERSION: u32 = 2;
/// The version of a command with the time since the previous one.
const ELAPSED_VERSION: u32 = 3;
/// The version of a command with the leader's clock.
const CLOCK_VERSION: u32 = 4;

/// Encodes a command for the log.
pub fn encode(command: &Command) -> Bytes {
    let message = wire::Command {
        version: version_of(command),
        time_micros: command.time.get(),
        elapsed_micros: command.elapsed.map(|elapsed| i64::try_from(elapsed.as_micros()).unwrap_or(i64::MAX)),
        clock_micros: command.clock.map(Micros::get),
        kind: Some(kind_to_proto(&command.kind)),
    };
    message.encode_to_vec().into()
}

/// Decodes the command of an entry.
///
/// # Errors
/// `DataDamaged` when it has unknown content. The replica must stop.
pub fn decode(bytes: impl Buf) -> Result<Command, Error> {
    let command = wire::Command::decode(bytes).map_err(|error| Error::damaged(format!("read command: {error}")))?;
    check_versions(command.version, CLOCK_VERSION, "command")?;
    Ok(Command {
        time: Micros::new(command.time_micros),
        elapsed: command.elapsed_micros.map(|micros| Duration::from_micros(u64::try_from(micros).unwrap_or_default())),
        clock: command.clock_micros.map(Micros::new),
        kind: kind_from_proto(required(command.kind, "command: kind")?)?,
    })
}

fn version_of(command: &Command) -> u32 {
    match &command.kind {
        _ if command.clock.is_some() => CLOCK_VERSION,
        _ if command.elapsed.is_some() => ELAPSED_VERSION,
        CommandKind::Write(rows) if rows.iter().any(|row| row.token.is_some()) => TOKENS_VERSION,
        _ => VERSION,
    }
}

fn kind_to_proto(kind: &CommandKind) -> wire::command::Kind {
    use wire::command::Kind;
    match kind {
        CommandKind::Write(rows) => Kind::Write(wire::Write { rows: rows.iter().map(row_write_to_proto).collect() }),
        CommandKind::CreateTablets { operation, schema, tablets } => Kind::CreateTablets(wire::CreateTablets {
            operation: operation.get(),
            schema: Some(schema_to_proto(schema)),
            tablets: tablets.iter().map(new_tablet_to_proto).collect(),
        }),
        CommandKind::Split { tablet, at, child } => {
            Kind::Split(wire::Split { tablet: tablet.get(), at: at.bytes().clone(), child: child.get() })
        }
        CommandKind::Merge { left, right } => Kind::Merge(wire::Merge { left: left.get(), right: right.get() }),
        CommandKind::Divide { tablets, child } => Kind::Divide(wire::Divide {
            tablets: tablets.iter().map(|tablet| tablet.get()).collect(),
            child: child.get(),
        }),
        CommandKind::SetSchema(schema) => Kind::SetSchema(wire::SetSchema { schema: Some(schema_to_proto(schema)) }),
        CommandKind::DropRange { operation, table, range } => Kind::DropRange(wire::DropRange {
            operation: operation.get(),
            table: table.get(),
            range: Some(key_range_to_proto(range)),
        }),
        CommandKind::Drop { operation, table } => {
            Kind::Drop(wire::Drop { operation: operation.get(), table: table.get() })
        }
        CommandKind::Collect { tablet, range, time } => Kind::Collect(wire::Collect {
            tablet: tablet.get(),
            range: Some(key_range_to_proto(range)),
            time_micros: time.get(),
        }),
        CommandKind::Move(id, step) => Kind::Move(tablet_move::step_to_proto(*id, step)),
        CommandKind::Tick => Kind::Tick(wire::Tick {}),
    }
}

fn kind_from_proto(kind: wire::command::Kind) -> Result<CommandKind, Error> {
    use wire::command::Kind;
    Ok(match kind {
        Kind::Write(write) => {
            CommandKind::Write(write.rows.into_iter().map(row_write_from_proto).collect::<Result<_, _>>()?)
        }
        Kind::CreateTablets(create) => CommandKind::CreateTablets {
            operation: OperationId::new(create.operation),
            schema: schema_from_proto(&required(create.schema, "create tablets command: schema")?)?,
            tablets: create.tablets.iter().map(new_tablet_from_proto).collect::<Result<_, _>>()?,
        },
        Kind::Split(split) => CommandKind::Split {
            tablet: TabletId::new(split.tablet),
            at: RowKey::new(split.at),
            child: TabletId::new(split.child),
        },
        Kind::Merge(merge) => CommandKind::Merge { left: TabletId::new(merge.left), right: TabletId::new(merge.right) },
        Kind::Divide(divide) => CommandKind::Divide {
            tablets: divide.tablets.into_iter().map(TabletId::new).collect(),
            child: GroupId::new(divide.child),
        },
        Kind::SetSchema(set) => {
            CommandKind::SetSchema(schema_from_proto(&required(set.schema, "set schema command: schema")?)?)
        }
        Kind::DropRange(drop) => CommandKind::DropRange {
            operation: OperationId::new(drop.operation),
            table: TableId::new(drop.table),
            range: key_range_from_proto(&required(drop.range, "drop range command: range")?)?,
        },
        Kind::Drop(drop) => {
            CommandKind::Drop { operation: OperationId::new(drop.operation), table: TableId::new(drop.table) }
        }
        Kind::Collect(collect) => CommandKind::Collect {
            tablet: TabletId::new(collect.tablet),
            range: key_range_from_proto(&required(collect.range, "collect command: range")?)?,
            time: Micros::new(collect.time_micros),
        },
        Kind::Move(step) => {
            let (id, step) = tablet_move::step_from_proto(step)?;
            CommandKind::Move(id, step)
        }
        Kind::Tick(wire::Tick {}) => CommandKind::Tick,
    })
}

/// A tablet to create.
pub fn new_tablet_to_proto(tablet: &NewTablet) -> wire::NewTablet {
    wire::NewTablet { tablet: tablet.tablet.get(), range: Some(key_range_to_proto(&tablet.range)) }
}

/// A tablet to create.
///
/// # Errors
/// `DataDamaged` when the range is missing or not a range.
pub fn new_tablet_from_proto(tablet: &wire::NewTablet) -> Result<NewTablet, Error> {
    let range = key_range_from_proto(required(tablet.range.as_ref(), "new tablet: range")?)?;
    Ok(NewTablet { tablet: TabletId::new(tablet.tablet), range })
}

fn row_write_to_proto(write: &RowWrite) -> wire::RowWrite {
    wire::RowWrite {
        tablet: write.tablet.get(),
        session: Bytes::copy_from_slice(&write.session.to_bytes()),
        sequence: write.sequence.get(),
        lowest_outstanding: write.lowest_outstanding.get(),
        row: write.row.bytes().clone(),
        changes: write.changes.iter().map(change_to_proto).collect(),
        result: write.result.clone(),
        token: write.token.as_ref().map(call_token_to_proto),
    }
}

fn row_write_from_proto(write: wire::RowWrite) -> Result<RowWrite, Error> {
    Ok(RowWrite {
        tablet: TabletId::new(write.tablet),
        session: required(SessionId::from_bytes(&write.session), "write command: session")?,
        sequence: Sequence::new(write.sequence),
        lowest_outstanding: Sequence::new(write.lowest_outstanding),
        row: RowKey::new(write.row),
        changes: write.changes.into_iter().map(change_from_proto).collect::<Result<_, _>>()?,
        result: write.result,
        token: write.token.map(call_token_from_proto).transpose()?,
    })
}

fn call_token_to_proto(token: &CallToken) -> wire::IdempotencyToken {
    wire::IdempotencyToken {
        call: token.kind.number().into(),
        token: token.token.token.clone(),
        started_micros: token.token.started.map(Micros::get),
    }
}

fn call_token_from_proto(token: wire::IdempotencyToken) -> Result<CallToken, Error> {
    let kind = u8::try_from(token.call).ok().and_then(CallKind::from_number);
    Ok(CallToken {
        kind: required(kind, "write command: kind of a token's call")?,
        token: IdempotencyToken { token: token.token, started: token.started_micros.map(Micros::new) },
    })
}

fn change_to_proto(change: &Change) -> wire::Change {
    use wire::change::Kind;
    let kind = match change {
        Change::SetCell { family, qualifier, timestamp, value } => Kind::SetCell(wire::SetCell {
            family: family.get(),
            qualifier: qualifier.clone(),
            timestamp_micros: timestamp.get(),
            value: value.clone(),
        }),
        Change::DeleteColumn { family, qualifier, start, end } => Kind::DeleteColumn(wire::DeleteColumn {
            family: family.get(),
            qualifier: qualifier.clone(),
            start_micros: start.get(),
            end_micros: end.map(Micros::get),
        }),
        Change::DeleteFamily(family) => Kind::DeleteFamily(family.get()),
        Change::DeleteRow => Kind::DeleteRow(true),
    };
    wire::Change { kind: Some(kind) }
}

fn change_from_proto(change: wire::Change) -> Result<Change, Error> {
    use wire::change::Kind;
    Ok(match required(change.kind, "write command: change")? {
        Kind::SetCell(set) => Change::SetCell {
            family: FamilyId::new(set.family),
            qualifier: set.qualifier,
            timestamp: Micros::new(set.timestamp_micros),
            value: set.value,
        },
        Kind::DeleteColumn(delete) => Change::DeleteColumn {
            family: FamilyId::new(delete.family),
            qualifier: delete.qualifier,
            start: Micros::new(delete.start_micros),
            end: delete.end_micros.map(Micros::new),
        },
        Kind::DeleteFamily(family) => Change::DeleteFamily(FamilyId::new(family)),
        Kind::DeleteRow(_) => Change::DeleteRow,
    })
}

/// Encodes the result of applying a command.
pub fn encode_reply(reply: &Reply) -> Bytes {
    use wire::reply::Kind;
    let kind = match reply {
        Reply::Write(rows) => Kind::Write(wire::WriteReply { rows: rows.iter().map(row_reply_to_proto).collect() }),
        Reply::Split { left, right } => Kind::Split(wire::SplitReply {
            left: Some(descriptor_to_proto(left)),
            right: Some(descriptor_to_proto(right)),
        }),
        Reply::Merge(merged) => Kind::Merge(descriptor_to_proto(merged)),
        Reply::Import(status) => Kind::Import(tablet_move::status_to_proto(status)),
        Reply::Done => Kind::Done(true),
        Reply::Refused(refusal) => Kind::Refused(refusal_to_proto(refusal)),
    };
    wire::Reply { kind: Some(kind) }.encode_to_vec().into()
}

/// Decodes the result of applying a command.
///
/// # Errors
/// `DataDamaged` when it does not decode.
pub fn decode_reply(bytes: impl Buf) -> Result<Reply, Error> {
    use wire::reply::Kind;
    let reply = wire::Reply::decode(bytes).map_err(|error| Error::damaged(format!("read reply: {error}")))?;
    Ok(match required(reply.kind, "reply: kind")? {
        Kind::Write(write) => Reply::Write(write.rows.into_iter().map(row_reply_from_proto).collect::<Result<_, _>>()?),
        Kind::Split(split) => Reply::Split {
            left: Box::new(descriptor_from_proto(&required(split.left, "split reply: left")?)?),
            right: Box::new(descriptor_from_proto(&required(split.right, "split reply: right")?)?),
        },
        Kind::Merge(merged) => Reply::Merge(Box::new(descriptor_from_proto(&merged)?)),
        Kind::Import(status) => Reply::Import(tablet_move::status_from_proto(status)?),
        Kind::Done(_) => Reply::Done,
        Kind::Refused(refusal) => Reply::Refused(refusal_from_proto(refusal)?),
    })
}

fn row_reply_to_proto(reply: &RowReply) -> wire::RowReply {
    use wire::row_reply::Kind;
    let kind = match reply {
        RowReply::Applied => Kind::Applied(true),
        RowReply::Duplicate(result) => Kind::Duplicate(wire::Duplicate { result: result.clone() }),
        RowReply::Refused(refusal) => Kind::Refused(refusal_to_proto(refusal)),
    };
    wire::RowReply { kind: Some(kind) }
}

fn row_reply_from_proto(reply: wire::RowReply) -> Result<RowReply, Error> {
    use wire::row_reply::Kind;
    Ok(match required(reply.kind, "write reply: row")? {
        Kind::Applied(_) => RowReply::Applied,
        Kind::Duplicate(duplicate) => RowReply::Duplicate(duplicate.result),
        Kind::Refused(refusal) => RowReply::Refused(refusal_from_proto(refusal)?),
    })
}

fn refusal_to_proto(refusal: &Refusal) -> wire::Refusal {
    let kind = match refusal.kind {
        RefusalKind::OutOfRange => wire::RefusalKind::OutOfRange,
        RefusalKind::UnknownFamily => wire::RefusalKind::UnknownFamily,
        RefusalKind::Dropped => wire::RefusalKind::Dropped,
        RefusalKind::SessionForgotten => wire::RefusalKind::SessionForgotten,
        RefusalKind::NotNow => wire::RefusalKind::NotNow,
        RefusalKind::TokenOutOfTime => wire::RefusalKind::TokenOutOfTime,
    };
    wire::Refusal { kind: kind.into(), message: refusal.message.clone() }
}

fn refusal_from_proto(refusal: wire::Refusal) -> Result<Refusal, Error> {
    let kind = match refusal.kind() {
        wire::RefusalKind::OutOfRange => RefusalKind::OutOfRange,
        wire::RefusalKind::UnknownFamily => RefusalKind::UnknownFamily,
        wire::RefusalKind::Dropped => RefusalKind::Dropped,
        wire::RefusalKind::SessionForgotten => RefusalKind::SessionForgotten,
        wire::RefusalKind::NotNow => RefusalKind::NotNow,
        wire::RefusalKind::TokenOutOfTime => RefusalKind::TokenOutOfTime,
        wire::RefusalKind::Unspecified => return Err(Error::damaged("refusal of unknown kind")),
    };
    Ok(Refusal { kind, message: refusal.message })
}

#[cfg(test)]
mod tests {
    use ebla_model::{KeyRange, Reason, ServerId, TableId, TableSchema, TabletDescriptor};
    use proptest::{collection::vec, option, prelude::*};

    use super::*;

    fn bytes() -> impl Strategy<Value = Bytes> {
        vec(any::<u8>(), 0..20).prop_map(Bytes::from)
    }

    fn change() -> impl Strategy<Value = Change> {
        let family = any::<u32>().prop_map(FamilyId::new);
        let micros = any::<i64>().prop_map(Micros::new);
        prop_oneof![
            (family.clone(), bytes(), micros.clone(), bytes()).prop_map(|(family, qualifier, timestamp, value)| {
                Change::SetCell { family, qualifier, timestamp, value }
            }),
            (family.clone(), bytes(), micros.clone(), option::of(micros))
                .prop_map(|(family, qualifier, start, end)| Change::DeleteColumn { family, qualifier, start, end }),
            family.prop_map(Change::DeleteFamily),
            Just(Change::DeleteRow),
        ]
    }

    fn row_write() -> impl Strategy<Value = RowWrite> {
        let id = (any::<u128>(), any::<u64>(), any::<u64>(), any::<u64>());
        (id, bytes(), vec(change(), 0..4), option::of(bytes()), option::of(call_token())).prop_map(
            |((session, sequence, lowest, tablet), row, changes, result, token)| RowWrite {
                tablet: TabletId::new(tablet),
                session: SessionId::new(session),
                sequence: Sequence::new(sequence),
                lowest_outstanding: Sequence::new(lowest),
                row: RowKey::new(row),
                changes,
                result,
                token,
            },
        )
    }

    fn call_token() -> impl Strategy<Value = CallToken> {
        let kind = prop_oneof![Just(CallKind::Mutate), Just(CallKind::Check), Just(CallKind::Modify)];
        (kind, bytes(), option::of(any::<i64>())).prop_map(|(kind, token, started)| CallToken {
            kind,
            token: IdempotencyToken { token, started: started.map(Micros::new) },
        })
    }

    proptest! {
        #[test]
        fn writes_come_back(
            time in any::<i64>(),
            elapsed in option::of(0u64..1 << 50),
            clock in option::of(any::<i64>()),
            rows in vec(row_write(), 0..4),
        ) {
            let (elapsed, clock) = (elapsed.map(Duration::from_micros), clock.map(Micros::new));
            let sent = Command { time: Micros::new(time), elapsed, clock, kind: CommandKind::Write(rows) };
            prop_assert_eq!(decode(encode(&sent)), Ok(sent));
        }

        #[test]
        fn any_bytes_are_decoded_or_refused(bytes in vec(any::<u8>(), 0..60)) {
            let _ = decode(Bytes::from(bytes));
        }
    }

    #[test]
    fn every_other_command_comes_back() {
        let range = KeyRange::prefix(b"com.");
        let operation = OperationId::new(77);
        let (table, tablet) = (TableId::new(4), TabletId::new(8));
        let schema = TableSchema::new(table, "projects/p/instances/i/tables/t".parse().unwrap(), []).unwrap();
        let tablets = vec![NewTablet { tablet, range: range.clone() }];
        let kinds = [
            CommandKind::CreateTablets { operation, schema: schema.clone(), tablets },
            CommandKind::Split { tablet, at: RowKey::new("m"), child: TabletId::new(12) },
            CommandKind::Merge { left: tablet, right: TabletId::new(9) },
            CommandKind::Divide { tablets: vec![tablet, TabletId::new(9)], child: GroupId::new(5) },
            CommandKind::SetSchema(schema),
            CommandKind::DropRange { operation, table, range: range.clone() },
            CommandKind::Drop { operation, table },
            CommandKind::Collect { tablet, range, time: Micros::new(5) },
            CommandKind::Tick,
        ];
        for kind in kinds {
            let sent = Command { time: Micros::new(3), elapsed: None, clock: None, kind };
            assert_eq!(decode(encode(&sent)), Ok(sent));
        }
    }

    #[test]
    fn a_command_of_a_newer_release_is_refused() {
        let newer = wire::Command {
            version: CLOCK_VERSION + 1,
            time_micros: 1,
            elapsed_micros: None,
            clock_micros: None,
            kind: Some(wire::command::Kind::Tick(wire::Tick {})),
        };
        assert_eq!(decode(Bytes::from(newer.encode_to_vec())).unwrap_err().reason, Reason::DataDamaged);
        // Version 1, and a kind with a number that this release does not have.
        assert!(decode(&[8, 1, 0x92, 0x03, 0][..]).is_err());
    }

    #[test]
    fn only_a_command_with_something_new_stops_older_releases() {
        let token = CallToken {
            kind: CallKind::Check,
            token: IdempotencyToken { token: Bytes::from("tokentoken"), started: None },
        };
        let (elapsed, clock) = (Some(Duration::from_micros(7)), Some(Micros::new(2)));
        let cases = [
            (None, None, None, VERSION),
            (Some(token.clone()), None, None, TOKENS_VERSION),
            (None, elapsed, None, ELAPSED_VERSION),
            (Some(token.clone()), elapsed, None, ELAPSED_VERSION),
            (None, None, clock, CLOCK_VERSION),
            (Some(token), elapsed, clock, CLOCK_VERSION),
        ];
        for (token, elapsed, clock, version) in cases {
            let row = RowWrite {
                tablet: TabletId::new(4),
                session: SessionId::new(1),
                sequence: Sequence::new(1),
                lowest_outstanding: Sequence::new(1),
                row: RowKey::new("r"),
                changes: Vec::new(),
                result: None,
                token,
            };
            let sent = Command { time: Micros::new(3), elapsed, clock, kind: CommandKind::Write(vec![row]) };
            assert_eq!(wire::Command::decode(encode(&sent)).unwrap().version, version);
            assert_eq!(decode(encode(&sent)), Ok(sent));
        }
    }

    #[test]
    fn replies_come_back() {
        let refusal = Refusal { kind: RefusalKind::UnknownFamily, message: "family 4 is gone".into() };
        let tablet = TabletDescriptor::initial(TableId::new(1), TabletId::new(2), KeyRange::all(), &[ServerId::new(3)]);
        let replies = [
            Reply::Write(vec![
                RowReply::Applied,
                RowReply::Duplicate(None),
                RowReply::Duplicate(Some(Bytes::from("x"))),
                RowReply::Refused(refusal.clone()),
            ]),
            Reply::Split { left: Box::new(tablet.clone()), right: Box::new(tablet.clone()) },
            Reply::Merge(Box::new(tablet)),
            Reply::Done,
            Reply::Refused(refusal),
        ];
        for sent in replies {
            assert_eq!(decode_reply(encode_reply(&sent)), Ok(sent));
        }
    }
}
