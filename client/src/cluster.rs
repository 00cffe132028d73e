//! The cluster as one table store: each call goes to the tablets it concerns and is tried until its deadline.
//!
//! This is the low-level handle that fronts, the master and [`crate::Table`] share. Filters, mutations and rules are
//! the public API's own encodings and are handed on unread. Splits, moves and changes of leader are hidden: what comes
//! back is the answer, or an error that waiting would not have cured.
//!
//! A write that could not be finished says which of two things is so: `Deadline` or `OutcomeUnknown` when it may have
//! been applied, any other reason when it surely was not.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use ebla_model::error::{Error, Reason};
use ebla_model::id::{ServerId, SessionId, TableId};
use ebla_model::idempotency::IdempotencyToken;
use ebla_model::key::{KeyRange, RowKey};
use ebla_proto::tablet;
use ebla_runtime::Runtime;
use futures::future::BoxFuture;

use crate::attempts::Attempts;
use crate::deadline::Deadline;
use crate::directory::Directory;
use crate::locate::{Hop, Located, Position};
use crate::lookup::Lookups;
use crate::metadata::Metadata;
use crate::retry::Budget;
use crate::scan::{Read, ReadParts};
use crate::session::{Session, Ticket};
use crate::transport::{CallError, Target, Transport};
use crate::wire;

/// How long one attempt at a write or another small call may take before the next server is asked.
pub(crate) const ATTEMPT: Duration = Duration::from_secs(3);

/// What a cluster handle is made of.
#[derive(Clone)]
pub struct Options {
    /// Where the root tablet and the servers are.
    pub directory: Arc<dyn Directory>,
    /// How requests reach servers.
    pub transport: Arc<dyn Transport>,
    /// Clock, random numbers, tasks.
    pub runtime: Runtime,
    /// The server to prefer while a leader is not known: the one this handle lives in.
    pub home: Option<ServerId>,
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options").field("home", &self.home).finish_non_exhaustive()
    }
}

/// The cluster. Cheap to clone; clones share the cache, the session and the retry budget.
#[derive(Clone)]
pub struct Cluster {
    pub(crate) shared: Arc<Shared>,
}

/// What the clones of a handle share.
pub(crate) struct Shared {
    pub(crate) options: Options,
    pub(crate) session: Session,
    pub(crate) lookups: Lookups,
    /// Guards a counter.
    budget: Mutex<Budget>,
}

/// Mutations of one row, to be applied together.
#[derive(Clone, Debug)]
pub struct RowWrite {
    /// The row.
    pub row: RowKey,
    /// Encoded `google.bigtable.v2.Mutation`s, in order.
    pub mutations: Vec<Bytes>,
    /// The caller's own name for the write, by which it is known also when it comes through another handle.
    pub token: Option<IdempotencyToken>,
}

/// A write that depends on what its row holds.
#[derive(Clone, Debug)]
pub struct Check {
    /// The row.
    pub row: RowKey,
    /// An encoded `google.bigtable.v2.RowFilter`; absent: whether the row has a cell.
    pub predicate: Option<Bytes>,
    /// Encoded mutations for when it matches.
    pub then: Vec<Bytes>,
    /// Encoded mutations for when it does not.
    pub otherwise: Vec<Bytes>,
    /// As [`RowWrite::token`].
    pub token: Option<IdempotencyToken>,
}

/// A write whose values are computed from what its row holds.
#[derive(Clone, Debug)]
pub struct Modify {
    /// The row.
    pub row: RowKey,
    /// Encoded `google.bigtable.v2.ReadModifyWriteRule`s, in order.
    pub rules: Vec<Bytes>,
    /// As [`RowWrite::token`].
    pub token: Option<IdempotencyToken>,
}

/// The tablet that holds a key.
struct Sample {
    size_bytes: u64,
    range: KeyRange,
    /// The key of its last row, if the tablet is the whole table.
    last_row: Option<RowKey>,
}

/// A tablet that was looked up, and what that cost.
#[derive(Clone, Debug)]
pub struct Lookup {
    /// The tablet.
    pub located: Located,
    /// Level by level; one hop from the cache when nothing had to be asked.
    pub trace: Vec<Hop>,
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").field("options", &self.shared.options).finish_non_exhaustive()
    }
}

impl Cluster {
    /// A handle with an empty cache and a session of its own.
    pub fn new(options: Options) -> Self {
        let session = Session::new(SessionId::new(options.runtime.rng.u128()));
        let rotor = usize::try_from(options.runtime.rng.below(1 << 16)).unwrap_or(0);
        let lookups = Lookups::new(rotor);
        Self { shared: Arc::new(Shared { options, session, lookups, budget: Mutex::default() }) }
    }

    /// A deadline that is `limit` from now, by this handle's clock.
    pub fn deadline(&self, limit: Duration) -> Deadline {
        Deadline::after(&self.shared.options.runtime.clock, limit)
    }

    /// Where the root tablet, servers and names are.
    pub fn directory(&self) -> &Arc<dyn Directory> {
        &self.shared.options.directory
    }

    /// Rows in key order, as messages of whole rows. The stream goes on over splits, moves and changes of leader from the
    /// last row it has delivered, so no row comes twice and none is left out. It ends with its first error.
    pub fn read_rows(&self, read: Read, deadline: Deadline) -> ReadParts {
        crate::scan::stream(Arc::clone(&self.shared), read, deadline)
    }

    /// Applies each row's mutations at once or not at all; one result for each row, in the order of `rows`. Writes of one
    /// row are applied in that order. Not cancel-safe: a dropped call may be applied.
    pub fn mutate_rows(
        &self,
        table: TableId,
        rows: Vec<RowWrite>,
        deadline: Deadline,
    ) -> BoxFuture<'_, Vec<Result<(), Error>>> {
        Box::pin(async move { crate::mutate::mutate_rows(&self.shared, table, rows, deadline).await })
    }

    /// Applies one row's mutations.
    ///
    /// # Errors
    /// What the tablet says; at the deadline see the module's text.
    pub fn mutate_row(&self, table: TableId, write: RowWrite, deadline: Deadline) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let ticket = self.shared.session.begin();
            let position = Position::at(table, write.row.clone());
            let send = |call: Call<'_>| {
                let row = row_mutations(&ticket, &write);
                let request = tablet::WriteRequest { header: Some(call.header), rows: vec![row] };
                let (transport, target, limit) =
                    (Arc::clone(&self.shared.options.transport), call.target.clone(), call.limit);
                Box::pin(async move {
                    let reply = transport.write(&target, request, limit).await?;
                    let result = reply.results.into_iter().next().unwrap_or_default();
                    wire::row_result(result).map_err(wire::said)
                }) as BoxFuture<'static, _>
            };
            self.shared.call(&position, deadline, send).await
        })
    }

    /// Applies one of two lists of mutations, as the row decides; answers whether the predicate matched.
    ///
    /// # Errors
    /// What the tablet says; at the deadline see the module's text.
    pub fn check(&self, table: TableId, check: Check, deadline: Deadline) -> BoxFuture<'_, Result<bool, Error>> {
        Box::pin(async move {
            let ticket = self.shared.session.begin();
            let position = Position::at(table, check.row.clone());
            let send = |call: Call<'_>| {
                let request = tablet::CheckRequest {
                    header: Some(call.header),
                    id: Some(ticket.write_id()),
                    row: check.row.bytes().clone(),
                    predicate: check.predicate.clone(),
                    then: check.then.clone(),
                    otherwise: check.otherwise.clone(),
                    token: check.token.as_ref().map(wire::token),
                };
                let (transport, target, limit) =
                    (Arc::clone(&self.shared.options.transport), call.target.clone(), call.limit);
                Box::pin(async move { Ok(transport.check(&target, request, limit).await?.matched) })
                    as BoxFuture<'static, _>
            };
            self.shared.call(&position, deadline, send).await
        })
    }

    /// Computes new values from a row's present ones; answers an encoded `google.bigtable.v2.ReadModifyWriteRowResponse`.
    ///
    /// # Errors
    /// What the tablet says; at the deadline see the module's text.
    pub fn modify<'a>(
        &'a self,
        table: TableId,
        modify: &'a Modify,
        deadline: Deadline,
    ) -> BoxFuture<'a, Result<Bytes, Error>> {
        Box::pin(async move {
            let ticket = self.shared.session.begin();
            let position = Position::at(table, modify.row.clone());
            let send = |call: Call<'_>| {
                let request = tablet::ModifyRequest {
                    header: Some(call.header),
                    id: Some(ticket.write_id()),
                    row: modify.row.bytes().clone(),
                    rules: modify.rules.clone(),
                    token: modify.token.as_ref().map(wire::token),
                };
                let (transport, target, limit) =
                    (Arc::clone(&self.shared.options.transport), call.target.clone(), call.limit);
                Box::pin(async move { Ok(transport.modify(&target, request, limit).await?.response) })
                    as BoxFuture<'static, _>
            };
            self.shared.call(&position, deadline, send).await
        })
    }

    /// The end of each tablet of the table and the bytes up to there, roughly, ascending. The last key is
    /// [`RowKey::EMPTY`]: the end of the table. Before it comes the key of the last row, if there is one, when the table is
    /// one tablet: some clients drop the end, and would have nothing.
    ///
    /// # Errors
    /// What the tablets say, or `Deadline`.
    pub fn sample(&self, table: TableId, deadline: Deadline) -> BoxFuture<'_, Result<Vec<(RowKey, u64)>, Error>> {
        Box::pin(async move {
            let mut samples = Vec::new();
            let mut key = RowKey::EMPTY;
            let mut offset_bytes = 0u64;
            loop {
                let Sample { size_bytes, range, last_row } = self.sample_tablet(table, &key, deadline).await?;
                offset_bytes = offset_bytes.saturating_add(size_bytes);
                if let (true, Some(last_row)) = (range == KeyRange::all(), last_row) {
                    samples.push((last_row, offset_bytes));
                }
                samples.push((range.end().cloned().unwrap_or_default(), offset_bytes));
                match range.end() {
                    Some(end) => key = end.clone(),
                    None => return Ok(samples),
                }
            }
        })
    }

    async fn sample_tablet(&self, table: TableId, key: &RowKey, deadline: Deadline) -> Result<Sample, Error> {
        let position = Position::at(table, key.clone());
        let send = |call: Call<'_>| {
            let request = tablet::SampleRequest { header: Some(call.header) };
            let (transport, target, limit) =
                (Arc::clone(&self.shared.options.transport), call.target.clone(), call.limit);
            let key = key.clone();
            Box::pin(async move {
                let reply = transport.sample(&target, request, limit).await?;
                let descriptor = wire::descriptor(reply.descriptor)?;
                if descriptor.range.contains(key.as_bytes()) {
                    let last_row = Some(RowKey::new(reply.last_row)).filter(|key| !key.is_empty());
                    return Ok(Sample { size_bytes: reply.size_bytes, range: descriptor.range, last_row });
                }
                Err(wire::moved_on(&descriptor))
            }) as BoxFuture<'static, _>
        };
        self.shared.call(&position, deadline, send).await
    }

    /// Which tablet holds a row, with the way it was found.
    ///
    /// # Errors
    /// `NotFoundTable` when METADATA lists none, `Deadline` when it could not be read in time.
    pub fn locate<'a>(
        &'a self,
        table: TableId,
        key: &'a RowKey,
        deadline: Deadline,
    ) -> BoxFuture<'a, Result<Lookup, Error>> {
        Box::pin(async move {
            let position = Position::at(table, key.clone());
            let mut attempts = Attempts::new(deadline);
            loop {
                match self.shared.locate(&position, deadline).await {
                    Ok(lookup) => return Ok(lookup),
                    Err(error) => attempts.pause(&self.shared, error).await?,
                }
            }
        })
    }

    /// METADATA's rows, for those who write them.
    pub fn metadata(&self) -> Metadata {
        Metadata::new(self.clone())
    }
}

/// One attempt of a call at a tablet.
pub(crate) struct Call<'a> {
    pub(crate) header: tablet::Header,
    pub(crate) target: &'a Target,
    pub(crate) limit: Duration,
}

impl Shared {
    /// Finds the tablet at `position` and sends it what `send` makes, until an answer or the deadline. Everything `send`
    /// sends must be safe to repeat: a read, or a write under one id.
    pub(crate) async fn call<T, F>(
        self: &Arc<Self>,
        position: &Position,
        deadline: Deadline,
        send: F,
    ) -> Result<T, Error>
    where
        F: Fn(Call<'_>) -> BoxFuture<'static, Result<T, CallError>>,
    {
        self.budget().earn();
        let mut attempts = Attempts::new(deadline);
        loop {
            let route = attempts.route(self, position).await?;
            let limit = self.attempt_limit(deadline);
            let call = Call { header: wire::header(&route.located), target: &route.target, limit };
            let answer = within(limit, send(call)).await;
            match answer {
                Ok(value) => {
                    self.lookups.served(&route);
                    return Ok(value);
                }
                Err(error) => attempts.failed(self, &route, error).await?,
            }
        }
    }

    /// How long the next attempt may take.
    pub(crate) fn attempt_limit(&self, deadline: Deadline) -> Duration {
        deadline.remaining(&self.options.runtime.clock).min(ATTEMPT)
    }

    pub(crate) fn budget(&self) -> MutexGuard<'_, Budget> {
        self.budget.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Gives an attempt up after `limit`: its server is silent.
pub(crate) async fn within<T>(
    limit: Duration,
    attempt: impl Future<Output = Result<T, CallError>>,
) -> Result<T, CallError> {
    let silence = |_elapsed| CallError::from(Error::new(Reason::Deadline, "the server did not answer in time"));
    tokio::time::timeout(limit, attempt).await.map_err(silence)?
}

/// One row of a write request.
pub(crate) fn row_mutations(ticket: &Ticket, write: &RowWrite) -> tablet::RowMutations {
    tablet::RowMutations {
        id: Some(ticket.write_id()),
        row: write.row.bytes().clone(),
        mutations: write.mutations.clone(),
        token: write.token.as_ref().map(wire::token),
    }
}
