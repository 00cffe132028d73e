//! [`NamedChannel`]: a channel to whatever servers a name leads to, for any generated client.
//!
//! ```text
//!   a call       goes to the next server in turn
//!   a new one    is tried with a connection first, so that a dead one costs no call
//!   a lost one   fails the call that met it (which may have been carried out) and takes no more; the name is flushed
//!   after 5 s    the next call asks anew what the name leads to
//! ```
//!
//! What the name leaves unresolved below its servers is of no account here: whoever dials knows what to ask for.

use std::collections::HashSet;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use ebla_mounttable::service::messages;
use ebla_mounttable::{Error, Reason};
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream;
use tonic::body::Body;
use tonic::codegen::{Service, http};

use crate::namespace::Namespace;

/// For so long the servers of a name are believed to be the same.
const FOLLOW: Duration = Duration::from_secs(5);

/// Servers that are tried at the same time.
const TOGETHER: usize = 16;

/// Most servers of a name that one channel uses.
const SERVERS_MAX: usize = 64;

/// A channel by name. Cheap to clone; clones take turns over the same servers.
#[derive(Clone, Debug)]
pub struct NamedChannel(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    namespace: Namespace,
    name: String,
    /// Held for a look.
    servers: Mutex<Servers>,
}

#[derive(Debug, Default)]
struct Servers {
    /// `host:port` of those that can be reached.
    alive: Vec<String>,
    turn: usize,
    /// When they were looked up; nothing: they must be.
    since: Option<Duration>,
}

/// What a call fails with beneath the answers of its server.
type Failure = Box<dyn std::error::Error + Send + Sync>;

impl Namespace {
    /// A channel to the servers of a name, which follows the name. Give it to a generated client as its channel.
    ///
    /// # Errors
    /// As [`Self::resolve`]; `UNAVAILABLE` when none of the servers can be reached now.
    pub async fn channel(&self, name: &str) -> Result<NamedChannel, Error> {
        let servers = Mutex::default();
        let channel = NamedChannel(Arc::new(Inner { namespace: self.clone(), name: name.to_owned(), servers }));
        channel.0.look_up().await?;
        Ok(channel)
    }
}

impl NamedChannel {
    /// The `host:port` of the servers that take calls now.
    pub fn servers(&self) -> Vec<String> {
        self.0.servers().alive.clone()
    }
}

impl Service<http::Request<Body>> for NamedChannel {
    type Response = http::Response<Body>;
    type Error = Failure;
    type Future = BoxFuture<'static, Result<Self::Response, Failure>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let inner = Arc::clone(&self.0);
        Box::pin(async move {
            // As a status the reason survives.
            let server = inner.next().await.map_err(|error| messages::status(&error))?;
            let mut channel = inner.namespace.0.channels.get(&server);
            let answer = async {
                poll_fn(|context| channel.poll_ready(context)).await?;
                channel.call(request).await
            };
            answer.await.map_err(|error| {
                inner.lose(&server);
                error.into()
            })
        })
    }
}

impl Inner {
    /// The server whose turn it is.
    async fn next(&self) -> Result<String, Error> {
        if self.is_to_look_up() {
            let looked_up = self.look_up().await;
            // Those that are known are better than none.
            if self.servers().alive.is_empty() {
                looked_up?;
            }
        }
        let mut servers = self.servers();
        let turn = servers.turn;
        servers.turn = turn.wrapping_add(1);
        let next = turn.checked_rem(servers.alive.len()).and_then(|turn| servers.alive.get(turn));
        next.cloned().ok_or_else(|| self.unreachable())
    }

    /// Whether the servers must be looked up by who asks. While there are any, one caller does it for all.
    fn is_to_look_up(&self) -> bool {
        let now = self.namespace.0.runtime.clock.monotonic();
        let mut servers = self.servers();
        let is_old = servers.since.is_none_or(|since| now.saturating_sub(since) >= FOLLOW);
        if is_old && !servers.alive.is_empty() {
            servers.since = Some(now);
        }
        is_old
    }

    /// Asks what the name leads to, and which of that can be reached.
    async fn look_up(&self) -> Result<(), Error> {
        let (net, clock) = (&self.namespace.0.runtime.net, &self.namespace.0.runtime.clock);
        self.namespace.flush(&self.name);
        let resolved = self.namespace.resolve(&self.name).await;
        let resolved = resolved.inspect_err(|error| {
            // A name that is gone has no servers; one that cannot be looked up has those it had.
            if error.reason == Reason::NoSuchName {
                *self.servers() = Servers::default();
            }
        })?;
        let known: HashSet<String> = self.servers().alive.iter().cloned().collect();
        let places = resolved.places().into_iter().take(SERVERS_MAX).map(|place| place.host_port().to_owned());
        let reached = stream::iter(places).map(|server| {
            let is_known = known.contains(&server);
            async move { (is_known || net.connect(&server).await.is_ok()).then_some(server) }
        });
        let alive: Vec<String> = reached.buffered(TOGETHER).filter_map(|it| async { it }).collect().await;
        if alive.is_empty() {
            return Err(self.unreachable());
        }
        let mut servers = self.servers();
        (servers.alive, servers.since) = (alive, Some(clock.monotonic()));
        Ok(())
    }

    /// A server whose connection broke takes no more calls before it can be connected to again.
    fn lose(&self, server: &str) {
        let mut servers = self.servers();
        servers.alive.retain(|other| other != server);
        servers.since = None;
    }

    fn unreachable(&self) -> Error {
        Error::new(Reason::Unavailable, format!("no server of {:?} can be reached", self.name))
    }

    fn servers(&self) -> MutexGuard<'_, Servers> {
        self.servers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
