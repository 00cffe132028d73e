//! The ids of a trace, as servers pass them on: the header `traceparent` of W3C Trace Context, level 1.

use std::fmt;
use std::num::{NonZeroU64, NonZeroU128};

/// The name of the header.
pub const TRACEPARENT: &str = "traceparent";

/// The length of a header of version 00.
const LENGTH: usize = 55;
/// The bit of the flags that says that the trace is sampled.
const SAMPLED: u8 = 1;

/// Identifies a trace: all operations that one call of a client causes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TraceId(NonZeroU128);

/// Identifies an operation within its trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpanId(NonZeroU64);

/// Whether all operations of a trace are exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sampling {
    /// They are.
    Sampled,
    /// Only slow ones.
    NotSampled,
}

/// What one process tells the next one about a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceContext {
    /// The trace.
    pub trace: TraceId,
    /// The operation that caused the call.
    pub span: SpanId,
    /// Whether the trace is sampled.
    pub sampling: Sampling,
}

impl TraceId {
    /// The id with this number; `None` for 0, which means no id.
    #[must_use]
    pub const fn new(number: u128) -> Option<Self> {
        match NonZeroU128::new(number) {
            Some(number) => Some(Self(number)),
            None => None,
        }
    }

    /// Its number, never 0.
    #[must_use]
    pub const fn get(self) -> u128 {
        self.0.get()
    }
}

impl SpanId {
    /// The id with this number; `None` for 0, which means no id.
    #[must_use]
    pub const fn new(number: u64) -> Option<Self> {
        match NonZeroU64::new(number) {
            Some(number) => Some(Self(number)),
            None => None,
        }
    }

    /// Its number, never 0.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0.get()
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.get())
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.get())
    }
}

impl TraceContext {
    /// Reads a `traceparent` header. `None` if it is malformed: then the receiver begins a new trace, as the specification demands.
    ///
    /// A header of a later version may be longer; its first four fields have the meaning of version 00.
    #[must_use]
    pub fn parse(header: &str) -> Option<Self> {
        let (fields, rest) = header.split_at_checked(LENGTH)?;
        let mut fields = fields.split('-');
        let version = hex(fields.next()?, 2)?;
        let trace = TraceId::new(hex(fields.next()?, 32)?)?;
        let span = SpanId::new(u64::try_from(hex(fields.next()?, 16)?).ok()?)?;
        let flags = hex(fields.next()?, 2)?;
        let is_length_valid = if version == 0 { rest.is_empty() } else { rest.is_empty() || rest.starts_with('-') };
        if version == 0xff || !is_length_valid || fields.next().is_some() {
            return None;
        }
        let is_sampled = flags & u128::from(SAMPLED) != 0;
        let sampling = if is_sampled { Sampling::Sampled } else { Sampling::NotSampled };
        Some(Self { trace, span, sampling })
    }

    /// The value of the header.
    #[must_use]
    pub fn traceparent(&self) -> String {
        let flags = if self.sampling == Sampling::Sampled { SAMPLED } else { 0 };
        format!("00-{}-{}-{flags:02x}", self.trace, self.span)
    }
}

/// A number of exactly `digits` lowercase hexadecimal digits.
fn hex(text: &str, digits: usize) -> Option<u128> {
    let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let is_valid = text.len() == digits && text.bytes().all(is_hex);
    if is_valid { u128::from_str_radix(text, 16).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_header_survives_a_round_trip() {
        let context = TraceContext::parse(HEADER).unwrap();
        assert_eq!(context.trace.get(), 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736);
        assert_eq!(context.span.get(), 0x00f0_67aa_0ba9_02b7);
        assert_eq!(context.sampling, Sampling::Sampled);
        assert_eq!(context.traceparent(), HEADER);
        let other = TraceContext { sampling: Sampling::NotSampled, ..context };
        assert_eq!(TraceContext::parse(&other.traceparent()), Some(other));
    }

    #[test]
    fn unknown_flags_and_later_versions_are_accepted() {
        let sampling = |header: &str| TraceContext::parse(header).map(|context| context.sampling);
        assert_eq!(sampling(&HEADER.replace("-01", "-fe")), Some(Sampling::NotSampled));
        assert_eq!(sampling(&HEADER.replace("-01", "-ff")), Some(Sampling::Sampled));
        assert_eq!(sampling(&HEADER.replacen("00-", "01-", 1)), Some(Sampling::Sampled));
        assert_eq!(sampling(&format!("{}-more", HEADER.replacen("00-", "cc-", 1))), Some(Sampling::Sampled));
    }

    #[test]
    fn malformed_headers_are_ignored() {
        let zero_trace = HEADER.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32));
        let zero_span = HEADER.replace("00f067aa0ba902b7", &"0".repeat(16));
        let later = format!("{}more", HEADER.replacen("00-", "01-", 1));
        let malformed = [
            "",
            "00",
            &HEADER[..54],
            &format!("{HEADER}-00"),
            &format!("{HEADER} "),
            &HEADER.replacen("00-", "ff-", 1),
            &HEADER.to_uppercase(),
            &HEADER.replace('-', "_"),
            &HEADER.replacen("4b", "+b", 1),
            &HEADER.replacen("4bf9", "4b-9", 1),
            &HEADER.replacen("4bf9", "4bé", 1),
            &zero_trace,
            &zero_span,
            &later,
        ];
        for header in malformed {
            assert_eq!(TraceContext::parse(header), None, "{header:?}");
        }
    }
}
