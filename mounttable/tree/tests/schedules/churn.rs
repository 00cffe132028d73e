//! Many workers that create and remove nodes on shared paths: T062, T063, T064, T123.

use std::time::Duration;

use ebla_mounttable_tree::table::{Correction, GlobMatch, Mount, Problem, Subtree};
use ebla_mounttable_tree::{MountMode, Pattern, Reason, Target};

use crate::scheduler::{Draw, Task, alone, run_for};
use crate::workload::{World, caller, name};

/// The number of steps of all workers together after which they count as stuck.
const STEPS_MAX: u64 = 20_000_000;

fn mount(ttl: Duration) -> Mount {
    Mount { address: "h:1".parse().unwrap(), target: Target::Object, ttl, mode: MountMode::Add }
}

/// A listing of everything collects empty nodes; then only the root is left.
fn nothing_is_left(world: &World) {
    let pattern: Pattern = "*/...".parse().unwrap();
    let mut found: Vec<GlobMatch> = Vec::new();
    alone(world.table.glob(&caller("root"), &name(""), &pattern, &mut found)).unwrap();
    assert_eq!(found, []);
    assert_eq!(world.memory.rows().len(), 1, "{:?}", world.memory.rows().keys());
}

/// Workers mount below shared paths, resolve their mounts, and unmount them.
pub(crate) fn mounts_and_unmounts(seed: u64, workers: usize, rounds: usize) {
    let mut draw = Draw::seeded(seed);
    let world = World::new();
    let ways = ["a", "a/b", "a/c/d/e"];
    let mut names = |worker: usize| -> Vec<_> {
        let mut one = || format!("{}/{worker}/{}", ways[usize::try_from(draw.below(3)).unwrap()], draw.below(10));
        (0..rounds).map(|_| name(&one())).collect()
    };
    let names: Vec<_> = (0..workers).map(&mut names).collect();
    let worker = |names: &Vec<_>| -> Task<'_> {
        let names = names.clone();
        let world = &world;
        Box::pin(async move {
            let root = caller("root");
            for at in names {
                world.table.mount(&root, &at, &mount(Duration::ZERO)).await.unwrap();
                world.table.resolve(&root, &at).await.unwrap();
                assert_eq!(world.table.unmount(&root, &at, None).await, Ok(1), "{at:?}");
            }
        })
    };
    assert!(run_for(STEPS_MAX, names.iter().map(worker).collect(), &mut draw, 0), "stuck: seed {seed}");
    nothing_is_left(&world);
}

/// Some workers mount and others delete, flat and deep.
pub(crate) fn mounts_and_deletions(seed: u64, pairs: usize, rounds: usize) {
    let mut draw = Draw::seeded(seed);
    let world = World::new();
    let mut tasks: Vec<Task<'_>> = Vec::new();
    for pair in 0..pairs {
        for (deleted, mounted) in
            [(format!("a/{pair}"), format!("a/{pair}")), (format!("b/{pair}"), format!("b/{pair}/1/2/3/4/5/6"))]
        {
            let (world, mounted, deleted) = (&world, name(&mounted), name(&deleted));
            tasks.push(Box::pin(async move {
                for _ in 0..rounds {
                    world.table.mount(&caller("root"), &mounted, &mount(Duration::ZERO)).await.unwrap();
                }
            }));
            tasks.push(Box::pin(async move {
                for _ in 0..rounds {
                    world.table.delete(&caller("root"), &deleted, Subtree::Delete, None).await.unwrap();
                }
            }));
        }
    }
    assert!(run_for(STEPS_MAX, tasks, &mut draw, 0), "stuck: seed {seed}");
    for way in ["a", "b"] {
        alone(world.table.delete(&caller("root"), &name(way), Subtree::Delete, None)).unwrap();
    }
    nothing_is_left(&world);
}

/// Deep names expire, and two lookups of each run concurrently.
pub(crate) fn expiries(seed: u64, names: usize) {
    let mut draw = Draw::seeded(seed);
    let world = World::new();
    let names: Vec<_> = (0..names).map(|at| name(&format!("{at}/b/c/d/e/f/g/h/i/j/k/l/m/n"))).collect();
    for at in &names {
        alone(world.table.mount(&caller("root"), at, &mount(Duration::from_secs(3_600)))).unwrap();
    }
    world.memory.advance(Duration::from_secs(3_601));
    let resolve = |at| -> Task<'_> {
        let world = &world;
        Box::pin(async move {
            let found = world.table.resolve(&caller("root"), at).await;
            assert_eq!(found.unwrap_err().reason, Reason::NoSuchName);
        })
    };
    assert!(run_for(STEPS_MAX, names.iter().chain(&names).map(resolve).collect(), &mut draw, 0), "stuck: seed {seed}");
    assert_eq!(world.memory.rows().len(), 1, "{:?}", world.memory.rows().keys());
}

/// The number of concurrent operations.
const TOGETHER: u64 = 50;

/// The charges of users after many operations, some of which crash: the number of wrong counters, and of those that a
/// concurrent recount corrects.
pub(crate) fn charges(seed: u64, operations: u64, crashes_per_thousand: u64) -> (usize, Vec<Correction>) {
    let mut draw = Draw::seeded(seed);
    let world = World::new();
    for _ in 0..operations / TOGETHER {
        let tasks = (0..TOGETHER).map(|_| operation(&world, &mut draw)).collect();
        assert!(run_for(STEPS_MAX, tasks, &mut draw, crashes_per_thousand), "stuck: seed {seed}");
        world.memory.advance(Duration::from_secs(1));
    }
    // Remains of crashed operations are charged until a sweep removes them.
    alone(world.table.sweep()).unwrap();
    let wrong = || {
        let findings = alone(world.table.check()).unwrap();
        findings.iter().filter(|finding| finding.problem == Problem::Counter).count()
    };
    let drifted = wrong();
    let mut corrections = Vec::new();
    let mut tasks: Vec<_> = (0..TOGETHER).map(|_| operation(&world, &mut draw)).collect();
    let recount = async { corrections = world.table.recount().await.unwrap() };
    tasks.push(Box::pin(recount));
    assert!(run_for(STEPS_MAX, tasks, &mut draw, 0), "stuck: seed {seed}");
    alone(world.table.recount()).unwrap();
    assert_eq!(wrong(), 0, "seed {seed}");
    (drifted, corrections)
}

/// A random operation of one of three users on one of 27 names; its outcome is ignored.
fn operation<'a>(world: &'a World, draw: &mut Draw) -> Task<'a> {
    let who = caller(["alice", "bob", "carol"][usize::try_from(draw.below(3)).unwrap()]);
    let at = name(&format!("{}/{}/{}", draw.below(3), draw.below(3), draw.below(3)));
    let server = format!("h{}:1", draw.below(4)).parse().unwrap();
    let mount = Mount { address: server, ..mount(Duration::from_secs(draw.below(20))) };
    let (what, table) = (draw.below(10), world.server(draw));
    Box::pin(async move {
        let _ = match what {
            0..6 => table.mount(&who, &at, &mount).await.map(drop),
            6..8 => table.unmount(&who, &at, None).await.map(drop),
            8 => table.delete(&who, &at, Subtree::Delete, None).await.map(drop),
            _ => table.resolve(&who, &at).await.map(drop),
        };
    })
}
