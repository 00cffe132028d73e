//! Locality groups in requests of operators and in stored schemas.

use std::collections::BTreeMap;

use ebla_model::cell::FamilyName;
use ebla_model::error::Error;
use ebla_model::id::TableId;
use ebla_model::locality::{DEFAULT_GROUP, GroupSizes, LocalityGroup, LocalityGroupChange, StoredBytes};
use ebla_model::schema::{NewFamily, TableSchema};

use crate::convert::{gc_rule_from_proto, gc_rule_to_proto};
use crate::operate::locality_group_change::Change;
use crate::{operate, record};

/// A change of a table's locality groups.
pub fn locality_group_change_to_proto(change: &LocalityGroupChange) -> operate::LocalityGroupChange {
    let change = match change.clone() {
        LocalityGroupChange::Set { name, options } => Change::Set(operate::SetLocalityGroup { name, options }),
        LocalityGroupChange::Add { family: NewFamily { name, gc, aggregator: _ }, group } => {
            let (family, gc) = (name.to_string(), gc.as_ref().map(gc_rule_to_proto));
            Change::Add(operate::AddFamily { family, gc, group })
        }
        LocalityGroupChange::Move { family, group } => Change::Move(operate::MoveFamily { family, group }),
        LocalityGroupChange::Remove { name } => Change::Remove(name),
    };
    operate::LocalityGroupChange { change: Some(change) }
}

/// A change of a table's locality groups.
///
/// # Errors
/// `InvalidArgument` when its kind is missing or unknown.
pub fn locality_group_change_from_proto(change: operate::LocalityGroupChange) -> Result<LocalityGroupChange, Error> {
    let unknown = || Error::invalid("a change of locality groups has no kind, or one of a newer release");
    Ok(match change.change.ok_or_else(unknown)? {
        Change::Set(set) => LocalityGroupChange::Set { name: set.name, options: set.options },
        Change::Add(add) => {
            let gc =
                add.gc.as_ref().map(gc_rule_from_proto).transpose().map_err(|error| Error::invalid(error.message))?;
            let family = NewFamily::plain(FamilyName::new(&add.family)?, gc);
            LocalityGroupChange::Add { family, group: add.group }
        }
        Change::Move(moved) => LocalityGroupChange::Move { family: moved.family, group: moved.group },
        Change::Remove(name) => LocalityGroupChange::Remove { name },
    })
}

/// The locality groups that are stored with a table. Those of METADATA are built in, and need not stop older releases.
pub(super) fn stored_groups(schema: &TableSchema) -> &[LocalityGroup] {
    if schema.table == TableId::METADATA { &[] } else { &schema.locality_groups }
}

/// A locality group as stored with its table.
pub(super) fn locality_group_to_proto(group: &LocalityGroup) -> record::LocalityGroup {
    record::LocalityGroup { name: group.name.clone(), number: group.number, options: group.options.to_string() }
}

/// A locality group as stored with its table.
///
/// # Errors
/// `DataDamaged` when its options are not known.
pub(super) fn locality_group_from_proto(group: &record::LocalityGroup) -> Result<LocalityGroup, Error> {
    let damaged = |error: Error| Error::damaged(format!("table schema: locality group: {error}"));
    let options = group.options.parse().map_err(damaged)?;
    Ok(LocalityGroup { name: group.name.clone(), number: group.number, options })
}

/// Which sizes a reply contains.
pub const fn group_sizes_to_proto(sizes: GroupSizes) -> operate::GroupSizes {
    match sizes {
        GroupSizes::None => operate::GroupSizes::None,
        GroupSizes::Files => operate::GroupSizes::Files,
        GroupSizes::Flushed => operate::GroupSizes::Flushed,
    }
}

/// Which sizes a reply contains; none for a value of a newer release.
pub fn group_sizes_from_proto(sizes: i32) -> GroupSizes {
    match operate::GroupSizes::try_from(sizes) {
        Ok(operate::GroupSizes::Files) => GroupSizes::Files,
        Ok(operate::GroupSizes::Flushed) => GroupSizes::Flushed,
        Ok(operate::GroupSizes::None) | Err(_) => GroupSizes::None,
    }
}

/// Bytes of cells in files.
pub const fn stored_bytes_to_proto(bytes: StoredBytes) -> record::StoredBytes {
    record::StoredBytes { files: bytes.files, data: bytes.data }
}

/// Bytes of cells in files.
pub const fn stored_bytes_from_proto(bytes: &record::StoredBytes) -> StoredBytes {
    StoredBytes { files: bytes.files, data: bytes.data }
}

/// The locality groups of a table by number, with their families; the default group is always there. `bytes`: by number, where they are
/// known; a group that is absent has no cells in files.
pub fn locality_groups_to_proto(
    schema: &TableSchema,
    bytes: Option<&BTreeMap<u32, StoredBytes>>,
) -> Vec<operate::LocalityGroup> {
    let mut numbers: Vec<u32> = schema.locality_groups.iter().map(|group| group.number).collect();
    if !numbers.contains(&DEFAULT_GROUP) {
        numbers.insert(0, DEFAULT_GROUP);
    }
    let group = |number: u32| {
        let families = schema.families.iter().filter(|family| family.locality_group == number);
        operate::LocalityGroup {
            name: schema.group_name(number).to_owned(),
            options: schema.group_options(number).to_string(),
            families: families.map(|family| family.name.to_string()).collect(),
            bytes: bytes.map(|bytes| stored_bytes_to_proto(bytes.get(&number).copied().unwrap_or_default())),
        }
    };
    numbers.into_iter().map(group).collect()
}

#[cfg(test)]
mod tests {
    use ebla_model::gc::GcRule;

    use super::*;

    #[test]
    fn groups_of_metadata_are_not_stored() {
        let metadata = TableSchema::metadata();
        assert!(!metadata.locality_groups.is_empty());
        let record = crate::convert::schema_to_proto(&metadata);
        assert_eq!((record.version, record.locality_groups.len()), (crate::convert::VERSION, 0));
    }

    #[test]
    fn changes_come_back() {
        let text = |text: &str| text.to_owned();
        let changes = [
            LocalityGroupChange::Set { name: text("g"), options: text("bloom=none") },
            LocalityGroupChange::Move { family: text("f"), group: text("g") },
            LocalityGroupChange::Remove { name: text("g") },
            LocalityGroupChange::Add {
                family: NewFamily::plain(FamilyName::new("f").unwrap(), Some(GcRule::MaxVersions(2))),
                group: text("g"),
            },
        ];
        for change in changes {
            let sent = locality_group_change_to_proto(&change);
            assert_eq!(locality_group_change_from_proto(sent), Ok(change));
        }
        assert!(locality_group_change_from_proto(operate::LocalityGroupChange { change: None }).is_err());
    }

    #[test]
    fn sizes_come_back() {
        for sizes in [GroupSizes::None, GroupSizes::Files, GroupSizes::Flushed] {
            assert_eq!(group_sizes_from_proto(group_sizes_to_proto(sizes).into()), sizes);
        }
        assert_eq!(group_sizes_from_proto(99), GroupSizes::None);
        let bytes = StoredBytes { files: 3, data: 40 };
        assert_eq!(stored_bytes_from_proto(&stored_bytes_to_proto(bytes)), bytes);
    }

    #[test]
    fn groups_have_their_bytes_by_number() {
        let schema = TableSchema::metadata();
        assert_eq!(locality_groups_to_proto(&schema, None).first().unwrap().bytes, None);
        for (known, expected) in [(BTreeMap::new(), 0), (BTreeMap::from([(0, StoredBytes { files: 5, data: 9 })]), 5)] {
            let groups = locality_groups_to_proto(&schema, Some(&known));
            assert_eq!(groups.first().unwrap().bytes.map(|bytes| bytes.files), Some(expected));
        }
    }
}
