//! Who the other end of a TLS connection is: the role and the name in its certificate.
//!
//! A certificate says both in one URI among its subject alternative names: `ebla:ROLE/NAME`, such as `ebla:tablet-server/server-1`. A
//! certificate of the right CA without such a URI, or with several, is valid and has no role.

use std::fmt;
use std::str::FromStr;

/// The longest name, in bytes.
const NAME_BYTES_MAX: usize = 128;
/// The scheme of the URI.
const SCHEME: &str = "ebla:";

/// What the owner of a certificate is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// A master.
    Master,
    /// A tablet server; also a whole cluster in one process.
    TabletServer,
    /// A server of a mounttable.
    Mounttable,
    /// A user or a program.
    Client,
}

impl Role {
    /// All roles.
    pub const ALL: [Self; 4] = [Self::Master, Self::TabletServer, Self::Mounttable, Self::Client];

    /// Its name in a certificate.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Master => "master",
            Self::TabletServer => "tablet-server",
            Self::Mounttable => "mounttable",
            Self::Client => "client",
        }
    }

    /// Whether the owner is a part of the cluster itself: it may replicate tablets and give orders to tablet servers.
    #[must_use]
    pub const fn is_cluster_member(self) -> bool {
        matches!(self, Self::Master | Self::TabletServer)
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The role and the name that a verified certificate states.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    role: Role,
    name: String,
}

/// A text that is no identity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not ROLE/NAME: a role is master, tablet-server, mounttable or client; a name has 1 to 128 letters, digits and . _ - @"
)]
pub struct InvalidIdentity(String);

impl Identity {
    /// An identity with this role and name.
    ///
    /// # Errors
    /// When the name is empty, longer than 128 bytes, or contains other characters than ASCII letters, digits and `. _ - @`.
    pub fn new(role: Role, name: &str) -> Result<Self, InvalidIdentity> {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-@".contains(&byte);
        if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(is_allowed) {
            return Err(InvalidIdentity(format!("{role}/{name}")));
        }
        Ok(Self { role, name: name.to_owned() })
    }

    /// Its role.
    #[must_use]
    pub const fn role(&self) -> Role {
        self.role
    }

    /// Its name, unique among the certificates of a cluster if the operator makes it so.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The URI for a certificate.
    #[must_use]
    pub fn uri(&self) -> String {
        format!("{SCHEME}{self}")
    }

    /// The identity among the URIs of a certificate; `None` when there is none, or not exactly one valid one.
    pub(crate) fn among<'a>(uris: impl Iterator<Item = &'a str>) -> Option<Self> {
        let mut ours = uris.filter_map(|uri| uri.strip_prefix(SCHEME));
        let identity = ours.next()?.parse().ok();
        if ours.next().is_some() { None } else { identity }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.role, self.name)
    }
}

impl FromStr for Identity {
    type Err = InvalidIdentity;

    fn from_str(text: &str) -> Result<Self, InvalidIdentity> {
        let invalid = || InvalidIdentity(text.to_owned());
        let (role, name) = text.split_once('/').ok_or_else(invalid)?;
        let role = Role::ALL.into_iter().find(|known| known.as_str() == role).ok_or_else(invalid)?;
        Self::new(role, name)
    }
}

/// How a connection is secured, and who is at its other end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Security {
    /// Not at all: the other end may be anybody.
    #[default]
    Plain,
    /// By TLS. The other end has proved this identity; `None`: it has no certificate, or one without a role.
    Tls(Option<Identity>),
}

impl Security {
    /// The identity that the other end has proved.
    #[must_use]
    pub const fn identity(&self) -> Option<&Identity> {
        match self {
            Self::Plain => None,
            Self::Tls(identity) => identity.as_ref(),
        }
    }

    /// Whether the other end may use the services between the parts of a cluster. Without TLS no peer can prove its role, and each may use them.
    #[must_use]
    pub fn allows_cluster_services(&self) -> bool {
        match self {
            Self::Plain => true,
            Self::Tls(identity) => identity.as_ref().is_some_and(|identity| identity.role.is_cluster_member()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_is_its_text() {
        for text in ["master/m-1", "tablet-server/server_1.example.org", "mounttable/names", "client/a@b"] {
            assert_eq!(text.parse::<Identity>().unwrap().to_string(), text);
        }
        for bad in ["", "client", "client/", "Client/a", "root/a", "client/a b", "client/a/b", "client/ä"] {
            assert!(bad.parse::<Identity>().is_err(), "{bad}");
        }
        assert!(Identity::new(Role::Client, &"x".repeat(129)).is_err());
    }

    #[test]
    fn a_certificate_with_two_roles_has_none() {
        let among = |uris: &[&str]| Identity::among(uris.iter().copied()).map(|found| found.to_string());
        assert_eq!(among(&["https://x.org", "ebla:client/a"]).as_deref(), Some("client/a"));
        assert_eq!(among(&["ebla:client/a", "ebla:master/b"]), None);
        assert_eq!(among(&["ebla:nothing/a", "ebla:master/b"]), None);
        assert_eq!(among(&["spiffe://master/a"]), None);
    }

    #[test]
    fn only_masters_and_tablet_servers_may_use_the_services_of_a_cluster() {
        let of = |role| Security::Tls(Some(Identity::new(role, "a").unwrap()));
        assert!(of(Role::Master).allows_cluster_services() && of(Role::TabletServer).allows_cluster_services());
        assert!(!of(Role::Mounttable).allows_cluster_services() && !of(Role::Client).allows_cluster_services());
        assert!(!Security::Tls(None).allows_cluster_services());
        assert!(Security::Plain.allows_cluster_services());
    }
}
