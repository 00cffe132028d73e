//! Addresses as they are given on a command line: `HOST:PORT`, several separated by commas.

use std::fmt;
use std::str::FromStr;

/// Addresses, each `host:port`. None at all where the text was empty, as in scripts that pass a variable on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Addresses(Vec<String>);

/// A text that is no address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidAddress {
    text: String,
    hint: &'static str,
}

impl fmt::Display for InvalidAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not HOST:PORT{}; example: 127.0.0.1:8086,127.0.0.1:8087", self.text, self.hint)
    }
}

impl std::error::Error for InvalidAddress {}

impl Addresses {
    /// The addresses in their order.
    pub fn list(&self) -> &[String] {
        &self.0
    }
}

impl FromStr for Addresses {
    type Err = InvalidAddress;

    fn from_str(text: &str) -> Result<Self, InvalidAddress> {
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        text.split(',').map(|one| check(one.trim()).map(|()| one.trim().to_owned())).collect::<Result<_, _>>().map(Self)
    }
}

fn check(text: &str) -> Result<(), InvalidAddress> {
    let invalid = |hint| Err(InvalidAddress { text: text.to_owned(), hint });
    if text.contains("://") {
        return invalid(" (leave the scheme out)");
    }
    let Some((host, port)) = text.rsplit_once(':') else { return invalid(" (the port is missing)") };
    if !port.parse::<u16>().is_ok_and(|port| port > 0) {
        return invalid(" (a port is a number from 1 to 65535)");
    }
    let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let is_host = match bare {
        Some(inner) => inner.parse::<std::net::Ipv6Addr>().is_ok(),
        None => !host.is_empty() && host.chars().all(|c| c.is_alphanumeric() || matches!(c, '.' | '-' | '_')),
    };
    if is_host { Ok(()) } else { invalid(" (an IPv6 address stands in brackets)") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_checked_before_anything_is_asked() {
        let list = |text: &str| text.parse::<Addresses>().map(|addresses| addresses.list().to_vec());
        assert_eq!(list("127.0.0.1:8086").unwrap(), ["127.0.0.1:8086"]);
        assert_eq!(list("server-1:1, [::1]:65535").unwrap(), ["server-1:1", "[::1]:65535"]);
        assert_eq!(list("").unwrap(), Vec::<String>::new());
        for wrong in ["foo", ":1", "a:0", "a:70000", "a:x", "::1:80", "http://a:1", "a:1,", "a b:1", "[a]:1"] {
            let refused = list(wrong).unwrap_err().to_string();
            assert!(refused.contains("is not HOST:PORT") && refused.contains("example: 127.0.0.1:8086"), "{refused}");
        }
    }
}
