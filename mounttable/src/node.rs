//! What a node's row says: the translation between cells and [`Node`], and the conditions that changes are made under.
//!
//! A child is *live* only if its live parent's reference is `C<i>`, its own incarnation is `i`, it names the parent's
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
use crate::store::{Cell, Change, Family, Predicate, Row};

/// One creation of a row. Never used again, so a reference to it means this one or nothing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Incarnation(u64);

impl Incarnation {
    /// The incarnation of this number.
    pub const fn new(bits: u64) -> Self {
        Self(bits)
    }
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// What a parent knows of a child.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reference {
    /// Somebody makes it; it is not there yet.
    Pending(Incarnation),
    /// It is there.
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

    /// The reference whose column has this value, if any has.
    pub fn read(text: &str) -> Option<Self> {
        let (kind, digits) = text.split_at_checked(1)?;
        let of = Incarnation(hex(digits)?);
        match kind {
            "P" => Some(Self::Pending(of)),
            "C" => Some(Self::Committed(of)),
            _ => None,
        }
    }

    /// Which creation of the child it means.
    pub const fn incarnation(self) -> Incarnation {
        match self {
            Self::Pending(of) | Self::Committed(of) => of,
        }
    }
}

/// Whether the row is in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Epoch {
    /// It is; its permissions have been set this many times.
    Alive(u64),
    /// It is being deleted, and never comes back.
    Dead,
}

/// A node as its row tells it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    /// Its name.
    pub name: NodeName,
    /// Which creation of the row this is.
    pub incarnation: Incarnation,
    /// Changes with every change of the row.
    pub version: u64,
    /// Whether it is in use.
    pub epoch: Epoch,
    /// The parent's incarnation; its own for the root.
    pub parent: Incarnation,
    /// Who is charged for it.
    pub creator: UserId,
    /// When it was made.
    pub created: Micros,
    /// Whether it stays when it is empty.
    pub stickiness: Stickiness,
    /// Who may do what.
    pub permissions: Permissions,
    /// What is mounted, expired or not.
    pub servers: Vec<MountedServer>,
    /// The references to children that were read, and since when they are there.
    pub children: BTreeMap<String, (Reference, Micros)>,
}

/// What stands in a server's cell.
#[derive(Serialize, Deserialize)]
struct ServerCell {
    #[serde(default)]
    target: Target,
    mounter: String,
    /// Absent where it is zero, as in cells that were written before there was such a field.
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

    /// Reads a row.
    ///
    /// # Errors
    /// `DAMAGED` when it is not what a node writes.
    pub fn decode(name: &NodeName, row: &Row) -> Result<Self, Error> {
        let damaged = |column: &str| damaged(name.as_str(), column);
        let cell = |column: &str| row.get(&(Family::Meta, column.to_owned())).ok_or_else(|| damaged(column));
        let number = |column: &str| cell(column).and_then(|cell| hex(&cell.value).ok_or_else(|| damaged(column)));
        let incarnation = Incarnation(number("i")?);
        let epoch = match cell("e")?.value.split_once('.') {
            None if cell("e")?.value == DEAD => Epoch::Dead,
            Some((of, generation)) if of == incarnation.to_string() => {
                Epoch::Alive(generation.parse().map_err(|_| damaged("e"))?)
            }
            _ => return Err(damaged("e")),
        };
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
            permissions: Permissions::from_json(&cell("p")?.value).map_err(|_| damaged("p"))?,
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

    /// The steps that write the whole row anew, over whatever was there.
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

    /// Still this creation, alive, with these permissions.
    pub fn alive(&self) -> Predicate {
        Predicate::Is(Family::Meta, "e".to_owned(), self.epoch_text())
    }

    /// Nothing at all has changed.
    pub fn unchanged(&self) -> Predicate {
        let version = Predicate::Is(Family::Meta, "v".to_owned(), digits(self.version));
        Predicate::All(vec![is_incarnation(self.incarnation), version])
    }

    /// Whether this is the live child that `parent`, itself live, refers to.
    pub fn is_child_of(&self, parent: &Self) -> bool {
        let element = self.name.split_last().map(|(_, element)| element.to_owned()).unwrap_or_default();
        self.is_meant_by(parent.incarnation, parent.reference(&element))
    }

    /// The same, of the parent's incarnation and what it knows of the child.
    pub fn is_meant_by(&self, parent: Incarnation, reference: Option<Reference>) -> bool {
        self.parent == parent && reference == Some(Reference::Committed(self.incarnation))
    }

    /// What it knows of a child.
    pub fn reference(&self, element: &str) -> Option<Reference> {
        self.children.get(element).map(|(reference, _)| *reference)
    }
}

/// The error of a row that does not say what a node's row says, for the first column that is wrong.
pub(crate) fn damaged(name: &str, column: &str) -> Error {
    Error::new(Reason::Damaged, format!("row of {name:?}: column {column:?} is damaged"))
}

/// The epoch of what is being deleted.
pub const DEAD: &str = "dead";

/// The row is this creation.
pub fn is_incarnation(of: Incarnation) -> Predicate {
    Predicate::Is(Family::Meta, "i".to_owned(), of.to_string())
}

/// The row is this creation, alive, whatever its permissions.
pub fn is_alive(of: Incarnation) -> Predicate {
    Predicate::Begins(Family::Meta, "e".to_owned(), format!("{of}."))
}

/// The row is being deleted.
pub fn is_dead() -> Predicate {
    Predicate::Is(Family::Meta, "e".to_owned(), DEAD.to_owned())
}

/// The row's reference to the child `element` is this.
pub fn refers(element: &str, to: Option<Reference>) -> Predicate {
    match to {
        Some(to) => Predicate::Is(Family::Children, element.to_owned(), to.text()),
        None => Predicate::HasNot(Family::Children, element.to_owned()),
    }
}

/// What the row says of the server at an address: that of `as_read`, its deadline apart, or nothing.
pub fn holds(address: &ServerAddress, as_read: Option<&MountedServer>) -> Predicate {
    let column = address.as_str().to_owned();
    match as_read {
        Some(server) => Predicate::Is(Family::Servers, column, server_text(server)),
        None => Predicate::HasNot(Family::Servers, column),
    }
}

/// Makes the row's reference to `element` this one.
pub fn refer(element: &str, to: Reference, at: Micros) -> Vec<Change> {
    let column = || element.to_owned();
    let cell = Cell { timestamp: at, value: to.text() };
    vec![Change::DeleteColumn(Family::Children, column()), Change::Set(Family::Children, column(), cell)]
}

/// Gives the row a version that it never had.
pub fn new_version(version: u64, at: Micros) -> Vec<Change> {
    // Clocks differ between servers, and a version of an earlier time must not be hidden by the last.
    vec![Change::DeleteColumn(Family::Meta, "v".to_owned()), set("v", digits(version), at)]
}

/// Marks the row as being deleted.
pub fn die(at: Micros) -> Vec<Change> {
    vec![Change::DeleteColumn(Family::Meta, "e".to_owned()), set("e", DEAD.to_owned(), at)]
}

/// Writes the node's permissions and epoch, and makes it stay.
pub fn permit(node: &Node, at: Micros) -> Vec<Change> {
    let cells = [("p", node.permissions.to_json()), ("e", node.epoch_text()), ("s", "1".to_owned())];
    let steps = |(column, value): (&str, String)| {
        [Change::DeleteColumn(Family::Meta, column.to_owned()), set(column, value, at)]
    };
    cells.into_iter().flat_map(steps).collect()
}

/// Mounts a server, whatever was there under its address.
pub fn mount(server: &MountedServer) -> Vec<Change> {
    let column = || server.address.as_str().to_owned();
    let cell = Cell { timestamp: server.deadline.as_micros(), value: server_text(server) };
    // An earlier deadline is an earlier version, which the cell that is there would hide.
    vec![Change::DeleteColumn(Family::Servers, column()), Change::Set(Family::Servers, column(), cell)]
}

fn server_text(server: &MountedServer) -> String {
    let mounter = server.mounter.as_str().to_owned();
    let ttl_millis = u64::try_from(server.ttl.as_millis()).unwrap_or(u64::MAX);
    let cell = ServerCell { target: server.target, mounter, ttl_millis };
    // A string, a number and an enum have no way to fail.
    serde_json::to_string(&cell).unwrap_or_default()
}

fn set(column: &str, value: String, at: Micros) -> Change {
    Change::Set(Family::Meta, column.to_owned(), Cell { timestamp: at, value })
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
