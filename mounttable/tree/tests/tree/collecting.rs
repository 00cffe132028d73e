//! Collection, versions, permissions files: T013, T057, T058, T064, and the details of a node.

use ebla_mounttable_tree::file::Stickiness;
use ebla_mounttable_tree::{Permissions, Reason};

use crate::FIXTURE;
use crate::world::{SECOND, World};

/// T057
#[test]
fn a_lookup_of_an_expired_name_collects_it() {
    let world = World::open();
    world.mount("root", "1/2/3/4/5", "h:1", 60).unwrap();
    world.memory.advance(SECOND * 61);
    assert_eq!(world.reason(world.resolve("root", "1/2/3/4/5")), Reason::NoSuchName);
    assert_eq!((world.usage("root"), world.memory.rows().len()), ((0, 0), 1));
}

/// T064, sequentially.
#[test]
fn a_hundred_deep_names_leave_one_row() {
    let world = World::open();
    let names: Vec<_> = (0..100).map(|at| format!("{at}/b/c/d/e/f/g/h/i/j/k/l/m/n")).collect();
    names.iter().for_each(|name| drop(world.mount("root", name, "h:1", 60).unwrap()));
    world.memory.advance(SECOND * 61);
    for name in names.iter().chain(&names) {
        assert_eq!(world.reason(world.resolve("root", name)), Reason::NoSuchName);
    }
    assert_eq!(world.memory.rows().len(), 1);
}

/// Many requests for one expired name cause few writes.
#[test]
fn a_node_is_seen_to_once_a_second() {
    let world = World::open();
    world.set_permissions("root", "a", &Permissions::open().to_json(), None).unwrap();
    world.mount("root", "a", "h:1", 60).unwrap();
    world.memory.advance(SECOND * 61);
    world.take_calls();
    for _ in 0..10 {
        assert_eq!(world.reason(world.resolve("root", "a")), Reason::NoSuchName);
    }
    assert_eq!(world.take_calls(), (10, 1));
}

/// A sweep collects unvisited nodes.
#[test]
fn a_sweep_collects_unvisited_nodes() {
    let world = World::open();
    world.mount("root", "a/b", "h:1", 60).unwrap();
    world.mount("root", "c", "h:1", 600).unwrap();
    world.memory.advance(SECOND * 61);
    assert_eq!(world.sweep().expired, 1);
    assert_eq!((world.names(), world.usage("root")), (vec!["c".to_owned()], (1, 1)));
}

/// T058, and applying a file twice changes nothing.
#[test]
fn a_permissions_file_makes_its_nodes() {
    let world = World::with(FIXTURE);
    let file = r#"{"": {"Read":{"In":["..."]},"Admin":{"In":["root"]}}, "x/y/z": {"Admin":{"In":["bob"]}}}"#;
    assert_eq!(world.apply(file), 4, "the root is changed, three are made");
    assert_eq!(world.apply(file), 0);
    let root = world.permissions("server", "").unwrap().0;
    for name in ["x", "x/y"] {
        assert_eq!(world.permissions("server", name).unwrap().0, root);
        assert_eq!(world.node_info("server", name).unwrap().stickiness, Stickiness::Collected);
    }
    let own = Permissions::from_json(r#"{"Admin":{"In":["bob"]}}"#).unwrap();
    assert_eq!(world.permissions("server", "x/y/z").unwrap().0, own);
    assert_eq!(world.node_info("server", "x/y/z").unwrap().stickiness, Stickiness::Sticky);
}

/// T013
#[test]
fn lists_are_kept_in_order_without_doubles() {
    let world = World::open();
    world.set_permissions("bob", "a", r#"{"Admin":{"In":["bob","alice","bob"]}}"#, None).unwrap();
    assert_eq!(world.permissions("bob", "a").unwrap().0.to_json(), r#"{"Admin":{"In":["alice","bob"]}}"#);
}

#[test]
fn a_node_tells_of_itself_and_is_deleted_as_it_was_seen() {
    let world = World::open();
    world.mount("bob", "a/b", "h:1", 60).unwrap();
    let info = world.node_info("alice", "a").unwrap();
    assert_eq!((info.creator.as_str(), info.servers, info.children), ("bob", 0, 1));
    let leaf = world.node_info("alice", "a/b").unwrap();
    assert_eq!((leaf.servers, leaf.children), (1, 0));
    world.mount("bob", "a/b", "h:2", 60).unwrap();
    assert_eq!(world.reason(world.delete_version("bob", "a/b", &leaf.version)), Reason::BadVersion);
    let version = world.node_info("alice", "a/b").unwrap().version;
    assert_eq!(world.delete_version("bob", "a/b", &version), Ok(1));
    assert_eq!(world.reason(world.node_info("alice", "a/b")), Reason::NoSuchName);
    world.set_permissions("bob", "a", r#"{"Admin":{"In":["bob"]}}"#, None).unwrap();
    assert_eq!(world.reason(world.node_info("alice", "a")), Reason::NoAccess);
}
