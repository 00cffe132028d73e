//! Access control: who a caller is, what policies grant, and which families a caller may touch. Pure.
//!
//! ```text
//!   Identity     what a verified token or certificate says about a caller
//!   Policy       roles and their members, of an instance, a table or a column family
//!   Rules        all that applies to a table: policy of the instance or of the table (union), restricted by family
//! ```
//!
//! A role of the instance or of the table grants a permission for the whole table. A family with a policy of its own (a *list*; paper,
//! section 2: "access control lists" of families) restricts it further: the family is readable only for callers that have the permission to
//! read the table and are in the family's list of readers. So a list never grants what a role does not grant.

mod identity;
mod permission;
mod policy;
mod rules;

pub use identity::{Identity, Member};
pub use permission::{Permission, Role};
pub use policy::{BINDINGS_MAX, Policy, Resource, TableAccess};
pub use rules::{FamilyRights, FamilySet, Rules};
