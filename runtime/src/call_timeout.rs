//! The timeout that a caller of gRPC gives its call: the header `grpc-timeout` (gRPC over HTTP/2, "Requests").

use std::time::Duration;

use http::HeaderMap;

/// The value of `grpc-timeout`; `None` when it is absent or invalid. A timeout that cannot be read is ignored: to refuse the call would not help the
/// caller.
#[must_use]
pub fn requested(headers: &HeaderMap) -> Option<Duration> {
    parse(headers.get("grpc-timeout")?.to_str().ok()?)
}

/// One to eight digits and a unit.
fn parse(text: &str) -> Option<Duration> {
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
            assert_eq!(parse(text), Some(expected), "{text}");
        }
        for text in ["", "S", "20", "20s", "-1S", "+1S", "999999999S", "1 S", "1é"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
