//! Permissions and roles, with the names of the public API.

use std::fmt;
use std::str::FromStr;

use crate::error::Error;

/// Declares the permissions: `Permission = "name" => from which role,`.
macro_rules! permissions {
    ($($permission:ident = $name:literal => $role:ident,)*) => {
        /// A permission of the public API.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[expect(missing_docs, reason = "each is named as in the public API")]
        pub enum Permission {
            $($permission,)*
        }

        impl Permission {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$permission),*];

            /// The public name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$permission => $name,)*
                }
            }

            /// The least role that grants it.
            const fn least_role(self) -> Role {
                match self {
                    $(Self::$permission => Role::$role,)*
                }
            }
        }
    };
}

permissions! {
    GetAppProfile = "bigtable.appProfiles.get" => Viewer,
    ListAppProfiles = "bigtable.appProfiles.list" => Viewer,
    CreateAppProfile = "bigtable.appProfiles.create" => Admin,
    UpdateAppProfile = "bigtable.appProfiles.update" => Admin,
    DeleteAppProfile = "bigtable.appProfiles.delete" => Admin,
    GetView = "bigtable.authorizedViews.get" => Viewer,
    ListViews = "bigtable.authorizedViews.list" => Viewer,
    CreateView = "bigtable.authorizedViews.create" => Admin,
    UpdateView = "bigtable.authorizedViews.update" => Admin,
    DeleteView = "bigtable.authorizedViews.delete" => Admin,
    GetViewPolicy = "bigtable.authorizedViews.getIamPolicy" => Admin,
    SetViewPolicy = "bigtable.authorizedViews.setIamPolicy" => Admin,
    ReadViewRows = "bigtable.authorizedViews.readRows" => Reader,
    SampleViewRowKeys = "bigtable.authorizedViews.sampleRowKeys" => Reader,
    MutateViewRows = "bigtable.authorizedViews.mutateRows" => User,
    GetCluster = "bigtable.clusters.get" => Viewer,
    ListClusters = "bigtable.clusters.list" => Viewer,
    UpdateCluster = "bigtable.clusters.update" => Admin,
    ListHotTablets = "bigtable.hotTablets.list" => Reader,
    CreateInstance = "bigtable.instances.create" => Admin,
    GetInstance = "bigtable.instances.get" => Viewer,
    ListInstances = "bigtable.instances.list" => Viewer,
    UpdateInstance = "bigtable.instances.update" => Admin,
    DeleteInstance = "bigtable.instances.delete" => Admin,
    GetInstancePolicy = "bigtable.instances.getIamPolicy" => Admin,
    SetInstancePolicy = "bigtable.instances.setIamPolicy" => Admin,
    Ping = "bigtable.instances.ping" => Reader,
    CheckConsistency = "bigtable.tables.checkConsistency" => Viewer,
    GenerateConsistencyToken = "bigtable.tables.generateConsistencyToken" => Viewer,
    CreateTable = "bigtable.tables.create" => Admin,
    GetTable = "bigtable.tables.get" => Viewer,
    ListTables = "bigtable.tables.list" => Viewer,
    UpdateTable = "bigtable.tables.update" => Admin,
    DeleteTable = "bigtable.tables.delete" => Admin,
    GetTablePolicy = "bigtable.tables.getIamPolicy" => Admin,
    SetTablePolicy = "bigtable.tables.setIamPolicy" => Admin,
    ReadRows = "bigtable.tables.readRows" => Reader,
    SampleRowKeys = "bigtable.tables.sampleRowKeys" => Reader,
    MutateRows = "bigtable.tables.mutateRows" => User,
}

impl Permission {
    /// Whether the policy of an authorized view may grant it. The permissions to create, change and delete views are granted by policies of
    /// the table and the instance alone: otherwise a caller with access to a view could widen it.
    #[must_use]
    pub const fn is_granted_by_views(self) -> bool {
        matches!(
            self,
            Self::GetView
                | Self::GetViewPolicy
                | Self::SetViewPolicy
                | Self::ReadViewRows
                | Self::SampleViewRowKeys
                | Self::MutateViewRows
        )
    }
}

impl FromStr for Permission {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        let known = Self::ALL.iter().find(|permission| permission.name() == name).copied();
        known.ok_or_else(|| Error::invalid(format!("unknown permission {name:?}: this release has no such call")))
    }
}

impl fmt::Display for Permission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A role of a policy. The roles of Bigtable are for instances and tables, each grants all that the ones before it grant. The roles of
/// families are for column families, and grant nothing but what their name says.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Role {
    /// `roles/bigtable.viewer`: sees tables and their families, no data.
    Viewer,
    /// `roles/bigtable.reader`: reads data.
    Reader,
    /// `roles/bigtable.user`: reads and writes data.
    User,
    /// `roles/bigtable.admin`: everything, policies included.
    Admin,
    /// `roles/ebla.familyReader`: reads a family that has a list.
    FamilyReader,
    /// `roles/ebla.familyWriter`: writes it.
    FamilyWriter,
    /// `roles/ebla.familyAdmin`: changes and drops it, and changes its list.
    FamilyAdmin,
}

impl Role {
    /// All roles.
    pub const ALL: [Self; 7] = [
        Self::Viewer,
        Self::Reader,
        Self::User,
        Self::Admin,
        Self::FamilyReader,
        Self::FamilyWriter,
        Self::FamilyAdmin,
    ];

    /// The public name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Viewer => "roles/bigtable.viewer",
            Self::Reader => "roles/bigtable.reader",
            Self::User => "roles/bigtable.user",
            Self::Admin => "roles/bigtable.admin",
            Self::FamilyReader => "roles/ebla.familyReader",
            Self::FamilyWriter => "roles/ebla.familyWriter",
            Self::FamilyAdmin => "roles/ebla.familyAdmin",
        }
    }

    /// Whether the role is for column families.
    #[must_use]
    pub const fn is_of_family(self) -> bool {
        matches!(self, Self::FamilyReader | Self::FamilyWriter | Self::FamilyAdmin)
    }

    /// Whether a role of an instance or a table grants a permission. Roles of families grant none.
    #[must_use]
    pub fn grants(self, permission: Permission) -> bool {
        !self.is_of_family() && self >= permission.least_role()
    }
}

impl FromStr for Role {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        Self::ALL.into_iter().find(|role| role.name() == name).ok_or_else(|| {
            let known: Vec<_> = Self::ALL.iter().map(|role| role.name()).collect();
            Error::invalid(format!("unknown role {name:?}: expected one of {}", known.join(", ")))
        })
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_parse_back() {
        for permission in Permission::ALL {
            assert_eq!(permission.name().parse(), Ok(*permission));
            assert!(Role::Admin.grants(*permission));
        }
        for role in Role::ALL {
            assert_eq!(role.name().parse(), Ok(role));
        }
        assert!("roles/owner".parse::<Role>().is_err() && "bigtable.tables.*".parse::<Permission>().is_err());
    }

    #[test]
    fn a_role_grants_what_lesser_roles_grant() {
        use Permission::{GetTable, MutateRows, ReadRows, SetTablePolicy};
        let granted = |role: Role| [GetTable, ReadRows, MutateRows, SetTablePolicy].map(|one| role.grants(one));
        assert_eq!(granted(Role::Viewer), [true, false, false, false]);
        assert_eq!(granted(Role::Reader), [true, true, false, false]);
        assert_eq!(granted(Role::User), [true, true, true, false]);
        assert_eq!(granted(Role::Admin), [true; 4]);
        for role in [Role::FamilyReader, Role::FamilyWriter, Role::FamilyAdmin] {
            assert_eq!(granted(role), [false; 4], "a list restricts, it grants nothing");
        }
    }
}
