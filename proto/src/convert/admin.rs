//! Tables, families and garbage collection rules of the public admin API.

use std::{collections::HashMap, time::Duration};

use ebla_model::{Error, Family, GcRule, TableSchema, gc::GC_RULE_BYTES_MAX};
use prost::Message;

use super::value_type::value_type_to_admin;
use crate::admin::{self, gc_rule::Rule as Wire, table};

/// The longest age in a message, in seconds: about 10,000 years (google/protobuf/duration.proto).
const AGE_SECONDS_MAX: u64 = 315_576_000_000;

/// A rule of a request. An empty rule is no rule: all cells are retained. Ages are truncated to microseconds, as the API
/// specifies.
///
/// # Errors
/// `InvalidArgument` when it is too large, a count is not positive, an age is under a millisecond or over 10,000 years, or a
/// union or intersection is empty.
pub fn gc_rule_from_admin(rule: &admin::GcRule) -> Result<Option<GcRule>, Error> {
    let size = rule.encoded_len();
    if size > GC_RULE_BYTES_MAX {
        let message = format!("garbage collection rule has {size} bytes, the limit is {GC_RULE_BYTES_MAX}");
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
            if age > Duration::from_secs(AGE_SECONDS_MAX) {
                return Err(Error::invalid(format!("max_age must be at most {AGE_SECONDS_MAX} seconds")));
            }
            GcRule::MaxAge(Duration::new(age.as_secs(), age.subsec_micros() * 1_000))
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

/// A rule as a message.
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

/// A family as a message. A family without a rule has an empty one, as in Google's service.
pub fn family_to_admin(family: &Family) -> admin::ColumnFamily {
    let gc_rule = family.gc.as_ref().map_or_else(admin::GcRule::default, gc_rule_to_admin);
    admin::ColumnFamily { gc_rule: Some(gc_rule), value_type: family.aggregator.map(value_type_to_admin) }
}

/// The parts of a table in a response. `google.bigtable.admin.v2.Table.View`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TableView {
    /// Its name.
    Name,
    /// Families, granularity, protection.
    Schema,
    /// Its replication state.
    Replication,
    /// Its encryption at rest.
    Encryption,
    /// Families with statistics, which are not collected yet.
    Stats,
    /// All of it.
    Full,
}

impl TableView {
    /// The number of the statistics view, which the published messages do not have.
    const STATS: i32 = 6;

    /// The view of this number; `unspecified` for zero.
    ///
    /// # Errors
    /// `InvalidArgument` for an unknown number.
    pub fn from_number(number: i32, unspecified: Self) -> Result<Self, Error> {
        use table::View;
        if number == Self::STATS {
            return Ok(Self::Stats);
        }
        match View::try_from(number) {
            Ok(View::Unspecified) => Ok(unspecified),
            Ok(View::NameOnly) => Ok(Self::Name),
            Ok(View::SchemaView) => Ok(Self::Schema),
            Ok(View::ReplicationView) => Ok(Self::Replication),
            Ok(View::EncryptionView) => Ok(Self::Encryption),
            Ok(View::Full) => Ok(Self::Full),
            Err(_unknown) => Err(Error::invalid(format!("unknown view {number}"))),
        }
    }
}

/// A table in the given view. `cluster`: the name of the instance's one cluster.
///
/// Nothing is encrypted at rest, so the encryption view names the cluster without a key.
pub fn table_to_admin(schema: &TableSchema, view: TableView, cluster: &str) -> admin::Table {
    let mut shown = admin::Table { name: schema.name.to_string(), ..Default::default() };
    if matches!(view, TableView::Schema | TableView::Stats | TableView::Full) {
        let families = schema.families.iter().map(|family| (family.name.to_string(), family_to_admin(family)));
        shown.column_families = families.collect();
    }
    if matches!(view, TableView::Schema | TableView::Full) {
        shown.granularity = table::TimestampGranularity::Millis.into();
        shown.deletion_protection = schema.deletion_protection;
    }
    match view {
        TableView::Replication | TableView::Full => {
            let ready = table::cluster_state::ReplicationState::Ready;
            let state = table::ClusterState { replication_state: ready.into(), ..Default::default() };
            shown.cluster_states = HashMap::from([(cluster.to_owned(), state)]);
        }
        TableView::Encryption => {
            shown.cluster_states = HashMap::from([(cluster.to_owned(), table::ClusterState::default())]);
        }
        TableView::Name | TableView::Schema | TableView::Stats => {}
    }
    shown
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
            rule(Wire::MaxAge(prost_types::Duration { seconds: 315_576_000_001, nanos: 0 })),
            rule(Wire::Intersection(admin::gc_rule::Intersection { rules: Vec::new() })),
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
    fn rules_have_at_most_500_bytes() {
        // A member takes 4 bytes, a larger one 5, and what is around them 3.
        let union = |small: usize, large: usize| {
            let small = std::iter::repeat_n(rule(Wire::MaxNumVersions(1)), small);
            let large = std::iter::repeat_n(rule(Wire::MaxNumVersions(200)), large);
            rule(Wire::Union(admin::gc_rule::Union { rules: small.chain(large).collect() }))
        };
        assert_eq!(union(123, 1).encoded_len(), 500);
        assert!(gc_rule_from_admin(&union(123, 1)).is_ok());
        assert_eq!(union(122, 2).encoded_len(), 501);
        assert_eq!(gc_rule_from_admin(&union(122, 2)).unwrap_err().reason, ebla_model::Reason::InvalidArgument);
    }

    #[test]
    fn rules_at_their_limits_are_taken() {
        let age = |seconds, nanos| rule(Wire::MaxAge(prost_types::Duration { seconds, nanos }));
        let shortest = gc_rule_from_admin(&age(0, 1_000_000));
        assert_eq!(shortest, Ok(Some(GcRule::MaxAge(Duration::from_millis(1)))));
        let longest = gc_rule_from_admin(&age(315_576_000_000, 0));
        assert_eq!(longest, Ok(Some(GcRule::MaxAge(Duration::from_secs(AGE_SECONDS_MAX)))));
        let finer = gc_rule_from_admin(&age(1, 1_999));
        assert_eq!(finer, Ok(Some(GcRule::MaxAge(Duration::from_micros(1_000_001)))), "cut to microseconds");
        let most = gc_rule_from_admin(&rule(Wire::MaxNumVersions(i32::MAX)));
        assert_eq!(most, Ok(Some(GcRule::MaxVersions(2_147_483_647))));
    }

    #[test]
    fn views_have_numbers() {
        let views = [(1, TableView::Name), (2, TableView::Schema), (3, TableView::Replication), (4, TableView::Full)];
        for (number, view) in views.into_iter().chain([(5, TableView::Encryption), (6, TableView::Stats)]) {
            assert_eq!(TableView::from_number(number, TableView::Name), Ok(view));
        }
        assert_eq!(TableView::from_number(0, TableView::Schema), Ok(TableView::Schema));
        assert!(
            TableView::from_number(7, TableView::Name).is_err() && TableView::from_number(-1, TableView::Name).is_err()
        );
    }

    #[test]
    fn views_show_what_they_are_for() {
        let families = [(FamilyName::new("f").unwrap(), Some(GcRule::MaxVersions(2)))];
        let name = "projects/p/instances/i/tables/t".parse().unwrap();
        let schema = TableSchema::new(TableId::new(1), name, families).unwrap();
        let schema = TableSchema { deletion_protection: true, ..schema };
        let shows = |view| {
            let table = table_to_admin(&schema, view, "c");
            assert_eq!(table.name, "projects/p/instances/i/tables/t");
            let replication = table.cluster_states.get("c").map(|state| state.replication_state);
            (table.column_families.len(), table.granularity, table.deletion_protection, replication)
        };
        assert_eq!(shows(TableView::Name), (0, 0, false, None));
        assert_eq!(shows(TableView::Schema), (1, 1, true, None));
        assert_eq!(shows(TableView::Stats), (1, 0, false, None));
        assert_eq!(shows(TableView::Replication), (0, 0, false, Some(4)));
        assert_eq!(shows(TableView::Encryption), (0, 0, false, Some(0)));
        assert_eq!(shows(TableView::Full), (1, 1, true, Some(4)));
    }
}
