//! All rules that apply to a table, and what a caller may do by them.

use std::collections::BTreeSet;

use super::identity::{Identity, Member};
use super::permission::{Permission, Role};
use super::policy::{Policy, TableAccess};
use crate::cell::FamilyName;
use crate::schema::{Family, TableSchema};

/// The rules for a table, or for an instance: then without the part of a table.
#[derive(Clone, Copy, Debug)]
pub struct Rules<'a> {
    /// Callers that may do everything, by the configuration of the server.
    pub administrators: &'a [Member],
    /// The policy of the instance; `None`: it has none.
    pub instance: Option<&'a Policy>,
    /// The policies of the table; `None`: it has none.
    pub table: Option<&'a TableAccess>,
    /// The policy of the authorized view that a call names, if it names one.
    pub view: Option<&'a Policy>,
}

impl Rules<'_> {
    /// Whether the caller is an administrator by configuration.
    #[must_use]
    pub fn is_administrator(&self, caller: &Identity) -> bool {
        self.administrators.iter().any(|member| caller.is(member))
    }

    /// Whether the caller has a permission, by the policy of the instance, that of the table, or that of the view.
    #[must_use]
    pub fn grants(&self, permission: Permission, caller: &Identity) -> bool {
        let is_unreadable = self.table.is_some_and(|table| table.is_unreadable);
        let by_instance = || self.instance.is_some_and(|policy| policy.grants(permission, caller));
        let by_table = || self.table.is_some_and(|table| table.policy.grants(permission, caller));
        let by_view =
            || permission.is_granted_by_views() && self.view.is_some_and(|policy| policy.grants(permission, caller));
        self.is_administrator(caller) || (!is_unreadable && (by_instance() || by_table() || by_view()))
    }

    /// What the caller may do with the families of a table. `grants` of the permission for the table is a condition of its own.
    #[must_use]
    pub fn families(&self, schema: &TableSchema, caller: &Identity) -> FamilyRights {
        let Some(table) = self.table.filter(|_table| !self.is_administrator(caller)) else {
            return FamilyRights::default();
        };
        let set = |role: Role| {
            let permits = |family: &&Family| {
                let list = table.families.get(&family.id);
                !table.is_unreadable && list.is_none_or(|list| list.has(role, caller))
            };
            let permitted: BTreeSet<_> =
                schema.families.iter().filter(permits).map(|family| family.name.clone()).collect();
            if permitted.len() == schema.families.len() { FamilySet::All } else { FamilySet::Only(permitted) }
        };
        FamilyRights {
            readable: set(Role::FamilyReader),
            writable: set(Role::FamilyWriter),
            changeable: set(Role::FamilyAdmin),
        }
    }
}

/// Families of a table.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum FamilySet {
    /// All of them, also those that are created later.
    #[default]
    All,
    /// These only.
    Only(BTreeSet<FamilyName>),
}

impl FamilySet {
    /// Whether it contains the family of this name.
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::Only(names) => names.iter().any(|one| one.as_str() == name),
        }
    }

    /// Whether it contains all families.
    #[must_use]
    pub const fn is_all(&self) -> bool {
        matches!(self, Self::All)
    }
}

/// What a caller may do with the families of a table, as far as lists say; without lists: everything.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FamilyRights {
    /// Families whose cells it may read.
    pub readable: FamilySet,
    /// Families whose cells it may write and delete.
    pub writable: FamilySet,
    /// Families that it may change and drop, and whose lists it may change.
    pub changeable: FamilySet,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::id::{FamilyId, TableId};
    use crate::schema::TableName;

    const NAMES: [&str; 4] = ["subject:a", "subject:b", "group:g", "allAuthenticatedUsers"];

    fn member(index: usize) -> Member {
        NAMES[index].parse().unwrap()
    }

    fn caller(index: usize) -> Identity {
        Identity::new(member(index), [member(2)])
    }

    fn schema() -> TableSchema {
        let families = ["x", "y", "z"].map(|name| (FamilyName::new(name).unwrap(), None));
        TableSchema::new(TableId::new(7), TableName::from_parts("p", "i", "t").unwrap(), families).unwrap()
    }

    fn policies(roles: &'static [Role]) -> impl Strategy<Value = Policy> {
        let binding = (prop::sample::select(roles), 0..NAMES.len());
        prop::collection::vec(binding, 0..4)
            .prop_map(|all| Policy::new(all.into_iter().map(|(role, index)| (role, member(index)))).unwrap())
    }

    const TABLE_ROLES: &[Role] = &[Role::Viewer, Role::Reader, Role::User, Role::Admin];
    const FAMILY_ROLES: &[Role] = &[Role::FamilyReader, Role::FamilyWriter, Role::FamilyAdmin];

    fn accesses() -> impl Strategy<Value = TableAccess> {
        let lists = prop::collection::btree_map((1u32..4).prop_map(FamilyId::new), policies(FAMILY_ROLES), 0..3);
        let access = |(policy, families)| TableAccess { policy, families, is_unreadable: false };
        (policies(TABLE_ROLES), lists).prop_map(access)
    }

    fn is_subset(small: &FamilySet, large: &FamilySet) -> bool {
        schema().families.iter().all(|family| {
            let name = family.name.as_str();
            !small.contains(name) || large.contains(name)
        })
    }

    proptest! {
        /// A list takes rights away and never adds one, and a policy adds rights and never takes one away.
        #[test]
        fn lists_restrict_and_policies_grant(
            access in accesses(), instance in policies(TABLE_ROLES), list in policies(FAMILY_ROLES), who in 0usize..2,
        ) {
            let caller = caller(who);
            let rules = |access| Rules { administrators: &[], instance: None, table: Some(access), view: None };
            let before = rules(&access).families(&schema(), &caller);
            let mut listed = access.clone();
            if !access.families.contains_key(&FamilyId::new(1)) && !list.is_empty() {
                listed.families.insert(FamilyId::new(1), list);
            }
            let after = rules(&listed).families(&schema(), &caller);
            prop_assert!(is_subset(&after.readable, &before.readable) && is_subset(&after.writable, &before.writable));
            for permission in Permission::ALL {
                prop_assert_eq!(
                    rules(&access).grants(*permission, &caller), rules(&listed).grants(*permission, &caller)
                );
                let both = Rules { instance: Some(&instance), ..rules(&access) };
                let by_table = rules(&access).grants(*permission, &caller);
                prop_assert_eq!(both.grants(*permission, &caller), by_table || instance.grants(*permission, &caller));
            }
        }

        /// Every family with a list is permitted exactly to the members of its list.
        #[test]
        fn a_list_is_exact(access in accesses(), who in 0usize..2) {
            let caller = caller(who);
            let rights = Rules { administrators: &[], instance: None, table: Some(&access), view: None }.families(&schema(), &caller);
            for family in &schema().families {
                let list = access.families.get(&family.id);
                let permitted = |role| list.is_none_or(|list| list.has(role, &caller));
                prop_assert_eq!(rights.readable.contains(family.name.as_str()), permitted(Role::FamilyReader));
                prop_assert_eq!(rights.writable.contains(family.name.as_str()), permitted(Role::FamilyWriter));
                prop_assert_eq!(rights.changeable.contains(family.name.as_str()), permitted(Role::FamilyAdmin));
            }
        }
    }

    #[test]
    fn a_view_grants_access_and_not_its_own_change() {
        let all = Policy::new([(Role::Admin, member(0))]).unwrap();
        let rules = Rules { administrators: &[], instance: None, table: None, view: Some(&all) };
        for permission in Permission::ALL {
            let expected = permission.name().starts_with("bigtable.authorizedViews.")
                && !matches!(
                    permission,
                    Permission::ListViews | Permission::CreateView | Permission::UpdateView | Permission::DeleteView
                );
            assert_eq!(rules.grants(*permission, &caller(0)), expected, "{permission}");
            assert!(!rules.grants(*permission, &caller(1)));
        }
        let closed = TableAccess::unreadable();
        let rules = Rules { table: Some(&closed), ..rules };
        assert!(!rules.grants(Permission::ReadViewRows, &caller(0)));
    }

    #[test]
    fn nobody_has_access_by_default_and_administrators_always_have() {
        let rules = Rules { administrators: &[member(0)], instance: None, table: None, view: None };
        for permission in Permission::ALL {
            assert!(rules.grants(*permission, &caller(0)) && !rules.grants(*permission, &caller(1)));
        }
        let closed = TableAccess::unreadable();
        let everybody = Policy::new([(Role::Admin, Member::AllAuthenticatedUsers)]).unwrap();
        let rules = Rules { instance: Some(&everybody), table: Some(&closed), ..rules };
        assert!(rules.grants(Permission::ReadRows, &caller(0)) && !rules.grants(Permission::ReadRows, &caller(1)));
        assert_eq!(rules.families(&schema(), &caller(0)), FamilyRights::default());
        assert_eq!(rules.families(&schema(), &caller(1)).readable, FamilySet::Only(BTreeSet::new()));
    }
}
