//! `ebla wait`: returns when a server answers, or when a whole cluster serves; for scripts and health checks.

use std::time::Duration;

use ebla_client::Admin;
use ebla_model::error::{Error, Reason};
use ebla_proto::locate::ClusterRequest;
use ebla_proto::locate::locate_client::LocateClient;
use ebla_proto::operate::StatusReply;
use ebla_proto::status::from_status;
use ebla_runtime::Runtime;

use super::DEFAULT_ADDRESS;
use crate::output::{self, Failure};

/// The pause between two looks.
const PAUSE: Duration = Duration::from_millis(250);
/// One look may take so long; a frozen server must not use up the whole time.
const LOOK_MAX: Duration = Duration::from_secs(2);

/// Wait until a server answers, or until a whole cluster serves.
///
/// Examples:
///   ebla wait
///   ebla wait --addr 127.0.0.1:8086 --servers 5 --for 120
#[derive(Clone, Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Wait {
    /// HOST:PORT of a tablet server, or of a master when --servers is not given
    #[arg(long, env = "EBLA_ADDR", default_value = DEFAULT_ADDRESS)]
    pub addr: String,
    /// Wait until that many tablet servers answer and every tablet is led, and not only for the server at the address
    #[arg(long, value_name = "N")]
    pub servers: Option<usize>,
    /// Give up after this many seconds
    #[arg(long = "for", value_name = "SECONDS", default_value_t = 60)]
    pub seconds: u64,
}

/// Looks again and again, and says on stderr what is still missing whenever that changes.
///
/// # Errors
/// `Deadline` with what is missing when the time is over.
pub async fn run(wait: Wait, runtime: Runtime) -> Result<(), Failure> {
    let end = runtime.clock.monotonic() + Duration::from_secs(wait.seconds);
    let mut said = String::new();
    loop {
        let look = tokio::time::timeout(LOOK_MAX, look(&wait, &runtime)).await;
        let missing = match look {
            Ok(Ok(found)) => {
                output::print(&format!("{found}\n"));
                return Ok(());
            }
            Ok(Err(missing)) => missing,
            Err(_elapsed) => format!("no answer from {}", wait.addr),
        };
        if runtime.clock.monotonic() >= end {
            let late = format!("not ready after {} s: {missing}", wait.seconds);
            return Err(Failure::from(Error::new(Reason::Deadline, late)));
        }
        if missing != said {
            eprintln!("waiting: {missing}");
            said = missing;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// What is there, or what is missing.
async fn look(wait: &Wait, runtime: &Runtime) -> Result<String, String> {
    match wait.servers {
        None => server_answers(&wait.addr, runtime).await,
        Some(wanted) => {
            let status = Admin::connect(&wait.addr, runtime).status().await;
            judge(&status.map_err(|error| error.message)?, wanted)
        }
    }
}

/// A tablet server tells from its own memory where it belongs, so that its health does not hang on the master or on etcd. A
/// master does not know the question, and that is an answer too.
async fn server_answers(address: &str, runtime: &Runtime) -> Result<String, String> {
    let answer = LocateClient::new(runtime.net.channel(address)).cluster(ClusterRequest {}).await;
    match answer.map_err(|status| from_status(&status).0) {
        Ok(_) => Ok(format!("{address} serves")),
        Err(error) if error.reason == Reason::Unimplemented => Ok(format!("{address} answers")),
        Err(error) => Err(format!("{address}: {}", error.message)),
    }
}

/// Whether `status` shows `wanted` tablet servers and a leader for every tablet. Pure.
fn judge(status: &StatusReply, wanted: usize) -> Result<String, String> {
    let reachable = status.servers.iter().filter(|server| server.reachable).count();
    let (led, tablets) = (status.tablets_led, status.tablets);
    if reachable < wanted {
        return Err(format!("{reachable} of {wanted} tablet servers answer"));
    }
    if tablets == 0 || led < tablets {
        return Err(format!("{led} of {tablets} tablets are led"));
    }
    Ok(format!("{reachable} tablet servers answer, {led} of {tablets} tablets are led"))
}

#[cfg(test)]
mod tests {
    use ebla_proto::operate::ServerStatus;

    use super::*;

    fn status(reachable: &[bool], led: u64, tablets: u64) -> StatusReply {
        let server = |reachable: &bool| ServerStatus { reachable: *reachable, ..ServerStatus::default() };
        let servers = reachable.iter().map(server).collect();
        StatusReply { servers, tablets, tablets_led: led, ..StatusReply::default() }
    }

    #[test]
    fn a_cluster_serves_when_its_servers_answer_and_its_tablets_are_led() {
        assert!(judge(&status(&[true, true], 2, 2), 2).is_ok());
        assert_eq!(judge(&status(&[true, false], 2, 2), 2).unwrap_err(), "1 of 2 tablet servers answer");
        assert_eq!(judge(&status(&[true, true], 1, 2), 2).unwrap_err(), "1 of 2 tablets are led");
        assert_eq!(judge(&status(&[true], 0, 0), 1).unwrap_err(), "0 of 0 tablets are led");
    }
}
