//! `ebla mt publish --check`: health checks; servers are mounted while they are healthy.

use std::process::Stdio;
use std::str::FromStr;
use std::time::Duration;

use ebla_mounttable_namespace::Publisher;
use ebla_mounttable_namespace::entry::ObjectLocation;
use ebla_mounttable_tree::ServerAddress;
use ebla_runtime::Net;
use http::uri::PathAndQuery;
use http::{Request, header};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::process::Command;
use tonic::body::Body;
use tonic_prost::ProstCodec;

use crate::output;

/// Timeout of a health check.
const CHECK_TIMEOUT: Duration = Duration::from_secs(3);

/// Consecutive failures after which a server is unmounted.
const FAILURES: u32 = 2;

/// A kind of health check.
#[derive(Clone, Debug)]
pub(super) enum Check {
    /// The server accepts connections.
    Tcp,
    /// The server reports by `grpc.health.v1` that it serves: as a whole, or this service.
    Grpc(String),
    /// The server answers this path with 2xx.
    Http(PathAndQuery),
    /// This shell command exits with 0; the variable `SERVER` has the address of the server.
    Exec(String),
}

impl FromStr for Check {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (how, what) = text.split_once('=').unwrap_or((text, ""));
        match (how, what) {
            ("tcp", "") => Ok(Self::Tcp),
            ("grpc", service) => Ok(Self::Grpc(service.to_owned())),
            ("http", path) if path.starts_with('/') => {
                path.parse().map(Self::Http).map_err(|error| format!("{path} is not a path: {error}"))
            }
            ("exec", line) if !line.is_empty() => Ok(Self::Exec(line.to_owned())),
            _ => Err("expected tcp, grpc, grpc=SERVICE, http=/PATH or exec=COMMAND".to_owned()),
        }
    }
}

/// Checks a server periodically, and keeps it mounted while it is healthy. Never returns.
pub(super) async fn monitor(check: &Check, every: Duration, server: &ServerAddress, publisher: &Publisher, net: &Net) {
    let server_place = ObjectLocation::new(server, "");
    let (mut is_mounted, mut failures) = (false, 0_u32);
    loop {
        let checked = tokio::time::timeout(CHECK_TIMEOUT, run_check(check, server_place.host_port(), net)).await;
        match checked.unwrap_or_else(|_| Err(format!("no answer in {CHECK_TIMEOUT:?}"))) {
            Ok(()) => {
                failures = 0;
                if !is_mounted {
                    output::note(&format!("{server} is healthy"));
                    publisher.add_server(server.clone()).await;
                    is_mounted = true;
                }
            }
            Err(why) => {
                failures = failures.saturating_add(1);
                if failures == FAILURES {
                    output::note(&format!("{server} is not healthy: {why}"));
                }
                if failures >= FAILURES && is_mounted {
                    publisher.remove_server(server.clone()).await;
                    is_mounted = false;
                }
            }
        }
        tokio::time::sleep(every).await;
    }
}

/// Runs the check once; the error says why the server is not healthy.
async fn run_check(check: &Check, address: &str, net: &Net) -> Result<(), String> {
    match check {
        Check::Tcp => net.connect(address).await.map(drop).map_err(|error| error.to_string()),
        Check::Grpc(service) => check_grpc(service, address, net).await,
        Check::Http(path) => check_http(path, address, net).await,
        Check::Exec(line) => {
            let mut command = Command::new("sh");
            command.args(["-c", line]).env("SERVER", address).stdin(Stdio::null()).stdout(Stdio::null());
            let status = command.kill_on_drop(true).status().await.map_err(|error| error.to_string())?;
            if status.success() { Ok(()) } else { Err(status.to_string()) }
        }
    }
}

async fn check_http(path: &PathAndQuery, address: &str, net: &Net) -> Result<(), String> {
    let request = Request::get(path.as_str()).header(header::HOST, address).header(header::CONNECTION, "close");
    let request = request.body(Body::empty()).map_err(|error| error.to_string())?;
    let stream = net.connect(address).await.map_err(|error| error.to_string())?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
    // The connection closes when the sender and the body of the response are dropped.
    let answer = async move { sender.send_request(request).await.map(|answer| answer.status()) };
    let (status, _) = futures::join!(answer, connection);
    match status {
        Ok(status) if status.is_success() => Ok(()),
        Ok(status) => Err(status.to_string()),
        Err(error) => Err(error.to_string()),
    }
}

/// `grpc.health.v1.HealthCheckRequest`.
#[derive(Clone, PartialEq, prost::Message)]
struct HealthRequest {
    #[prost(string, tag = "1")]
    service: String,
}

/// `grpc.health.v1.HealthCheckResponse`, whose `SERVING` is 1.
#[derive(Clone, PartialEq, prost::Message)]
struct HealthReply {
    #[prost(int32, tag = "1")]
    status: i32,
}

async fn check_grpc(service: &str, address: &str, net: &Net) -> Result<(), String> {
    const SERVING: i32 = 1;
    let mut client = tonic::client::Grpc::new(net.without_tls().channel(address));
    client.ready().await.map_err(|error| error.to_string())?;
    let path = PathAndQuery::from_static("/grpc.health.v1.Health/Check");
    let codec = ProstCodec::<HealthRequest, HealthReply>::default();
    let request = tonic::Request::new(HealthRequest { service: service.to_owned() });
    match client.unary(request, path, codec).await {
        Ok(reply) if reply.get_ref().status == SERVING => Ok(()),
        Ok(reply) => Err(format!("health status {}", reply.get_ref().status)),
        Err(status) => Err(format!("{:?}: {}", status.code(), status.message())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_are_parsed() {
        for text in ["tcp", "grpc", "grpc=web.v1.Web", "http=/ready?deep=1", "exec=test -e up"] {
            assert!(text.parse::<Check>().is_ok(), "{text}");
        }
        for text in ["", "udp", "tcp=80", "http", "http=ready", "http=/a b", "exec", "exec="] {
            assert!(text.parse::<Check>().is_err(), "{text}");
        }
    }
}
