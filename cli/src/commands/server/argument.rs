//! A tablet server on the command line: its number, or its address.

use ebla_model::id::ServerId;
use ebla_runtime::Runtime;

use crate::commands::{ClusterArguments, status};
use crate::output::Failure;
use ebla_client::snapshot::ServerSnapshot;

/// How a tablet server is named on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerArgument {
    /// By its number.
    Number(ServerId),
    /// By its address, as `ebla server list` shows it.
    Address(String),
}

/// For `value_parser` of clap.
///
/// # Errors
/// When the text is neither a number from 1 nor `HOST:PORT`.
pub(super) fn parse(text: &str) -> Result<ServerArgument, String> {
    match text.parse::<u64>() {
        Ok(number) if number > 0 => return Ok(ServerArgument::Number(ServerId::new(number))),
        Ok(_zero) => return Err("servers are numbered from 1".to_owned()),
        Err(_not_a_number) => {}
    }
    let is_address = text.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
    if is_address {
        Ok(ServerArgument::Address(text.to_owned()))
    } else {
        Err("give the server's number or its address, as ebla server list shows them, such as 3 or 127.0.0.1:8086"
            .to_owned())
    }
}

impl ServerArgument {
    /// The number of the server; an address is looked up in the cluster.
    ///
    /// # Errors
    /// When no server of the cluster, or more than one, has the address; when no cluster answers.
    pub(super) async fn resolve(&self, cluster: &ClusterArguments, runtime: &Runtime) -> Result<ServerId, Failure> {
        match self {
            Self::Number(number) => Ok(*number),
            Self::Address(address) => find(&status::snapshot(cluster, runtime).await?.servers, address),
        }
    }
}

/// The server with this address. A server that has left may have had the address of one that is registered.
fn find(servers: &[ServerSnapshot], address: &str) -> Result<ServerId, Failure> {
    let mut found: Vec<_> = servers.iter().filter(|server| server.address.as_deref() == Some(address)).collect();
    if found.iter().any(|server| server.is_registered) {
        found.retain(|server| server.is_registered);
    }
    match found.as_slice() {
        [server] => Ok(ServerId::new(server.id)),
        [] => Err(Failure::usage(format!("no tablet server has the address {address}; ebla server list shows them"))),
        [..] => Err(Failure::usage(format!(
            "several tablet servers had the address {address}; give the number, which ebla server list shows"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(id: u64, address: &str, is_registered: bool) -> ServerSnapshot {
        ServerSnapshot { id, address: Some(address.to_owned()), is_registered, ..ServerSnapshot::default() }
    }

    #[test]
    fn a_server_is_named_by_its_number_or_its_address() {
        assert_eq!(parse("3"), Ok(ServerArgument::Number(ServerId::new(3))));
        assert_eq!(parse("a:8086"), Ok(ServerArgument::Address("a:8086".to_owned())));
        assert_eq!(parse("[::1]:8086"), Ok(ServerArgument::Address("[::1]:8086".to_owned())));
        for wrong in ["", "0", "-1", "a", ":8086", "a:", "a:x"] {
            parse(wrong).unwrap_err();
        }
    }

    #[test]
    fn an_address_belongs_to_the_registered_server() {
        let servers =
            [server(1, "a:1", false), server(2, "a:1", true), server(3, "b:1", false), server(4, "b:1", false)];
        assert_eq!(find(&servers, "a:1").unwrap(), ServerId::new(2));
        assert!(find(&servers, "b:1").unwrap_err().message.contains("several"));
        assert!(find(&servers, "c:1").unwrap_err().message.contains("no tablet server"));
    }
}
