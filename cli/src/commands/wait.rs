//! `ebla wait`: returns when a server answers, or when the whole cluster serves; for scripts and health checks.

use std::time::Duration;

use ebla_client::{Admin, BearerToken};
use ebla_model::error::{Error, Reason};
use ebla_proto::locate::ClusterRequest;
use ebla_proto::locate::locate_client::LocateClient;
use ebla_proto::operate::StatusReply;
use ebla_proto::status::from_status;
use ebla_runtime::Runtime;

use super::{DEFAULT_ADDRESS, TokenArguments};
use crate::address::Addresses;
use crate::output::{self, Failure};

/// Pause between two probes.
const PAUSE: Duration = Duration::from_millis(250);
/// Timeout of one probe, so that a frozen server does not use up the whole time. A master that cannot read METADATA reports
/// that after two seconds.
const PROBE_TIMEOUT: Duration = Duration::from_secs(3);

/// Wait until a server answers, or until the whole cluster serves
///
/// Examples:
///   ebla wait
///   ebla wait --addr 127.0.0.1:8086 --servers 5 --for 120
#[derive(Clone, Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Wait {
    /// HOST:PORT of a tablet server, or of a master when --servers is not given; of several, separated by commas, one that
    /// answers is enough
    #[arg(long, env = "EBLA_ADDR", value_name = "HOST:PORT,…", default_value = DEFAULT_ADDRESS)]
    pub addr: Addresses,
    /// Wait until this number of tablet servers answer and every tablet has a leader, not only for the server at the address
    #[arg(long, value_name = "N")]
    pub servers: Option<usize>,
    /// Timeout in seconds
    #[arg(long = "for", value_name = "SECONDS", default_value_t = 60)]
    pub seconds: u64,
    /// The caller
    #[command(flatten)]
    pub caller: TokenArguments,
}

/// Probes repeatedly, and prints on stderr what is still missing whenever that changes.
///
/// # Errors
/// `Deadline` with what is still missing; usage, when the token cannot be read.
pub async fn run(wait: Wait, runtime: Runtime) -> Result<(), Failure> {
    let token = wait.caller.token()?;
    let end = runtime.clock.monotonic() + Duration::from_secs(wait.seconds);
    let mut reported = String::new();
    loop {
        let missing = match probe_any(&wait, token.as_ref(), &runtime).await {
            Ok(found) => {
                output::print(&format!("{found}\n"));
                return Ok(());
            }
            Err(missing) => missing,
        };
        if runtime.clock.monotonic() >= end {
            let late = format!("not ready after {} s: {missing}", wait.seconds);
            return Err(Failure::from(Error::new(Reason::Deadline, late)));
        }
        if missing != reported {
            eprintln!("waiting: {missing}");
            reported = missing;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// The result of the first address that is ready, or what is missing according to the last one.
async fn probe_any(wait: &Wait, token: Option<&BearerToken>, runtime: &Runtime) -> Result<String, String> {
    let default = [DEFAULT_ADDRESS.to_owned()];
    let addresses = if wait.addr.list().is_empty() { &default } else { wait.addr.list() };
    let mut missing = String::new();
    for address in addresses {
        let probed = tokio::time::timeout(PROBE_TIMEOUT, probe(address, wait.servers, token, runtime)).await;
        match probed {
            Ok(Ok(found)) => return Ok(found),
            Ok(Err(lacks)) => missing = lacks,
            Err(_elapsed) => missing = format!("no answer from {address}"),
        }
    }
    Err(missing)
}

/// What is ready, or what is missing.
async fn probe(
    address: &str,
    servers: Option<usize>,
    token: Option<&BearerToken>,
    runtime: &Runtime,
) -> Result<String, String> {
    match servers {
        None => server_answers(address, runtime).await,
        Some(wanted) => {
            let admin = Admin::connect(address, runtime).with_timeout(PROBE_TIMEOUT).with_token(token.cloned());
            let status = admin.status().await;
            evaluate(&status.map_err(|error| error.message)?, wanted)
        }
    }
}

/// A tablet server answers from its cached directory, so its health does not depend on the master or etcd. A master does not
/// implement the call, which shows that it answers.
async fn server_answers(address: &str, runtime: &Runtime) -> Result<String, String> {
    let answer = LocateClient::new(runtime.net.channel(address)).cluster(ClusterRequest {}).await;
    match answer.map_err(|status| from_status(&status).0) {
        Ok(_) => Ok(format!("{address} serves")),
        Err(error) if error.reason == Reason::Unimplemented => Ok(format!("{address} answers")),
        Err(error) => Err(format!("{address}: {}", error.message)),
    }
}

/// Whether `status` shows `wanted` tablet servers and a leader for every tablet. Pure.
fn evaluate(status: &StatusReply, wanted: usize) -> Result<String, String> {
    let reachable = status.servers.iter().filter(|server| server.reachable).count();
    let (led, tablets) = (status.tablets_led, status.tablets);
    if let Some(awaited) = &status.awaited {
        return Err(format!("the cluster is waiting for tablet servers: {} of {}", awaited.registered, awaited.wanted));
    }
    if reachable < wanted {
        return Err(format!("{reachable} of {wanted} tablet servers answer"));
    }
    if !status.trouble.is_empty() {
        return Err(status.trouble.clone());
    }
    if tablets == 0 || led < tablets {
        return Err(format!("{led} of {tablets} tablets are led"));
    }
    Ok(format!("{reachable} tablet servers answer, {led} of {tablets} tablets are led"))
}

#[cfg(test)]
mod tests {
    use ebla_proto::operate::{Awaited, ServerStatus};

    use super::*;

    fn status(reachable: &[bool], led: u64, tablets: u64) -> StatusReply {
        let server = |reachable: &bool| ServerStatus { reachable: *reachable, ..ServerStatus::default() };
        let servers = reachable.iter().map(server).collect();
        StatusReply { servers, tablets, tablets_led: led, ..StatusReply::default() }
    }

    #[test]
    fn a_cluster_serves_when_its_servers_answer_and_its_tablets_are_led() {
        assert!(evaluate(&status(&[true, true], 2, 2), 2).is_ok());
        assert_eq!(evaluate(&status(&[true, false], 2, 2), 2).unwrap_err(), "1 of 2 tablet servers answer");
        assert_eq!(evaluate(&status(&[true, true], 1, 2), 2).unwrap_err(), "1 of 2 tablets are led");
        assert_eq!(evaluate(&status(&[true], 0, 0), 1).unwrap_err(), "0 of 0 tablets are led");
        let trouble = StatusReply { trouble: "METADATA cannot be read".to_owned(), ..status(&[true], 0, 0) };
        assert_eq!(evaluate(&trouble, 1).unwrap_err(), "METADATA cannot be read");
        let awaited = Some(Awaited { registered: 1, wanted: 3 });
        let waits = StatusReply { awaited, ..status(&[true], 0, 0) };
        assert_eq!(evaluate(&waits, 1).unwrap_err(), "the cluster is waiting for tablet servers: 1 of 3");
    }
}
