//! Callers: blessing names, the patterns that match them, and the users that resources are charged to.
//!
//! A blessing name consists of components joined with `:`, such as `idp:u:alice:phone`; each component was delegated by
//! the ones before. A caller has any number of names, all authenticated by the transport.
//!
//! | pattern | matches |
//! |---|---|
//! | `...` | everybody, including callers without a name |
//! | `a:b` | `a:b` and every `a:b:...` |
//! | `a:b:$` | `a:b` alone |
//! | anything else, such as the empty one or `$` | nobody |

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Reason};

/// The separator of a name's components.
pub const SEPARATOR: char = ':';

/// The pattern that matches everybody.
pub const ALL_PRINCIPALS: &str = "...";

/// The last component of a pattern that does not match extensions.
pub const NO_EXTENSION: &str = "$";

/// A blessing name: no empty component, none that is `...` or `$`, and no comma.
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
        let is_right = |part: &str| !part.is_empty() && !part.contains(ALL_PRINCIPALS) && part != NO_EXTENSION;
        if text.split(SEPARATOR).all(is_right) && !text.contains(',') && !text.chars().any(char::is_control) {
            Ok(Self(text.to_owned()))
        } else {
            Err(Error::new(Reason::BadName, format!("invalid caller name: {text:?}")))
        }
    }
}

impl fmt::Display for BlessingName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A pattern in an access list. Any text is accepted: an invalid pattern matches no caller, and is stored as written.
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

    /// Whether the pattern is valid, so that it can match a name.
    pub fn is_valid(&self) -> bool {
        let parts = self.0.strip_suffix(":$").unwrap_or(&self.0);
        let is_right = |part: &str| !part.is_empty() && !part.contains(ALL_PRINCIPALS) && part != NO_EXTENSION;
        self.0 == ALL_PRINCIPALS || parts.split(SEPARATOR).all(is_right)
    }

    /// Whether the pattern matches `name`.
    pub fn matches(&self, name: &BlessingName) -> bool {
        if self.0 == ALL_PRINCIPALS {
            return true;
        }
        let is_like = match self.0.strip_suffix(":$") {
            Some(exact) => name.as_str() == exact,
            None => {
                name.as_str().strip_prefix(&*self.0).is_some_and(|rest| rest.is_empty() || rest.starts_with(SEPARATOR))
            }
        };
        // The validity is checked last, because few patterns get that far.
        is_like && self.is_valid()
    }

    /// Whether the pattern matches a caller with these names. Only [`ALL_PRINCIPALS`] matches a caller without names.
    pub fn matches_any<'a>(&self, names: impl IntoIterator<Item = &'a BlessingName>) -> bool {
        self.0 == ALL_PRINCIPALS || names.into_iter().any(|name| self.matches(name))
    }
}

/// The name as a pattern matches the name itself and its delegates.
impl From<&BlessingName> for BlessingPattern {
    fn from(name: &BlessingName) -> Self {
        Self(name.0.clone())
    }
}

/// A user that nodes and servers are charged to. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct UserId(Arc<str>);

impl UserId {
    /// The server itself, for nodes of a permissions file.
    pub fn server() -> Self {
        Self("self:?:ServerUser".into())
    }

    /// All callers without a name.
    pub fn unauthenticated() -> Self {
        Self("self:?:Unauthenticated".into())
    }

    /// The id as read from storage.
    pub fn stored(text: &str) -> Self {
        Self(text.into())
    }

    /// The id as stored.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for UserId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whether a caller bypasses the permissions of the tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Privilege {
    /// The permissions apply.
    Ordinary,
    /// A superuser, named at start, bypasses them.
    Superuser,
}

/// An authenticated caller.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Caller {
    /// The names, most important first.
    pub names: Vec<BlessingName>,
    /// Whether the caller is a superuser.
    pub privilege: Privilege,
}

impl Caller {
    /// A caller with these names, who is a superuser if one of `superusers` matches.
    pub fn new(names: Vec<BlessingName>, superusers: &[BlessingPattern]) -> Self {
        let is_superuser = superusers.iter().any(|pattern| pattern.matches_any(&names));
        Self { names, privilege: if is_superuser { Privilege::Superuser } else { Privilege::Ordinary } }
    }

    /// The user that the caller's resources are charged to: the user of the first name.
    pub fn user_id(&self) -> UserId {
        self.names.first().map_or_else(UserId::unauthenticated, BlessingName::user_id)
    }
}

/// The names, separated by commas.
impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self.names.iter().map(BlessingName::to_string).collect();
        f.write_str(&names.join(", "))
    }
}
