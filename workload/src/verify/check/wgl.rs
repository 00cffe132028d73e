//! Search for a linear order of operations that explains every response and agrees with real time.
//!
//! The algorithm of Wing and Gong with Lowe's memoization: depth first over operations that may be next (those that began
//! before any other remaining one ended); no configuration, the set of operations done and the state reached, is visited
//! twice. An operation of unknown outcome may be next at any time after its start, or never.
//!
//! The search is exponential at worst, so it has a budget. Three things keep it small: the operation that ended first is
//! tried first, of equal operations with unknown outcome only the oldest is tried, and rows are short.

use std::collections::HashSet;
use std::hash::Hash;

use crate::verify::history::{Moment, Operation, Outcome};

/// A sequential model of a row.
pub trait Model {
    /// State of the row.
    type State: Clone + Eq + Hash;

    /// The state before the first operation.
    fn initial(&self) -> Self::State;

    /// The state after `operation`; `None` when the response is impossible in `state`, or when an operation of unknown outcome
    /// would change nothing.
    fn step(&self, state: &Self::State, operation: &Operation) -> Option<Self::State>;
}

/// Result of the search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// There is an order.
    Exists,
    /// There is none; no order explains the operations up to and including this one (its index in the input).
    Impossible(usize),
    /// More configurations than the budget.
    Undecided,
}

/// Searches for an order of `operations` (none of them failed), visiting at most `budget` configurations.
pub fn order<M: Model>(model: &M, operations: &[&Operation], budget: usize) -> Order {
    let calls = Calls::new(operations);
    let mut stack = vec![Configuration::new(model.initial(), Done::none(operations.len()), &calls)];
    let mut visited: HashSet<(Done, M::State)> = HashSet::new();
    let mut deepest = (0, calls.first_to_end(&Done::none(operations.len())));
    while let Some(top) = stack.last_mut() {
        if top.done.required == calls.required {
            return Order::Exists;
        }
        let Some(next) = top.candidates.pop() else {
            stack.pop();
            continue;
        };
        let Some(call) = calls.by_start.get(next) else { continue };
        let Some(state) = model.step(&top.state, call.operation) else { continue };
        let done = top.done.with(next, call.end.is_some());
        if !visited.insert((done.clone(), state.clone())) {
            continue;
        }
        if visited.len() > budget {
            return Order::Undecided;
        }
        if done.required > deepest.0 {
            deepest = (done.required, calls.first_to_end(&done));
        }
        stack.push(Configuration::new(state, done, &calls));
    }
    Order::Impossible(deepest.1)
}

/// An operation in the search.
struct Call<'a> {
    operation: &'a Operation,
    /// Its place in the input.
    number: usize,
    start: Moment,
    /// `None`: its outcome is unknown, so it has no end.
    end: Option<Moment>,
}

struct Calls<'a> {
    by_start: Vec<Call<'a>>,
    /// Number of operations with an end, which must all be in the order.
    required: usize,
}

impl<'a> Calls<'a> {
    fn new(operations: &[&'a Operation]) -> Self {
        let call = |(number, operation): (usize, &&'a Operation)| Call {
            operation,
            number,
            start: operation.start,
            end: (operation.outcome == Outcome::Ok).then_some(operation.end),
        };
        let mut by_start: Vec<_> = operations.iter().enumerate().map(call).collect();
        by_start.sort_by_key(|call| call.start);
        let required = by_start.iter().filter(|call| call.end.is_some()).count();
        Self { by_start, required }
    }

    /// The operations that may be next, the one to try first at the end.
    fn candidates(&self, done: &Done) -> Vec<usize> {
        let mut candidates: Vec<(Option<Moment>, usize)> = Vec::new();
        let mut first_end: Option<Moment> = None;
        for (place, call) in self.by_start.iter().enumerate().filter(|(place, _)| !done.contains(*place)) {
            if first_end.is_some_and(|end| call.start > end) {
                break;
            }
            first_end = [first_end, call.end].into_iter().flatten().min();
            let is_like = |(end, other): &(Option<Moment>, usize)| {
                end.is_none() && self.by_start.get(*other).is_some_and(|other| is_equal(other, call))
            };
            if call.end.is_some() || !candidates.iter().any(is_like) {
                candidates.push((call.end, place));
            }
        }
        // Operations without an end are tried last: usually they were never applied.
        candidates.sort_by_key(|(end, place)| {
            (std::cmp::Reverse(end.map_or(u128::MAX, |end| end.elapsed().as_micros())), *place)
        });
        candidates.into_iter().map(|(_, place)| place).collect()
    }

    /// The operation, among those not done, that ended first: the search cannot go beyond it. Its place in the input.
    fn first_to_end(&self, done: &Done) -> usize {
        let open =
            self.by_start.iter().enumerate().filter(|(place, call)| !done.contains(*place) && call.end.is_some());
        open.min_by_key(|(_, call)| call.end).map_or(0, |(_, call)| call.number)
    }
}

fn is_equal(one: &Call<'_>, other: &Call<'_>) -> bool {
    one.operation.action == other.operation.action
}

/// A configuration of the search: operations done, state reached, and candidates for the next operation.
struct Configuration<S> {
    state: S,
    done: Done,
    candidates: Vec<usize>,
}

impl<S> Configuration<S> {
    fn new(state: S, done: Done, calls: &Calls<'_>) -> Self {
        Self { candidates: calls.candidates(&done), state, done }
    }
}

/// A set of operations, by their place in order of start.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Done {
    words: Vec<u64>,
    /// How many of them have an end.
    required: usize,
}

impl Done {
    fn none(count: usize) -> Self {
        Self { words: vec![0; count.div_ceil(64)], required: 0 }
    }

    fn contains(&self, place: usize) -> bool {
        self.words.get(place / 64).is_some_and(|word| word >> (place % 64) & 1 == 1)
    }

    fn with(&self, place: usize, is_required: bool) -> Self {
        let mut with = self.clone();
        if let Some(word) = with.words.get_mut(place / 64) {
            *word |= 1 << (place % 64);
        }
        with.required += usize::from(is_required);
        with
    }
}
