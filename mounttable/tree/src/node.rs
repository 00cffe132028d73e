//! Nodes as rows: the translation between cells and [`Node`], and the conditions and changes of the protocol.
//!
//! A child is *live* only if its live parent's reference is `C<i>`, its own incarnation is `i`, its `q` is the parent's
//! incarnation, and it is not dead. Anything else is treated as absent.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use ebla_model::Micros;
use serde::{Deserialize, Serialize};

use crate::access::Permissions;
use crate::address::ServerAddress;
use crate::error::{Error, Reason};
use crate::file::Stickiness;
use crate::identity::UserId;
use crate::key::row_key;
use crate::mount::{Deadline, MountedServer, Target};
use crate::name::NodeName;
use crate::store::{Cell, Change, Condition, Family, Row};

/// An incarnation: identifies one creation of a row. It is never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Incarnation(u64);

impl Incarnation {
    /// The incarnation with this number.
    pub const fn new(bits: u64) -> Self {
        Self(bits)
    }
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// A parent's reference to a child.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reference {
    /// The child is being created; it is not live yet.
    Pending(Incarnation),
    /// The child is live.
    Committed(Incarnation),
}

impl Reference {
    /// The value of the parent's column.
    pub fn text(self) -> String {
        match self {
            Self::Pending(of) => format!("P{of}"),
            Self::Committed(of) => format!("C{of}"),
        }
    }

    /// The reference with this text, if it is valid.
    pub fn read(text: &str) -> Option<Self> {
        let (kind, digits) = text.split_at_checked(1)?;
        let of = Incarnation(hex(digits)?);
        match kind {
            "P" => Some(Self::Pending(of)),
            "C" => Some(Self::Committed(of)),
            _ => None,
        }
    }

    /// The incarnation of the child.
    pub const fn incarnation(self) -> Incarnation {
        match self {
            Self::Pending(of) | Self::Committed(of) => of,
        }
    }
}

/// The state of a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Epoch {
    /// In use; its permissions have been set this many times.
    Alive(u64),
    /// Being deleted; it never comes back.
    Dead,
}

/// The contents of a node's row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    /// Its name.
    pub name: NodeName,
    /// The incarnation of the row.
    pub incarnation: Incarnation,
    /// Every change of the row changes it.
    pub version: u64,
    /// Whether it is alive.
    pub epoch: Epoch,
    /// The parent's incarnation; its own for the root.
    pub parent: Incarnation,
    /// The user who is charged for it.
    pub creator: UserId,
    /// The time of its creation.
    pub created: Micros,
    /// Whether it stays when it is empty.
    pub stickiness: Stickiness,
    /// Its permissions.
    pub permissions: Permissions,
    /// Its servers, expired or not.
    pub servers: Vec<MountedServer>,
    /// The references to children that were read, and their timestamps.
    pub children: BTreeMap<String, (Reference, Micros)>,
}

/// The contents of a server's cell.
#[derive(Serialize, Deserialize)]
struct ServerCell {
    #[serde(default)]
    target: Target,
    mounter: String,
    /// Absent if zero, as in cells of versions without this field.
    #[serde(default, skip_serializing_if = "is_zero")]
    ttl_millis: u64,
}

// The signature is serde's.
const fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Node {
    /// The key of its row.
    pub fn key(&self) -> String {
        row_key(&self.name)
    }

    /// Decodes a row.
    ///
    /// # Errors
    /// `DAMAGED` when it is not a valid node.
    pub fn decode(name: &NodeName, row: &Row) -> Result<Self, Error> {
        let damaged = |column: &str| damaged(name.as_str(), column);
        let cell = |column: &str| row.get(&(Family::Meta, column.to_owned())).ok_or_else(|| damaged(column));
        let number = |column: &str| cell(column).and_then(|cell| hex(&cell.value).ok_or_else(|| damaged(column)));
        let incarnation = Incarnation(number("i")?);
        let epoch = epoch(&cell("e")?.value, incarnation).ok_or_else(|| damaged("e"))?;
        let creator = cell("c")?;
        let mut node = Self {
            name: name.clone(),
            incarnation,
            version: number("v")?,
            epoch,
            parent: Incarnation(number("q")?),
            creator: UserId::stored(&creator.value),
            created: creator.timestamp,
            stickiness: if cell("s").is_ok() { Stickiness::Sticky } else { Stickiness::Collected },
            permissions: Permissions::from_stored(&cell("p")?.value).map_err(|_| damaged("p"))?,
            servers: Vec::new(),
            children: BTreeMap::new(),
        };
        for ((family, column), cell) in row {
            match family {
                Family::Meta => {}
                Family::Servers => node.servers.push(server(column, cell).ok_or_else(|| damaged(column))?),
                Family::Children => {
                    let reference = Reference::read(&cell.value).ok_or_else(|| damaged(column))?;
                    node.children.insert(column.clone(), (reference, cell.timestamp));
                }
            }
        }
        Ok(node)
    }

    /// The changes that write the whole row, over any previous content.
    pub fn write(&self) -> Vec<Change> {
        let at = self.created;
        let mut changes = vec![
            Change::DeleteRow,
            set("i", self.incarnation.to_string(), at),
            set("q", self.parent.to_string(), at),
            set("c", self.creator.as_str().to_owned(), at),
            set("p", self.permissions.to_json(), at),
            set("e", self.epoch_text(), at),
            set("v", digits(self.version), at),
        ];
        changes.extend((self.stickiness == Stickiness::Sticky).then(|| set("s", "1".to_owned(), at)));
        changes
    }

    /// The value of its epoch column.
    pub fn epoch_text(&self) -> String {
        match self.epoch {
            Epoch::Alive(generation) => format!("{}.{generation}", self.incarnation),
            Epoch::Dead => DEAD.to_owned(),
        }
    }

    /// The value of its version column.
    pub fn version_text(&self) -> String {
        digits(self.version)
    }

    /// The node without permissions, servers and children: enough for [`Self::alive`], and of bounded size.
    #[must_use]
    pub fn bare(&self) -> Self {
        Self {
            name: self.name.clone(),
            creator: self.creator.clone(),
            permissions: Permissions::default(),
            servers: Vec::new(),
            children: BTreeMap::new(),
            ..*self
        }
    }

    /// The condition: this incarnation is alive, with these permissions.
    pub fn alive(&self) -> Condition {
        Condition::Is(Family::Meta, "e".to_owned(), self.epoch_text())
    }

    /// The condition: the row has not changed.
    pub fn unchanged(&self) -> Condition {
        let version = Condition::Is(Family::Meta, "v".to_owned(), digits(self.version));
        Condition::All(vec![is_incarnation(self.incarnation), version])
    }

    /// Whether this is the live child that `parent`, itself live, refers to.
    pub fn is_child_of(&self, parent: &Self) -> bool {
        let element = self.name.split_last().map(|(_, element)| element.to_owned()).unwrap_or_default();
        self.is_referenced_by(parent.incarnation, parent.reference(&element))
    }

    /// The same, given the parent's incarnation and its reference.
    pub fn is_referenced_by(&self, parent: Incarnation, reference: Option<Reference>) -> bool {
        self.parent == parent && reference == Some(Reference::Committed(self.incarnation))
    }

    /// Its reference to a child.
    pub fn reference(&self, element: &str) -> Option<Reference> {
        self.children.get(element).map(|(reference, _)| *reference)
    }
}

/// The error for a row that is not a valid node, with its first invalid column.
pub(crate) fn damaged(name: &str, column: &str) -> Error {
    Error::new(Reason::Damaged, format!("row of {name:?}: column {column:?} is damaged"))
}

/// The epoch of a row that is being deleted.
pub const DEAD: &str = "dead";

/// The condition: the identity of a row, damaged or not, has not changed.
pub fn same_identity(row: &Row) -> Condition {
    let column = |column: &str| match row.get(&(Family::Meta, column.to_owned())) {
        Some(cell) => Condition::Is(Family::Meta, column.to_owned(), cell.value.clone()),
        None => Condition::HasNot(Family::Meta, column.to_owned()),
    };
    Condition::All(["i", "v", "e"].map(column).into())
}

/// The changes that make a damaged row valid, apart from a new version; `None` when its identity is damaged.
///
/// Invalid servers and references are removed. Invalid permissions become closed, so that only superusers pass.
pub fn repair_changes(row: &Row, at: Micros) -> Option<Vec<Change>> {
    let value = |column: &str| row.get(&(Family::Meta, column.to_owned())).map(|cell| cell.value.as_str());
    let incarnation = Incarnation(hex(value("i")?)?);
    hex(value("q")?)?;
    epoch(value("e")?, incarnation)?;
    let mut changes = Vec::new();
    if value("p").is_none_or(|json| Permissions::from_stored(json).is_err()) {
        let closed = Permissions::default().to_json();
        changes.extend([Change::DeleteColumn(Family::Meta, "p".to_owned()), set("p", closed, at)]);
    }
    changes.extend(value("c").is_none().then(|| set("c", UserId::server().as_str().to_owned(), at)));
    for ((family, column), cell) in row {
        let is_valid = match family {
            Family::Meta => true,
            Family::Servers => server(column, cell).is_some(),
            Family::Children => Reference::read(&cell.value).is_some(),
        };
        changes.extend((!is_valid).then(|| Change::DeleteColumn(*family, column.clone())));
    }
    Some(changes)
}

/// The condition: the row has this incarnation.
pub fn is_incarnation(of: Incarnation) -> Condition {
    Condition::Is(Family::Meta, "i".to_owned(), of.to_string())
}

/// The condition: the row has this incarnation and is alive, with any permissions.
pub fn is_alive(of: Incarnation) -> Condition {
    Condition::Begins(Family::Meta, "e".to_owned(), format!("{of}."))
}

/// The condition: the row is being deleted.
pub fn is_dead() -> Condition {
    Condition::Is(Family::Meta, "e".to_owned(), DEAD.to_owned())
}

/// The condition: the row's reference to the child `element` is this.
pub fn reference_is(element: &str, to: Option<Reference>) -> Condition {
    match to {
        Some(to) => Condition::Is(Family::Children, element.to_owned(), to.text()),
        None => Condition::HasNot(Family::Children, element.to_owned()),
    }
}

/// The condition: the server at an address is that of `as_read`, apart from its deadline, or absent.
pub fn server_is(address: &ServerAddress, as_read: Option<&MountedServer>) -> Condition {
    let column = address.as_str().to_owned();
    match as_read {
        Some(server) => Condition::Is(Family::Servers, column, server_text(server)),
        None => Condition::HasNot(Family::Servers, column),
    }
}

/// Sets the row's reference to `element`.
pub fn reference_changes(element: &str, to: Reference, at: Micros) -> Vec<Change> {
    let column = || element.to_owned();
    let cell = Cell { timestamp: at, value: to.text() };
    vec![Change::DeleteColumn(Family::Children, column()), Change::Set(Family::Children, column(), cell)]
}

/// Gives the row a new version.
pub fn version_changes(version: u64, at: Micros) -> Vec<Change> {
    // Clocks of servers differ: the previous version may have a later timestamp, and must not hide this one.
    vec![Change::DeleteColumn(Family::Meta, "v".to_owned()), set("v", digits(version), at)]
}

/// Marks the row as being deleted.
pub fn death_changes(at: Micros) -> Vec<Change> {
    vec![Change::DeleteColumn(Family::Meta, "e".to_owned()), set("e", DEAD.to_owned(), at)]
}

/// Writes the node's permissions and epoch, and makes it sticky.
pub fn permission_changes(node: &Node, at: Micros) -> Vec<Change> {
    let cells = [("p", node.permissions.to_json()), ("e", node.epoch_text()), ("s", "1".to_owned())];
    let steps = |(column, value): (&str, String)| {
        [Change::DeleteColumn(Family::Meta, column.to_owned()), set(column, value, at)]
    };
    cells.into_iter().flat_map(steps).collect()
}

/// Writes a server, over any previous cell at its address.
pub fn mount_changes(server: &MountedServer) -> Vec<Change> {
    let column = || server.address.as_str().to_owned();
    let cell = Cell { timestamp: server.deadline.as_micros(), value: server_text(server) };
    // A cell with an earlier deadline has an earlier timestamp, and the existing cell would hide it.
    vec![Change::DeleteColumn(Family::Servers, column()), Change::Set(Family::Servers, column(), cell)]
}

fn server_text(server: &MountedServer) -> String {
    let mounter = server.mounter.as_str().to_owned();
    let ttl_millis = u64::try_from(server.ttl.as_millis()).unwrap_or(u64::MAX);
    let cell = ServerCell { target: server.target, mounter, ttl_millis };
    // Serialising a string, a number and an enum cannot fail.
    serde_json::to_string(&cell).unwrap_or_default()
}

fn set(column: &str, value: String, at: Micros) -> Change {
    Change::Set(Family::Meta, column.to_owned(), Cell { timestamp: at, value })
}

fn epoch(text: &str, of: Incarnation) -> Option<Epoch> {
    match text.split_once('.') {
        None => (text == DEAD).then_some(Epoch::Dead),
        Some((incarnation, generation)) if incarnation == of.to_string() => generation.parse().ok().map(Epoch::Alive),
        Some(_) => None,
    }
}

fn digits(number: u64) -> String {
    format!("{number:016x}")
}

fn hex(text: &str) -> Option<u64> {
    let is_right = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    u64::from_str_radix(text, 16).ok().filter(|_| is_right)
}

fn server(column: &str, cell: &Cell) -> Option<MountedServer> {
    let stored: ServerCell = serde_json::from_str(&cell.value).ok()?;
    Some(MountedServer {
        address: column.parse().ok()?,
        target: stored.target,
        deadline: Deadline::at(cell.timestamp),
        ttl: Duration::from_millis(stored.ttl_millis),
        mounter: UserId::stored(&stored.mounter),
    })
}
