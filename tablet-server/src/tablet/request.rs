//! Requests to a tablet and their results, as values.

use ebla_model::cell::Row;
use ebla_model::filter::CompiledFilter;
use ebla_model::id::{Generation, Sequence, SessionId};
use ebla_model::idempotency::IdempotencyToken;
use ebla_model::key::{RowKey, RowSet};
use ebla_model::limit::RowLimit;
use ebla_model::mutation::Mutation;
use ebla_model::rmw::Rule;
use ebla_runtime::Reservation;

use crate::response_budget::Memory;

/// The permanent id of one write: however often it is sent, it is applied once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteId {
    /// The session of the sending front or client.
    pub session: SessionId,
    /// Its sequence number in that session.
    pub sequence: Sequence,
    /// Every lower sequence of the session has been answered and will not be sent again.
    pub lowest_outstanding: Sequence,
}

/// A read of rows.
#[derive(Clone, Debug)]
pub struct ReadRequest {
    /// The tablet's generation as the caller knows it; another one fails with `WrongTablet`.
    pub generation: Generation,
    /// The rows to read. Rows outside the tablet are ignored.
    pub rows: RowSet,
    /// `None`: all cells.
    pub filter: Option<CompiledFilter>,
    /// Maximum number of rows after filtering, over all batches of the request.
    pub limit: RowLimit,
    /// Rows in descending key order; the order within a row stays.
    pub reversed: bool,
    /// Any replica may serve it from its applied state, if the tablet belongs to METADATA: lookups treat the result as hints.
    pub any_replica: bool,
    /// A batch that is finished continues in the next tablets, if the tablet belongs to METADATA and the order is ascending: lookups need no
    /// further request where a tablet of METADATA ends.
    pub beyond_tablet: bool,
    /// The memory that the batches are charged to.
    pub memory: Memory,
}

/// The position at which the next batch of a read starts.
#[derive(Clone, Debug, Default)]
pub struct ReadPosition {
    /// All rows up to this key (down to it, when reversed) have been read.
    pub after: Option<RowKey>,
    /// Rows returned so far, which count towards the limit.
    pub rows: u64,
}

/// One batch of a read, all from one pinned view.
#[derive(Debug, Default)]
pub struct ReadBatch {
    /// Whole rows, none of them empty, in the requested order.
    pub rows: Vec<Row>,
    /// All rows up to and including this key (down to it, when reversed) have been read; `None` when none has.
    pub last_row: Option<RowKey>,
    /// The limit is reached, or no more of the requested rows are in the tablet.
    pub finished: bool,
    /// Rows with a visible cell before the filter, or with cells outside the projection.
    pub rows_seen: u64,
    /// Visible cells that the filter received.
    pub cells_seen: u64,
    /// Cells in `rows`.
    pub cells_returned: u64,
    /// The size of `rows` in bytes.
    pub bytes: usize,
    /// The memory of `rows`: to be kept as long as they are.
    pub charge: Option<Reservation>,
}

/// A write of one row: all of its mutations are applied in their order, or none.
#[derive(Clone, Debug)]
pub struct RowMutations {
    /// The id of the write.
    pub id: WriteId,
    /// The row.
    pub row: RowKey,
    /// The mutations, validated by the caller (`model::mutation::validate`).
    pub mutations: Vec<Mutation>,
    /// The caller's idempotency token.
    pub token: Option<IdempotencyToken>,
}

/// A write that depends on whether a filter matches the row.
#[derive(Clone, Debug)]
pub struct CheckRequest {
    /// The tablet's generation as the caller knows it.
    pub generation: Generation,
    /// The id of the write.
    pub id: WriteId,
    /// The row.
    pub row: RowKey,
    /// Matches when a cell passes the filter; `None`: when the row has a cell.
    pub predicate: Option<CompiledFilter>,
    /// Applied on a match.
    pub then: Vec<Mutation>,
    /// Applied without one.
    pub otherwise: Vec<Mutation>,
    /// The caller's idempotency token.
    pub token: Option<IdempotencyToken>,
}

/// A write whose values are computed from the row's content.
#[derive(Clone, Debug)]
pub struct ModifyRequest {
    /// The tablet's generation as the caller knows it.
    pub generation: Generation,
    /// The id of the write.
    pub id: WriteId,
    /// The row.
    pub row: RowKey,
    /// The rules, in order.
    pub rules: Vec<Rule>,
    /// The caller's idempotency token.
    pub token: Option<IdempotencyToken>,
}
