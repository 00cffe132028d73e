//! [`ServerAddress`]: the address of a mounted server, perhaps with a name inside that server.
//!
//! ```text
//!   host:80   [::1]:80   (blessing)@host:80             a server
//!   @6@tcp@host:80@@<routing id>@m@blessings@@          a server in endpoint format
//!   /host:80/inner/path                                 rooted: a server, and a name inside it
//!   unix:/run/web.sock   dns:///web:80   https://web/v1 gRPC targets, which contain slashes and are never rooted
//! ```

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::error::{Error, Reason};
use crate::naming;

/// The longest address, in bytes.
pub const ADDRESS_BYTES_MAX: usize = 1_024;

/// The address of a mounted object: a server, and perhaps a name inside that server. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServerAddress(Arc<str>);

impl ServerAddress {
    /// The address as it was given, cleaned if it is rooted.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The object called `suffix` below this one, for the unresolved rest of a name.
    pub fn with_suffix(&self, suffix: &str) -> String {
        let suffix = suffix.trim_matches('/');
        let base = self.0.trim_end_matches('/');
        if suffix.is_empty() { self.0.to_string() } else { format!("{base}/{suffix}") }
    }
}

impl FromStr for ServerAddress {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        if text.len() > ADDRESS_BYTES_MAX {
            return Err(bad_address(&format!("it has {} bytes, at most {ADDRESS_BYTES_MAX} are allowed", text.len())));
        }
        if text.chars().any(char::is_control) {
            return Err(bad_address("it contains control characters"));
        }
        if naming::is_rooted(text) {
            let cleaned = naming::clean(text);
            let (address, _) = naming::split_address(&cleaned);
            check_server(&address)?;
            return Ok(Self(cleaned.into()));
        }
        if text.starts_with("unix:/") {
            check_unix(text)?;
        } else if let Some(name) = text.strip_prefix("dns:///") {
            check_host_given(name).and_then(|()| check_host_port(name))?;
        } else if let Some(rest) = text.strip_prefix("https://") {
            check_uri(rest)?;
        } else {
            check_server(text)?;
        }
        Ok(Self(text.into()))
    }
}

/// A server without a name in it.
fn check_server(address: &str) -> Result<(), Error> {
    if address.starts_with('@') {
        return check_endpoint(address);
    }
    let host_port = match address.strip_prefix('(').map(|rest| rest.split_once(")@")) {
        Some(Some((blessing, host_port))) if !blessing.is_empty() => host_port,
        Some(_) => return Err(bad_address(&format!("{address:?} is not (blessing)@host:port"))),
        None => address,
    };
    check_host_port(host_port)
}

fn check_host_port(text: &str) -> Result<(), Error> {
    let wrong = || bad_address(&format!("{text:?} is not host:port with a port from 1 to 65535"));
    // Upstream marks a server that is not a mount table with a # after host:port.
    let plain = text.strip_suffix('#').unwrap_or(text);
    let (host, port) = plain.rsplit_once(':').ok_or_else(wrong)?;
    let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let host_is_right = match bracketed {
        Some(inner) => inner.parse::<core::net::Ipv6Addr>().is_ok(),
        None => !host.contains(['[', ']', ':', '/', '@']) && !host.contains(char::is_whitespace),
    };
    let port_is_right =
        port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|port| port > 0);
    if host_is_right && port_is_right { Ok(()) } else { Err(wrong()) }
}

/// `@6@protocol@address@routes@routing id@m|s|l|@blessings@@`.
fn check_endpoint(address: &str) -> Result<(), Error> {
    let wrong = |why: &str| bad_address(&format!("{address:?} is not in endpoint format: {why}"));
    let inner = address.strip_prefix('@').and_then(|rest| rest.strip_suffix("@@"));
    let inner = inner.ok_or_else(|| wrong("it must begin with @ and end with @@"))?;
    let fields: Vec<_> = inner.splitn(7, '@').collect();
    match fields.as_slice() {
        ["6", _, _, _, _, "m" | "s" | "l" | "", _] => Ok(()),
        ["6", _, _, _, _, _, _] => Err(wrong("its sixth field must be m, s, l or empty")),
        ["6", ..] => Err(wrong("it must have seven fields")),
        _ => Err(wrong("its version must be 6")),
    }
}

fn check_unix(target: &str) -> Result<(), Error> {
    if target.ends_with('/') { Err(bad_address("a unix target must end in the name of a socket")) } else { Ok(()) }
}

/// The part after `https://`: a host, perhaps a port and a path.
fn check_uri(rest: &str) -> Result<(), Error> {
    if rest.contains(char::is_whitespace) {
        return Err(bad_address("a URI must not contain blanks"));
    }
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    check_host_given(host)?;
    let has_port = host.rsplit_once(':').is_some_and(|(_, port)| !port.ends_with(']'));
    if has_port { check_host_port(host) } else { check_host_port(&format!("{host}:443")) }
}

/// A target that a resolver looks up needs a host; only a plain `:port` may omit it.
fn check_host_given(host_port: &str) -> Result<(), Error> {
    if host_port.is_empty() || host_port.starts_with(':') { Err(bad_address("the host is missing")) } else { Ok(()) }
}

fn bad_address(wrong: &str) -> Error {
    Error::new(Reason::BadAddress, format!("invalid server address: {wrong}"))
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &self.0)
    }
}
