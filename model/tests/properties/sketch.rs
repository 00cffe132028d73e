//! Sketches: the same bytes for the same inputs, in any order and division; good estimates; validation of untrusted bytes.

use std::collections::BTreeSet;

use ebla_model::aggregate::{InputKind, SKETCH_BYTES_MAX, Sketch};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

/// Number of cases of slow tests.
const FEW: u32 = 24;

fn sketch(inputs: impl IntoIterator<Item = i64>) -> Sketch {
    let all = inputs.into_iter().map(Sketch::of_integer).reduce(|mut all, one| {
        all.merge(&one);
        all
    });
    all.unwrap()
}

/// A sketch of very many inputs, merged from cheap parts.
fn large(from: i64, count: i64) -> Sketch {
    let part = |at: i64| sketch(at..(at + 64).min(from + count));
    let parts = (from..from + count).step_by(64).map(part);
    parts
        .reduce(|mut all, part| {
            all.merge(&part);
            all
        })
        .unwrap()
}

fn inputs() -> impl Strategy<Value = Vec<i64>> {
    vec(prop_oneof![0..50_i64, any::<i64>()], 1..200)
}

proptest! {
    /// Order, repetition and division have no effect.
    #[test]
    fn a_sketch_is_a_function_of_the_set_of_inputs(inputs in inputs(), cuts in vec(any::<Index>(), 0..5)) {
        let whole = sketch(inputs.iter().copied());
        let set: BTreeSet<_> = inputs.iter().copied().collect();
        prop_assert_eq!(sketch(set).encode(), whole.encode());
        let cuts: BTreeSet<_> = cuts.iter().map(|cut| cut.index(inputs.len())).chain([0, inputs.len()]).collect();
        let cuts: Vec<_> = cuts.into_iter().collect();
        let parts = cuts.windows(2).rev().map(|cut| sketch(inputs[cut[0]..cut[1]].iter().rev().copied()));
        let merged = parts.reduce(|mut all, part| { all.merge(&part); all }).unwrap();
        prop_assert_eq!(merged.encode(), whole.encode());
        let mut twice = whole.clone();
        prop_assert!(!twice.merge(&whole), "nothing is new");
        prop_assert_eq!(twice.encode(), whole.encode());
        prop_assert_eq!(Sketch::decode(&whole.encode(), InputKind::Integers), Ok(whole));
    }

    /// Random bytes are not a sketch, and valid ones with some bytes changed are another sketch or invalid. An accepted
    /// sketch round-trips, merges, and has a finite estimate.
    #[test]
    fn any_bytes_are_a_sketch_or_an_error(
        inputs in inputs(),
        changed in vec((any::<Index>(), any::<u8>()), 0..4),
        end in option(),
        random in vec(any::<u8>(), 0..60),
    ) {
        let mut bytes = sketch(inputs.iter().copied()).encode().to_vec();
        for (at, byte) in changed {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Some(end) = end {
            bytes.truncate(end.index(bytes.len()));
        }
        for bytes in [bytes, random] {
            for kind in [InputKind::Integers, InputKind::Strings] {
                let Ok(taken) = Sketch::decode(&bytes, kind) else { continue };
                prop_assert_eq!(Sketch::decode(&taken.encode(), kind), Ok(taken.clone()));
                prop_assert!(taken.estimate() >= 0.0 && taken.estimate() < 1e9);
                let mut twice = taken.clone();
                prop_assert!(!twice.merge(&taken));
            }
        }
    }
}

fn option() -> impl Strategy<Value = Option<Index>> {
    proptest::option::weighted(0.3, any::<Index>())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(FEW))]

    /// The same around the size at which a list is converted to registers, where the order could have an effect.
    #[test]
    fn large_parts_merge_in_any_order(
        parts in vec((0..60_000_i64, 1..9_000_i64), 2..5),
        order in any::<Index>(),
    ) {
        let parts: Vec<_> = parts.iter().map(|(from, count)| large(*from, *count)).collect();
        let merged = |parts: &mut dyn Iterator<Item = &Sketch>| {
            let mut all = parts.next().unwrap().clone();
            parts.for_each(|part| { all.merge(part); });
            all
        };
        let whole = merged(&mut parts.iter());
        let backwards = merged(&mut parts.iter().rev());
        let from = order.index(parts.len());
        let turned = merged(&mut parts[from..].iter().chain(&parts[..from]));
        // (a + b) + (c + d)
        let mut halves = merged(&mut parts[..parts.len() / 2].iter());
        halves.merge(&merged(&mut parts[parts.len() / 2..].iter()));
        for other in [backwards, turned, halves] {
            prop_assert_eq!(other.encode(), whole.encode());
        }
        prop_assert_eq!(Sketch::decode(&whole.encode(), InputKind::Integers), Ok(whole));
    }

    /// Registers with bytes changed are registers or an error.
    #[test]
    fn registers_are_looked_at(changed in vec((any::<Index>(), any::<u8>()), 1..4)) {
        let mut bytes = full().to_vec();
        for (at, byte) in changed {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok(taken) = Sketch::decode(&bytes, InputKind::Integers) {
            prop_assert_eq!(Sketch::decode(&taken.encode(), InputKind::Integers), Ok(taken));
        }
    }
}

/// The bytes of a sketch of 40,000 inputs.
fn full() -> bytes::Bytes {
    static FULL: std::sync::OnceLock<bytes::Bytes> = std::sync::OnceLock::new();
    FULL.get_or_init(|| large(0, 40_000).encode()).clone()
}

/// Tolerance of the estimates: three standard errors, 1.04 / sqrt(2^15) each for registers. A list counts 2^20 buckets; its
/// error is that of linear counting.
#[test]
fn estimates_are_within_three_standard_errors() {
    let registers = 3.0 * 1.04 / f64::from(1 << 15).sqrt();
    let mut grown = Sketch::of_integer(0);
    let mut last = 1;
    for count in [1, 2, 10, 100, 1_000, 10_000, 20_000, 30_000, 60_000, 100_000, 200_000, 1_000_000_i64] {
        if count > last {
            grown.merge(&large(last, count - last));
            last = count;
        }
        let exact = f64::from(u32::try_from(count).unwrap());
        let load = exact / f64::from(1 << 20);
        let lists = 3.0 * (load.exp() - load - 1.0).sqrt() * 1024.0 / exact;
        let allowed = if grown.encode().len() < 30_000 { lists + 0.5 / exact } else { registers };
        let off = (grown.estimate() - exact) / exact;
        assert!(off.abs() <= allowed, "{count}: {} is off by {off}, allowed is {allowed}", grown.estimate());
        assert!(grown.encode().len() <= SKETCH_BYTES_MAX, "{count}: {} bytes", grown.encode().len());
    }
}

/// Ten sketches of different inputs: the error of their mean is below the tolerance of one.
#[test]
fn estimates_lean_to_no_side() {
    for count in [30_000, 80_000, 160_000_i64] {
        let exact = f64::from(u32::try_from(count).unwrap());
        let off = |n: i64| large(n * 10_000_000, count).estimate() / exact - 1.0;
        let mean = (1..=10).map(off).sum::<f64>() / 10.0;
        assert!(mean.abs() < 3.0 * 1.04 / (10.0 * f64::from(1 << 15)).sqrt(), "{count}: {mean}");
    }
}
