//! Permissions that would damage a row, rows that are damaged, and deletions that were interrupted.

use ebla_mounttable_tree::access::PERMISSIONS_BYTES_MAX;
use ebla_mounttable_tree::store::{Cell, Change, Environment, Family};
use ebla_mounttable_tree::table::{Problem, Subtree};
use ebla_mounttable_tree::{Permissions, Reason, file};

use crate::world::World;

/// Permissions of exactly the largest size that do not mention any caller.
fn largest() -> String {
    let (head, tail) = (r#"{"Admin":{"In":[""#, r#""]}}"#);
    format!("{head}{}{tail}", "x".repeat(PERMISSIONS_BYTES_MAX - head.len() - tail.len()))
}

fn set(world: &World, at: &str, family: Family, column: &str, value: &str) {
    let cell = Cell { timestamp: world.memory.now(), value: value.to_owned() };
    world.behind(at, Change::Set(family, column.to_owned(), cell));
}

#[test]
fn permissions_that_grow_beyond_the_limit_are_refused() {
    let world = World::open();
    world.mount("root", "kept", "h:1", 60).unwrap();
    for at in ["", "new"] {
        // The caller's name is added to them.
        assert_eq!(world.reason(world.set_permissions("root", at, &largest(), None)), Reason::BadPermissions);
    }
    assert_eq!(world.resolve("root", "kept").unwrap(), "h:1");
    assert_eq!((world.names(), world.check()), (vec!["kept".to_owned()], vec![]));
}

#[test]
fn a_template_that_grows_beyond_the_limit_creates_nothing() {
    let world = World::open();
    let patterns: Vec<_> = (0..1_000).map(|number| format!("\"{number}%%\"")).collect();
    let template = format!(r#"{{"Create":{{"In":["..."]}},"%%/Admin":{{"In":["%%",{}]}}}}"#, patterns.join(","));
    world.set_permissions("root", "users", &template, None).unwrap();
    let bob = "b".repeat(500);
    let refused = world.mount(&bob, &format!("users/{bob}"), "h:1", 60);
    assert_eq!(world.reason(refused), Reason::BadPermissions);
    assert_eq!((world.usage(&bob), world.names()), ((0, 0), vec!["users".to_owned()]));
}

/// The file has a node's permissions and its template in two entries, which are stored as one.
#[test]
fn a_file_with_permissions_that_grow_beyond_the_limit_is_refused() {
    let half = format!(r#"{{"Admin":{{"In":["{}"]}}}}"#, "x".repeat(PERMISSIONS_BYTES_MAX / 2));
    let parsed = |text: &str| file::parse(text, &Permissions::open()).map(|nodes| nodes.len());
    assert_eq!(parsed(&format!(r#"{{"a": {half}}}"#)), Ok(2));
    let refused = parsed(&format!(r#"{{"a": {half}, "a/%%": {half}}}"#));
    assert_eq!(refused.unwrap_err().reason, Reason::BadPermissions);
}

/// A release without a check may have stored them.
#[test]
fn larger_stored_permissions_are_read() {
    let world = World::open();
    world.mount("root", "a", "h:1", 60).unwrap();
    set(&world, "a", Family::Meta, "p", &largest().replace(r#"["x"#, r#"["root","x"#));
    assert_eq!(world.resolve("root", "a").unwrap(), "h:1");
}

#[test]
fn a_subtree_with_a_damaged_node_is_deleted() {
    let world = World::open();
    for at in ["a/b/c", "a/d"] {
        world.mount("root", at, "h:1", 60).unwrap();
    }
    world.damage("a/b");
    assert_eq!(world.delete("root", "a", Subtree::Delete), Ok(3));
    assert_eq!(world.names(), [""; 0]);
    world.repair().unwrap();
    assert_eq!((world.check(), world.memory.rows().len(), world.usage("root")), (vec![], 1, (0, 0)));
}

#[test]
fn a_damaged_node_is_deleted_by_the_parents_administrator() {
    let world = World::with(r#"{"Admin":{"In":["root"]},"Create":{"In":["bob"]},"Resolve":{"In":["..."]}}"#);
    world.mount("bob", "a", "h:1", 60).unwrap();
    world.damage("a");
    assert_eq!(world.reason(world.resolve("bob", "a")), Reason::Damaged);
    assert_eq!(world.reason(world.delete("bob", "a", Subtree::Delete)), Reason::NoAccess);
    assert_eq!(world.delete("root", "a", Subtree::Delete), Ok(1));
    world.mount("bob", "a", "h:2", 60).unwrap();
    assert_eq!(world.resolve("bob", "a").unwrap(), "h:2");
}

#[test]
fn a_node_is_created_over_an_unreferenced_damaged_row() {
    let world = World::open();
    world.mount("root", "a", "h:1", 60).unwrap();
    world.damage("a");
    world.behind("", Change::DeleteColumn(Family::Children, "a".to_owned()));
    world.mount("root", "a", "h:2", 60).unwrap();
    assert_eq!(world.resolve("root", "a").unwrap(), "h:2");
}

#[test]
fn a_repair_removes_invalid_cells() {
    let world = World::open();
    for at in ["a", "b"] {
        world.mount("root", at, "h:1", 60).unwrap();
    }
    set(&world, "a", Family::Servers, "h:2", "what?");
    set(&world, "b", Family::Meta, "p", "{");
    set(&world, "", Family::Children, "c", "what?");
    assert_eq!(world.check().iter().filter(|problem| **problem == Problem::Damaged).count(), 3);
    world.repair().unwrap();
    assert_eq!(world.check(), []);
    assert_eq!(world.resolve("root", "a").unwrap(), "h:1");
    assert_eq!(world.reason(world.resolve("root", "b")), Reason::NoAccess, "invalid permissions become closed");
    assert_eq!(world.resolve("server", "b").unwrap(), "h:1");
}

/// A sweep does not start without a root that can be read.
#[test]
fn a_root_with_invalid_permissions_is_repaired() {
    let world = World::open();
    world.mount("root", "a", "h:1", 60).unwrap();
    set(&world, "", Family::Meta, "p", "{");
    assert_eq!(world.reason(world.resolve("server", "a")), Reason::Damaged);
    world.repair().unwrap();
    assert_eq!(world.check(), []);
    assert_eq!(world.reason(world.resolve("root", "a")), Reason::NoAccess, "invalid permissions become closed");
    assert_eq!(world.resolve("server", "a").unwrap(), "h:1");
}

/// However much is left to delete, on one level or on several.
#[test]
fn a_reader_continues_a_deletion_for_a_bounded_number_of_rows() {
    let world = World::open();
    for number in 0..200 {
        for at in [format!("wide/c{number}"), format!("deep/d{}/c{number}", number / 50)] {
            world.mount("root", &at, "h:1", 60).unwrap();
        }
    }
    for at in ["wide", "deep"] {
        set(&world, at, Family::Meta, "e", "dead");
    }
    for (at, name) in [("wide", "wide/c150"), ("deep", "deep/d3/c150")] {
        world.take_calls();
        assert_eq!(world.reason(world.resolve("root", name)), Reason::NoSuchName);
        let (_, changes) = world.take_calls();
        assert!(changes < 300, "{changes} changes by one lookup of {name}");
        assert_eq!(world.glob_names("root", at, "..."), [""; 0]);
        let (_, changes) = world.take_calls();
        assert!(changes < 300, "{changes} changes by one listing of {at}");
    }
    assert_eq!(world.names(), [""; 0]);
    assert!(world.memory.rows().len() > 50, "the rest is left to the sweep");
    world.sweep();
    assert_eq!((world.check(), world.memory.rows().len(), world.usage("root")), (vec![], 1, (0, 0)));
}
