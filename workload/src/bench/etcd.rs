//! etcd under load: the calls of its public API that the workloads need, with hand-written messages.
//!
//! Rows are keys, a row's value is the key's value. Reads are linearizable by default. Servers that
//! register are keys with a lease, whose values are their addresses.

use std::time::Duration;

use bytes::Bytes;
use ebla_model::error::{Error, Reason};
use ebla_runtime::Runtime;
use http::uri::PathAndQuery;
use tonic::client::Grpc;
use tonic::transport::Channel;
use tonic::{Request, Status};
use tonic_prost::ProstCodec;

use super::target::replaced;
use super::{Values, row_key};

const MESSAGE_BYTES_MAX: usize = 64 << 20;
/// Timeout of finding the leader.
const LEADER_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Clone, PartialEq, prost::Message)]
struct PutRequest {
    #[prost(bytes = "bytes", tag = "1")]
    key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    value: Bytes,
    #[prost(int64, tag = "3")]
    lease: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct LeaseGrantRequest {
    #[prost(int64, tag = "1")]
    ttl_seconds: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct LeaseGrantResponse {
    #[prost(int64, tag = "2")]
    id: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct RangeRequest {
    #[prost(bytes = "bytes", tag = "1")]
    key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    range_end: Bytes,
    #[prost(bool, tag = "7")]
    serializable: bool,
}

/// Consistency of a read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Consistency {
    /// Sees every write acknowledged before the read was sent.
    Linearizable,
    /// May miss writes that the asked member has not received yet.
    Serializable,
}

/// A lease of etcd; its keys are deleted when it expires.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lease(i64);

#[derive(Clone, PartialEq, prost::Message)]
struct RangeResponse {
    #[prost(message, repeated, tag = "2")]
    kvs: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct KeyValue {
    #[prost(bytes = "bytes", tag = "1")]
    key: Bytes,
    #[prost(bytes = "bytes", tag = "5")]
    value: Bytes,
}

/// A transaction: the puts are applied if all comparisons hold.
#[derive(Clone, PartialEq, prost::Message)]
struct TxnRequest {
    #[prost(message, repeated, tag = "1")]
    compare: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    success: Vec<RequestOp>,
}

/// A comparison of a key's version, which is 0 for a key without a value.
#[derive(Clone, PartialEq, prost::Message)]
struct Compare {
    #[prost(enumeration = "CompareResult", tag = "1")]
    result: i32,
    #[prost(enumeration = "CompareTarget", tag = "2")]
    target: i32,
    #[prost(bytes = "bytes", tag = "3")]
    key: Bytes,
    #[prost(int64, optional, tag = "4")]
    version: Option<i64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
enum CompareResult {
    Equal = 0,
    Greater = 1,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
enum CompareTarget {
    Version = 0,
}

#[derive(Clone, PartialEq, prost::Message)]
struct TxnResponse {
    #[prost(bool, tag = "2")]
    succeeded: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
struct RequestOp {
    #[prost(message, optional, tag = "2")]
    put: Option<PutRequest>,
}

/// A response whose contents are not used.
#[derive(Clone, PartialEq, prost::Message)]
struct Ignored {}

#[derive(Clone, PartialEq, prost::Message)]
struct StatusResponse {
    #[prost(message, optional, tag = "1")]
    header: Option<ResponseHeader>,
    #[prost(uint64, tag = "4")]
    leader: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ResponseHeader {
    #[prost(uint64, tag = "2")]
    member_id: u64,
}

/// A client of one member.
pub struct Etcd {
    grpc: Grpc<Channel>,
}

impl Etcd {
    /// A client of the member behind the channel.
    pub fn new(channel: Channel) -> Self {
        Self { grpc: Grpc::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX) }
    }

    /// Grants a lease with a time to live in seconds.
    ///
    /// # Errors
    /// The error of the member, as for the methods below.
    pub async fn grant(&mut self, ttl_seconds: i64) -> Result<Lease, Status> {
        let lease: LeaseGrantResponse =
            self.call("/etcdserverpb.Lease/LeaseGrant", LeaseGrantRequest { ttl_seconds }).await?;
        Ok(Lease(lease.id))
    }

    /// Registers `server` under `key` until the lease expires.
    ///
    /// # Errors
    /// Also when the lease has expired.
    pub async fn register(&mut self, key: &str, server: &str, lease: Lease) -> Result<(), Status> {
        let (key, value) = (Bytes::copy_from_slice(key.as_bytes()), Bytes::copy_from_slice(server.as_bytes()));
        let _revision: Ignored = self.call("/etcdserverpb.KV/Put", PutRequest { key, value, lease: lease.0 }).await?;
        Ok(())
    }

    /// The server registered under `key`, if there is one.
    ///
    /// # Errors
    /// The error of the member.
    pub async fn look_up(&mut self, key: &str, consistency: Consistency) -> Result<Option<Bytes>, Status> {
        let request = RangeRequest {
            key: Bytes::copy_from_slice(key.as_bytes()),
            range_end: Bytes::new(),
            serializable: consistency == Consistency::Serializable,
        };
        let found: RangeResponse = self.call("/etcdserverpb.KV/Range", request).await?;
        Ok(found.kvs.into_iter().next().map(|found| found.value))
    }

    pub(super) async fn write_row(&mut self, number: u64, values: &Values) -> Result<(), Status> {
        let _revision: Ignored = self.call("/etcdserverpb.KV/Put", put(number, values)).await?;
        Ok(())
    }

    pub(super) async fn write_rows(&mut self, numbers: &[u64], values: &Values) -> Result<(), Status> {
        let _without_condition: TxnResponse = self.call("/etcdserverpb.KV/Txn", batch(numbers, values)).await?;
        Ok(())
    }

    /// Replaces the value of a row if the row has one.
    pub(super) async fn replace_row(&mut self, number: u64, values: &Values) -> Result<(), Status> {
        let answer: TxnResponse = self.call("/etcdserverpb.KV/Txn", replacement(number, values)).await?;
        replaced(answer.succeeded, number)
    }

    /// Number of rows in `[start, end)`.
    pub(super) async fn read_rows(&mut self, start: u64, end: u64) -> Result<usize, Status> {
        let range_end = if end == start + 1 { Bytes::new() } else { row_key(end).into() };
        let request = RangeRequest { key: row_key(start).into(), range_end, serializable: false };
        let found: RangeResponse = self.call("/etcdserverpb.KV/Range", request).await?;
        Ok(found.kvs.iter().filter(|row| !row.value.is_empty()).count())
    }

    async fn call<Q, A>(&mut self, path: &'static str, request: Q) -> Result<A, Status>
    where
        Q: prost::Message + Send + Sync + 'static,
        A: prost::Message + Default + Send + Sync + 'static,
    {
        self.grpc.ready().await.map_err(|error| Status::from_error(error.into()))?;
        let codec = ProstCodec::<Q, A>::default();
        let answer = self.grpc.unary(Request::new(request), PathAndQuery::from_static(path), codec).await?;
        Ok(answer.into_inner())
    }
}

fn put(number: u64, values: &Values) -> PutRequest {
    PutRequest { key: row_key(number).into(), value: values.value(number), lease: 0 }
}

/// One transaction of a put for each row. etcd refuses one of more than 128 operations (`--max-txn-ops`), or with the same key twice.
fn batch(numbers: &[u64], values: &Values) -> TxnRequest {
    let success = numbers.iter().map(|number| RequestOp { put: Some(put(*number, values)) }).collect();
    TxnRequest { compare: Vec::new(), success }
}

/// A put on the condition that the key has a value.
fn replacement(number: u64, values: &Values) -> TxnRequest {
    let has_value = Compare {
        result: CompareResult::Greater.into(),
        target: CompareTarget::Version.into(),
        key: row_key(number).into(),
        version: Some(0),
    };
    TxnRequest { compare: vec![has_value], success: vec![RequestOp { put: Some(put(number, values)) }] }
}

/// The address of the leader.
pub(super) async fn leader(runtime: &Runtime, addresses: &[String]) -> Result<String, Error> {
    let mut clients: Vec<_> =
        addresses.iter().map(|address| (address, Etcd::new(runtime.net.channel(address)))).collect();
    let polling = async {
        loop {
            for (address, client) in &mut clients {
                let status = client.call::<Ignored, StatusResponse>("/etcdserverpb.Maintenance/Status", Ignored {});
                if let Ok(status) = status.await
                    && status.leader != 0
                    && status.header.is_some_and(|header| header.member_id == status.leader)
                {
                    return (*address).clone();
                }
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let late = |_elapsed| Error::new(Reason::Unavailable, "no member of etcd is the leader");
    tokio::time::timeout(LEADER_TIMEOUT, polling).await.map_err(late)
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;
    use crate::bench::Workload;
    use crate::bench::target::batch_rows;

    /// etcd's default of `--max-txn-ops`.
    const OPERATIONS_MAX: usize = 128;

    fn values() -> Values {
        Values::new(&Runtime::system("test"), 10)
    }

    #[test]
    fn a_batch_is_one_transaction_of_a_hundred_puts_to_different_keys() {
        let rows = 1_000;
        for first in [0, 7, rows - 1] {
            let request = batch(&batch_rows(first, rows), &values());
            let mut keys: Vec<_> = request.success.iter().filter_map(|one| Some(one.put.clone()?.key)).collect();
            assert!(keys.len() <= OPERATIONS_MAX && request.compare.is_empty());
            keys.sort();
            keys.dedup();
            assert_eq!(u64::try_from(keys.len()).unwrap(), Workload::Batch.rows_per_request());
        }
    }

    /// The bytes as etcd's `rpc.proto` defines them: a comparison "version > 0", then a put of the same key.
    #[test]
    fn a_replacement_compares_the_version_of_its_key() {
        let encoded = replacement(3, &values()).encode_to_vec();
        let key = row_key(3);
        let length = u8::try_from(key.len()).unwrap();
        let compare = [&[8, 1, 26, length][..], key.as_bytes(), &[32, 0]].concat();
        let start = [&[10, u8::try_from(compare.len()).unwrap()][..], &compare].concat();
        assert_eq!(encoded.get(..start.len()), Some(&start[..]));
        let put = [&[10, length][..], key.as_bytes(), &[18, 10]].concat();
        // A transaction's operation (tag 2) holds the put (tag 2).
        let rest = &encoded[start.len()..];
        assert_eq!((rest[0], rest[2]), (18, 18));
        assert_eq!(rest.get(4..4 + put.len()), Some(&put[..]));
    }
}
