//! One member of an etcd: `etcd-client` over our own channel, one attempt for each call.
//!
//! The crate can balance, renew leases and reconnect by itself. That is not used: a client that is pinned to one
//! member freezes with it. So [`super::members`] tries one member after another, and [`super::session`] renews the
//! leases.

use std::fmt;

use ebla_model::error::{Error, Reason};
use ebla_proto::status::to_status;
use etcd_client::{
    Client, ConnectOptions, GetOptions, GetResponse, KvClient, LeaseClient, LeaseGrantOptions, Txn, TxnResponse,
    WatchClient, WatchOptions, WatchStream,
};
use tonic::Status;
use tonic::transport::Channel;

/// The largest response accepted: a list of all files of a large cluster.
const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// A member. Clones share its connection.
///
/// Calls have no deadline of their own and may be dropped at any time; a request that was sent may have been
/// executed. Every request requires a member that knows its leader: a partitioned member then returns an error
/// instead of not responding. Errors come from the member or from the connection.
#[derive(Clone)]
pub(super) struct Member {
    kv: KvClient,
    lease: LeaseClient,
    watch: WatchClient,
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Member").finish_non_exhaustive()
    }
}

impl Member {
    /// The member at the other end of this channel. Nothing is sent: there is no login.
    pub(super) async fn new(channel: Channel) -> Result<Self, Status> {
        let options = ConnectOptions::new().with_require_leader(true);
        let channel = etcd_client::Channel::Tonic(channel);
        let client = Client::from_channel(channel, Some(options)).await.map_err(status)?;
        Ok(Self {
            kv: client.kv_client().max_decoding_message_size(MESSAGE_BYTES_MAX),
            lease: client.lease_client(),
            watch: client.watch_client().max_decoding_message_size(MESSAGE_BYTES_MAX),
        })
    }

    /// A linearizable read.
    pub(super) async fn get(mut self, key: String, options: GetOptions) -> Result<GetResponse, Status> {
        self.kv.get(key, Some(options)).await.map_err(status)
    }

    /// Commits a transaction.
    pub(super) async fn txn(mut self, txn: Txn) -> Result<TxnResponse, Status> {
        self.kv.txn(txn).await.map_err(status)
    }

    /// Grants a lease with this id. Returns its TTL in seconds, which may be longer than requested.
    pub(super) async fn grant(mut self, id: i64, ttl: i64) -> Result<i64, Status> {
        let options = LeaseGrantOptions::new().with_id(id);
        self.lease.grant(ttl, Some(options)).await.map(|granted| granted.ttl()).map_err(status)
    }

    /// Revokes a lease and deletes its keys.
    pub(super) async fn revoke(mut self, id: i64) -> Result<(), Status> {
        self.lease.revoke(id).await.map(drop).map_err(status)
    }

    /// Renews a lease once, by its granted TTL; `NotFound` when there is no such lease. etcd has a stream for this,
    /// which is closed here after its first response.
    pub(super) async fn renew(mut self, id: i64) -> Result<(), Status> {
        self.lease.keep_alive(id).await.map(drop).map_err(status)
    }

    /// Starts a watch on all keys with this prefix. It stops when the stream is dropped.
    pub(super) async fn watch(mut self, prefix: String, start_revision: i64) -> Result<WatchStream, Status> {
        let options = WatchOptions::new().with_prefix().with_start_revision(start_revision);
        self.watch.watch(prefix, Some(options)).await.map_err(status)
    }
}

/// Converts the crate's errors to statuses. A stream that ended without a response is treated as a broken connection.
pub(super) fn status(error: etcd_client::Error) -> Status {
    match error {
        etcd_client::Error::GRpcStatus(status) => status,
        etcd_client::Error::TransportError(error) => Status::from_error(Box::new(error)),
        etcd_client::Error::LeaseKeepAliveError(message) => to_status(&Error::new(Reason::NotFound, message)),
        other => Status::from_error(Box::new(std::io::Error::other(other.to_string()))),
    }
}
