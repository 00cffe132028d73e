//! Random bytes for requests: some are not messages, most are messages with unusual contents.

use bytes::{BufMut, Bytes, BytesMut};
use ebla_runtime::Rng;
use prost::encoding::{WireType, encode_key, encode_varint};

/// Maximum nesting of messages.
const DEPTH_MAX: u64 = 4;
/// Field numbers that are drawn; the API's largest is 27.
const FIELDS: u64 = 28;

/// So many names are drawn more often than the others.
const LIKELY: usize = 3;

/// The body of a request. `names`: strings that mean something to the server, the most likely ones first.
pub(crate) fn body(rng: &Rng, names: &[String]) -> Bytes {
    match rng.below(6) {
        0 => random_bytes(rng, 64),
        // A message whose end is missing.
        1 => {
            let whole = message(rng, names, DEPTH_MAX);
            let length = usize::try_from(rng.below(whole.len() as u64 + 1)).unwrap();
            whole.slice(..length)
        }
        _ => message(rng, names, DEPTH_MAX),
    }
}

/// A well-formed message; its first field is mostly a name, as it is in most requests.
fn message(rng: &Rng, names: &[String], depth: u64) -> Bytes {
    let mut out = BytesMut::new();
    let mut fields = rng.below(5);
    if depth == DEPTH_MAX && rng.below(4) > 0 {
        // Mostly one of the first names, and sometimes nothing else, so that calls pass the first checks.
        let likely = &names[..LIKELY.min(names.len())];
        put_bytes(1, pick(rng, if rng.below(3) > 0 { likely } else { names }).as_bytes(), &mut out);
        fields = rng.below(3);
    }
    for _ in 0..fields {
        let field = u32::try_from(1 + rng.below(FIELDS)).unwrap();
        match rng.below(7) {
            0 => {
                encode_key(field, WireType::Varint, &mut out);
                encode_varint(number(rng), &mut out);
            }
            1 => {
                encode_key(field, WireType::SixtyFourBit, &mut out);
                out.put_u64_le(number(rng));
            }
            2 => {
                encode_key(field, WireType::ThirtyTwoBit, &mut out);
                out.put_slice(&number(rng).to_le_bytes()[..4]);
            }
            3 => put_bytes(field, &random_bytes(rng, 24), &mut out),
            4 => put_bytes(field, pick(rng, names).as_bytes(), &mut out),
            _ if depth > 0 => put_bytes(field, &message(rng, names, depth - 1), &mut out),
            _ => put_bytes(field, b"", &mut out),
        }
    }
    out.freeze()
}

fn put_bytes(field: u32, bytes: &[u8], out: &mut BytesMut) {
    encode_key(field, WireType::LengthDelimited, out);
    encode_varint(bytes.len() as u64, out);
    out.put_slice(bytes);
}

/// Small numbers, and boundary values.
fn number(rng: &Rng) -> u64 {
    match rng.below(5) {
        0 => u64::MAX,
        1 => u64::MAX / 2,
        2 => 1 << 63,
        3 => rng.u64(),
        _ => rng.below(20),
    }
}

fn random_bytes(rng: &Rng, length_max: u64) -> Bytes {
    (0..rng.below(length_max + 1)).map(|_| u8::try_from(rng.below(256)).unwrap()).collect()
}

fn pick<'a>(rng: &Rng, names: &'a [String]) -> &'a str {
    &names[usize::try_from(rng.below(names.len() as u64)).unwrap()]
}
