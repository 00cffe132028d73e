//! The encoded bytes: they must never change while a supported release reads them.

use bytes::Bytes;
use ebla_model::codec::{
    CellKey, column_prefix, decode_value, encode_value, family_prefix, prefix_end, range_bounds, row_prefix,
};
use ebla_model::id::FamilyId;
use ebla_model::key::KeyRange;
use ebla_model::time::Micros;

use crate::notation::{bytes, key, text};
use crate::runner;

#[test]
fn bytes_are_laid_out() {
    runner::run("codec", |input| input.iter().map(|line| step(line)).collect());
}

fn step(line: &str) -> String {
    match line.split_whitespace().collect::<Vec<_>>().as_slice() {
        ["cell", row, family, qualifier, micros] => {
            let timestamp = Micros::new(micros.parse().unwrap());
            let cell = CellKey { row: key(row), family: id(family), qualifier: bytes(qualifier), timestamp };
            let encoded = cell.encode();
            assert_eq!(CellKey::decode(&encoded), Ok(cell));
            hex(&encoded)
        }
        ["key", digits] => match CellKey::decode(&unhex(digits)) {
            Ok(cell) => {
                let CellKey { row, family, qualifier, timestamp } = cell;
                format!("row {row:?} family {family} qualifier \"{}\" micros {timestamp}", text(&qualifier))
            }
            Err(error) => error.to_string(),
        },
        ["prefix", row] => hex(&row_prefix(&key(row))),
        ["prefix", row, family] => hex(&family_prefix(&key(row), id(family))),
        ["prefix", row, family, qualifier] => hex(&column_prefix(&key(row), id(family), &bytes(qualifier))),
        ["prefix_end", digits] => prefix_end(&unhex(digits)).map_or("none".into(), |end| hex(&end)),
        ["range", start, end] => {
            let end = (*end != "-").then(|| key(end));
            let (lower, upper) = range_bounds(&KeyRange::new(key(start), end).unwrap());
            format!("from {} to {}", hex(&lower), upper.map_or("-".into(), |upper| hex(&upper)))
        }
        ["value", value] => hex(&encode_value(&bytes(value))),
        ["stored", digits] => match decode_value(Bytes::from(unhex(digits))) {
            Ok(value) => format!("\"{}\"", text(&value)),
            Err(error) => error.to_string(),
        },
        _ => panic!("not a line of a codec script: {line}"),
    }
}

fn id(text: &str) -> FamilyId {
    text.parse().unwrap()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(digits: &str) -> Vec<u8> {
    let digits = if digits == "-" { "" } else { digits };
    digits
        .as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}
