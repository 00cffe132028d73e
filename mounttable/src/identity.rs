//! Who calls: blessing names, the patterns that match them, and the user whom things are charged to.
//!
//! A blessing name is components joined with `:`, such as `idp:u:alice:phone`; what stands behind was delegated by what
//! stands before. A caller has any number of names, and the transport has made sure of each.
//!
//! | pattern | matches |
//! |---|---|
//! | `...` | everybody, callers without a name too |
//! | `a:b` | `a:b` and every `a:b:...` |
//! | `a:b:$` | `a:b` alone |
//! | anything else, such as the empty one or `$` | nobody |

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Reason};

/// What separates the components of a name.
pub const SEPARATOR: char = ':';

/// The pattern that matches everybody.
pub const EVERYBODY: &str = "...";

/// The last component of a pattern that no extension matches.
pub const NO_EXTENSION: &str = "$";

/// One name of a caller: components that are not empty, none of them `...` or `$`, and no comma.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BlessingName(String);

impl BlessingName {
    /// The whole name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The first three components when the second has one character (`idp:u:alice`), otherwise the first alone.
    pub fn user_id(&self) -> UserId {
        let parts: Vec<_> = self.0.splitn(4, SEPARATOR).collect();
        UserId(match parts.as_slice() {
            [provider, class, user, ..] if class.chars().count() == 1 => format!("{provider}:{class}:{user}").into(),
            [provider, ..] => (*provider).into(),
            [] => Arc::default(),
        })
    }
}

impl FromStr for BlessingName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let is_right = |part: &str| !part.is_empty() && !part.contains(EVERYBODY) && part != NO_EXTENSION;
        if text.split(SEPARATOR).all(is_right) && !text.contains(',') && !text.chars().any(char::is_control) {
            Ok(Self(text.to_owned()))
        } else {
            Err(Error::new(Reason::BadName, format!("invalid name of a caller: {text:?}")))
        }
    }
}

impl fmt::Display for BlessingName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whom an access list means. Any text: one that is not valid matches nobody, and is kept as it was written.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BlessingPattern(String);

impl BlessingPattern {
    /// The pattern written as `text`.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The pattern as it was written.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether there may be somebody whom it matches.
    pub fn is_valid(&self) -> bool {
        let parts = self.0.strip_suffix(":$").unwrap_or(&self.0);
        let is_right = |part: &str| !part.is_empty() && !part.contains(EVERYBODY) && part != NO_EXTENSION;
        self.0 == EVERYBODY || parts.split(SEPARATOR).all(is_right)
    }

    /// Whether a caller with `name` is meant.
    pub fn matches(&self, name: &BlessingName) -> bool {
        if self.0 == EVERYBODY {
            return true;
        }
        let is_like = match self.0.strip_suffix(":$") {
            Some(exact) => name.as_str() == exact,
            None => {
                name.as_str().strip_prefix(&*self.0).is_some_and(|rest| rest.is_empty() || rest.starts_with(SEPARATOR))
            }
        };
        // Most do not look like the name, and the rest is soon seen to be valid.
        is_like && self.is_valid()
    }

    /// Whether a caller known by `names` is meant. Only [`EVERYBODY`] means one without any.
    pub fn matches_any<'a>(&self, names: impl IntoIterator<Item = &'a BlessingName>) -> bool {
        self.0 == EVERYBODY || names.into_iter().any(|name| self.matches(name))
    }
}

/// A name means itself and whoever it delegates to.
impl From<&BlessingName> for BlessingPattern {
    fn from(name: &BlessingName) -> Self {
        Self(name.0.clone())
    }
}

/// Whom nodes and servers are charged to. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct UserId(Arc<str>);

impl UserId {
    /// The server itself, for nodes that a permissions file makes.
    pub fn server() -> Self {
        Self("self:?:ServerUser".into())
    }

    /// Everybody who has no name.
    pub fn unauthenticated() -> Self {
        Self("self:?:Unauthenticated".into())
    }

    /// The id that stands in storage as `text`.
    pub fn stored(text: &str) -> Self {
        Self(text.into())
    }

    /// The id as it stands in storage.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for UserId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whether the caller may do everything whatever the tree says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// What the permissions give and no more.
    Ordinary,
    /// One of the operators named at start, independently of the tree.
    Superuser,
}

/// A caller as the transport has recognised it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Caller {
    /// The names, most important first.
    pub names: Vec<BlessingName>,
    /// Whether it is an operator.
    pub standing: Standing,
}

impl Caller {
    /// A caller of these names, who is an operator if one of `superusers` matches.
    pub fn new(names: Vec<BlessingName>, superusers: &[BlessingPattern]) -> Self {
        let is_superuser = superusers.iter().any(|pattern| pattern.matches_any(&names));
        Self { names, standing: if is_superuser { Standing::Superuser } else { Standing::Ordinary } }
    }

    /// Whom things are charged to that the caller makes: the user of the first name.
    pub fn user_id(&self) -> UserId {
        self.names.first().map_or_else(UserId::unauthenticated, BlessingName::user_id)
    }
}
