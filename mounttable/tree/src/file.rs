//! The permissions file: the initial nodes of a table.
//!
//! It is a JSON object from names to permissions; the empty name is the root. Old files give a node's template as the
//! permissions of its child `%%`:
//!
//! ```text
//! {"": {"Read":{"In":["..."]}, "Admin":{"In":["root"]}},
//!  "users": {"Create":{"In":["..."]}},
//!  "users/%%": {"Admin":{"In":["%%"]}}}
//! ```
//!
//! A template without lists, such as `"users/%%": {}`, is none: children inherit from their parent, as without that entry.
//!
//! Listed nodes are sticky and get exactly the listed permissions, without anything inherited. Their missing ancestors
//! inherit from their parents, and are not sticky.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};

use crate::access::{CHILD, Permissions};
use crate::error::{Error, Reason};
use crate::name::{DEPTH_MAX, NodeName};
use crate::{naming, rules};

/// Whether a node without children and servers is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stickiness {
    /// It is collected.
    Collected,
    /// It stays until it is deleted.
    Sticky,
}

/// A node of a permissions file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileNode {
    /// Its name.
    pub name: NodeName,
    /// Its permissions.
    pub permissions: Permissions,
    /// Sticky if the file lists it. The root is always created sticky.
    pub stickiness: Stickiness,
}

/// Parses a permissions file; the result has parents first, and always contains the root.
///
/// `root`: the permissions of the root unless the file lists it. Without an entry for the root the file leaves an existing
/// root as it is.
///
/// # Errors
/// `BAD_PERMISSIONS` when the file is not a JSON object, lists a node or a template twice, or has an invalid name.
pub fn parse(json: &str, root: &Permissions) -> Result<Vec<FileNode>, Error> {
    let Entries(entries) = serde_json::from_str(json).map_err(bad)?;
    let mut listed: BTreeMap<NodeName, Levels> = BTreeMap::new();
    for (path, permissions) in entries {
        let (name, level) = target(&path)?;
        if listed.entry(name).or_default().insert(level, permissions).is_some() {
            return Err(bad(format!("{path:?} is listed twice")));
        }
    }
    let mut nodes: BTreeMap<NodeName, FileNode> = BTreeMap::new();
    let names: Vec<_> = std::iter::once(NodeName::root()).chain(listed.keys().cloned()).collect();
    for name in names.iter().flat_map(NodeName::path) {
        if !nodes.contains_key(&name) {
            let parent = name.split_last().and_then(|(parent, element)| Some((nodes.get(&parent)?, element)));
            let given =
                parent.map_or_else(|| root.clone(), |(parent, element)| rules::inherited(&parent.permissions, element));
            let mut node = node(&name, given, listed.remove(&name))?;
            let too_large = |error: Error| bad(format!("{:?}: {}", name.as_str(), error.message));
            node.permissions = node.permissions.checked().map_err(too_large)?;
            nodes.insert(name, node);
        }
    }
    Ok(nodes.into_values().collect())
}

/// The entries of one node: level 0 its own permissions, level 1 its template, level 2 the template's template.
type Levels = BTreeMap<usize, Permissions>;

/// The node with this name; its permissions are `given` unless the file lists it.
fn node(name: &NodeName, given: Permissions, listed: Option<Levels>) -> Result<FileNode, Error> {
    let stickiness = if listed.is_some() { Stickiness::Sticky } else { Stickiness::Collected };
    let mut levels = listed.unwrap_or_default();
    levels.entry(0).or_insert(given);
    let deepest = levels.keys().last().copied().unwrap_or_default();
    let mut inner: Option<Permissions> = None;
    for level in (0..=deepest).rev() {
        let mut permissions = levels.remove(&level).unwrap_or_default();
        if let Some(template) = inner {
            if permissions.template().is_some() {
                return Err(bad(format!("{:?} has two templates", name.as_str())));
            }
            permissions.set_template(template);
        }
        inner = Some(permissions);
    }
    Ok(FileNode { name: name.clone(), permissions: inner.unwrap_or_default(), stickiness })
}

/// The node of an entry, and the number of `%%` after its name.
fn target(path: &str) -> Result<(NodeName, usize), Error> {
    let elements: Vec<_> = naming::elements(path).collect();
    let level = elements.iter().rev().take_while(|element| **element == CHILD).count();
    let own: Vec<_> = elements.iter().take(elements.len().saturating_sub(level)).copied().collect();
    if level > DEPTH_MAX {
        return Err(bad(format!("a name ends with {level} %%, at most {DEPTH_MAX} are allowed")));
    }
    if own.contains(&CHILD) {
        return Err(bad(format!("%% is only allowed at the end of a name: {path:?}")));
    }
    let name = own.join("/").parse().map_err(bad)?;
    Ok((name, level))
}

fn bad(wrong: impl fmt::Display) -> Error {
    Error::new(Reason::BadPermissions, format!("invalid permissions file: {wrong}"))
}

/// The entries in the order of the file: a map would silently drop the first of two with the same key.
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
