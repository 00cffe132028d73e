//! Policies, and the resources that have them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use super::identity::{Identity, Member};
use super::permission::{Permission, Role};
use super::view::ViewName;
use crate::admin::instance::InstanceName;
use crate::cell::FamilyName;
use crate::error::Error;
use crate::id::FamilyId;
use crate::schema::{TableName, TableSchema};

/// The most members of all roles of a policy together.
pub const BINDINGS_MAX: usize = 1_500;

/// Roles and their members. A role without members is absent.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Policy {
    bindings: BTreeMap<Role, BTreeSet<Member>>,
}

impl Policy {
    /// The policy with these bindings; a role may come several times.
    ///
    /// # Errors
    /// `InvalidArgument` when there are too many members.
    pub fn new(bindings: impl IntoIterator<Item = (Role, Member)>) -> Result<Self, Error> {
        let mut policy = Self::default();
        for (role, member) in bindings {
            policy.bindings.entry(role).or_default().insert(member);
        }
        let members: usize = policy.bindings.values().map(BTreeSet::len).sum();
        if members > BINDINGS_MAX {
            return Err(Error::invalid(format!("the policy has {members} members, the limit is {BINDINGS_MAX}")));
        }
        Ok(policy)
    }

    /// The roles and their members, in order.
    pub fn bindings(&self) -> impl Iterator<Item = (Role, &BTreeSet<Member>)> {
        self.bindings.iter().map(|(role, members)| (*role, members))
    }

    /// Whether it has no member.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bindings.is_empty()
    }

    /// Whether a caller has a role.
    #[must_use]
    pub fn has(&self, role: Role, caller: &Identity) -> bool {
        self.bindings.get(&role).is_some_and(|members| members.iter().any(|member| caller.is(member)))
    }

    /// Whether a role of a caller grants a permission.
    #[must_use]
    pub fn grants(&self, permission: Permission, caller: &Identity) -> bool {
        self.bindings.keys().any(|role| role.grants(permission) && self.has(*role, caller))
    }
}

/// The policies of a table: its own and those of its families.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TableAccess {
    /// Of the table.
    pub policy: Policy,
    /// The lists of families. A family without a list is absent, and accessible to everybody who has access to the table.
    pub families: BTreeMap<FamilyId, Policy>,
    /// Whether the stored policies cannot be read by this release: then only administrators have access.
    pub is_unreadable: bool,
}

impl TableAccess {
    /// The policies that this release cannot read.
    #[must_use]
    pub fn unreadable() -> Self {
        Self { is_unreadable: true, ..Self::default() }
    }

    /// The same policies with another one for the table, or for one of its families. A list of a family that becomes empty is removed;
    /// lists of families that the schema does not have any more are removed too.
    ///
    /// # Errors
    /// `NotFoundFamily`; `InvalidArgument` when the policy has roles that are not for this kind of resource.
    pub fn with_policy(
        &self,
        family: Option<&FamilyName>,
        policy: Policy,
        schema: &TableSchema,
    ) -> Result<Self, Error> {
        let mut next = self.clone();
        next.families.retain(|id, _list| schema.family_by_id(*id).is_some());
        match family {
            None => next.policy = policy,
            Some(name) => {
                let id = schema.require_family(name.as_str())?.id;
                next.families.remove(&id);
                if !policy.is_empty() {
                    next.families.insert(id, policy);
                }
            }
        }
        Ok(next)
    }
}

/// What a policy belongs to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Resource {
    /// `projects/P/instances/I`.
    Instance(InstanceName),
    /// `projects/P/instances/I/tables/T`.
    Table(TableName),
    /// `projects/P/instances/I/tables/T/columnFamilies/F`; an extension of the public API.
    Family(TableName, FamilyName),
    /// `projects/P/instances/I/tables/T/authorizedViews/V`.
    View(ViewName),
}

impl Resource {
    /// The table, unless it is an instance.
    #[must_use]
    pub const fn table(&self) -> Option<&TableName> {
        match self {
            Self::Instance(_) => None,
            Self::Table(table) | Self::Family(table, _) => Some(table),
            Self::View(view) => Some(view.table()),
        }
    }

    /// Checks that the roles of a policy are for this kind of resource.
    ///
    /// # Errors
    /// `InvalidArgument`.
    pub fn check_roles(&self, policy: &Policy) -> Result<(), Error> {
        let is_family = matches!(self, Self::Family(..));
        match policy.bindings().find(|(role, _members)| role.is_of_family() != is_family) {
            None => Ok(()),
            Some((role, _members)) if is_family => Err(Error::invalid(format!(
                "{role} is no role of a column family: expected roles/ebla.familyReader, familyWriter or familyAdmin"
            ))),
            Some((role, _members)) => Err(Error::invalid(format!("{role} is for column families only"))),
        }
    }
}

impl FromStr for Resource {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        if let Some((table, family)) = name.split_once("/columnFamilies/") {
            return Ok(Self::Family(table.parse()?, FamilyName::new(family)?));
        }
        if name.contains("/authorizedViews/") {
            return Ok(Self::View(name.parse()?));
        }
        if name.contains("/tables/") { Ok(Self::Table(name.parse()?)) } else { Ok(Self::Instance(name.parse()?)) }
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Instance(name) => name.fmt(f),
            Self::Table(name) => name.fmt(f),
            Self::Family(table, family) => write!(f, "{table}/columnFamilies/{}", family.as_str()),
            Self::View(name) => name.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::TableId;

    fn policy(role: Role) -> Policy {
        Policy::new([(role, Member::AllAuthenticatedUsers)]).unwrap()
    }

    #[test]
    fn resources_survive_a_round_trip() {
        for name in [
            "projects/p/instances/i",
            "projects/p/instances/i/tables/t",
            "projects/p/instances/i/tables/t/columnFamilies/f",
            "projects/p/instances/i/tables/t/authorizedViews/v",
        ] {
            assert_eq!(name.parse::<Resource>().unwrap().to_string(), name);
        }
        for wrong in [
            "projects/p",
            "projects/p/instances/i/tables/t/columnFamilies/",
            "x/columnFamilies/f",
            "x/authorizedViews/v",
        ] {
            assert!(wrong.parse::<Resource>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn roles_fit_their_resources() {
        let table: Resource = "projects/p/instances/i/tables/t".parse().unwrap();
        let family: Resource = "projects/p/instances/i/tables/t/columnFamilies/f".parse().unwrap();
        assert!(table.check_roles(&policy(Role::User)).is_ok() && family.check_roles(&policy(Role::User)).is_err());
        assert!(table.check_roles(&policy(Role::FamilyReader)).is_err());
        assert!(family.check_roles(&policy(Role::FamilyReader)).is_ok());
    }

    #[test]
    fn a_dropped_family_leaves_no_list() {
        let name = TableName::from_parts("p", "i", "t").unwrap();
        let (a, b) = (FamilyName::new("a").unwrap(), FamilyName::new("b").unwrap());
        let schema = TableSchema::new(TableId::new(7), name, [(a.clone(), None), (b.clone(), None)]).unwrap();
        let access = TableAccess::default().with_policy(Some(&a), policy(Role::FamilyReader), &schema).unwrap();
        assert_eq!(access.families.len(), 1);
        assert!(access.with_policy(Some(&a), Policy::default(), &schema).unwrap().families.is_empty(), "no members");
        let dropped = schema.apply(&[crate::schema::FamilyChange::Drop { name: a.clone() }]).unwrap();
        let access = access.with_policy(Some(&b), policy(Role::FamilyReader), &dropped).unwrap();
        assert_eq!(access.families.keys().copied().collect::<Vec<_>>(), [FamilyId::new(2)]);
        assert!(access.with_policy(Some(&a), policy(Role::FamilyReader), &dropped).is_err());
    }
}
