//! The tree over the in-memory store, one call at a time: the conformance cases of single calls, and the costs of
//! calls.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may fail, and then says where"
)]

mod collecting;
mod damage;
mod listing;
mod quotas;
mod repairs;
mod seeding;
mod world;

use ebla_mounttable_tree::table::Subtree;
use ebla_mounttable_tree::{MountMode, Permissions, Reason};

use crate::world::{SECOND, World};

/// The permissions of conformance fixture F.
const FIXTURE: &str = r#"{"Read":{"In":["..."]},"Admin":{"In":["root"]},"Create":{"In":["root","bob"]}}"#;

/// T001 T002 T006 T014 T015
#[test]
fn a_mount_resolves_until_it_is_removed() {
    let world = World::open();
    world.mount("root", "stuff", "/h:1", 3_600).unwrap();
    world.mount("root", "alpha//beta", "/h:2", 3_600).unwrap();
    assert_eq!(world.resolve("root", "/stuff/the/rain").unwrap(), "/h:1 + the/rain");
    assert_eq!(world.resolve("root", "alpha/beta/falls").unwrap(), "/h:2 + falls");
    assert_eq!(world.unmount("root", "stuff", Some("/h:1")), Ok(1));
    assert_eq!(world.unmount("root", "alpha/beta", None), Ok(1));
    assert_eq!(world.reason(world.resolve("root", "stuff")), Reason::NoSuchName);
    assert_eq!(world.reason(world.resolve("root", "alpha/beta")), Reason::NoSuchName);
}

/// T003 T004 T007: a mount answers for all names below it, for callers who may traverse the path.
#[test]
fn a_mount_resolves_all_names_below_it_for_authorised_callers() {
    let world = World::with(FIXTURE);
    world.set_permissions("root", "stuff", r#"{"Read":{"In":["bob","root"]},"Mount":{"In":["root"]}}"#, None).unwrap();
    world.set_permissions("root", "a", r#"{"Read":{"In":["alice","root"]},"Create":{"In":["root"]}}"#, None).unwrap();
    world.mount("root", "stuff", "/h:1", 3_600).unwrap();
    world.set_permissions("server", "a/b", r#"{"Read":{"In":["alice"]},"Mount":{"In":["root"]}}"#, None).unwrap();
    world.mount("root", "a/b", "/h:2", 3_600).unwrap();
    assert_eq!(world.resolve("root", "stuff/nonexistant").unwrap(), "/h:1 + nonexistant");
    assert_eq!(world.resolve("bob", "stuff/the/rain").unwrap(), "/h:1 + the/rain");
    assert_eq!(world.reason(world.resolve("alice", "stuff/the/rain")), Reason::NoAccess);
    assert_eq!(world.resolve("alice", "a/b/falls").unwrap(), "/h:2 + falls");
    assert_eq!(world.reason(world.resolve("bob", "a/b/falls")), Reason::NoAccess);
}

/// T016 T021 T023
#[test]
fn servers_are_taken_one_by_one_and_replaced_all_at_once() {
    let world = World::open();
    for server in ["h:1", "h:2", "h:3"] {
        world.mount("root", "a", server, 60).unwrap();
    }
    assert_eq!(world.unmount("root", "a", Some("h:2")), Ok(1));
    assert_eq!(world.resolve("root", "a").unwrap(), "h:1 h:3");
    assert_eq!(world.unmount("root", "a", Some("h:2")), Ok(0));
    assert_eq!(world.unmount("root", "never/was", None), Ok(0));
    world.mount_as("root", "a", "h:4", 60, MountMode::Replace).unwrap();
    assert_eq!(world.resolve("root", "a").unwrap(), "h:4");
}

/// T017 T018 T022 T024
#[test]
fn mounts_end_at_their_deadline() {
    let world = World::open();
    world.mount("root", "a", "h:1", 3_600).unwrap();
    world.mount("root", "a", "h:1", 10).unwrap();
    world.mount("root", "b", "h:2", 0).unwrap();
    world.memory.advance(SECOND * 10 - SECOND / 1_000);
    assert_eq!(world.resolve("root", "a").unwrap(), "h:1", "the shorter deadline is the one in force");
    world.memory.advance(SECOND / 1_000);
    assert_eq!(world.reason(world.resolve("root", "a")), Reason::NoSuchName);
    world.memory.advance(SECOND * 3_600 * 24 * 365 * 20);
    assert_eq!(world.resolve("root", "b").unwrap(), "h:2");
}

/// T071
#[test]
fn each_server_has_its_own_deadline() {
    let world = World::open();
    for (server, ttl) in [("h:1", 1), ("h:2", 5), ("h:3", 10), ("h:4", 15)] {
        world.mount("root", "a", server, ttl).unwrap();
    }
    let now = ebla_mounttable_tree::Environment::now(&world.memory);
    world.memory.advance(SECOND * 6);
    let left = |server: &str, seconds: u32| (server.to_owned(), now.plus(SECOND * seconds));
    assert_eq!(world.deadlines("a"), [left("h:3", 10), left("h:4", 15)]);
    assert_eq!(world.unmount("root", "a", Some("h:3")), Ok(1));
    assert_eq!(world.deadlines("a"), [left("h:4", 15)]);
}

/// T019 T020 T035: refused before anything is created.
#[test]
fn a_refused_call_leaves_no_node() {
    let world = World::with(FIXTURE);
    let users = r#"{"Create":{"In":["..."]},"%%/Admin":{"In":["%%"]}}"#;
    world.set_permissions("root", "users", users, None).unwrap();
    let before = world.memory.rows().len();
    for (caller, name) in
        [("alice", "users/ted"), ("bob", "users/carol"), ("root", "users/george"), ("alice", "new/er")]
    {
        assert_eq!(world.reason(world.mount(caller, name, "h:1", 60)), Reason::NoAccess, "{caller} {name}");
    }
    assert_eq!(world.memory.rows().len(), before);
    world.mount("alice", "users/alice", "h:1", 60).unwrap();
    world.mount("root", "x/y", "h:1", 60).unwrap();
    assert_eq!(world.reason(world.unmount("bob", "x/y", None)), Reason::NoAccess);
    assert_eq!(world.resolve("root", "x/y").unwrap(), "h:1");
    assert_eq!(world.reason(world.mount("root", "", "h:1", 60)), Reason::NoAccess, "the root is for superusers");
    world.mount("server", "", "h:1", 60).unwrap();
}

/// T042 T043: the mounter administers the created path; empty nodes are collected unless their permissions were set.
#[test]
fn empty_nodes_are_collected_and_sticky_ones_stay() {
    let world = World::with(FIXTURE);
    world.mount("bob", "one/bright/day", "h:1", 60).unwrap();
    world.unmount("bob", "one/bright/day", None).unwrap();
    assert_eq!(world.names(), Vec::<String>::new());
    world.mount("bob", "one/bright/day", "h:1", 60).unwrap();
    world.set_permissions("bob", "one/bright", FIXTURE, None).unwrap();
    world.unmount("bob", "one/bright/day", None).unwrap();
    assert_eq!(world.names(), ["one", "one/bright"]);
}

/// The reasons of all calls of `by` for `name`; `None`: no error.
fn reasons_of_all_calls(world: &World, by: &str, name: &str) -> Vec<Option<Reason>> {
    let reason = |error: Option<ebla_mounttable_tree::Error>| error.map(|error| error.reason);
    vec![
        reason(world.resolve(by, name).err()),
        reason(world.resolve(by, &format!("{name}/below")).err()),
        reason(world.permissions(by, name).err()),
        reason(world.node_info(by, name).err()),
        reason(world.glob_summary(by, name, "*").err()),
        reason(world.glob_summary(by, name, "...").err()),
        reason(world.mount(by, name, "h:9", 60).err()),
        reason(world.set_permissions(by, name, FIXTURE, None).err()),
        reason(world.unmount(by, name, None).err()),
        reason(world.delete(by, name, Subtree::Refuse).err()),
        reason(world.delete_version(by, name, "7").err()),
    ]
}

/// No call shows a caller who may not traverse a node what exists below it. One who may traverse it can find out whether a name exists
/// that is closed to them (T004): it is refused, and a missing one is not found.
#[test]
fn what_is_below_a_closed_node_is_not_revealed() {
    let world = World::with(FIXTURE);
    world.set_permissions("root", "closed", r#"{"Read":{"In":["bob"]}}"#, None).unwrap();
    world.mount("root", "closed/mounted", "h:1", 60).unwrap();
    world.set_permissions("root", "closed/empty", FIXTURE, None).unwrap();
    world.set_permissions("root", "private", r#"{"Read":{"In":["bob"]}}"#, None).unwrap();
    for name in ["closed/mounted", "closed/empty", "closed/missing", "closed/missing/too"] {
        let reasons = reasons_of_all_calls(&world, "alice", name);
        assert_eq!(reasons, vec![Some(Reason::NoAccess); reasons.len()], "{name}");
    }
    assert_eq!(world.reason(world.resolve("alice", "private")), Reason::NoAccess);
    assert_eq!(world.reason(world.resolve("alice", "missing")), Reason::NoSuchName);
}

/// T044 T045 T046 T047 T048
#[test]
fn deletion_requires_rights() {
    let world = World::with(FIXTURE);
    world.mount("bob", "one/bright/day", "h:1", 60).unwrap();
    assert_eq!(world.reason(world.delete("bob", "one/bright", Subtree::Refuse)), Reason::NotEmpty);
    assert_eq!(world.reason(world.delete("alice", "one/bright/day", Subtree::Refuse)), Reason::NoAccess);
    assert_eq!(world.names(), ["one", "one/bright", "one/bright/day"]);
    assert_eq!(world.delete("bob", "one/bright", Subtree::Delete), Ok(2));
    assert_eq!(world.names(), ["one"]);
    world.set_permissions("bob", "hoohaa", r#"{"Admin":{"In":["bob"]}}"#, None).unwrap();
    world.delete("root", "hoohaa", Subtree::Refuse).unwrap();
    world.delete("root", "never/was", Subtree::Refuse).unwrap();
    assert_eq!(world.reason(world.delete("root", "", Subtree::Delete)), Reason::Root);
}

/// T008 T009 T010 T011 T012 T122
#[test]
fn permissions_have_a_version_of_their_own() {
    let world = World::with(FIXTURE);
    assert_eq!(world.reason(world.set_permissions("alice", "onlybob", FIXTURE, None)), Reason::NoAccess);
    assert_eq!(world.names(), Vec::<String>::new());
    world.set_permissions("bob", "onlybob", r#"{"Admin":{"In":["bob"]}}"#, None).unwrap();
    let (_, version) = world.permissions("bob", "onlybob").unwrap();
    assert_eq!(world.reason(world.set_permissions("bob", "onlybob", FIXTURE, Some("xyzzy"))), Reason::BadVersion);
    for server in 1..=10 {
        world.mount("bob", "onlybob", &format!("h:{server}"), 60).unwrap();
    }
    world.set_permissions("bob", "onlybob", r#"{"Admin":{"In":["alice"]}}"#, Some(&version)).unwrap();
    let (permissions, later) = world.permissions("bob", "onlybob").unwrap();
    assert_eq!(permissions, Permissions::from_json(r#"{"Admin":{"In":["alice","bob"]}}"#).unwrap());
    assert_ne!(version, later);
    assert_eq!(world.reason(world.permissions("carol", "onlybob")), Reason::NoAccess);
}

/// T102
#[test]
fn closing_a_node_keeps_its_author_admin() {
    let world = World::open();
    let nobody = r#"{"In":[""]}"#;
    let closed =
        format!(r#"{{"Admin":{nobody},"Mount":{nobody},"Read":{nobody},"Create":{nobody},"Resolve":{nobody}}}"#);
    world.set_permissions("root", "d/f", &closed, None).unwrap();
    let admins = world.permissions("root", "d/f").unwrap().0;
    assert!(admins.to_json().contains(r#""Admin":{"In":["","root"]}"#), "{admins}");
    world.mount("root", "d/f", "h:1", 60).unwrap();
    assert_eq!(world.reason(world.resolve("alice", "d/f")), Reason::NoAccess);
    assert_eq!(world.resolve("root", "d/f").unwrap(), "h:1");
}

/// T115: a mount that was authorised by the old permissions is not refreshed under the new ones.
#[test]
fn a_change_of_permissions_fences_what_was_read_before() {
    let world = World::open();
    let mounted = world.mount("bob", "a", "h:1", 60).unwrap();
    assert!(world.refresh("bob", &mounted, "h:1", 60).is_some());
    assert!(world.refresh("alice", &mounted, "h:1", 60).is_none(), "it is bob's");
    world.set_permissions("root", "a", r#"{"Admin":{"In":["root"]}}"#, None).unwrap();
    assert!(world.refresh("bob", &mounted, "h:1", 60).is_none());
}

/// 2.2: a mount below a mount is refused; existing nodes below are hidden, and reappear.
#[test]
fn a_mount_hides_what_is_below_it() {
    let world = World::open();
    world.mount("root", "a/b", "h:1", 0).unwrap();
    world.mount("root", "a", "h:2", 60).unwrap();
    assert_eq!(world.resolve("root", "a/b").unwrap(), "h:2 + b");
    assert_eq!(world.reason(world.mount("root", "a/c", "h:3", 60)), Reason::ShadowedByMount);
    world.memory.advance(SECOND * 60);
    assert_eq!(world.resolve("root", "a/b").unwrap(), "h:1");
}

/// 10.4, 10.5: a walk is one read whatever its depth, a refresh one change and no read.
#[test]
fn a_walk_is_one_read_and_a_refresh_one_change() {
    let world = World::open();
    let deep = "a/b/c/d/e/f/g/h/i/j";
    let mounted = world.mount("root", deep, "h:1", 60).unwrap();
    world.take_calls();
    world.resolve("root", deep).unwrap();
    assert_eq!(world.take_calls(), (1, 0));
    world.refresh("root", &mounted, "h:1", 120).unwrap();
    assert_eq!(world.take_calls(), (0, 1));
}

/// A stream of KeepMounted remembers the node for each of its servers.
#[test]
fn a_mount_returns_its_node_without_what_others_can_enlarge() {
    let world = World::open();
    world.mount("root", "a", "h:1", 60).unwrap();
    let mounted = world.mount("root", "a", "h:2", 60).unwrap();
    assert_eq!(mounted.node, mounted.node.bare());
}
