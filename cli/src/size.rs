//! Sizes on the command line: `512`, `64K`, `64KiB`, `10MB`. For `value_parser` of clap.
//!
//! K, M and G alone count in powers of 1,024, as KiB, MiB and GiB do; KB, MB and GB count in powers of 1,000.
//! Sizes are shown by `ebla_model::capacity::readable_bytes` in the same units.

use ebla_runtime::units::ByteSize;

/// Reads a size of at least one byte.
///
/// # Errors
/// The syntax of a size, when the text is malformed; a size of zero.
pub fn parse(text: &str) -> Result<ByteSize, String> {
    match parse_or_zero(text) {
        Ok(size) if size.bytes() == 0 => {
            Err("a size must be at least 1 byte; expected a size such as 64MiB".to_owned())
        }
        parsed => parsed,
    }
}

/// Reads a size that may be zero, which switches something off.
///
/// # Errors
/// The syntax of a size, when the text is malformed.
pub fn parse_or_zero(text: &str) -> Result<ByteSize, String> {
    text.parse::<ByteSize>().map_err(|_malformed| {
        "a size is a whole number of bytes with or without a unit, as in 512, 64K, 64MiB or 10MB".to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_count_in_powers_of_1024_unless_they_are_decimal() {
        let bytes = |text| parse(text).unwrap().bytes();
        assert_eq!(
            (bytes("1"), bytes("7B"), bytes("64K"), bytes("64k"), bytes("64KiB")),
            (1, 7, 65_536, 65_536, 65_536)
        );
        assert_eq!((bytes("64M"), bytes("64 MiB"), bytes("64MB")), (64 << 20, 64 << 20, 64_000_000));
        assert_eq!((bytes("2G"), bytes("2GiB"), bytes("2GB")), (2 << 30, 2 << 30, 2_000_000_000));
    }

    #[test]
    fn zero_is_a_size_where_it_switches_something_off() {
        assert_eq!(parse_or_zero("0").map(ByteSize::bytes), Ok(0));
        assert_eq!(parse_or_zero("64K").map(ByteSize::bytes), Ok(65_536));
        assert!(parse_or_zero("none").is_err() && parse("0").is_err());
    }

    #[test]
    fn malformed_sizes_are_refused_with_examples() {
        assert_eq!(parse("0").unwrap_err(), "a size must be at least 1 byte; expected a size such as 64MiB");
        assert_eq!(parse("0M").unwrap_err(), "a size must be at least 1 byte; expected a size such as 64MiB");
        for wrong in ["", "M", "-1", "1.5M", "64X", "99999999999G"] {
            assert!(parse(wrong).unwrap_err().contains("64MiB"), "{wrong}");
        }
    }
}
