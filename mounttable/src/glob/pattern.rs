//! A whole pattern, and how it is taken apart.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::error::{Error, Reason};
use crate::glob::element::Element;
use crate::name::{DEPTH_MAX, NAME_BYTES_MAX, RESERVED_PREFIX};

/// How far below its last element a pattern reaches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Recursion {
    /// No further.
    None,
    /// `...`: everything below.
    Full,
    /// `***`: everything below, but not beyond servers that are no mount tables.
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

/// A pattern, or what is left of one. Cheap to clone and to take the tail of.
#[derive(Clone, Debug)]
pub struct Pattern {
    elements: Arc<[Element]>,
    /// How many elements are done with.
    used: usize,
    recursion: Recursion,
}

impl Pattern {
    /// How many elements are left; the recursion is none.
    pub fn depth(&self) -> usize {
        self.left().len()
    }

    /// Whether it asks for nothing but the node it is put to.
    pub fn is_used_up(&self) -> bool {
        self.left().is_empty() && self.recursion == Recursion::None
    }

    /// How far it reaches below its last element.
    pub fn recursion(&self) -> Recursion {
        self.recursion
    }

    /// The elements that are left.
    pub fn left(&self) -> &[Element] {
        self.elements.get(self.used..).unwrap_or_default()
    }

    /// Whether a child called `name` is asked for.
    ///
    /// Without elements left a recursive pattern asks for all children and another for none. A name of a server's debug
    /// tree is meant only by an element that spells its two underscores.
    pub fn head_matches(&self, name: &str) -> bool {
        match self.left().first() {
            Some(head) if name.starts_with(RESERVED_PREFIX) => {
                head.fixed_prefix().starts_with(RESERVED_PREFIX) && head.matches(name)
            }
            Some(head) => head.matches(name),
            None => self.recursion != Recursion::None && !name.starts_with(RESERVED_PREFIX),
        }
    }

    /// What the children that match are asked: one element less, and the same recursion.
    #[must_use]
    pub fn tail(&self) -> Self {
        Self { used: self.used.saturating_add(1).min(self.elements.len()), ..self.clone() }
    }

    /// Whether the first element left has a wildcard, so that the children must be listed to know which match.
    pub fn lists_children(&self) -> bool {
        match self.left().first() {
            Some(head) => !head.is_fixed(),
            None => self.recursion != Recursion::None,
        }
    }

    /// The names of the leading elements without wildcards, and the pattern behind them.
    pub fn split_fixed(&self) -> (Vec<String>, Self) {
        let fixed: Vec<_> = self.left().iter().take_while(|element| element.is_fixed()).collect();
        let rest = Self { used: self.used.saturating_add(fixed.len()), ..self.clone() };
        (fixed.into_iter().map(Element::fixed_prefix).collect(), rest)
    }

    /// Whether the name made of these elements, relative to the node the pattern is put to, is one that it asks for.
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
        // A character of a name may take two of a pattern.
        if text.len() > 2 * NAME_BYTES_MAX {
            return Err(bad(format!("it has {} bytes, at most {} are allowed", text.len(), 2 * NAME_BYTES_MAX)));
        }
        if text.starts_with('/') {
            return Err(bad("it is relative to the node asked, so it does not begin with a slash".to_owned()));
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
    /// What is left is what counts.
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
