//! HyperLogLog++ sketches: the approximate number of distinct inputs, in at most 32 KiB.
//!
//! A sketch is a function of the set of its inputs. It does not depend on their order or frequency, nor on the order of
//! merges, so merging is commutative, associative and idempotent, down to the bytes. It is sparse while the inputs are few
//! ([`super::sparse`]), then it has 2^15 registers of one byte, each with the highest rank of its inputs.
//! Heule, Nunkesser, Hall: "HyperLogLog in Practice", 2013; the bytes are ZetaSketch's (`super::wire`).

use bytes::Bytes;

use super::fingerprint2011::fingerprint2011;
use super::sparse::Sparse;
use super::wire::{self, SketchError};

/// Bits of a hash that select a register.
pub(super) const REGISTER_BITS: u32 = 15;
/// Number of registers.
pub(super) const REGISTERS: usize = 1 << REGISTER_BITS;
/// The rank of 49 zero bits.
pub(super) const RANK_MAX: u8 = 50;
/// Maximum encoded size of a sketch, in bytes.
pub const SKETCH_BYTES_MAX: usize = 32_791;
const _: () = assert!(RANK_MAX as u32 == 64 - REGISTER_BITS + 1);

/// Kind of the inputs of a sketch, which decides how they are hashed. Sketches of different kinds cannot be merged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InputKind {
    /// Integers of 64 bits, hashed as 8 bytes, little endian.
    Integers,
    /// Bytes; a string is its UTF-8.
    Strings,
}

/// Representation of a sketch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Form {
    Sparse(Sparse),
    /// [`REGISTERS`] bytes, none above [`RANK_MAX`].
    Normal(Vec<u8>),
}

/// An approximate count of distinct inputs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sketch {
    kind: InputKind,
    form: Form,
}

impl Sketch {
    /// The sketch of one integer.
    pub fn of_integer(input: i64) -> Self {
        Self { kind: InputKind::Integers, form: Form::Sparse(Sparse::of(fingerprint2011(&input.to_le_bytes()))) }
    }

    /// The sketch of one byte string.
    pub fn of_bytes(input: &[u8]) -> Self {
        Self { kind: InputKind::Strings, form: Form::Sparse(Sparse::of(fingerprint2011(input))) }
    }

    /// Merges another sketch of the same kind. Returns whether this one changed.
    pub fn merge(&mut self, other: &Self) -> bool {
        debug_assert_eq!(self.kind, other.kind, "they are hashed differently");
        match (&mut self.form, &other.form) {
            (Form::Sparse(ours), Form::Sparse(theirs)) => {
                let is_new = ours.merge(theirs);
                self.form.shorten();
                is_new
            }
            (Form::Normal(ours), Form::Sparse(theirs)) => raise(ours, theirs.registers()),
            (Form::Normal(ours), Form::Normal(theirs)) => raise(ours, theirs.iter().copied().enumerate()),
            (Form::Sparse(ours), Form::Normal(theirs)) => {
                let mut registers = theirs.clone();
                raise(&mut registers, ours.registers());
                self.form = Form::Normal(registers);
                true
            }
        }
    }

    /// The approximate number of distinct inputs.
    ///
    /// The standard error is 1.04 / sqrt(2^15), 0.6 %, and far less while the sketch is sparse: then empty buckets are
    /// counted (Whang et al., "A linear-time probabilistic counting algorithm", 1990). Of registers it is the improved
    /// raw estimator of Ertl, "New cardinality estimation algorithms for HyperLogLog sketches", 2017, algorithm 6, which
    /// needs no tables of measured bias. See `docs/inside/decisions/0010-sketches-of-approximate-counts.md`.
    pub fn estimate(&self) -> f64 {
        match &self.form {
            Form::Sparse(sparse) => {
                let (all, empty) = sparse.buckets();
                all * (all / empty).ln()
            }
            Form::Normal(registers) => estimate(registers),
        }
    }

    /// Encodes the sketch: equal sets of inputs give equal bytes; at most [`SKETCH_BYTES_MAX`].
    pub fn encode(&self) -> Bytes {
        wire::encode(self.kind, &self.form).into()
    }

    /// Decodes a sketch, which may come from another system.
    ///
    /// # Errors
    /// When the bytes are not a sketch, are damaged, or have another precision or kind of inputs.
    pub fn decode(bytes: &[u8], kind: InputKind) -> Result<Self, SketchError> {
        let mut form = wire::decode(kind, bytes)?;
        form.shorten();
        Ok(Self { kind, form })
    }
}

impl Form {
    /// Converts a sparse list that has become too long to registers.
    fn shorten(&mut self) {
        if let Self::Sparse(sparse) = self
            && sparse.is_long()
        {
            let mut registers = vec![0; REGISTERS];
            raise(&mut registers, sparse.registers());
            *self = Self::Normal(registers);
        }
    }
}

/// Raises registers to these ranks where they are lower. Returns whether any changed.
fn raise(registers: &mut [u8], ranks: impl Iterator<Item = (usize, u8)>) -> bool {
    let mut is_raised = false;
    for (at, rank) in ranks {
        if let Some(register) = registers.get_mut(at).filter(|register| **register < rank) {
            *register = rank;
            is_raised = true;
        }
    }
    is_raised
}

fn estimate(registers: &[u8]) -> f64 {
    let mut counts = [0_u32; RANK_MAX as usize + 1];
    for rank in registers {
        if let Some(count) = counts.get_mut(usize::from(*rank)) {
            *count += 1;
        }
    }
    let all = f64::from(1_u32 << REGISTER_BITS);
    let [empty, met @ .., full] = counts.map(f64::from);
    // The sum of count / 2^rank over the ranks, from the greatest to the least, halved on the way.
    let sum = met.iter().rev().fold(all * tau(1.0 - full / all), |sum, count| (sum + count) / 2.0);
    all * all / (2.0 * std::f64::consts::LN_2 * (sum + all * sigma(empty / all)))
}

/// x + sum over k of x^(2^k) 2^(k-1): the contribution of empty registers. Infinite for 1: all are empty.
fn sigma(mut x: f64) -> f64 {
    let (mut sum, mut weight) = (x, 1.0);
    if x >= 1.0 {
        return f64::INFINITY;
    }
    loop {
        x *= x;
        let next = sum + x * weight;
        if next == sum {
            return sum;
        }
        (sum, weight) = (next, weight * 2.0);
    }
}

/// (1 - x - sum over k of (1 - x^(1/2^k))^2 / 2^k) / 3: the contribution of saturated registers.
fn tau(mut x: f64) -> f64 {
    let (mut sum, mut weight) = (1.0 - x, 1.0);
    if x <= 0.0 || x >= 1.0 {
        return 0.0;
    }
    loop {
        x = x.sqrt();
        weight /= 2.0;
        let next = sum - (1.0 - x) * (1.0 - x) * weight;
        if next == sum {
            return sum / 3.0;
        }
        sum = next;
    }
}
