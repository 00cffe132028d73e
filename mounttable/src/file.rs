//! The permissions file: what a table begins with.
//!
//! A JSON object from names to permissions; the empty name is the root. Old files give a node's template as the
//! permissions of its child `%%`:
//!
//! ```text
//! {"": {"Read":{"In":["..."]}, "Admin":{"In":["root"]}},
//!  "users": {"Create":{"In":["..."]}},
//!  "users/%%": {"Admin":{"In":["%%"]}}}
//! ```
//!
//! Listed nodes are sticky and have exactly what is listed; nothing is merged with what they would inherit. Nodes that
//! are only on the way have what a parent gives its children, and are not sticky.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};

use crate::access::{CHILD, Permissions};
use crate::error::{Error, Reason};
use crate::name::NodeName;
use crate::{naming, rules};

/// Whether a node without children and servers stays.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stickiness {
    /// It is collected.
    Collected,
    /// It stays until it is deleted.
    Sticky,
}

/// A node that a permissions file makes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileNode {
    /// Its name.
    pub name: NodeName,
    /// What it has.
    pub permissions: Permissions,
    /// Sticky when the file lists it, and the root always.
    pub stickiness: Stickiness,
}

/// The nodes that the file `json` makes, parents first; the root is always among them.
///
/// Without an entry for the root everybody may do everything there.
///
/// # Errors
/// `BAD_PERMISSIONS` when the file is no JSON object, lists a node or a template twice, or names what cannot be.
pub fn nodes(json: &str) -> Result<Vec<FileNode>, Error> {
    let Entries(entries) = serde_json::from_str(json).map_err(bad)?;
    let mut listed: BTreeMap<NodeName, Levels> = BTreeMap::new();
    for (path, permissions) in entries {
        let (name, level) = target(&path)?;
        if listed.entry(name).or_default().insert(level, permissions).is_some() {
            return Err(bad(format!("{path:?} is listed twice")));
        }
    }
    let mut made: BTreeMap<NodeName, FileNode> = BTreeMap::new();
    let names: Vec<_> = std::iter::once(NodeName::root()).chain(listed.keys().cloned()).collect();
    for name in names.iter().flat_map(NodeName::path) {
        if !made.contains_key(&name) {
            let parent = name.split_last().and_then(|(parent, element)| Some((made.get(&parent)?, element)));
            let given = parent
                .map_or_else(Permissions::open, |(parent, element)| rules::inherited(&parent.permissions, element));
            let node = node(&name, given, listed.remove(&name))?;
            made.insert(name, node);
        }
    }
    Ok(made.into_values().collect())
}

/// What a file says of one node: level 0 are its own permissions, level 1 its template, level 2 the template's.
type Levels = BTreeMap<usize, Permissions>;

/// The node of this name, which would have the permissions `given` if the file did not list it.
fn node(name: &NodeName, given: Permissions, listed: Option<Levels>) -> Result<FileNode, Error> {
    let stickiness = if listed.is_some() || name.is_root() { Stickiness::Sticky } else { Stickiness::Collected };
    let mut levels = listed.unwrap_or_default();
    levels.entry(0).or_insert(given);
    let deepest = levels.keys().last().copied().unwrap_or_default();
    let mut inner: Option<Permissions> = None;
    for level in (0..=deepest).rev() {
        let mut permissions = levels.remove(&level).unwrap_or_default();
        if let Some(template) = inner {
            if permissions.template().is_some() {
                return Err(bad(format!("{:?} has its template twice", name.as_str())));
            }
            permissions.set_template(template);
        }
        inner = Some(permissions);
    }
    Ok(FileNode { name: name.clone(), permissions: inner.unwrap_or_default(), stickiness })
}

/// The node that an entry is about, and how many `%%` stand behind its name.
fn target(path: &str) -> Result<(NodeName, usize), Error> {
    let elements: Vec<_> = naming::elements(path).collect();
    let level = elements.iter().rev().take_while(|element| **element == CHILD).count();
    let own: Vec<_> = elements.iter().take(elements.len().saturating_sub(level)).copied().collect();
    if own.contains(&CHILD) {
        return Err(bad(format!("{path:?} names children of children that have no name yet")));
    }
    let name = own.join("/").parse().map_err(bad)?;
    Ok((name, level))
}

fn bad(wrong: impl fmt::Display) -> Error {
    Error::new(Reason::BadPermissions, format!("invalid permissions file: {wrong}"))
}

/// The file's entries as they stand there: a map would silently drop the first of two that are spelled the same.
struct Entries(Vec<(String, Permissions)>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(EntriesVisitor)
    }
}

struct EntriesVisitor;

impl<'de> Visitor<'de> for EntriesVisitor {
    type Value = Entries;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object from names to permissions")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Entries(entries))
    }
}
