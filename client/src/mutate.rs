//! Writes of many rows: grouped by tablet, sent at once to all of them, each group tried again on its own.
//!
//! Each row keeps its (session, sequence) over all attempts. Rows that come twice in one call go in rounds, the second
//! write after the first is answered, so that a retry never turns their order around. A request is cut at about
//! 4 MiB of mutations, at row boundaries, so that one batch does not hold up a tablet's log.

use std::collections::HashMap;
use std::sync::Arc;

use ebla_model::error::{Error, Reason};
use ebla_model::id::TableId;
use ebla_model::key::RowKey;
use ebla_proto::tablet;
use ebla_runtime::{Bug, planted};
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;

use crate::attempts::Attempts;
use crate::cluster::{RowWrite, Shared, row_mutations, within};
use crate::deadline::Deadline;
use crate::locate::{Located, Position};
use crate::session::Ticket;
use crate::wire;

/// Mutations in one request, in bytes, unless a single row has more.
const REQUEST_BYTES_MAX: usize = 4 << 20;
/// Rows in one request.
const REQUEST_ROWS_MAX: usize = 2_000;
/// Requests of one call under way at the same time.
const REQUESTS_MAX: usize = 64;

/// A row on its way.
struct Pending {
    index: usize,
    write: RowWrite,
    ticket: Ticket,
}

/// Rows that are tried together.
struct Batch {
    rows: Vec<Pending>,
    attempts: Attempts,
}

/// What became of a batch.
struct Outcome {
    answered: Vec<(usize, Result<(), Error>)>,
    again: Option<Batch>,
}

/// What to do next with a batch.
enum Job {
    /// All rows lie in one tablet that is known.
    Send(Batch),
    /// The tablet of the first row is not known.
    Locate(Batch),
}

/// See [`crate::Cluster::mutate_rows`].
pub(crate) async fn mutate_rows(
    shared: &Arc<Shared>,
    table: TableId,
    rows: Vec<RowWrite>,
    deadline: Deadline,
) -> Vec<Result<(), Error>> {
    let unanswered = || Err(Error::new(Reason::OutcomeUnknown, "the write was not answered"));
    let mut results: Vec<Result<(), Error>> = rows.iter().map(|_row| unanswered()).collect();
    for round in rounds(rows) {
        shared.budget().earn();
        let rows = round.into_iter().map(|(index, write)| Pending { index, write, ticket: shared.session.begin() });
        let batch = Batch { rows: rows.collect(), attempts: Attempts::new(deadline) };
        for (index, result) in run(shared, table, batch).await {
            if let Some(slot) = results.get_mut(index) {
                *slot = result;
            }
        }
    }
    results
}

/// The rows with their places, in rounds in which no row comes twice.
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

/// Sends a batch until each of its rows has an answer.
async fn run(shared: &Arc<Shared>, table: TableId, batch: Batch) -> Vec<(usize, Result<(), Error>)> {
    let mut waiting = plan(shared, table, batch);
    let mut under_way: FuturesUnordered<BoxFuture<'_, Outcome>> = FuturesUnordered::new();
    let mut answered = Vec::new();
    loop {
        while under_way.len() < REQUESTS_MAX
            && let Some(job) = waiting.pop()
        {
            under_way.push(match job {
                Job::Send(batch) => Box::pin(send(shared, table, batch)),
                Job::Locate(batch) => Box::pin(locate(shared, table, batch)),
            });
        }
        let Some(outcome) = under_way.next().await else { return answered };
        answered.extend(outcome.answered);
        if let Some(batch) = outcome.again {
            waiting.extend(plan(shared, table, batch));
        }
    }
}

/// Divides a batch by the tablets that are known; what is not known stays together and is looked up first.
fn plan(shared: &Shared, table: TableId, batch: Batch) -> Vec<Job> {
    let Batch { rows, attempts } = batch;
    let mut groups: Vec<(Located, Vec<Pending>)> = Vec::new();
    let mut unknown = Vec::new();
    for row in rows {
        let of_group = |group: &&mut (Located, Vec<Pending>)| group.0.range.contains(row.write.row.as_bytes());
        if let Some((_located, rows)) = groups.iter_mut().rev().find(of_group) {
            rows.push(row);
            continue;
        }
        match shared.find(&Position::at(table, row.write.row.clone())) {
            Some(located) => groups.push((located, vec![row])),
            None => unknown.push(row),
        }
    }
    let mut jobs: Vec<Job> = Vec::new();
    for (_located, rows) in groups {
        jobs.extend(cut(rows).into_iter().map(|rows| Job::Send(Batch { rows, attempts: attempts.clone() })));
    }
    if !unknown.is_empty() {
        jobs.push(Job::Locate(Batch { rows: unknown, attempts }));
    }
    jobs
}

/// Pieces that fit into a request each, in order.
fn cut(rows: Vec<Pending>) -> Vec<Vec<Pending>> {
    let mut pieces: Vec<Vec<Pending>> = Vec::new();
    let mut size_bytes = 0usize;
    for row in rows {
        let row_bytes: usize = row.write.mutations.iter().map(bytes::Bytes::len).sum();
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

/// Looks up the tablet of the batch's first row, and its neighbours with it.
async fn locate(shared: &Arc<Shared>, table: TableId, mut batch: Batch) -> Outcome {
    let Some(position) = first(&batch, table) else { return Outcome { answered: Vec::new(), again: None } };
    match batch.attempts.route(shared, &position).await {
        Ok(_route) => Outcome { answered: Vec::new(), again: Some(batch) },
        Err(error) => all_failed(batch.rows, &error),
    }
}

fn first(batch: &Batch, table: TableId) -> Option<Position> {
    batch.rows.first().map(|row| Position::at(table, row.write.row.clone()))
}

/// One attempt for rows of one tablet.
async fn send(shared: &Arc<Shared>, table: TableId, mut batch: Batch) -> Outcome {
    let Some(position) = first(&batch, table) else { return Outcome { answered: Vec::new(), again: None } };
    let route = match batch.attempts.route(shared, &position).await {
        Ok(route) => route,
        Err(error) => return all_failed(batch.rows, &error),
    };
    if !batch.rows.iter().all(|row| route.located.range.contains(row.write.row.as_bytes())) {
        // The tablet was split since the rows were grouped.
        return Outcome { answered: Vec::new(), again: Some(batch) };
    }
    let rows = batch.rows.iter().map(|row| row_mutations(&row.ticket, &row.write)).collect();
    let request = tablet::WriteRequest { header: Some(wire::header(&route.located)), rows };
    let limit = shared.attempt_limit(batch.attempts.deadline());
    let reply = within(limit, shared.options.transport.write(&route.target, request, limit)).await;
    let error = match reply {
        Ok(reply) => {
            shared.lookups.served(&route);
            let (answered, again) = sort_out(batch.rows, reply);
            batch.rows = again;
            let Some(error) = answered.1 else { return Outcome { answered: answered.0, again: None } };
            return match batch.attempts.failed(shared, &route, wire::said(error)).await {
                Ok(()) => Outcome { answered: answered.0, again: Some(batch) },
                Err(error) => {
                    let mut outcome = all_failed(batch.rows, &error);
                    outcome.answered.extend(answered.0);
                    outcome
                }
            };
        }
        Err(error) => error,
    };
    match batch.attempts.failed(shared, &route, error).await {
        Ok(()) => Outcome { answered: Vec::new(), again: Some(batch) },
        Err(error) => all_failed(batch.rows, &error),
    }
}

type Answered = (Vec<(usize, Result<(), Error>)>, Option<Error>);

/// Parts the rows that have their answer from those to be tried again, and the error that says why.
fn sort_out(rows: Vec<Pending>, reply: tablet::WriteReply) -> (Answered, Vec<Pending>) {
    let mut answered = Vec::with_capacity(rows.len());
    let mut again = Vec::new();
    let mut why = None;
    let missing = || Err(Error::new(Reason::OutcomeUnknown, "the server left a row without an answer"));
    let results = reply.results.into_iter().map(wire::row_result).chain(std::iter::repeat_with(missing));
    for (row, result) in rows.into_iter().zip(results) {
        match result {
            Err(error) if may_be_tried_again(&error) => {
                again.push(row);
                why = Some(error);
            }
            result => answered.push((row.index, result)),
        }
    }
    ((answered, why), again)
}

fn may_be_tried_again(error: &Error) -> bool {
    use ebla_model::error::ErrorKind::{FixRequest, GiveUp};
    !matches!(error.kind, FixRequest | GiveUp) || matches!(error.reason, Reason::Deadline | Reason::Cancelled)
}

fn all_failed(rows: Vec<Pending>, error: &Error) -> Outcome {
    let result = || if planted(Bug::UnsentReportedWritten) { Ok(()) } else { Err(error.clone()) };
    let answered = rows.into_iter().map(|row| (row.index, result())).collect();
    Outcome { answered, again: None }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn write(row: &'static str) -> RowWrite {
        RowWrite { row: RowKey::new(Bytes::from_static(row.as_bytes())), mutations: Vec::new(), token: None }
    }

    #[test]
    fn writes_of_one_row_go_one_after_another() {
        let rounds = rounds(vec![write("a"), write("b"), write("a"), write("c"), write("a")]);
        let places: Vec<Vec<usize>> =
            rounds.iter().map(|round| round.iter().map(|(index, _write)| *index).collect()).collect();
        assert_eq!(places, [vec![0, 1, 3], vec![2], vec![4]]);
    }
}
