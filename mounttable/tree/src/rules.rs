//! Authorization rules, and the initial permissions of new nodes.
//!
//! | to | the caller needs |
//! |---|---|
//! | traverse a node | Read, Resolve or Create on it: a caller who may create children must be able to reach the parent |
//! | resolve a node | Read or Resolve on it |
//! | create a child | Create on the parent, and Create in its template, if it has one, for a child with that name |
//! | mount, unmount | Mount |
//! | delete a node | Admin on it or on its parent; no right on what is below it |
//! | list a node's children | Read; Resolve or Create suffices to look up a child by its exact name |
//! | see a child in a list | any tag on the child; to see its servers, Read or Resolve |
//! | read permissions | Read |
//! | set permissions | Admin |
//!
//! Admin grants everything, and superusers always pass. A refusal reveals nothing else. A caller who may not traverse a node cannot
//! find out what exists below it. One who may can: a child without any right for them is refused with `NO_ACCESS`, and a missing one is
//! `NO_SUCH_NAME`, as for files in a directory that a user may search and not list.

use crate::access::{Permissions, Tag};
use crate::error::{Error, Reason};
use crate::glob::Pattern;
use crate::identity::{BlessingPattern, Caller};

/// An action on one node that needs rights on that node alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// To continue to a node below it.
    Traverse,
    /// To read its servers.
    Resolve,
    /// To mount or unmount a server on it.
    Mount,
    /// To see it in the list of its parent's children.
    BeListed,
    /// To read its permissions.
    GetPermissions,
    /// To replace its permissions.
    SetPermissions,
}

impl Action {
    /// Any of these tags suffices, and so does Admin.
    const fn tags(self) -> &'static [Tag] {
        match self {
            Self::Traverse => &[Tag::Read, Tag::Resolve, Tag::Create],
            Self::Resolve => &[Tag::Read, Tag::Resolve],
            Self::Mount => &[Tag::Mount],
            Self::BeListed => &Tag::ALL,
            Self::GetPermissions => &[Tag::Read],
            Self::SetPermissions => &[],
        }
    }
}

/// Whether `caller` may do this to a node with these permissions.
pub fn is_allowed(action: Action, caller: &Caller, node: &Permissions) -> bool {
    node.allow(caller, action.tags())
}

/// The same, as an error.
///
/// # Errors
/// `NO_ACCESS`.
pub fn check(action: Action, caller: &Caller, node: &Permissions) -> Result<(), Error> {
    if is_allowed(action, caller, node) { Ok(()) } else { Err(no_access()) }
}

/// Whether `caller` may list the children of a node that match `pattern`.
pub fn can_list(caller: &Caller, node: &Permissions, pattern: &Pattern) -> bool {
    let tags: &[Tag] = if pattern.lists_children() { &[Tag::Read] } else { &[Tag::Read, Tag::Resolve, Tag::Create] };
    node.allow(caller, tags)
}

/// Checks that `caller` may delete a node.
///
/// The parent's Admin suffices, so that the owner of a parent can remove every child.
///
/// # Errors
/// `NO_ACCESS`.
pub fn check_delete(caller: &Caller, node: &Permissions, parent: &Permissions) -> Result<(), Error> {
    if node.allow(caller, &[]) || parent.allow(caller, &[]) { Ok(()) } else { Err(no_access()) }
}

/// The permissions of a child that `caller` creates.
///
/// A parent with a template gives exactly that, with the child's name. Otherwise the child gets its parent's
/// permissions, with all the caller's names as Admin, so that they can clean up what they create.
///
/// # Errors
/// `NO_ACCESS`, and `BAD_PERMISSIONS` when they are too large to be stored, before anything is created.
pub fn create_child(caller: &Caller, parent: &Permissions, child: &str) -> Result<Permissions, Error> {
    if !parent.allow(caller, &[Tag::Create]) {
        return Err(no_access());
    }
    let mut permissions = inherited(parent, child);
    if parent.template().is_none() {
        caller.names.iter().for_each(|name| permissions.add(&BlessingPattern::from(name), &[Tag::Admin]));
    } else if !permissions.allow(caller, &[Tag::Create]) {
        return Err(no_access());
    }
    permissions.checked()
}

/// The permissions that a child inherits from its parent: the same for every creator.
pub fn inherited(parent: &Permissions, child: &str) -> Permissions {
    parent.template().map_or_else(|| parent.clone(), |template| template.for_child(child))
}

/// The permissions that are stored when `caller` replaces `old` by `new`: callers cannot lock themselves out.
///
/// If `new` does not give the caller Admin, those of their names that had it are added. `old` is `None` for a node that
/// this call creates: then all their names are added.
///
/// # Errors
/// `BAD_PERMISSIONS` when the caller would still be locked out, because `new` denies their names, and when the result is
/// too large to be stored.
pub fn replacement(caller: &Caller, old: Option<&Permissions>, mut new: Permissions) -> Result<Permissions, Error> {
    let is_admin =
        |permissions: &Permissions, names| permissions.list(Tag::Admin).is_some_and(|list| list.grants(names));
    if is_admin(&new, &caller.names) {
        return new.checked();
    }
    let was_admin = |name| old.is_none_or(|old| is_admin(old, std::slice::from_ref(name)));
    let restored: Vec<_> = caller.names.iter().filter(|name| was_admin(name)).collect();
    restored.iter().for_each(|name| new.add(&BlessingPattern::from(*name), &[Tag::Admin]));
    if !restored.is_empty() && !is_admin(&new, &caller.names) {
        return Err(Error::new(Reason::BadPermissions, "these permissions would lock out the caller"));
    }
    new.checked()
}

/// Checks that `new` can be stored even if all the caller's names are added to it.
///
/// # Errors
/// `BAD_PERMISSIONS`.
pub fn check_largest_replacement(caller: &Caller, new: &Permissions) -> Result<(), Error> {
    let mut largest = new.clone();
    caller.names.iter().for_each(|name| largest.add(&BlessingPattern::from(name), &[Tag::Admin]));
    largest.checked().map(drop)
}

/// The error that reveals nothing.
pub fn no_access() -> Error {
    Error::new(Reason::NoAccess, "no access")
}
