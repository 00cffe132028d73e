//! Addresses on a command line: `HOST:PORT`, several separated by commas.

use std::str::FromStr;

use crate::process::host_port;

/// Addresses, each `host:port`. Empty when the text was empty, as in scripts that pass a variable on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Addresses(Vec<String>);

impl Addresses {
    /// The addresses in their order.
    pub fn list(&self) -> &[String] {
        &self.0
    }
}

impl FromStr for Addresses {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        text.split(',').map(|one| parse_destination(one.trim())).collect::<Result<_, _>>().map(Self)
    }
}

/// Parses `HOST:PORT` of something to connect to, so port 0 is refused.
fn parse_destination(text: &str) -> Result<String, String> {
    if text.ends_with(":0") {
        return Err(format!("cannot connect to port 0 ({text}); expected HOST:PORT, for example 127.0.0.1:8086"));
    }
    host_port(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_addresses_are_refused_with_an_example() {
        let list = |text: &str| text.parse::<Addresses>().map(|addresses| addresses.list().to_vec());
        assert_eq!(list("127.0.0.1:8086").unwrap(), ["127.0.0.1:8086"]);
        assert_eq!(list("server-1:1, [::1]:65535").unwrap(), ["server-1:1", "[::1]:65535"]);
        assert_eq!(list("").unwrap(), Vec::<String>::new());
        for wrong in ["foo", ":1", "a:0", "a:70000", "a:x", "::1:80", "http://a:1", "a:1,", "a b:1", "[a]:1"] {
            let refused = list(wrong).unwrap_err();
            assert!(refused.contains("expected HOST:PORT, for example 127.0.0.1:8086"), "{refused}");
        }
    }
}
