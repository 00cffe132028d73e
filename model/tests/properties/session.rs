//! Sessions: each write of a client is applied once, for any number of sends in any order.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use ebla_model::id::Sequence;
use ebla_model::session::{SequenceCheck, SessionWindow};
use ebla_model::time::Micros;
use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, prop_assert, prop_assert_eq, prop_oneof, proptest};

/// The next event.
#[derive(Clone, Debug)]
enum Step {
    /// The client takes a sequence number and sends its write.
    Send,
    /// The client retries the outstanding write at this position.
    Again(usize),
    /// The message in flight at this position arrives, possibly out of order.
    Arrive(usize),
    /// The client receives the response to the write at this position.
    Answer(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        Just(Step::Send),
        (0_usize..8).prop_map(Step::Again),
        (0_usize..16).prop_map(Step::Arrive),
        (0_usize..16).prop_map(Step::Arrive),
        (0_usize..8).prop_map(Step::Answer),
    ];
    vec(step, 0..120)
}

#[derive(Default)]
struct History {
    next: u64,
    outstanding: BTreeSet<u64>,
    /// Messages in flight: number, and the lowest outstanding at its send.
    messages: Vec<(u64, u64)>,
    window: SessionWindow,
    /// How often each was applied.
    applied: BTreeMap<u64, u32>,
}

impl History {
    fn lowest(&self) -> u64 {
        self.outstanding.first().copied().unwrap_or(self.next)
    }

    fn send(&mut self, number: u64) {
        self.messages.push((number, self.lowest()));
    }

    /// Delivers a message. Returns apply's response.
    fn arrive(&mut self, at: usize) -> Option<(u64, SequenceCheck)> {
        let at = at.checked_rem(self.messages.len())?;
        let (number, lowest) = self.messages[at];
        // Messages may arrive twice: every other one stays in flight.
        if number % 2 == 0 {
            self.messages.remove(at);
        }
        let verdict = self.window.check(Sequence::new(number));
        if verdict == SequenceCheck::New {
            *self.applied.entry(number).or_default() += 1;
            let result = Bytes::copy_from_slice(&number.to_be_bytes());
            self.window.record(Sequence::new(number), Sequence::new(lowest), Some(result), Micros::ZERO);
        }
        Some((number, verdict))
    }
}

proptest! {
    #[test]
    fn a_write_is_applied_once(steps in steps()) {
        let mut history = History::default();
        for step in steps {
            match step {
                Step::Send => {
                    let number = history.next;
                    history.next += 1;
                    history.outstanding.insert(number);
                    history.send(number);
                }
                Step::Again(at) => {
                    let number = history.outstanding.iter().nth(at).copied();
                    number.into_iter().for_each(|number| history.send(number));
                }
                Step::Answer(at) => {
                    // Only an applied write can have a response.
                    let number = history.outstanding.iter().nth(at).copied();
                    if let Some(number) = number.filter(|number| history.applied.contains_key(number)) {
                        history.outstanding.remove(&number);
                    }
                }
                Step::Arrive(at) => {
                    let Some((number, verdict)) = history.arrive(at) else { continue };
                    match verdict {
                        SequenceCheck::New => prop_assert_eq!(history.applied[&number], 1),
                        SequenceCheck::Duplicate(result) => {
                            prop_assert_eq!(result.unwrap().to_vec(), number.to_be_bytes());
                        }
                        SequenceCheck::Acknowledged => prop_assert!(!history.outstanding.contains(&number)),
                    }
                }
            }
        }
        let lowest = history.window.lowest_outstanding;
        prop_assert!(history.window.applied.keys().all(|number| *number >= lowest));
    }
}
