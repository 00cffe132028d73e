//! The zone of a server: what fails together, such as a rack or a data centre. An operator names it.

use std::fmt;
use std::str::FromStr;

use crate::error::Error;
use crate::plain_name::parse_plain_name;

/// The maximum length of a name, in bytes.
const LENGTH_MAX: usize = 63;

/// The name of a zone: 1 to 63 ASCII letters, digits, `.`, `_` and `-`. Servers with equal names are in one zone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Zone(String);

impl Zone {
    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Zone {
    type Err = Error;

    /// # Errors
    /// `InvalidArgument` for another name, with what is allowed.
    fn from_str(text: &str) -> Result<Self, Error> {
        parse_plain_name(text, "zone", LENGTH_MAX, "rack-7").map(Self)
    }
}

impl fmt::Display for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_and_plain() {
        for name in ["a", "rack-7", "eu-west1.b_2", &"z".repeat(63)] {
            assert_eq!(name.parse::<Zone>().unwrap().to_string(), name);
        }
        for name in ["", "a b", "rack/7", "zone\n", "ä", &"z".repeat(64)] {
            let refused = name.parse::<Zone>().unwrap_err().message;
            assert!(refused.contains("for example rack-7"), "{refused}");
        }
    }
}
