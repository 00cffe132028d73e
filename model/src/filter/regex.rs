//! Patterns of filters: compiled once, matched against whole byte strings.
//!
//! The engine is `regex::bytes` with Unicode off, fed with what [`crate::filter::translate`] makes of RE2's language. A
//! pattern that turns out to be one literal, however quoted, is compared instead of matched. That is most of them:
//! clients name families and columns this way.

use bytes::Bytes;
use regex::bytes::{Regex, RegexBuilder};

use crate::error::Error;
use crate::filter::translate::{Refused, Translated, translate};

/// Largest compiled pattern, in bytes, and largest cache of its matching: what a request of a few kilobytes may cost.
const COMPILED_BYTES_MAX: usize = 256 << 10;

/// Decides whether a string matches a pattern as a whole.
#[derive(Clone, Debug)]
pub(super) enum Matcher {
    /// The pattern is this string, quoted.
    Literal(Bytes),
    /// Any other pattern.
    Pattern(Regex),
}

/// A pattern that was read, and not built yet.
pub(super) struct Weighed<'a> {
    field: &'a str,
    pattern: &'a [u8],
    translated: Translated,
}

impl<'a> Weighed<'a> {
    /// Reads `pattern`; `field` is what a person calls it.
    pub(super) fn new(field: &'a str, pattern: &'a [u8]) -> Result<Self, Error> {
        match translate(pattern) {
            Ok(translated) => Ok(Self { field, pattern, translated }),
            Err(Refused(why)) => Err(refuse(field, pattern, &why)),
        }
    }

    /// About how many instructions it will take.
    pub(super) const fn weight(&self) -> usize {
        self.translated.weight
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
            regex::Error::CompiledTooBig(_) => refuse(field, pattern, "it is too large when compiled"),
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

/// The engine's errors draw the translated pattern over several lines; the last says what is wrong.
fn last_line(error: &regex::Error) -> String {
    error.to_string().lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned()
}
