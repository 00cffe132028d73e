//! Restarts, outdated reads, and inconsistent rows: T061, T065, T066.

use ebla_mounttable_tree::Reason;
use ebla_mounttable_tree::store::{self, Family};
use ebla_mounttable_tree::table::{Problem, Subtree};

use crate::FIXTURE;
use crate::world::World;

/// A change of a node.
type Change<'a> = &'a dyn Fn(&World);

/// T061
#[test]
fn permissions_and_deletions_outlast_the_server() {
    let world = World::with(FIXTURE);
    for at in ["a/b/c", "a/b", "d"] {
        world.set_permissions("root", at, r#"{"Admin":{"In":["bob","root"]}}"#, None).unwrap();
    }
    world.delete("root", "a/b/c", Subtree::Refuse).unwrap();
    let before: Vec<_> = world.names().iter().map(|at| world.permissions("server", at).unwrap()).collect();
    let world = world.restarted();
    assert_eq!(world.names(), ["a", "a/b", "d"]);
    let after: Vec<_> = world.names().iter().map(|at| world.permissions("server", at).unwrap()).collect();
    assert_eq!(before, after);
}

/// T065: a change based on an outdated read fails if a fence lies in between. Mounts and creations of children fence
/// only deletions, not each other.
#[test]
fn a_fenced_change_fails_with_an_outdated_read() {
    let open = r#"{"Admin":{"In":["..."]}}"#;
    let changes: [(&str, Change<'_>); 4] = [
        ("delete", &|world| assert_eq!(world.delete("bob", "a", Subtree::Refuse), Ok(1))),
        ("permissions", &|world| world.set_permissions("bob", "a", open, None).unwrap()),
        ("mount", &|world| drop(world.mount("bob", "a", "h:2", 60).unwrap())),
        ("child", &|world| world.set_permissions("bob", "a/b", open, None).unwrap()),
    ];
    for (first, change) in changes {
        // A deletion, a change of permissions and a refresh, each based on the earlier read; their outcomes.
        let outcomes = (0..3).map(|second| {
            let world = World::open();
            let mounted = world.mount("bob", "a", "h:1", 60).unwrap();
            let (version, etag) =
                (world.node_info("bob", "a").unwrap().version, world.permissions("bob", "a").unwrap().1);
            if first == "child" {
                // No node is created below a live mount.
                world.memory.advance(crate::world::SECOND * 60);
            }
            change(&world);
            match second {
                0 => world.delete_version("bob", "a", &version).map(|count| count.to_string()),
                1 => world.set_permissions("bob", "a", open, Some(&etag)).map(|()| "set".to_owned()),
                _ => Ok(format!("{}", world.refresh("bob", &mounted, "h:1", 60).is_some())),
            }
            .unwrap_or_else(|error| error.reason.to_string())
        });
        let expected = match first {
            "delete" => ["0", "BAD_VERSION", "false"],
            "permissions" => ["BAD_VERSION", "BAD_VERSION", "false"],
            "mount" => ["BAD_VERSION", "set", "true"],
            _ => ["BAD_VERSION", "set", "false"],
        };
        assert_eq!(outcomes.collect::<Vec<_>>(), expected, "after {first}");
    }
}

/// T066
#[test]
fn rows_that_do_not_fit_are_found_and_repaired() {
    let world = World::open();
    (0..5).for_each(|at| drop(world.mount("root", &format!("good{at}"), "h:1", 60).unwrap()));
    world.mount("root", "dangling", "h:1", 60).unwrap();
    for orphan in ["o1", "o2", "o3", "o4", "o5"] {
        world.mount("root", &format!("{orphan}/lost"), "h:1", 60).unwrap();
        (0..5).for_each(|at| drop(world.mount("root", &format!("{orphan}/good{at}"), "h:1", 60).unwrap()));
        world.behind(orphan, store::Change::DeleteColumn(Family::Children, "lost".to_owned()));
        world.behind("", store::Change::DeleteColumn(Family::Children, orphan.to_owned()));
    }
    world.behind("dangling", store::Change::DeleteRow);
    assert_eq!(world.memory.rows().len(), 41);
    let mut found = world.check();
    found.sort();
    let expected = [vec![Problem::Orphan; 10], vec![Problem::Dangling], vec![Problem::Counter; 2]].concat();
    assert_eq!(found, expected);
    world.repair().unwrap();
    assert_eq!((world.check(), world.memory.rows().len()), (vec![], 6));
    assert_eq!(world.usage("root"), (5, 5));
    assert_eq!(world.reason(world.resolve("root", "dangling")), Reason::NoSuchName);
}
