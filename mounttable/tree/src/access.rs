//! Access lists and permissions of one node.
//!
//! [`Permissions`] hold an access list for each [`Tag`], and may hold a template: the permissions of future children.
//! In JSON a template's tags have the prefix `%%/`, and templates nest:
//!
//! ```text
//! {"Admin":{"In":["root"]}, "Create":{"In":["..."]}, "%%/Admin":{"In":["%%"],"NotIn":["mallory"]}}
//! ```
//!
//! Invariant: the lists are sorted and without duplicates; a tag with an empty list grants the same as an absent tag:
//! nothing. Permissions without any tag are closed: only superusers pass.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize};

use crate::error::{Error, Reason};
use crate::identity::{ALL_PRINCIPALS, BlessingName, BlessingPattern, Caller, NO_EXTENSION, Privilege};
use crate::name::DEPTH_MAX;

/// The placeholder for a child's name in a template's lists, and the prefix of its tags in JSON.
pub const CHILD: &str = "%%";

/// The largest permissions of one node, as JSON, in bytes.
pub const PERMISSIONS_BYTES_MAX: usize = 100_000;

/// The right that a list grants.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Tag {
    /// Everything, including to change the permissions.
    Admin,
    /// To mount and unmount servers on the node.
    Mount,
    /// To list the node and to read its permissions.
    Read,
    /// To create children.
    Create,
    /// To traverse the node and to read its servers.
    Resolve,
}

impl Tag {
    /// All tags.
    pub const ALL: [Self; 5] = [Self::Admin, Self::Mount, Self::Read, Self::Create, Self::Resolve];

    /// The name in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Admin => "Admin",
            Self::Mount => "Mount",
            Self::Read => "Read",
            Self::Create => "Create",
            Self::Resolve => "Resolve",
        }
    }
}

impl FromStr for Tag {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        let known = Self::ALL.into_iter().find(|tag| tag.name() == name);
        let wrong = || format!("unknown tag {name:?}: expected Admin, Mount, Read, Create or Resolve");
        known.ok_or_else(|| Error::new(Reason::BadPermissions, wrong()))
    }
}

/// Callers who are allowed, and exceptions who are denied.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AccessList {
    #[serde(rename = "In", default, skip_serializing_if = "BTreeSet::is_empty", deserialize_with = "absent_is_empty")]
    allowed: BTreeSet<BlessingPattern>,
    #[serde(
        rename = "NotIn",
        default,
        skip_serializing_if = "BTreeSet::is_empty",
        deserialize_with = "absent_is_empty"
    )]
    denied: BTreeSet<BlessingPattern>,
}

/// Other writers of such files write `null` for an empty list.
fn absent_is_empty<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeSet<BlessingPattern>, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

impl AccessList {
    /// A list of these patterns.
    pub fn new<'a>(allowed: impl IntoIterator<Item = &'a str>, denied: impl IntoIterator<Item = &'a str>) -> Self {
        let patterns = |texts: &mut dyn Iterator<Item = &'a str>| texts.map(BlessingPattern::new).collect();
        Self { allowed: patterns(&mut allowed.into_iter()), denied: patterns(&mut denied.into_iter()) }
    }

    /// The allowed patterns, in order.
    pub fn allowed(&self) -> impl Iterator<Item = &BlessingPattern> {
        self.allowed.iter()
    }

    /// The denied patterns, in order.
    pub fn denied(&self) -> impl Iterator<Item = &BlessingPattern> {
        self.denied.iter()
    }

    /// Whether a caller with these names is granted access: by a name that is neither denied nor delegated by a denied
    /// one.
    pub fn grants(&self, names: &[BlessingName]) -> bool {
        self.granting(names).is_some()
    }

    /// The first allowed pattern that applies.
    fn granting(&self, names: &[BlessingName]) -> Option<&BlessingPattern> {
        let is_left = |name: &&BlessingName| !self.denied.iter().any(|pattern| pattern.matches(name));
        self.allowed.iter().find(|pattern| pattern.matches_any(names.iter().filter(is_left)))
    }

    fn for_child(&self, child: &str) -> Self {
        // A child called "..." must not open its template to everybody: an element that cannot be a caller's name
        // matches no caller.
        let can_name = child.parse::<BlessingName>().is_ok();
        let named = |pattern: &BlessingPattern| match pattern.as_str() {
            text if text.contains(CHILD) && !can_name => BlessingPattern::new(NO_EXTENSION),
            text => BlessingPattern::new(text.replace(CHILD, child)),
        };
        Self { allowed: self.allowed.iter().map(named).collect(), denied: self.denied.iter().map(named).collect() }
    }
}

/// The permissions of a node, and of its future children.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(try_from = "BTreeMap<String, AccessList>", into = "BTreeMap<String, AccessList>")]
pub struct Permissions {
    lists: BTreeMap<Tag, AccessList>,
    template: Option<Box<Permissions>>,
}

impl Permissions {
    /// Permissions that allow everybody everything.
    pub fn open() -> Self {
        let mut open = Self::default();
        open.add(&BlessingPattern::new(ALL_PRINCIPALS), &[Tag::Admin]);
        open
    }

    /// The list of `tag`.
    pub fn list(&self, tag: Tag) -> Option<&AccessList> {
        self.lists.get(&tag)
    }

    /// The permissions of future children, before `%%` is replaced.
    pub fn template(&self) -> Option<&Self> {
        self.template.as_deref()
    }

    /// Sets the permissions of future children. Without a list and a template of its own it is none: the stored form has no other
    /// way to write that.
    pub fn set_template(&mut self, template: Self) {
        self.template = (template != Self::default()).then(|| Box::new(template));
    }

    /// Whether `caller` has one of `tags`, or Admin.
    pub fn allow(&self, caller: &Caller, tags: &[Tag]) -> bool {
        caller.privilege == Privilege::Superuser
            || std::iter::once(&Tag::Admin)
                .chain(tags)
                .any(|tag| self.list(*tag).is_some_and(|list| list.grants(&caller.names)))
    }

    /// The tag, itself or Admin, and the pattern by which an ordinary caller has `tag`; `None` if the caller does not
    /// have it.
    pub fn granting(&self, caller: &Caller, tag: Tag) -> Option<(Tag, &BlessingPattern)> {
        let decides = |tag| Some((tag, self.list(tag)?.granting(&caller.names)?));
        [tag, Tag::Admin].into_iter().find_map(decides)
    }

    /// Allows `pattern` under each of `tags`.
    pub fn add(&mut self, pattern: &BlessingPattern, tags: &[Tag]) {
        for tag in tags {
            self.lists.entry(*tag).or_default().allowed.insert(pattern.clone());
        }
    }

    /// Denies `pattern` under each of `tags`.
    pub fn deny(&mut self, pattern: &BlessingPattern, tags: &[Tag]) {
        for tag in tags {
            self.lists.entry(*tag).or_default().denied.insert(pattern.clone());
        }
    }

    /// Removes `pattern` from both lists of each of `tags`.
    pub fn clear(&mut self, pattern: &BlessingPattern, tags: &[Tag]) {
        for (_, list) in self.lists.iter_mut().filter(|(tag, _)| tags.contains(tag)) {
            list.allowed.remove(pattern);
            list.denied.remove(pattern);
        }
    }

    /// The permissions that a template gives to the child `child`: every `%%` in the lists is replaced by its name,
    /// also in nested templates.
    #[must_use]
    pub fn for_child(&self, child: &str) -> Self {
        Self {
            lists: self.lists.iter().map(|(tag, list)| (*tag, list.for_child(child))).collect(),
            template: self.template.as_ref().map(|nested| Box::new(nested.for_child(child))),
        }
    }

    /// The permissions as JSON; equal permissions give equal JSON.
    pub fn to_json(&self) -> String {
        // Serialising a map of strings to lists of strings cannot fail.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Parses permissions.
    ///
    /// # Errors
    /// `BAD_PERMISSIONS` when the text is not JSON, has an unknown tag, or is larger than [`PERMISSIONS_BYTES_MAX`].
    pub fn from_json(text: &str) -> Result<Self, Error> {
        check_size(text.len())?;
        Self::from_stored(text)
    }

    /// Parses permissions that were stored. There is no size limit: a release without a check may have stored more.
    ///
    /// # Errors
    /// As [`Self::from_json`], apart from the size.
    pub fn from_stored(text: &str) -> Result<Self, Error> {
        serde_json::from_str(text).map_err(|error| bad(error.to_string()))
    }

    /// The permissions, unless they are too large to be stored.
    ///
    /// # Errors
    /// `BAD_PERMISSIONS` when their JSON is larger than [`PERMISSIONS_BYTES_MAX`], or templates are nested too deep.
    pub fn checked(self) -> Result<Self, Error> {
        let templates = std::iter::successors(self.template(), |nested| nested.template()).count();
        check_depth(templates)?;
        check_size(self.to_json().len()).map(|()| self)
    }

    fn put(&mut self, key: &str, list: AccessList, depth: usize) -> Result<(), Error> {
        check_depth(depth)?;
        match key.strip_prefix(CHILD).and_then(|rest| rest.strip_prefix('/')) {
            Some(rest) => self.template.get_or_insert_default().put(rest, list, depth.saturating_add(1)),
            None => {
                self.lists.insert(key.parse()?, list);
                Ok(())
            }
        }
    }
}

impl TryFrom<BTreeMap<String, AccessList>> for Permissions {
    type Error = Error;

    fn try_from(flat: BTreeMap<String, AccessList>) -> Result<Self, Error> {
        let mut permissions = Self::default();
        flat.into_iter().try_for_each(|(key, list)| permissions.put(&key, list, 0))?;
        Ok(permissions)
    }
}

impl From<Permissions> for BTreeMap<String, AccessList> {
    fn from(permissions: Permissions) -> Self {
        let own = permissions.lists.into_iter().map(|(tag, list)| (tag.name().to_owned(), list));
        let nested = permissions.template.map(|template| Self::from(*template)).unwrap_or_default();
        own.chain(nested.into_iter().map(|(key, list)| (format!("{CHILD}/{key}"), list))).collect()
    }
}

impl fmt::Display for Permissions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_json())
    }
}

fn check_depth(templates: usize) -> Result<(), Error> {
    if templates > DEPTH_MAX {
        let wrong = format!("templates are nested more than {DEPTH_MAX} deep");
        return Err(Error::new(Reason::BadPermissions, wrong));
    }
    Ok(())
}

fn check_size(bytes: usize) -> Result<(), Error> {
    if bytes > PERMISSIONS_BYTES_MAX {
        return Err(bad(format!("they have {bytes} bytes, at most {PERMISSIONS_BYTES_MAX} are allowed")));
    }
    Ok(())
}

fn bad(wrong: impl fmt::Display) -> Error {
    Error::new(Reason::BadPermissions, format!("invalid permissions: {wrong}"))
}
