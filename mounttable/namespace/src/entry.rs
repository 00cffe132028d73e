//! What a name leads to: [`MountEntry`], servers and what is to be asked of them.

use ebla_model::Micros;
use ebla_mounttable::{Deadline, Error, ServerAddress, Target, naming};
use ebla_proto::mounttable as wire;

/// A server that a name leads to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Server {
    /// Where it is, and which object in there.
    pub address: ServerAddress,
    /// Until when it is mounted.
    pub deadline: Deadline,
}

impl Server {
    /// A server that is there for ever, as far as anybody knows.
    pub const fn lasting(address: ServerAddress) -> Self {
        Self { address, deadline: Deadline::FOREVER }
    }

    /// The server of an answer; `None` when its address means nothing.
    pub(crate) fn from_wire(server: &wire::Server) -> Option<Self> {
        let deadline = server.deadline_micros.map_or(Deadline::FOREVER, |at| Deadline::at(Micros::new(at)));
        Some(Self { address: object_address(&server.address).ok()?, deadline })
    }
}

/// What a name leads to: any of `servers` may be asked for `suffix`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MountEntry {
    /// Servers that are equivalent, most preferred first.
    pub servers: Vec<Server>,
    /// What of the name is left for them; without slashes in front or behind.
    pub suffix: String,
    /// What the servers are.
    pub target: Target,
}

impl MountEntry {
    /// The names of the object, one at each server: rooted, where the server's address can begin a name.
    pub fn names(&self) -> Vec<String> {
        let name = |server: &Server| match server.address.as_str() {
            text if has_scheme(text) => server.address.with_suffix(&self.suffix),
            _ => {
                let place = Place::new(&server.address, &self.suffix);
                naming::join_address(&place.address, &place.name)
            }
        };
        self.servers.iter().map(name).collect()
    }

    /// Where the object is, most preferred first.
    pub(crate) fn places(&self) -> Vec<Place> {
        self.servers.iter().map(|server| Place::new(&server.address, &self.suffix)).collect()
    }

    /// The entry of an answer. Servers whose addresses mean nothing are left out.
    pub(crate) fn from_wire(entry: wire::Entry) -> Self {
        let target = Target::of(entry.serves_mount_table, entry.is_leaf);
        Self { servers: entry.servers.iter().filter_map(Server::from_wire).collect(), suffix: entry.name, target }
    }
}

/// Where an object is: the address of its server, and its name there. Objects of one place are one object.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Place {
    /// The server's.
    pub address: String,
    /// Elements joined with slashes; empty for the server's own root.
    pub name: String,
}

impl Place {
    /// The place of what is called `suffix` below the object at `address`.
    pub fn new(address: &ServerAddress, suffix: &str) -> Self {
        let text = address.as_str();
        let (address, inner) =
            if naming::is_rooted(text) { naming::split_address(text) } else { (text.to_owned(), String::new()) };
        Self { address, name: naming::join(&[&inner, suffix.trim_start_matches('/')]) }
    }

    /// The `host:port` that a connection goes to: the address without what it says besides.
    pub fn host_port(&self) -> &str {
        let address = self.address.strip_prefix("dns:///").unwrap_or(&self.address);
        if let Some(endpoint) = address.strip_prefix("@6@") {
            return endpoint.split('@').nth(1).unwrap_or(address);
        }
        let behind_blessing = address.strip_prefix('(').and_then(|rest| rest.split_once(")@"));
        let address = behind_blessing.map_or(address, |(_, host_port)| host_port);
        address.strip_suffix('#').unwrap_or(address)
    }
}

/// Whether the address holds slashes of its own, so that it cannot begin a name.
fn has_scheme(address: &str) -> bool {
    ["unix:/", "dns:///", "https://"].iter().any(|scheme| address.starts_with(scheme))
}

/// The address of an object as a table tells it: with a name behind it, it need not begin with a slash.
fn object_address(text: &str) -> Result<ServerAddress, Error> {
    text.parse().or_else(|error: Error| format!("/{text}").parse().map_err(|_: Error| error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(address: &str, suffix: &str) -> Vec<String> {
        let servers = vec![Server::lasting(address.parse().unwrap())];
        MountEntry { servers, suffix: suffix.to_owned(), target: Target::Object }.names()
    }

    #[test]
    fn the_suffix_goes_behind_each_server() {
        assert_eq!(names("h:80", "a/b"), ["/h:80/a/b"]);
        assert_eq!(names("/h:80/in", ""), ["/h:80/in"]);
        assert_eq!(names("/h:80/in", "a"), ["/h:80/in/a"]);
        assert_eq!(names("https://web/v1", "a"), ["https://web/v1/a"]);
    }

    #[test]
    fn a_connection_goes_to_host_and_port() {
        let host_port = |address: &str| Place::new(&address.parse().unwrap(), "a").host_port().to_owned();
        for address in ["h:80", "/h:80/in", "h:80#", "(ann)@h:80", "dns:///h:80", "@6@tcp@h:80@@00@m@x@@"] {
            assert_eq!(host_port(address), "h:80", "{address}");
        }
    }

    #[test]
    fn a_table_may_tell_a_plain_address_with_a_name_behind_it() {
        let server = |address: &str| wire::Server { address: address.to_owned(), ..wire::Server::default() };
        let servers = vec![server("h:80/two/dead"), server("no address")];
        let entry = MountEntry::from_wire(wire::Entry { servers, ..wire::Entry::default() });
        assert_eq!(entry.names(), ["/h:80/two/dead"]);
    }
}
