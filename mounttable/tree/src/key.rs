//! Row keys: eight hex digits of a hash of the node's name, then the name with a leading slash.
//!
//! The hash spreads siblings over the whole table, so that the creation of a large directory loads all tablets.
//! SHA-256, because weaker hashes keep names together that differ only in their last digit.

use sha2::{Digest as _, Sha256};

use crate::error::{Error, Reason};
use crate::name::NodeName;

/// The number of bytes of the hash in a row key.
const HASH_BYTES: usize = 4;

/// The key of the row of the node `name`, such as `6f64c6e6/foo`.
pub fn row_key(name: &NodeName) -> String {
    key_of(name.as_str())
}

/// The keys of the rows from the root down to that of `name`, inclusive.
pub fn path_keys(name: &NodeName) -> impl Iterator<Item = String> {
    name.prefixes().map(key_of)
}

fn key_of(name: &str) -> String {
    let hash = Sha256::new().chain_update("/").chain_update(name).finalize();
    let digits = hash.iter().take(HASH_BYTES).flat_map(|byte| [byte >> 4, byte & 0xf]);
    let mut key = String::with_capacity(2 * HASH_BYTES + 1 + name.len());
    key.extend(digits.filter_map(|digit| char::from_digit(digit.into(), 16)));
    key.push('/');
    key.push_str(name);
    key
}

/// The name of the node with this row key.
///
/// # Errors
/// `DAMAGED` when it is not the key of a node.
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
    fn an_invalid_row_key_is_an_error() {
        for key in ["", "8a5edab2", "6f64c6e7/foo", "6f64c6e6/foo/", "6f64c6e6//foo"] {
            assert_eq!(name_of(key).unwrap_err().reason, Reason::Damaged);
        }
    }
}
