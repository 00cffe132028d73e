//! Table admin requests, validated and converted to values of the model. Pure.

use ebla_model::admin::instance::InstanceName;
use ebla_model::aggregate::Aggregator;
use ebla_model::cell::FamilyName;
use ebla_model::error::{Error, Reason};
use ebla_model::id::TableId;
use ebla_model::key::{KeyRange, RowKey};
use ebla_model::schema::{FamilyChange, NewFamily, TableName};
use ebla_proto::admin::modify_column_families_request::{Modification, modification::Mod};
use ebla_proto::admin::{self, drop_row_range_request::Target, table::TimestampGranularity};
use ebla_proto::convert::admin::gc_rule_from_admin;
use ebla_proto::convert::value_type::value_type_from_admin;

use crate::jobs::create::NewTable;

/// The maximum length of a split key, in bytes: that of a row key.
const ROW_KEY_BYTES_MAX: usize = 4_096;
/// The maximum number of split keys: a table's plan is one file in Chubby.
const SPLITS_MAX: usize = 1_000;
/// The prefix of consistency tokens; the table's id follows.
const TOKEN_PREFIX: &str = "ebla-table-";

pub(crate) fn new_table(request: admin::CreateTableRequest) -> Result<NewTable, Error> {
    let parent: InstanceName = request.parent.parse()?;
    let name = TableName::from_parts(parent.project(), parent.instance(), &request.table_id)?;
    let table = request.table.unwrap_or_default();
    reject_unsupported(&table)?;
    let families = table.column_families.iter().map(|(name, family)| new_family(FamilyName::new(name)?, family));
    let mut families: Vec<_> = families.collect::<Result<_, Error>>()?;
    // The message is a map without an order; family ids are assigned by name, so that equal requests create equal
    // tables.
    families.sort_by(|a, b| a.name.cmp(&b.name));
    let splits = splits(request.initial_splits.into_iter().map(|split| RowKey::new(split.key)).collect())?;
    Ok(NewTable { name, families, splits, deletion_protection: table.deletion_protection })
}

/// Rejects fields that this release would otherwise ignore silently.
fn reject_unsupported(table: &admin::Table) -> Result<(), Error> {
    let unsupported = [
        ("change_stream_config", table.change_stream_config.is_some()),
        ("automated_backup_config", table.automated_backup_config.is_some()),
        ("tiered_storage_config", table.tiered_storage_config.is_some()),
        ("row_key_schema", table.row_key_schema.is_some()),
    ];
    if let Some((field, _set)) = unsupported.iter().find(|(_field, is_set)| *is_set) {
        return Err(Error::unimplemented(format!("tables with {field} are not served by this release")));
    }
    match TimestampGranularity::try_from(table.granularity) {
        Ok(TimestampGranularity::Unspecified | TimestampGranularity::Millis) => Ok(()),
        Err(_unknown) => Err(Error::invalid(format!("granularity {}: tables have MILLIS", table.granularity))),
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

/// The split keys, sorted and without duplicates, as the public service does it.
fn splits(mut keys: Vec<RowKey>) -> Result<Vec<RowKey>, Error> {
    if keys.len() > SPLITS_MAX {
        return Err(Error::invalid(format!("{} initial splits: at most {SPLITS_MAX} are allowed", keys.len())));
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
            reject_other_fields(modification.update_mask.as_ref())?;
            Ok(FamilyChange::Update { name, gc: rule(&family)?, aggregator: aggregator(&family)? })
        }
        Some(Mod::Drop(true)) => Ok(FamilyChange::Drop { name }),
        Some(Mod::Drop(false)) | None => Err(Error::invalid(format!("modification of family {name} does nothing"))),
    }
}

/// An update replaces the whole rule, which is the only field that can be updated; an update without a mask does the
/// same.
fn reject_other_fields(mask: Option<&prost_types::FieldMask>) -> Result<(), Error> {
    let other = mask.and_then(|mask| mask.paths.iter().find(|path| *path != "gc_rule"));
    match other {
        Some(path) => Err(Error::invalid(format!(
            "field {path:?} of a column family cannot be updated: update_mask may name gc_rule, which is replaced as a whole"
        ))),
        None => Ok(()),
    }
}

/// The rows to drop; `None` for a request with `delete_all_data_from_table: false`, which by the API has no effect.
pub(crate) fn drop_range(target: Option<Target>) -> Result<Option<KeyRange>, Error> {
    match target {
        Some(Target::RowKeyPrefix(prefix)) if !prefix.is_empty() => Ok(Some(KeyRange::prefix(&prefix))),
        Some(Target::DeleteAllDataFromTable(true)) => Ok(Some(KeyRange::all())),
        Some(Target::DeleteAllDataFromTable(false)) => Ok(None),
        Some(Target::RowKeyPrefix(_empty)) => Err(Error::invalid("the prefix of the rows to drop must not be empty")),
        None => Err(Error::invalid("name the rows to drop: a row key prefix, or all data of the table")),
    }
}

/// A token for all writes acknowledged before it was given. There is one cluster, so they are consistent at once.
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
