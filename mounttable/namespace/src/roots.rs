//! [`Roots`]: the start of relative names. They are equivalent: any of them may be asked.

use ebla_mounttable_tree::{Error, Reason, ServerAddress, Target, naming};

use crate::entry::{MountEntry, Server};

/// The prefix of environment variables with roots.
pub const VARIABLE_PREFIX: &str = "MT_ROOT";

/// The roots, most preferred first. They may be empty if only rooted names are used.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Roots(Vec<ServerAddress>);

impl Roots {
    /// The roots with these names, each `/host:port` or `/host:port/name/there`.
    ///
    /// # Errors
    /// `BAD_ADDRESS` when one is not rooted, or names no server.
    pub fn new<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Self, Error> {
        let root = |name: &'a str| {
            if naming::is_rooted(name) {
                name.parse()
            } else {
                Err(Error::new(Reason::BadAddress, format!("the root {name:?} must begin with a slash")))
            }
        };
        names.into_iter().map(root).collect::<Result<_, _>>().map(Self)
    }

    /// The roots in the environment variables whose names begin with [`VARIABLE_PREFIX`], ordered by variable name.
    /// Empty ones are ignored.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn from_environment(variables: impl IntoIterator<Item = (String, String)>) -> Result<Self, Error> {
        let is_root = |(name, value): &(String, String)| name.starts_with(VARIABLE_PREFIX) && !value.is_empty();
        let mut variables: Vec<_> = variables.into_iter().filter(is_root).collect();
        variables.sort();
        Self::new(variables.iter().map(|(_, value)| value.as_str()))
    }

    /// The roots, most preferred first.
    pub fn addresses(&self) -> &[ServerAddress] {
        &self.0
    }

    /// The start of the resolution of `name`. The server of a rooted name is treated as a mount table, unless its
    /// address says otherwise.
    ///
    /// # Errors
    /// `NO_MOUNT_TABLE` for a relative name without roots, `BAD_ADDRESS` for a rooted one without a server.
    pub fn entry(&self, name: &str) -> Result<MountEntry, Error> {
        if naming::is_rooted(name) {
            let (address, suffix) = naming::split_address(name);
            let address: ServerAddress = format!("/{address}").parse()?;
            let target = address_target(&address);
            return Ok(MountEntry { servers: vec![Server::lasting(address)], suffix, target });
        }
        if self.0.is_empty() {
            return Err(Error::new(Reason::NoMountTable, format!("no roots to resolve {name:?} from")));
        }
        let servers = self.0.iter().cloned().map(Server::lasting).collect();
        let suffix = naming::elements(name).collect::<Vec<_>>().join("/");
        Ok(MountEntry { servers, suffix, target: Target::MountTable })
    }
}

/// The kind that an address implies: `host:port#`, and endpoints with that flag, are not mount tables.
fn address_target(address: &ServerAddress) -> Target {
    let (address, _) = naming::split_address(address.as_str());
    match address.strip_prefix("@6@").and_then(|rest| rest.split('@').nth(4)) {
        Some("l") => Target::Leaf,
        Some("s") => Target::Object,
        None if address.ends_with('#') => Target::Object,
        _ => Target::MountTable,
    }
}

/// Adds a hint to an error for `name`: if its first element is an address, the rooted spelling may have been meant.
#[must_use]
pub fn with_hint(name: &str, error: Error) -> Error {
    let first = naming::elements(name).next().unwrap_or_default();
    let is_address = !naming::is_rooted(name) && first.parse::<ServerAddress>().is_ok();
    match error.reason {
        Reason::NoSuchName | Reason::NoMountTable if is_address => {
            Error::new(error.reason, format!("{}; was /{name} meant?", error.message))
        }
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    /// T092
    #[test]
    fn roots_are_rooted_and_may_be_none() {
        assert_eq!(Roots::new([]).unwrap().addresses(), []);
        assert_eq!(Roots::new(["/h:1", "/h:2//a/"]).unwrap().addresses()[1].as_str(), "/h:2/a");
        assert_eq!(Roots::new(["h:1"]).unwrap_err().reason, Reason::BadAddress);
        assert_eq!(Roots::new(["/h"]).unwrap_err().reason, Reason::BadAddress);
    }

    #[test]
    fn variables_of_the_environment_are_roots_in_the_order_of_their_names() {
        let seen = variables(&[("MT_ROOT_2", "/h:2"), ("MT_ROOT", "/h:9"), ("HOME", "/root"), ("MT_ROOT_1", "")]);
        let roots = Roots::from_environment(seen).unwrap();
        assert_eq!(roots, Roots::new(["/h:9", "/h:2"]).unwrap());
        assert!(Roots::from_environment(variables(&[("MT_ROOT", "h:9")])).is_err());
    }

    #[test]
    fn a_name_begins_at_its_server_or_at_all_roots() {
        let roots = Roots::new(["/h:1", "/h:2/in"]).unwrap();
        assert_eq!(roots.entry("a//b/").unwrap().names(), ["/h:1/a/b", "/h:2/in/a/b"]);
        assert_eq!(roots.entry("/h:3/a/b").unwrap().names(), ["/h:3/a/b"]);
        assert_eq!(roots.entry("/h:3#/a").unwrap().target, Target::Object);
        assert_eq!(roots.entry("/@6@tcp@h:1@@00@s@x@@/a").unwrap().target, Target::Object);
        assert_eq!(roots.entry("/stuff/a").unwrap_err().reason, Reason::BadAddress);
        assert_eq!(Roots::default().entry("a").unwrap_err().reason, Reason::NoMountTable);
    }

    #[test]
    fn an_address_without_a_slash_is_noticed() {
        let error = |name| with_hint(name, Error::new(Reason::NoSuchName, "nothing")).message;
        assert_eq!(error("h:80/a"), "nothing; was /h:80/a meant?");
        assert_eq!((error("a/b"), error("/h:80/a")), ("nothing".to_owned(), "nothing".to_owned()));
    }
}
