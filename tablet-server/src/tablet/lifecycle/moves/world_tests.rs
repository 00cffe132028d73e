//! Copies of a tablet that begin ahead of its move, with writes between any two steps, and with steps that are late, lost or repeated: when the
//! target serves the tablet, it has exactly the cells, tokens and sessions that the source had when the tablet departed.
//!
//! The driver makes the decisions of `ahead` in the same order, on the same records, differences and commands. It forgets its copy like a
//! leader that is replaced, and a step that was sent once may be delivered at any later time, any number of times.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use ebla_model::cell::FamilyName;
use ebla_model::codec;
use ebla_model::command::{CallToken, Command, CommandKind, Reply, RowWrite};
use ebla_model::error::Error;
use ebla_model::id::{
    CopyId, FamilyId, GroupId, LogId, LogIndex, OperationId, SchemaVersion, Sequence, ServerId, SessionId, TableId,
    TabletId, Term,
};
use ebla_model::idempotency::{CallKind, IdempotencyToken};
use ebla_model::key::{KeyRange, RowKey};
use ebla_model::metadata::GroupDescriptor;
use ebla_model::mutation::Change;
use ebla_model::schema::{Family, TableName, TableSchema, TableState};
use ebla_model::stored_row::stored_range;
use ebla_model::tablet_move::{
    Departure, ImportChunk, ImportPosition, ImportStart, ImportStatus, ImportedToken, MoveId, MoveStep,
};
use ebla_model::time::Micros;
use proptest::collection::vec;
use proptest::prelude::*;

use super::difference::{Content, Difference};
use super::export::{self, Exported};
use crate::tablet::core::apply::{Applier, CellEdit, CellReader};
use crate::tablet::core::change_record::{ChangeRecords, Changes, RecordGauge};
use crate::tablet::core::state::{GroupState, MetaEdit};

const TABLE: TableId = TableId::new(5);
const TABLET: TabletId = TabletId::new(7);
const OTHER: TabletId = TabletId::new(8);
const FAMILY: FamilyId = FamilyId::new(1);
/// A chunk has about two items.
const ROOM: usize = 60;

#[derive(Default)]
struct Cells(BTreeMap<Vec<u8>, Vec<u8>>);

fn is_inside(key: &[u8], lower: &[u8], upper: Option<&[u8]>) -> bool {
    lower <= key && upper.is_none_or(|upper| key < upper)
}

impl CellReader for Cells {
    fn keys_if_few(&self, lower: &[u8], upper: Option<&[u8]>) -> Result<Option<Vec<Vec<u8>>>, Error> {
        // A replica may call any number many.
        self.keys(lower, upper).map(|keys| (keys.len() < 3).then_some(keys))
    }

    fn keys(&self, lower: &[u8], upper: Option<&[u8]>) -> Result<Vec<Vec<u8>>, Error> {
        Ok(self.0.keys().filter(|key| is_inside(key, lower, upper)).cloned().collect())
    }
}

struct Group {
    state: GroupState,
    cells: Cells,
    changes: ChangeRecords,
}

impl Content for Group {
    fn cell(&self, key: &[u8]) -> Result<Option<Bytes>, Error> {
        Ok(self.cells.0.get(key).map(|value| Bytes::copy_from_slice(value)))
    }

    fn token(&self, key: &Bytes) -> Option<ImportedToken> {
        let token = self.state.tokens.get(key)?;
        let remaining = token.expires_at.since(self.state.session_time());
        Some(ImportedToken { key: key.clone(), remaining, result: token.result.clone() })
    }
}

impl Group {
    fn new(id: u64) -> Self {
        let servers = [1, 2, 3].map(ServerId::new);
        let state = GroupState::fresh(GroupDescriptor::initial(GroupId::new(id), &servers));
        Self { state, cells: Cells::default(), changes: ChangeRecords::default() }
    }

    fn apply(&mut self, kind: CommandKind) -> Reply {
        let time = Micros::new(self.state.time.get() + 1);
        let mut applier = Applier::new(&mut self.state, &self.cells);
        let reply = applier.apply(Command { time, elapsed: None, clock: None, kind }).unwrap();
        let edits = applier.take_edits();
        let meta: Vec<MetaEdit> = self.state.take_edits();
        self.changes.note(&edits, &meta);
        for edit in edits {
            match edit {
                CellEdit::Put(key, value) => drop(self.cells.0.insert(key, value)),
                CellEdit::Delete(key) => drop(self.cells.0.remove(&key)),
                CellEdit::DeleteRange(from, to) => self.cells.0.retain(|key, _| !is_inside(key, &from, to.as_deref())),
            }
        }
        let index = self.state.applied.index.plus(1);
        self.state.applied = LogId { term: Term::new(1), index };
        reply
    }

    fn step(&mut self, id: MoveId, step: MoveStep) -> ImportStatus {
        match self.apply(CommandKind::Move(id, step)) {
            Reply::Import(status) => status,
            other => panic!("{other:?}"),
        }
    }

    fn content(&self) -> Vec<(&Vec<u8>, &Vec<u8>)> {
        let (lower, upper) = codec::range_bounds(&stored_range(TABLE, &rows()));
        self.cells.0.iter().filter(|(key, _)| is_inside(key, &lower, upper.as_deref())).collect()
    }
}

/// The rows of the tablet.
fn rows() -> KeyRange {
    KeyRange::new(RowKey::new("b"), Some(RowKey::new("x"))).unwrap()
}

fn schema(version: u64) -> TableSchema {
    TableSchema {
        table: TABLE,
        name: TableName::from_parts("p", "inst", "t").unwrap(),
        version: SchemaVersion::new(version),
        families: vec![Family {
            id: FAMILY,
            name: FamilyName::new("f").unwrap(),
            gc: None,
            locality_group: 0,
            aggregator: None,
        }],
        locality_groups: Vec::new(),
        quotas: Default::default(),
        next_family: FamilyId::new(2),
        deletion_protection: false,
        state: TableState::Active,
    }
}

/// What a leader knows of the copy that it makes.
struct Attempt {
    id: MoveId,
    copy: CopyId,
    exported: Exported,
    start: ImportStart,
    gauge: Arc<RecordGauge>,
    /// Up to where the target has the content, as far as it has replied.
    position: ImportPosition,
    difference: Option<Difference>,
    /// Whether the target has the times of the source after all differences.
    compared: bool,
    rest: Option<VecDeque<ImportChunk>>,
    /// The step that has no reply.
    awaits: Option<MoveStep>,
}

impl Attempt {
    fn differences(&self) -> Option<u64> {
        match self.position {
            ImportPosition::Difference(number) => Some(number),
            _ => None,
        }
    }
}

struct World {
    source: Group,
    target: Group,
    attempt: Option<Attempt>,
    sent: Vec<(MoveId, CopyId, MoveStep)>,
    tickets: Vec<LogIndex>,
    numbers: u64,
    /// Time and GC time of the source when the tablet departed. The source goes on with its other tablets.
    departed_at: (Micros, Micros),
    /// A fault: the last difference is not sent.
    forgets_difference: bool,
}

impl World {
    fn new() -> Self {
        let (mut source, mut target) = (Group::new(10), Group::new(11));
        source.state.add_tablet(schema(1), TABLET, rows());
        source.state.add_tablet(schema(1), OTHER, KeyRange::new(RowKey::new("x"), None).unwrap());
        target.state.add_tablet(
            schema(1),
            TabletId::new(9),
            KeyRange::new(RowKey::default(), Some(RowKey::new("b"))).unwrap(),
        );
        let tickets = vec![target.state.applied.index];
        let mut world = Self {
            source,
            target,
            attempt: None,
            sent: Vec::new(),
            tickets,
            numbers: 0,
            departed_at: (Micros::ZERO, Micros::ZERO),
            forgets_difference: false,
        };
        (0..6).for_each(|at| world.write(at, at));
        world
    }

    fn departure(&self) -> Option<Departure> {
        self.source.state.departure_of(TABLET).cloned()
    }

    fn source_serves(&self) -> bool {
        self.source.state.tablets.contains_key(&TABLET) && self.departure().is_none()
    }

    fn target_serves(&self) -> bool {
        self.target.state.tablets.contains_key(&TABLET)
    }

    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// A write to one of a few rows, of this kind.
    fn write(&mut self, row: usize, kind: usize) {
        let number = self.number();
        let column = |number: u64| Bytes::from(format!("q{}", number % 3));
        let change = match kind % 5 {
            0 => Change::DeleteRow,
            1 => Change::DeleteColumn { family: FAMILY, qualifier: column(number), start: Micros::ZERO, end: None },
            _ => Change::SetCell {
                family: FAMILY,
                qualifier: column(number),
                timestamp: Micros::new(1),
                value: Bytes::from(format!("v{number}")),
            },
        };
        let call = |number: u64| CallToken {
            kind: CallKind::Modify,
            token: IdempotencyToken { token: Bytes::from(format!("token-{number:04}")), started: None },
        };
        let has_token = kind.is_multiple_of(3);
        let write = RowWrite {
            tablet: TABLET,
            session: SessionId::new(1 + u128::from(number % 2)),
            sequence: Sequence::new(number),
            lowest_outstanding: Sequence::new(number.saturating_sub(10)),
            row: RowKey::new(format!("row-{}", row % 6)),
            changes: vec![change],
            result: has_token.then(|| Bytes::from(format!("r{number}"))),
            token: has_token.then(|| call(number)),
        };
        // One that the source does not apply changes nothing.
        let _reply = self.source.apply(CommandKind::Write(vec![write]));
    }

    /// The rows of both tablets, or only those of the tablet that does not move, are dropped in one of the groups.
    fn drop_rows(&mut self, of_target: bool, only_others: bool) {
        let operation = OperationId::new(self.number());
        let from = RowKey::new(if only_others { "y" } else { "row-3" });
        let range = KeyRange::new(from, None).unwrap();
        let group = if of_target { &mut self.target } else { &mut self.source };
        let _reply = group.apply(CommandKind::DropRange { operation, table: TABLE, range });
    }

    fn change_schema(&mut self) {
        let version = self.source.state.tables[&TABLE].schema.version.get() + 1;
        self.source.apply(CommandKind::SetSchema(schema(version)));
        self.target.apply(CommandKind::SetSchema(schema(version)));
    }

    fn begin(&mut self, ticket: usize) {
        if self.attempt.is_some() || !self.source_serves() {
            return;
        }
        self.tickets.push(self.target.state.applied.index);
        let ticket = self.tickets[self.tickets.len() - 1 - ticket % self.tickets.len().min(2)];
        let copy = CopyId::new(self.number());
        let id = MoveId { tablet: TABLET, generation: self.source.state.tablets[&TABLET].generation };
        let exported = Exported { table: TABLE, range: rows(), ticket, copy: Some(copy) };
        let gauge = self.source.changes.begin(copy, &exported.stored_range());
        let start = export::start(&self.source.state, &exported).unwrap();
        let awaits = Some(MoveStep::Begin(Box::new(start.clone())));
        let (position, difference, rest) = (ImportPosition::Start, None, None);
        let compared = false;
        self.attempt = Some(Attempt { id, copy, exported, start, gauge, position, difference, compared, rest, awaits });
        self.send();
    }

    /// The step that the leader waits for is sent, perhaps again.
    fn send(&mut self) {
        if let Some(attempt) = &self.attempt
            && let Some(step) = &attempt.awaits
        {
            self.sent.push((attempt.id, attempt.copy, step.clone()));
        }
    }

    /// The leader does what comes next. `departs`: rather than that it sends one more difference.
    fn drive(&mut self, departs: bool) {
        let Some(mut attempt) = self.attempt.take() else { return };
        if attempt.awaits.is_none() {
            let step = if self.departure().is_some() {
                self.next_of_rest(&mut attempt)
            } else {
                self.next(&mut attempt, departs)
            };
            match step {
                Ok(step) => attempt.awaits = step,
                Err(()) => return self.give_up(&attempt),
            }
        }
        self.attempt = Some(attempt);
        self.send();
    }

    /// The next step before the departure; none when the tablet has departed.
    fn next(&mut self, attempt: &mut Attempt, departs: bool) -> Result<Option<MoveStep>, ()> {
        if attempt.gauge.is_given_up() {
            return Err(());
        }
        let Some(number) = attempt.differences() else {
            return Ok(Some(MoveStep::Chunk(self.next_item(attempt))));
        };
        if let Some(difference) = &mut attempt.difference {
            if !difference.is_empty() {
                return Ok(Some(MoveStep::Chunk(difference.next_chunk(&self.source, ROOM).unwrap().0)));
            }
            attempt.difference = None;
        }
        if !departs {
            let changes = self.source.changes.take(attempt.copy).map_err(|_given_up| ())?;
            attempt.difference = Some(Difference::new(attempt.copy, number, changes));
            attempt.compared = false;
            return Ok(None);
        }
        if !attempt.compared {
            attempt.compared = true;
            let times = (self.source.state.time, self.source.state.gc_time);
            return Ok(Some(MoveStep::Chunk(Difference::of_times(attempt.copy, number, times))));
        }
        let (target, ticket) = (self.target.state.descriptor.clone(), attempt.exported.ticket);
        let out = MoveStep::Out { target, ticket, copy: Some(attempt.copy) };
        match self.source.apply(CommandKind::Move(attempt.id, out)) {
            Reply::Done => {
                self.departed_at = (self.source.state.time, self.source.state.gc_time);
                Ok(None)
            }
            _ => Err(()),
        }
    }

    /// The next step after the departure.
    fn next_of_rest(&mut self, attempt: &mut Attempt) -> Result<Option<MoveStep>, ()> {
        if attempt.rest.is_none() {
            let changes = self.source.changes.take(attempt.copy).map_err(|_given_up| ())?;
            let now = export::start(&self.source.state, &attempt.exported).ok_or(())?;
            if !attempt.start.holds(&now) {
                return Err(());
            }
            let changes = if self.forgets_difference { Changes::default() } else { changes };
            let times = (self.source.state.time, self.source.state.gc_time);
            let difference = Difference::new(attempt.copy, attempt.differences().unwrap(), changes);
            let add = |chunk: &mut ImportChunk, room| export::add_sessions(&self.source.state, chunk, room);
            attempt.rest = Some(difference.into_rest(&self.source, times, ROOM, add).unwrap());
        }
        let next = attempt.rest.as_mut().and_then(VecDeque::pop_front);
        Ok(Some(next.map_or(MoveStep::Finish, MoveStep::Chunk)))
    }

    /// One cell or token after the position.
    fn next_item(&self, attempt: &Attempt) -> ImportChunk {
        let mut chunk = export::empty_chunk(Some(attempt.copy), attempt.position.clone());
        let (lower, upper) = codec::range_bounds(&attempt.exported.stored_range());
        let inside = |key: &[u8]| is_inside(key, &lower, upper.as_deref());
        let after = match &chunk.from {
            ImportPosition::Start => Some(Bytes::new()),
            ImportPosition::Cell(key) => Some(key.clone()),
            _ => None,
        };
        let mut cells = self.source.cells.0.iter().filter(|(key, _)| inside(key));
        let cell = after.and_then(|after| cells.find(|(key, _)| key.as_slice() > after.as_ref()));
        if let Some((key, value)) = cell {
            let (key, value) = (Bytes::copy_from_slice(key), Bytes::copy_from_slice(value));
            chunk.to = ImportPosition::Cell(key.clone());
            chunk.cells.push((key, value));
            return chunk;
        }
        let after = match &chunk.from {
            ImportPosition::Token(key) => key.clone(),
            _ => Bytes::new(),
        };
        let mut tokens = self.source.state.tokens.keys().filter(|key| inside(key));
        chunk.to = match tokens.find(|key| **key > after) {
            Some(key) => {
                chunk.tokens.push(self.source.token(key).unwrap());
                ImportPosition::Token(key.clone())
            }
            None => ImportPosition::Difference(0),
        };
        chunk
    }

    fn give_up(&mut self, attempt: &Attempt) {
        self.source.changes.end(attempt.copy);
        self.sent.push((attempt.id, attempt.copy, MoveStep::Abandon(attempt.copy)));
    }

    /// A step arrives that was sent at some time.
    fn deliver(&mut self, which: usize) {
        let Some((id, copy, step)) = self.sent.get(which % self.sent.len().max(1)).cloned() else { return };
        let status = self.target.step(id, step.clone());
        let Some(attempt) = self.attempt.as_mut().filter(|one| one.copy == copy && one.awaits.as_ref() == Some(&step))
        else {
            return;
        };
        attempt.awaits = None;
        match (step, status) {
            (MoveStep::Begin(_), ImportStatus::Importing(ImportPosition::Start)) => {}
            (MoveStep::Chunk(chunk), ImportStatus::Importing(position)) if position == chunk.to => {
                attempt.position = position
            }
            (_, ImportStatus::Served) => self.leave(id),
            _ => self.lose_leader(),
        }
    }

    /// The leader of the source is replaced, or gives up after the departure: nothing of the copy is known any more.
    fn lose_leader(&mut self) {
        if let Some(attempt) = self.attempt.take() {
            self.give_up(&attempt);
        }
    }

    fn leave(&mut self, id: MoveId) {
        self.check();
        self.attempt = None;
        assert_eq!(self.source.apply(CommandKind::Move(id, MoveStep::Done)), Reply::Done);
    }

    /// A leader that has not made the copy finds that the tablet departs.
    fn take_back(&mut self) {
        let Some(departure) = self.departure().filter(|_| self.attempt.is_none()) else { return };
        match self.target.step(departure.id(), MoveStep::Refuse) {
            ImportStatus::Refused(_) => {
                assert_eq!(self.source.apply(CommandKind::Move(departure.id(), MoveStep::Back)), Reply::Done);
            }
            ImportStatus::Served => self.leave(departure.id()),
            ImportStatus::Importing(_) => panic!("not refused"),
        }
    }

    fn abandon_idle(&mut self) {
        let copies: Vec<_> = self.target.state.copies().collect();
        for (id, copy) in copies {
            self.target.step(id, MoveStep::Abandon(copy));
        }
    }

    fn check(&self) {
        assert!(!(self.source_serves() && self.target_serves()), "two groups serve the tablet");
        if self.departure().is_some() && self.target_serves() {
            assert_eq!(self.target.content(), self.source.content());
            let tokens = |group: &Group| -> Vec<Bytes> {
                let (lower, upper) = codec::range_bounds(&stored_range(TABLE, &rows()));
                group.state.tokens.keys().filter(|key| is_inside(key, &lower, upper.as_deref())).cloned().collect()
            };
            assert_eq!(tokens(&self.target), tokens(&self.source));
            for (id, window) in &self.source.state.sessions {
                let there = &self.target.state.sessions[id];
                assert!(
                    window.applied.iter().all(|one| there.applied.get(one.0) == Some(one.1)),
                    "a write is forgotten"
                );
            }
            let (time, gc_time) = self.departed_at;
            assert!(self.target.state.time >= time && self.target.state.gc_time >= gc_time);
            assert_eq!(self.target.state.tables[&TABLE].schema, self.source.state.tables[&TABLE].schema);
        }
    }

    fn act(&mut self, (action, a, b): (u8, usize, usize)) {
        match action {
            0 => self.begin(b),
            1..8 => self.drive(b.is_multiple_of(5)),
            8..16 => self.deliver(if a.is_multiple_of(8) { b } else { self.sent.len().saturating_sub(1 + b % 2) }),
            16..23 => self.write(a, b),
            23 if a.is_multiple_of(8) => self.lose_leader(),
            24 => self.take_back(),
            25 if a.is_multiple_of(8) => self.abandon_idle(),
            26 if a.is_multiple_of(4) => self.drop_rows(b.is_multiple_of(4), b.is_multiple_of(3)),
            27 if a.is_multiple_of(8) => self.change_schema(),
            _ => self.send(),
        }
        self.check();
    }

    /// Without further changes, the tablet moves.
    fn finish(&mut self) {
        for _round in 0..1000 {
            if self.target_serves() && self.departure().is_none() {
                break;
            }
            self.take_back();
            self.begin(0);
            self.drive(true);
            self.deliver(self.sent.len().saturating_sub(1));
            self.check();
        }
        let source_drops = self.source.state.operations.len();
        // A group that has dropped rows of the tablet, and the other not, refuse the move until the other has done the same.
        let may_refuse = source_drops > 0 || !self.target.state.operations.is_empty();
        assert!(self.target_serves() || may_refuse, "the tablet does not move");
        assert!(self.target_serves() || self.source_serves(), "no group serves the tablet");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_copy_that_is_served_has_what_the_source_had(
        actions in vec((0_u8..30, 0_usize..1000, 0_usize..1000), 1..200)
    ) {
        let mut world = World::new();
        actions.into_iter().for_each(|action| world.act(action));
        world.finish();
    }
}

#[path = "directed_tests.rs"]
mod directed;
