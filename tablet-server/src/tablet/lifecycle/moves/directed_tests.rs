//! Single courses of a copy that begins ahead of its move: what the random ones of `world_tests` have in common.

use std::time::Duration;

use bytes::Bytes;
use ebla_model::codec;
use ebla_model::command::CommandKind;
use ebla_model::id::{OperationId, TabletId};
use ebla_model::idempotency::TOKENS_BYTES_MAX;
use ebla_model::key::{KeyRange, RowKey};
use ebla_model::stored_row::stored_range;
use ebla_model::tablet_move::{ImportChunk, ImportPosition, ImportStatus, ImportedToken, MoveId, MoveStep};

use super::{Exported, Group, TABLE, TABLET, World, export, is_inside, rows, schema};

/// A write, a deletion and a token between the copy and the departure are in the target; the deleted cells are not.
#[test]
fn what_changes_after_the_copy_arrives_with_the_last_difference() {
    let mut world = World::new();
    (0..6).for_each(|row| world.write(row, 2));
    world.begin(0);
    while world.attempt.as_ref().is_some_and(|attempt| attempt.differences().is_none()) {
        world.deliver(world.sent.len() - 1);
        world.drive(false);
    }
    let has_row = |world: &World, row: &str| {
        world
            .target
            .content()
            .iter()
            .any(|(key, _)| codec::CellKey::decode(key).unwrap().row.as_bytes().ends_with(row.as_bytes()))
    };
    assert!(has_row(&world, "row-0"));
    world.write(0, 0);
    world.write(1, 3);
    let tokens = world.target.state.tokens.keys().count();
    world.finish();
    assert!(world.target_serves());
    assert!(!has_row(&world, "row-0"));
    assert!(world.target.state.tokens.keys().count() > tokens);
}

/// The check of these tests fails when it should.
#[test]
#[should_panic(expected = "left == right")]
fn a_difference_that_is_not_sent_is_found() {
    let mut world = World::new();
    world.forgets_difference = true;
    world.begin(0);
    while world.attempt.as_ref().is_some_and(|attempt| attempt.differences().is_none()) {
        world.deliver(world.sent.len() - 1);
        world.drive(false);
    }
    world.write(0, 2);
    world.finish();
}

/// An edit between the moment at which changes are taken and the one at which their content is read is sent again.
#[test]
fn a_change_between_the_take_and_the_read_is_not_lost() {
    let mut world = World::new();
    world.begin(0);
    while world.attempt.as_ref().is_some_and(|attempt| attempt.differences().is_none()) {
        world.deliver(world.sent.len() - 1);
        world.drive(false);
    }
    world.write(0, 2);
    world.drive(false);
    let attempt = world.attempt.as_ref().unwrap();
    assert!(attempt.difference.is_some() && attempt.awaits.is_none(), "taken, not read");
    // The row was put; now it is deleted, and another one is put.
    world.write(0, 0);
    world.write(1, 2);
    world.finish();
    assert!(world.target_serves());
}

/// Chunks of an attempt that was given up do not become part of the next one.
#[test]
fn a_late_chunk_of_another_attempt_is_refused() {
    let mut world = World::new();
    (0..6).for_each(|row| world.write(row, 2));
    world.begin(0);
    world.deliver(0);
    world.drive(false);
    let late = world.sent.last().cloned().unwrap();
    assert!(matches!(late.2, MoveStep::Chunk(_)));
    world.lose_leader();
    world.write(0, 0);
    world.begin(0);
    world.deliver(world.sent.len() - 1);
    let refused = world.target.step(late.0, late.2);
    assert!(matches!(&refused, ImportStatus::Refused(why) if why.contains("another copy")), "{refused:?}");
    world.finish();
    assert!(world.target_serves());
}

/// A third group, with another tablet of the table.
fn third_group(version: u64) -> Group {
    let mut third = Group::new(12);
    let range = KeyRange::new(RowKey::new("x"), None).unwrap();
    third.state.add_tablet(schema(version), TabletId::new(20), range);
    third
}

/// The tablet of the third group begins to arrive in `target`, by a move that is not copied ahead.
fn begin_from(third: &Group, target: &mut Group) -> ImportStatus {
    let tablet = &third.state.tablets[&TabletId::new(20)];
    let exported =
        Exported { table: TABLE, range: tablet.range.clone(), ticket: target.state.ticket_floor, copy: None };
    let start = export::start(&third.state, &exported).unwrap();
    let id = MoveId { tablet: TabletId::new(20), generation: tablet.generation };
    target.step(id, MoveStep::Begin(Box::new(start)))
}

/// Everything up to the differences is in the target.
fn copied() -> World {
    let mut world = World::new();
    world.begin(0);
    while world.attempt.as_ref().is_some_and(|attempt| attempt.differences().is_none()) {
        world.deliver(world.sent.len() - 1);
        world.drive(false);
    }
    world
}

fn depart(world: &mut World) {
    while world.departure().is_none() {
        assert!(world.attempt.is_some());
        world.drive(true);
        if world.departure().is_none() {
            world.deliver(world.sent.len() - 1);
        }
    }
}

/// Rows that are dropped, or another schema, end the copy, also after the departure.
#[test]
fn a_tablet_of_which_rows_are_dropped_while_it_is_copied_is_taken_back() {
    let changes: [fn(&mut World); 2] =
        [|world| world.drop_rows(false, false), |world| drop(world.source.apply(CommandKind::SetSchema(schema(2))))];
    for change in changes {
        let mut world = copied();
        change(&mut world);
        depart(&mut world);
        world.drive(true);
        assert!(world.attempt.is_none());
        world.take_back();
        assert!(world.source_serves() && world.target.state.arrivals.is_empty());
    }
}

/// A cell that dies in the source by the old schema would be visible in the target by the new one.
#[test]
fn a_group_with_a_later_schema_takes_no_copy_by_an_earlier_one() {
    let mut world = copied();
    world.target.apply(CommandKind::SetSchema(schema(2)));
    assert!(world.target.state.arrivals.is_empty() && world.target.content().is_empty(), "the copy has ended");
    world.drive(true);
    world.deliver(world.sent.len() - 1);
    assert!(world.attempt.is_none() && world.source_serves(), "the source finds that before the tablet departs");
    world.begin(0);
    let (id, _copy, begin) = world.sent.last().cloned().unwrap();
    let refused = world.target.step(id, begin);
    assert!(matches!(&refused, ImportStatus::Refused(why) if why.contains("table is being changed")), "{refused:?}");
    world.lose_leader();
    world.source.apply(CommandKind::SetSchema(schema(2)));
    world.finish();
    assert!(world.target_serves());
}

#[test]
fn a_schema_that_the_target_gets_after_the_departure_ends_the_move() {
    let mut world = copied();
    depart(&mut world);
    world.target.apply(CommandKind::SetSchema(schema(2)));
    world.drive(true);
    world.deliver(world.sent.len() - 1);
    assert!(world.attempt.is_none() && !world.target_serves());
    world.take_back();
    assert!(world.source_serves());
}

/// As [`a_group_with_a_later_schema_takes_no_copy_by_an_earlier_one`]; another tablet of the table brings the later schema.
#[test]
fn a_tablet_that_arrives_with_a_later_schema_ends_copies_by_the_earlier_one() {
    let mut world = copied();
    let arrived = begin_from(&third_group(2), &mut world.target);
    assert!(matches!(arrived, ImportStatus::Importing(_)), "{arrived:?}");
    assert_eq!(world.target.state.copies().count(), 0, "the copy has ended");
    world.drive(true);
    world.deliver(world.sent.len() - 1);
    assert!(world.attempt.is_none() && world.source_serves(), "the source finds that before the tablet departs");
}

/// The clock of the source's leader jumps during the copy, and stays there for long.
#[test]
fn times_are_compared_before_the_tablet_departs() {
    let hour = Duration::from_secs(3600);
    let advance = |group: &mut Group| {
        let later = group.state.time.plus(hour);
        group.state.advance_time(later, Some(hour), None);
    };
    let mut world = copied();
    advance(&mut world.source);
    for _step in 0..3 {
        world.drive(true);
        assert!(world.departure().is_none(), "writes would stop for a move that is refused");
        world.deliver(world.sent.len() - 1);
    }
    assert!(world.attempt.is_none() && world.source_serves() && !world.target_serves());
    advance(&mut world.target);
    world.finish();
    assert!(world.target_serves());
}

/// A difference has a token again, whose answer takes more than half of the memory for all.
#[test]
fn a_token_that_comes_again_is_counted_once() {
    let mut world = World::new();
    (0..6).for_each(|row| world.write(row, 3));
    world.begin(0);
    world.deliver(0);
    let (id, copy, _begin) = world.sent.first().cloned().unwrap();
    let (lower, upper) = codec::range_bounds(&stored_range(TABLE, &rows()));
    let mut keys = world.source.state.tokens.keys().filter(|key| is_inside(key, &lower, upper.as_deref()));
    let token = ImportedToken {
        key: keys.next().unwrap().clone(),
        remaining: Duration::from_secs(60),
        result: Some(Bytes::from(vec![0; TOKENS_BYTES_MAX / 2 + 1])),
    };
    let first = ImportChunk {
        tokens: vec![token.clone()],
        to: ImportPosition::Difference(0),
        ..export::empty_chunk(Some(copy), ImportPosition::Start)
    };
    let again = ImportChunk {
        tokens: vec![token.clone()],
        to: ImportPosition::Difference(1),
        ..export::empty_chunk(Some(copy), ImportPosition::Difference(0))
    };
    let other = ImportChunk {
        tokens: vec![ImportedToken { key: [token.key.as_ref(), b"2"].concat().into(), ..token }],
        to: ImportPosition::Difference(2),
        ..export::empty_chunk(Some(copy), ImportPosition::Difference(1))
    };
    for chunk in [first, again] {
        let to = chunk.to.clone();
        assert_eq!(world.target.step(id, MoveStep::Chunk(chunk)), ImportStatus::Importing(to));
    }
    let refused = world.target.step(id, MoveStep::Chunk(other));
    assert!(matches!(&refused, ImportStatus::Refused(why) if why.contains("memory for idempotency tokens is full")));
}

#[test]
fn a_record_that_was_given_up_after_the_copy_ends_the_move() {
    let mut world = copied();
    depart(&mut world);
    world.source.changes.give_up();
    world.drive(true);
    world.take_back();
    assert!(world.source_serves() && !world.target_serves());
    let generation = world.source.state.tablets[&TABLET].generation;
    assert_eq!(generation.get(), 2, "the next move is another one");
}

/// While a tablet is only being copied, its group serves it and drops its rows; the target refuses to drop rows of it.
#[test]
fn an_adopted_operation_must_not_concern_a_tablet_that_is_being_copied() {
    let mut world = World::new();
    world.begin(0);
    world.deliver(0);
    assert_eq!(world.target.state.copies().count(), 1);
    // Another tablet arrives from a group that has dropped rows of both.
    let mut third = third_group(1);
    third.apply(CommandKind::DropRange { operation: OperationId::new(77), table: TABLE, range: KeyRange::all() });
    // Without a tablet of the table in the target, only the copy stands against it.
    world.target.state.remove_tablets(&[TabletId::new(9)]);
    let status = begin_from(&third, &mut world.target);
    assert!(matches!(&status, ImportStatus::Refused(why) if why.contains("being dropped")), "{status:?}");
}
