//! Conditions and selections as filters have the same meaning as in the in-memory store.

use std::future::Future;
use std::task::{Context, Poll, Waker};

use ebla_model::Micros;
use ebla_model::cell::{Cell as ModelCell, FamilyName, Row as ModelRow};
use ebla_model::filter::{CompiledFilter, Filter};
use ebla_mounttable_tree::Store;
use ebla_mounttable_tree::store::filters::{self, ConditionFilter};
use ebla_mounttable_tree::store::memory::MemoryStore;
use ebla_mounttable_tree::store::{
    Cell, Change, ChildSelection, Condition, Family, Row, SERVERS_SAMPLE, ServerSelection,
};
use proptest::prelude::*;

/// Few names and values, some of which are prefixes of others.
fn column() -> impl Strategy<Value = (Family, String)> {
    let family = prop_oneof![Just(Family::Meta), Just(Family::Servers), Just(Family::Children)];
    (family, prop_oneof![Just("a"), Just("ab"), Just("b"), Just("ü"), Just("a.*")].prop_map(str::to_owned))
}

fn value() -> impl Strategy<Value = String> {
    prop_oneof![Just("x"), Just("x.1"), Just("xy"), Just("[x]"), Just("")].prop_map(str::to_owned)
}

fn row() -> impl Strategy<Value = Row> {
    prop::collection::btree_map(column(), value(), 0..6).prop_map(|cells| {
        let cell = |value| Cell { timestamp: Micros::from_millis(7), value };
        cells.into_iter().map(|(column, value)| (column, cell(value))).collect()
    })
}

fn predicate() -> impl Strategy<Value = Condition> {
    let leaf = prop_oneof![
        Just(Condition::RowAbsent),
        column().prop_map(|(family, name)| Condition::Has(family, name)),
        column().prop_map(|(family, name)| Condition::HasNot(family, name)),
        (column(), value()).prop_map(|((family, name), value)| Condition::Is(family, name, value)),
        (column(), value()).prop_map(|((family, name), value)| Condition::Begins(family, name, value)),
    ];
    prop_oneof![leaf.clone(), prop::collection::vec(leaf, 1..40).prop_map(Condition::All)]
}

fn children() -> impl Strategy<Value = ChildSelection> {
    let name = || column().prop_map(|(_, name)| name);
    let page = (prop_oneof![Just(String::new()), name()], prop::option::of(name()), 1_usize..4)
        .prop_map(|(prefix, after, limit)| ChildSelection::Page { prefix, after, limit });
    prop_oneof![prop::collection::vec(name(), 0..4).prop_map(ChildSelection::Named), page]
}

/// A row whose cells have different timestamps.
fn dated() -> impl Strategy<Value = Row> {
    let cell = || (value(), 1_i64..10).prop_map(|(value, at)| Cell { timestamp: Micros::from_millis(at), value });
    let servers = prop::collection::btree_map((0_u32..20).prop_map(|port| format!("h:{port:02}")), cell(), 0..20);
    (prop::collection::btree_map(column(), cell(), 0..12), servers).prop_map(|(mut row, servers)| {
        row.extend(servers.into_iter().map(|(address, cell)| ((Family::Servers, address), cell)));
        row
    })
}

fn servers() -> impl Strategy<Value = ServerSelection> {
    let address = (0_u32..20).prop_map(|port| format!("h:{port:02}"));
    prop_oneof![
        Just(ServerSelection::All),
        Just(ServerSelection::None),
        Just(ServerSelection::First),
        address.prop_map(ServerSelection::FirstAnd)
    ]
}

/// The row as a Bigtable stores it.
fn stored(row: &Row) -> ModelRow {
    let cell = |((family, name), cell): (&(Family, String), &Cell)| {
        let family = FamilyName::new(filters::name(*family)).unwrap();
        ModelCell::new(family, name.clone().into(), cell.timestamp, cell.value.clone().into())
    };
    let mut cells: Vec<_> = row.iter().map(cell).collect();
    cells.sort_by(ModelCell::order);
    ModelRow { key: ebla_model::key::RowKey::copy_from_slice(b"key"), cells }
}

fn passes(filter: Filter, row: &ModelRow) -> bool {
    filter.validate().unwrap();
    let compiled = CompiledFilter::compile(filter).unwrap();
    // To a Bigtable, a row without cells is absent.
    !row.cells.is_empty() && compiled.matches(row, &|| false).unwrap()
}

/// The cells that the in-memory store returns.
fn seen(row: &Row, children: &ChildSelection, servers: &ServerSelection) -> Row {
    let memory = MemoryStore::default();
    let set = |((family, name), cell): (&(Family, String), &Cell)| Change::Set(*family, name.clone(), cell.clone());
    let all = row.iter().map(set).collect();
    let mut work = Box::pin(async {
        memory.change_if("key", Condition::RowAbsent, all).await.unwrap();
        memory.read_with(&["key".to_owned()], children, servers).await.unwrap().remove(0).unwrap_or_default()
    });
    // The in-memory store yields once, and never waits.
    loop {
        if let Poll::Ready(row) = work.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return row;
        }
    }
}

proptest! {
    #[test]
    fn a_condition_holds_when_its_filter_says_so(row in row(), when in predicate()) {
        let stored = stored(&row);
        let holds = match filters::condition_filter(&when) {
            ConditionFilter::Passes(filter) => passes(filter, &stored),
            ConditionFilter::Blocks(filter) => !passes(filter, &stored),
        };
        prop_assert_eq!(holds, when.holds(Some(&row)));
    }

    #[test]
    fn a_read_shows_what_memory_shows(row in dated(), children in children(), servers in servers()) {
        let filter = filters::read(&children, &servers);
        filter.validate().unwrap();
        let read = CompiledFilter::compile(filter).unwrap().apply(stored(&row), &|| false).unwrap();
        prop_assert_eq!(filters::row(&read), seen(&row, &children, &servers));
    }

    /// The in-memory store returns the cells that a scan of all cells selects.
    #[test]
    fn memory_shows_what_is_asked_for(row in dated(), children in children(), servers in servers()) {
        let (mut first, mut page) = (0..SERVERS_SAMPLE, 0..0);
        if let ChildSelection::Page { limit, .. } = &children {
            page = 0..*limit;
        }
        let expected = row.clone().into_iter().filter(|((family, column), _)| match (family, &children, &servers) {
            (Family::Meta, ..) | (Family::Servers, _, ServerSelection::All) => true,
            (Family::Servers, _, ServerSelection::None) => false,
            (Family::Servers, _, ServerSelection::First) => first.next().is_some(),
            (Family::Servers, _, ServerSelection::FirstAnd(address)) => first.next().is_some() || address == column,
            (Family::Children, ChildSelection::Named(names), _) => names.contains(column),
            (Family::Children, ChildSelection::Page { prefix, after, .. }, _) => {
                let is_meant = column.starts_with(prefix) && after.as_ref().is_none_or(|after| column > after);
                is_meant && page.next().is_some()
            }
        });
        prop_assert_eq!(seen(&row, &children, &servers), expected.collect());
    }
}
