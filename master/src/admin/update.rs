//! Requests to update a table, validated. Pure.

use ebla_model::error::Error;
use ebla_model::schema::{Protection, TableName, TableUpdate};
use ebla_proto::admin;

/// Fields that the public service updates and this release does not, and what to do instead.
const UNSUPPORTED: [(&str, &str); 5] = [
    ("column_families", "call ModifyColumnFamilies"),
    ("change_stream_config", "read the table with ReadRows and a timestamp range"),
    ("automated_backup_policy", "copy rows with ReadRows and MutateRows"),
    ("tiered_storage_config", "all data is on one tier"),
    ("row_key_schema", "decode row keys where they are read"),
];

/// The table to update, and its update.
///
/// # Errors
/// `InvalidArgument` when no table or no field is named, for `*`, and for a field that does not exist or is
/// read-only; `Unimplemented` for a field that this release does not support.
pub(crate) fn update(request: admin::UpdateTableRequest) -> Result<(TableName, TableUpdate), Error> {
    let table = request.table.ok_or_else(|| Error::invalid("table is missing: name the one to update"))?;
    let name: TableName = table.name.parse()?;
    let paths = request.update_mask.map(|mask| mask.paths).unwrap_or_default();
    if paths.is_empty() {
        return Err(Error::invalid("update_mask is missing: name the fields to update, such as deletion_protection"));
    }
    paths.iter().try_for_each(|path| check(path))?;
    let protection = if table.deletion_protection { Protection::On } else { Protection::Off };
    Ok((name, TableUpdate::DeletionProtection(protection)))
}

/// Accepts only the field that can be updated.
fn check(path: &str) -> Result<(), Error> {
    let field = path.split('.').next().unwrap_or_default();
    match UNSUPPORTED.iter().find(|(unsupported, _instead)| *unsupported == field) {
        Some((_field, instead)) => {
            Err(Error::unimplemented(format!("{path} of a table cannot be updated by this release: {instead}")))
        }
        None if path == "deletion_protection" => Ok(()),
        None if path == "*" => Err(Error::invalid("update_mask must name each field: * is not supported")),
        None => Err(Error::invalid(format!("field {path:?} of a table cannot be updated"))),
    }
}

#[cfg(test)]
mod tests {
    use ebla_model::error::Reason;

    use super::*;

    const NAME: &str = "projects/p/instances/i/tables/t";

    fn asked(deletion_protection: bool, paths: &[&str]) -> Result<(TableName, TableUpdate), Error> {
        let table = admin::Table { name: NAME.to_owned(), deletion_protection, ..Default::default() };
        let paths = paths.iter().map(|path| (*path).to_owned()).collect();
        let update_mask = Some(prost_types::FieldMask { paths });
        update(admin::UpdateTableRequest { table: Some(table), update_mask, ..Default::default() })
    }

    fn reason(paths: &[&str]) -> Reason {
        asked(true, paths).unwrap_err().reason
    }

    #[test]
    fn protection_is_what_can_be_updated() {
        for (asked_for, protection) in [(true, Protection::On), (false, Protection::Off)] {
            let expected = (NAME.parse().unwrap(), TableUpdate::DeletionProtection(protection));
            assert_eq!(asked(asked_for, &["deletion_protection"]), Ok(expected.clone()));
            assert_eq!(asked(asked_for, &["deletion_protection"; 2]), Ok(expected));
        }
    }

    #[test]
    fn other_fields_are_refused_for_what_they_are() {
        for (field, instead) in UNSUPPORTED {
            let error = asked(true, &["deletion_protection", field]).unwrap_err();
            assert_eq!(error.reason, Reason::Unimplemented, "{field}");
            assert!(error.message.contains(field) && error.message.contains(instead), "{error}");
        }
        assert_eq!(reason(&["change_stream_config.retention_period"]), Reason::Unimplemented);
        for field in
            ["*", "", "name", "granularity", "cluster_states", "restore_info", "colour", "deletion_protection.x"]
        {
            assert_eq!(reason(&[field]), Reason::InvalidArgument, "{field}");
        }
    }

    #[test]
    fn table_and_fields_must_be_named() {
        assert_eq!(reason(&[]), Reason::InvalidArgument);
        let nothing = admin::UpdateTableRequest::default();
        assert_eq!(update(nothing).unwrap_err().reason, Reason::InvalidArgument);
        let table = Some(admin::Table { name: NAME.to_owned(), ..Default::default() });
        let unmasked = admin::UpdateTableRequest { table, ..Default::default() };
        assert_eq!(update(unmasked).unwrap_err().reason, Reason::InvalidArgument);
    }
}
