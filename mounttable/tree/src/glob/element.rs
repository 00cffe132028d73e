//! One element of a pattern, matched against one element of a name.

use crate::error::{Error, Reason};

/// One element of a pattern.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Element {
    text: String,
    tokens: Vec<Token>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Token {
    /// `*`: any number of characters.
    Run,
    /// `?`: one character.
    One,
    /// A character class: one character in a range, or in none if `negated`. Ranges are inclusive.
    Class { negated: bool, ranges: Vec<(char, char)> },
    /// This character.
    Literal(char),
}

impl Token {
    /// Whether the token matches this character. Runs are handled by the matcher.
    fn matches(&self, c: char) -> bool {
        match self {
            Self::Run => false,
            Self::One => true,
            Self::Class { negated, ranges } => ranges.iter().any(|(low, high)| (*low..=*high).contains(&c)) != *negated,
            Self::Literal(literal) => *literal == c,
        }
    }
}

impl Element {
    /// Parses one element of a pattern, without slashes.
    ///
    /// # Errors
    /// `BAD_PATTERN` when it is empty, or a class or an escape in it is not terminated.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let mut chars = text.chars();
        let mut tokens = Vec::new();
        while let Some(c) = chars.next() {
            tokens.push(match c {
                '*' => Token::Run,
                '?' => Token::One,
                '[' => class(&mut chars).map_err(|wrong| bad_pattern(text, wrong))?,
                '\\' => Token::Literal(chars.next().ok_or_else(|| bad_pattern(text, "unterminated escape"))?),
                c => Token::Literal(c),
            });
        }
        if tokens.is_empty() {
            return Err(bad_pattern(text, "an element must not be empty"));
        }
        Ok(Self { text: text.to_owned(), tokens })
    }

    /// The element as it was written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether the element matches the whole of `name`.
    ///
    /// Takes time proportional to the product of both lengths at worst: only the latest run is extended, one character
    /// at a time.
    pub fn matches(&self, name: &str) -> bool {
        let (mut tokens, mut rest) = (self.tokens.as_slice(), name);
        // Where matching resumes after the latest run has taken one more character.
        let mut retry: Option<(&[Token], &str)> = None;
        loop {
            let next = rest.chars().next();
            match (tokens.split_first(), next) {
                (Some((Token::Run, behind)), _) => {
                    retry = Some((behind, rest));
                    tokens = behind;
                    continue;
                }
                (Some((token, behind)), Some(c)) if token.matches(c) => {
                    (tokens, rest) = (behind, without_first(rest));
                    continue;
                }
                (None, None) => return true,
                _ => {}
            }
            match retry {
                Some((behind, from)) if !from.is_empty() => {
                    retry = Some((behind, without_first(from)));
                    (tokens, rest) = (behind, without_first(from));
                }
                _ => return false,
            }
        }
    }

    /// The common prefix of all matching names. The whole name, if [`Self::is_fixed`].
    pub fn fixed_prefix(&self) -> String {
        let literals = self.tokens.iter().map_while(|token| match token {
            Token::Literal(c) => Some(*c),
            _ => None,
        });
        literals.collect()
    }

    /// Whether only one name matches.
    pub fn is_fixed(&self) -> bool {
        self.tokens.iter().all(|token| matches!(token, Token::Literal(_)))
    }
}

fn without_first(text: &str) -> &str {
    let mut chars = text.chars();
    chars.next();
    chars.as_str()
}

/// Parses a class after its opening bracket.
fn class(chars: &mut std::str::Chars<'_>) -> Result<Token, &'static str> {
    let negated = chars.as_str().starts_with('^');
    if negated {
        chars.next();
    }
    let mut ranges = Vec::new();
    loop {
        if chars.as_str().starts_with(']') && !ranges.is_empty() {
            chars.next();
            return Ok(Token::Class { negated, ranges });
        }
        let low = member(chars)?;
        let high = if chars.as_str().starts_with('-') {
            chars.next();
            member(chars)?
        } else {
            low
        };
        if high < low {
            return Err("a range in a class must ascend");
        }
        ranges.push((low, high));
    }
}

/// One end of a range. A literal bracket or dash must be escaped.
fn member(chars: &mut std::str::Chars<'_>) -> Result<char, &'static str> {
    match chars.next() {
        Some('\\') => chars.next().ok_or("unterminated escape"),
        Some(']') => Err("a class must not be empty"),
        Some('-') => Err("a literal dash in a class must be escaped"),
        Some(c) => Ok(c),
        None => Err("unterminated class"),
    }
}

fn bad_pattern(text: &str, wrong: &str) -> Error {
    Error::new(Reason::BadPattern, format!("invalid pattern element {text:?}: {wrong}"))
}
