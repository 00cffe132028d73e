//! The name of a cluster, as an operator gives it. People read it; nothing is found by it.

use std::fmt;
use std::str::FromStr;

use crate::error::Error;
use crate::plain_name::parse_plain_name;

/// The maximum length of a name, in bytes.
const LENGTH_MAX: usize = 50;

/// The name of a cluster: 1 to 50 ASCII letters, digits, `.`, `_` and `-`; `ebla` unless an operator gives another one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClusterName(String);

impl ClusterName {
    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for ClusterName {
    fn default() -> Self {
        Self("ebla".to_owned())
    }
}

impl FromStr for ClusterName {
    type Err = Error;

    /// # Errors
    /// `InvalidArgument` for another name, with what is allowed.
    fn from_str(text: &str) -> Result<Self, Error> {
        parse_plain_name(text, "cluster", LENGTH_MAX, "web-1").map(Self)
    }
}

impl fmt::Display for ClusterName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_and_plain() {
        for name in ["a", "web-1", "eu-west1.b_2", &"z".repeat(50), ClusterName::default().as_str()] {
            assert_eq!(name.parse::<ClusterName>().unwrap().to_string(), name);
        }
        for name in ["", "a b", "web/1", "web\n", "ä", &"z".repeat(51)] {
            let refused = name.parse::<ClusterName>().unwrap_err().message;
            assert!(refused.contains("for example web-1"), "{refused}");
        }
    }
}
