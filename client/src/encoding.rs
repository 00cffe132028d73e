//! Text encodings of bytes and times, on the command line, in output and in the console. Keys, qualifiers and values follow one rule, so output can be
//! used as input.
//!
//! ```text
//!   printable text (UTF-8)      as it is
//!   a backslash                 \\
//!   every other byte            \xHH, two hexadecimal digits
//! ```
//!
//! Control characters, invisible characters and leading or trailing spaces are not printable. JSON output has bytes as base64,
//! like protobuf's JSON mapping; with `--hex`, values are hexadecimal digits.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use ebla_model::Micros;
use ebla_model::key::RowKey;

/// Reads escaped text.
///
/// # Errors
/// What is wrong, and how bytes are written.
pub fn unescape(text: &str) -> Result<Bytes, String> {
    let parsed = RowKey::parse_escaped(text);
    parsed.map(|key| key.bytes().clone()).map_err(|_| {
        r"a backslash must be followed by another one or by xHH: write \\ for a backslash and \xff for a byte"
            .to_owned()
    })
}

/// Reads an escaped row key; for arguments of the command line.
///
/// # Errors
/// As [`unescape`].
pub fn parse_key(text: &str) -> Result<RowKey, String> {
    unescape(text).map(RowKey::new)
}

/// Reads an escaped row key at which a tablet can be split: the empty key is not allowed, as every table starts there.
///
/// # Errors
/// As [`unescape`]; an empty key.
pub fn parse_split_key(text: &str) -> Result<RowKey, String> {
    let key = parse_key(text)?;
    if key.is_empty() {
        return Err("a tablet cannot be split at the empty key: give the first key of the right half".to_owned());
    }
    Ok(key)
}

/// Bytes as escaped text.
pub fn escape(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    let last = bytes.len().saturating_sub(1);
    let mut at: usize = 0;
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' => text.push_str("\\\\"),
                ' ' if at == 0 || at == last => text.push_str("\\x20"),
                _ if is_printable(c) => text.push(c),
                _ => c.encode_utf8(&mut [0; 4]).bytes().for_each(|byte| push_byte(&mut text, byte)),
            }
            at = at.saturating_add(c.len_utf8());
        }
        chunk.invalid().iter().for_each(|byte| push_byte(&mut text, *byte));
        at = at.saturating_add(chunk.invalid().len());
    }
    text
}

/// A column as in `FAMILY:QUALIFIER=VALUE`: the qualifier is escaped, including its `=`.
pub fn escape_column(family: &str, qualifier: &[u8]) -> String {
    format!("{family}:{}", escape(qualifier).replace('=', "\\x3d"))
}

/// Bytes as hexadecimal digits.
pub fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Reads hexadecimal digits.
///
/// # Errors
/// What is wrong with them.
pub fn parse_hex(text: &str) -> Result<Bytes, String> {
    let digit = |c: char| c.to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let digits: Option<Vec<u8>> = text.chars().map(digit).collect();
    let digits = digits.filter(|digits| digits.len().is_multiple_of(2));
    let digits = digits.ok_or("a hexadecimal value has two digits for each byte, as in 00ff")?;
    Ok(digits.chunks_exact(2).map(|pair| pair.iter().fold(0, |byte, digit| byte << 4 | digit)).collect())
}

/// Bytes as base64, as in JSON output.
pub fn to_base64(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// A point in time for people: ISO 8601, UTC.
pub fn time(at: Micros) -> String {
    let (seconds, micros) = (at.get().div_euclid(1_000_000), at.get().rem_euclid(1_000_000));
    let nanos = i32::try_from(micros * 1_000).unwrap_or_default();
    prost_types::Timestamp { seconds, nanos }.to_string()
}

/// Quotes text as one word of a shell command line.
pub fn shell_quote(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._/:@%+,-".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

fn push_byte(text: &mut String, byte: u8) {
    text.push_str(&format!("\\x{byte:02x}"));
}

/// Whether the character is visible and unambiguous: not so for whitespace other than the space, for zero-width characters
/// and for those that change the text direction.
fn is_printable(c: char) -> bool {
    let is_hidden = matches!(c, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
        | '\u{feff}' | '\u{fff0}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}');
    c == ' ' || !(c.is_control() || c.is_whitespace() || is_hidden)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaping_round_trips() {
        let every_byte: Vec<u8> = (0..=255).collect();
        let cases: [&[u8]; 11] = [
            b"",
            b" ",
            b" a  b ",
            b"\\xff",
            b"a\\b\x00\xff",
            "\u{e9}t\u{e9} \u{4e2d}".as_bytes(),
            b"\xc3",
            b"\xc3\xa9\xc3",
            "a\u{202e}b\u{a0}".as_bytes(),
            "e\u{301}\r\n\t".as_bytes(),
            &every_byte,
        ];
        for bytes in cases {
            let shown = escape(bytes);
            assert_eq!(unescape(&shown).unwrap(), bytes, "{shown}");
            assert!(!shown.chars().any(char::is_control) && shown.trim() == shown, "{shown:?}");
            let shown = escape_column("f", bytes);
            assert_eq!(unescape(shown.split_once(':').unwrap().1).unwrap(), bytes, "{shown}");
            assert_eq!(parse_hex(&to_hex(bytes)).unwrap(), bytes);
        }
    }

    #[test]
    fn readable_text_stays_readable() {
        assert_eq!(escape("caf\u{e9} \u{4e2d}\u{6587}".as_bytes()), "caf\u{e9} \u{4e2d}\u{6587}");
        assert_eq!(escape(b"a\\b\x00\xff"), "a\\\\b\\x00\\xff");
        assert_eq!(escape(b" a b "), "\\x20a b\\x20");
        assert_eq!(escape("\u{200b}".as_bytes()), "\\xe2\\x80\\x8b");
        assert_eq!(escape_column("f", b"a=b:c"), "f:a\\x3db:c");
    }

    #[test]
    fn only_the_two_escapes_are_accepted() {
        assert_eq!(unescape("\\xff\\\\").unwrap(), &b"\xff\\"[..]);
        for wrong in ["\\", "\\n", "\\x1", "\\xgg", "a\\"] {
            assert!(unescape(wrong).unwrap_err().contains("\\xff"), "{wrong}");
        }
        assert!(parse_split_key("").unwrap_err().contains("empty key"));
        assert_eq!(parse_split_key("m").unwrap().as_bytes(), b"m");
    }

    #[test]
    fn hexadecimal_values_have_pairs_of_digits() {
        assert_eq!(parse_hex("00fF").unwrap(), &b"\x00\xff"[..]);
        assert!(parse_hex("0").is_err() && parse_hex("0x").is_err() && parse_hex("+1").is_err());
    }

    #[test]
    fn json_carries_base64() {
        assert_eq!((to_base64(b"\xff\x00"), to_base64(b"CNN")), ("/wA=".to_owned(), "Q05O".to_owned()));
    }

    #[test]
    fn times_are_shown_in_utc() {
        assert_eq!(time(Micros::ZERO), "1970-01-01T00:00:00Z");
        assert_eq!(time(Micros::new(1_763_879_499_123_456)), "2025-11-23T06:31:39.123456Z");
        assert_eq!(time(Micros::new(-1)), "1969-12-31T23:59:59.999999Z");
    }

    #[test]
    fn quoted_words_survive_a_shell() {
        assert_eq!(shell_quote("com.cnn.www/"), "com.cnn.www/");
        assert_eq!(shell_quote(""), "''");
        assert_eq!(shell_quote("it's \\xff"), r"'it'\''s \xff'");
    }
}
