//! Steps of moving a tablet between groups, the replies to them, and the records of tablets that depart and arrive.

use std::time::Duration;

use bytes::{Buf, Bytes};
use ebla_model::{
    Error, Generation, GroupId, LogIndex, Micros, OperationId, SessionId, TableId, TabletId,
    id::{CopyId, FamilyId},
    session::SessionWindow,
    tablet_move::{
        Arrival, ArrivalProgress, Departure, DeparturePhase, DroppedRows, ImportChunk, ImportPosition, ImportStart,
        ImportStatus, ImportedSession, ImportedToken, MoveId, MoveStep, RemovedCells,
    },
};

use super::{
    VERSION,
    record::{
        decode_record, descriptor_from_proto, descriptor_to_proto, encode_record, group_from_proto, group_to_proto,
        key_range_from_proto, key_range_to_proto, session_from_proto, session_to_proto,
    },
    required,
    schema::{schema_from_proto, schema_to_proto},
};
use crate::{command as wire, record};

/// A step of a move.
pub fn step_to_proto(id: MoveId, step: &MoveStep) -> wire::Move {
    use wire::r#move::Step;
    let step = match step {
        MoveStep::Out { target, ticket, copy } => Step::Out(wire::MoveOut {
            target: Some(group_to_proto(target)),
            ticket: ticket.get(),
            copy: copy.map(CopyId::get),
        }),
        MoveStep::Done => Step::Done(true),
        MoveStep::Back => Step::Back(true),
        MoveStep::Forget => Step::Forget(true),
        MoveStep::Begin(start) => Step::Begin(start_to_proto(start)),
        MoveStep::Chunk(chunk) => Step::Chunk(chunk_to_proto(chunk)),
        MoveStep::Finish => Step::Finish(true),
        MoveStep::Refuse => Step::Refuse(true),
        MoveStep::Abandon(copy) => Step::Abandon(copy.get()),
        MoveStep::Confirm => Step::Confirm(true),
    };
    wire::Move { tablet: id.tablet.get(), generation: id.generation.get(), step: Some(step) }
}

/// A step of a move.
///
/// # Errors
/// `DataDamaged` when it has unknown content.
pub fn step_from_proto(message: wire::Move) -> Result<(MoveId, MoveStep), Error> {
    use wire::r#move::Step;
    let id = MoveId { tablet: TabletId::new(message.tablet), generation: Generation::new(message.generation) };
    let step = match required(message.step, "move command: step")? {
        Step::Out(out) => MoveStep::Out {
            target: group_from_proto(&required(out.target, "move command: target")?)?,
            ticket: LogIndex::new(out.ticket),
            copy: out.copy.map(CopyId::new),
        },
        Step::Done(_) => MoveStep::Done,
        Step::Back(_) => MoveStep::Back,
        Step::Forget(_) => MoveStep::Forget,
        Step::Begin(start) => MoveStep::Begin(Box::new(start_from_proto(start)?)),
        Step::Chunk(chunk) => MoveStep::Chunk(chunk_from_proto(chunk)?),
        Step::Finish(_) => MoveStep::Finish,
        Step::Refuse(_) => MoveStep::Refuse,
        Step::Abandon(copy) => MoveStep::Abandon(CopyId::new(copy)),
        Step::Confirm(_) => MoveStep::Confirm,
    };
    Ok((id, step))
}

fn start_to_proto(start: &ImportStart) -> wire::ImportBegin {
    let drop = |(operation, range): &(OperationId, _)| wire::OperationRange {
        operation: operation.get(),
        range: Some(key_range_to_proto(range)),
    };
    wire::ImportBegin {
        source: start.source.get(),
        ticket: start.ticket.get(),
        range: Some(key_range_to_proto(&start.range)),
        schema: Some(schema_to_proto(&start.schema)),
        time_micros: start.time.get(),
        gc_time_micros: start.gc_time.get(),
        drops: start.drops.iter().map(drop).collect(),
        drops_known_from: start.drops_known_from.get(),
        copy: start.copy.map(CopyId::get),
        floors: start.floors.as_ref().map(|floors| wire::Floors {
            micros: floors.iter().map(|(family, floor)| (family.get(), floor.get())).collect(),
        }),
    }
}

fn start_from_proto(start: wire::ImportBegin) -> Result<ImportStart, Error> {
    let drop = |drop: wire::OperationRange| {
        let range = key_range_from_proto(&required(drop.range, "begin of an import: dropped range")?)?;
        Ok((OperationId::new(drop.operation), range))
    };
    Ok(ImportStart {
        source: GroupId::new(start.source),
        ticket: LogIndex::new(start.ticket),
        range: key_range_from_proto(&required(start.range, "begin of an import: range")?)?,
        schema: schema_from_proto(&required(start.schema, "begin of an import: schema")?)?,
        time: Micros::new(start.time_micros),
        gc_time: Micros::new(start.gc_time_micros),
        drops: start.drops.into_iter().map(drop).collect::<Result<_, Error>>()?,
        drops_known_from: OperationId::new(start.drops_known_from),
        copy: start.copy.map(CopyId::new),
        floors: start.floors.map(|floors| {
            floors.micros.into_iter().map(|(family, floor)| (FamilyId::new(family), Micros::new(floor))).collect()
        }),
    })
}

fn chunk_to_proto(chunk: &ImportChunk) -> wire::ImportChunk {
    let cell = |(key, value): &(Bytes, Bytes)| wire::KeyValue { key: key.clone(), value: value.clone() };
    let range = |(from, to): &(Bytes, Bytes)| wire::CellKeyRange { from: from.clone(), to: to.clone() };
    let token = |one: &ImportedToken| wire::ImportToken {
        key: one.key.clone(),
        remaining_micros: i64::try_from(one.remaining.as_micros()).unwrap_or(i64::MAX),
        result: one.result.clone(),
    };
    let session = |one: &ImportedSession| wire::ImportSession {
        session: Bytes::copy_from_slice(&one.session.to_bytes()),
        window: Some(session_to_proto(&SessionWindow { last_used: Micros::ZERO, ..one.window.clone() })),
        idle_micros: i64::try_from(one.idle.as_micros()).unwrap_or(i64::MAX),
    };
    wire::ImportChunk {
        from: chunk.from.to_bytes(),
        to: chunk.to.to_bytes(),
        cells: chunk.cells.iter().map(cell).collect(),
        tokens: chunk.tokens.iter().map(token).collect(),
        sessions: chunk.sessions.iter().map(session).collect(),
        copy: chunk.copy.map(CopyId::get),
        removed_ranges: chunk.removed.ranges.iter().map(range).collect(),
        removed: chunk.removed.keys.clone(),
        time_micros: chunk.times.map(|(time, _gc_time)| time.get()),
        gc_time_micros: chunk.times.map(|(_time, gc_time)| gc_time.get()),
    }
}

fn chunk_from_proto(chunk: wire::ImportChunk) -> Result<ImportChunk, Error> {
    let token = |one: wire::ImportToken| ImportedToken {
        key: one.key,
        remaining: Duration::from_micros(u64::try_from(one.remaining_micros).unwrap_or_default()),
        result: one.result,
    };
    let session = |one: wire::ImportSession| {
        Ok(ImportedSession {
            session: required(SessionId::from_bytes(&one.session), "import chunk: session")?,
            window: session_from_proto(&required(one.window, "import chunk: window")?)?,
            idle: Duration::from_micros(u64::try_from(one.idle_micros).unwrap_or_default()),
        })
    };
    Ok(ImportChunk {
        from: ImportPosition::from_bytes(&chunk.from)?,
        to: ImportPosition::from_bytes(&chunk.to)?,
        cells: chunk.cells.into_iter().map(|cell| (cell.key, cell.value)).collect(),
        tokens: chunk.tokens.into_iter().map(token).collect(),
        sessions: chunk.sessions.into_iter().map(session).collect::<Result<_, Error>>()?,
        copy: chunk.copy.map(CopyId::new),
        removed: RemovedCells {
            ranges: chunk.removed_ranges.into_iter().map(|range| (range.from, range.to)).collect(),
            keys: chunk.removed,
        },
        times: chunk.time_micros.map(Micros::new).zip(chunk.gc_time_micros.map(Micros::new)),
    })
}

/// The reply to a step in the target's log.
pub fn status_to_proto(status: &ImportStatus) -> wire::ImportStatus {
    use wire::import_status::Kind;
    let kind = match status {
        ImportStatus::Importing(position) => Kind::Importing(position.to_bytes()),
        ImportStatus::Served => Kind::Served(true),
        ImportStatus::Refused(why) => Kind::Refused(why.clone()),
    };
    wire::ImportStatus { kind: Some(kind) }
}

/// The reply to a step in the target's log.
///
/// # Errors
/// `DataDamaged` when it has unknown content.
pub fn status_from_proto(status: wire::ImportStatus) -> Result<ImportStatus, Error> {
    use wire::import_status::Kind;
    Ok(match required(status.kind, "import status: kind")? {
        Kind::Importing(position) => ImportStatus::Importing(ImportPosition::from_bytes(&position)?),
        Kind::Served(_) => ImportStatus::Served,
        Kind::Refused(why) => ImportStatus::Refused(why),
    })
}

/// A tablet that departs from a group.
pub fn departure_to_bytes(departure: &Departure) -> Bytes {
    encode_record(record::Departure {
        version: VERSION,
        tablet: Some(descriptor_to_proto(&departure.tablet)),
        target: Some(group_to_proto(&departure.target)),
        ticket: departure.ticket.get(),
        left: departure.phase == DeparturePhase::Left,
        copy: departure.copy.map(CopyId::get),
    })
}

/// A tablet that departs from a group.
///
/// # Errors
/// `DataDamaged` when it does not decode or the version is another.
pub fn departure_from_bytes(bytes: impl Buf) -> Result<Departure, Error> {
    let stored = decode_record::<record::Departure>(bytes)?;
    Ok(Departure {
        tablet: descriptor_from_proto(&required(stored.tablet, "departure: tablet")?)?,
        target: group_from_proto(&required(stored.target, "departure: target")?)?,
        ticket: LogIndex::new(stored.ticket),
        copy: stored.copy.map(CopyId::new),
        phase: if stored.left { DeparturePhase::Left } else { DeparturePhase::Copying },
    })
}

/// A tablet that arrives in a group.
pub fn arrival_to_bytes(tablet: TabletId, arrival: &Arrival) -> Bytes {
    encode_record(record::Arrival {
        version: VERSION,
        tablet: tablet.get(),
        generation: arrival.generation.get(),
        table: arrival.table.get(),
        range: Some(key_range_to_proto(&arrival.range)),
        source: arrival.source.get(),
        position: match &arrival.progress {
            ArrivalProgress::Importing(position) => Some(position.to_bytes()),
            ArrivalProgress::Served => None,
        },
        copy: arrival.copy.map(CopyId::get),
    })
}

/// A tablet that arrives in a group.
///
/// # Errors
/// `DataDamaged` when it does not decode or the version is another.
pub fn arrival_from_bytes(bytes: impl Buf) -> Result<Arrival, Error> {
    let stored = decode_record::<record::Arrival>(bytes)?;
    Ok(Arrival {
        generation: Generation::new(stored.generation),
        table: TableId::new(stored.table),
        range: key_range_from_proto(&required(stored.range, "arrival: range")?)?,
        source: GroupId::new(stored.source),
        copy: stored.copy.map(CopyId::new),
        progress: match &stored.position {
            Some(position) => ArrivalProgress::Importing(ImportPosition::from_bytes(position)?),
            None => ArrivalProgress::Served,
        },
    })
}

/// The rows that an applied operation has dropped.
pub fn dropped_rows_to_bytes(dropped: &DroppedRows) -> Bytes {
    let range = Some(key_range_to_proto(&dropped.range));
    encode_record(record::DroppedRows { version: VERSION, table: dropped.table.get(), range })
}

/// The rows that an applied operation has dropped.
///
/// # Errors
/// `DataDamaged` when it does not decode or the version is another.
pub fn dropped_rows_from_bytes(bytes: impl Buf) -> Result<DroppedRows, Error> {
    let stored = decode_record::<record::DroppedRows>(bytes)?;
    let range = key_range_from_proto(&required(stored.range, "dropped rows: range")?)?;
    Ok(DroppedRows { table: TableId::new(stored.table), range })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use ebla_model::{GroupDescriptor, KeyRange, Sequence, ServerId, TableSchema};

    use super::*;

    fn id() -> MoveId {
        MoveId { tablet: TabletId::new(7), generation: Generation::new(3) }
    }

    fn group(number: u64) -> GroupDescriptor {
        GroupDescriptor::initial(GroupId::new(number), &[1, 2, 3].map(ServerId::new))
    }

    #[test]
    fn every_step_comes_back() {
        let schema = TableSchema::new(TableId::new(4), "projects/p/instances/i/tables/t".parse().unwrap(), []).unwrap();
        let window = SessionWindow {
            lowest_outstanding: Sequence::new(4),
            applied: BTreeMap::from([(Sequence::new(5), None), (Sequence::new(6), Some(Bytes::from_static(b"r")))]),
            last_used: Micros::ZERO,
        };
        let start = ImportStart {
            source: GroupId::new(2),
            ticket: LogIndex::new(40),
            range: KeyRange::prefix(b"com."),
            schema,
            time: Micros::new(9),
            gc_time: Micros::new(8),
            drops: vec![(OperationId::new(5), KeyRange::all())],
            drops_known_from: OperationId::new(2),
            copy: None,
            floors: Some(BTreeMap::from([(FamilyId::new(3), Micros::new(7))])),
        };
        let chunk = ImportChunk {
            from: ImportPosition::Start,
            to: ImportPosition::End,
            cells: vec![(Bytes::from_static(b"key"), Bytes::from_static(b"value"))],
            tokens: vec![ImportedToken {
                key: Bytes::from_static(b"token"),
                remaining: Duration::from_micros(3),
                result: Some(Bytes::from_static(b"r")),
            }],
            sessions: vec![ImportedSession { session: SessionId::new(9), window, idle: Duration::from_micros(77) }],
            copy: None,
            removed: RemovedCells::default(),
            times: None,
        };
        let copy = Some(CopyId::new(8));
        let difference = ImportChunk {
            from: ImportPosition::Difference(0),
            to: ImportPosition::Difference(1),
            copy,
            removed: RemovedCells {
                ranges: vec![(Bytes::from_static(b"a"), Bytes::from_static(b"b"))],
                keys: vec![Bytes::from_static(b"c")],
            },
            times: Some((Micros::new(9), Micros::new(8))),
            ..chunk.clone()
        };
        let steps = [
            MoveStep::Out { target: group(5), ticket: LogIndex::new(40), copy: None },
            MoveStep::Out { target: group(5), ticket: LogIndex::new(40), copy },
            MoveStep::Begin(Box::new(ImportStart { copy, ..start.clone() })),
            MoveStep::Chunk(difference),
            MoveStep::Abandon(CopyId::new(8)),
            MoveStep::Done,
            MoveStep::Back,
            MoveStep::Forget,
            MoveStep::Begin(Box::new(start)),
            MoveStep::Chunk(chunk),
            MoveStep::Finish,
            MoveStep::Refuse,
            MoveStep::Confirm,
        ];
        for step in steps {
            assert_eq!(step_from_proto(step_to_proto(id(), &step)), Ok((id(), step)));
        }
        for status in
            [ImportStatus::Importing(ImportPosition::End), ImportStatus::Served, ImportStatus::Refused("no".into())]
        {
            assert_eq!(status_from_proto(status_to_proto(&status)), Ok(status));
        }
    }

    #[test]
    fn records_come_back() {
        let tablet = group(2).tablet(TableId::new(4), id().tablet, KeyRange::all(), id().generation);
        for phase in [DeparturePhase::Copying, DeparturePhase::Left] {
            for copy in [None, Some(CopyId::new(8))] {
                let (tablet, ticket) = (tablet.clone(), LogIndex::new(4));
                let departure = Departure { tablet, target: group(5), ticket, copy, phase };
                assert_eq!(departure_from_bytes(departure_to_bytes(&departure)), Ok(departure));
            }
        }
        for progress in [ArrivalProgress::Importing(ImportPosition::Start), ArrivalProgress::Served] {
            let arrival = Arrival {
                generation: id().generation,
                table: tablet.table,
                range: KeyRange::prefix(b"a"),
                source: GroupId::new(2),
                copy: Some(CopyId::new(8)),
                progress,
            };
            assert_eq!(arrival_from_bytes(arrival_to_bytes(id().tablet, &arrival)), Ok(arrival));
        }
        let dropped = DroppedRows { table: tablet.table, range: KeyRange::prefix(b"b") };
        assert_eq!(dropped_rows_from_bytes(dropped_rows_to_bytes(&dropped)), Ok(dropped));
    }
}
