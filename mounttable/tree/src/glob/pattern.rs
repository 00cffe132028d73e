//! A whole pattern, and its decomposition.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::error::{Error, Reason};
use crate::glob::element::Element;
use crate::name::{DEPTH_MAX, NAME_BYTES_MAX, RESERVED_PREFIX};

/// How far a pattern reaches below its last element.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Recursion {
    /// Not at all.
    None,
    /// `...`: everything below.
    Full,
    /// `***`: everything below, but not below servers that are not mount tables.
    Restricted,
}

impl Recursion {
    const fn text(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Full => "...",
            Self::Restricted => "***",
        }
    }
}

/// A pattern, or the rest of one. Cheap to clone and to take the tail of.
#[derive(Clone, Debug)]
pub struct Pattern {
    elements: Arc<[Element]>,
    /// The number of consumed elements.
    used: usize,
    recursion: Recursion,
}

impl Pattern {
    /// The number of remaining elements; recursion counts zero.
    pub fn depth(&self) -> usize {
        self.left().len()
    }

    /// Whether it matches only the receiver itself.
    pub fn is_used_up(&self) -> bool {
        self.left().is_empty() && self.recursion == Recursion::None
    }

    /// How far it reaches below its last element.
    pub fn recursion(&self) -> Recursion {
        self.recursion
    }

    /// The remaining elements.
    pub fn left(&self) -> &[Element] {
        self.elements.get(self.used..).unwrap_or_default()
    }

    /// Whether a child called `name` matches.
    ///
    /// Without remaining elements a recursive pattern matches all children, any other none. A name of a server's debug
    /// tree matches only an element that spells both underscores.
    pub fn head_matches(&self, name: &str) -> bool {
        match self.left().first() {
            Some(head) if name.starts_with(RESERVED_PREFIX) => {
                head.fixed_prefix().starts_with(RESERVED_PREFIX) && head.matches(name)
            }
            Some(head) => head.matches(name),
            None => self.recursion != Recursion::None && !name.starts_with(RESERVED_PREFIX),
        }
    }

    /// The pattern for the matching children: one element less, the same recursion.
    #[must_use]
    pub fn tail(&self) -> Self {
        Self { used: self.used.saturating_add(1).min(self.elements.len()), ..self.clone() }
    }

    /// Whether the first remaining element has a wildcard, so that the children must be listed.
    pub fn lists_children(&self) -> bool {
        match self.left().first() {
            Some(head) => !head.is_fixed(),
            None => self.recursion != Recursion::None,
        }
    }

    /// The leading elements without wildcards, and the pattern after them.
    pub fn split_fixed(&self) -> (Vec<String>, Self) {
        let fixed: Vec<_> = self.left().iter().take_while(|element| element.is_fixed()).collect();
        let rest = Self { used: self.used.saturating_add(fixed.len()), ..self.clone() };
        (fixed.into_iter().map(Element::fixed_prefix).collect(), rest)
    }

    /// Whether the name made of these elements, relative to the receiver, matches.
    pub fn matches<'a>(&self, name: impl IntoIterator<Item = &'a str>) -> bool {
        let mut rest = self.clone();
        for element in name {
            if !rest.head_matches(element) {
                return false;
            }
            rest = rest.tail();
        }
        rest.left().is_empty()
    }
}

impl FromStr for Pattern {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let bad = |wrong: String| Error::new(Reason::BadPattern, format!("invalid pattern: {wrong}"));
        // A character of a name may take two in a pattern.
        if text.len() > 2 * NAME_BYTES_MAX {
            return Err(bad(format!("it has {} bytes, at most {} are allowed", text.len(), 2 * NAME_BYTES_MAX)));
        }
        if text.starts_with('/') {
            return Err(bad("it is relative to the receiver and must not begin with a slash".to_owned()));
        }
        let mut parts: Vec<_> = if text.is_empty() { vec![] } else { text.split('/').collect() };
        let recursion = match parts.last() {
            Some(&"...") => Recursion::Full,
            Some(&"***") => Recursion::Restricted,
            _ => Recursion::None,
        };
        if recursion != Recursion::None {
            parts.pop();
        }
        if parts.len() > DEPTH_MAX {
            return Err(bad(format!("it has {} elements, at most {DEPTH_MAX} are allowed", parts.len())));
        }
        let elements = parts.into_iter().map(Element::parse).collect::<Result<_, _>>()?;
        Ok(Self { elements, used: 0, recursion })
    }
}

impl PartialEq for Pattern {
    /// Patterns are equal if their remaining parts are.
    fn eq(&self, other: &Self) -> bool {
        self.left() == other.left() && self.recursion == other.recursion
    }
}

impl Eq for Pattern {}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let recursion = (self.recursion != Recursion::None).then(|| self.recursion.text());
        let parts: Vec<_> = self.left().iter().map(Element::text).chain(recursion).collect();
        f.write_str(&parts.join("/"))
    }
}
