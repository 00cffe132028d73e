//! The HTTP port of a process: what a monitoring system, a supervisor and an operator read.
//!
//! ```text
//!   /metrics   figures, as text for Prometheus or OpenMetrics       readers with a certificate of the cluster, or on this machine
//!   /debug/    release, age, arguments, tasks, memory               the same; arguments only for parts of the cluster and this machine
//!   /healthz   200: the process lives                               all
//!   /readyz    200: it can serve; 503 with the reason               all
//!
//!   all else   the site of the process, if it has one: the console  decided by the site
//!
//!   accept -> (TLS) -> one of 64 connections, HTTP/1.1 -> access -> page
//! ```
//!
//! Its own pages change nothing and answer `GET` and `HEAD` only. The port must not harm the process that it observes: the 65th connection displaces the
//! oldest one, a request has to arrive and a response has to be read in time, and few scrapes are rendered at once. `/healthz` and `/readyz`
//! wait for nothing, so they answer while scrapes queue or a disk hangs.
//!
//! What is absent: HTTP/2, which no reader of these pages needs, and any action of its own.

mod access;
mod connection;
mod debug;
mod pages;
mod readiness;
mod site;

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use futures::StreamExt;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use self::connection::WriteTimeout;
pub use self::debug::{ProcessInfo, shown_arguments};
pub use self::pages::Pages;
pub use self::readiness::Readiness;
pub use self::site::{Place, REQUEST_BODY_BYTES_MAX, Scheme, Site, SiteBody, SiteRequest};
use crate::Runtime;
use crate::net::{Connection, Listener};
use crate::serve::Protocol;
use crate::tls::Tls;

/// The largest number of connections. One more ends the oldest, so that a client that opens many keeps no other one out.
pub const CONNECTIONS_MAX: usize = 64;
/// How long a connection may take to send the headers of its next request; also how long an idle one stays open.
pub const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a client may read nothing of a response.
pub const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// The size of the headers of a request, and of what is buffered of a response.
const BUFFER_BYTES_MAX: usize = 16 << 10;
/// The number of headers of a request.
const HEADERS_MAX: usize = 64;

/// The port of a process.
#[derive(Debug)]
pub struct HttpPort {
    address: String,
}

impl HttpPort {
    /// Listens on `listen` (`host:port`, port 0: any free one) and serves `pages`, with TLS if the network has it, until the tasks of
    /// `runtime` are stopped.
    ///
    /// # Errors
    /// When the address cannot be bound.
    pub async fn start(listen: &str, pages: Pages, runtime: &Runtime) -> io::Result<Self> {
        let listener = runtime.net.listen(listen).await?;
        let address = listener.local_addr().to_string();
        runtime.tasks.spawn_until_stopped("http port", accept(listener, pages, runtime.clone()));
        Ok(Self { address })
    }

    /// Where it listens, `host:port`.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }
}

async fn accept(mut listener: Listener, pages: Pages, runtime: Runtime) {
    let tls = listener.tls().cloned();
    let mut open: VecDeque<CancellationToken> = VecDeque::new();
    while let Some(accepted) = listener.next().await {
        let connection = match accepted {
            Ok(connection) => connection,
            Err(error) => {
                debug!(%error, "accept failed on the HTTP port");
                continue;
            }
        };
        open.retain(|connection| !connection.is_cancelled());
        if open.len() >= CONNECTIONS_MAX
            && let Some(oldest) = open.pop_front()
        {
            oldest.cancel();
        }
        // Of its own, so that the end of one connection ends no other one; the task ends with the group.
        let closed = CancellationToken::new();
        open.push_back(closed.clone());
        let (pages, tls) = (pages.clone(), tls.clone());
        runtime.tasks.spawn_until_stopped("http connection", async move {
            let ended = closed.clone().drop_guard();
            closed.run_until_cancelled(serve(connection, tls, pages)).await;
            drop(ended);
        });
    }
}

/// Serves one connection until it ends.
async fn serve(connection: Connection, tls: Option<Tls>, pages: Pages) {
    let scheme = if tls.is_some() { Scheme::Https } else { Scheme::Http };
    let connection = match tls {
        // A failed handshake is the client's business: it sees the reason, and anybody can cause one.
        Some(tls) => match tls.accept(Protocol::Http1, connection).await {
            Ok(connection) => connection,
            Err(_refused) => return,
        },
        None => connection,
    };
    let service = TowerToHyperService::new(pages.routes(access::caller(&connection), scheme));
    let stream = TokioIo::new(WriteTimeout::new(connection, WRITE_TIMEOUT));
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(BUFFER_BYTES_MAX)
        .max_headers(HEADERS_MAX)
        .half_close(false)
        .serve_connection(stream, service);
    if let Err(error) = serving.await {
        debug!(%error, "connection of the HTTP port ended");
    }
}

#[cfg(test)]
mod tests;
