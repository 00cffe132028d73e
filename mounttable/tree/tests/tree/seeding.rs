//! The initial content of a table, which a restart or a restore must not change.

use ebla_mounttable_tree::store::{Change, Row};
use ebla_mounttable_tree::table::Subtree;
use ebla_mounttable_tree::{NodeName, Reason, row_key};

use crate::world::{SECOND, World};

const FILE: &str =
    r#"{"": {"Admin":{"In":["root"]},"Read":{"In":["..."]}}, "a": {"Admin":{"In":["bob"]},"Read":{"In":["..."]}}}"#;

#[test]
fn a_file_seeds_a_new_table_only() {
    let world = World::empty();
    assert_eq!(world.seed(FILE), 2);
    // A revocation: bob is no longer an administrator.
    let carols = r#"{"Admin":{"In":["carol"]}}"#;
    world.set_permissions("server", "a", carols, None).unwrap();
    let stored = world.permissions("server", "a").unwrap();
    let world = world.restarted();
    assert_eq!((world.seed(FILE), world.permissions("server", "a").unwrap()), (0, stored));
    world.delete("root", "a", Subtree::Delete).unwrap();
    assert_eq!((world.seed(FILE), world.names()), (0, vec![]), "a deleted node does not come back");
    assert_eq!(world.seed("{}"), 0);
    assert_eq!(world.reason(world.set_permissions("bob", "b", "{}", None)), Reason::NoAccess, "the root stays closed");
}

#[test]
fn an_interrupted_seeding_is_continued() {
    let world = World::empty();
    world.drift("setup:seeding", 1);
    assert_eq!(world.seed(r#"{"": {"Admin":{"In":["root"]}}}"#), 1);
    world.drift("setup:seeding", 1);
    assert_eq!(world.seed(FILE), 2, "the root, and what was missing");
    assert_eq!(world.seed(FILE), 0);
}

#[test]
fn a_file_without_a_root_leaves_the_root_as_it_is() {
    let world = World::with(r#"{"Admin":{"In":["root"]}}"#);
    assert_eq!(world.apply("{}"), 0);
    assert_eq!(world.apply(r#"{"a": {"Admin":{"In":["bob"]}}}"#), 1);
    assert_eq!(world.reason(world.set_permissions("bob", "b", "{}", None)), Reason::NoAccess);
}

#[test]
fn a_preview_shows_each_change_and_changes_nothing() {
    let bobs = r#"{"Admin":{"In":["bob"]}}"#;
    let carols = r#"{"Admin":{"In":["carol"]}}"#;
    let new = |name: &str, after: &str| (name.to_owned(), None, after.to_owned());
    let world = World::empty();
    let file = format!(r#"{{"": {bobs}, "a": {bobs}, "b/c": {bobs}}}"#);
    assert_eq!(world.preview(&file), [new("", bobs), new("a", bobs), new("b", bobs), new("b/c", bobs)]);
    assert_eq!(world.memory.rows().len(), 0, "nothing was created");
    assert_eq!(world.apply(&file), 4);
    assert_eq!(world.preview(&file), []);

    let file = format!(r#"{{"a": {carols}, "b": {bobs}, "b/d": {carols}}}"#);
    let before = world.memory.rows();
    let changes = world.preview(&file);
    let changed = |name: &str, after: &str| (name.to_owned(), Some(bobs.to_owned()), after.to_owned());
    // b keeps its permissions and becomes sticky.
    assert_eq!(changes, [changed("a", carols), changed("b", bobs), new("b/d", carols)]);
    assert_eq!(world.memory.rows(), before, "nothing was changed");
    assert_eq!((world.apply(&file), world.preview(&file)), (3, vec![]));
}

/// A server that starts meanwhile creates no root, and a sweep removes no restored row.
#[test]
fn a_restore_is_not_disturbed() {
    let world = World::open();
    world.mount("root", "a/b", "h:1", 60).unwrap();
    let rows = world.memory.rows();
    world.destroy();
    let mut restoration = world.begin_restore().unwrap();
    let last = rows.keys().next_back().unwrap();
    rows.iter().filter(|(key, _)| *key != last).for_each(|(key, row)| world.restore_row(&mut restoration, key, row));
    assert_eq!(world.seed(r#"{"": {"Admin":{"In":["..."]}}}"#), 0);
    assert_eq!(world.setup_reason(), Some(Reason::NotEmpty));
    assert_eq!(world.begin_restore().unwrap_err().reason, Reason::NotEmpty);
    let before = world.memory.rows().len();
    world.sweep();
    assert_eq!(world.memory.rows().len(), before, "nothing restored is swept");
    let before = world.memory.rows();
    assert_eq!(world.repair().unwrap_err().reason, Reason::NotEmpty);
    assert_eq!(world.memory.rows(), before, "a reference may come before its child");
    world.restore_row(&mut restoration, last, &rows[last]);
    world.finish_restore(restoration).unwrap();
    world.sweep();
    assert_eq!(world.resolve("root", "a/b").unwrap(), "h:1");
    assert_eq!(world.setup_reason(), None, "it exists");
}

/// A server of an earlier release does not know of the restore, and may create one.
#[test]
fn a_root_that_appears_during_a_restore_does_not_end_it() {
    let world = World::open();
    world.mount("root", "a/b", "h:1", 60).unwrap();
    let rows = world.memory.rows();
    world.destroy();
    let mut restoration = world.begin_restore().unwrap();
    let root = row_key(&NodeName::root());
    let (roots, others): (Vec<_>, Vec<_>) = rows.iter().partition(|(key, _)| **key == root);
    let restore = |restoration: &mut _, rows: Vec<(&String, &Row)>| {
        rows.into_iter().for_each(|(key, row)| world.restore_row(restoration, key, row));
    };
    for ((family, column), cell) in World::open().memory.rows().remove(&root).unwrap() {
        world.behind("", Change::Set(family, column, cell));
    }
    let before = world.memory.rows();
    assert_eq!(world.begin_restore().unwrap_err().reason, Reason::NotEmpty);
    assert_eq!(world.memory.rows(), before, "another restore does not remove the root");
    restore(&mut restoration, others);
    world.memory.advance(SECOND * 61);
    let before = world.memory.rows();
    world.sweep();
    assert_eq!(world.memory.rows(), before, "neither orphans nor expired servers are swept");
    restore(&mut restoration, roots);
    assert_eq!(world.finish_restore(restoration).unwrap_err().reason, Reason::Contention);
    assert_eq!(world.setup_reason(), Some(Reason::NotEmpty), "the restore is not finished");
}

#[test]
fn a_restored_table_is_not_seeded() {
    let world = World::open();
    world.mount("root", "a", "h:1", 60).unwrap();
    let rows = world.memory.rows();
    world.destroy();
    // A server was killed while it seeded the new table.
    world.drift("setup:seeding", 1);
    let mut restoration = world.begin_restore().unwrap();
    rows.iter().for_each(|(key, row)| world.restore_row(&mut restoration, key, row));
    world.finish_restore(restoration).unwrap();
    assert_eq!((world.seed(FILE), world.memory.rows()), (0, rows));
}
