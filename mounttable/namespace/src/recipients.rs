//! The servers that receive the caller's token: those that the caller names.
//!
//! ```text
//!   a root                                      receives it
//!   a server given to the builder               receives it
//!   the server of a rooted name of the caller   receives it
//!   a server that a table reports               does not
//! ```
//!
//! A user who may mount a server chooses the addresses that a table reports, and everybody who receives a token can use
//! it. A certificate, where connections have TLS, shows only that a reported server has its address. A server is identified by the
//! `host:port` that is connected to.

use std::collections::BTreeSet;

use crate::entry::MountEntry;
use crate::roots::Roots;

/// The largest number of servers of rooted names. Further ones receive no token.
pub const NAMED_MAX: usize = 10_000;

/// A part of the message of a refusal by a server that did not receive the token.
pub const TOKEN_WITHHELD: &str = "the token was not sent to";

/// The servers that receive the token of one caller, as `host:port`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Recipients {
    roots: BTreeSet<String>,
    /// Given to the builder.
    given: BTreeSet<String>,
    /// Of rooted names.
    named: BTreeSet<String>,
}

impl Recipients {
    /// The servers of `roots` and of the rooted addresses `given`.
    pub fn new(roots: &Roots, given: &Roots) -> Self {
        Self { roots: servers(roots), given: servers(given), named: BTreeSet::new() }
    }

    /// The roots change: the previous ones are not recipients any more, unless they are for another reason.
    pub fn set_roots(&mut self, roots: &Roots) {
        self.roots = servers(roots);
    }

    /// The caller has used a rooted name that begins at `entry`.
    pub fn add_named(&mut self, entry: &MountEntry) {
        for location in entry.locations() {
            if self.named.len() < NAMED_MAX {
                self.named.insert(location.host_port().to_owned());
            }
        }
    }

    /// Whether the server at `host_port` receives the token.
    pub fn contains(&self, host_port: &str) -> bool {
        [&self.roots, &self.given, &self.named].iter().any(|servers| servers.contains(host_port))
    }
}

fn servers(roots: &Roots) -> BTreeSet<String> {
    let locations = roots.entry("").map(|entry| entry.locations()).unwrap_or_default();
    locations.iter().map(|location| location.host_port().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn roots(names: &[&str]) -> Roots {
        Roots::new(names.iter().copied()).unwrap()
    }

    #[test]
    fn only_servers_that_the_caller_names_are_recipients() {
        let mut recipients = Recipients::new(&roots(&["/root:1/in"]), &roots(&["/given:1"]));
        for (server, expected) in [("root:1", true), ("given:1", true), ("root:2", false), ("h:1", false)] {
            assert_eq!(recipients.contains(server), expected, "{server}");
        }
        recipients.add_named(&roots(&[]).entry("/h:1#/a").unwrap());
        recipients.set_roots(&roots(&["/root:2"]));
        for (server, expected) in [("root:1", false), ("given:1", true), ("root:2", true), ("h:1", true)] {
            assert_eq!(recipients.contains(server), expected, "{server}");
        }
    }

    #[test]
    fn the_number_of_named_servers_is_bounded() {
        let mut recipients = Recipients::new(&roots(&[]), &roots(&[]));
        for number in 0..=NAMED_MAX {
            recipients.add_named(&roots(&[]).entry(&format!("/h{number}:1")).unwrap());
        }
        assert!(recipients.contains("h0:1"));
        assert!(!recipients.contains(&format!("h{NAMED_MAX}:1")));
    }
}
