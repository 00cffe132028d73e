//! A process that crashes at one place: each call is cut off before each of its storage calls in turn, and then other
//! clients continue.

use std::future::Future;
use std::task::{Context, Poll, Waker};

use crate::scheduler::{Task, alone};
use crate::verdict::{self, Verdict};
use crate::workload::{Call, World, caller, name};

/// Polls a call this often and drops it; returns whether it had finished.
fn cut_off(world: &World, call: Call, polls: usize) -> bool {
    let mut call = Box::pin(world.call(call));
    let mut context = Context::from_waker(Waker::noop());
    (0..polls).any(|_| matches!(call.as_mut().poll(&mut context), Poll::Ready(_)))
}

/// Cuts the call off at every place, each time on a new table; returns the number of places.
pub(crate) fn everywhere(before: &[Call], call: &Call) -> usize {
    for polls in 0.. {
        let world = World::new();
        before.iter().for_each(|call| alone(world.call(call.clone())).unwrap());
        let is_over = cut_off(&world, call.clone(), polls);
        let verdict = others_work(&world, polls % 2 == 0);
        assert!(verdict.is_good(), "{call:?} cut off after {polls} polls: {verdict:?}");
        if is_over {
            return polls;
        }
    }
    0
}

/// Two calls that pause at every pair of places: the second one, and then others, run between the steps of the first;
/// then both continue. Afterwards names can be created as before.
pub(crate) fn standing_still(before: &[Call], first: &Call, between: &Call, second: &Call) {
    for polls in 0.. {
        for more in 0.. {
            let world = World::new();
            before.iter().for_each(|call| alone(world.call(call.clone())).unwrap());
            let first = after(world.task(first.clone(), 0), polls);
            alone(world.call(between.clone())).unwrap();
            let second = after(world.task(second.clone(), 0), more);
            let (first_is_over, second_is_over) = (first.is_none(), second.is_none());
            first.into_iter().chain(second).for_each(alone);
            let again = alone(world.call(Call::Mount("p/other", "h:8")));
            assert_eq!(again, Ok(()), "{polls} steps of the first, {more} of the second");
            if second_is_over && first_is_over {
                return;
            }
            if second_is_over {
                break;
            }
        }
    }
}

/// The task after this number of steps; `None` when it has finished.
fn after(mut task: Task<'_>, steps: usize) -> Option<Task<'_>> {
    let mut context = Context::from_waker(Waker::noop());
    let is_over = (0..steps).any(|_| task.as_mut().poll(&mut context).is_ready());
    (!is_over).then_some(task)
}

/// Another client mounts beside the remains, resolves it, deletes it, and sweeps, before that or after.
fn others_work(world: &World, sweeps_first: bool) -> Verdict {
    let mut verdict = Verdict::default();
    verdict::visible(world, &mut verdict);
    if sweeps_first {
        verdict::sweep(world, &mut verdict);
    }
    alone(world.call(Call::Mount("p/c", "h:2"))).unwrap();
    let found = alone(world.table.resolve(&caller("root"), &name("p/c"))).unwrap();
    verdict.lost += usize::from(!found.servers.iter().any(|server| server.address.as_str() == "h:2"));
    verdict::visible(world, &mut verdict);
    verdict::resurrection(world, &mut verdict);
    verdict::sweep(world, &mut verdict);
    verdict
}
