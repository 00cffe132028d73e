//! Sparse sketches: the non-empty ones of 2^20 buckets.
//!
//! ```text
//!   hash       15 bits: register | 5 bits | 44 bits
//!   value      bit 21 clear: the first 20 bits of the hash; its 5 bits are not all zero, so they give the rank
//!              bit 21 set:   register << 6 | rank of the 44 bits, where the 5 bits are zero
//! ```
//!
//! The *rank* of some bits is the position of the first set bit, counted from 1, or one more than their number. A bucket
//! stores the highest rank of its inputs. Values ascend, each bucket has one, and the encoding is the differences as
//! varints.
//!
//! The list is converted to registers when it is too long. This must depend on the buckets alone and be monotonic: with the
//! real encoded length, a rising rank could shorten a difference, and whether a list has ever been too long would depend on
//! the order of the inputs. So the length is computed with all ranks as zero. Adding a bucket divides a difference in two,
//! which together are never shorter than the original.

use std::cmp::Ordering;
use std::iter::Peekable;

use super::sketch::REGISTERS;
use super::wire::{put_varint, varint_bytes};

/// Bits of a hash that select a bucket.
pub(super) const BUCKET_BITS: u32 = 20;
/// Bits of a bucket behind its register's.
const BELOW_BITS: u32 = 5;
/// Flag of a value that includes its rank.
const RANKED: u32 = 1 << 21;
/// Bits of the rank in such a value.
const RANK_BITS: u32 = 6;
const RANK: u32 = (1 << RANK_BITS) - 1;
/// The rank of 44 zero bits.
const RANK_MAX: u32 = 64 - BUCKET_BITS + 1;
/// Length at which a list is converted: three quarters of the registers' size, as in other implementations.
const BYTES_MAX: u64 = REGISTERS as u64 * 3 / 4;

/// Buckets with the highest rank of each.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Sparse {
    values: Vec<u32>,
    /// Encoded length of the list with all ranks zero.
    bytes: u64,
}

impl Sparse {
    /// The bucket of one hash.
    pub(super) fn of(hash: u64) -> Self {
        let bucket = low_bits(hash >> (64 - BUCKET_BITS));
        let rank = ((hash << BUCKET_BITS).leading_zeros() + 1).min(RANK_MAX);
        let mut sparse = Self::default();
        sparse.push(if bucket.trailing_zeros() < BELOW_BITS {
            bucket
        } else {
            RANKED | (bucket >> BELOW_BITS) << RANK_BITS | rank
        });
        sparse
    }

    /// Number of non-empty buckets.
    pub(super) const fn len(&self) -> usize {
        self.values.len()
    }

    /// Number of all buckets, and of the empty ones.
    pub(super) fn buckets(&self) -> (f64, f64) {
        let all = f64::from(1_u32 << BUCKET_BITS);
        (all, all - u32::try_from(self.len()).map_or(all, f64::from))
    }

    /// Whether the list must be converted to registers.
    pub(super) const fn is_long(&self) -> bool {
        self.bytes >= BYTES_MAX
    }

    /// Merges another list. Returns whether this one changed.
    pub(super) fn merge(&mut self, other: &Self) -> bool {
        let mut both = Self { values: Vec::with_capacity(self.len() + other.len()), bytes: 0 };
        let mut is_new = false;
        let (mut ours, mut theirs) = (self.values.iter().peekable(), other.values.iter().peekable());
        while let Some((value, new)) = next(&mut ours, &mut theirs) {
            both.push(value);
            is_new |= new;
        }
        *self = both;
        is_new
    }

    /// The register and rank of each value.
    pub(super) fn registers(&self) -> impl Iterator<Item = (usize, u8)> {
        self.values.iter().map(|value| {
            let (register, rank) = if value & RANKED == 0 {
                let below = value << (u32::BITS - BELOW_BITS);
                (value >> BELOW_BITS, below.leading_zeros() + 1)
            } else {
                ((value ^ RANKED) >> RANK_BITS, (value & RANK) + BELOW_BITS)
            };
            (usize::try_from(register).unwrap_or(usize::MAX), u8::try_from(rank).unwrap_or(u8::MAX))
        })
    }

    /// The differences as varints.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut last = 0;
        for value in &self.values {
            put_varint(&mut bytes, u64::from(value - last));
            last = *value;
        }
        bytes
    }

    /// Decodes a list of differences; `None` when they give an impossible value, or do not ascend.
    pub(super) fn decode(differences: impl Iterator<Item = u64>) -> Option<Self> {
        let mut sparse = Self::default();
        for difference in differences {
            let last = sparse.values.last().copied();
            let value = u32::try_from(difference).ok()?.checked_add(last.unwrap_or(0))?;
            let is_possible = if value < RANKED {
                value < 1 << BUCKET_BITS && value.trailing_zeros() < BELOW_BITS
            } else {
                value < RANKED << 1 && (1..=RANK_MAX).contains(&(value & RANK))
            };
            if !is_possible || last.is_some_and(|last| place(last) >= place(value)) {
                return None;
            }
            sparse.push(value);
        }
        Some(sparse)
    }

    /// Appends a value.
    fn push(&mut self, value: u32) {
        let last = self.values.last().map_or(0, |last| place(*last));
        self.bytes += varint_bytes(u64::from(place(value) - last));
        self.values.push(value);
    }
}

/// The next value of two lists together, and whether it is new to the first.
fn next<'a>(
    ours: &mut Peekable<impl Iterator<Item = &'a u32>>,
    theirs: &mut Peekable<impl Iterator<Item = &'a u32>>,
) -> Option<(u32, bool)> {
    let order = match (ours.peek(), theirs.peek()) {
        (Some(one), Some(other)) => place(**one).cmp(&place(**other)),
        (Some(_), None) => Ordering::Less,
        (None, _) => Ordering::Greater,
    };
    match order {
        Ordering::Less => ours.next().map(|value| (*value, false)),
        Ordering::Greater => theirs.next().map(|value| (*value, true)),
        Ordering::Equal => {
            let (one, other) = (ours.next()?, theirs.next()?);
            Some((*one.max(other), other > one))
        }
    }
}

/// A value without its rank: one for each bucket, in the order of the values.
const fn place(value: u32) -> u32 {
    if value & RANKED == 0 { value } else { value & !RANK }
}

fn low_bits(bits: u64) -> u32 {
    u32::try_from(bits).unwrap_or(u32::MAX)
}
