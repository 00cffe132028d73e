//! Responses of the public data API, built from the cluster's replies.

use std::time::Duration;

use ebla_client::ReadParts;
use ebla_model::{Error, KeyRange, Reason, RowKey};
use ebla_proto::{
    data::{self, Encoded},
    status::{to_rpc_status, to_status},
    tablet,
};
use ebla_runtime::Clock;
use futures::{StreamExt, stream};
use prost::Message;
use tonic::codegen::BoxStream;

use super::RESPONSE_BYTES;
use super::access::ReadGuard;
use crate::response_budget::ReadAccount;

/// The statistics of a read so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ReadTotals {
    rows_seen: u64,
    rows_returned: u64,
    cells_seen: u64,
    cells_returned: u64,
}

impl ReadTotals {
    fn add(&mut self, part: &tablet::ReadReply) {
        self.rows_seen = self.rows_seen.saturating_add(part.rows_seen);
        self.rows_returned = self.rows_returned.saturating_add(part.rows);
        self.cells_seen = self.cells_seen.saturating_add(part.cells_seen);
        self.cells_returned = self.cells_returned.saturating_add(part.cells_returned);
    }

    /// The last message of a read with statistics. It always has the latency: clients rely on it.
    fn message(self, elapsed: Duration, seen: SeenCounts) -> data::ReadRowsResponse {
        let (rows_seen, cells_seen) = match seen {
            SeenCounts::Reported => (self.rows_seen, self.cells_seen),
            SeenCounts::Hidden => (self.rows_returned, self.cells_returned),
        };
        let count = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        let full = data::FullReadStatsView {
            read_iteration_stats: Some(data::ReadIterationStats {
                rows_seen_count: count(rows_seen),
                rows_returned_count: count(self.rows_returned),
                cells_seen_count: count(cells_seen),
                cells_returned_count: count(self.cells_returned),
            }),
            request_latency_stats: Some(data::RequestLatencyStats {
                frontend_server_latency: Some(elapsed.try_into().unwrap_or_default()),
            }),
        };
        let stats_view = Some(data::request_stats::StatsView::FullReadStatsView(full));
        data::ReadRowsResponse { request_stats: Some(data::RequestStats { stats_view }), ..Default::default() }
    }
}

/// Measures a read whose client requested statistics.
pub(super) struct StatsTimer {
    clock: Clock,
    started: Duration,
}

impl StatsTimer {
    /// Starts measuring.
    pub(super) fn start(clock: &Clock) -> Self {
        Self { clock: clock.clone(), started: clock.monotonic() }
    }

    fn elapsed(&self) -> Duration {
        self.clock.monotonic().saturating_sub(self.started)
    }
}

/// Whether a read that returns no row for a while reports the last scanned row to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScanProgress {
    /// It announced the feature: after a broken stream it resumes from there.
    Reported,
    /// It would treat the message as an error, as Google's Python client does.
    Hidden,
}

impl ScanProgress {
    /// The choice for a client that announced these features.
    pub(super) const fn for_client(features: &data::FeatureFlags) -> Self {
        if features.last_scanned_row_responses { Self::Reported } else { Self::Hidden }
    }
}

/// Whether statistics count what was read and not returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SeenCounts {
    /// They do.
    Reported,
    /// They count what is returned only: the rest may be in families that the caller cannot read.
    Hidden,
}

/// How the response to a read is built.
pub(super) struct RowsOptions {
    /// What the parts are charged to.
    pub(super) account: Option<ReadAccount>,
    /// For statistics, if the client requested some.
    pub(super) timer: Option<StatsTimer>,
    pub(super) progress: ScanProgress,
    pub(super) seen: SeenCounts,
    /// Checks that the caller may still read; `None`: access control is off.
    pub(super) guard: Option<ReadGuard>,
}

/// The state of a response stream.
struct ResponseState {
    parts: ReadParts,
    totals: ReadTotals,
    options: RowsOptions,
}

/// The response stream: messages with rows as the tablets encoded them, then the statistics.
pub(super) fn rows(parts: ReadParts, options: RowsOptions) -> BoxStream<Encoded<data::ReadRowsResponse>> {
    let reading = ResponseState { parts, totals: ReadTotals::default(), options };
    Box::pin(stream::try_unfold(reading, |mut reading| async move {
        let next = reading.next().await.map_err(|error| to_status(&error))?;
        Ok(next.map(|message| (message, reading)))
    }))
}

impl ResponseState {
    async fn next(&mut self) -> Result<Option<Encoded<data::ReadRowsResponse>>, Error> {
        while let Some(part) = self.parts.next().await.transpose()? {
            // After the wait: what was read before a right was lost is not sent after it.
            if let Some(guard) = &mut self.options.guard {
                guard.check().await?;
            }
            self.totals.add(&part);
            if let Some(account) = &self.options.account {
                account.hold(part.held_bytes);
            }
            if part.row_reset {
                return Err(row_cut_off());
            }
            // Messages without rows report progress: inside a tablet the client gets it too, in a message of its own, and always
            // with a key after its last row.
            if part.rows > 0 || part.row_open {
                return Ok(Some(Encoded::from_bytes(part.response)));
            }
            if self.options.progress == ScanProgress::Reported && !part.finished && !part.last_row.is_empty() {
                let last_scanned_row_key = part.last_row;
                return Ok(Some(Encoded::new(&data::ReadRowsResponse { last_scanned_row_key, ..Default::default() })));
            }
        }
        let timer = self.options.timer.take();
        Ok(timer.map(|timer| Encoded::new(&self.totals.message(timer.elapsed(), self.options.seen))))
    }
}

/// A part of a row cannot be taken back from a client: Google's Python client rejects a message that starts with
/// `reset_row`. All clients resume by themselves at this row.
fn row_cut_off() -> Error {
    Error::new(Reason::Unavailable, "the server stopped while it sent a large row; read again, starting at this row")
}

/// The outcomes of a bulk write, in messages of a size that every client accepts.
pub(super) fn outcomes(results: &[Result<(), Error>]) -> BoxStream<data::MutateRowsResponse> {
    let mut messages = vec![data::MutateRowsResponse::default()];
    let mut size_bytes = 0;
    for (index, result) in (0..).zip(results) {
        let status = result.as_ref().err().map_or_else(Default::default, to_rpc_status);
        let entry = data::mutate_rows_response::Entry { index, status: Some(status) };
        size_bytes += entry.encoded_len();
        if size_bytes > RESPONSE_BYTES {
            size_bytes = entry.encoded_len();
            messages.push(data::MutateRowsResponse::default());
        }
        if let Some(last) = messages.last_mut() {
            last.entries.push(entry);
        }
    }
    Box::pin(stream::iter(messages.into_iter().map(Ok)))
}

/// The sample keys inside `range` of a table whose tablets end at `samples`; the last one is the range's own end.
///
/// `samples`: the tablets' ends in ascending order, the last one empty for the table's end, and the bytes up to each.
pub(super) fn samples(samples: &[(RowKey, u64)], range: &KeyRange) -> Vec<data::SampleRowKeysResponse> {
    let sample = |key: &RowKey, offset: u64| data::SampleRowKeysResponse {
        row_key: key.bytes().clone(),
        offset_bytes: i64::try_from(offset).unwrap_or(i64::MAX),
    };
    let mut responses = Vec::new();
    for (key, offset) in samples {
        let ends_table = key.is_empty();
        if ends_table || range.end().is_some_and(|end| end <= key) {
            responses.push(sample(range.end().unwrap_or(&RowKey::EMPTY), *offset));
            break;
        }
        if key > range.start() {
            responses.push(sample(key, *offset));
        }
    }
    responses
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use futures::TryStreamExt;

    use super::*;

    fn shown(timer: Option<StatsTimer>, progress: ScanProgress) -> RowsOptions {
        RowsOptions { account: None, timer, progress, seen: SeenCounts::Reported, guard: None }
    }

    fn part(rows: u64, response: &'static str) -> Result<tablet::ReadReply, Error> {
        let cells = rows * 2;
        let response = Bytes::from(response);
        Ok(tablet::ReadReply {
            response,
            rows,
            rows_seen: rows + 1,
            cells_seen: cells + 1,
            cells_returned: cells,
            ..Default::default()
        })
    }

    fn parts(parts: Vec<Result<tablet::ReadReply, Error>>) -> ReadParts {
        stream::iter(parts).boxed()
    }

    #[tokio::test]
    async fn only_messages_with_rows_reach_the_client() {
        let stream =
            rows(parts(vec![part(1, "a"), part(0, "never"), part(2, "b")]), shown(None, ScanProgress::Reported));
        let messages: Vec<_> = stream.map_ok(|message| message.bytes().clone()).try_collect().await.unwrap();
        assert_eq!(messages, [Bytes::from("a"), Bytes::from("b")]);
    }

    #[tokio::test]
    async fn statistics_come_last_and_always() {
        let timer = StatsTimer::start(&Clock::manual());
        let stream =
            rows(parts(vec![part(1, "a"), part(0, ""), part(2, "b")]), shown(Some(timer), ScanProgress::Hidden));
        let messages: Vec<_> = stream.try_collect().await.unwrap();
        assert_eq!(messages.len(), 3);
        let last = data::ReadRowsResponse::decode(messages.last().unwrap().bytes().clone()).unwrap();
        let Some(data::request_stats::StatsView::FullReadStatsView(full)) = last.request_stats.unwrap().stats_view
        else {
            panic!("no statistics");
        };
        let counted = full.read_iteration_stats.unwrap();
        assert_eq!((counted.rows_seen_count, counted.rows_returned_count), (6, 3));
        assert_eq!((counted.cells_seen_count, counted.cells_returned_count), (9, 6));
        assert!(full.request_latency_stats.unwrap().frontend_server_latency.is_some());
    }

    #[tokio::test]
    async fn progress_is_sent_to_clients_that_announced_the_feature() {
        let so_far = |finished| {
            let last_row = Bytes::from("k");
            Ok(tablet::ReadReply { last_row, finished, ..Default::default() })
        };
        let scanned = async |progress, finished| -> Vec<Bytes> {
            let stream = rows(parts(vec![part(1, ""), so_far(finished), part(1, "")]), shown(None, progress));
            let messages: Vec<_> = stream.try_collect().await.unwrap();
            let read = |message: &Encoded<_>| data::ReadRowsResponse::decode(message.bytes().clone()).unwrap();
            messages.iter().map(read).map(|message| message.last_scanned_row_key).collect()
        };
        assert_eq!(scanned(ScanProgress::Reported, false).await, ["", "k", ""]);
        assert_eq!(scanned(ScanProgress::Hidden, false).await, ["", ""]);
        assert_eq!(scanned(ScanProgress::Reported, true).await, ["", ""], "the next tablet reports at once");
    }

    #[tokio::test]
    async fn parts_of_a_row_are_forwarded_and_a_reset_row_ends_the_stream() {
        let open = || Ok(tablet::ReadReply { response: "part".into(), row_open: true, ..Default::default() });
        let reset = || Ok(tablet::ReadReply { response: "reset".into(), row_reset: true, ..Default::default() });
        let stream = rows(parts(vec![open(), open(), part(1, "end")]), shown(None, ScanProgress::Hidden));
        let messages: Vec<_> = stream.map_ok(|message| message.bytes().clone()).try_collect().await.unwrap();
        assert_eq!(messages, ["part", "part", "end"]);
        let lost: Vec<_> =
            rows(parts(vec![open(), reset(), part(1, "x")]), shown(None, ScanProgress::Hidden)).collect().await;
        let codes: Vec<_> = lost.iter().map(|answer| answer.as_ref().err().map(tonic::Status::code)).collect();
        assert_eq!(codes, [None, Some(tonic::Code::Unavailable)]);
    }

    #[tokio::test]
    async fn an_error_ends_the_stream_without_statistics() {
        let timer = StatsTimer::start(&Clock::manual());
        let failing = parts(vec![part(1, "a"), Err(Error::new(Reason::Deadline, "too slow"))]);
        let responses: Vec<_> = rows(failing, shown(Some(timer), ScanProgress::Reported)).collect().await;
        let codes: Vec<_> = responses.iter().map(|answer| answer.as_ref().err().map(tonic::Status::code)).collect();
        assert_eq!(codes, [None, Some(tonic::Code::DeadlineExceeded)]);
    }

    #[tokio::test]
    async fn each_outcome_is_sent_once_in_messages_of_limited_size() {
        let results: Vec<_> = (0..20_000)
            .map(|index| if index % 2 == 0 { Ok(()) } else { Err(Error::invalid("x".repeat(200))) })
            .collect();
        let messages: Vec<_> = outcomes(&results).try_collect().await.unwrap();
        assert!(messages.len() > 1);
        assert!(messages.iter().all(|message| message.encoded_len() < 2 * RESPONSE_BYTES));
        let entries: Vec<_> = messages.iter().flat_map(|message| &message.entries).collect();
        assert!(entries.iter().map(|entry| entry.index).eq(0..20_000));
        assert!(entries.iter().all(|entry| i64::from(entry.status.as_ref().unwrap().code) == entry.index % 2 * 3));
    }

    #[test]
    fn samples_are_cut_to_the_range() {
        let key = |key: &'static str| RowKey::new(key);
        let all = [(key("d"), 10), (key("m"), 20), (key(""), 35)];
        let keys = |range: KeyRange| -> Vec<_> {
            samples(&all, &range)
                .into_iter()
                .map(|sample| (String::from_utf8(sample.row_key.to_vec()).unwrap(), sample.offset_bytes))
                .collect()
        };
        let range = |start, end: Option<&'static str>| KeyRange::new(key(start), end.map(key)).unwrap();
        assert_eq!(keys(KeyRange::all()), [("d".into(), 10), ("m".into(), 20), (String::new(), 35)]);
        assert_eq!(keys(range("d", None)), [("m".into(), 20), (String::new(), 35)]);
        assert_eq!(keys(range("a", Some("f"))), [("d".into(), 10), ("f".into(), 20)]);
        assert_eq!(keys(range("a", Some("d"))), [("d".into(), 10)]);
        assert_eq!(keys(range("n", Some("p"))), [("p".into(), 35)]);
        assert_eq!(samples(&[(RowKey::EMPTY, 0)], &KeyRange::all()).len(), 1, "an empty table has one sample");
    }
}
