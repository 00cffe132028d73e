//! A server in this process, and its callers: the superuser is `server`, so that rights hide nothing.

use std::time::Duration;

use ebla_mounttable_server::server::{Server, ServerConfig};
use ebla_mounttable_server::service::identity::AuthMethod;
use ebla_mounttable_tree::messages;
use ebla_mounttable_tree::messages::{BEARER_HEADER, DEVELOPMENT_HEADER};
use ebla_mounttable_tree::store::cache;
use ebla_mounttable_tree::store::memory::MemoryStore;
use ebla_mounttable_tree::store::system::SystemStore;
use ebla_mounttable_tree::table::TableOptions;
use ebla_mounttable_tree::{BlessingPattern, Permissions, Reason, Table};
use ebla_proto::mounttable as wire;
use ebla_proto::mounttable::mount_table_admin_client::MountTableAdminClient;
use ebla_proto::mounttable::mount_table_client::MountTableClient;
use ebla_runtime::{Clock, Runtime};
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};

use crate::secured;

/// The name of the table.
pub(crate) const TABLE: &str = "names";

pub(crate) struct World {
    /// The manual clock of the server.
    pub(crate) clock: Clock,
    /// The rows, for access that bypasses the server.
    pub(crate) memory: MemoryStore,
    pub(crate) server: Server,
    pub(crate) runtime: Runtime,
    channel: Channel,
}

impl World {
    /// A table with an open root. Empty nodes are collected at once; a user has a quota of ten nodes and fifteen
    /// servers.
    pub(crate) async fn start() -> Self {
        Self::with(AuthMethod::Development).await
    }

    pub(crate) async fn with(identity: AuthMethod) -> Self {
        Self::with_sweeps(identity, Duration::ZERO).await
    }

    /// As [`Self::with`], and the server sweeps at this interval. Then empty nodes stay: a sweep would remove those of a mount in progress.
    pub(crate) async fn with_sweeps(identity: AuthMethod, sweep_period: Duration) -> Self {
        let clock = Clock::manual();
        let runtime = Runtime { clock: clock.clone(), ..secured::runtime() };
        let memory = MemoryStore::default();
        let store = SystemStore::new(memory.clone(), runtime.clone());
        let grace = if sweep_period.is_zero() { Duration::ZERO } else { TableOptions::default().grace };
        let options = TableOptions { grace, nodes_per_user: 10, servers_per_user: 15, ..TableOptions::default() };
        Table::new(store.clone(), options).setup(Permissions::open()).await.unwrap();
        let config = ServerConfig {
            listen: "127.0.0.1:0".to_owned(),
            http_listen: Some("127.0.0.1:0".to_owned()),
            table: TABLE.to_owned(),
            options,
            identity,
            superusers: vec![BlessingPattern::new("server")],
            sweep_period,
            cache: cache::CacheOptions::default(),
        };
        let server = Server::start(config, store, runtime.clone()).await.unwrap();
        let channel = runtime.net.channel(server.address());
        Self { clock, memory, server, runtime, channel }
    }

    pub(crate) fn names(&self) -> MountTableClient<Channel> {
        MountTableClient::new(self.channel.clone())
    }

    pub(crate) fn admin(&self) -> MountTableAdminClient<Channel> {
        MountTableAdminClient::new(self.channel.clone())
    }

    /// Microseconds since the epoch, this many seconds from now.
    pub(crate) fn micros_in(&self, seconds: u64) -> i64 {
        self.clock.wall().plus(Duration::from_secs(seconds)).get()
    }

    pub(crate) async fn mount(&self, caller: &str, name: &str, server: &str, ttl_seconds: u64) -> wire::MountReply {
        ok(self.names().mount(by(caller, mount(name, server, ttl_seconds))).await)
    }

    /// The addresses that a name resolves to, with the rest of the name.
    pub(crate) async fn resolve(&self, caller: &str, name: &str) -> Result<(Vec<String>, String), Status> {
        let request = wire::ResolveRequest { name: name.to_owned(), max_servers: 0 };
        let entry = self.names().resolve(by(caller, request)).await?.into_inner();
        let mut servers: Vec<_> = entry.servers.into_iter().map(|server| server.address).collect();
        servers.sort();
        Ok((servers, entry.name))
    }

    /// Removes a user's limits.
    pub(crate) async fn unlimit(&self, user: &str) {
        let request = wire::SetLimitRequest { user: user.to_owned(), nodes: Some(0), servers: Some(0) };
        ok(self.admin().set_limit(by("server", request)).await);
    }

    pub(crate) async fn write_permissions(&self, caller: &str, name: &str, json: &str) {
        ok(self.names().set_permissions(by(caller, permissions(name, json, ""))).await);
    }
}

/// A request of this caller.
pub(crate) fn by<T>(caller: &str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert(DEVELOPMENT_HEADER, caller.parse().unwrap());
    request
}

/// A request with a token of alice, who is in the group ops.
pub(crate) fn as_alice<T>(message: T) -> Request<T> {
    let token = format!("Bearer {}", include_str!("../../testdata/tokens/alice.jwt").trim());
    let mut request = Request::new(message);
    request.metadata_mut().insert(BEARER_HEADER, token.parse().unwrap());
    request
}

pub(crate) fn ok<T>(answer: Result<Response<T>, Status>) -> T {
    match answer {
        Ok(answer) => answer.into_inner(),
        Err(status) => panic!("refused: {status:?}"),
    }
}

/// The code and the reason of an error.
#[track_caller]
pub(crate) fn refusal<T>(answer: Result<T, Status>) -> (Code, Reason) {
    let Err(status) = answer else { panic!("not refused") };
    (status.code(), messages::error(&status).reason)
}

pub(crate) fn mount(name: &str, server: &str, ttl_seconds: u64) -> wire::MountRequest {
    let (name, server) = (name.to_owned(), server.to_owned());
    wire::MountRequest { name, server, ttl_millis: ttl_seconds * 1_000, ..wire::MountRequest::default() }
}

pub(crate) fn permissions(name: &str, json: &str, etag: &str) -> wire::SetPermissionsRequest {
    let permissions = messages::permissions_to_wire(&Permissions::from_json(json).unwrap());
    wire::SetPermissionsRequest { name: name.to_owned(), permissions: Some(permissions), etag: etag.to_owned() }
}

/// The reasons of failures in a reply.
pub(crate) fn reason(failure: &wire::Failure) -> Reason {
    Reason::from_name(&failure.reason).unwrap()
}
