//! Patterns of filters: compiled once, matched against whole byte strings.
//!
//! The engine is `regex::bytes` with Unicode off, fed with what [`crate::filter::translate`] makes of RE2's language. A
//! pattern that turns out to be one literal, however quoted, is compared instead of matched. That is most of them:
//! clients name families and columns this way.

use bytes::Bytes;
use regex::bytes::{Regex, RegexBuilder};

use crate::error::Error;
use crate::filter::translate::{Refused, translate};

/// Largest compiled pattern, in bytes: what a request of a few kilobytes may cost.
const COMPILED_BYTES_MAX: usize = 256 << 10;

/// Decides whether a string matches a pattern as a whole.
#[derive(Clone, Debug)]
pub(super) enum Matcher {
    /// The pattern is this string, quoted.
    Literal(Bytes),
    /// Any other pattern.
    Pattern(Regex),
}

impl Matcher {
    /// Compiles `pattern`; `field` is what a person calls it.
    pub(super) fn compile(field: &str, pattern: &[u8]) -> Result<Self, Error> {
        let refuse = |why: String| {
            Error::invalid(format!("Error in field '{field}': invalid regex '{}': {why}", pattern.escape_ascii()))
        };
        let translated = translate(pattern).map_err(|Refused(why)| refuse(why))?;
        if let Some(literal) = translated.literal {
            return Ok(Self::Literal(literal.into()));
        }
        let whole = format!(r"\A(?:{})\z", translated.pattern);
        let built = RegexBuilder::new(&whole).unicode(false).size_limit(COMPILED_BYTES_MAX).build();
        built.map(Self::Pattern).map_err(|error| match error {
            regex::Error::CompiledTooBig(_) => refuse("it is too large when compiled".into()),
            other => refuse(last_line(&other)),
        })
    }

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
