//! Draws from a seed the task that makes the next step, and the task that crashes.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// A task; it records its own outcome.
pub(crate) type Task<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// The number of steps after which a schedule counts as stuck.
const STEPS_MAX: u64 = 50_000;

/// Numbers from a seed (splitmix64).
pub(crate) struct Draw(u64);

impl Draw {
    pub(crate) fn seeded(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ 0x9e37_79b9_7f4a_7c15)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number in `[0, bound)`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    /// True with probability `times / of`.
    pub(crate) fn chance(&mut self, times: u64, of: u64) -> bool {
        self.below(of) < times
    }
}

/// Runs the tasks step by step; returns whether all finished.
pub(crate) fn run(tasks: Vec<Task<'_>>, draw: &mut Draw, crashes_per_thousand: u64) -> bool {
    run_for(STEPS_MAX, tasks, draw, crashes_per_thousand)
}

/// The same for tasks with more steps.
pub(crate) fn run_for(steps_max: u64, mut tasks: Vec<Task<'_>>, draw: &mut Draw, crashes_per_thousand: u64) -> bool {
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..steps_max {
        if tasks.is_empty() {
            return true;
        }
        let next = usize::try_from(draw.below(u64::try_from(tasks.len()).unwrap())).unwrap();
        let is_over = draw.chance(crashes_per_thousand, 1_000)
            || tasks.get_mut(next).unwrap().as_mut().poll(&mut context) == Poll::Ready(());
        if is_over {
            drop(tasks.swap_remove(next));
        }
    }
    false
}

/// Runs one future alone.
pub(crate) fn alone<T>(future: impl Future<Output = T>) -> T {
    let mut context = Context::from_waker(Waker::noop());
    let mut future = Box::pin(future);
    for _ in 0..STEPS_MAX {
        if let Poll::Ready(out) = future.as_mut().poll(&mut context) {
            return out;
        }
    }
    panic!("a call that runs alone does not end");
}
