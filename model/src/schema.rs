//! Table schemas: name, column families and their rules, and schema changes as pure functions. Family ids are never reused,
//! so cells of a dropped family are never treated as those of a new one.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::admin::instance::{InstanceName, is_parent_id, is_resource_id};
use crate::aggregate::Aggregator;
use crate::cell::FamilyName;
use crate::error::{Error, Reason};
use crate::gc::GcRule;
use crate::id::{FamilyId, SchemaVersion, TableId};
use crate::locality::{
    self, DEFAULT_GROUP, DEFAULT_GROUP_NAME, GROUPS_MAX, LocalityGroup, LocalityGroupChange, LocalityGroupOptions,
    Residence,
};
use crate::quota::Quotas;

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

    /// The name of the table of key heat ([`crate::heat`]), which no user table can have, and no request can name.
    pub fn heat() -> Self {
        Self("projects/-/instances/-/tables/HEAT".into())
    }

    /// Whether it is the name of a table of the system: users neither see nor name it.
    pub fn is_system(&self) -> bool {
        self.project() == "-"
    }

    /// Parses a name of a stored record, which may be that of a table of the system.
    ///
    /// # Errors
    /// As [`Self::from_str`].
    pub fn parse_stored(name: &str) -> Result<Self, Error> {
        let heat = Self::heat();
        if heat.as_str() == name { Ok(heat) } else { name.parse() }
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
    /// The number of its locality group; families with the same number are stored together.
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
    /// The named locality groups, by number. The default group is one of them only if it has options of its own.
    pub locality_groups: Vec<LocalityGroup>,
    /// The id of the next family; never falls.
    pub next_family: FamilyId,
    /// Whether the table and its families are guarded against deletion.
    pub deletion_protection: bool,
    /// How much the table and its families may store.
    pub quotas: Quotas,
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
            locality_groups: Vec::new(),
            next_family: FamilyId::new(1),
            deletion_protection: false,
            quotas: Quotas::default(),
            state: TableState::Creating,
        };
        for family in families {
            schema.create_family(family)?;
        }
        Ok(schema)
    }

    /// The schema of METADATA, the same in every cluster and never stored. The family `location` is in memory (paper, section 6).
    pub fn metadata() -> Self {
        let family = |id, name: &'static str, locality_group| Family {
            id,
            name: FamilyName::from_static(name),
            gc: Some(GcRule::MaxVersions(1)),
            locality_group,
            aggregator: None,
        };
        let in_memory = LocalityGroup {
            name: "location".to_owned(),
            number: 1,
            options: LocalityGroupOptions { residence: Residence::Memory, ..LocalityGroupOptions::default() },
        };
        Self {
            table: TableId::METADATA,
            name: TableName::metadata(),
            version: SchemaVersion::new(1),
            families: vec![
                family(FamilyId::LOCATION, "location", in_memory.number),
                family(FamilyId::EVENTS, "events", DEFAULT_GROUP),
            ],
            locality_groups: vec![in_memory],
            next_family: FamilyId::EVENTS.next(),
            deletion_protection: true,
            quotas: Quotas::default(),
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

    /// The options of the locality group with this number; those of the default group unless it has options of its own.
    pub fn group_options(&self, number: u32) -> LocalityGroupOptions {
        let group = self.locality_groups.iter().find(|group| group.number == number);
        group.map(|group| group.options).unwrap_or_default()
    }

    /// The numbers of the locality groups of this schema whose families `next` puts in memory and this one does not.
    pub fn groups_put_in_memory(&self, next: &Self) -> BTreeSet<u32> {
        let in_memory =
            |schema: &Self, family: &Family| schema.group_options(family.locality_group).residence == Residence::Memory;
        let moved = next.families.iter().filter(|family| in_memory(next, family));
        let before = moved.filter_map(|family| self.family_by_id(family.id));
        before.filter(|family| !in_memory(self, family)).map(|family| family.locality_group).collect()
    }

    /// The number of the locality group of this name.
    pub fn group_number(&self, name: &str) -> Option<u32> {
        let named = self.locality_groups.iter().find(|group| group.name == name).map(|group| group.number);
        named.or_else(|| (name == DEFAULT_GROUP_NAME).then_some(DEFAULT_GROUP))
    }

    /// The name of the locality group with this number.
    pub fn group_name(&self, number: u32) -> &str {
        let group = self.locality_groups.iter().find(|group| group.number == number);
        group.map_or(DEFAULT_GROUP_NAME, |group| &group.name)
    }

    /// The schema after these changes of its locality groups, applied in order, all or nothing; its version is one higher.
    ///
    /// # Errors
    /// `NotFoundFamily`; `NotFound` for a group that does not exist; `InvalidArgument` for an invalid name or option, or too many groups;
    /// for a new family those of [`Self::apply`];
    /// `FailedPrecondition` for the removal of a group that has families, or of the default group.
    pub fn apply_to_groups(&self, changes: &[LocalityGroupChange]) -> Result<Self, Error> {
        let mut next = self.clone();
        next.version = self.version.next();
        for change in changes {
            match change {
                LocalityGroupChange::Set { name, options } => next.set_group(name, options)?,
                LocalityGroupChange::Add { family, group } => {
                    let number = next.require_group(group)?;
                    next.create_family(family.clone())?;
                    if let Some(created) = next.families.last_mut() {
                        created.locality_group = number;
                    }
                }
                LocalityGroupChange::Move { family, group } => {
                    let number = next.require_group(group)?;
                    next.require_family(family)?;
                    for moved in next.families.iter_mut().filter(|one| one.name.as_str() == family) {
                        moved.locality_group = number;
                    }
                }
                LocalityGroupChange::Remove { name } => next.remove_group(name)?,
            }
        }
        Ok(next)
    }

    fn require_group(&self, name: &str) -> Result<u32, Error> {
        self.group_number(name).ok_or_else(|| {
            Error::new(Reason::NotFound, format!("Table {}: locality group not found: {name}", self.name))
        })
    }

    fn set_group(&mut self, name: &str, options: &str) -> Result<(), Error> {
        locality::check_group_name(name)?;
        if let Some(known) = self.locality_groups.iter_mut().find(|group| group.name == name) {
            known.options = known.options.with(options)?;
            return Ok(());
        }
        let options = options.parse()?;
        let taken = |number: u32| self.locality_groups.iter().any(|group| group.number == number);
        let number = if name == DEFAULT_GROUP_NAME { Some(DEFAULT_GROUP) } else { first_free(taken) };
        let number = number.ok_or_else(|| {
            Error::invalid(format!(
                "Table {}: more than {GROUPS_MAX} locality groups, the default one included",
                self.name
            ))
        })?;
        self.locality_groups.push(LocalityGroup { name: name.to_owned(), number, options });
        self.locality_groups.sort_by_key(|group| group.number);
        Ok(())
    }

    fn remove_group(&mut self, name: &str) -> Result<(), Error> {
        let number = self.require_group(name)?;
        let refuse = |why: String| Err(Error::new(Reason::FailedPrecondition, format!("Table {}: {why}", self.name)));
        if number == DEFAULT_GROUP {
            return refuse("the default locality group cannot be removed".to_owned());
        }
        if let Some(family) = self.families.iter().find(|family| family.locality_group == number) {
            return refuse(format!(
                "locality group {name} has the family {}: move it to another group first",
                family.name
            ));
        }
        self.locality_groups.retain(|group| group.number != number);
        Ok(())
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
        let dropped = self.families.remove(at);
        self.quotas.families.remove(&dropped.id);
        Ok(())
    }
}

/// The first number of a named group that is not taken.
fn first_free(taken: impl Fn(u32) -> bool) -> Option<u32> {
    (1..GROUPS_MAX).filter_map(|number| u32::try_from(number).ok()).find(|number| !taken(*number))
}

fn family_not_found(name: &FamilyName) -> Error {
    Error::new(Reason::NotFoundFamily, format!("Requested column family not found: {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema() -> TableSchema {
        let name = TableName::from_parts("p", "i", "t").unwrap();
        let families = ["a", "b"].map(|family| (FamilyName::new(family).unwrap(), None));
        TableSchema::new(TableId::new(7), name, families).unwrap()
    }

    fn set(name: &str, options: &str) -> LocalityGroupChange {
        LocalityGroupChange::Set { name: name.to_owned(), options: options.to_owned() }
    }

    fn assign(family: &str, group: &str) -> LocalityGroupChange {
        LocalityGroupChange::Move { family: family.to_owned(), group: group.to_owned() }
    }

    fn remove(name: &str) -> LocalityGroupChange {
        LocalityGroupChange::Remove { name: name.to_owned() }
    }

    #[test]
    fn families_move_between_groups() {
        let before = schema();
        let changes = [set("pages", "compression=zstd:3"), assign("b", "pages"), set("pages", "block=64k")];
        let after = before.apply_to_groups(&changes).unwrap();
        assert_eq!(after.version, before.version.next());
        assert_eq!(after.require_family("a").unwrap().locality_group, DEFAULT_GROUP);
        let number = after.require_family("b").unwrap().locality_group;
        assert_eq!((number, after.group_name(number)), (1, "pages"));
        assert_eq!(after.group_options(number).to_string(), "compression=zstd:3;block=64k;bloom=rows;in-memory=no");
        assert_eq!(after.group_options(DEFAULT_GROUP), LocalityGroupOptions::default());
        let back = after.apply_to_groups(&[assign("b", "default"), remove("pages")]).unwrap();
        assert_eq!((back.families.clone(), back.locality_groups.clone()), (before.families, Vec::new()));
    }

    #[test]
    fn families_are_created_in_groups() {
        let add = |group: &str| LocalityGroupChange::Add {
            family: NewFamily::plain(FamilyName::new("c").unwrap(), Some(GcRule::MaxVersions(1))),
            group: group.to_owned(),
        };
        let before = schema().apply_to_groups(&[set("g", "in-memory=yes")]).unwrap();
        let after = before.apply_to_groups(&[add("g")]).unwrap();
        let created = after.require_family("c").unwrap();
        assert_eq!((created.locality_group, created.gc.as_ref()), (1, Some(&GcRule::MaxVersions(1))));
        assert_eq!((created.id, after.next_family), (before.next_family, before.next_family.next()));
        assert_eq!(before.groups_put_in_memory(&after), BTreeSet::new(), "it has no cells");
        assert!(before.apply_to_groups(&[add("never")]).unwrap_err().to_string().contains("locality group not found"));
        assert_eq!(after.apply_to_groups(&[add("g")]).unwrap_err().reason, Reason::AlreadyExists);
    }

    #[test]
    fn groups_that_are_put_in_memory_are_known_by_their_present_numbers() {
        let before = schema().apply_to_groups(&[set("g", ""), assign("b", "g")]).unwrap();
        let put = |changes: &[LocalityGroupChange]| {
            before.groups_put_in_memory(&before.apply_to_groups(changes).unwrap()).into_iter().collect::<Vec<_>>()
        };
        assert_eq!(put(&[set("g", "block=4k")]), [] as [u32; 0]);
        assert_eq!(put(&[set("g", "in-memory=yes")]), [1]);
        assert_eq!(put(&[set("m", "in-memory=yes")]), [] as [u32; 0], "a group without families");
        assert_eq!(put(&[set("m", "in-memory=yes"), assign("a", "m")]), [DEFAULT_GROUP]);
        assert_eq!(put(&[set("m", "in-memory=yes"), assign("a", "m"), assign("b", "m")]), [DEFAULT_GROUP, 1]);
        let there = before.apply_to_groups(&[set("g", "in-memory=yes")]).unwrap();
        let next = there.apply_to_groups(&[set("g", "block=4k")]).unwrap();
        assert_eq!(there.groups_put_in_memory(&next), BTreeSet::new(), "it is in memory already");
    }

    #[test]
    fn the_default_group_has_options_too() {
        let after = schema().apply_to_groups(&[set("default", "bloom=none")]).unwrap();
        let options = "compression=lz4-then-zstd;block=16k;bloom=none;in-memory=no";
        assert_eq!(after.group_options(DEFAULT_GROUP).to_string(), options);
        assert_eq!(after.group_number("default"), Some(DEFAULT_GROUP));
    }

    #[test]
    fn wrong_changes_of_groups_are_refused_and_change_nothing() {
        let many: Vec<_> = (0..GROUPS_MAX).map(|number| set(&format!("g{number}"), "")).collect();
        for (changes, expected) in [
            (vec![assign("c", "default")], "column family not found: c"),
            (vec![assign("a", "pages")], "locality group not found: pages"),
            (vec![set("pages", "compression=zip")], "unknown compression"),
            (vec![set("no/slash", "")], "invalid locality group name"),
            (vec![set("pages", ""), assign("a", "pages"), remove("pages")], "has the family a"),
            (vec![remove("default")], "cannot be removed"),
            (many, "more than 8 locality groups"),
        ] {
            let error = schema().apply_to_groups(&changes).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
