//! Where a node's row is: eight hex digits of a hash of its name, then the name with a slash in front.
//!
//! The hash spreads siblings over the whole table, so that no tablet holds a directory that is being filled. SHA-256,
//! because a weaker hash leaves names that differ in their last digit together.

use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

use crate::error::{Error, Reason};
use crate::name::NodeName;

/// How many bytes of the hash lead a row key.
const HASH_BYTES: usize = 4;

/// The key of the row of the node `name`, such as `6f64c6e6/foo`.
pub fn row_key(name: &NodeName) -> String {
    let mut key = String::new();
    for byte in Sha256::digest(format!("/{name}")).iter().take(HASH_BYTES) {
        // Writing to a string does not fail.
        let _ = write!(key, "{byte:02x}");
    }
    key.push('/');
    key.push_str(name.as_str());
    key
}

/// The name of the node whose row this is.
///
/// # Errors
/// `DAMAGED` when no node has this key.
pub fn name_of(key: &str) -> Result<NodeName, Error> {
    let name = key.split_once('/').and_then(|(_, name)| name.parse().ok()).filter(|name| row_key(name) == key);
    name.ok_or_else(|| Error::new(Reason::Damaged, format!("{key:?} is not the key of a node's row")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_those_of_the_design() {
        for (name, key) in [("", "8a5edab2/"), ("foo", "6f64c6e6/foo"), ("foo/bar", "a05d96ad/foo/bar")] {
            assert_eq!(row_key(&name.parse().unwrap()), key);
            assert_eq!(name_of(key), Ok(name.parse().unwrap()));
        }
    }

    #[test]
    fn a_key_of_no_node_is_told() {
        for key in ["", "8a5edab2", "6f64c6e7/foo", "6f64c6e6/foo/", "6f64c6e6//foo"] {
            assert_eq!(name_of(key).unwrap_err().reason, Reason::Damaged);
        }
    }
}
