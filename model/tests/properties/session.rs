//! Sessions: a client that sends each write any number of times, in any order, has it applied once.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use ebla_model::id::Sequence;
use ebla_model::session::{SessionWindow, Verdict};
use ebla_model::time::Micros;
use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, prop_assert, prop_assert_eq, prop_oneof, proptest};

/// What happens next.
#[derive(Clone, Debug)]
enum Step {
    /// The client takes a number and sends its write.
    Send,
    /// The client sends a write again for which it has no answer: that at this place among them.
    Again(usize),
    /// A message that is on its way arrives: that at this place. It may have been overtaken long ago.
    Arrive(usize),
    /// The client takes note of the answer to the write at this place.
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
    /// Messages on their way: number, and the lowest outstanding when it was sent.
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

    /// Delivers a message; the answer that apply gives.
    fn arrive(&mut self, at: usize) -> Option<(u64, Verdict)> {
        let at = at.checked_rem(self.messages.len())?;
        let (number, lowest) = self.messages[at];
        // Messages may arrive twice: this one stays on its way every other time.
        if number % 2 == 0 {
            self.messages.remove(at);
        }
        let verdict = self.window.judge(Sequence::new(number));
        if verdict == Verdict::Fresh {
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
                    // Only what was applied can have been answered.
                    let number = history.outstanding.iter().nth(at).copied();
                    if let Some(number) = number.filter(|number| history.applied.contains_key(number)) {
                        history.outstanding.remove(&number);
                    }
                }
                Step::Arrive(at) => {
                    let Some((number, verdict)) = history.arrive(at) else { continue };
                    match verdict {
                        Verdict::Fresh => prop_assert_eq!(history.applied[&number], 1),
                        Verdict::Duplicate(result) => {
                            prop_assert_eq!(result.unwrap().to_vec(), number.to_be_bytes());
                        }
                        Verdict::Forgotten => prop_assert!(!history.outstanding.contains(&number)),
                    }
                }
            }
        }
        let lowest = history.window.lowest_outstanding;
        prop_assert!(history.window.applied.keys().all(|number| *number >= lowest));
    }
}
