//! [`NamedChannel`]: a channel to the servers of a name, for any generated client.
//!
//! ```text
//!   each call             goes to the next server, round robin
//!   a new server          is connected to first, so that a dead one fails no call
//!   a broken connection   fails its call (which may have been executed) and removes the server; the name is looked up again
//!   after 5 s             the next call looks up the name again
//! ```
//!
//! The unresolved rest of the name is ignored: the caller knows which method to call.

use std::collections::HashSet;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use ebla_mounttable_tree::messages;
use ebla_mounttable_tree::{Error, Reason};
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream;
use parking_lot::Mutex;
use tonic::body::Body;
use tonic::codegen::{Service, http};

use crate::namespace::Namespace;

/// The interval of lookups.
const REFRESH_INTERVAL: Duration = Duration::from_secs(5);

/// The number of concurrent connection attempts.
const CONCURRENCY: usize = 16;

/// The largest number of servers that one channel uses.
const SERVERS_MAX: usize = 64;

/// A channel by name. Cheap to clone; clones share the servers.
#[derive(Clone, Debug)]
pub struct NamedChannel(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    namespace: Namespace,
    name: String,
    /// Held for one operation.
    servers: Mutex<Servers>,
}

#[derive(Debug, Default)]
struct Servers {
    /// `host:port` of the reachable ones.
    alive: Vec<String>,
    next_server: usize,
    /// The time of the last lookup; `None`: a lookup is due.
    since: Option<Duration>,
}

/// The error of a call without a reply of its server.
type BoxError = Box<dyn std::error::Error + Send + Sync>;

impl Namespace {
    /// A channel to the servers of a name, which follows changes of the name. Pass it to a generated client.
    ///
    /// # Errors
    /// As [`Self::resolve`]; `UNAVAILABLE` when none of the servers can be reached.
    pub async fn channel(&self, name: &str) -> Result<NamedChannel, Error> {
        let servers = Mutex::default();
        let channel = NamedChannel(Arc::new(Inner { namespace: self.clone(), name: name.to_owned(), servers }));
        channel.0.look_up().await?;
        Ok(channel)
    }
}

impl NamedChannel {
    /// The `host:port` of the servers in use.
    pub fn servers(&self) -> Vec<String> {
        self.0.servers.lock().alive.clone()
    }
}

impl Service<http::Request<Body>> for NamedChannel {
    type Response = http::Response<Body>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let inner = Arc::clone(&self.0);
        Box::pin(async move {
            // A status preserves the reason.
            let server = inner.next().await.map_err(|error| messages::status(&error))?;
            let mut channel = inner.namespace.0.channels.get(&server);
            let answer = async {
                poll_fn(|context| channel.poll_ready(context)).await?;
                channel.call(request).await
            };
            answer.await.map_err(|error| {
                inner.remove_server(&server);
                error.into()
            })
        })
    }
}

impl Inner {
    /// The next server, round robin.
    async fn next(&self) -> Result<String, Error> {
        if self.claim_refresh() {
            let looked_up = self.look_up().await;
            // The known servers are better than none.
            if self.servers.lock().alive.is_empty() {
                looked_up?;
            }
        }
        let mut servers = self.servers.lock();
        let next_server = servers.next_server;
        servers.next_server = next_server.wrapping_add(1);
        let next = next_server.checked_rem(servers.alive.len()).and_then(|next_server| servers.alive.get(next_server));
        next.cloned().ok_or_else(|| self.unreachable())
    }

    /// Whether this call must look up the servers. While some are known, one call does it for all.
    fn claim_refresh(&self) -> bool {
        let now = self.namespace.0.runtime.clock.monotonic();
        let mut servers = self.servers.lock();
        let is_old = servers.since.is_none_or(|since| now.saturating_sub(since) >= REFRESH_INTERVAL);
        if is_old && !servers.alive.is_empty() {
            servers.since = Some(now);
        }
        is_old
    }

    /// Resolves the name, and connects to its servers.
    async fn look_up(&self) -> Result<(), Error> {
        let (net, clock) = (&self.namespace.0.runtime.net, &self.namespace.0.runtime.clock);
        self.namespace.flush(&self.name);
        let resolved = self.namespace.resolve(&self.name).await;
        let resolved = resolved.inspect_err(|error| {
            // A name that is gone has no servers; if the lookup fails otherwise, the known ones stay.
            if error.reason == Reason::NoSuchName {
                *self.servers.lock() = Servers::default();
            }
        })?;
        let known: HashSet<String> = self.servers.lock().alive.iter().cloned().collect();
        let locations =
            resolved.locations().into_iter().take(SERVERS_MAX).map(|location| location.host_port().to_owned());
        let reached = stream::iter(locations).map(|server| {
            let is_known = known.contains(&server);
            async move { (is_known || net.connect(&server).await.is_ok()).then_some(server) }
        });
        let alive: Vec<String> = reached.buffered(CONCURRENCY).filter_map(|it| async { it }).collect().await;
        if alive.is_empty() {
            return Err(self.unreachable());
        }
        let mut servers = self.servers.lock();
        (servers.alive, servers.since) = (alive, Some(clock.monotonic()));
        Ok(())
    }

    /// Removes a server whose connection broke, until it can be connected to again.
    fn remove_server(&self, server: &str) {
        let mut servers = self.servers.lock();
        servers.alive.retain(|other| other != server);
        servers.since = None;
    }

    fn unreachable(&self) -> Error {
        Error::new(Reason::Unavailable, format!("no server of {:?} can be reached", self.name))
    }
}
