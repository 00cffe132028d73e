//! Addresses on the command line: syntax, whether they are safe to listen on, whether they are free.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv6Addr};

use ebla_model::error::{Error, Reason};
use ebla_runtime::Net;

use crate::output::Failure;

/// Prefixes of etcd's addresses.
const ETCD_SCHEMES: [&str; 2] = ["http://", "https://"];

/// Parses an argument `HOST:PORT`. An IPv6 address is in brackets.
///
/// # Errors
/// What is wrong, and an example.
pub fn host_port(text: &str) -> Result<String, String> {
    match fault(text) {
        None => Ok(text.to_owned()),
        Some(fault) => Err(format!("{fault}; expected HOST:PORT, for example 127.0.0.1:8086")),
    }
}

/// Parses an argument `http://HOST:PORT` or `https://HOST:PORT`, an address of etcd.
///
/// # Errors
/// What is wrong, and an example.
pub fn etcd_url(text: &str) -> Result<String, String> {
    let fault = match ETCD_SCHEMES.iter().find_map(|scheme| text.strip_prefix(scheme)) {
        Some(rest) => fault(rest.strip_suffix('/').unwrap_or(rest)),
        None => Some("it does not begin with http:// or https://".to_owned()),
    };
    match fault {
        None => Ok(text.to_owned()),
        Some(fault) => {
            Err(format!("{fault}; expected http://HOST:PORT or https://HOST:PORT, for example http://127.0.0.1:2379"))
        }
    }
}

/// Why `text` is not `HOST:PORT`.
fn fault(text: &str) -> Option<String> {
    if text.contains('/') {
        return Some("it is a URL or a path".to_owned());
    }
    let Some((host, port)) = text.rsplit_once(':') else { return Some("the port is missing".to_owned()) };
    if host.is_empty() || host.contains(char::is_whitespace) {
        return Some("the host is missing".to_owned());
    }
    let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    match bracketed {
        Some(inner) if inner.parse::<Ipv6Addr>().is_err() => return Some(format!("{inner:?} is not an IPv6 address")),
        None if host.contains([':', '[', ']']) => return Some("an IPv6 address needs brackets".to_owned()),
        _ => {}
    }
    let is_port = port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok();
    (!is_port).then(|| format!("{port:?} is not a port from 0 to 65535"))
}

/// Which addresses a process may listen on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exposure {
    /// Loopback only: on other addresses anyone could read and write, because there is no TLS and no authentication.
    Loopback,
    /// Any address: there is TLS, or the option `--insecure`.
    Any,
}

impl Exposure {
    /// The same, or any address if this network has TLS.
    #[must_use]
    pub fn with_tls_of(self, net: &Net) -> Self {
        if net.tls().is_some() { Self::Any } else { self }
    }

    /// How the connections of a process are secured, for people.
    pub fn described(self, net: &Net, users: Users) -> String {
        let tls = match (net.tls(), self) {
            (Some(tls), _) => {
                let identity =
                    tls.identity().map_or_else(|| "without a role".to_owned(), |identity| format!("as {identity}"));
                format!("TLS {identity}")
            }
            (None, Self::Any) => "no TLS (--insecure)".to_owned(),
            (None, Self::Loopback) => "no TLS (loopback only)".to_owned(),
        };
        match users {
            Users::Anonymous => format!("{tls}, no authentication of users"),
            Users::Authenticated => format!("{tls}, access control"),
            Users::Elsewhere => tls,
        }
    }
}

/// How a process treats users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Users {
    /// Each caller may do everything.
    Anonymous,
    /// Access control is on.
    Authenticated,
    /// It has none: they call other processes.
    Elsewhere,
}

impl From<bool> for Exposure {
    /// From the flag `--insecure`.
    fn from(insecure: bool) -> Self {
        if insecure { Self::Any } else { Self::Loopback }
    }
}

/// Refuses to listen on an address that is not allowed.
///
/// # Errors
/// Usage, with what to add.
pub fn check_exposure(listen: &str, allowed: Exposure) -> Result<(), Failure> {
    if allowed == Exposure::Any || is_loopback(listen) {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "{listen} is not a loopback address, and there is no TLS and no authentication: give the files of TLS (--tls-ca, --tls-cert, --tls-key; `ebla cert` makes them), or add --insecure if you trust everybody on the network"
    )))
}

/// Refuses an address that other processes cannot connect to.
///
/// # Errors
/// Usage: `listen` is a wildcard address and there is no usable `--advertise` address.
pub fn check_reachable(listen: &str, advertise: Option<&str>) -> Result<(), Failure> {
    match advertise {
        Some(address) if host(address).is_empty() || is_unspecified(address) || address.ends_with(":0") => {
            Err(Failure::usage(format!("--advertise {address} is not an address that other processes can connect to")))
        }
        None if is_unspecified(listen) => Err(Failure::usage(format!(
            "other processes cannot connect to {listen}: give the address of this process with --advertise HOST:PORT"
        ))),
        _ => Ok(()),
    }
}

/// An option and its address.
#[derive(Clone, Copy, Debug)]
pub struct Listen<'a> {
    /// The option's name, such as `--listen`.
    pub option: &'a str,
    /// `host:port` to listen on.
    pub address: &'a str,
}

/// Checks that all addresses can be bound, by binding and releasing them. Another process may still take one afterwards.
///
/// # Errors
/// `FailedPrecondition` for the first that cannot be bound, with its option; usage, when its host is unknown.
pub async fn check_free(addresses: &[Listen<'_>]) -> Result<(), Failure> {
    let mut bound = Vec::new();
    for listen in addresses {
        match tokio::net::TcpListener::bind(listen.address).await {
            Ok(listener) => bound.push(listener),
            Err(error) => return Err(cannot_listen(*listen, &error)),
        }
    }
    Ok(())
}

fn cannot_listen(Listen { option, address }: Listen<'_>, error: &std::io::Error) -> Failure {
    let port = address.rsplit_once(':').map_or("", |(_host, port)| port);
    let advice = match error.kind() {
        ErrorKind::AddrInUse => format!(
            "port {port} is in use: stop the process that uses it, or give {option} another port (port 0 takes a free one)"
        ),
        ErrorKind::AddrNotAvailable => {
            format!("this machine does not have that address: give {option} an address of this machine")
        }
        ErrorKind::PermissionDenied => {
            format!("no permission to use port {port}: give {option} a port above 1023")
        }
        _ => return Failure::usage(format!("cannot listen on {address} ({option}): {error}")),
    };
    Error::new(Reason::FailedPrecondition, format!("cannot listen on {address}: {advice}")).into()
}

/// How the connections to a cluster are secured, as a client of it can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClusterSecurity {
    /// TLS.
    Tls,
    /// No TLS; all servers are on this machine's loopback addresses.
    Loopback,
    /// No TLS, and servers on other addresses: `--insecure`.
    Insecure,
}

impl ClusterSecurity {
    /// That of a cluster whose servers have these addresses, when it answers on this network.
    pub fn of<'a>(net: &Net, mut addresses: impl Iterator<Item = &'a str>) -> Self {
        match net.tls() {
            Some(_tls) => Self::Tls,
            None if addresses.all(is_loopback) => Self::Loopback,
            None => Self::Insecure,
        }
    }

    /// For people.
    pub const fn described(self) -> &'static str {
        match self {
            Self::Tls => "TLS",
            Self::Loopback => "no TLS: loopback only",
            Self::Insecure => "INSECURE: no TLS (--insecure)",
        }
    }

    /// For programs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tls => "tls",
            Self::Loopback => "loopback",
            Self::Insecure => "insecure",
        }
    }
}

fn host(address: &str) -> &str {
    address.rsplit_once(':').map_or(address, |(host, _)| host).trim_matches(['[', ']'])
}

/// Whether an address, `host:port`, is of this machine only.
pub fn is_loopback(address: &str) -> bool {
    let host = host(address);
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

fn is_unspecified(address: &str) -> bool {
    host(address).parse::<IpAddr>().is_ok_and(|ip| ip.is_unspecified())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_addresses_are_refused_with_an_example() {
        for valid in ["127.0.0.1:0", "localhost:65535", "server-1.example.org:8086", "[::1]:80", "0.0.0.0:1"] {
            assert_eq!(host_port(valid).as_deref(), Ok(valid));
        }
        for (bad, fault) in [
            ("foo", "the port is missing"),
            ("", "the port is missing"),
            (":80", "the host is missing"),
            ("host:", "is not a port"),
            ("host:http", "is not a port"),
            ("host:65536", "is not a port"),
            ("http://host:80", "a URL"),
            ("::1:80", "needs brackets"),
            ("[host]:80", "is not an IPv6 address"),
        ] {
            let said = host_port(bad).unwrap_err();
            assert!(said.contains(fault) && said.contains("for example 127.0.0.1:8086"), "{bad}: {said}");
        }
    }

    #[test]
    fn malformed_etcd_addresses_are_refused_with_an_example() {
        for valid in ["http://127.0.0.1:2379", "http://etcd-1:2379/", "http://[::1]:2379", "https://etcd-1:2379"] {
            assert_eq!(etcd_url(valid).as_deref(), Ok(valid));
        }
        for (bad, fault) in [
            ("https://etcd-1", "the port is missing"),
            ("etcd-1:2379", "does not begin with http://"),
            ("http://etcd-1", "the port is missing"),
            ("http://etcd-1:2379/v3", "a path"),
        ] {
            let said = etcd_url(bad).unwrap_err();
            assert!(said.contains(fault) && said.contains("for example http://127.0.0.1:2379"), "{bad}: {said}");
        }
    }

    #[tokio::test]
    async fn an_address_that_cannot_be_bound_is_named_with_its_option() {
        let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = taken.local_addr().unwrap().to_string();
        let listen = |address| Listen { option: "--mounttable", address };
        let refused = check_free(&[listen("127.0.0.1:0"), listen(&address)]).await.unwrap_err();
        assert_eq!(refused.code, 5);
        assert!(refused.message.contains(&address) && refused.message.contains("--mounttable"), "{}", refused.message);
        drop(taken);
        assert!(check_free(&[listen(&address)]).await.is_ok());
        let twice = check_free(&[listen(&address), listen(&address)]).await;
        assert_eq!(twice.map_err(|refused| refused.code), Err(5));
        // An address reserved for documentation (RFC 5737).
        assert_eq!(check_free(&[listen("192.0.2.1:0")]).await.map_err(|refused| refused.code), Err(5));
    }

    #[test]
    fn a_cluster_without_tls_is_insecure_unless_all_its_servers_are_on_loopback() {
        let of = |addresses: &[&str]| ClusterSecurity::of(&Net::tcp(), addresses.iter().copied());
        assert_eq!(of(&["127.0.0.1:8086", "localhost:8087"]), ClusterSecurity::Loopback);
        assert_eq!(of(&["127.0.0.1:8086", "10.0.0.1:8086"]), ClusterSecurity::Insecure);
    }

    #[test]
    fn only_loopback_is_loopback() {
        assert!(is_loopback("127.0.0.1:80") && is_loopback("[::1]:80") && is_loopback("localhost:0"));
        assert!(!is_loopback("0.0.0.0:8086") && !is_loopback("10.0.0.1:1") && !is_loopback("example.org:1"));
    }

    #[test]
    fn a_wildcard_address_needs_an_advertised_one() {
        assert!(check_reachable("127.0.0.1:0", None).is_ok());
        assert!(check_reachable("server-1:8086", None).is_ok());
        assert!(check_reachable("0.0.0.0:8086", None).is_err() && check_reachable("[::]:8086", None).is_err());
        assert!(check_reachable("0.0.0.0:8086", Some("server-1:8086")).is_ok());
        for useless in ["0.0.0.0:8086", ":8086", "server-1:0"] {
            assert!(check_reachable("0.0.0.0:8086", Some(useless)).is_err(), "{useless}");
        }
    }
}
