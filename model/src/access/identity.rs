//! Identities of callers, and members of policies.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use crate::error::Error;

/// The longest member, in bytes.
const MEMBER_BYTES_MAX: usize = 512;

/// A member of a policy, in its public form:
///
/// | text | who |
/// |---|---|
/// | `user:EMAIL`, `serviceAccount:EMAIL` | callers whose token has this verified address |
/// | `subject:SUB` | callers whose token has this subject |
/// | `group:NAME` | callers whose token lists this group |
/// | `certificate:NAME` | callers with a client certificate of this name |
/// | `allAuthenticatedUsers` | every caller with a valid identity |
///
/// Subjects have a kind of their own: a caller who may choose a subject cannot choose the address of somebody else.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Member {
    /// `user:EMAIL`.
    User(String),
    /// `serviceAccount:EMAIL`, another spelling of the same caller.
    ServiceAccount(String),
    /// `subject:SUB`.
    TokenSubject(String),
    /// `group:NAME`.
    Group(String),
    /// `certificate:NAME`.
    Certificate(String),
    /// `allAuthenticatedUsers`.
    AllAuthenticatedUsers,
}

impl FromStr for Member {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        if text.len() > MEMBER_BYTES_MAX || text.chars().any(char::is_control) {
            return Err(Error::invalid(format!(
                "a member of a policy is longer than {MEMBER_BYTES_MAX} bytes or has a control character"
            )));
        }
        let member = match text.split_once(':') {
            None if text == "allAuthenticatedUsers" => Self::AllAuthenticatedUsers,
            Some((_, "")) | None => return Err(unknown(text)),
            Some(("user", name)) => Self::User(name.to_owned()),
            Some(("serviceAccount", name)) => Self::ServiceAccount(name.to_owned()),
            Some(("subject", name)) => Self::TokenSubject(name.to_owned()),
            Some(("group", name)) => Self::Group(name.to_owned()),
            Some(("certificate", name)) => Self::Certificate(name.to_owned()),
            Some(_other) => return Err(unknown(text)),
        };
        Ok(member)
    }
}

fn unknown(text: &str) -> Error {
    Error::invalid(format!(
        "invalid member {text:?}: expected user:EMAIL, serviceAccount:EMAIL, subject:SUB, group:NAME, certificate:NAME or \
         allAuthenticatedUsers"
    ))
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(name) => write!(f, "user:{name}"),
            Self::ServiceAccount(name) => write!(f, "serviceAccount:{name}"),
            Self::TokenSubject(name) => write!(f, "subject:{name}"),
            Self::Group(name) => write!(f, "group:{name}"),
            Self::Certificate(name) => write!(f, "certificate:{name}"),
            Self::AllAuthenticatedUsers => f.write_str("allAuthenticatedUsers"),
        }
    }
}

/// A caller whose credentials were verified: everything that they prove. It has at least one name.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Identity {
    name: Member,
    others: BTreeSet<Member>,
}

impl Identity {
    /// The caller `name`, who is also all of `others`.
    #[must_use]
    pub fn new(name: Member, others: impl IntoIterator<Item = Member>) -> Self {
        Self { name, others: others.into_iter().collect() }
    }

    /// The name for records: one caller, one name.
    #[must_use]
    pub const fn name(&self) -> &Member {
        &self.name
    }

    /// Whether a member of a policy means this caller.
    #[must_use]
    pub fn is(&self, member: &Member) -> bool {
        match member {
            Member::AllAuthenticatedUsers => true,
            Member::ServiceAccount(address) => self.has(&Member::User(address.clone())),
            member => self.has(member),
        }
    }

    fn has(&self, name: &Member) -> bool {
        self.name == *name || self.others.contains(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(text: &str) -> Member {
        text.parse().unwrap()
    }

    #[test]
    fn members_survive_a_round_trip() {
        for text in [
            "user:a@example.org",
            "serviceAccount:a@example.org",
            "subject:a:b",
            "group:g",
            "certificate:c",
            "allAuthenticatedUsers",
        ] {
            assert_eq!(member(text).to_string(), text);
        }
        for wrong in ["", "a", "user:", "allUsers", "allUsers:x", "domain:example.org", "user:a\n", &"x".repeat(600)] {
            assert!(wrong.parse::<Member>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_subject_is_not_an_address() {
        let caller = Identity::new(member("subject:boss@example.org"), [member("group:staff")]);
        assert!(caller.is(&member("subject:boss@example.org")) && caller.is(&member("group:staff")));
        assert!(caller.is(&Member::AllAuthenticatedUsers));
        for other in ["user:boss@example.org", "serviceAccount:boss@example.org", "certificate:boss@example.org"] {
            assert!(!caller.is(&member(other)), "{other}");
        }
        let caller = Identity::new(member("subject:7"), [member("user:boss@example.org")]);
        assert!(caller.is(&member("serviceAccount:boss@example.org")));
    }
}
