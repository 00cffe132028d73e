//! Table schemas, their families and garbage collection rules.

use std::time::Duration;

use bytes::{Buf, Bytes};
use ebla_model::aggregate::InputType;
use ebla_model::schema::TableState;
use ebla_model::{
    Aggregator, Error, Family, FamilyId, FamilyName, GcRule, SchemaVersion, TableId, TableName, TableSchema,
};
use prost::Message;

use super::locality::{locality_group_from_proto, locality_group_to_proto, stored_groups};
use super::quota::{family_quota_to_proto, quota_to_proto, quotas_from_proto};
use super::record::{check_record, damaged, decode_record};
use super::{VERSION, required};
use crate::record;

/// The version of a schema that has an aggregate family.
const AGGREGATES_VERSION: u32 = 2;
/// The version of a schema with locality groups.
const LOCALITY_VERSION: u32 = 3;
/// The version of a schema with quotas.
pub(super) const QUOTAS_VERSION: u32 = 4;

/// A garbage collection rule.
pub fn gc_rule_to_proto(rule: &GcRule) -> record::GcRule {
    use record::gc_rule::Rule;
    let members = |rules: &[GcRule]| record::GcRules { rules: rules.iter().map(gc_rule_to_proto).collect() };
    let rule = match rule {
        GcRule::MaxVersions(count) => Rule::MaxVersions(*count),
        GcRule::MaxAge(age) => Rule::MaxAgeMicros(i64::try_from(age.as_micros()).unwrap_or(i64::MAX)),
        GcRule::Any(rules) => Rule::Any(members(rules)),
        GcRule::All(rules) => Rule::All(members(rules)),
    };
    record::GcRule { rule: Some(rule) }
}

/// A garbage collection rule.
///
/// # Errors
/// `DataDamaged` when its kind is unknown or its age is negative.
pub fn gc_rule_from_proto(rule: &record::GcRule) -> Result<GcRule, Error> {
    use record::gc_rule::Rule;
    let members = |rules: &record::GcRules| rules.rules.iter().map(gc_rule_from_proto).collect::<Result<Vec<_>, _>>();
    Ok(match required(rule.rule.as_ref(), "garbage collection rule: kind")? {
        Rule::MaxVersions(count) => GcRule::MaxVersions(*count),
        Rule::MaxAgeMicros(age) => {
            let age = u64::try_from(*age).map_err(|_| Error::damaged("garbage collection rule: negative age"))?;
            GcRule::MaxAge(Duration::from_micros(age))
        }
        Rule::Any(rules) => GcRule::Any(members(rules)?),
        Rule::All(rules) => GcRule::All(members(rules)?),
    })
}

/// A table.
pub fn schema_to_proto(schema: &TableSchema) -> record::TableSchema {
    let aggregates = schema.families.iter().any(|family| family.aggregator.is_some());
    record::TableSchema {
        version: match (schema.quotas.is_empty(), stored_groups(schema).is_empty(), aggregates) {
            (false, _, _) => QUOTAS_VERSION,
            (true, false, _) => LOCALITY_VERSION,
            (true, true, true) => AGGREGATES_VERSION,
            (true, true, false) => VERSION,
        },
        table: schema.table.get(),
        name: schema.name.to_string(),
        schema_version: schema.version.get(),
        families: schema.families.iter().map(family_to_proto).collect(),
        next_family: schema.next_family.get(),
        deletion_protection: schema.deletion_protection,
        state: state_to_proto(schema.state).into(),
        locality_groups: stored_groups(schema).iter().map(locality_group_to_proto).collect(),
        quota: (!schema.quotas.is_empty()).then(|| quota_to_proto(&schema.quotas.table)),
        family_quotas: schema.quotas.families.iter().map(family_quota_to_proto).collect(),
    }
}

/// A table schema. METADATA's schema is built in: only its table id is read.
///
/// # Errors
/// `DataDamaged` when a part is missing or not legal, or the version is another.
pub fn schema_from_proto(schema: &record::TableSchema) -> Result<TableSchema, Error> {
    check_record::<record::TableSchema>(schema.version)?;
    let table = TableId::new(schema.table);
    if table == TableId::METADATA {
        return Ok(TableSchema::metadata());
    }
    Ok(TableSchema {
        table,
        name: TableName::parse_stored(&schema.name).map_err(|error| damaged("table schema: name", &error))?,
        version: SchemaVersion::new(schema.schema_version),
        families: schema.families.iter().map(family_from_proto).collect::<Result<_, _>>()?,
        next_family: FamilyId::new(schema.next_family),
        deletion_protection: schema.deletion_protection,
        state: state_from_proto(schema.state())?,
        locality_groups: schema.locality_groups.iter().map(locality_group_from_proto).collect::<Result<_, _>>()?,
        quotas: quotas_from_proto(schema)?,
    })
}

/// A table schema as stored in Chubby and replicas.
pub fn schema_to_bytes(schema: &TableSchema) -> Bytes {
    schema_to_proto(schema).encode_to_vec().into()
}

/// A table schema as stored in Chubby and replicas.
///
/// # Errors
/// As [`schema_from_proto`].
pub fn schema_from_bytes(bytes: impl Buf) -> Result<TableSchema, Error> {
    schema_from_proto(&decode_record(bytes)?)
}

fn family_to_proto(family: &Family) -> record::Family {
    record::Family {
        id: family.id.get(),
        name: family.name.to_string(),
        gc: family.gc.as_ref().map(gc_rule_to_proto),
        locality_group: family.locality_group,
        value_type: value_type_to_proto(family.aggregator).into(),
    }
}

fn family_from_proto(family: &record::Family) -> Result<Family, Error> {
    Ok(Family {
        id: FamilyId::new(family.id),
        name: FamilyName::new(&family.name).map_err(|error| damaged("table schema: family", &error))?,
        gc: family.gc.as_ref().map(gc_rule_from_proto).transpose()?,
        locality_group: family.locality_group,
        aggregator: value_type_from_proto(family.value_type)?,
    })
}

const fn value_type_to_proto(aggregator: Option<Aggregator>) -> record::ValueType {
    match aggregator {
        None => record::ValueType::Plain,
        Some(Aggregator::Sum) => record::ValueType::Int64Sum,
        Some(Aggregator::Min) => record::ValueType::Int64Min,
        Some(Aggregator::Max) => record::ValueType::Int64Max,
        Some(Aggregator::UniqueCount(InputType::Int64)) => record::ValueType::Int64UniqueCount,
        Some(Aggregator::UniqueCount(InputType::Bytes)) => record::ValueType::BytesUniqueCount,
        Some(Aggregator::UniqueCount(InputType::String)) => record::ValueType::StringUniqueCount,
    }
}

/// An unknown number must not be treated as plain cells.
fn value_type_from_proto(number: i32) -> Result<Option<Aggregator>, Error> {
    match record::ValueType::try_from(number) {
        Ok(record::ValueType::Plain) => Ok(None),
        Ok(record::ValueType::Int64Sum) => Ok(Some(Aggregator::Sum)),
        Ok(record::ValueType::Int64Min) => Ok(Some(Aggregator::Min)),
        Ok(record::ValueType::Int64Max) => Ok(Some(Aggregator::Max)),
        Ok(record::ValueType::Int64UniqueCount) => Ok(Some(Aggregator::UniqueCount(InputType::Int64))),
        Ok(record::ValueType::BytesUniqueCount) => Ok(Some(Aggregator::UniqueCount(InputType::Bytes))),
        Ok(record::ValueType::StringUniqueCount) => Ok(Some(Aggregator::UniqueCount(InputType::String))),
        Err(_unknown) => Err(Error::damaged(format!("table schema: unknown value type {number}"))),
    }
}

const fn state_to_proto(state: TableState) -> record::TableState {
    match state {
        TableState::Creating => record::TableState::Creating,
        TableState::Active => record::TableState::Active,
        TableState::Deleting => record::TableState::Deleting,
    }
}

fn state_from_proto(state: record::TableState) -> Result<TableState, Error> {
    match state {
        record::TableState::Creating => Ok(TableState::Creating),
        record::TableState::Active => Ok(TableState::Active),
        record::TableState::Deleting => Ok(TableState::Deleting),
        record::TableState::Unspecified => Err(Error::damaged("table schema: unknown state")),
    }
}

#[cfg(test)]
mod tests {
    use ebla_model::locality::LocalityGroupChange;
    use ebla_model::quota::QuotaLimits;
    use ebla_model::schema::{FamilyChange, NewFamily};

    use super::*;

    fn schema() -> TableSchema {
        let rule = GcRule::Any(vec![
            GcRule::MaxVersions(3),
            GcRule::All(vec![GcRule::MaxAge(Duration::from_secs(5)), GcRule::MaxVersions(1)]),
        ]);
        let families = [("plain", None), ("ruled", Some(rule))];
        let families = families.map(|(name, gc)| (FamilyName::new(name).unwrap(), gc));
        let schema =
            TableSchema::new(TableId::new(7), "projects/p/instances/i/tables/t".parse().unwrap(), families).unwrap();
        schema.apply(&[FamilyChange::Drop { name: FamilyName::new("plain").unwrap() }]).unwrap()
    }

    #[test]
    fn schemas_come_back() {
        let sent = schema();
        assert_eq!(schema_to_proto(&sent).version, VERSION, "older releases read it");
        assert_eq!(schema_from_bytes(schema_to_bytes(&sent)), Ok(sent));
        let metadata = TableSchema::metadata();
        assert_eq!(schema_from_bytes(schema_to_bytes(&metadata)), Ok(metadata));
    }

    #[test]
    fn aggregate_families_come_back_and_stop_older_releases() {
        let kinds = [
            ("p", None),
            ("s", Some(Aggregator::Sum)),
            ("n", Some(Aggregator::Min)),
            ("x", Some(Aggregator::Max)),
            ("i", Some(Aggregator::UniqueCount(InputType::Int64))),
            ("b", Some(Aggregator::UniqueCount(InputType::Bytes))),
            ("t", Some(Aggregator::UniqueCount(InputType::String))),
        ];
        let families =
            kinds.map(|(name, aggregator)| NewFamily { name: FamilyName::new(name).unwrap(), gc: None, aggregator });
        let name = "projects/p/instances/i/tables/t".parse().unwrap();
        let sent = TableSchema::with_families(TableId::new(7), name, families).unwrap();
        assert_eq!(schema_from_bytes(schema_to_bytes(&sent)), Ok(sent.clone()));
        let mut record = schema_to_proto(&sent);
        assert_eq!(record.version, AGGREGATES_VERSION);
        let numbers: Vec<_> = record.families.iter().map(|family| family.value_type).collect();
        assert_eq!(numbers, [0, 1, 2, 3, 4, 5, 6], "as they stand on disks");
        record.families[1].value_type = 99;
        assert!(schema_from_proto(&record).is_err(), "a value type of the future");
        record.version = QUOTAS_VERSION + 1;
        assert!(schema_from_proto(&record).is_err(), "a version of the future");
    }

    #[test]
    fn locality_groups_come_back_and_stop_older_releases() {
        let set = |name: &str, options: &str| LocalityGroupChange::Set { name: name.into(), options: options.into() };
        let family = "ruled".to_owned();
        let changes = [
            set("pages", "compression=two-pass;block=64k"),
            LocalityGroupChange::Move { family, group: "pages".into() },
        ];
        let sent = schema().apply_to_groups(&changes).unwrap();
        assert_eq!(schema_from_bytes(schema_to_bytes(&sent)), Ok(sent.clone()));
        let mut record = schema_to_proto(&sent);
        assert_eq!(record.version, LOCALITY_VERSION);
        record.locality_groups[0].options = "compression=of-the-future".to_owned();
        assert!(schema_from_proto(&record).is_err());
    }

    #[test]
    fn quotas_come_back_and_stop_older_releases() {
        let limits = QuotaLimits { stored_bytes: Some(1 << 40), cells: Some(5) };
        for family in [None, Some("ruled")] {
            let sent = schema().with_quota(family, limits).unwrap();
            assert_eq!(schema_to_proto(&sent).version, QUOTAS_VERSION);
            assert_eq!(schema_from_bytes(schema_to_bytes(&sent)), Ok(sent));
        }
    }

    #[test]
    fn a_rule_without_a_kind_is_damage() {
        assert!(gc_rule_from_proto(&record::GcRule::default()).is_err());
    }
}
