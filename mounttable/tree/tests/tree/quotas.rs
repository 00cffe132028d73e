//! Charges and limits: T035 to T039, T053 to T056, T059.

use ebla_mounttable_tree::Reason;
use ebla_mounttable_tree::table::{Problem, QuotaKind, Subtree};

use crate::FIXTURE;
use crate::world::World;

const FILE: &str = r#"{"": {"Read":{"In":["..."]},"Admin":{"In":["root"]},"Create":{"In":["root","bob"]}},
    "users": {"Create":{"In":["..."]}}, "stuff": {}, "a": {},
    "users/%%": {"Admin":{"In":["%%"]},"Resolve":{"In":["..."]}}}"#;

/// T035 T036 T037 T038
#[test]
fn creators_are_charged_and_refused_callers_are_not() {
    let world = World::with(FIXTURE);
    world.apply(FILE);
    for (caller, name) in [("alice", "users/ted"), ("bob", "users/carol"), ("root", "users/george")] {
        assert_eq!(world.reason(world.mount(caller, name, "h:1", 60)), Reason::NoAccess);
        assert_eq!(world.usage(caller), (0, 0));
    }
    for user in ["alice", "bob", "root"] {
        world.mount(user, &format!("users/{user}"), "h:1", 60).unwrap();
        assert_eq!(world.usage(user), (1, 1));
    }
    for user in ["alice", "bob", "root"] {
        world.unmount(user, &format!("users/{user}"), None).unwrap();
        assert_eq!(world.usage(user), (0, 0));
    }
    let own = r#"{"Admin":{"In":["alice"]}}"#;
    world.set_permissions("alice", "users/alice/a/b/c/d", own, None).unwrap();
    world.set_permissions("alice", "users/alice/a/b/c/d", own, None).unwrap();
    assert_eq!(world.usage("alice"), (5, 0));
}

/// T039: the limit is exact, and the nodes of the file are charged to the server.
#[test]
fn nodes_are_created_up_to_the_limit() {
    let world = World::with(FIXTURE);
    world.apply(FILE);
    world.set_limit("alice", QuotaKind::Nodes, 4);
    world.mount("alice", "users/alice/1/2", "h:1", 60).unwrap();
    assert_eq!(world.reason(world.mount("alice", "users/alice/3/4", "h:1", 60)), Reason::NodeQuota);
    assert_eq!(world.usage("alice"), (3, 1), "nothing is made of what cannot be made whole");
    world.mount("alice", "users/alice/3", "h:1", 60).unwrap();
    assert_eq!(world.reason(world.mount("alice", "users/alice/4", "h:1", 60)), Reason::NodeQuota);
    assert_eq!((world.usage("alice"), world.usage("bob")), ((4, 2), (0, 0)));
    assert_eq!(world.usage("self:?:ServerUser"), (3, 0));
}

/// T053 T055
#[test]
fn counters_follow_unmounts_and_deletions() {
    let world = World::open();
    (0..10).for_each(|at| drop(world.mount("bob", &at.to_string(), "h:1", 60).unwrap()));
    for (at, left) in (0..10).zip((0..10).rev()) {
        if at % 2 == 0 {
            world.unmount("bob", &at.to_string(), None).unwrap();
        } else {
            assert_eq!(world.delete("bob", &at.to_string(), Subtree::Delete), Ok(1));
        }
        assert_eq!(world.usage("bob"), (left, left));
    }
    world.mount("root", "1/2/3/4/5/6", "h:1", 60).unwrap();
    assert_eq!(world.delete("root", "1", Subtree::Delete), Ok(6));
    assert_eq!((world.usage("root"), world.memory.rows().len()), ((0, 0), 1));
}

/// T054
#[test]
fn shared_ways_are_charged_once() {
    let world = World::open();
    world.mount("root", "1/2/3/4/5/6/7/8/9a/10", "h:1", 60).unwrap();
    world.mount("root", "1/2/3/4/5/6/7/8/9b/11", "h:1", 60).unwrap();
    assert_eq!(world.usage("root"), (12, 2));
}

/// T056
#[test]
fn the_last_server_takes_the_node_along() {
    let world = World::open();
    for node in ["node1", "node2"] {
        (1..=5).for_each(|port| drop(world.mount("bob", node, &format!("h:{port}"), 60).unwrap()));
    }
    assert_eq!(world.usage("bob"), (2, 10));
    assert_eq!(world.unmount("bob", "node1", None), Ok(5));
    assert_eq!(world.usage("bob"), (1, 5));
    for (port, left) in (1..=5).zip((0..5).rev()) {
        world.unmount("bob", "node2", Some(&format!("h:{port}"))).unwrap();
        assert_eq!(world.usage("bob"), (i64::from(left > 0), left));
    }
}

/// T059: ten nodes and fifteen servers, and not one more; users are charged separately.
#[test]
fn limits_are_exact() {
    let world = World::open();
    let names: Vec<_> = (0..10).map(|at| at.to_string()).collect();
    names.iter().for_each(|name| drop(world.mount("bob", name, "h:1", 60).unwrap()));
    assert_eq!(world.reason(world.mount("bob", "one-more", "h:1", 60)), Reason::NodeQuota);
    names.iter().take(5).for_each(|name| drop(world.mount("bob", name, "h:2", 60).unwrap()));
    assert_eq!(world.reason(world.mount("bob", "9", "h:2", 60)), Reason::ServerQuota);
    assert_eq!(world.usage("bob"), (10, 15));
    world.mount("bob", "9", "h:1", 60).unwrap();
    world.mount("alice", "9", "h:3", 60).unwrap();
    assert_eq!((world.usage("bob"), world.usage("alice")), ((10, 15), (0, 1)), "a server is charged to who mounts it");
    world.unmount("bob", "0", Some("h:1")).unwrap();
    world.mount("bob", "9", "h:2", 60).unwrap();
    assert_eq!(world.usage("bob"), (10, 15));
    for name in &names {
        world.unmount("bob", name, None).unwrap();
    }
    assert_eq!((world.usage("bob"), world.usage("alice")), ((0, 0), (0, 0)));
    assert_eq!(world.recount(), 0);
}

/// A caller who mounts a server of another user takes over the charge.
#[test]
fn a_charge_follows_the_last_mounter() {
    let world = World::open();
    world.mount("bob", "a", "h:1", 60).unwrap();
    world.mount("alice", "a", "h:1", 60).unwrap();
    assert_eq!((world.usage("bob"), world.usage("alice")), ((1, 0), (0, 1)));
    world.mount("bob", "a", "h:2", 60).unwrap();
    world.mount_as("alice", "a", "h:3", 60, ebla_mounttable_tree::MountMode::Replace).unwrap();
    assert_eq!((world.usage("bob"), world.usage("alice")), ((1, 0), (0, 1)));
}

/// T123: a wrong counter is found and corrected while the table serves.
#[test]
fn a_recount_puts_counters_right() {
    let world = World::open();
    world.mount("bob", "a/b", "h:1", 60).unwrap();
    world.drift("num-nodes-per-user:bob", 3);
    world.drift("num-servers-per-user:ghost", 1);
    assert_eq!(world.check(), [Problem::Counter, Problem::Counter]);
    assert_eq!(world.recount(), 2);
    assert_eq!((world.usage("bob"), world.usage("ghost")), ((2, 1), (0, 0)));
    assert_eq!((world.check(), world.recount()), (vec![], 0));
}

/// Charges that a crash has left behind are corrected without an operator.
#[test]
fn maintenance_puts_counters_right() {
    let world = World::open();
    world.mount("bob", "a/b", "h:1", 60).unwrap();
    world.drift("num-nodes-per-user:bob", 3);
    let maintained = world.maintain();
    let corrected: Vec<_> = maintained.corrections.iter().map(|it| (it.counter.as_str(), it.was, it.is)).collect();
    assert_eq!(corrected, [("num-nodes-per-user:bob", 5, 2)]);
    assert_eq!((world.usage("bob"), world.maintain().corrections), ((2, 1), vec![]));
}
