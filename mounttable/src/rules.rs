//! Who may do what, and what the nodes that a caller makes begin with.
//!
//! | to | the caller needs |
//! |---|---|
//! | pass through a node | Read, Resolve or Create on it: whoever may make children must be able to get there |
//! | resolve a node | Read or Resolve on it |
//! | make a child | Create on the parent, and Create from its template, if it has one, for a child of that name |
//! | mount, unmount | Mount |
//! | delete a node | Admin on it or on its parent; nothing on what is below it |
//! | list a node's children | Read; Resolve or Create will do to look for a child by its whole name |
//! | see a child listed | any tag on the child; to see its servers, Read or Resolve |
//! | read permissions | Read |
//! | set permissions | Admin |
//!
//! Admin grants everything, and superusers pass always. Whoever is refused learns nothing else: not even whether the
//! name exists.

use crate::access::{Permissions, Tag};
use crate::error::{Error, Reason};
use crate::glob::Pattern;
use crate::identity::{BlessingPattern, Caller};

/// Something that is done to one node, and needs rights on that node alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// To go on to a node below it.
    Traverse,
    /// To learn its servers.
    Resolve,
    /// To mount a server on it or take one away.
    Mount,
    /// To be told that it exists, in a list of its parent's children.
    BeListed,
    /// To read its permissions.
    GetPermissions,
    /// To replace its permissions.
    SetPermissions,
}

impl Action {
    /// Any of these is enough, and so is Admin.
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

/// Whether `caller` may do this to a node of these permissions.
pub fn may(action: Action, caller: &Caller, node: &Permissions) -> bool {
    node.allow(caller, action.tags())
}

/// The same, as a refusal.
///
/// # Errors
/// `NO_ACCESS`.
pub fn check(action: Action, caller: &Caller, node: &Permissions) -> Result<(), Error> {
    if may(action, caller, node) { Ok(()) } else { Err(no_access()) }
}

/// Whether `caller` may ask a node for the children that `pattern` wants of it.
pub fn may_list(caller: &Caller, node: &Permissions, pattern: &Pattern) -> bool {
    let tags: &[Tag] = if pattern.lists_children() { &[Tag::Read] } else { &[Tag::Read, Tag::Resolve, Tag::Create] };
    node.allow(caller, tags)
}

/// Whether `caller` may delete a node.
///
/// The parent's Admin is enough, so that nobody can plant a node that cannot be removed.
///
/// # Errors
/// `NO_ACCESS`.
pub fn check_delete(caller: &Caller, node: &Permissions, parent: &Permissions) -> Result<(), Error> {
    if node.allow(caller, &[]) || parent.allow(caller, &[]) { Ok(()) } else { Err(no_access()) }
}

/// The permissions of a child that `caller` makes, or why he may not.
///
/// A parent with a template gives that, under the child's name, and nothing else. Otherwise the child has its parent's
/// permissions with all the caller's names as Admin, so that he can clean up what he makes.
///
/// # Errors
/// `NO_ACCESS`, before anything is made.
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
    Ok(permissions)
}

/// What a child gets from its parent, whoever makes it.
pub fn inherited(parent: &Permissions, child: &str) -> Permissions {
    parent.template().map_or_else(|| parent.clone(), |template| template.for_child(child))
}

/// The permissions that are stored when `caller` replaces `old` by `new`: nobody can lock himself out.
///
/// If `new` would not give the caller Admin, those of his names that had it are put back. `old` is `None` for a node
/// that is made by this call: then all his names are.
///
/// # Errors
/// `BAD_PERMISSIONS` when the caller would be kept out all the same, because `new` denies his names by name.
pub fn replaced(caller: &Caller, old: Option<&Permissions>, mut new: Permissions) -> Result<Permissions, Error> {
    let is_admin =
        |permissions: &Permissions, names| permissions.list(Tag::Admin).is_some_and(|list| list.grants(names));
    if is_admin(&new, &caller.names) {
        return Ok(new);
    }
    let had_it = |name| old.is_none_or(|old| is_admin(old, std::slice::from_ref(name)));
    let put_back: Vec<_> = caller.names.iter().filter(|name| had_it(name)).collect();
    put_back.iter().for_each(|name| new.add(&BlessingPattern::from(*name), &[Tag::Admin]));
    if !put_back.is_empty() && !is_admin(&new, &caller.names) {
        return Err(Error::new(Reason::BadPermissions, "these permissions would keep out who sets them"));
    }
    Ok(new)
}

/// The refusal that says nothing.
pub fn no_access() -> Error {
    Error::new(Reason::NoAccess, "no access")
}
