//! Requests as clients send them, and the ones that are refused.

use std::collections::HashMap;

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
fn rows_to_drop_must_be_named() {
    let prefix = drop_range(Some(Target::RowKeyPrefix("ab".into()))).unwrap();
    assert_eq!(prefix.to_string(), "[ab, ac)");
    assert_eq!(drop_range(Some(Target::DeleteAllDataFromTable(true))), Ok(KeyRange::all()));
    assert!(drop_range(Some(Target::RowKeyPrefix(Default::default()))).is_err());
    assert!(drop_range(Some(Target::DeleteAllDataFromTable(false))).is_err());
    assert!(drop_range(None).is_err());
}

fn tables(count: u64) -> Vec<TableSchema> {
    let named = |n| format!("projects/p/instances/i/tables/t{n}").parse().unwrap();
    (1..=count).map(|n| TableSchema::new(TableId::new(n), named(n), []).unwrap()).collect()
}

#[test]
fn pages_follow_each_other_without_loss() {
    let all = tables(5);
    let all: Vec<_> = all.iter().collect();
    let mut token = String::new();
    let mut seen = Vec::new();
    loop {
        let (shown, next) = page(&all, 2, &token).unwrap();
        seen.extend(shown.iter().map(|schema| schema.table.get()));
        if next.is_empty() {
            break;
        }
        token = next;
    }
    assert_eq!(seen, [1, 2, 3, 4, 5]);
    assert_eq!(page(&all, 0, "").unwrap().0.len(), 5);
    assert!(page(&all, 5, "").unwrap().1.is_empty());
    assert!(page(&all, -1, "").is_err());
}

#[test]
fn a_foreign_token_is_refused() {
    let token = consistency_token(TableId::new(7));
    assert!(check_token(&token, TableId::new(7)).is_ok());
    assert!(check_token(&token, TableId::new(77)).is_err());
    assert!(check_token("", TableId::new(7)).is_err());
}
