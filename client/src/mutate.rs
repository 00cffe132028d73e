//! Bulk writes: rows are grouped by tablet and sent to all tablets in parallel; each group is retried by itself.
//!
//! Each row keeps its (session, sequence) over all attempts. Several writes of one row in one call go in rounds, the
//! second after the result of the first, so that a retry never reorders them. A request has at most about 4 MiB of
//! mutations and ends at a row boundary, so that one batch does not block a tablet's log.

use std::collections::HashMap;
use std::sync::OnceLock;

use bytes::Bytes;
use ebla_model::error::{Error, Reason};
use ebla_model::id::TableId;
use ebla_model::idempotency::IdempotencyToken;
use ebla_model::key::RowKey;
use ebla_proto::tablet;
use ebla_runtime::Failpoint;
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;

use crate::context::ClusterContext;
use crate::deadline::Deadline;
use crate::locate::{CachedTablet, Position};
use crate::retry_state::{RetryState, ends_attempt_only, may_be_applied};
use crate::session::Ticket;
use crate::transport::with_timeout;
use crate::wire;

/// The maximum size of the mutations in one request, unless a single row has more.
const REQUEST_BYTES_MAX: usize = 4 << 20;
/// The maximum number of rows in one request.
const REQUEST_ROWS_MAX: usize = 2_000;
/// The maximum number of concurrent requests of one call.
const REQUESTS_MAX: usize = 64;

/// Mutations of one row, applied atomically.
#[derive(Clone, Debug)]
pub struct RowWrite {
    /// The row.
    pub row: RowKey,
    /// Encoded `google.bigtable.v2.Mutation`s, in order.
    pub mutations: Vec<Bytes>,
    /// The caller's idempotency token: it identifies the write also when it comes through another handle.
    pub token: Option<IdempotencyToken>,
}

/// A row without a result.
struct PendingRow {
    index: usize,
    write: RowWrite,
    /// Empty until it is first sent.
    ticket: OnceLock<Ticket>,
}

/// Rows that are sent together.
struct Batch {
    rows: Vec<PendingRow>,
    retry: RetryState,
}

/// The outcome of an attempt with a batch.
struct BatchOutcome {
    results: Vec<(usize, Result<(), Error>)>,
    retry: Option<Batch>,
}

/// The next step for a batch.
enum BatchStep {
    /// All rows are in one cached tablet.
    Send(Batch),
    /// The tablet of the first row is not cached.
    Locate(Batch),
}

/// See [`crate::Cluster::mutate_rows`].
pub(crate) async fn mutate_rows(
    context: &ClusterContext,
    table: TableId,
    rows: Vec<RowWrite>,
    deadline: Deadline,
) -> Vec<Result<(), Error>> {
    let unknown = || Err(Error::new(Reason::OutcomeUnknown, "the write has no result"));
    let mut results: Vec<Result<(), Error>> = rows.iter().map(|_row| unknown()).collect();
    for round in rounds(rows) {
        context.retry_budget.lock().deposit();
        let rows = round.into_iter().map(|(index, write)| PendingRow { index, write, ticket: OnceLock::new() });
        let batch = Batch { rows: rows.collect(), retry: RetryState::of_write(deadline) };
        for (index, result) in run(context, table, batch).await {
            if let Some(slot) = results.get_mut(index) {
                *slot = result;
            }
        }
    }
    results
}

/// The rows with their indexes, in rounds; a round has each row at most once.
fn rounds(rows: Vec<RowWrite>) -> Vec<Vec<(usize, RowWrite)>> {
    let mut seen: HashMap<RowKey, usize> = HashMap::with_capacity(rows.len());
    let mut rounds: Vec<Vec<(usize, RowWrite)>> = Vec::new();
    for (index, write) in rows.into_iter().enumerate() {
        let round = seen.entry(write.row.clone()).and_modify(|round| *round += 1).or_insert(0);
        match rounds.get_mut(*round) {
            Some(rows) => rows.push((index, write)),
            None => rounds.push(vec![(index, write)]),
        }
    }
    rounds
}

/// Sends a batch until each of its rows has a result.
async fn run(context: &ClusterContext, table: TableId, batch: Batch) -> Vec<(usize, Result<(), Error>)> {
    let mut waiting = next_steps(context, table, batch);
    let mut in_progress: FuturesUnordered<BoxFuture<'_, BatchOutcome>> = FuturesUnordered::new();
    let mut results = Vec::new();
    loop {
        while in_progress.len() < REQUESTS_MAX
            && let Some(step) = waiting.pop()
        {
            in_progress.push(match step {
                BatchStep::Send(batch) => Box::pin(send(context, table, batch)),
                BatchStep::Locate(batch) => Box::pin(locate(context, table, batch)),
            });
        }
        let Some(outcome) = in_progress.next().await else { return results };
        results.extend(outcome.results);
        if let Some(batch) = outcome.retry {
            waiting.extend(next_steps(context, table, batch));
        }
    }
}

/// Groups a batch by cached tablet; the other rows stay together and are looked up first.
fn next_steps(context: &ClusterContext, table: TableId, batch: Batch) -> Vec<BatchStep> {
    let Batch { rows, retry } = batch;
    let mut groups: Vec<(CachedTablet, Vec<PendingRow>)> = Vec::new();
    let mut unknown = Vec::new();
    for row in rows {
        let of_group = |group: &&mut (CachedTablet, Vec<PendingRow>)| group.0.range.contains(row.write.row.as_bytes());
        if let Some((_tablet, rows)) = groups.iter_mut().rev().find(of_group) {
            rows.push(row);
            continue;
        }
        match context.lookups.find(&Position::at(table, row.write.row.clone())) {
            Some(tablet) => groups.push((tablet, vec![row])),
            None => unknown.push(row),
        }
    }
    let mut steps: Vec<BatchStep> = Vec::new();
    for (_tablet, rows) in groups {
        steps.extend(
            split_into_requests(rows).into_iter().map(|rows| BatchStep::Send(Batch { rows, retry: retry.clone() })),
        );
    }
    if !unknown.is_empty() {
        steps.push(BatchStep::Locate(Batch { rows: unknown, retry }));
    }
    steps
}

/// Splits rows into pieces that fit into a request each, in order.
fn split_into_requests(rows: Vec<PendingRow>) -> Vec<Vec<PendingRow>> {
    let mut pieces: Vec<Vec<PendingRow>> = Vec::new();
    let mut size_bytes = 0usize;
    for row in rows {
        let row_bytes: usize = row.write.mutations.iter().map(Bytes::len).sum();
        size_bytes = size_bytes.saturating_add(row_bytes);
        match pieces.last_mut() {
            Some(piece) if size_bytes <= REQUEST_BYTES_MAX && piece.len() < REQUEST_ROWS_MAX => piece.push(row),
            _full => {
                size_bytes = row_bytes;
                pieces.push(vec![row]);
            }
        }
    }
    pieces
}

/// Looks up the tablet of the batch's first row; the lookup also fetches adjacent tablets.
async fn locate(context: &ClusterContext, table: TableId, mut batch: Batch) -> BatchOutcome {
    let Some(position) = first_position(&batch, table) else {
        return BatchOutcome { results: Vec::new(), retry: None };
    };
    match batch.retry.route(context, &position).await {
        Ok(_route) => BatchOutcome { results: Vec::new(), retry: Some(batch) },
        Err(error) => all_failed(batch.rows, &error),
    }
}

fn first_position(batch: &Batch, table: TableId) -> Option<Position> {
    batch.rows.first().map(|row| Position::at(table, row.write.row.clone()))
}

/// One attempt for rows of one tablet.
async fn send(context: &ClusterContext, table: TableId, mut batch: Batch) -> BatchOutcome {
    let Some(position) = first_position(&batch, table) else {
        return BatchOutcome { results: Vec::new(), retry: None };
    };
    let route = match batch.retry.route(context, &position).await {
        Ok(route) => route,
        Err(error) => return all_failed(batch.rows, &error),
    };
    if !batch.rows.iter().all(|row| route.tablet.range.contains(row.write.row.as_bytes())) {
        // The tablet has split since the rows were grouped.
        return BatchOutcome { results: Vec::new(), retry: Some(batch) };
    }
    let row = |row: &PendingRow| row_mutations(context.write_id(&row.ticket, &route.tablet), &row.write);
    let rows = batch.rows.iter().map(row).collect();
    let request = tablet::WriteRequest { header: Some(wire::header(&route.tablet)), rows };
    let timeout = context.attempt_timeout(batch.retry.deadline());
    let reply = with_timeout(timeout, context.options.transport.write(&route.target, request, timeout)).await;
    let error = match reply {
        Ok(reply) => {
            context.lookups.record_success(route.target.server, &route.tablet);
            let RowResults { results, retry, error } = partition(batch.rows, reply, &batch.retry);
            batch.rows = retry;
            let Some(error) = error else { return BatchOutcome { results, retry: None } };
            return match batch.retry.record_failure(context, &route, wire::server_error(error)).await {
                Ok(()) => BatchOutcome { results, retry: Some(batch) },
                Err(error) => {
                    let mut outcome = all_failed(batch.rows, &error);
                    outcome.results.extend(results);
                    outcome
                }
            };
        }
        Err(error) => error,
    };
    match batch.retry.record_failure(context, &route, error).await {
        Ok(()) => BatchOutcome { results: Vec::new(), retry: Some(batch) },
        Err(error) => all_failed(batch.rows, &error),
    }
}

/// The results of one reply.
struct RowResults {
    results: Vec<(usize, Result<(), Error>)>,
    /// Rows that must be retried.
    retry: Vec<PendingRow>,
    /// A retryable error: the last one that leaves the outcome open, if there is one, else the last one.
    error: Option<Error>,
}

/// Separates the rows that have a final result from those that must be retried.
/// `state`: of the call, with its earlier attempts.
fn partition(rows: Vec<PendingRow>, reply: tablet::WriteReply, state: &RetryState) -> RowResults {
    let mut results = Vec::with_capacity(rows.len());
    let mut retry = Vec::new();
    let mut last_error = None;
    let missing = || Err(Error::new(Reason::OutcomeUnknown, "the reply has no result for the row"));
    let replied = reply.results.into_iter().map(wire::row_result).chain(std::iter::repeat_with(missing));
    for (row, result) in rows.into_iter().zip(replied) {
        match result {
            Err(error) if is_retryable(&error) => {
                retry.push(row);
                last_error = Some(error_of_attempt(last_error, error));
            }
            result => results.push((row.index, result.map_err(|error| state.final_error(error)))),
        }
    }
    RowResults { results, retry, error: last_error }
}

/// Of the errors of two rows, the one for the whole attempt: one that leaves the outcome open, else the later one.
fn error_of_attempt(earlier: Option<Error>, later: Error) -> Error {
    let is_open = |error: &Error| may_be_applied(error.reason);
    earlier.filter(|earlier| is_open(earlier) && !is_open(&later)).unwrap_or(later)
}

fn is_retryable(error: &Error) -> bool {
    use ebla_model::error::ErrorKind::{FixRequest, GiveUp};
    !matches!(error.kind, FixRequest | GiveUp) || ends_attempt_only(error.reason)
}

fn all_failed(rows: Vec<PendingRow>, error: &Error) -> BatchOutcome {
    let result = || if Failpoint::UnsentReportedWritten.is_enabled() { Ok(()) } else { Err(error.clone()) };
    let results = rows.into_iter().map(|row| (row.index, result())).collect();
    BatchOutcome { results, retry: None }
}

/// The row of a write request.
pub(crate) fn row_mutations(id: tablet::WriteId, write: &RowWrite) -> tablet::RowMutations {
    tablet::RowMutations {
        id: Some(id),
        row: write.row.bytes().clone(),
        mutations: write.mutations.clone(),
        token: write.token.as_ref().map(wire::token),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(row: &'static str) -> RowWrite {
        RowWrite { row: RowKey::new(Bytes::from_static(row.as_bytes())), mutations: Vec::new(), token: None }
    }

    #[test]
    fn writes_of_one_row_go_in_separate_rounds() {
        let rounds = rounds(vec![write("a"), write("b"), write("a"), write("c"), write("a")]);
        let indexes: Vec<Vec<usize>> =
            rounds.iter().map(|round| round.iter().map(|(index, _write)| *index).collect()).collect();
        assert_eq!(indexes, [vec![0, 1, 3], vec![2], vec![4]]);
    }

    #[test]
    fn an_attempt_is_ambiguous_if_one_of_its_rows_is() {
        let [open, busy, late] =
            [Reason::OutcomeUnknown, Reason::Busy, Reason::Deadline].map(|reason| Error::new(reason, "refused"));
        assert_eq!(error_of_attempt(None, busy.clone()), busy);
        assert_eq!(error_of_attempt(Some(open.clone()), busy.clone()), open);
        assert_eq!(error_of_attempt(Some(busy), open.clone()), open);
        assert_eq!(error_of_attempt(Some(open), late.clone()), late);
    }
}
