//! Patterns of filters: compiled once, matched against whole byte strings.
//!
//! The engine is `regex::bytes` with Unicode off; [`crate::filter::translate`] translates RE2's syntax for it. A pattern that
//! is a single literal, in any quoting, is compared instead of matched. Most patterns are, because clients select families
//! and columns this way.

use bytes::Bytes;
use regex::bytes::{Regex, RegexBuilder};

use crate::error::Error;
use crate::filter::translate::{PatternError, Translated, translate};

/// Maximum size of a compiled pattern and of its matching cache, in bytes: bounds the cost of a small request.
const COMPILED_BYTES_MAX: usize = 256 << 10;

/// Matches whole strings against a pattern.
#[derive(Clone, Debug)]
pub(super) enum Matcher {
    /// The pattern is this literal.
    Literal(Bytes),
    /// Any other pattern.
    Pattern(Regex),
}

/// A parsed pattern that is not compiled yet.
pub(super) struct ParsedPattern<'a> {
    field: &'a str,
    pattern: &'a [u8],
    translated: Translated,
}

impl<'a> ParsedPattern<'a> {
    /// Parses `pattern`; `field` is its name in the API.
    pub(super) fn new(field: &'a str, pattern: &'a [u8]) -> Result<Self, Error> {
        match translate(pattern) {
            Ok(translated) => Ok(Self { field, pattern, translated }),
            Err(PatternError(why)) => Err(refuse(field, pattern, &why)),
        }
    }

    /// Estimated number of instructions.
    pub(super) const fn program_size(&self) -> usize {
        self.translated.program_size
    }

    pub(super) fn compile(self) -> Result<Matcher, Error> {
        let Self { field, pattern, translated } = self;
        if let Some(literal) = translated.literal {
            return Ok(Matcher::Literal(literal.into()));
        }
        let whole = format!(r"\A(?:{})\z", translated.pattern);
        let mut builder = RegexBuilder::new(&whole);
        builder.unicode(false).size_limit(COMPILED_BYTES_MAX).dfa_size_limit(COMPILED_BYTES_MAX);
        builder.build().map(Matcher::Pattern).map_err(|error| match error {
            regex::Error::CompiledTooBig(_) => refuse(field, pattern, "the compiled pattern is too large"),
            other => refuse(field, pattern, &last_line(&other)),
        })
    }
}

fn refuse(field: &str, pattern: &[u8], why: &str) -> Error {
    Error::invalid(format!("Error in field '{field}': invalid regex '{}': {why}", pattern.escape_ascii()))
}

impl Matcher {
    /// Whether all of `bytes` matches.
    pub(super) fn is_match(&self, bytes: &[u8]) -> bool {
        match self {
            Self::Literal(literal) => literal == bytes,
            Self::Pattern(regex) => regex.is_match(bytes),
        }
    }
}

/// The engine's error messages have several lines; the last says what is wrong.
fn last_line(error: &regex::Error) -> String {
    error.to_string().lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned()
}
