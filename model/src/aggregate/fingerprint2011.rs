//! Fingerprint2011, Geoff Pike's 64-bit hash function, which sketches apply to their inputs.
//!
//! The hash function is part of a sketch's format: sketches can be merged only if both use the same one. BigQuery, Bigtable
//! and ZetaSketch use Fingerprint2011, so this implementation is bit-exact. There are three variants for three lengths of
//! input, and a common last step. Words are read little endian; arithmetic wraps around.

use std::num::Wrapping;

type Word = Wrapping<u64>;

const FIRST: Word = Wrapping(0xa5b8_5c5e_198e_d849);
const SECOND: Word = Wrapping(0x8d58_ac26_afe1_2e47);
const THIRD: Word = Wrapping(0xc47b_6e9e_3a97_0ed3);
/// MurmurHash's multiplier.
const MURMUR: Word = Wrapping(0xc6a4_a793_5bd1_e995);

/// The fingerprint of these bytes; never 0 or 1.
pub(super) fn fingerprint2011(bytes: &[u8]) -> u64 {
    let length = bytes.len();
    let body = match length {
        0..=32 => of_short(bytes),
        33..=64 => of_middling(bytes),
        _ => of_long(bytes),
    };
    let head = if length >= 8 { word(bytes, 0) } else { FIRST };
    let tail = if length >= 9 { word(bytes, length - 8) } else { FIRST };
    match fold(body + tail, head).0 {
        reserved @ (0 | 1) => reserved.wrapping_sub(2),
        hash => hash,
    }
}

/// Up to 32 bytes: MurmurHash, word by word.
fn of_short(bytes: &[u8]) -> Word {
    let (words, rest) = bytes.as_chunks::<8>();
    let mut hash = FIRST ^ SECOND ^ THIRD ^ (count(bytes.len()) * MURMUR);
    for word in words {
        let mixed = mix(Wrapping(u64::from_le_bytes(*word)) * MURMUR) * MURMUR;
        hash = (hash ^ mixed) * MURMUR;
    }
    if !rest.is_empty() {
        let last = rest.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
        hash = (hash ^ Wrapping(last)) * MURMUR;
    }
    mix(mix(hash) * MURMUR)
}

/// 33 to 64 bytes: the first 32 and the last 32, which may overlap.
fn of_middling(bytes: &[u8]) -> Word {
    let length = bytes.len();
    let start = word(bytes, 0) + (count(length) + word(bytes, length - 16)) * FIRST;
    let front = cross([start, word(bytes, 8), word(bytes, 16), word(bytes, 24)]);
    let start = word(bytes, 16) + word(bytes, length - 32);
    let back = cross([start, word(bytes, length - 24), word(bytes, length - 16), word(bytes, length - 8)]);
    let both = mix((front.0 + back.1) * THIRD + (back.0 + front.1) * FIRST);
    mix(both * FIRST + front.1) * THIRD
}

/// Two words of four.
fn cross([mut sum, second, third, fourth]: [Word; 4]) -> (Word, Word) {
    let one = turn(sum + fourth, 52);
    let mut other = turn(sum, 37);
    sum += second;
    other += turn(sum, 7);
    sum += third;
    (sum + fourth, one + turn(sum, 31) + other)
}

/// More than 64 bytes: 56 bytes of state start with the end of the input and absorb it block by block.
fn of_long(bytes: &[u8]) -> Word {
    let length = bytes.len();
    let mut x = word(bytes, 0);
    let mut y = word(bytes, length - 16) ^ SECOND;
    let mut z = word(bytes, length - 56) ^ FIRST;
    let mut v = stir(bytes, length - 64, (count(length), y));
    let mut w = stir(bytes, length - 32, (count(length) * SECOND, FIRST));
    z += mix(v.1) * SECOND;
    x = turn(z + x, 39) * SECOND;
    y = turn(y, 33) * SECOND;
    // The state already contains the last block.
    for at in (0..length - 1).step_by(64).take((length - 1) / 64) {
        x = turn(x + y + v.0 + word(bytes, at + 16), 37) * SECOND;
        y = turn(y + v.1 + word(bytes, at + 48), 42) * SECOND;
        x ^= w.1;
        y ^= v.0;
        z = turn(z ^ w.0, 33);
        v = stir(bytes, at, (v.1 * SECOND, x + w.0));
        w = stir(bytes, at + 32, (z + w.1, y));
        (x, z) = (z, x);
    }
    fold(fold(v.0, w.0) + mix(y) * SECOND + z, fold(v.1, w.1) + x)
}

/// Mixes the 32 bytes at `at` into two words.
fn stir(bytes: &[u8], at: usize, (one, other): (Word, Word)) -> (Word, Word) {
    let (first, last) = (one + word(bytes, at), word(bytes, at + 24));
    let sum = first + word(bytes, at + 8) + word(bytes, at + 16);
    let turned = turn(other + first + last, 51) + turn(sum, 23);
    (sum + last, turned + first)
}

/// One word of two.
fn fold(high: Word, low: Word) -> Word {
    let once = mix((low ^ high) * MURMUR);
    mix((high ^ once) * MURMUR) * MURMUR
}

fn mix(word: Word) -> Word {
    word ^ (word >> 47)
}

fn turn(word: Word, bits: u32) -> Word {
    Wrapping(word.0.rotate_right(bits))
}

/// The word at `at`, where there are eight bytes.
fn word(bytes: &[u8], at: usize) -> Word {
    let eight = bytes.get(at..).and_then(<[u8]>::first_chunk);
    Wrapping(eight.map_or(0, |eight| u64::from_le_bytes(*eight)))
}

fn count(length: usize) -> Word {
    Wrapping(u64::try_from(length).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values that Guava and ZetaSketch publish with their own implementations.
    #[test]
    fn the_published_values_are_computed() {
        assert_eq!(fingerprint2011(b""), 0x23ad_7c90_4aa6_65e3);
        assert_eq!(fingerprint2011(b"foobar"), 0x36a1_e57a_138e_4467);
        assert_eq!(fingerprint2011(&42_i64.to_le_bytes()), 0x583b_2b9d_f8e0_eb60);
        assert_eq!(fingerprint2011(&(-15_i64).to_le_bytes()), 0x5394_14f2_87f1_1e37);
        assert_eq!(fingerprint2011(b"test"), 8_473_225_671_271_759_044);
        assert_eq!(fingerprint2011("test".repeat(8).as_bytes()), 7_345_148_637_025_587_076);
        assert_eq!(fingerprint2011("test".repeat(64).as_bytes()), 4_904_844_928_629_814_570);
    }

    /// The sum was computed when this implementation matched Guava's checksum over inputs of 0 to 3,200 bytes.
    #[test]
    fn inputs_of_every_length_keep_their_fingerprints() {
        let bytes: Vec<u8> = (0..600_u32).map(|n| (n * 7 + 3).to_le_bytes()[0]).collect();
        let sum = (0..=bytes.len()).fold(0, |sum: u64, length| sum.rotate_left(1) ^ fingerprint2011(&bytes[..length]));
        assert_eq!(sum, 0xdf40_9210_c4af_a7d6);
    }
}
