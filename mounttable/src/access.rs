//! Access lists and permissions: who may do what with one node.
//!
//! [`Permissions`] give each [`Tag`] a list, and may hold a template: the permissions of children yet to be made. As
//! JSON a template's tags stand beside the others, with `%%/` in front, and templates nest:
//!
//! ```text
//! {"Admin":{"In":["root"]}, "Create":{"In":["..."]}, "%%/Admin":{"In":["%%"],"NotIn":["mallory"]}}
//! ```
//!
//! Invariant: the lists are sorted, without doubles, and a tag whose list is empty grants nothing whether it is there
//! or not. Permissions without any tag are closed: only superusers pass.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize};

use crate::error::{Error, Reason};
use crate::identity::{BlessingName, BlessingPattern, Caller, EVERYBODY, NO_EXTENSION, Standing};
use crate::name::DEPTH_MAX;

/// Where the name of a child goes in a template's lists, and what its tags begin with in JSON.
pub const CHILD: &str = "%%";

/// Largest permissions of one node, as JSON, in bytes.
pub const PERMISSIONS_BYTES_MAX: usize = 100_000;

/// What a list grants.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Tag {
    /// Everything, and to change the permissions.
    Admin,
    /// To mount servers on the node and take them away.
    Mount,
    /// To list the node and to read its permissions.
    Read,
    /// To make children.
    Create,
    /// To pass through the node and to learn its servers.
    Resolve,
}

impl Tag {
    /// All tags.
    pub const ALL: [Self; 5] = [Self::Admin, Self::Mount, Self::Read, Self::Create, Self::Resolve];

    /// The name as it stands in JSON.
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
        let wrong = || format!("{name:?} is no tag: expected Admin, Mount, Read, Create or Resolve");
        known.ok_or_else(|| Error::new(Reason::BadPermissions, wrong()))
    }
}

/// Who is let in, and who is not although he would be.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AccessList {
    #[serde(rename = "In", default, skip_serializing_if = "BTreeSet::is_empty", deserialize_with = "absent_is_empty")]
    let_in: BTreeSet<BlessingPattern>,
    #[serde(
        rename = "NotIn",
        default,
        skip_serializing_if = "BTreeSet::is_empty",
        deserialize_with = "absent_is_empty"
    )]
    kept_out: BTreeSet<BlessingPattern>,
}

/// Other writers of such files write `null` for an empty list.
fn absent_is_empty<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeSet<BlessingPattern>, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

impl AccessList {
    /// The list of these patterns.
    pub fn new<'a>(let_in: impl IntoIterator<Item = &'a str>, kept_out: impl IntoIterator<Item = &'a str>) -> Self {
        let patterns = |texts: &mut dyn Iterator<Item = &'a str>| texts.map(BlessingPattern::new).collect();
        Self { let_in: patterns(&mut let_in.into_iter()), kept_out: patterns(&mut kept_out.into_iter()) }
    }

    /// Whom it lets in, in order.
    pub fn let_in(&self) -> impl Iterator<Item = &BlessingPattern> {
        self.let_in.iter()
    }

    /// Whom it keeps out, in order.
    pub fn kept_out(&self) -> impl Iterator<Item = &BlessingPattern> {
        self.kept_out.iter()
    }

    /// Whether somebody known by `names` is let in: with a name that is not kept out, nor delegated by one that is.
    pub fn grants(&self, names: &[BlessingName]) -> bool {
        self.granting(names).is_some()
    }

    /// The first pattern that lets them in.
    fn granting(&self, names: &[BlessingName]) -> Option<&BlessingPattern> {
        let is_left = |name: &&BlessingName| !self.kept_out.iter().any(|pattern| pattern.matches(name));
        self.let_in.iter().find(|pattern| pattern.matches_any(names.iter().filter(is_left)))
    }

    fn for_child(&self, child: &str) -> Self {
        // A child called "..." must not open its template to everybody: what cannot name a caller names nobody.
        let can_name = child.parse::<BlessingName>().is_ok();
        let named = |pattern: &BlessingPattern| match pattern.as_str() {
            text if text.contains(CHILD) && !can_name => BlessingPattern::new(NO_EXTENSION),
            text => BlessingPattern::new(text.replace(CHILD, child)),
        };
        Self { let_in: self.let_in.iter().map(named).collect(), kept_out: self.kept_out.iter().map(named).collect() }
    }
}

/// Who may do what with a node, and with children yet to be made.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(try_from = "BTreeMap<String, AccessList>", into = "BTreeMap<String, AccessList>")]
pub struct Permissions {
    lists: BTreeMap<Tag, AccessList>,
    template: Option<Box<Permissions>>,
}

impl Permissions {
    /// What a root has that nobody gave permissions to: everybody may do everything.
    pub fn open() -> Self {
        let mut open = Self::default();
        open.add(&BlessingPattern::new(EVERYBODY), &[Tag::Admin]);
        open
    }

    /// The list of `tag`.
    pub fn list(&self, tag: Tag) -> Option<&AccessList> {
        self.lists.get(&tag)
    }

    /// The permissions that children are made with, before they are named.
    pub fn template(&self) -> Option<&Self> {
        self.template.as_deref()
    }

    /// Lets children be made with `template`.
    pub fn set_template(&mut self, template: Self) {
        self.template = Some(Box::new(template));
    }

    /// Whether `caller` has one of `tags`. Admin is as good as any.
    pub fn allow(&self, caller: &Caller, tags: &[Tag]) -> bool {
        caller.standing == Standing::Superuser
            || std::iter::once(&Tag::Admin)
                .chain(tags)
                .any(|tag| self.list(*tag).is_some_and(|list| list.grants(&caller.names)))
    }

    /// Why an ordinary caller has `tag`: the tag that decides, itself or Admin, and the pattern that means him. `None` if he
    /// has it not.
    pub fn granting(&self, caller: &Caller, tag: Tag) -> Option<(Tag, &BlessingPattern)> {
        let decides = |tag| Some((tag, self.list(tag)?.granting(&caller.names)?));
        [tag, Tag::Admin].into_iter().find_map(decides)
    }

    /// Lets `pattern` in under each of `tags`.
    pub fn add(&mut self, pattern: &BlessingPattern, tags: &[Tag]) {
        for tag in tags {
            self.lists.entry(*tag).or_default().let_in.insert(pattern.clone());
        }
    }

    /// Keeps `pattern` out under each of `tags`.
    pub fn keep_out(&mut self, pattern: &BlessingPattern, tags: &[Tag]) {
        for tag in tags {
            self.lists.entry(*tag).or_default().kept_out.insert(pattern.clone());
        }
    }

    /// Takes `pattern` from both lists of each of `tags`.
    pub fn clear(&mut self, pattern: &BlessingPattern, tags: &[Tag]) {
        for (_, list) in self.lists.iter_mut().filter(|(tag, _)| tags.contains(tag)) {
            list.let_in.remove(pattern);
            list.kept_out.remove(pattern);
        }
    }

    /// The permissions that a template gives to the child `child`: every `%%` in the lists becomes its name, in those
    /// of nested templates too.
    #[must_use]
    pub fn for_child(&self, child: &str) -> Self {
        Self {
            lists: self.lists.iter().map(|(tag, list)| (*tag, list.for_child(child))).collect(),
            template: self.template.as_ref().map(|nested| Box::new(nested.for_child(child))),
        }
    }

    /// The permissions as JSON, the same for equal ones.
    pub fn to_json(&self) -> String {
        // A map of strings to lists of strings has no way to fail.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads permissions.
    ///
    /// # Errors
    /// `BAD_PERMISSIONS` when the text is no JSON, names an unknown tag or is larger than [`PERMISSIONS_BYTES_MAX`].
    pub fn from_json(text: &str) -> Result<Self, Error> {
        if text.len() > PERMISSIONS_BYTES_MAX {
            return Err(bad(format!("they have {} bytes, at most {PERMISSIONS_BYTES_MAX} are allowed", text.len())));
        }
        serde_json::from_str(text).map_err(|error| bad(error.to_string()))
    }

    fn put(&mut self, key: &str, list: AccessList, depth: usize) -> Result<(), Error> {
        if depth > DEPTH_MAX {
            let wrong = format!("templates nest deeper than {DEPTH_MAX}");
            return Err(Error::new(Reason::BadPermissions, wrong));
        }
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

fn bad(wrong: impl fmt::Display) -> Error {
    Error::new(Reason::BadPermissions, format!("invalid permissions: {wrong}"))
}
