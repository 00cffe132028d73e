//! What table admin requests ask for, checked and as values of the model. Pure.

use ebla_model::aggregate::Aggregator;
use ebla_model::cell::FamilyName;
use ebla_model::error::{Error, Reason};
use ebla_model::id::TableId;
use ebla_model::key::{KeyRange, RowKey};
use ebla_model::schema::{FamilyChange, NewFamily, TableName, TableSchema};
use ebla_proto::admin::modify_column_families_request::{Modification, modification::Mod};
use ebla_proto::admin::{self, drop_row_range_request::Target, table::View};
use ebla_proto::convert::admin::{gc_rule_from_admin, value_type_from_admin};

use crate::creation::NewTable;

/// Longest row key that a table may be split at, in bytes: rows themselves have no longer ones.
const ROW_KEY_BYTES_MAX: usize = 4_096;
/// Most first tablets of a table: its plan is one file of Chubby's.
const SPLITS_MAX: usize = 1_000;
/// Tables in one answer, unless fewer are asked for.
const PAGE_MAX: usize = 1_000;
/// How consistency tokens begin; the rest is the table's id.
const TOKEN_PREFIX: &str = "ebla-table-";

/// An instance, `projects/P/instances/I`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Instance {
    pub(crate) project: String,
    pub(crate) instance: String,
}

pub(crate) fn instance(parent: &str) -> Result<Instance, Error> {
    match parent.split('/').collect::<Vec<_>>().as_slice() {
        ["projects", project, "instances", instance] if !project.is_empty() && !instance.is_empty() => {
            Ok(Instance { project: (*project).to_owned(), instance: (*instance).to_owned() })
        }
        _ => Err(Error::invalid(format!("invalid instance name {parent:?}: expected projects/P/instances/I"))),
    }
}

pub(crate) fn new_table(request: admin::CreateTableRequest) -> Result<NewTable, Error> {
    let parent = instance(&request.parent)?;
    let name = TableName::from_parts(&parent.project, &parent.instance, &request.table_id)?;
    let table = request.table.unwrap_or_default();
    refuse_unserved(&table)?;
    let families = table.column_families.iter().map(|(name, family)| new_family(FamilyName::new(name)?, family));
    let mut families: Vec<_> = families.collect::<Result<_, Error>>()?;
    // The message is a map without an order; ids are given by name, so that equal requests make equal tables.
    families.sort_by(|a, b| a.name.cmp(&b.name));
    let splits = splits(request.initial_splits.into_iter().map(|split| RowKey::new(split.key)).collect())?;
    Ok(NewTable { name, families, splits, deletion_protection: table.deletion_protection })
}

/// Refuses what this release would silently leave out.
fn refuse_unserved(table: &admin::Table) -> Result<(), Error> {
    let unserved = [
        ("change_stream_config", table.change_stream_config.is_some()),
        ("automated_backup_config", table.automated_backup_config.is_some()),
        ("tiered_storage_config", table.tiered_storage_config.is_some()),
        ("row_key_schema", table.row_key_schema.is_some()),
    ];
    match unserved.iter().find(|(_field, is_set)| *is_set) {
        Some((field, _set)) => Err(Error::unimplemented(format!("tables with {field} are not served by this release"))),
        None => Ok(()),
    }
}

fn new_family(name: FamilyName, family: &admin::ColumnFamily) -> Result<NewFamily, Error> {
    Ok(NewFamily { name, gc: rule(family)?, aggregator: aggregator(family)? })
}

fn aggregator(family: &admin::ColumnFamily) -> Result<Option<Aggregator>, Error> {
    family.value_type.as_ref().map(value_type_from_admin).transpose().map(Option::flatten)
}

fn rule(family: &admin::ColumnFamily) -> Result<Option<ebla_model::gc::GcRule>, Error> {
    family.gc_rule.as_ref().map(gc_rule_from_admin).transpose().map(Option::flatten)
}

/// The keys ascending, each once, as the service takes them.
fn splits(mut keys: Vec<RowKey>) -> Result<Vec<RowKey>, Error> {
    if keys.len() > SPLITS_MAX {
        return Err(Error::invalid(format!(
            "{} initial splits, of which at most {SPLITS_MAX} are allowed",
            keys.len()
        )));
    }
    if keys.iter().any(|key| key.is_empty() || key.as_bytes().len() > ROW_KEY_BYTES_MAX) {
        return Err(Error::invalid(format!("initial splits must have 1 to {ROW_KEY_BYTES_MAX} bytes")));
    }
    keys.sort();
    keys.dedup();
    Ok(keys)
}

pub(crate) fn changes(modifications: Vec<Modification>) -> Result<Vec<FamilyChange>, Error> {
    if modifications.is_empty() {
        return Err(Error::invalid("no modifications"));
    }
    modifications.into_iter().map(change).collect()
}

fn change(modification: Modification) -> Result<FamilyChange, Error> {
    let name = FamilyName::new(&modification.id)?;
    match modification.r#mod {
        Some(Mod::Create(family)) => Ok(FamilyChange::Create(new_family(name, &family)?)),
        Some(Mod::Update(family)) => {
            refuse_other_fields(modification.update_mask.as_ref())?;
            Ok(FamilyChange::Update { name, gc: rule(&family)?, aggregator: aggregator(&family)? })
        }
        Some(Mod::Drop(true)) => Ok(FamilyChange::Drop { name }),
        Some(Mod::Drop(false)) | None => Err(Error::invalid(format!("modification of family {name} does nothing"))),
    }
}

/// An update replaces the rule, the one thing that can be updated.
fn refuse_other_fields(mask: Option<&prost_types::FieldMask>) -> Result<(), Error> {
    let other = mask.and_then(|mask| mask.paths.iter().find(|path| path.split('.').next() != Some("gc_rule")));
    match other {
        Some(path) => Err(Error::invalid(format!("field {path:?} of a family cannot be updated"))),
        None => Ok(()),
    }
}

pub(crate) fn drop_range(target: Option<Target>) -> Result<KeyRange, Error> {
    match target {
        Some(Target::RowKeyPrefix(prefix)) if !prefix.is_empty() => Ok(KeyRange::prefix(&prefix)),
        Some(Target::DeleteAllDataFromTable(true)) => Ok(KeyRange::all()),
        _ => Err(Error::invalid("name the rows to drop: a row key prefix, or all data of the table")),
    }
}

/// The view that is asked for.
pub(crate) fn view(number: i32, unspecified: View) -> Result<View, Error> {
    match View::try_from(number) {
        Ok(View::Unspecified) => Ok(unspecified),
        Ok(view) => Ok(view),
        Err(_unknown) => Err(Error::invalid(format!("unknown view {number}"))),
    }
}

/// The tables of an answer, and the token that the next one begins with (empty: there is none).
///
/// `tables` ascend by name. A token is the last name of the page before, so tables that come and go between two pages
/// neither repeat others nor hide them.
pub(crate) fn page<'a>(
    tables: &[&'a TableSchema],
    size: i32,
    token: &str,
) -> Result<(Vec<&'a TableSchema>, String), Error> {
    let size = usize::try_from(size).map_err(|_negative| Error::invalid("page_size must not be negative"))?;
    let size = if size == 0 { PAGE_MAX } else { size.min(PAGE_MAX) };
    let mut rest = tables.iter().copied().filter(|schema| schema.name.as_str() > token).peekable();
    let shown: Vec<_> = rest.by_ref().take(size).collect();
    let next = match rest.peek() {
        Some(_more) => shown.last().map(|schema| schema.name.to_string()),
        None => None,
    };
    Ok((shown, next.unwrap_or_default()))
}

/// A token that says: every write acknowledged before it was given. There is one cluster, so it is consistent at once.
pub(crate) fn consistency_token(table: TableId) -> String {
    format!("{TOKEN_PREFIX}{table}")
}

/// # Errors
/// `InvalidArgument` when the token was not given for this table.
pub(crate) fn check_token(token: &str, table: TableId) -> Result<(), Error> {
    if token == consistency_token(table) {
        return Ok(());
    }
    Err(Error::new(Reason::InvalidArgument, format!("consistency token {token:?} was not given for this table")))
}

#[cfg(test)]
mod tests;
