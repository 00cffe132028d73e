//! What a table allows: its name, its families and their rules, and the pure changes that lead from one schema to the
//! next. Families have ids that are never reused, so cells of a dropped family are never taken for those of a new one.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::aggregate::Aggregator;
use crate::cell::FamilyName;
use crate::error::{Error, Reason};
use crate::gc::GcRule;
use crate::id::{FamilyId, SchemaVersion, TableId};
use crate::instance::{InstanceName, is_parent_id, is_resource_id};

/// Longest last part of a table's name, in bytes.
pub const TABLE_ID_BYTES_MAX: usize = 50;

/// A table's public name, `projects/P/instances/I/tables/T`. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableName(Arc<str>);

impl TableName {
    /// The name made of its three parts.
    ///
    /// # Errors
    /// `InvalidArgument` when a part is not what the API allows.
    pub fn from_parts(project: &str, instance: &str, table: &str) -> Result<Self, Error> {
        format!("projects/{project}/instances/{instance}/tables/{table}").parse()
    }

    /// The name of METADATA: one that no user can give to a table.
    pub fn metadata() -> Self {
        Self("projects/-/instances/-/tables/METADATA".into())
    }

    /// The whole name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The project's name.
    pub fn project(&self) -> &str {
        self.part(1)
    }

    /// The instance's name within its project.
    pub fn instance(&self) -> &str {
        self.part(3)
    }

    /// The table's name within its instance.
    pub fn table(&self) -> &str {
        self.part(5)
    }

    /// Whether the table belongs to this instance.
    pub fn is_in(&self, instance: &InstanceName) -> bool {
        self.project() == instance.project() && self.instance() == instance.instance()
    }

    fn part(&self, at: usize) -> &str {
        self.0.split('/').nth(at).unwrap_or_default()
    }
}

/// Whether `name` may be the last part of a table's name.
fn is_table_id(name: &str) -> bool {
    name.len() <= TABLE_ID_BYTES_MAX && is_resource_id(name)
}

impl FromStr for TableName {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        let parts: Vec<_> = name.split('/').collect();
        match parts.as_slice() {
            ["projects", project, "instances", instance, "tables", table]
                if is_parent_id(project) && is_parent_id(instance) && is_table_id(table) =>
            {
                Ok(Self(name.into()))
            }
            _ => Err(Error::invalid(format!(
                "invalid table name {name:?}: expected projects/P/instances/I/tables/T, where T has at most \
                 {TABLE_ID_BYTES_MAX} of letters, digits and -_. and begins with a letter, a digit or _"
            ))),
        }
    }
}

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &self.0)
    }
}

/// A column family of a table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Family {
    /// Stands in the keys of its cells.
    pub id: FamilyId,
    /// Its public name.
    pub name: FamilyName,
    /// Which versions are dead; `None` keeps all.
    pub gc: Option<GcRule>,
    /// Families of one number are stored together.
    pub locality_group: u32,
    /// How its cells aggregate, from its beginning to its end; `None`: they hold what is written.
    pub aggregator: Option<Aggregator>,
}

/// A family that is to be made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewFamily {
    /// Its name.
    pub name: FamilyName,
    /// Its rule.
    pub gc: Option<GcRule>,
    /// How its cells aggregate, if they do.
    pub aggregator: Option<Aggregator>,
}

impl NewFamily {
    /// One whose cells hold what is written.
    pub const fn plain(name: FamilyName, gc: Option<GcRule>) -> Self {
        Self { name, gc, aggregator: None }
    }
}

/// Where a table is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TableState {
    /// Its tablets are being made.
    Creating,
    /// It serves.
    Active,
    /// Its tablets are being dropped.
    Deleting,
}

/// A table: the truth about its families.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TableSchema {
    /// The table's id.
    pub table: TableId,
    /// Its public name.
    pub name: TableName,
    /// Rises by one with each change.
    pub version: SchemaVersion,
    /// In order of their ids, which is the order in which they were made.
    pub families: Vec<Family>,
    /// The id of the next family; never falls.
    pub next_family: FamilyId,
    /// Whether the table and its families are guarded against deletion.
    pub deletion_protection: bool,
    /// Where it is in its life.
    pub state: TableState,
}

/// One step of a change of a table's families.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FamilyChange {
    /// A new family.
    Create(NewFamily),
    /// Another rule for a family.
    Update {
        /// Its name.
        name: FamilyName,
        /// The rule that replaces the present one; `None` clears it.
        gc: Option<GcRule>,
        /// How the caller says that its cells aggregate, which does not change; `None` says nothing.
        aggregator: Option<Aggregator>,
    },
    /// A family goes, with all its cells.
    Drop {
        /// Its name.
        name: FamilyName,
    },
}

/// A change of what a table is beside its families.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TableUpdate {
    /// Whether the table and its families are guarded against deletion.
    DeletionProtection(Protection),
}

/// Whether something is guarded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protection {
    /// It is.
    On,
    /// It is not.
    Off,
}

impl TableSchema {
    /// A new table with these families, none of them an aggregate, being created.
    ///
    /// # Errors
    /// As [`Self::apply`].
    pub fn new(
        table: TableId,
        name: TableName,
        families: impl IntoIterator<Item = (FamilyName, Option<GcRule>)>,
    ) -> Result<Self, Error> {
        let plain = |(name, gc)| NewFamily::plain(name, gc);
        Self::with_families(table, name, families.into_iter().map(plain))
    }

    /// A new table with these families, being created.
    ///
    /// # Errors
    /// As [`Self::apply`].
    pub fn with_families(
        table: TableId,
        name: TableName,
        families: impl IntoIterator<Item = NewFamily>,
    ) -> Result<Self, Error> {
        let mut schema = Self {
            table,
            name,
            version: SchemaVersion::new(1),
            families: Vec::new(),
            next_family: FamilyId::new(1),
            deletion_protection: false,
            state: TableState::Creating,
        };
        for family in families {
            schema.create_family(family)?;
        }
        Ok(schema)
    }

    /// The schema of METADATA, the same in every cluster and kept nowhere.
    pub fn metadata() -> Self {
        let family = |id, name: &'static str| Family {
            id,
            name: FamilyName::from_static(name),
            gc: Some(GcRule::MaxVersions(1)),
            locality_group: 0,
            aggregator: None,
        };
        Self {
            table: TableId::METADATA,
            name: TableName::metadata(),
            version: SchemaVersion::new(1),
            families: vec![family(FamilyId::LOCATION, "location"), family(FamilyId::EVENTS, "events")],
            next_family: FamilyId::EVENTS.next(),
            deletion_protection: true,
            state: TableState::Active,
        }
    }

    /// The family of this name.
    pub fn family_by_name(&self, name: &str) -> Option<&Family> {
        self.families.iter().find(|family| family.name.as_str() == name)
    }

    /// The family with this id; `None` when it was dropped.
    pub fn family_by_id(&self, id: FamilyId) -> Option<&Family> {
        self.families.iter().find(|family| family.id == id)
    }

    /// The family of this name, or the error that tells a user of its absence.
    ///
    /// # Errors
    /// `NotFoundFamily`.
    pub fn require_family(&self, name: &str) -> Result<&Family, Error> {
        self.family_by_name(name).ok_or_else(|| {
            Error::new(
                Reason::NotFoundFamily,
                format!("Table {}: Requested column family not found: {name}", self.name),
            )
        })
    }

    /// The schema after this update; its version is one higher.
    #[must_use]
    pub fn update(&self, update: TableUpdate) -> Self {
        let TableUpdate::DeletionProtection(protection) = update;
        let deletion_protection = protection == Protection::On;
        Self { version: self.version.next(), deletion_protection, ..self.clone() }
    }

    /// The schema after these changes, taken in order, all or nothing; its version is one higher.
    ///
    /// # Errors
    /// `AlreadyExists` for a family that exists, `NotFoundFamily` for one that does not, `InvalidArgument` for a bad
    /// rule or another way of aggregating, `FailedPrecondition` for a drop in a protected table.
    pub fn apply(&self, changes: &[FamilyChange]) -> Result<Self, Error> {
        let mut next = self.clone();
        next.version = self.version.next();
        for change in changes {
            match change.clone() {
                FamilyChange::Create(family) => next.create_family(family)?,
                FamilyChange::Update { name, gc, aggregator } => next.update_family(&name, gc, aggregator)?,
                FamilyChange::Drop { name } => next.drop_family(&name)?,
            }
        }
        Ok(next)
    }

    fn create_family(&mut self, family: NewFamily) -> Result<(), Error> {
        let NewFamily { name, gc, aggregator } = family;
        if self.family_by_name(name.as_str()).is_some() {
            return Err(Error::new(Reason::AlreadyExists, format!("column family {name} already exists")));
        }
        gc.as_ref().map_or(Ok(()), GcRule::validate)?;
        let id = self.next_family;
        self.next_family = id.next();
        self.families.push(Family { id, name, gc, locality_group: 0, aggregator });
        Ok(())
    }

    fn update_family(
        &mut self,
        name: &FamilyName,
        gc: Option<GcRule>,
        aggregator: Option<Aggregator>,
    ) -> Result<(), Error> {
        gc.as_ref().map_or(Ok(()), GcRule::validate)?;
        let family = self.families.iter_mut().find(|family| family.name == *name).ok_or_else(|| absent(name))?;
        if aggregator.is_some() && family.aggregator != aggregator {
            return Err(Error::invalid(format!("the value_type of column family {name} cannot be changed")));
        }
        family.gc = gc;
        Ok(())
    }

    fn drop_family(&mut self, name: &FamilyName) -> Result<(), Error> {
        if self.deletion_protection {
            let message = format!("the table is protected against deletion: column family {name} stays");
            return Err(Error::new(Reason::FailedPrecondition, message));
        }
        let at = self.families.iter().position(|family| family.name == *name).ok_or_else(|| absent(name))?;
        self.families.remove(at);
        Ok(())
    }
}

fn absent(name: &FamilyName) -> Error {
    Error::new(Reason::NotFoundFamily, format!("Requested column family not found: {name}"))
}
