//! Small calls to tablet servers, as messages of one stream per server (`ebla.tablet.Tablets.Exchange`).
//!
//! A point read or the write of a row is so small that a gRPC call of its own costs more than the work. A large request or reply
//! would delay the calls behind it on the stream, so it is a call of its own.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ebla_model::error::{Error, ErrorKind, Reason};
use ebla_model::time::whole_micros;
use ebla_proto::cluster_guard::with_cluster_id;
use ebla_proto::status::from_status;
use ebla_proto::tablet::call::Request as CallRequest;
use ebla_proto::tablet::call_reply::Outcome;
use ebla_proto::tablet::tablets_client::TabletsClient;
use ebla_proto::{record, tablet};
use ebla_runtime::Runtime;
use ebla_runtime::call_stream::{CallQueue, CallStream, CallStreamError, CallStreamOptions, TimeLeft};
use futures::FutureExt;
use parking_lot::Mutex;
use prost::Message;
use tonic::Request;
use tonic::transport::Channel;

use crate::directory::Directory;
use crate::transport::CallError;
use crate::wire;

/// The largest write, in bytes, that is sent on the stream.
const WRITE_BYTES_MAX: usize = 128 * 1024;
/// The largest number of rows of a read that is sent on the stream.
const READ_ROWS_MAX: usize = 16;
/// The queue is full, in number or bytes, only when the server has stopped reading; then further calls are refused, and their callers
/// retry. A broken stream is opened again at once: the callers back off.
const STREAM: CallStreamOptions<tablet::Call, tablet::CallReply> = CallStreamOptions {
    name: "small-calls",
    call_number: |reply| reply.call,
    call_bytes: tablet::Call::encoded_len,
    shorten_timeout,
    cancellation: Some(|call| tablet::Call { call, timeout_micros: 0, request: Some(CallRequest::Cancel(true)) }),
    queued_max: 16 * 1024,
    queued_bytes_max: 64 << 20,
    reconnect_delay: Duration::ZERO,
};

type Stream = CallStream<tablet::Call, tablet::CallReply>;

/// The streams of small calls by address, each opened at its first use.
pub(crate) struct SmallCalls {
    runtime: Runtime,
    directory: Arc<dyn Directory>,
    /// Guards the map; held for one map operation.
    streams: Mutex<HashMap<String, Arc<Stream>>>,
}

impl fmt::Debug for SmallCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SmallCalls").finish_non_exhaustive()
    }
}

impl SmallCalls {
    pub(crate) fn new(runtime: Runtime, directory: Arc<dyn Directory>) -> Self {
        Self { runtime, directory, streams: Mutex::default() }
    }

    /// Sends a call to the server at `address`, which `client` reaches; the call has this timeout.
    pub(crate) async fn call(
        &self,
        address: &str,
        client: impl FnOnce() -> TabletsClient<Channel>,
        request: CallRequest,
        timeout: Duration,
    ) -> Result<Outcome, CallError> {
        let timeout_micros = whole_micros(timeout);
        let reply = self
            .stream(address, client)
            .send(|call| tablet::Call { call, timeout_micros, request: Some(request) })
            .map_err(stream_error)?;
        match reply.await.map_err(stream_error)?.outcome {
            Some(Outcome::Error(error)) => Err(wire::call_error(error)),
            Some(outcome) => Ok(outcome),
            None => Err(unexpected_reply()),
        }
    }

    fn stream(&self, address: &str, client: impl FnOnce() -> TabletsClient<Channel>) -> Arc<Stream> {
        let mut streams = self.streams.lock();
        if let Some(stream) = streams.get(address) {
            return Arc::clone(stream);
        }
        let (client, directory) = (client(), Arc::clone(&self.directory));
        let open = Box::new(move |calls: CallQueue<tablet::Call>| {
            let mut client = client.clone();
            let request = with_cluster_id(Request::new(calls), directory.cluster());
            async move { client.exchange(request).await.map(tonic::Response::into_inner) }.boxed()
        });
        let stream = CallStream::new(self.runtime.clone(), STREAM, open);
        streams.insert(address.to_owned(), Arc::clone(&stream));
        stream
    }
}

/// The timeout of a call that has waited this long before it is sent.
fn shorten_timeout(call: &mut tablet::Call, waited: Duration) -> TimeLeft {
    let waited = whole_micros(waited);
    call.timeout_micros = call.timeout_micros.saturating_sub(waited);
    if call.timeout_micros == 0 { TimeLeft::None } else { TimeLeft::Some }
}

/// Whether the read is for a few single rows.
pub(crate) fn is_small_read(request: &tablet::ReadRequest) -> bool {
    (1..=READ_ROWS_MAX).contains(&request.rows.len()) && request.rows.iter().all(is_one_row)
}

/// Whether a write, conditional or not, fits into a message of the stream.
pub(crate) fn is_small_write(request: &impl Message) -> bool {
    request.encoded_len() <= WRITE_BYTES_MAX
}

/// Whether the range ends at the successor of its first key.
fn is_one_row(range: &record::KeyRange) -> bool {
    range.end.as_ref().and_then(|end| end.strip_suffix(&[0])).is_some_and(|start| start == range.start)
}

/// The server replied to another request, or a later release replied in a way that this one does not know.
pub(crate) fn unexpected_reply() -> CallError {
    Error::internal("the server sent an unexpected reply").into()
}

fn stream_error(error: CallStreamError) -> CallError {
    match error {
        CallStreamError::Refused(reason) => Error::new(Reason::Unavailable, reason).into(),
        CallStreamError::Closed(Some(status)) => {
            let (error, detail) = from_status(&status);
            CallError::new(error, detail)
        }
        CallStreamError::Closed(None) => {
            let message = "the server ended the stream".to_owned();
            Error { kind: ErrorKind::RetryElsewhere, reason: Reason::OutcomeUnknown, message }.into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: &'static [u8], end: Option<&'static [u8]>) -> record::KeyRange {
        record::KeyRange { start: start.into(), end: end.map(Into::into) }
    }

    fn read(rows: Vec<record::KeyRange>) -> tablet::ReadRequest {
        tablet::ReadRequest { rows, ..Default::default() }
    }

    #[test]
    fn a_call_is_sent_with_the_time_that_is_left() {
        let mut call = tablet::Call { timeout_micros: 3_000_000, ..Default::default() };
        assert_eq!(shorten_timeout(&mut call, Duration::from_secs(1)), TimeLeft::Some);
        assert_eq!(call.timeout_micros, 2_000_000);
        assert_eq!(shorten_timeout(&mut call, Duration::from_secs(2)), TimeLeft::None);
    }

    #[test]
    fn a_read_of_a_few_single_rows_is_small() {
        let (row, open, wide) = (range(b"a", Some(b"a\0")), range(b"a", None), range(b"a", Some(b"b\0")));
        assert!(is_small_read(&read(vec![row.clone()])));
        assert!(is_small_read(&read(vec![row.clone(); READ_ROWS_MAX])));
        assert!(!is_small_read(&read(vec![row.clone(); READ_ROWS_MAX + 1])));
        assert!(!is_small_read(&read(vec![])));
        assert!(!is_small_read(&read(vec![row.clone(), open])));
        assert!(!is_small_read(&read(vec![row, wide])));
    }
}
