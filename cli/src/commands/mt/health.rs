//! `ebla mt publish --check`: servers are mounted while they are healthy.

use std::process::Stdio;
use std::str::FromStr;
use std::time::Duration;

use ebla_mounttable::ServerAddress;
use ebla_mounttable_namespace::Publisher;
use ebla_mounttable_namespace::entry::Place;
use ebla_runtime::Net;
use http::uri::PathAndQuery;
use http::{Request, header};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::process::Command;
use tonic::body::Body;
use tonic_prost::ProstCodec;

use crate::output;

/// A look that takes longer has failed.
const LOOK_MAX: Duration = Duration::from_secs(3);

/// So many looks in succession have to fail before a server is taken away.
const FAILURES: u32 = 2;

/// How it is seen whether a server is healthy.
#[derive(Clone, Debug)]
pub(super) enum Check {
    /// Somebody listens.
    Tcp,
    /// It says that it serves, by `grpc.health.v1`: as a whole, or this service of it.
    Grpc(String),
    /// It answers this path with 2xx.
    Http(PathAndQuery),
    /// This line for the shell ends with 0; the server is in the variable `SERVER`.
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
            _ => Err("a check is one of tcp, grpc, grpc=SERVICE, http=/PATH, exec=COMMAND".to_owned()),
        }
    }
}

/// Looks at a server for ever, and has it mounted while it is healthy.
pub(super) async fn guard(check: &Check, every: Duration, server: &ServerAddress, publisher: &Publisher, net: &Net) {
    let place = Place::new(server, "");
    let (mut is_mounted, mut failures) = (false, 0_u32);
    loop {
        let looked = tokio::time::timeout(LOOK_MAX, look(check, place.host_port(), net)).await;
        match looked.unwrap_or_else(|_| Err(format!("no answer in {LOOK_MAX:?}"))) {
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

/// Whether it is healthy, and if not, why.
async fn look(check: &Check, address: &str, net: &Net) -> Result<(), String> {
    match check {
        Check::Tcp => net.connect(address).await.map(drop).map_err(|error| error.to_string()),
        Check::Grpc(service) => ask(service, address, net).await,
        Check::Http(path) => get(path, address, net).await,
        Check::Exec(line) => {
            let mut command = Command::new("sh");
            command.args(["-c", line]).env("SERVER", address).stdin(Stdio::null()).stdout(Stdio::null());
            let status = command.kill_on_drop(true).status().await.map_err(|error| error.to_string())?;
            if status.success() { Ok(()) } else { Err(status.to_string()) }
        }
    }
}

async fn get(path: &PathAndQuery, address: &str, net: &Net) -> Result<(), String> {
    let request = Request::get(path.as_str()).header(header::HOST, address).header(header::CONNECTION, "close");
    let request = request.body(Body::empty()).map_err(|error| error.to_string())?;
    let stream = net.connect(address).await.map_err(|error| error.to_string())?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
    // With the sender and the answer's body gone the connection ends.
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

async fn ask(service: &str, address: &str, net: &Net) -> Result<(), String> {
    const SERVING: i32 = 1;
    let mut client = tonic::client::Grpc::new(net.channel(address));
    client.ready().await.map_err(|error| error.to_string())?;
    let path = PathAndQuery::from_static("/grpc.health.v1.Health/Check");
    let codec = ProstCodec::<HealthRequest, HealthReply>::default();
    let request = tonic::Request::new(HealthRequest { service: service.to_owned() });
    match client.unary(request, path, codec).await {
        Ok(reply) if reply.get_ref().status == SERVING => Ok(()),
        Ok(reply) => Err(format!("its status is {}", reply.get_ref().status)),
        Err(status) => Err(format!("{:?}: {}", status.code(), status.message())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_is_read() {
        for text in ["tcp", "grpc", "grpc=web.v1.Web", "http=/ready?deep=1", "exec=test -e up"] {
            assert!(text.parse::<Check>().is_ok(), "{text}");
        }
        for text in ["", "udp", "tcp=80", "http", "http=ready", "http=/a b", "exec", "exec="] {
            assert!(text.parse::<Check>().is_err(), "{text}");
        }
    }
}
