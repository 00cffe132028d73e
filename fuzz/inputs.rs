//! Inputs of the tests on untrusted bytes: arbitrary bytes, and valid ones with some bytes changed, removed or repeated.
//!
//! The tests of several crates include this file.

use proptest::collection::vec;
use proptest::prelude::{Strategy, any, prop_oneof};
use proptest::sample::{Index, select};

/// The largest number of bytes that one change removes or repeats.
const RUN_BYTES_MAX: usize = 16;

/// Arbitrary bytes, and more often one of `examples`, which are valid, with one to five changes.
pub(crate) fn inputs(examples: Vec<Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
    let changed = (select(examples), vec(change(), 1..6))
        .prop_map(|(example, changes)| changes.iter().fold(example, |bytes, change| change.apply(bytes)));
    prop_oneof![1 => vec(any::<u8>(), 0..96), 4 => changed]
}

/// A change of some bytes at a position.
#[derive(Clone, Debug)]
enum Change {
    /// Inserts these bytes.
    Insert(Index, Vec<u8>),
    /// Writes these bytes over those that are there.
    Replace(Index, Vec<u8>),
    /// Removes a run of bytes.
    Remove(Index, usize),
    /// Repeats a run of bytes.
    Repeat(Index, usize),
    /// Removes everything from there on.
    Truncate(Index),
}

impl Change {
    fn apply(&self, mut bytes: Vec<u8>) -> Vec<u8> {
        let length = bytes.len();
        let run = |at: &Index, run: usize| {
            let start = at.index(length + 1);
            start..length.min(start + run)
        };
        match self {
            Self::Insert(at, new) => drop(bytes.splice(run(at, 0), new.iter().copied())),
            Self::Replace(at, new) => drop(bytes.splice(run(at, new.len()), new.iter().copied())),
            Self::Remove(at, count) => drop(bytes.drain(run(at, *count))),
            Self::Repeat(at, count) => {
                let range = run(at, *count);
                let repeated = bytes.get(range.clone()).unwrap_or_default().to_vec();
                drop(bytes.splice(range.end..range.end, repeated));
            }
            Self::Truncate(at) => bytes.truncate(at.index(length + 1)),
        }
        bytes
    }
}

fn change() -> impl Strategy<Value = Change> {
    let at = any::<Index>;
    let run = 1..=RUN_BYTES_MAX;
    prop_oneof![
        4 => (at(), piece()).prop_map(|(at, bytes)| Change::Replace(at, bytes)),
        2 => (at(), piece()).prop_map(|(at, bytes)| Change::Insert(at, bytes)),
        2 => (at(), run.clone()).prop_map(|(at, count)| Change::Remove(at, count)),
        2 => (at(), run).prop_map(|(at, count)| Change::Repeat(at, count)),
        1 => at().prop_map(Change::Truncate),
    ]
}

/// Bytes that mean something in one of the formats: tags, digits, brackets, and numbers at their bounds.
fn piece() -> impl Strategy<Value = Vec<u8>> {
    let known =
        vec![0, 1, 2, 0x08, 0x0a, 0x12, 0x1a, 0x7f, 0x80, 0xfe, 0xff, b' ', b'*', b'/', b'0', b'(', b'{', b'\\'];
    let number = select(vec![0, 1, u64::from(u32::MAX), u64::MAX - 1, u64::MAX]);
    prop_oneof![
        4 => select(known).prop_map(|byte| vec![byte]),
        4 => any::<u8>().prop_map(|byte| vec![byte]),
        1 => number.clone().prop_map(|number| number.to_le_bytes().to_vec()),
        1 => number.prop_map(|number| number.to_be_bytes().to_vec()),
    ]
}
