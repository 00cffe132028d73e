//! [`MountEntry`]: the servers that a name resolves to, and the rest of the name.

use ebla_model::Micros;
use ebla_mounttable_tree::{Deadline, Error, ServerAddress, Target, TargetFlags, naming};
use ebla_proto::mounttable as wire;

/// A server that a name resolves to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Server {
    /// Its address, perhaps with a name inside the server.
    pub address: ServerAddress,
    /// Its deadline.
    pub deadline: Deadline,
}

impl Server {
    /// A server without a known deadline.
    pub const fn lasting(address: ServerAddress) -> Self {
        Self { address, deadline: Deadline::FOREVER }
    }

    /// The server of a reply; `None` when its address is invalid.
    pub(crate) fn from_wire(server: &wire::Server) -> Option<Self> {
        let deadline = server.deadline_micros.map_or(Deadline::FOREVER, |at| Deadline::at(Micros::new(at)));
        Some(Self { address: object_address(&server.address).ok()?, deadline })
    }
}

/// The result of a resolution: `suffix` can be asked of any of `servers`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MountEntry {
    /// Servers that are equivalent, most preferred first.
    pub servers: Vec<Server>,
    /// The rest of the name; without leading or trailing slashes.
    pub suffix: String,
    /// The kind of the servers.
    pub target: Target,
}

impl MountEntry {
    /// The names of the object, one per server: rooted if the address can begin a name.
    pub fn names(&self) -> Vec<String> {
        let name = |server: &Server| match server.address.as_str() {
            text if has_scheme(text) => server.address.with_suffix(&self.suffix),
            _ => {
                let location = ObjectLocation::new(&server.address, &self.suffix);
                naming::join_address(&location.address, &location.name)
            }
        };
        self.servers.iter().map(name).collect()
    }

    /// The locations of the object, most preferred first.
    pub(crate) fn locations(&self) -> Vec<ObjectLocation> {
        self.servers.iter().map(|server| ObjectLocation::new(&server.address, &self.suffix)).collect()
    }

    /// The entry of a reply. Servers with invalid addresses are dropped.
    pub(crate) fn from_wire(entry: wire::Entry) -> Self {
        let flags = TargetFlags { serves_mount_table: entry.serves_mount_table, is_leaf: entry.is_leaf };
        let target = Target::from(flags);
        Self { servers: entry.servers.iter().filter_map(Server::from_wire).collect(), suffix: entry.name, target }
    }
}

/// The location of an object: the address of its server, and its name there.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ObjectLocation {
    /// The server's address.
    pub address: String,
    /// Elements joined with slashes; empty for the server's own root.
    pub name: String,
}

impl ObjectLocation {
    /// The location of the object called `suffix` below the one at `address`.
    pub fn new(address: &ServerAddress, suffix: &str) -> Self {
        let text = address.as_str();
        let (address, inner) =
            if naming::is_rooted(text) { naming::split_address(text) } else { (text.to_owned(), String::new()) };
        Self { address, name: naming::join(&[&inner, suffix.trim_start_matches('/')]) }
    }

    /// The `host:port` to connect to: the address without its other parts.
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

/// Whether the address contains slashes of its own, so that it cannot begin a name.
fn has_scheme(address: &str) -> bool {
    ["unix:/", "dns:///", "https://"].iter().any(|scheme| address.starts_with(scheme))
}

/// Parses an address from a reply: with a name after it, the leading slash may be missing.
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
        let host_port = |address: &str| ObjectLocation::new(&address.parse().unwrap(), "a").host_port().to_owned();
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
