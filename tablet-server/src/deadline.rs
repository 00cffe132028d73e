//! Deadlines of calls, from gRPC's `grpc-timeout` header.
//!
//! Every call has a deadline: the caller's, else a default. It is determined once, where the call enters the server, and
//! passed down.

use std::time::Duration;

use tonic::metadata::MetadataMap;

/// Timeout of a call without `grpc-timeout`.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(60);
/// Timeout of a public read without `grpc-timeout`: the scan of a large table is one call.
pub const READ_TIMEOUT: Duration = Duration::from_secs(10 * 60);
/// The largest timeout: work for a caller that is gone ends by itself.
pub const TIMEOUT_MAX: Duration = Duration::from_secs(3600);
/// A public call is answered this long before its caller's deadline, or a twentieth of a short timeout.
const MARGIN: Duration = Duration::from_millis(100);

/// The timeout of an internal call: the caller's `grpc-timeout` (digits and a unit), or the default.
#[must_use]
pub fn timeout(metadata: &MetadataMap) -> Duration {
    requested(metadata).unwrap_or(CALL_TIMEOUT).min(TIMEOUT_MAX)
}

/// The timeout of a public call; `default` if its caller gives none.
///
/// It ends a little before the caller's, so that the caller receives the reason of a failure. A header that cannot be
/// parsed is ignored: refusing the call would not help the caller.
#[must_use]
pub fn public_timeout(metadata: &MetadataMap, default: Duration) -> Duration {
    let with_margin = |timeout: Duration| timeout.saturating_sub(MARGIN.min(timeout / 20));
    requested(metadata).map(with_margin).unwrap_or(default).min(TIMEOUT_MAX)
}

/// The value of `grpc-timeout`; `None` when it is absent or invalid.
fn requested(metadata: &MetadataMap) -> Option<Duration> {
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
    fn units_are_read_and_invalid_values_give_the_default() {
        let with = |text: &'static str| {
            let mut metadata = MetadataMap::new();
            metadata.insert("grpc-timeout", tonic::metadata::MetadataValue::from_static(text));
            timeout(&metadata)
        };
        assert_eq!(with("250m"), Duration::from_millis(250));
        assert_eq!(with("3S"), Duration::from_secs(3));
        assert_eq!(with("99999999H"), TIMEOUT_MAX);
        assert_eq!(with("soon"), CALL_TIMEOUT);
        assert_eq!(timeout(&MetadataMap::new()), CALL_TIMEOUT);
    }

    #[test]
    fn public_timeouts_have_a_margin_and_a_maximum() {
        let mut metadata = MetadataMap::new();
        assert_eq!(public_timeout(&metadata, CALL_TIMEOUT), CALL_TIMEOUT);
        metadata.insert("grpc-timeout", "99999999H".parse().unwrap());
        assert_eq!(public_timeout(&metadata, CALL_TIMEOUT), TIMEOUT_MAX);
        metadata.insert("grpc-timeout", "10S".parse().unwrap());
        assert_eq!(public_timeout(&metadata, CALL_TIMEOUT), Duration::from_millis(9900));
        metadata.insert("grpc-timeout", "soon".parse().unwrap());
        assert_eq!(public_timeout(&metadata, READ_TIMEOUT), READ_TIMEOUT);
    }
}
