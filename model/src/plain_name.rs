//! Plain names: ASCII letters, digits, `.`, `_` and `-`. Column families, locality groups, zones and clusters have them.

use crate::error::Error;

/// Whether a name is plain and has 1 to `length_max` bytes.
pub(crate) fn is_plain_name(name: &str, length_max: usize) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=length_max).contains(&name.len()) && name.bytes().all(is_allowed)
}

/// The name of a `kind` of thing, checked. `example`: a valid one, for the error.
///
/// # Errors
/// `InvalidArgument` for another name, with what is allowed.
pub(crate) fn parse_plain_name(name: &str, kind: &str, length_max: usize, example: &str) -> Result<String, Error> {
    if is_plain_name(name, length_max) {
        return Ok(name.to_owned());
    }
    Err(Error::invalid(format!(
        "{name:?} is not the name of a {kind}: use 1 to {length_max} letters, digits, '.', '_' or '-', for example {example}"
    )))
}
