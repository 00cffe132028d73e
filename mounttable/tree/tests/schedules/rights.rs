//! A change of permissions concurrent with a mount that the old ones allow: the mount fails or precedes the change.

use std::cell::Cell;
use std::time::Duration;

use ebla_mounttable_tree::store::Family;
use ebla_mounttable_tree::table::Mount;
use ebla_mounttable_tree::{MountMode, Permissions, Target, row_key};

use crate::scheduler::{Draw, Task, alone, run};
use crate::workload::{World, caller, name};

/// The outcome of one schedule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    Refused,
    MountFirst,
    /// The server was mounted after the permissions that forbid it.
    Wrong,
}

fn mount(server: &str) -> Mount {
    Mount { address: server.parse().unwrap(), target: Target::Object, ttl: Duration::ZERO, mode: MountMode::Add }
}

/// Alice mounts on a node while root revokes her right.
pub(crate) fn order_of(seed: u64) -> Order {
    let mut draw = Draw::seeded(seed);
    let world = World::new();
    let (node, root, alice) = (name("p/c"), caller("root"), caller("alice"));
    let before = Permissions::from_json(r#"{"Admin":{"In":["root"]},"Mount":{"In":["alice"]}}"#).unwrap();
    let after = Permissions::from_json(r#"{"Admin":{"In":["root"]}}"#).unwrap();
    alone(world.table.set_permissions(&root, &node, &before, None)).unwrap();
    let is_mounted = || {
        let rows = world.memory.rows();
        rows.get(&row_key(&node)).unwrap().contains_key(&(Family::Servers, "h:1".to_string()))
    };
    let was_there = Cell::new(false);
    let (alices, others) = (mount("h:1"), mount("h:2"));
    let tasks: Vec<Task<'_>> = vec![
        Box::pin(async {
            let _ = world.table.mount(&alice, &node, &alices).await;
        }),
        Box::pin(async {
            let _ = world.table.mount(&root, &node, &others).await;
        }),
        Box::pin(async {
            world.table.set_permissions(&root, &node, &after, None).await.unwrap();
            was_there.set(is_mounted());
        }),
    ];
    assert!(run(tasks, &mut draw, 0), "stuck: seed {seed}");
    match (was_there.get(), is_mounted()) {
        (_, false) => Order::Refused,
        (true, true) => Order::MountFirst,
        (false, true) => Order::Wrong,
    }
}
