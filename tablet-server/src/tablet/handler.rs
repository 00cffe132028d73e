//! The handler of `ebla.tablet` requests for the local replicas.
//!
//! The gRPC service and the router's local calls both use it, so a request means the same on both ways. It converts between
//! wire messages and the model: it decodes and validates filters, mutations, rules and row keys, encodes rows as the public
//! API sends them, and turns a [`Failure`] into an error detail with this server's descriptors of nearby tablets.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ebla_client::{CallError, ReadStream};
use ebla_model::Reason;
use ebla_model::error::Error;
use ebla_model::filter::CompiledFilter;
use ebla_model::id::{Generation, Sequence, SessionId, TableId, TabletId};
use ebla_model::idempotency::IdempotencyToken;
use ebla_model::key::{KeyRange, RowKey, RowSet};
use ebla_model::limit::RowLimit;
use ebla_model::mutation::{self, Mutation};
use ebla_model::rmw;
use ebla_model::schema::TableSchema;
use ebla_model::time::{Micros, whole_micros};
use ebla_proto::convert::{LargeRows, MessageSizes, RowMessage, RowMessages};
use ebla_proto::{convert, record, tablet as wire};
use ebla_runtime::trace::{self, Recorder, TabletIds};
use ebla_runtime::{Clock, Reservation};
use futures::StreamExt as _;
use futures::stream;

use crate::response_budget::Memory;
use crate::tablet::failure::Failure;
use crate::tablet::lifecycle::manager::TabletManager;
use crate::tablet::read::filter_cache::FilterCache;
use crate::tablet::{CheckRequest, ModifyRequest, ReadBatch, ReadPosition, ReadRequest, RowMutations, Tablet, WriteId};

/// Handles requests for tablets of this server. Cheap to clone.
#[derive(Clone, Debug)]
pub struct TabletHandler {
    manager: Arc<TabletManager>,
    filters: Arc<FilterCache>,
    clock: Clock,
    memory: Memory,
    recorder: Arc<Recorder>,
    writes: WritableTables,
}

/// The tables that the callers of a handler may write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WritableTables {
    /// All.
    All,
    /// Those of users. A row of METADATA decides where rows of all tables are, so a caller who is no member of the cluster must not change one.
    OfUsers,
}

impl WritableTables {
    /// Checks that rows of this table may be written.
    ///
    /// # Errors
    /// `PermissionDenied`.
    fn check(self, table: TableId) -> Result<(), Error> {
        if self == Self::All || table != TableId::METADATA {
            return Ok(());
        }
        let message =
            "METADATA is written by members of the cluster only: it needs the certificate of a tablet server or master";
        Err(Error::new(Reason::PermissionDenied, message))
    }
}

impl TabletHandler {
    /// A handler for these replicas; `memory`: what reads are charged to; `recorder`: of the calls of other servers.
    #[must_use]
    pub fn new(manager: Arc<TabletManager>, clock: Clock, memory: Memory, recorder: Arc<Recorder>) -> Self {
        Self { manager, filters: Arc::default(), clock, memory, recorder, writes: WritableTables::All }
    }

    /// A handler for callers that may write these tables only.
    #[must_use]
    pub fn with_writable(self, writes: WritableTables) -> Self {
        Self { writes, ..self }
    }

    pub(super) const fn recorder(&self) -> &Arc<Recorder> {
        &self.recorder
    }

    /// Reads rows of one tablet. The first batch is read before this returns, so that errors are immediate.
    ///
    /// # Errors
    /// As [`Tablet::read`]; later errors come in the stream.
    pub async fn read(&self, request: wire::ReadRequest, timeout: Duration) -> Result<ReadStream, CallError> {
        let (first, rest) = self.start_read(&request, timeout)?.next().await?;
        let rest = stream::unfold(rest, |reading| async move {
            match reading?.next().await {
                Ok((reply, rest)) => Some((Ok(reply), rest)),
                Err(error) => Some((Err(error), None)),
            }
        });
        Ok(stream::once(async move { Ok(first) }).chain(rest).boxed())
    }

    /// Reads rows of one tablet. `None` if they do not fit into one message.
    ///
    /// # Errors
    /// As [`Tablet::read`].
    pub async fn read_once(
        &self,
        request: wire::ReadRequest,
        timeout: Duration,
    ) -> Result<Option<wire::ReadReply>, CallError> {
        let (reply, rest) = self.start_read(&request, timeout)?.next().await?;
        Ok(rest.is_none().then_some(reply))
    }

    fn start_read(&self, request: &wire::ReadRequest, timeout: Duration) -> Result<ReadStreamState, CallError> {
        let (tablet, generation) = self.find_tablet(request.header.as_ref())?;
        Ok(ReadStreamState {
            handler: self.clone(),
            tablet,
            request: Arc::new(ReadRequest {
                memory: self.memory.clone(),
                ..read_request(request, generation, self.filter(request.filter.as_ref())?)?
            }),
            large_rows: if request.split_rows { LargeRows::Split } else { LargeRows::Whole },
            replies: BatchReplies::default(),
            resume: ReadPosition::default(),
            deadline: self.clock.monotonic().saturating_add(timeout),
        })
    }

    /// Writes rows of one tablet.
    ///
    /// # Errors
    /// As [`Tablet::write`]: the errors for all rows.
    pub async fn write(&self, request: wire::WriteRequest, timeout: Duration) -> Result<wire::WriteReply, CallError> {
        let (tablet, generation) = self.find_writable(request.header.as_ref())?;
        // Rows that cannot be decoded keep their position among the results.
        let keys = RowKeyPolicy::of(tablet.table());
        let parsed: Vec<_> = request.rows.into_iter().map(|row| row_mutations(row, keys)).collect();
        let valid = parsed.iter().filter_map(|row| row.as_ref().ok()).cloned().collect();
        let written =
            tablet.write(generation, valid, timeout).await.map_err(|failure| self.call_error(&tablet, failure))?;
        let mut written = written.into_iter();
        let results = parsed.into_iter().map(|row| match row {
            Err(error) => row_result(Err(error)),
            Ok(_) => row_result(written.next().unwrap_or(Ok(())).map_err(|failure| failure.error)),
        });
        Ok(wire::WriteReply { results: results.collect() })
    }

    /// A conditional mutation of one row.
    ///
    /// # Errors
    /// As [`Tablet::check`].
    pub async fn check(&self, request: wire::CheckRequest, timeout: Duration) -> Result<wire::CheckReply, CallError> {
        let (tablet, generation) = self.find_writable(request.header.as_ref())?;
        let predicate = self.filter(request.predicate.as_ref())?;
        let request = check_request(request, generation, predicate, RowKeyPolicy::of(tablet.table()))?;
        let matched = tablet.check(request, timeout).await.map_err(|failure| self.call_error(&tablet, failure))?;
        Ok(wire::CheckReply { matched })
    }

    /// A read-modify-write of one row.
    ///
    /// # Errors
    /// As [`Tablet::modify`].
    pub async fn modify(
        &self,
        request: wire::ModifyRequest,
        timeout: Duration,
    ) -> Result<wire::ModifyReply, CallError> {
        let (tablet, generation) = self.find_writable(request.header.as_ref())?;
        let request = modify_request(request, generation, RowKeyPolicy::of(tablet.table()))?;
        let response = tablet.modify(request, timeout).await.map_err(|failure| self.call_error(&tablet, failure))?;
        Ok(wire::ModifyReply { response })
    }

    /// The size of one tablet, and its last row if it is the whole table. Any replica may be used.
    ///
    /// # Errors
    /// `WrongTablet` when this server has no replica; errors of the store.
    pub async fn sample(&self, request: wire::SampleRequest) -> Result<wire::SampleReply, CallError> {
        let (tablet, _) = self.find_tablet(request.header.as_ref())?;
        let sample = tablet.sample().map_err(|failure| self.call_error(&tablet, failure))?;
        let last_row = if sample.descriptor.range == KeyRange::all() {
            tablet.last_row().await.map_err(|failure| self.call_error(&tablet, failure))?
        } else {
            None
        };
        Ok(wire::SampleReply {
            size_bytes: sample.size_bytes,
            descriptor: Some(convert::descriptor_to_proto(&sample.descriptor)),
            last_row: last_row.map(|key| key.bytes().clone()).unwrap_or_default(),
        })
    }

    /// The schema of the table of the tablet that a call names, as the replica here has applied it.
    ///
    /// # Errors
    /// As every call, when this server has no such tablet.
    pub fn schema_of(&self, header: Option<&wire::Header>) -> Result<Arc<TableSchema>, CallError> {
        let (tablet, _generation) = self.find_tablet(header)?;
        let metadata = tablet.metadata().map_err(|failure| self.call_error(&tablet, failure))?;
        Ok(Arc::clone(metadata.schema()))
    }

    /// The compiled form of a filter.
    ///
    /// # Errors
    /// `InvalidArgument` when it is none.
    pub fn filter(&self, encoded: Option<&Bytes>) -> Result<Option<CompiledFilter>, Error> {
        encoded.map(|encoded| self.filters.get_or_compile(encoded)).transpose()
    }

    fn find_writable(&self, header: Option<&wire::Header>) -> Result<(Tablet, Generation), CallError> {
        let (tablet, generation) = self.find_tablet(header)?;
        // That of the tablet: the header may name another one.
        self.writes.check(tablet.table())?;
        Ok((tablet, generation))
    }

    fn find_tablet(&self, header: Option<&wire::Header>) -> Result<(Tablet, Generation), CallError> {
        let header = header.ok_or_else(|| Error::invalid("the request has no header"))?;
        let (table, tablet) = (TableId::new(header.table), TabletId::new(header.tablet));
        let tablet = self.manager.tablet(tablet).ok_or_else(|| {
            let failure = if self.manager.has_dropped(table) {
                Failure::new(Reason::TabletDropped, "the table was dropped")
            } else {
                Failure {
                    descriptors: self.manager.nearby_descriptors(table, tablet),
                    ..Failure::new(Reason::WrongTablet, "this server has no replica of the tablet")
                }
            };
            wire_error(failure)
        })?;
        let ids = TabletIds { table: tablet.table(), tablet: tablet.id(), group: tablet.group().id() };
        trace::with_current(|operation| operation.set_tablet(ids));
        Ok((tablet, Generation::new(header.generation)))
    }

    /// Adds this server's routing data: descriptors of nearby tablets (after a split, the other half) and the leader.
    fn call_error(&self, tablet: &Tablet, mut failure: Failure) -> CallError {
        if failure.error.reason == Reason::WrongTablet {
            let own: Vec<TabletId> = failure.descriptors.iter().map(|known| known.tablet).collect();
            let others = self.manager.nearby_descriptors(tablet.table(), tablet.id());
            failure.descriptors.extend(others.into_iter().filter(|other| !own.contains(&other.tablet)));
        }
        if failure.leader.is_none() && matches!(failure.error.reason, Reason::NotLeader | Reason::NoLeader) {
            failure.leader = tablet.leader().filter(|leader| leader.server != self.manager.server());
        }
        wire_error(failure)
    }
}

/// A failure with its wire detail.
#[must_use]
pub fn wire_error(failure: Failure) -> CallError {
    let detail = wire::TabletError {
        reason: failure.error.reason.name().to_owned(),
        descriptors: failure.descriptors.iter().map(convert::descriptor_to_proto).collect(),
        leader: failure
            .leader
            .map(|leader| record::LeaderHint { server: leader.server.get(), term: leader.term.get() }),
        retry_after_micros: failure.retry_after.map(whole_micros),
    };
    CallError::new(failure.error, Some(detail))
}

/// The state of a read stream between two messages.
struct ReadStreamState {
    handler: TabletHandler,
    tablet: Tablet,
    request: Arc<ReadRequest>,
    large_rows: LargeRows,
    /// The rest of the last batch.
    replies: BatchReplies,
    resume: ReadPosition,
    deadline: Duration,
}

impl ReadStreamState {
    /// The next message, and the stream's state after it; `None` at the end.
    async fn next(mut self) -> Result<(wire::ReadReply, Option<Self>), CallError> {
        let reply = match self.replies.next() {
            Some(reply) => reply,
            None => self.read().await?,
        };
        let rest = if reply.finished { None } else { Some(self) };
        Ok((reply, rest))
    }

    /// Reads a batch. Returns its first message.
    async fn read(&mut self) -> Result<wire::ReadReply, CallError> {
        let left = self.deadline.saturating_sub(self.handler.clock.monotonic());
        let large_rows = self.large_rows;
        let encode = move |batch| BatchReplies::of(batch, large_rows);
        let replies = self.tablet.read(Arc::clone(&self.request), self.resume.clone(), left, encode).await;
        self.replies = replies.map_err(|failure| self.handler.call_error(&self.tablet, failure))?;
        self.resume.rows += self.replies.row_count;
        self.resume.after = self.replies.last_row.take().or_else(|| self.resume.after.take());
        Ok(self.replies.next().unwrap_or_default())
    }
}

/// The messages of a batch, at least one. The last one carries the position and the statistics.
#[derive(Default)]
struct BatchReplies {
    /// The first message, encoded by the thread that has read the rows. Nearly all batches have one only.
    first: Option<RowMessage>,
    /// The further ones.
    rows: Option<RowMessages>,
    last: Option<wire::ReadReply>,
    /// The rows of the batch, and its last one if it has any.
    row_count: u64,
    last_row: Option<RowKey>,
    /// The size of the batch, and its charge until the last message is taken.
    bytes: u64,
    charge: Option<Reservation>,
}

impl BatchReplies {
    fn of(batch: ReadBatch, large_rows: LargeRows) -> Self {
        let last = wire::ReadReply {
            last_row: batch.last_row.as_ref().map(|key| key.bytes().clone()).unwrap_or_default(),
            finished: batch.finished,
            rows_seen: batch.rows_seen,
            cells_seen: batch.cells_seen,
            cells_returned: batch.cells_returned,
            ..Default::default()
        };
        let row_count = batch.rows.len() as u64;
        let mut rows = RowMessages::new(batch.rows, large_rows, MessageSizes::STANDARD);
        Self {
            first: rows.next(),
            rows: Some(rows),
            last: Some(last),
            row_count,
            last_row: batch.last_row,
            bytes: u64::try_from(batch.bytes).unwrap_or(u64::MAX),
            charge: batch.charge,
        }
    }
}

impl Iterator for BatchReplies {
    type Item = wire::ReadReply;

    fn next(&mut self) -> Option<wire::ReadReply> {
        let first = self.first.take();
        let message = first.or_else(|| self.rows.as_mut().and_then(Iterator::next));
        let Some(message) = message else { return self.last.take() };
        let is_last = self.rows.as_ref().is_none_or(RowMessages::is_done);
        let reply = if is_last { self.last.take() } else { None };
        if is_last {
            self.charge = None;
        }
        let held_bytes = if is_last { 0 } else { self.bytes };
        let reply = reply.unwrap_or_else(|| wire::ReadReply {
            last_row: message.last_row.map(|key| key.bytes().clone()).unwrap_or_default(),
            ..Default::default()
        });
        let (response, rows, row_open) = (message.response, message.rows, message.is_open);
        Some(wire::ReadReply { response, rows, row_open, held_bytes, ..reply })
    }
}

/// The row keys that a table accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RowKeyPolicy {
    /// As in the public API: neither empty nor too long.
    Public,
    /// Any: a key of METADATA contains a key of a user's table.
    Any,
}

impl RowKeyPolicy {
    fn of(table: TableId) -> Self {
        if table == TableId::METADATA { Self::Any } else { Self::Public }
    }

    fn check(self, row: &RowKey) -> Result<(), Error> {
        match self {
            Self::Public => mutation::validate_row_key(row),
            Self::Any => Ok(()),
        }
    }

    /// As [`Self::check`], for a row with these mutations.
    fn check_written(self, row: &RowKey, mutations: &[Mutation]) -> Result<(), Error> {
        match self {
            Self::Public => mutation::validate_written_key(row, mutations),
            Self::Any => Ok(()),
        }
    }
}

fn read_request(
    request: &wire::ReadRequest,
    generation: Generation,
    filter: Option<CompiledFilter>,
) -> Result<ReadRequest, Error> {
    let ranges: Result<Vec<_>, _> = request.rows.iter().map(convert::key_range_from_proto).collect();
    Ok(ReadRequest {
        generation,
        rows: RowSet::from_ranges(ranges?),
        filter,
        limit: RowLimit::new(request.limit),
        reversed: request.reversed,
        any_replica: request.any_replica,
        beyond_tablet: request.beyond_tablet,
        memory: Memory::default(),
    })
}

fn check_request(
    request: wire::CheckRequest,
    generation: Generation,
    predicate: Option<CompiledFilter>,
    keys: RowKeyPolicy,
) -> Result<CheckRequest, Error> {
    let row = RowKey::new(request.row);
    keys.check(&row)?;
    let (then, otherwise) = (mutations(&request.then)?, mutations(&request.otherwise)?);
    mutation::validate_mutations(&then)?;
    mutation::validate_mutations(&otherwise)?;
    Ok(CheckRequest {
        generation,
        id: write_id(request.id)?,
        row,
        predicate,
        then,
        otherwise,
        token: token(request.token)?,
    })
}

fn modify_request(
    request: wire::ModifyRequest,
    generation: Generation,
    keys: RowKeyPolicy,
) -> Result<ModifyRequest, Error> {
    let row = RowKey::new(request.row);
    keys.check(&row)?;
    let rules = request.rules.iter().map(convert::rule_from_bytes).collect::<Result<Vec<_>, _>>()?;
    rmw::validate_rules(&rules)?;
    Ok(ModifyRequest { generation, id: write_id(request.id)?, row, rules, token: token(request.token)? })
}

fn row_mutations(row: wire::RowMutations, keys: RowKeyPolicy) -> Result<RowMutations, Error> {
    let key = RowKey::new(row.row);
    let mutations = mutations(&row.mutations)?;
    keys.check_written(&key, &mutations)?;
    mutation::validate_mutations(&mutations)?;
    Ok(RowMutations { id: write_id(row.id)?, row: key, mutations, token: token(row.token)? })
}

fn token(token: Option<wire::IdempotencyToken>) -> Result<Option<IdempotencyToken>, Error> {
    let Some(token) = token else { return Ok(None) };
    let token = IdempotencyToken { token: token.token, started: token.started_micros.map(Micros::new) };
    token.validate()?;
    Ok(Some(token))
}

fn mutations(encoded: &[Bytes]) -> Result<Vec<Mutation>, Error> {
    encoded.iter().map(convert::mutation_from_bytes).collect()
}

fn write_id(id: Option<wire::WriteId>) -> Result<WriteId, Error> {
    let id = id.ok_or_else(|| Error::invalid("the write has no id"))?;
    let session =
        SessionId::from_bytes(&id.session).ok_or_else(|| Error::invalid("session id is not 16 bytes long"))?;
    Ok(WriteId {
        session,
        sequence: Sequence::new(id.sequence),
        lowest_outstanding: Sequence::new(id.lowest_outstanding),
    })
}

fn row_result(result: Result<(), Error>) -> wire::RowResult {
    let error = |error: Error| wire::RowError { reason: error.reason.name().to_owned(), message: error.message };
    wire::RowResult { error: result.err().map(error) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_who_are_no_members_write_tables_of_users_only() {
        let reason = |writes: WritableTables, table| writes.check(table).map_err(|error| error.reason);
        assert_eq!(reason(WritableTables::OfUsers, TableId::METADATA), Err(Reason::PermissionDenied));
        assert_eq!(reason(WritableTables::All, TableId::METADATA), Ok(()));
        for writes in [WritableTables::All, WritableTables::OfUsers] {
            assert_eq!(reason(writes, TableId::new(TableId::METADATA.get() + 1)), Ok(()));
        }
    }
}
