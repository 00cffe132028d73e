//! Requests as clients send them, and the ones that are refused.

use std::collections::HashMap;

use ebla_model::aggregate::InputType;
use ebla_model::gc::GcRule;
use ebla_proto::admin::create_table_request::Split;
use ebla_proto::admin::r#type::{Aggregate, Kind, aggregate};
use ebla_proto::admin::{ColumnFamily, gc_rule};

use super::*;

fn request(splits: &[&'static str], families: &[&str]) -> admin::CreateTableRequest {
    let rule = admin::GcRule { rule: Some(gc_rule::Rule::MaxNumVersions(2)) };
    let family = ColumnFamily { gc_rule: Some(rule), ..Default::default() };
    let column_families: HashMap<_, _> = families.iter().map(|name| ((*name).to_owned(), family.clone())).collect();
    admin::CreateTableRequest {
        parent: "projects/p/instances/i".to_owned(),
        table_id: "t".to_owned(),
        table: Some(admin::Table { column_families, ..Default::default() }),
        initial_splits: splits.iter().map(|key| Split { key: (*key).into() }).collect(),
    }
}

#[test]
fn a_new_table_has_sorted_splits_and_families() {
    let new = new_table(request(&["p", "g", "p"], &["b", "a"])).unwrap();
    assert_eq!(new.name.as_str(), "projects/p/instances/i/tables/t");
    assert_eq!(new.splits, [RowKey::new("g"), RowKey::new("p")]);
    let families: Vec<_> = new.families.iter().map(|family| (family.name.as_str(), family.gc.clone())).collect();
    assert_eq!(families, [("a", Some(GcRule::MaxVersions(2))), ("b", Some(GcRule::MaxVersions(2)))]);
}

#[test]
fn a_table_without_families_is_a_table() {
    let bare = admin::CreateTableRequest { table: None, ..request(&[], &[]) };
    assert!(new_table(bare).unwrap().families.is_empty());
}

#[test]
fn bad_tables_are_refused() {
    let bad = [
        request(&[""], &[]),
        request(&[], &["no spaces"]),
        admin::CreateTableRequest { parent: "projects/p".to_owned(), ..request(&[], &[]) },
        admin::CreateTableRequest { table_id: "a/b".to_owned(), ..request(&[], &[]) },
    ];
    for request in bad {
        assert_eq!(new_table(request).unwrap_err().reason, Reason::InvalidArgument);
    }
    assert_eq!(new_table(typed(Kind::BoolType(Default::default()))).unwrap_err().reason, Reason::InvalidArgument);
}

fn typed(kind: Kind) -> admin::CreateTableRequest {
    let mut typed = request(&[], &["f"]);
    for family in typed.table.as_mut().unwrap().column_families.values_mut() {
        family.value_type = Some(admin::Type { kind: Some(kind.clone()) });
    }
    typed
}

/// What cbt's `inthll` and Java's `Type.int64Hll()` send.
fn count() -> Kind {
    let input = admin::Type { kind: Some(Kind::Int64Type(Default::default())) };
    Kind::AggregateType(Box::new(Aggregate {
        input_type: Some(Box::new(input)),
        state_type: None,
        aggregator: Some(aggregate::Aggregator::HllppUniqueCount(Default::default())),
    }))
}

fn sum() -> Kind {
    let input = admin::Type { kind: Some(Kind::Int64Type(Default::default())) };
    Kind::AggregateType(Box::new(Aggregate {
        input_type: Some(Box::new(input)),
        state_type: None,
        aggregator: Some(aggregate::Aggregator::Sum(Default::default())),
    }))
}

#[test]
fn families_may_aggregate() {
    let families = new_table(typed(sum())).unwrap().families;
    assert_eq!(families[0].aggregator, Some(Aggregator::Sum));
    let families = new_table(typed(count())).unwrap().families;
    assert_eq!(families[0].aggregator, Some(Aggregator::UniqueCount(InputType::Int64)));
    let family = ColumnFamily { gc_rule: None, value_type: Some(admin::Type { kind: Some(sum()) }) };
    let create = changes(modification(Some(Mod::Create(family.clone())))).unwrap();
    assert!(matches!(&create[..], [FamilyChange::Create(NewFamily { aggregator: Some(Aggregator::Sum), .. })]));
    let update = changes(modification(Some(Mod::Update(family)))).unwrap();
    assert!(matches!(&update[..], [FamilyChange::Update { aggregator: Some(Aggregator::Sum), .. }]));
}

fn modification(r#mod: Option<Mod>) -> Vec<Modification> {
    vec![Modification { id: "f".to_owned(), update_mask: None, r#mod }]
}

#[test]
fn modifications_become_changes() {
    let name = FamilyName::new("f").unwrap();
    let empty = ColumnFamily::default();
    let create = changes(modification(Some(Mod::Create(empty.clone())))).unwrap();
    assert_eq!(create, [FamilyChange::Create(NewFamily::plain(name.clone(), None))]);
    let update = changes(modification(Some(Mod::Update(empty)))).unwrap();
    assert_eq!(update, [FamilyChange::Update { name: name.clone(), gc: None, aggregator: None }]);
    assert_eq!(changes(modification(Some(Mod::Drop(true)))).unwrap(), [FamilyChange::Drop { name }]);
    assert!(changes(modification(Some(Mod::Drop(false)))).is_err());
    assert!(changes(modification(None)).is_err());
    assert!(changes(vec![]).is_err());
}

#[test]
fn an_update_replaces_the_rule_and_nothing_else() {
    let masked = |change: fn(ColumnFamily) -> Mod, paths: &[&str]| {
        let paths = paths.iter().map(|path| (*path).to_owned()).collect();
        let mut asked = modification(Some(change(ColumnFamily::default())));
        asked[0].update_mask = Some(prost_types::FieldMask { paths });
        changes(asked)
    };
    assert!(masked(Mod::Update, &[]).is_ok() && masked(Mod::Update, &["gc_rule"]).is_ok());
    for path in ["value_type", "gc_rule.max_age", "*", "", "colour"] {
        let refused = masked(Mod::Update, &["gc_rule", path]).unwrap_err();
        assert_eq!(refused.reason, Reason::InvalidArgument, "{path}");
    }
    assert!(masked(Mod::Create, &["value_type"]).is_ok(), "a mask is ignored where nothing is updated");
}

#[test]
fn splits_and_names_have_limits() {
    let keys = |count: usize, bytes: usize| {
        let split = |n: usize| Split { key: format!("{n:0bytes$}").into() };
        admin::CreateTableRequest { initial_splits: (0..count).map(split).collect(), ..request(&[], &[]) }
    };
    assert_eq!(new_table(keys(SPLITS_MAX, 4)).unwrap().splits.len(), SPLITS_MAX);
    assert!(new_table(keys(SPLITS_MAX + 1, 4)).is_err());
    assert!(new_table(keys(1, ROW_KEY_BYTES_MAX)).is_ok());
    assert!(new_table(keys(1, ROW_KEY_BYTES_MAX + 1)).is_err());
    let named = |bytes: usize| admin::CreateTableRequest { table_id: "t".repeat(bytes), ..request(&[], &[]) };
    assert!(new_table(named(50)).is_ok());
    assert!(new_table(named(51)).is_err() && new_table(named(0)).is_err());
    assert!(new_table(request(&[], &[&"f".repeat(64)])).is_ok());
    assert!(new_table(request(&[], &[&"f".repeat(65)])).is_err() && new_table(request(&[], &[""])).is_err());
}

#[test]
fn a_table_keeps_milliseconds() {
    let of = |granularity| {
        let table = Some(admin::Table { granularity, ..Default::default() });
        new_table(admin::CreateTableRequest { table, ..request(&[], &[]) }).map(drop)
    };
    assert_eq!((of(0), of(1)), (Ok(()), Ok(())));
    assert_eq!(of(2).unwrap_err().reason, Reason::InvalidArgument);
}

#[test]
fn rows_to_drop_must_be_named() {
    let prefix = drop_range(Some(Target::RowKeyPrefix("ab".into()))).unwrap();
    assert_eq!(prefix.map(|range| range.to_string()).as_deref(), Some("[ab, ac)"));
    let last = drop_range(Some(Target::RowKeyPrefix(b"a\xff\xff".as_slice().into()))).unwrap();
    assert_eq!(last.and_then(|range| range.end().cloned()), Some(RowKey::new("b")));
    let open = drop_range(Some(Target::RowKeyPrefix(b"\xff".as_slice().into()))).unwrap();
    assert_eq!(open.map(|range| range.end().cloned()), Some(None), "to the end of the table");
    assert_eq!(drop_range(Some(Target::DeleteAllDataFromTable(true))), Ok(Some(KeyRange::all())));
    assert_eq!(drop_range(Some(Target::DeleteAllDataFromTable(false))), Ok(None));
    assert!(drop_range(Some(Target::RowKeyPrefix(Default::default()))).is_err());
    assert!(drop_range(None).is_err());
}

#[test]
fn a_foreign_token_is_refused() {
    let token = consistency_token(TableId::new(7));
    assert!(check_token(&token, TableId::new(7)).is_ok());
    assert!(check_token(&token, TableId::new(77)).is_err());
    assert!(check_token("", TableId::new(7)).is_err());
}
