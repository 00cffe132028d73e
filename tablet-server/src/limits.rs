//! How long a caller waits, from the request's metadata.

use std::time::Duration;

use tonic::metadata::MetadataMap;

/// A caller that does not say how long it waits is taken to wait so long.
pub const LIMIT_DEFAULT: Duration = Duration::from_secs(60);
/// Nobody is taken to wait longer: what is left behind by a caller who is gone ends by itself.
pub const LIMIT_MAX: Duration = Duration::from_secs(3600);

/// The time that the caller still waits: gRPC's `grpc-timeout` (digits and a unit), or the default.
#[must_use]
pub fn limit(metadata: &MetadataMap) -> Duration {
    given(metadata).unwrap_or(LIMIT_DEFAULT).min(LIMIT_MAX)
}

/// What the caller said in `grpc-timeout`; `None` when it said nothing, or nothing that can be read.
#[must_use]
pub fn given(metadata: &MetadataMap) -> Option<Duration> {
    parse_timeout(metadata.get("grpc-timeout")?.to_str().ok()?)
}

/// Up to eight digits and a unit.
fn parse_timeout(text: &str) -> Option<Duration> {
    let unit_at = text.len().checked_sub(1).filter(|digits| (1..=8).contains(digits))?;
    let (digits, unit) = text.split_at_checked(unit_at)?;
    if !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let count: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(count * 3600),
        "M" => Duration::from_secs(count * 60),
        "S" => Duration::from_secs(count),
        "m" => Duration::from_millis(count),
        "u" => Duration::from_micros(count),
        "n" => Duration::from_nanos(count),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_have_digits_and_a_unit() {
        let legal = [
            ("2H", Duration::from_secs(7200)),
            ("3M", Duration::from_secs(180)),
            ("20S", Duration::from_secs(20)),
            ("1500m", Duration::from_millis(1500)),
            ("99999999u", Duration::from_micros(99_999_999)),
            ("5n", Duration::from_nanos(5)),
        ];
        for (text, expected) in legal {
            assert_eq!(parse_timeout(text), Some(expected), "{text}");
        }
        for text in ["", "S", "20", "20s", "-1S", "+1S", "999999999S", "1 S", "1é"] {
            assert_eq!(parse_timeout(text), None, "{text}");
        }
    }

    #[test]
    fn units_are_read_and_nonsense_is_the_default() {
        let with = |text: &'static str| {
            let mut metadata = MetadataMap::new();
            metadata.insert("grpc-timeout", tonic::metadata::MetadataValue::from_static(text));
            limit(&metadata)
        };
        assert_eq!(with("250m"), Duration::from_millis(250));
        assert_eq!(with("3S"), Duration::from_secs(3));
        assert_eq!(with("99999999H"), LIMIT_MAX);
        assert_eq!(with("soon"), LIMIT_DEFAULT);
        assert_eq!(limit(&MetadataMap::new()), LIMIT_DEFAULT);
    }
}
