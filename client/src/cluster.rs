//! The cluster handle: sends each call to the tablets that it concerns and retries until the deadline.
//!
//! Fronts, the master and [`crate::Table`] share this low-level handle. Filters, mutations and rules have the encodings
//! of the public API and are passed on without decoding. The handle hides splits, moves and leader changes: a call
//! returns its result, or an error that a retry would not fix.
//!
//! The error of a failed write tells whether it may have been applied: `Deadline`, `OutcomeUnknown` and `SessionForgotten` mean that it
//! may have been, any other reason means that it was not. A write that may have been applied is repeated for five minutes at
//! most, also under a later deadline; then the error is `OutcomeUnknown`.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use ebla_model::error::Error;
use ebla_model::id::TableId;
use ebla_model::idempotency::IdempotencyToken;
use ebla_model::key::{KeyRange, RowKey, RowSet};
use ebla_model::limit::RowLimit;
use ebla_proto::tablet;
use futures::TryStreamExt;
use futures::future::BoxFuture;

use crate::call::{Attempt, call};
use crate::context::ClusterContext;
use crate::deadline::Deadline;
use crate::directory::Directory;
use crate::locate::Position;
use crate::lookup::Lookup;
use crate::lookup_counts::LookupCounts;
use crate::metadata::{self, MetadataRow, ReadableRows, TabletEvents};
use crate::mutate::{RowWrite, row_mutations};
use crate::options::ClusterOptions;
use crate::retry_state::RetryState;
use crate::scan::{Read, ReadParts};
use crate::wire;

/// A handle of the cluster. Cheap to clone; clones share the cache, the sessions and the retry budget.
#[derive(Clone)]
pub struct Cluster {
    context: Arc<ClusterContext>,
}

/// A conditional write of one row.
#[derive(Clone, Debug)]
pub struct Check {
    /// The row.
    pub row: RowKey,
    /// An encoded `google.bigtable.v2.RowFilter`; `None` matches a row that has a cell.
    pub predicate: Option<Bytes>,
    /// Encoded mutations that are applied if it matches.
    pub then: Vec<Bytes>,
    /// Encoded mutations that are applied if it does not match.
    pub otherwise: Vec<Bytes>,
    /// As [`RowWrite::token`].
    pub token: Option<IdempotencyToken>,
}

/// A read-modify-write of one row.
#[derive(Clone, Debug)]
pub struct Modify {
    /// The row.
    pub row: RowKey,
    /// Encoded `google.bigtable.v2.ReadModifyWriteRule`s, in order.
    pub rules: Vec<Bytes>,
    /// As [`RowWrite::token`].
    pub token: Option<IdempotencyToken>,
}

/// A sample of one tablet.
struct TabletSample {
    size_bytes: u64,
    range: KeyRange,
    /// The key of its last row, if the tablet covers the whole table.
    last_row: Option<RowKey>,
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").field("options", &self.context.options).finish_non_exhaustive()
    }
}

impl Cluster {
    /// A handle with an empty cache and its own sessions.
    pub fn new(options: ClusterOptions) -> Self {
        Self { context: Arc::new(ClusterContext::new(options)) }
    }

    /// The deadline that ends `timeout` from now, by this handle's clock.
    pub fn deadline(&self, timeout: Duration) -> Deadline {
        Deadline::after(&self.context.options.runtime.clock, timeout)
    }

    /// The directory of the root tablet, the servers and the table names.
    pub fn directory(&self) -> &Arc<dyn Directory> {
        &self.context.options.directory
    }

    /// The lookups of this handle and its clones that have ended, by their round trips.
    pub fn lookup_counts(&self) -> LookupCounts {
        self.context.lookups.counts()
    }

    /// Rows in key order, as messages of whole rows. After a split, a move or a leader change the stream resumes after
    /// the last row that it has delivered, so no row is duplicated or skipped. It ends with its first error.
    pub fn read_rows(&self, read: Read, deadline: Deadline) -> ReadParts {
        crate::scan::stream(Arc::clone(&self.context), read, deadline)
    }

    /// Applies the mutations of each row atomically; returns one result for each row, in the order of `rows`. Writes of
    /// one row are applied in that order. Not cancel-safe: a dropped call may be applied.
    pub fn mutate_rows(
        &self,
        table: TableId,
        rows: Vec<RowWrite>,
        deadline: Deadline,
    ) -> BoxFuture<'_, Vec<Result<(), Error>>> {
        Box::pin(async move { crate::mutate::mutate_rows(&self.context, table, rows, deadline).await })
    }

    /// Applies the mutations of one row atomically.
    ///
    /// # Errors
    /// The error of the tablet; at the deadline as the module documentation describes.
    pub fn mutate_row(&self, table: TableId, write: RowWrite, deadline: Deadline) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let ticket = OnceLock::new();
            let position = Position::at(table, write.row.clone());
            let send = |attempt: Attempt| {
                let rows = vec![row_mutations(self.context.write_id(&ticket, &attempt.tablet), &write)];
                async move {
                    let request = tablet::WriteRequest { header: Some(attempt.header), rows };
                    let reply = attempt.transport.write(&attempt.target, request, attempt.timeout).await?;
                    let result = reply.results.into_iter().next().unwrap_or_default();
                    wire::row_result(result).map_err(wire::server_error)
                }
            };
            call(&self.context, &position, RetryState::of_write(deadline), send).await
        })
    }

    /// Applies one of two lists of mutations, depending on the predicate; returns whether it matched.
    ///
    /// # Errors
    /// The error of the tablet; at the deadline as the module documentation describes.
    pub fn check(&self, table: TableId, check: Check, deadline: Deadline) -> BoxFuture<'_, Result<bool, Error>> {
        Box::pin(async move {
            let ticket = OnceLock::new();
            let position = Position::at(table, check.row.clone());
            let send = |attempt: Attempt| {
                let request = tablet::CheckRequest {
                    header: Some(attempt.header),
                    id: Some(self.context.write_id(&ticket, &attempt.tablet)),
                    row: check.row.bytes().clone(),
                    predicate: check.predicate.clone(),
                    then: check.then.clone(),
                    otherwise: check.otherwise.clone(),
                    token: check.token.as_ref().map(wire::token),
                };
                async move { Ok(attempt.transport.check(&attempt.target, request, attempt.timeout).await?.matched) }
            };
            call(&self.context, &position, RetryState::of_write(deadline), send).await
        })
    }

    /// Computes new values from the current values of a row; returns an encoded
    /// `google.bigtable.v2.ReadModifyWriteRowResponse`.
    ///
    /// # Errors
    /// The error of the tablet; at the deadline as the module documentation describes.
    pub fn modify<'a>(
        &'a self,
        table: TableId,
        modify: &'a Modify,
        deadline: Deadline,
    ) -> BoxFuture<'a, Result<Bytes, Error>> {
        Box::pin(async move {
            let ticket = OnceLock::new();
            let position = Position::at(table, modify.row.clone());
            let send = |attempt: Attempt| {
                let request = tablet::ModifyRequest {
                    header: Some(attempt.header),
                    id: Some(self.context.write_id(&ticket, &attempt.tablet)),
                    row: modify.row.bytes().clone(),
                    rules: modify.rules.clone(),
                    token: modify.token.as_ref().map(wire::token),
                };
                async move { Ok(attempt.transport.modify(&attempt.target, request, attempt.timeout).await?.response) }
            };
            call(&self.context, &position, RetryState::of_write(deadline), send).await
        })
    }

    /// The end key of each tablet of the table and the approximate number of bytes before it, ascending. The last key
    /// is [`RowKey::EMPTY`]: the end of the table. If the table is one tablet, the key of its last row comes before it:
    /// some clients drop the end of the table and would return no sample.
    ///
    /// # Errors
    /// The error of a tablet, or `Deadline`.
    pub fn sample(&self, table: TableId, deadline: Deadline) -> BoxFuture<'_, Result<Vec<(RowKey, u64)>, Error>> {
        Box::pin(async move {
            let mut samples = Vec::new();
            let mut key = RowKey::EMPTY;
            let mut offset_bytes = 0u64;
            loop {
                let TabletSample { size_bytes, range, last_row } = self.sample_tablet(table, &key, deadline).await?;
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

    async fn sample_tablet(&self, table: TableId, key: &RowKey, deadline: Deadline) -> Result<TabletSample, Error> {
        let position = Position::at(table, key.clone());
        let send = |attempt: Attempt| async move {
            let request = tablet::SampleRequest { header: Some(attempt.header) };
            let reply = attempt.transport.sample(&attempt.target, request, attempt.timeout).await?;
            let descriptor = wire::descriptor(reply.descriptor)?;
            if descriptor.range.contains(key.as_bytes()) {
                let last_row = Some(RowKey::new(reply.last_row)).filter(|key| !key.is_empty());
                return Ok(TabletSample { size_bytes: reply.size_bytes, range: descriptor.range, last_row });
            }
            Err(wire::wrong_tablet(&descriptor))
        };
        call(&self.context, &position, RetryState::of_read(deadline), send).await
    }

    /// The tablet that holds a row, with the hops of its lookup.
    ///
    /// # Errors
    /// `NotFoundTable` when METADATA lists no tablet of the table, `Deadline` when METADATA could not be read in time.
    pub fn locate<'a>(
        &'a self,
        table: TableId,
        key: &'a RowKey,
        deadline: Deadline,
    ) -> BoxFuture<'a, Result<Lookup, Error>> {
        Box::pin(async move {
            let position = Position::at(table, key.clone());
            let mut retry = RetryState::of_read(deadline);
            loop {
                match self.context.lookups.locate(&position, deadline).await {
                    Ok(lookup) => return Ok(lookup),
                    Err(error) => retry.back_off(&self.context, error).await?,
                }
            }
        })
    }

    /// The rows of METADATA in a key range. `KeyRange::all()` lists every tablet of the cluster.
    ///
    /// # Errors
    /// `DataDamaged` when a row is invalid, `Deadline` or `Unavailable` when METADATA could not be read in time.
    pub fn read_metadata(&self, rows: KeyRange, deadline: Deadline) -> BoxFuture<'_, Result<Vec<MetadataRow>, Error>> {
        self.read_metadata_rows(rows, RowLimit::new(0), deadline)
    }

    /// As [`Self::read_metadata`]; rows that cannot be decoded are no error.
    ///
    /// # Errors
    /// `Deadline` or `Unavailable` when METADATA could not be read in time.
    pub fn read_readable_metadata(
        &self,
        rows: KeyRange,
        deadline: Deadline,
    ) -> BoxFuture<'_, Result<ReadableRows, Error>> {
        Box::pin(async move {
            let filter = Some(metadata::location_filter());
            let read = Read { filter, ..Read::new(TableId::METADATA, RowSet::from_ranges([rows])) };
            let mut parts = self.read_rows(read, deadline);
            let mut rows = ReadableRows::default();
            while let Some(part) = parts.try_next().await? {
                rows.add(part.response)?;
            }
            Ok(rows)
        })
    }

    /// The events of the tablets that METADATA lists in a range of its rows.
    ///
    /// # Errors
    /// As [`Self::read_metadata`].
    pub fn read_tablet_events(
        &self,
        rows: KeyRange,
        deadline: Deadline,
    ) -> BoxFuture<'_, Result<Vec<TabletEvents>, Error>> {
        Box::pin(async move {
            let mut all = Vec::new();
            self.visit_tablet_events(rows, deadline, |part| all.extend(part)).await?;
            Ok(all)
        })
    }

    /// As [`Self::read_tablet_events`], in parts: the rows of one response at a time.
    ///
    /// # Errors
    /// As [`Self::read_tablet_events`]; parts before the error were visited.
    pub async fn visit_tablet_events(
        &self,
        rows: KeyRange,
        deadline: Deadline,
        mut visit: impl FnMut(Vec<TabletEvents>) + Send,
    ) -> Result<(), Error> {
        let read = Read::new(TableId::METADATA, RowSet::from_ranges([rows]));
        let mut parts = self.read_rows(read, deadline);
        while let Some(part) = parts.try_next().await? {
            visit(metadata::decode_events(part.response)?);
        }
        Ok(())
    }

    /// As [`Self::read_metadata`], for the first rows of the range.
    ///
    /// # Errors
    /// As [`Self::read_metadata`].
    pub fn read_metadata_rows(
        &self,
        rows: KeyRange,
        limit: RowLimit,
        deadline: Deadline,
    ) -> BoxFuture<'_, Result<Vec<MetadataRow>, Error>> {
        Box::pin(async move {
            let filter = Some(metadata::location_filter());
            let read = Read { filter, limit, ..Read::new(TableId::METADATA, RowSet::from_ranges([rows])) };
            let mut parts = self.read_rows(read, deadline);
            let mut rows = Vec::new();
            while let Some(part) = parts.try_next().await? {
                rows.extend(metadata::decode_rows(part.response)?);
            }
            Ok(rows)
        })
    }
}
