//! Table schemas: name, column families and their rules, and schema changes as pure functions. Family ids are never reused,
//! so cells of a dropped family are never treated as those of a new one.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::admin::instance::{InstanceName, is_parent_id, is_resource_id};
use crate::aggregate::Aggregator;
use crate::cell::FamilyName;
use crate::error::{Error, Reason};
use crate::gc::GcRule;
use crate::id::{FamilyId, SchemaVersion, TableId};

/// Longest last part of a table's name, in bytes.
pub const TABLE_ID_BYTES_MAX: usize = 50;

/// A table's public name, `projects/P/instances/I/tables/T`. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableName(Arc<str>);

impl TableName {
    /// Builds the name from its three parts.
    ///
    /// # Errors
    /// `InvalidArgument` when a part is invalid.
    pub fn from_parts(project: &str, instance: &str, table: &str) -> Result<Self, Error> {
        format!("projects/{project}/instances/{instance}/tables/{table}").parse()
    }

    /// The name of METADATA, which no user table can have.
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
    /// Part of the keys of its cells.
    pub id: FamilyId,
    /// Its public name.
    pub name: FamilyName,
    /// The garbage collection rule; `None` retains all versions.
    pub gc: Option<GcRule>,
    /// Families with the same number are stored together.
    pub locality_group: u32,
    /// The aggregator, which never changes; `None`: a plain family.
    pub aggregator: Option<Aggregator>,
}

/// A family to create.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewFamily {
    /// Its name.
    pub name: FamilyName,
    /// Its rule.
    pub gc: Option<GcRule>,
    /// The aggregator, for an aggregate family.
    pub aggregator: Option<Aggregator>,
}

impl NewFamily {
    /// A plain family.
    pub const fn plain(name: FamilyName, gc: Option<GcRule>) -> Self {
        Self { name, gc, aggregator: None }
    }
}

/// Lifecycle state of a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TableState {
    /// Its tablets are being created.
    Creating,
    /// It is serving.
    Active,
    /// Its tablets are being dropped.
    Deleting,
}

/// The schema of a table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TableSchema {
    /// The table's id.
    pub table: TableId,
    /// Its public name.
    pub name: TableName,
    /// Rises by one with each change.
    pub version: SchemaVersion,
    /// In order of their ids, which is the order of creation.
    pub families: Vec<Family>,
    /// The id of the next family; never falls.
    pub next_family: FamilyId,
    /// Whether the table and its families are guarded against deletion.
    pub deletion_protection: bool,
    /// Its lifecycle state.
    pub state: TableState,
}

/// A change of a table's families.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FamilyChange {
    /// Creates a family.
    Create(NewFamily),
    /// Changes the rule of a family.
    Update {
        /// Its name.
        name: FamilyName,
        /// The new rule; `None` clears it.
        gc: Option<GcRule>,
        /// The aggregator according to the caller, which cannot change; `None`: unspecified.
        aggregator: Option<Aggregator>,
    },
    /// Drops a family with all its cells.
    Drop {
        /// Its name.
        name: FamilyName,
    },
}

/// A change of a table's other properties.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TableUpdate {
    /// Whether the table and its families are guarded against deletion.
    DeletionProtection(Protection),
}

/// Deletion protection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protection {
    /// Protected.
    On,
    /// Not protected.
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

    /// The schema of METADATA, the same in every cluster and never stored.
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

    /// The family of this name, or the error for users.
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

    /// The schema after these changes, applied in order, all or nothing; its version is one higher.
    ///
    /// # Errors
    /// `AlreadyExists` for a family that exists, `NotFoundFamily` for one that does not, `InvalidArgument` for an invalid rule
    /// or another aggregator, `FailedPrecondition` for a drop in a protected table.
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
        let family =
            self.families.iter_mut().find(|family| family.name == *name).ok_or_else(|| family_not_found(name))?;
        if aggregator.is_some() && family.aggregator != aggregator {
            return Err(Error::invalid(format!("the value_type of column family {name} cannot be changed")));
        }
        family.gc = gc;
        Ok(())
    }

    fn drop_family(&mut self, name: &FamilyName) -> Result<(), Error> {
        if self.deletion_protection {
            let message = format!("the table is protected against deletion: cannot drop column family {name}");
            return Err(Error::new(Reason::FailedPrecondition, message));
        }
        let at = self.families.iter().position(|family| family.name == *name).ok_or_else(|| family_not_found(name))?;
        self.families.remove(at);
        Ok(())
    }
}

fn family_not_found(name: &FamilyName) -> Error {
    Error::new(Reason::NotFoundFamily, format!("Requested column family not found: {name}"))
}
