//! Access control: who a caller is, what policies grant, and which families a caller may touch. Pure.
//!
//! ```text
//!   Identity     what a verified token or certificate says about a caller
//!   Policy       roles and their members, of an instance, a table or a column family
//!   Rules        all that applies to a table: policy of the instance or of the table (union), restricted by family
//!   SubsetView   the part of a table that an authorized view includes
//! ```
//!
//! A role of the instance or of the table grants a permission for the whole table. A family with a policy of its own (a *list*; paper,
//! section 2: "access control lists" of families) restricts it further: the family is readable only for callers that have the permission to
//! read the table and are in the family's list of readers. So a list never grants what a role does not grant.
//!
//! An authorized view has a policy too. It grants permissions for calls that name the view, which touch nothing outside of its subset. It does
//! not grant the permissions to change or delete the view, so that a caller with access to a part of a table alone cannot widen it.

mod identity;
mod permission;
mod policy;
mod rules;
mod view;

pub use identity::{Identity, Member};
pub use permission::{Permission, Role};
pub use policy::{BINDINGS_MAX, Policy, Resource, TableAccess};
pub use rules::{FamilyRights, FamilySet, Rules};
pub use view::{AuthorizedView, FamilySubset, SubsetView, ViewName, families_filter};
