//! Who may read what on the HTTP port. Pure, but for the look at a connection.

use std::net::IpAddr;

use crate::net::Connection;
use crate::tls::{Role, Security};

/// Who is at the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Caller {
    /// A part of the cluster, by its certificate: a master, a tablet server, a mounttable.
    Member,
    /// A user or a program, by its certificate.
    Client,
    /// A program on this machine without a certificate.
    Local,
    /// A program elsewhere, on a port without TLS (`--insecure`).
    Unsecured,
    /// A program elsewhere without a certificate, on a port with TLS.
    Anonymous,
}

/// A page that is not for all; `/healthz` and `/readyz` are for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Page {
    /// `/metrics`.
    Metrics,
    /// `/debug/` without the arguments of the process.
    Debug,
    /// The arguments: they name files and addresses.
    Arguments,
}

/// Who has opened a connection. A certificate counts more than the place: a client of this machine with a certificate is that client.
pub(super) fn caller(connection: &Connection) -> Caller {
    let is_local = connection.peer().is_some_and(|peer| is_loopback(peer.ip()));
    caller_of(connection.security(), is_local)
}

fn caller_of(security: &Security, is_local: bool) -> Caller {
    match (security, security.identity().map(crate::tls::Identity::role)) {
        (_, Some(Role::Client)) => Caller::Client,
        (_, Some(Role::Master | Role::TabletServer | Role::Mounttable)) => Caller::Member,
        _ if is_local => Caller::Local,
        (Security::Plain, None) => Caller::Unsecured,
        (Security::Tls(_), None) => Caller::Anonymous,
    }
}

/// Whether an address is of this machine's loopback network, also when IPv6 carries it.
fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

/// Whether a caller may read a page. Without TLS no caller can prove an identity, and an operator who listens beyond loopback then has chosen so
/// (`--insecure`).
pub(super) const fn may_read(caller: Caller, page: Page) -> bool {
    match page {
        Page::Metrics | Page::Debug => !matches!(caller, Caller::Anonymous),
        Page::Arguments => matches!(caller, Caller::Member | Caller::Local),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::Identity;

    #[test]
    fn a_caller_is_its_certificate_or_else_its_place() {
        let of = |role| Security::Tls(Some(Identity::new(role, "a").unwrap()));
        let rows = [
            (Security::Plain, true, Caller::Local),
            (Security::Plain, false, Caller::Unsecured),
            (Security::Tls(None), true, Caller::Local),
            (Security::Tls(None), false, Caller::Anonymous),
            (of(Role::Client), true, Caller::Client),
            (of(Role::Client), false, Caller::Client),
            (of(Role::Master), false, Caller::Member),
            (of(Role::Mounttable), false, Caller::Member),
        ];
        for (security, is_local, expected) in rows {
            assert_eq!(caller_of(&security, is_local), expected, "{security:?} {is_local}");
        }
        for (address, expected) in [("127.0.0.9", true), ("::1", true), ("::ffff:127.0.0.1", true), ("10.0.0.1", false)]
        {
            assert_eq!(is_loopback(address.parse().unwrap()), expected, "{address}");
        }
    }

    #[test]
    fn unknown_callers_read_nothing_and_clients_no_arguments() {
        let pages = [Page::Metrics, Page::Debug, Page::Arguments];
        let read = |caller| pages.map(|page| may_read(caller, page));
        assert_eq!(read(Caller::Anonymous), [false; 3]);
        assert_eq!(read(Caller::Client), [true, true, false]);
        assert_eq!(read(Caller::Unsecured), [true, true, false]);
        assert_eq!(read(Caller::Member), [true; 3]);
        assert_eq!(read(Caller::Local), [true; 3]);
    }
}
