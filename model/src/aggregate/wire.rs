//! Encoding of a sketch: ZetaSketch's messages, as BigQuery and Bigtable exchange them.
//!
//! ```text
//!   1  algorithm        112, HyperLogLog++
//!   2  count of inputs  see below
//!   3  encoding         2
//!   4  kind of inputs   8 integers of 64 bits, 11 bytes and strings
//!   112
//!      2  buckets of a sparse sketch, where there are any
//!      3  precision         15, bits that name a register
//!      4  sparse precision  20, bits that name a bucket
//!      5  registers, or
//!      6  differences of a sparse sketch
//! ```
//!
//! Fields are written in this order. A function of the set of inputs cannot know their number, so the field has the number
//! of non-empty buckets or registers, which is equal if there were no duplicates and no collisions. Estimates do not use
//! the field, and it is not read.

use super::sketch::{Form, InputKind, RANK_MAX, REGISTER_BITS, REGISTERS};
use super::sparse::{BUCKET_BITS, Sparse};

const ALGORITHM: u64 = 112;
const ENCODING: u64 = 2;
const INTEGERS: u64 = 8;
const STRINGS: u64 = 11;
/// Wire type of a field of bytes.
const LENGTH_DELIMITED: u64 = 2;

/// Why bytes are not a sketch that can be merged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SketchError {
    /// The bytes end inside a field.
    #[error("it is truncated")]
    Truncated,
    /// A number of more than 64 bits.
    #[error("it has a number of more than 64 bits")]
    LongNumber,
    /// A field that a sketch does not have, or of another type.
    #[error("it has the unknown field {0}")]
    Field(u64),
    /// Another algorithm, or none.
    #[error("its algorithm is {0}, not HyperLogLog++ (112)")]
    Algorithm(u64),
    /// Another encoding.
    #[error("its encoding has version {0}, not 2")]
    Encoding(u64),
    /// Another kind of inputs than the family's.
    #[error("its input type is {found}, the family's is {expected}")]
    Inputs {
        /// The sketch's.
        found: u64,
        /// The family's.
        expected: u64,
    },
    /// Another precision.
    #[error("it has precision {normal} and sparse precision {sparse}, not 15 and 20")]
    Precision {
        /// Bits that name a register.
        normal: u64,
        /// Bits that name a bucket.
        sparse: u64,
    },
    /// Registers and differences.
    #[error("it is both sparse and normal")]
    BothForms,
    /// Not as many registers as its precision says.
    #[error("it has {0} registers, not 32768")]
    Registers(usize),
    /// An impossible register.
    #[error("it has a register of {0}, the maximum is 50")]
    Register(u8),
    /// Impossible differences.
    #[error("its sparse data is damaged")]
    SparseData,
    /// The number of buckets does not match the field.
    #[error("it has {found} buckets but declares {said}")]
    Buckets {
        /// Actual number.
        found: usize,
        /// Declared number.
        said: u64,
    },
}

pub(super) fn encode(kind: InputKind, form: &Form) -> Vec<u8> {
    let mut inner = Vec::new();
    let met = match form {
        Form::Sparse(sparse) => sparse.len(),
        Form::Normal(registers) => registers.iter().filter(|rank| **rank > 0).count(),
    };
    if let Form::Sparse(sparse) = form
        && sparse.len() > 0
    {
        put_number(&mut inner, 2, count(sparse.len()));
    }
    put_number(&mut inner, 3, REGISTER_BITS.into());
    put_number(&mut inner, 4, BUCKET_BITS.into());
    match form {
        Form::Normal(registers) => put_bytes(&mut inner, 5, registers),
        Form::Sparse(sparse) => put_bytes(&mut inner, 6, &sparse.encode()),
    }
    let mut bytes = Vec::with_capacity(inner.len() + 16);
    put_number(&mut bytes, 1, ALGORITHM);
    put_number(&mut bytes, 2, count(met));
    put_number(&mut bytes, 3, ENCODING);
    put_number(&mut bytes, 4, inputs(kind));
    put_bytes(&mut bytes, 112, &inner);
    bytes
}

/// The fields of a sketch; zero where absent. The last occurrence of a field counts.
#[derive(Default)]
struct Fields<'a> {
    algorithm: u64,
    encoding: u64,
    inputs: u64,
    buckets: u64,
    normal: u64,
    sparse: u64,
    registers: &'a [u8],
    differences: &'a [u8],
}

pub(super) fn decode(kind: InputKind, bytes: &[u8]) -> Result<Form, SketchError> {
    let mut fields = Fields::default();
    read_outer(bytes, &mut fields)?;
    let Fields { algorithm, encoding, buckets, normal, sparse, registers, differences, .. } = fields;
    if algorithm != ALGORITHM {
        return Err(SketchError::Algorithm(algorithm));
    }
    if encoding != ENCODING {
        return Err(SketchError::Encoding(encoding));
    }
    if fields.inputs != inputs(kind) {
        return Err(SketchError::Inputs { found: fields.inputs, expected: inputs(kind) });
    }
    if (normal, sparse) != (REGISTER_BITS.into(), BUCKET_BITS.into()) {
        return Err(SketchError::Precision { normal, sparse });
    }
    if registers.is_empty() { sparse_form(differences, buckets) } else { normal_form(registers, differences) }
}

fn sparse_form(differences: &[u8], said: u64) -> Result<Form, SketchError> {
    // A longer one violates the format.
    if differences.len() > REGISTERS {
        return Err(SketchError::SparseData);
    }
    let mut reader = Reader { bytes: differences };
    let mut numbers = Vec::new();
    while !reader.bytes.is_empty() {
        numbers.push(reader.varint()?);
    }
    let sparse = Sparse::decode(numbers.into_iter()).ok_or(SketchError::SparseData)?;
    match sparse.len() {
        found if count(found) != said => Err(SketchError::Buckets { found, said }),
        _ => Ok(Form::Sparse(sparse)),
    }
}

fn normal_form(registers: &[u8], differences: &[u8]) -> Result<Form, SketchError> {
    if !differences.is_empty() {
        return Err(SketchError::BothForms);
    }
    if registers.len() != REGISTERS {
        return Err(SketchError::Registers(registers.len()));
    }
    match registers.iter().find(|rank| **rank > RANK_MAX) {
        Some(rank) => Err(SketchError::Register(*rank)),
        None => Ok(Form::Normal(registers.to_vec())),
    }
}

fn read_outer<'a>(bytes: &'a [u8], fields: &mut Fields<'a>) -> Result<(), SketchError> {
    let mut reader = Reader { bytes };
    while let Some(field) = reader.field()? {
        match field {
            (1, Part::Number(algorithm)) => fields.algorithm = algorithm,
            (2, Part::Number(_inputs)) => {}
            (3, Part::Number(encoding)) => fields.encoding = encoding,
            (4, Part::Number(inputs)) => fields.inputs = inputs,
            (112, Part::Bytes(inner)) => read_inner(inner, fields)?,
            (number, _) => return Err(SketchError::Field(number)),
        }
    }
    Ok(())
}

fn read_inner<'a>(bytes: &'a [u8], fields: &mut Fields<'a>) -> Result<(), SketchError> {
    let mut reader = Reader { bytes };
    while let Some(field) = reader.field()? {
        match field {
            (2, Part::Number(buckets)) => fields.buckets = buckets,
            (3, Part::Number(normal)) => fields.normal = normal,
            (4, Part::Number(sparse)) => fields.sparse = sparse,
            (5, Part::Bytes(registers)) => fields.registers = registers,
            (6, Part::Bytes(differences)) => fields.differences = differences,
            (number, _) => return Err(SketchError::Field(number)),
        }
    }
    Ok(())
}

/// Content of a field.
enum Part<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// The rest of the input.
struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    /// The number and the content of the next field; `None` at the end.
    fn field(&mut self) -> Result<Option<(u64, Part<'a>)>, SketchError> {
        if self.bytes.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let part = match tag & 7 {
            0 => Part::Number(self.varint()?),
            LENGTH_DELIMITED => {
                let length = usize::try_from(self.varint()?).map_err(|_too_long| SketchError::Truncated)?;
                let (bytes, rest) = self.bytes.split_at_checked(length).ok_or(SketchError::Truncated)?;
                self.bytes = rest;
                Part::Bytes(bytes)
            }
            _ => return Err(SketchError::Field(tag >> 3)),
        };
        Ok(Some((tag >> 3, part)))
    }

    fn varint(&mut self) -> Result<u64, SketchError> {
        let mut number = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let (byte, rest) = self.bytes.split_first().ok_or(SketchError::Truncated)?;
            self.bytes = rest;
            let bits = u64::from(byte & 0x7f);
            number |= bits << shift;
            if number >> shift != bits {
                return Err(SketchError::LongNumber);
            }
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(SketchError::LongNumber)
    }
}

fn put_number(bytes: &mut Vec<u8>, field: u64, number: u64) {
    put_varint(bytes, field << 3);
    put_varint(bytes, number);
}

fn put_bytes(bytes: &mut Vec<u8>, field: u64, content: &[u8]) {
    put_varint(bytes, field << 3 | LENGTH_DELIMITED);
    put_varint(bytes, count(content.len()));
    bytes.extend_from_slice(content);
}

/// Seven bits a byte, the lowest first; the first bit of a byte says that more follow.
pub(super) fn put_varint(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        let [low, ..] = number.to_le_bytes();
        bytes.push(low | 0x80);
        number >>= 7;
    }
    let [low, ..] = number.to_le_bytes();
    bytes.push(low);
}

/// How many bytes [`put_varint`] writes.
pub(super) fn varint_bytes(number: u64) -> u64 {
    u64::from((u64::BITS - (number | 1).leading_zeros()).div_ceil(7))
}

const fn inputs(kind: InputKind) -> u64 {
    match kind {
        InputKind::Integers => INTEGERS,
        InputKind::Strings => STRINGS,
    }
}

fn count(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::Sketch;
    use super::*;

    /// HLL_COUNT.INIT of six rows with three different texts, as BigQuery's manual shows it.
    const BIGQUERY: &[u8] =
        b"\x08p\x10\x06\x18\x02 \x0b\x82\x07\x10\x10\x03\x18\x0f \x142\x08\xd0\xa08\xea}\xa4\x93\x02";

    /// A sketch field by field.
    fn sketch(outer: &[(u64, u64)], inner: &[(u64, u64)], forms: &[(u64, &[u8])]) -> Result<Sketch, SketchError> {
        let (mut bytes, mut inside) = (Vec::new(), Vec::new());
        inner.iter().for_each(|(field, number)| put_number(&mut inside, *field, *number));
        forms.iter().for_each(|(field, content)| put_bytes(&mut inside, *field, content));
        outer.iter().for_each(|(field, number)| put_number(&mut bytes, *field, *number));
        put_bytes(&mut bytes, 112, &inside);
        Sketch::decode(&bytes, InputKind::Integers)
    }

    const OUTER: [(u64, u64); 4] = [(1, 112), (2, 9), (3, 2), (4, 8)];
    const INNER: [(u64, u64); 2] = [(3, 15), (4, 20)];

    fn of_differences(buckets: u64, differences: &[u8]) -> Result<Sketch, SketchError> {
        sketch(&OUTER, &[&[(2, buckets)], &INNER[..]].concat(), &[(6, differences)])
    }

    #[test]
    fn sketches_of_bigquery_are_decoded_and_encoded() {
        let texts: [&[u8]; 3] = [b"customer_id_1", b"customer_id_2", b"customer_id_3"];
        let mut all = Sketch::of_bytes(texts[0]);
        for text in texts {
            all.merge(&Sketch::of_bytes(text));
        }
        assert_eq!(Sketch::decode(BIGQUERY, InputKind::Strings), Ok(all.clone()));
        // Only the count of inputs differs, which is not known here.
        let mut expected = BIGQUERY.to_vec();
        expected[3] = 3;
        assert_eq!(all.encode(), expected);
        let inputs = SketchError::Inputs { found: 11, expected: 8 };
        assert_eq!(Sketch::decode(BIGQUERY, InputKind::Integers), Err(inputs));
    }

    #[test]
    fn a_sketch_of_nothing_merges_without_effect() {
        let nothing = sketch(&OUTER, &INNER, &[]).unwrap();
        assert!(nothing.estimate() < f64::EPSILON);
        assert_eq!(Sketch::decode(&nothing.encode(), InputKind::Integers), Ok(nothing.clone()));
        let registers = sketch(&OUTER, &INNER, &[(5, &[0; REGISTERS])]).unwrap();
        assert!(registers.estimate() < f64::EPSILON, "{}", registers.estimate());
        let mut one = Sketch::of_integer(1);
        assert!(!one.merge(&nothing));
        assert_eq!(one, Sketch::of_integer(1));
    }

    #[test]
    fn registers_and_lists_give_the_same_estimate() {
        let mut normal = sketch(&OUTER, &INNER, &[(5, &[0; REGISTERS])]).unwrap();
        for n in 0..1000 {
            normal.merge(&Sketch::of_integer(n));
        }
        assert!((normal.estimate() - 1000.0).abs() < 20.0, "{}", normal.estimate());
        let full = sketch(&OUTER, &INNER, &[(5, &[RANK_MAX; REGISTERS])]).unwrap();
        assert!(full.estimate() > 1e18);
    }

    #[test]
    fn invalid_sketches_are_refused_with_the_reason() {
        let with =
            |number: u64, value: u64| OUTER.map(|(field, old)| (field, if field == number { value } else { old }));
        let differing = |field, value| sketch(&with(field, value), &INNER, &[]);
        assert_eq!(differing(1, 100), Err(SketchError::Algorithm(100)));
        assert_eq!(Sketch::decode(b"", InputKind::Integers), Err(SketchError::Algorithm(0)));
        assert_eq!(differing(3, 1), Err(SketchError::Encoding(1)));
        assert_eq!(differing(4, 7), Err(SketchError::Inputs { found: 7, expected: 8 }));
        let precision = |normal, sparse| sketch(&OUTER, &[(3, normal), (4, sparse)], &[]);
        assert_eq!(precision(14, 19), Err(SketchError::Precision { normal: 14, sparse: 19 }));
        assert_eq!(precision(15, 25), Err(SketchError::Precision { normal: 15, sparse: 25 }));
        assert_eq!(sketch(&OUTER, &[(7, 1)], &[]), Err(SketchError::Field(7)));
        assert_eq!(sketch(&[(5, 1)], &INNER, &[]), Err(SketchError::Field(5)));
        let forms: [(u64, &[u8]); 2] = [(5, &[0; REGISTERS]), (6, &[1])];
        assert_eq!(sketch(&OUTER, &INNER, &forms), Err(SketchError::BothForms));
        assert_eq!(sketch(&OUTER, &INNER, &[(5, &[1, 2])]), Err(SketchError::Registers(2)));
        assert_eq!(sketch(&OUTER, &INNER, &[(5, &[51; REGISTERS])]), Err(SketchError::Register(51)));
        assert_eq!(of_differences(2, &[1]), Err(SketchError::Buckets { found: 1, said: 2 }));
        assert_eq!(of_differences(1, &[0x80]), Err(SketchError::Truncated));
        assert_eq!(of_differences(1, &[0xff; 11]), Err(SketchError::LongNumber));
        assert_eq!(of_differences(1, &[1; REGISTERS + 1]), Err(SketchError::SparseData));
        for end in 0..BIGQUERY.len() {
            assert!(Sketch::decode(&BIGQUERY[..end], InputKind::Strings).is_err(), "cut to {end}");
        }
    }

    #[test]
    fn impossible_differences_are_refused() {
        assert!(of_differences(2, &[1, 1]).is_ok());
        // Twice the same bucket, a bucket whose rank is missing, one beyond the last.
        assert_eq!(of_differences(2, &[1, 0]), Err(SketchError::SparseData));
        assert_eq!(of_differences(1, &[32]), Err(SketchError::SparseData));
        assert_eq!(of_differences(1, &[0x81, 0x80, 0x40]), Err(SketchError::SparseData));
        // Ranks of 1 and 45 are possible, 0 and 46 are not; one bucket has one rank.
        let ranked = |rank: u8| of_differences(1, &[0x80 | rank, 0x80, 0x80, 1]);
        assert!(ranked(1).is_ok() && ranked(45).is_ok());
        assert_eq!((ranked(0), ranked(46)), (Err(SketchError::SparseData), Err(SketchError::SparseData)));
        assert_eq!(of_differences(2, &[0x81, 0x80, 0x80, 1, 1]), Err(SketchError::SparseData));
    }
}
