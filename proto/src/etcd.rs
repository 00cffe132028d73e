//! The part of etcd's v3 protocol that Chubby needs: three services, five calls, written by hand.
//!
//! Names and tags are etcd's, whose documentation is not repeated; fields that are never set or read are left out, which
//! the wire allows. Keys and values are [`Bytes`], slices of what came from the socket. No retries, no balancing and no
//! leases are kept here: one [`Member`] is one connection to one member, and each call is one call
//! (docs/decisions/0007-etcd-protocol-by-hand.md).

use bytes::Bytes;
use futures::Stream;
use http::uri::PathAndQuery;
use prost::Message;
use tonic::client::Grpc;
use tonic::metadata::MetadataValue;
use tonic::transport::Channel;
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;

/// The largest answer taken: a list of all files of a large cluster.
const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// What every answer begins with.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct ResponseHeader {
    /// Which etcd this is.
    #[prost(uint64, tag = "1")]
    pub cluster_id: u64,
    /// Which member answered.
    #[prost(uint64, tag = "2")]
    pub member_id: u64,
    /// The revision of the store when the request was carried out.
    #[prost(int64, tag = "3")]
    pub revision: i64,
}

/// A key with its value.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct KeyValue {
    /// The key.
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
    /// The revision that made it.
    #[prost(int64, tag = "2")]
    pub create_revision: i64,
    /// The revision that wrote it last; of a deleted key, the one that deleted it.
    #[prost(int64, tag = "3")]
    pub mod_revision: i64,
    /// Its value.
    #[prost(bytes = "bytes", tag = "5")]
    pub value: Bytes,
    /// The lease it lives under; 0: none.
    #[prost(int64, tag = "6")]
    pub lease: i64,
}

/// Reads the keys `[key, range_end)`, linearizably.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct RangeRequest {
    /// The first key.
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
    /// The end; empty: the one key.
    #[prost(bytes = "bytes", tag = "2")]
    pub range_end: Bytes,
}

/// What was read, by key.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct RangeResponse {
    /// As of when.
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    /// The keys.
    #[prost(message, repeated, tag = "2")]
    pub kvs: Vec<KeyValue>,
}

/// Writes a key.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct PutRequest {
    /// The key.
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
    /// Its value.
    #[prost(bytes = "bytes", tag = "2")]
    pub value: Bytes,
    /// The lease it lives under; 0: none.
    #[prost(int64, tag = "3")]
    pub lease: i64,
}

/// Deletes a key.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct DeleteRangeRequest {
    /// The key.
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
}

/// One operation of a transaction.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct RequestOp {
    /// Which.
    #[prost(oneof = "Operation", tags = "2, 3")]
    pub request: Option<Operation>,
}

/// What an operation of a transaction does.
#[derive(Clone, PartialEq, Eq, prost::Oneof)]
pub enum Operation {
    /// Writes.
    #[prost(message, tag = "2")]
    Put(PutRequest),
    /// Deletes.
    #[prost(message, tag = "3")]
    DeleteRange(DeleteRangeRequest),
}

/// How the two sides of a comparison must stand to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum CompareResult {
    /// The same.
    Equal = 0,
    /// The stored one is greater.
    Greater = 1,
}

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum CompareTarget {
    /// How often it was written since it was made. Not used; but the default must be the wire's, which is 0.
    Version = 0,
    /// The revision that made the key; 0 when there is none.
    Create = 1,
    /// The revision that wrote it last; 0 when there is none.
    Mod = 2,
}

/// A condition of a transaction.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Compare {
    /// How.
    #[prost(enumeration = "CompareResult", tag = "1")]
    pub result: i32,
    /// What.
    #[prost(enumeration = "CompareTarget", tag = "2")]
    pub target: i32,
    /// Of which key.
    #[prost(bytes = "bytes", tag = "3")]
    pub key: Bytes,
    /// With what.
    #[prost(oneof = "Operand", tags = "5, 6")]
    pub target_union: Option<Operand>,
}

/// What a stored revision is compared with.
#[derive(Clone, Copy, PartialEq, Eq, prost::Oneof)]
pub enum Operand {
    /// For [`CompareTarget::Create`].
    #[prost(int64, tag = "5")]
    CreateRevision(i64),
    /// For [`CompareTarget::Mod`].
    #[prost(int64, tag = "6")]
    ModRevision(i64),
}

/// Carries out `success` when all of `compare` hold, else nothing.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct TxnRequest {
    /// The conditions.
    #[prost(message, repeated, tag = "1")]
    pub compare: Vec<Compare>,
    /// The changes.
    #[prost(message, repeated, tag = "2")]
    pub success: Vec<RequestOp>,
}

/// What became of a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct TxnResponse {
    /// The header's revision is the transaction's own, if it changed anything.
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    /// Whether all conditions held.
    #[prost(bool, tag = "2")]
    pub succeeded: bool,
}

/// Makes a lease.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct LeaseGrantRequest {
    /// Its time, in seconds.
    #[prost(int64, tag = "1")]
    pub ttl: i64,
    /// Its number, chosen by the caller.
    #[prost(int64, tag = "2")]
    pub id: i64,
}

/// A lease that was made.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct LeaseGrantResponse {
    /// Its time, in seconds; may be more than was asked for.
    #[prost(int64, tag = "3")]
    pub ttl: i64,
}

/// Ends a lease and deletes its keys.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct LeaseRevokeRequest {
    /// Its number.
    #[prost(int64, tag = "1")]
    pub id: i64,
}

/// It has ended.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct LeaseRevokeResponse {}

/// Renews a lease.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct LeaseKeepAliveRequest {
    /// Its number.
    #[prost(int64, tag = "1")]
    pub id: i64,
}

/// What became of a renewal.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct LeaseKeepAliveResponse {
    /// Its time from now on, in seconds; 0: there is no such lease.
    #[prost(int64, tag = "3")]
    pub ttl: i64,
}

/// A message to a stream of watches.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct WatchRequest {
    /// Begins a watch.
    #[prost(message, optional, tag = "1")]
    pub create_request: Option<WatchCreateRequest>,
}

/// Begins a watch on the keys `[key, range_end)`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct WatchCreateRequest {
    /// The first key.
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
    /// The end.
    #[prost(bytes = "bytes", tag = "2")]
    pub range_end: Bytes,
    /// The first revision that is told.
    #[prost(int64, tag = "3")]
    pub start_revision: i64,
}

/// What a stream of watches tells.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct WatchResponse {
    /// As of when.
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    /// The answer to the request that began the watch.
    #[prost(bool, tag = "3")]
    pub created: bool,
    /// The watch has ended.
    #[prost(bool, tag = "4")]
    pub canceled: bool,
    /// The watch began at a revision that is forgotten; nothing below this one is known. 0 otherwise.
    #[prost(int64, tag = "5")]
    pub compact_revision: i64,
    /// Why it has ended.
    #[prost(string, tag = "6")]
    pub cancel_reason: String,
    /// What happened, by revision.
    #[prost(message, repeated, tag = "11")]
    pub events: Vec<WatchEvent>,
}

/// What happened to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum EventKind {
    /// It was written.
    Put = 0,
    /// It was deleted, or its lease ended.
    Delete = 1,
}

/// One change of one key.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct WatchEvent {
    /// What happened.
    #[prost(enumeration = "EventKind", tag = "1")]
    pub kind: i32,
    /// The key, after it.
    #[prost(message, optional, tag = "2")]
    pub kv: Option<KeyValue>,
}

/// One member of an etcd. Clones share its connection.
///
/// Calls have no deadline of their own and may be dropped at any time; what was sent may have been carried out then.
/// Every request asks for a member that knows its leader: one that is cut off says so, instead of falling silent.
#[derive(Clone, Debug)]
pub struct Member(Channel);

impl Member {
    /// The member behind this channel.
    #[must_use]
    pub const fn new(channel: Channel) -> Self {
        Self(channel)
    }

    /// Reads.
    ///
    /// # Errors
    /// What the member or the connection says; so do all calls below.
    pub async fn range(&self, request: RangeRequest) -> Result<RangeResponse, Status> {
        self.unary("/etcdserverpb.KV/Range", request).await
    }

    /// Carries out a transaction.
    ///
    /// # Errors
    /// As [`Member::range`].
    pub async fn txn(&self, request: TxnRequest) -> Result<TxnResponse, Status> {
        self.unary("/etcdserverpb.KV/Txn", request).await
    }

    /// Makes a lease.
    ///
    /// # Errors
    /// As [`Member::range`].
    pub async fn lease_grant(&self, request: LeaseGrantRequest) -> Result<LeaseGrantResponse, Status> {
        self.unary("/etcdserverpb.Lease/LeaseGrant", request).await
    }

    /// Ends a lease.
    ///
    /// # Errors
    /// As [`Member::range`].
    pub async fn lease_revoke(&self, request: LeaseRevokeRequest) -> Result<LeaseRevokeResponse, Status> {
        self.unary("/etcdserverpb.Lease/LeaseRevoke", request).await
    }

    /// Renews a lease once. etcd has this as a stream; a stream that stays is pinned to one member, which may freeze.
    ///
    /// # Errors
    /// As [`Member::range`].
    pub async fn lease_keep_alive(&self, request: LeaseKeepAliveRequest) -> Result<LeaseKeepAliveResponse, Status> {
        let once = futures::stream::once(std::future::ready(request));
        let mut answers = self.streaming("/etcdserverpb.Lease/LeaseKeepAlive", once).await?;
        // A stream that ends without an answer tells as little as a connection that breaks.
        answers.message().await?.ok_or_else(|| Status::from_error(Box::new(std::io::Error::other("no answer"))))
    }

    /// Begins a watch. It ends when the answers are dropped.
    ///
    /// # Errors
    /// As [`Member::range`].
    pub async fn watch(&self, request: WatchCreateRequest) -> Result<Streaming<WatchResponse>, Status> {
        let request = WatchRequest { create_request: Some(request) };
        // The requests must not end: etcd takes that for the end of the watch.
        let requests = futures::StreamExt::chain(
            futures::stream::once(std::future::ready(request)),
            futures::stream::pending::<WatchRequest>(),
        );
        self.streaming("/etcdserverpb.Watch/Watch", requests).await
    }

    async fn ready(&self) -> Result<Grpc<Channel>, Status> {
        let mut grpc = Grpc::new(self.0.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX);
        grpc.ready().await.map_err(|error| Status::from_error(Box::new(error)))?;
        Ok(grpc)
    }

    async fn unary<Q, A>(&self, path: &'static str, request: Q) -> Result<A, Status>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let mut grpc = self.ready().await?;
        let codec = ProstCodec::<Q, A>::default();
        grpc.unary(asking(request), PathAndQuery::from_static(path), codec).await.map(Response::into_inner)
    }

    async fn streaming<Q, A>(
        &self,
        path: &'static str,
        requests: impl Stream<Item = Q> + Send + 'static,
    ) -> Result<Streaming<A>, Status>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let mut grpc = self.ready().await?;
        let codec = ProstCodec::<Q, A>::default();
        grpc.streaming(asking(requests), PathAndQuery::from_static(path), codec).await.map(Response::into_inner)
    }
}

/// A request that only a member with a leader may answer.
fn asking<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
    request
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What etcd's own encoder writes for a conditional put under a lease.
    #[test]
    fn a_transaction_is_encoded_as_etcd_reads_it() {
        let request = TxnRequest {
            compare: vec![Compare {
                result: CompareResult::Greater.into(),
                target: CompareTarget::Create.into(),
                key: "k".into(),
                target_union: Some(Operand::CreateRevision(7)),
            }],
            success: vec![RequestOp {
                request: Some(Operation::Put(PutRequest { key: "k".into(), value: "v".into(), lease: 3 })),
            }],
        };
        let compare = [0x0a, 9, 0x08, 1, 0x10, 1, 0x1a, 1, b'k', 0x28, 7];
        let put = [0x12, 10, 0x12, 8, 0x0a, 1, b'k', 0x12, 1, b'v', 0x18, 3];
        assert_eq!(request.encode_to_vec(), [compare.as_slice(), &put].concat());
    }

    #[test]
    fn an_event_is_read_and_what_is_not_needed_is_passed_over() {
        // kind DELETE, key "k" at revision 9, with a previous value (field 3) that nobody asked about.
        let event = [0x08, 1, 0x12, 5, 0x0a, 1, b'k', 0x18, 9, 0x1a, 3, 0x0a, 1, b'k'];
        let message = [&[0x5a, 14][..], &event].concat();
        let response = WatchResponse::decode(message.as_slice()).unwrap();
        let kv = KeyValue { key: "k".into(), mod_revision: 9, ..Default::default() };
        assert_eq!(response.events, [WatchEvent { kind: EventKind::Delete.into(), kv: Some(kv) }]);
    }
}
