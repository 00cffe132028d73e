//! Single courses of a copy that begins ahead of its move: what the random ones of `world_tests` have in common.

use ebla_model::codec;
use ebla_model::command::CommandKind;
use ebla_model::id::{OperationId, TabletId};
use ebla_model::key::{KeyRange, RowKey};
use ebla_model::tablet_move::{ImportStart, ImportStatus, MoveId, MoveStep};

use super::{Exported, Group, TABLE, TABLET, World, export, schema};

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

/// Rows that are dropped, or another schema, end the copy, also after the departure.
#[test]
fn a_tablet_of_which_rows_are_dropped_while_it_is_copied_is_taken_back() {
    for change in [|world: &mut World| world.drop_rows(false, false), World::change_schema] {
        let mut world = World::new();
        world.begin(0);
        while world.attempt.as_ref().is_some_and(|attempt| attempt.differences().is_none()) {
            world.deliver(world.sent.len() - 1);
            world.drive(false);
        }
        change(&mut world);
        while world.departure().is_none() {
            world.drive(true);
        }
        world.drive(true);
        assert!(world.attempt.is_none());
        world.take_back();
        assert!(world.source_serves() && world.target.state.arrivals.is_empty());
    }
}

#[test]
fn a_record_that_was_given_up_after_the_copy_ends_the_move() {
    let mut world = World::new();
    world.begin(0);
    while world.attempt.as_ref().is_some_and(|attempt| attempt.differences().is_none()) {
        world.deliver(world.sent.len() - 1);
        world.drive(false);
    }
    while world.departure().is_none() {
        world.drive(true);
    }
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
    let mut third = Group::new(12);
    let range = KeyRange::new(RowKey::new("x"), None).unwrap();
    third.state.add_tablet(schema(1), TabletId::new(20), range.clone());
    third.apply(CommandKind::DropRange { operation: OperationId::new(77), table: TABLE, range: KeyRange::all() });
    let ticket = world.target.state.applied.index;
    let exported = Exported { table: TABLE, range, ticket, copy: None };
    let start = export::start(&third.state, &exported).unwrap();
    let id = MoveId { tablet: TabletId::new(20), generation: third.state.tablets[&TabletId::new(20)].generation };
    // Without a tablet of the table in the target, only the copy stands against it.
    world.target.state.remove_tablets(&[TabletId::new(9)]);
    let start = ImportStart { ticket: world.target.state.ticket_floor, ..start };
    let status = world.target.step(id, MoveStep::Begin(Box::new(start)));
    assert!(matches!(&status, ImportStatus::Refused(why) if why.contains("being dropped")), "{status:?}");
}
