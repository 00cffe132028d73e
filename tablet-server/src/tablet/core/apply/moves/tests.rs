//! Moves of a tablet among three groups, with steps that are late, lost or repeated: it is served by one group at most, with all its
//! cells, and no write is applied twice.
//!
//! The driver here has no memory of its own: it acts on any reply that the move has ever received, as several leaders might. A step
//! that was sent once may be delivered at any later time, any number of times.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use ebla_model::cell::FamilyName;
use ebla_model::codec::CellKey;
use ebla_model::command::{CallToken, Command, CommandKind, RowReply, RowWrite};
use ebla_model::error::Error;
use ebla_model::id::{FamilyId, Generation, LogId, SchemaVersion, Sequence, ServerId, SessionId, TableId, Term};
use ebla_model::idempotency::{CallKind, IdempotencyToken};
use ebla_model::key::RowKey;
use ebla_model::mutation::Change;
use ebla_model::schema::{Family, TableName, TableSchema, TableState};
use ebla_model::stored_row::stored_row;
use ebla_model::tablet_move::ImportedToken;
use ebla_model::time::Micros;
use parking_lot::Mutex;
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::tablet::core::state::GroupState;

const TABLE: TableId = TableId::new(5);
const TABLET: TabletId = TabletId::new(7);
const FAMILY: FamilyId = FamilyId::new(1);

#[derive(Default)]
struct Cells(Mutex<BTreeMap<Vec<u8>, Vec<u8>>>);

impl CellReader for Cells {
    fn keys_if_few(&self, lower: &[u8], upper: Option<&[u8]>) -> Result<Option<Vec<Vec<u8>>>, Error> {
        self.keys(lower, upper).map(Some)
    }

    fn keys(&self, lower: &[u8], upper: Option<&[u8]>) -> Result<Vec<Vec<u8>>, Error> {
        Ok(self.0.lock().keys().filter(|key| is_inside(key, lower, upper)).cloned().collect())
    }
}

struct Group {
    state: GroupState,
    cells: Cells,
}

impl Group {
    fn new(id: u64) -> Self {
        let servers = [1, 2, 3].map(ServerId::new);
        let state = GroupState::fresh(GroupDescriptor::initial(GroupId::new(id), &servers));
        Self { state, cells: Cells::default() }
    }

    fn apply(&mut self, kind: CommandKind) -> Reply {
        let time = Micros::new(self.state.time.get() + 1);
        let mut applier = Applier::new(&mut self.state, &self.cells);
        let reply = applier.apply(Command { time, elapsed: None, clock: None, kind }).unwrap();
        let edits = applier.take_edits();
        let mut cells = self.cells.0.lock();
        for edit in edits {
            match edit {
                CellEdit::Put(key, value) => drop(cells.insert(key, value)),
                CellEdit::Delete(key) => drop(cells.remove(&key)),
                CellEdit::DeleteRange(from, to) => cells.retain(|key, _| !is_inside(key, &from, to.as_deref())),
            }
        }
        drop(cells);
        let index = self.state.applied.index.plus(1);
        self.state.applied = LogId { term: Term::new(1), index };
        // What a restart would read.
        let stored = self.state.save().into_iter().filter_map(|edit| match edit {
            crate::tablet::core::state::MetaEdit::Put(key, value) => Some((Bytes::from(key.encode()), value)),
            crate::tablet::core::state::MetaEdit::Delete(_) => None,
        });
        let loaded = GroupState::load(stored).unwrap();
        assert_eq!((&loaded.departures, &loaded.arrivals), (&self.state.departures, &self.state.arrivals));
        assert_eq!((loaded.ticket_floor, &loaded.operations), (self.state.ticket_floor, &self.state.operations));
        reply
    }

    fn step(&mut self, id: MoveId, step: MoveStep) -> Reply {
        self.apply(CommandKind::Move(id, step))
    }

    fn serves(&self) -> bool {
        self.state.tablets.contains_key(&TABLET) && self.state.departure_of(TABLET).is_none()
    }

    fn rows(&self) -> Vec<String> {
        let (lower, upper) = codec::range_bounds(&stored_range(TABLE, &KeyRange::all()));
        let keys = self.cells.keys(&lower, upper.as_deref()).unwrap();
        keys.iter()
            .map(|key| String::from_utf8_lossy(CellKey::decode(key).unwrap().row.as_bytes()).into_owned())
            .collect()
    }

    /// One cell, token or session after a position.
    fn export(&self, departure: &Departure, from: ImportPosition) -> ImportChunk {
        let (cells, tokens, sessions) = (vec![], vec![], vec![]);
        let removed = ebla_model::tablet_move::RemovedCells::default();
        let mut chunk =
            ImportChunk { to: from.clone(), from, cells, tokens, sessions, copy: None, removed, times: None };
        let next_cell = |after: &[u8]| {
            let cells = self.cells.0.lock();
            let (lower, upper) = codec::range_bounds(&stored_range(TABLE, &departure.tablet.range));
            let mut later =
                cells.iter().filter(|(key, _)| is_inside(key, &lower, upper.as_deref()) && key.as_slice() > after);
            later.next().map(|(key, value)| (Bytes::from(key.clone()), Bytes::from(value.clone())))
        };
        let next_token = |after: &[u8]| self.state.tokens.keys().find(|key| key.as_ref() > after).cloned();
        let next_session = |after: Option<SessionId>| {
            self.state.sessions.keys().find(|id| after.is_none_or(|after| **id > after)).copied()
        };
        let mut take_session = |after| match next_session(after) {
            Some(session) => {
                let window = self.state.sessions[&session].clone();
                let idle = self.state.session_time().since(window.last_used);
                let window = ebla_model::session::SessionWindow { last_used: Micros::ZERO, ..window };
                chunk.sessions.push(ImportedSession { session, window, idle });
                ImportPosition::Session(session)
            }
            None => ImportPosition::End,
        };
        let mut take_token = |after: &[u8]| match next_token(after) {
            Some(key) => {
                let token = self.state.tokens.get(&key).unwrap();
                let remaining = token.expires_at.since(self.state.session_time());
                chunk.tokens.push(ImportedToken { key: key.clone(), remaining, result: token.result.clone() });
                ImportPosition::Token(key)
            }
            None => take_session(None),
        };
        let mut take_cell = |after: &[u8]| match next_cell(after) {
            Some((key, value)) => {
                chunk.cells.push((key.clone(), value));
                ImportPosition::Cell(key)
            }
            None => take_token(&[]),
        };
        chunk.to = match chunk.from.clone() {
            ImportPosition::Start => take_cell(&[]),
            ImportPosition::Cell(key) => take_cell(&key),
            ImportPosition::Token(key) => take_token(&key),
            ImportPosition::Session(session) => take_session(Some(session)),
            ImportPosition::Difference(_) | ImportPosition::End => ImportPosition::End,
        };
        chunk
    }
}

fn schema() -> TableSchema {
    TableSchema {
        table: TABLE,
        name: TableName::from_parts("p", "inst", "t").unwrap(),
        version: SchemaVersion::new(1),
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

/// A write of one row that no other write has.
fn write(number: u64) -> RowWrite {
    let change = Change::SetCell {
        family: FAMILY,
        qualifier: Bytes::from_static(b"q"),
        timestamp: Micros::new(1),
        value: Bytes::from_static(b"v"),
    };
    // Every third one has a token in place of its session's memory: it is sent again under a new number.
    let token = number.is_multiple_of(3).then(|| CallToken {
        kind: CallKind::Modify,
        token: IdempotencyToken { token: Bytes::from(format!("token-{number:04}")), started: None },
    });
    RowWrite {
        tablet: TABLET,
        session: SessionId::new(1 + u128::from(number % 2)),
        sequence: Sequence::new(number),
        lowest_outstanding: Sequence::new(0),
        row: RowKey::new(format!("row-{number:04}")),
        changes: vec![change],
        result: None,
        token,
    }
}

/// A step that was sent to a group.
#[derive(Clone, Debug)]
struct Sent {
    to: usize,
    id: MoveId,
    step: MoveStep,
}

struct World {
    groups: [Group; 3],
    sent: Vec<Sent>,
    /// Replies to steps of each move; whether the step was `Refuse`.
    replies: BTreeMap<MoveId, Vec<(ImportStatus, bool)>>,
    /// Tickets of each group, in the order in which they were given.
    tickets: [Vec<LogIndex>; 3],
    written: u64,
}

fn group_of(at: usize) -> u64 {
    10 + at as u64
}

fn index_of(group: GroupId) -> usize {
    usize::try_from(group.get()).unwrap() - 10
}

impl World {
    fn new() -> Self {
        let mut groups = [0, 1, 2].map(|at| Group::new(group_of(at)));
        groups[0].state.add_tablet(schema(), TABLET, KeyRange::all());
        let tickets = groups.each_ref().map(|group| vec![group.state.applied.index]);
        Self { groups, sent: Vec::new(), replies: BTreeMap::new(), tickets, written: 0 }
    }

    fn departures(&self) -> Vec<(usize, Departure)> {
        let of_group = |(at, group): (usize, &Group)| group.state.departures.get(&TABLET).map(|one| (at, one.clone()));
        self.groups.iter().enumerate().filter_map(of_group).collect()
    }

    /// A tablet departs, with one of the target's last tickets.
    fn start(&mut self, to: usize, ticket: usize) {
        let Some(from) = self.groups.iter().position(Group::serves).filter(|from| *from != to) else { return };
        let now = self.groups[to].state.applied.index;
        self.tickets[to].push(now);
        let tickets = &self.tickets[to];
        let ticket = tickets[tickets.len() - 1 - ticket % tickets.len().min(3)];
        let target = self.groups[to].state.descriptor.clone();
        let generation = self.groups[from].state.tablets[&TABLET].generation;
        self.groups[from].step(MoveId { tablet: TABLET, generation }, MoveStep::Out { target, ticket, copy: None });
    }

    /// A leader of a source acts on the reply with this number, or on none.
    fn drive(&mut self, which: usize, reply: usize) {
        let departures = self.departures();
        let Some((at, departure)) = departures.get(which % departures.len().max(1)).cloned() else { return };
        let id = departure.id();
        let to = index_of(departure.target.group);
        let replies = self.replies.get(&id).cloned().unwrap_or_default();
        let reply = reply.checked_sub(1).and_then(|reply| replies.get(reply % replies.len().max(1)).cloned());
        if departure.phase == DeparturePhase::Left {
            // The reply to `Confirm` says no more than this.
            if self.confirmed(id) {
                self.groups[at].step(id, MoveStep::Forget);
            } else {
                self.sent.push(Sent { to, id, step: MoveStep::Confirm });
            }
            return;
        }
        let step = match reply {
            None => {
                let start = ImportStart {
                    source: self.groups[at].state.descriptor.group,
                    ticket: departure.ticket,
                    range: departure.tablet.range.clone(),
                    schema: schema(),
                    time: self.groups[at].state.time,
                    gc_time: self.groups[at].state.gc_time,
                    drops: Vec::new(),
                    drops_known_from: OperationId::new(0),
                    copy: None,
                    floors: None,
                };
                MoveStep::Begin(Box::new(start))
            }
            Some((ImportStatus::Importing(ImportPosition::End), _)) => MoveStep::Finish,
            Some((ImportStatus::Importing(position), _)) => {
                MoveStep::Chunk(self.groups[at].export(&departure, position))
            }
            Some((ImportStatus::Served, _)) => {
                self.groups[at].step(id, MoveStep::Done);
                return;
            }
            Some((ImportStatus::Refused(_), true)) => {
                self.groups[at].step(id, MoveStep::Back);
                return;
            }
            Some((ImportStatus::Refused(_), false)) => MoveStep::Refuse,
        };
        self.sent.push(Sent { to, id, step });
    }

    /// Whether the target has forgotten the move.
    fn confirmed(&self, id: MoveId) -> bool {
        self.groups.iter().all(|group| group.state.arrival_of(id).is_none())
    }

    /// A step arrives that was sent at some time.
    fn deliver(&mut self, which: usize) {
        let Some(Sent { to, id, step }) = self.sent.get(which % self.sent.len().max(1)).cloned() else { return };
        let is_refusal = step == MoveStep::Refuse;
        let is_confirmation = step == MoveStep::Confirm;
        let Reply::Import(status) = self.groups[to].step(id, step) else { panic!("a reply of another kind") };
        // A driver that confirms knows that the source has removed the tablet; it takes nothing else from the reply.
        if !is_confirmation {
            self.replies.entry(id).or_default().push((status, is_refusal));
        }
    }

    /// A gives-up of an operator's choice: a refusal may be sent at any time while the tablet departs.
    fn refuse(&mut self, which: usize) {
        let copying = self.departures().into_iter().filter(|(_, one)| one.phase == DeparturePhase::Copying);
        let copying: Vec<_> = copying.collect();
        if let Some((_, departure)) = copying.get(which % copying.len().max(1)) {
            let to = index_of(departure.target.group);
            self.sent.push(Sent { to, id: departure.id(), step: MoveStep::Refuse });
        }
    }

    fn write(&mut self) {
        if let Some(group) = self.groups.iter_mut().find(|group| group.serves()) {
            self.written += 1;
            assert_eq!(
                group.apply(CommandKind::Write(vec![write(self.written)])),
                Reply::Write(vec![RowReply::Applied])
            );
        }
    }

    /// A write is sent again, under a new number if it has a token.
    fn write_again(&mut self, which: u64) {
        let Some(group) = self.groups.iter_mut().find(|group| group.serves()).filter(|_| self.written > 0) else {
            return;
        };
        let mut again = write(1 + which % self.written);
        if again.token.is_some() {
            again.session = SessionId::new(99);
            again.sequence = Sequence::new(again.sequence.get() + 1_000_000);
        }
        let reply = group.apply(CommandKind::Write(vec![again]));
        assert_eq!(reply, Reply::Write(vec![RowReply::Duplicate(None)]), "a write is applied twice");
    }

    fn check(&self) {
        let serving: Vec<_> = self.groups.iter().filter(|group| group.serves()).collect();
        assert!(serving.len() <= 1, "two groups serve the tablet");
        if let [group] = serving.as_slice() {
            let expected: Vec<String> = (1..=self.written)
                .map(|number| stored_row(TABLE, &RowKey::new(format!("row-{number:04}"))))
                .map(|row| String::from_utf8_lossy(row.as_bytes()).into_owned())
                .collect();
            assert_eq!(group.rows(), expected);
        }
        if serving.is_empty() {
            let copying = self.departures().into_iter().any(|(_, one)| one.phase == DeparturePhase::Copying);
            assert!(copying, "no group serves the tablet, and none will");
        }
    }

    /// A leader that follows each reply brings every move to its end.
    fn finish(&mut self) {
        for _round in 0..1000 {
            let Some((_, departure)) = self.departures().first().cloned() else { break };
            let known = self.replies.get(&departure.id()).map_or(0, Vec::len);
            let sent = self.sent.len();
            self.drive(0, known);
            if self.sent.len() > sent {
                self.deliver(sent);
            }
        }
        assert!(self.departures().is_empty(), "a move does not end");
        assert!(self.groups.iter().any(Group::serves), "no group serves the tablet");
        assert!(self.groups.iter().all(|group| group.state.arrivals.is_empty()), "a target remembers a move");
        self.check();
        (0..self.written).for_each(|which| self.write_again(which));
    }

    fn act(&mut self, (action, a, b): (u8, usize, usize)) {
        match action {
            0 => self.start(a % 3, b),
            1..5 => self.drive(a, b % 40),
            5..10 => self.deliver(if a.is_multiple_of(2) { self.sent.len().saturating_sub(1 + b % 3) } else { b }),
            10 => self.refuse(a),
            11 | 12 => self.write(),
            _ => self.write_again(b as u64),
        }
        self.check();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn a_tablet_is_served_once_with_all_its_cells(
        actions in vec((0_u8..15, 0_usize..1000, 0_usize..1000), 1..120)
    ) {
        let mut world = World::new();
        actions.into_iter().for_each(|action| world.act(action));
        world.finish();
    }
}

/// A begin that arrives after the tablet has come and gone has no effect, although the target remembers nothing of the move.
#[test]
fn a_late_begin_is_refused_by_its_ticket() {
    let mut world = World::new();
    world.write();
    world.start(1, 0);
    world.drive(0, 0);
    let late = world.sent[0].clone();
    world.finish();
    assert!(world.groups[1].serves());
    world.start(2, 0);
    world.finish();
    assert!(world.groups[2].serves() && world.groups[2].state.tablets[&TABLET].generation == Generation::new(3));
    let Reply::Import(ImportStatus::Refused(why)) = world.groups[1].step(late.id, late.step) else {
        panic!("accepted")
    };
    assert!(why.contains("ticket"), "{why}");
    world.check();
}

/// Only a refusal that is an entry of the target's log lets the source serve again.
#[test]
fn a_refused_move_never_begins() {
    let mut world = World::new();
    world.write();
    world.start(1, 0);
    world.drive(0, 0);
    world.refuse(0);
    // The refusal overtakes the begin.
    world.deliver(1);
    world.drive(0, 1);
    assert!(world.groups[0].serves());
    world.deliver(0);
    assert!(world.groups[1].state.arrivals.is_empty());
    world.check();
}

#[test]
fn a_departing_tablet_refuses_changes_and_so_do_operations_on_its_rows() {
    let mut world = World::new();
    world.write();
    world.start(1, 0);
    let source = &mut world.groups[0];
    let not_now = |reply: Reply| match reply {
        Reply::Refused(refusal) => assert_eq!(refusal.kind, RefusalKind::NotNow, "{}", refusal.message),
        other => panic!("{other:?}"),
    };
    not_now(source.apply(CommandKind::Split { tablet: TABLET, at: RowKey::new("m"), child: TabletId::new(8) }));
    not_now(source.apply(CommandKind::DropRange {
        operation: OperationId::new(4),
        table: TABLE,
        range: KeyRange::all(),
    }));
    not_now(source.apply(CommandKind::Drop { operation: OperationId::new(5), table: TABLE }));
    let Reply::Write(rows) = source.apply(CommandKind::Write(vec![write(900)])) else { panic!("no reply of a write") };
    assert!(matches!(&rows[0], RowReply::Refused(refusal) if refusal.kind == RefusalKind::NotNow));
    assert!(source.state.operations.is_empty());
}

/// An operation that drops rows is applied to a tablet once, by one group or the other.
#[test]
fn a_tablet_moves_only_between_groups_that_have_dropped_the_same_rows() {
    let drop = |id| CommandKind::DropRange { operation: OperationId::new(id), table: TABLE, range: KeyRange::all() };
    let begin = |state: &GroupState, ticket| {
        let start = ImportStart {
            source: GroupId::new(10),
            ticket,
            range: KeyRange::prefix(b"a"),
            schema: schema(),
            time: state.time,
            gc_time: state.gc_time,
            drops: state.drops_of(TABLE, &KeyRange::prefix(b"a")).map(|(id, range)| (id, range.clone())).collect(),
            drops_known_from: state.operations_known_from(),
            copy: None,
            floors: None,
        };
        MoveStep::Begin(Box::new(start))
    };
    let id = MoveId { tablet: TABLET, generation: Generation::new(1) };
    let target_with = |drops: &[u64]| {
        let mut target = Group::new(11);
        target.state.add_tablet(schema(), TabletId::new(8), KeyRange::prefix(b"b"));
        drops.iter().for_each(|id| _ = target.apply(drop(*id)));
        target
    };
    let refusal = |source_drops: &[u64], target_drops: &[u64]| {
        let mut source = Group::new(10);
        source.state.add_tablet(schema(), TABLET, KeyRange::prefix(b"a"));
        source_drops.iter().for_each(|id| _ = source.apply(drop(*id)));
        let mut target = target_with(target_drops);
        let step = begin(&source.state, target.state.applied.index);
        match target.step(id, step) {
            Reply::Import(ImportStatus::Refused(why)) => Some(why),
            Reply::Import(ImportStatus::Importing(_)) => None,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(refusal(&[], &[]), None);
    assert_eq!(refusal(&[4], &[4]), None);
    assert!(refusal(&[4], &[]).unwrap().contains("being dropped"), "the target must apply it to its own tablets first");
    assert!(refusal(&[], &[4]).unwrap().contains("being dropped"), "the source must apply it to the tablet first");
    // A target without a tablet of the table takes the operations over.
    let mut source = Group::new(10);
    source.state.add_tablet(schema(), TABLET, KeyRange::prefix(b"a"));
    source.apply(drop(4));
    let mut empty = Group::new(12);
    let step = begin(&source.state, empty.state.applied.index);
    assert!(matches!(empty.step(id, step), Reply::Import(ImportStatus::Importing(_))));
    assert!(empty.state.operations.contains_key(&OperationId::new(4)));
}

#[test]
fn sessions_keep_their_idle_time() {
    let mut target = Group::new(11);
    target.state.advance_time(Micros::new(3_600_000_000), None, None);
    let window = ebla_model::session::SessionWindow::default();
    let imported = ImportedSession { session: SessionId::new(4), window, idle: Duration::from_secs(60) };
    let now = target.state.session_time();
    Applier::new(&mut target.state, &target.cells).absorb_session(imported);
    assert_eq!(now.since(target.state.sessions[&SessionId::new(4)].last_used), Duration::from_secs(60));
}

/// A part with more sessions than the target can store has no effect, until sessions of the target have expired.
#[test]
fn sessions_beyond_the_bound_of_the_target_are_refused() {
    let second = |second: i64| Micros::from_millis(second * 1000);
    let id = MoveId { tablet: TABLET, generation: Generation::new(1) };
    // The target has 9,999 sessions, last used in second 1, and receives more in second `now`.
    let import = |now: i64, sessions: &[u128]| {
        let mut target = Group::new(11);
        target.state.advance_time(second(1), None, None);
        for session in 1..10_000 {
            target.state.session(SessionId::new(session)).advance(Sequence::new(1), second(1));
        }
        target.state.advance_time(second(901), Some(Duration::from_secs(900)), None);
        target.state.advance_time(second(now), Some(second(now).since(second(901))), None);
        assert_eq!(target.state.sessions.len(), 9_999, "expired ones are still stored");
        let arrival = Arrival {
            generation: id.generation,
            table: TABLE,
            range: KeyRange::all(),
            source: GroupId::new(10),
            copy: None,
            progress: ArrivalProgress::Importing(ImportPosition::Start),
        };
        target.state.put_arrival(TABLET, arrival);
        let row = stored_row(TABLE, &RowKey::new("row"));
        let cell = codec::encode_parts(row.as_bytes(), FAMILY, b"q", Micros::new(1));
        let session = |session: &u128| ImportedSession {
            session: SessionId::new(*session),
            window: ebla_model::session::SessionWindow::default(),
            idle: Duration::ZERO,
        };
        let chunk = ImportChunk {
            from: ImportPosition::Start,
            to: ImportPosition::End,
            cells: vec![(Bytes::from(cell), Bytes::new())],
            tokens: Vec::new(),
            sessions: sessions.iter().map(session).collect(),
            copy: None,
            removed: ebla_model::tablet_move::RemovedCells::default(),
            times: None,
        };
        let mut applier = Applier::new(&mut target.state, &target.cells);
        let status = applier.import(id, chunk);
        (status, applier.edit_count(), target.state.sessions.len())
    };
    let imported = || ImportStatus::Importing(ImportPosition::End);
    let full = "too many sessions write to the group; move the tablet again later";
    assert_eq!(import(901, &[9_999, 10_000, 10_001]), (ImportStatus::Refused(full.to_owned()), 0, 9_999));
    assert_eq!(import(901, &[9_999, 10_000]), (imported(), 1, 10_000), "the target knows one of the two");
    assert_eq!(import(902, &[9_999, 10_000, 10_001]), (imported(), 1, 3));
}

/// The target's clock has jumped, so that its session time is far behind its log's time; the source's has not.
#[test]
fn a_token_keeps_its_time_in_the_target() {
    let at = |second: i64| Micros::from_millis(second * 1000);
    let mut target = Group::new(4);
    target.state.advance_time(at(1), None, None);
    target.state.advance_time(at(1_000_000), None, None);
    let key = write(3).token.unwrap().key(&stored_row(TABLE, &write(3).row));
    target.state.import_token(&ImportedToken { key: key.clone(), remaining: Duration::from_secs(60), result: None });
    let check = |state: &GroupState| state.tokens.check(&key, None, state.times());
    target.state.advance_time(at(1_000_060), None, None);
    assert_eq!(check(&target.state), ebla_model::idempotency::TokenCheck::Duplicate(None));
    target.state.advance_time(at(1_000_061), None, None);
    assert_eq!(check(&target.state), ebla_model::idempotency::TokenCheck::New);
}
