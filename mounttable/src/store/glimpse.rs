//! What a walk sees of a row: the row's own cells and its reference to the next row of the path, shared, not copied.
//!
//! Names that many ask for lead through the same few rows. What such a row says is worked out by whoever first wants to
//! know, and is known then for as long as its cells are.

use std::sync::{Arc, OnceLock};

use ebla_model::Micros;

use crate::error::Error;
use crate::node::{Node, Reference, damaged};
use crate::store::{Family, Row};

/// Cells of a row as they were read together: its own, or its reference to one child.
#[derive(Debug)]
pub struct Part {
    cells: Row,
    /// The latest deadline of a server.
    served_until: Micros,
    /// What the last child's column says, unless it is damaged.
    reference: Option<Reference>,
    node: OnceLock<Result<Arc<Node>, Error>>,
}

impl Part {
    /// These cells.
    pub fn new(cells: Row) -> Self {
        let servers = cells.iter().filter(|((family, _), _)| *family == Family::Servers);
        let served_until = servers.map(|(_, cell)| cell.timestamp).max().unwrap_or(Micros::ZERO);
        let child = cells.last_key_value().filter(|((family, _), _)| *family == Family::Children);
        let reference = child.and_then(|(_, cell)| Reference::read(&cell.value));
        Self { served_until, reference, cells, node: OnceLock::new() }
    }

    /// The cells, at least one unless the row is damaged.
    pub const fn cells(&self) -> &Row {
        &self.cells
    }

    /// Until when it has a live server, so that every walk ends here. A deadline that somebody has put off makes a walk go
    /// on, and then it ends here after all: it has read more than it needed.
    pub const fn served_until(&self) -> Micros {
        self.served_until
    }

    /// Whether it refers to a child that is being made.
    pub const fn is_pending(&self) -> bool {
        matches!(self.reference, Some(Reference::Pending(_)))
    }

    /// The node that a row's own cells tell of, without children. `name` is the row's, in every call.
    ///
    /// # Errors
    /// `DAMAGED`, as [`Node::decode`].
    pub fn node(&self, name: &str) -> Result<Arc<Node>, Error> {
        let decoded = || Node::decode(&name.parse()?, &self.cells).map(Arc::new);
        self.node.get_or_init(decoded).clone()
    }
}

/// What the cells say follows from them.
impl PartialEq for Part {
    fn eq(&self, other: &Self) -> bool {
        self.cells == other.cells
    }
}

/// A row on a path. Cheap to clone.
#[derive(Clone, PartialEq, Debug)]
pub struct Glimpse {
    /// The row's own cells.
    pub own: Arc<Part>,
    /// Its reference to the child that comes next on the path; `None` when it has none, or the path ends.
    pub reference: Option<Arc<Part>>,
}

impl Glimpse {
    /// What a walk to `child` sees of a row as read.
    pub fn of(mut row: Row, child: Option<&str>) -> Self {
        // Children are the last family.
        let mut reference = row.split_off(&(Family::Children, String::new()));
        reference.retain(|(_, column), _| child == Some(column.as_str()));
        let reference = (!reference.is_empty()).then(|| Arc::new(Part::new(reference)));
        Self { own: Arc::new(Part::new(row)), reference }
    }

    /// The reference to the next row. `name` is that of this row.
    ///
    /// # Errors
    /// `DAMAGED`.
    pub fn reference(&self, name: &str) -> Result<Option<Reference>, Error> {
        let Some(part) = &self.reference else { return Ok(None) };
        let column = || part.cells().keys().next().map_or("", |(_, column)| column.as_str());
        part.reference.map(Some).ok_or_else(|| damaged(name, column()))
    }
}
