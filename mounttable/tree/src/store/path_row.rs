//! A row on a path: the row's own cells and its reference to the next row of the path, shared without copying.
//!
//! Popular names share a few rows near the root. Such a row is decoded once, on first use, and stays decoded as long as
//! its cells are cached.

use std::sync::{Arc, OnceLock};

use ebla_model::Micros;

use crate::error::Error;
use crate::node::{Node, Reference, damaged};
use crate::store::{Family, Row};

/// The overhead of one cell besides its bytes: map nodes, counts, a time.
pub(super) const OVERHEAD_BYTES: usize = 160;

/// Cells of a row that were read together: its own, or its reference to one child.
#[derive(Debug)]
pub struct RowPart {
    cells: Row,
    /// The memory of the cells, approximately.
    bytes: usize,
    /// The latest deadline of a server.
    live_until: Micros,
    /// The decoded reference to the last child, unless it is damaged.
    reference: Option<Reference>,
    node: OnceLock<Result<Arc<Node>, Error>>,
}

impl RowPart {
    /// A part with these cells.
    pub fn new(cells: Row) -> Self {
        let servers = cells.iter().filter(|((family, _), _)| *family == Family::Servers);
        let live_until = servers.map(|(_, cell)| cell.timestamp).max().unwrap_or(Micros::ZERO);
        let child = cells.last_key_value().filter(|((family, _), _)| *family == Family::Children);
        let reference = child.and_then(|(_, cell)| Reference::read(&cell.value));
        let bytes = cells.iter().map(|((_, column), cell)| column.len() + cell.value.len() + OVERHEAD_BYTES).sum();
        Self { bytes, live_until, reference, cells, node: OnceLock::new() }
    }

    /// The cells, at least one unless the row is damaged.
    pub const fn cells(&self) -> &Row {
        &self.cells
    }

    /// The memory of the part in bytes, approximately: as cells, and as the node decoded from them.
    pub const fn bytes(&self) -> usize {
        self.bytes.saturating_mul(2)
    }

    /// The time until which it has a live server, so that every walk ends here. When an outage has extended that
    /// deadline, a walk reads more rows than it needs, and still ends here.
    pub const fn live_until(&self) -> Micros {
        self.live_until
    }

    /// Whether it refers to a child that is being created.
    pub const fn is_pending(&self) -> bool {
        matches!(self.reference, Some(Reference::Pending(_)))
    }

    /// The node in a row's own cells, without children. `name` must be the row's name in every call.
    ///
    /// # Errors
    /// `DAMAGED`, as [`Node::decode`].
    pub fn node(&self, name: &str) -> Result<Arc<Node>, Error> {
        let decoded = || Node::decode(&name.parse()?, &self.cells).map(Arc::new);
        self.node.get_or_init(decoded).clone()
    }
}

/// The decoded values follow from the cells.
impl PartialEq for RowPart {
    fn eq(&self, other: &Self) -> bool {
        self.cells == other.cells
    }
}

/// A row on a path. Cheap to clone.
#[derive(Clone, PartialEq, Debug)]
pub struct PathRow {
    /// The row's own cells.
    pub own: Arc<RowPart>,
    /// Its reference to the next child on the path; `None` when there is none, or the path ends.
    pub reference: Option<Arc<RowPart>>,
}

impl PathRow {
    /// The part of a row that a walk to `child` needs.
    pub fn of(mut row: Row, child: Option<&str>) -> Self {
        // Children are the last family.
        let mut reference = row.split_off(&(Family::Children, String::new()));
        reference.retain(|(_, column), _| child == Some(column.as_str()));
        let reference = (!reference.is_empty()).then(|| Arc::new(RowPart::new(reference)));
        Self { own: Arc::new(RowPart::new(row)), reference }
    }

    /// The memory of its parts in bytes, approximately.
    pub fn bytes(&self) -> usize {
        self.own.bytes().saturating_add(self.reference.as_ref().map_or(0, |part| part.bytes()))
    }

    /// The reference to the next row. `name` is the name of this row.
    ///
    /// # Errors
    /// `DAMAGED`.
    pub fn reference(&self, name: &str) -> Result<Option<Reference>, Error> {
        let Some(part) = &self.reference else { return Ok(None) };
        let column = || part.cells().keys().next().map_or("", |(_, column)| column.as_str());
        part.reference.map(Some).ok_or_else(|| damaged(name, column()))
    }
}
