//! [`NodeName`]: the name of a node relative to the root of its table, as a table accepts it.
//!
//! A name is parsed once, before any access to storage; afterwards the type is the proof that every element is valid.
//! Elements that begin with `__` are reserved for a server's own debug tree; `.` and `..` are refused because tools
//! disagree about their meaning.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::error::{Error, Reason};
use crate::naming;

/// The longest element, in bytes.
pub const ELEMENT_BYTES_MAX: usize = 512;

/// The longest name, cleaned and without a leading slash, in bytes: a row key holds it and nine bytes more.
pub const NAME_BYTES_MAX: usize = 3_072;

/// The largest number of elements.
pub const DEPTH_MAX: usize = 64;

/// The prefix of names in a server's own debug tree.
pub const RESERVED_PREFIX: &str = "__";

/// The name of a node: elements joined with single slashes; the root's is empty. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct NodeName(Arc<str>);

impl NodeName {
    /// The name of the root.
    pub fn root() -> Self {
        Self::default()
    }

    /// The whole name, without a leading slash.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it is the root.
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// The elements from the root down.
    pub fn elements(&self) -> impl Iterator<Item = &str> {
        naming::elements(&self.0)
    }

    /// The number of elements.
    pub fn depth(&self) -> usize {
        self.elements().count()
    }

    /// The parent's name and the last element; `None` for the root.
    pub fn split_last(&self) -> Option<(Self, &str)> {
        if self.is_root() {
            return None;
        }
        let (parent, element) = self.0.rsplit_once('/').unwrap_or(("", &self.0));
        Some((Self(parent.into()), element))
    }

    /// The name of the child called `element`.
    ///
    /// # Errors
    /// `BAD_NAME` when `element` cannot be one, or the whole becomes too long or too deep.
    pub fn child(&self, element: &str) -> Result<Self, Error> {
        check_element(element)?;
        if self.is_root() { element.parse() } else { format!("{}/{element}", self.0).parse() }
    }

    /// The names of the nodes on the path: the root, then each node down to this one, inclusive.
    pub fn path(&self) -> Vec<Self> {
        self.prefixes().map(|name| Self(name.into())).collect()
    }

    /// The same names as text.
    pub fn prefixes(&self) -> impl Iterator<Item = &str> {
        let ends = self.0.match_indices('/').map(|(at, _)| at).chain((!self.is_root()).then_some(self.0.len()));
        std::iter::once("").chain(ends.filter_map(|end| self.0.get(..end)))
    }

    /// The rest of this name below `ancestor`: empty if it is the same node, `None` if it is not below it.
    pub fn suffix_below(&self, ancestor: &Self) -> Option<&str> {
        if ancestor.is_root() {
            return Some(&self.0);
        }
        match self.0.strip_prefix(&*ancestor.0)? {
            "" => Some(""),
            rest => rest.strip_prefix('/'),
        }
    }
}

impl FromStr for NodeName {
    type Err = Error;

    /// Parses a name from a request: leading, trailing and repeated slashes are ignored.
    fn from_str(text: &str) -> Result<Self, Error> {
        let (mut depth, mut bytes) = (0_usize, 0_usize);
        for element in naming::elements(text) {
            check_element(element)?;
            depth = depth.saturating_add(1);
            bytes = bytes.saturating_add(element.len()).saturating_add(1);
        }
        // There is no slash before the first.
        let bytes = bytes.saturating_sub(1);
        if depth > DEPTH_MAX {
            return Err(bad_name(text, &format!("it has {depth} elements, at most {DEPTH_MAX} are allowed")));
        }
        if bytes > NAME_BYTES_MAX {
            return Err(bad_name(text, &format!("it has {bytes} bytes, at most {NAME_BYTES_MAX} are allowed")));
        }
        if bytes == text.len() {
            return Ok(Self(text.into()));
        }
        Ok(Self(naming::elements(text).collect::<Vec<_>>().join("/").into()))
    }
}

fn check_element(element: &str) -> Result<(), Error> {
    let wrong = if element.is_empty() || element.contains('/') {
        "an element must not be empty or contain a slash"
    } else if element.len() > ELEMENT_BYTES_MAX {
        "an element must have at most 512 bytes"
    } else if element.chars().any(char::is_control) {
        "an element must not contain control characters"
    } else if matches!(element, "." | "..") {
        "an element must not be . or .."
    } else if element.starts_with(RESERVED_PREFIX) {
        "elements that begin with __ are reserved for the server"
    } else {
        return Ok(());
    };
    Err(bad_name(element, wrong))
}

fn bad_name(text: &str, wrong: &str) -> Error {
    // A refused name may be very long; the error must not be.
    let shown: String = text.chars().take(64).collect();
    let dots = if shown.len() < text.len() { "..." } else { "" };
    Error::new(Reason::BadName, format!("invalid name {shown:?}{dots}: {wrong}"))
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &self.0)
    }
}
