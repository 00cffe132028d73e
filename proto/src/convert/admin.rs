//! Tables, families and garbage collection rules as the public admin API shows them.

use std::{collections::HashMap, time::Duration};

use ebla_model::{Error, Family, GcRule, TableSchema, gc::GC_RULE_BYTES_MAX};
use prost::Message;

use crate::admin::{self, gc_rule::Rule as Wire, table};

/// The cluster's name in answers that speak of clusters. There is one.
pub const CLUSTER_NAME: &str = "ebla";

/// A rule that a request sets. An empty rule is no rule: everything is kept.
///
/// # Errors
/// `InvalidArgument` when it is too large, a count or an age is not positive, or a union or intersection is empty.
pub fn gc_rule_from_admin(rule: &admin::GcRule) -> Result<Option<GcRule>, Error> {
    let size = rule.encoded_len();
    if size > GC_RULE_BYTES_MAX {
        let message =
            format!("garbage collection rule has {size} bytes, of which at most {GC_RULE_BYTES_MAX} are allowed");
        return Err(Error::invalid(message));
    }
    let Some(wire) = &rule.rule else { return Ok(None) };
    let rule = rule_from_wire(wire)?;
    rule.validate()?;
    Ok(Some(rule))
}

fn rule_from_wire(rule: &Wire) -> Result<GcRule, Error> {
    Ok(match rule {
        Wire::MaxNumVersions(count) => {
            let count = u32::try_from(*count).map_err(|_| Error::invalid("max_num_versions must be positive"))?;
            GcRule::MaxVersions(count)
        }
        Wire::MaxAge(age) => {
            let age = Duration::try_from(*age).map_err(|_| Error::invalid("max_age must be positive"))?;
            GcRule::MaxAge(age)
        }
        Wire::Intersection(all) => GcRule::All(members(&all.rules)?),
        Wire::Union(any) => GcRule::Any(members(&any.rules)?),
    })
}

fn members(rules: &[admin::GcRule]) -> Result<Vec<GcRule>, Error> {
    let member = |rule: &admin::GcRule| match &rule.rule {
        Some(wire) => rule_from_wire(wire),
        None => Err(Error::invalid("a member of a union or intersection of garbage collection rules is empty")),
    };
    rules.iter().map(member).collect()
}

/// A rule as it is shown.
pub fn gc_rule_to_admin(rule: &GcRule) -> admin::GcRule {
    let members = |rules: &[GcRule]| rules.iter().map(gc_rule_to_admin).collect();
    let wire = match rule {
        GcRule::MaxVersions(count) => Wire::MaxNumVersions(i32::try_from(*count).unwrap_or(i32::MAX)),
        GcRule::MaxAge(age) => Wire::MaxAge(prost_types::Duration::try_from(*age).unwrap_or_default()),
        GcRule::Any(rules) => Wire::Union(admin::gc_rule::Union { rules: members(rules) }),
        GcRule::All(rules) => Wire::Intersection(admin::gc_rule::Intersection { rules: members(rules) }),
    };
    admin::GcRule { rule: Some(wire) }
}

/// A family as it is shown. A family without a rule shows an empty one, as the service does.
pub fn family_to_admin(family: &Family) -> admin::ColumnFamily {
    let gc_rule = family.gc.as_ref().map_or_else(admin::GcRule::default, gc_rule_to_admin);
    admin::ColumnFamily { gc_rule: Some(gc_rule), value_type: None }
}

/// A table in the given view. Unspecified is the schema; statistics and encryption have nothing to show.
pub fn table_to_admin(schema: &TableSchema, view: table::View) -> admin::Table {
    use table::View;
    let mut shown = admin::Table { name: schema.name.to_string(), ..Default::default() };
    if matches!(view, View::Unspecified | View::SchemaView | View::Full) {
        let families = schema.families.iter().map(|family| (family.name.to_string(), family_to_admin(family)));
        shown.column_families = families.collect();
        shown.granularity = table::TimestampGranularity::Millis.into();
        shown.deletion_protection = schema.deletion_protection;
    }
    if matches!(view, View::ReplicationView | View::EncryptionView | View::Full) {
        shown.cluster_states = one_cluster();
    }
    shown
}

fn one_cluster() -> HashMap<String, table::ClusterState> {
    let ready = table::cluster_state::ReplicationState::Ready;
    let state = table::ClusterState { replication_state: ready.into(), ..Default::default() };
    HashMap::from([(CLUSTER_NAME.to_owned(), state)])
}

#[cfg(test)]
mod tests {
    use ebla_model::{FamilyName, TableId};

    use super::*;

    fn rule(wire: Wire) -> admin::GcRule {
        admin::GcRule { rule: Some(wire) }
    }

    #[test]
    fn rules_come_back() {
        let sent = GcRule::Any(vec![
            GcRule::MaxVersions(3),
            GcRule::All(vec![GcRule::MaxAge(Duration::from_millis(1500)), GcRule::MaxVersions(1)]),
        ]);
        assert_eq!(gc_rule_from_admin(&gc_rule_to_admin(&sent)), Ok(Some(sent)));
        assert_eq!(gc_rule_from_admin(&admin::GcRule::default()), Ok(None));
    }

    #[test]
    fn rules_that_make_no_sense_are_refused() {
        let negative = prost_types::Duration { seconds: -1, nanos: 0 };
        let large = vec![rule(Wire::MaxNumVersions(1)); 200];
        let bad = [
            rule(Wire::MaxNumVersions(0)),
            rule(Wire::MaxNumVersions(-1)),
            rule(Wire::MaxAge(negative)),
            rule(Wire::MaxAge(prost_types::Duration { seconds: 0, nanos: 999_999 })),
            rule(Wire::Union(admin::gc_rule::Union { rules: Vec::new() })),
            rule(Wire::Union(admin::gc_rule::Union { rules: vec![admin::GcRule::default()] })),
            rule(Wire::Union(admin::gc_rule::Union { rules: large })),
        ];
        for rule in bad {
            let error = gc_rule_from_admin(&rule).unwrap_err();
            assert_eq!(error.reason, ebla_model::Reason::InvalidArgument, "{rule:?}");
        }
    }

    #[test]
    fn views_show_what_they_are_for() {
        let families = [(FamilyName::new("f").unwrap(), Some(GcRule::MaxVersions(2)))];
        let name = "projects/p/instances/i/tables/t".parse().unwrap();
        let schema = TableSchema::new(TableId::new(1), name, families).unwrap();
        let full = table_to_admin(&schema, table::View::Full);
        assert_eq!((full.column_families.len(), full.cluster_states.len(), full.granularity), (1, 1, 1));
        let name_only = table_to_admin(&schema, table::View::NameOnly);
        assert_eq!(name_only, admin::Table { name: "projects/p/instances/i/tables/t".into(), ..Default::default() });
        assert_eq!(table_to_admin(&schema, table::View::Unspecified).column_families.len(), 1);
    }
}
