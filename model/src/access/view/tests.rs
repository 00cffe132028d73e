//! Views against an oracle that compares prefixes, one cell at a time.

use proptest::prelude::*;

use super::*;
use crate::cell::{Cell, Row};
use crate::filter::CompiledFilter;
use crate::id::TableId;
use crate::mutation::WriteTime;
use crate::time::Micros;

const FAMILIES: [&str; 4] = ["a", "a.b", "axb", "z"];

fn family(index: usize) -> FamilyName {
    FamilyName::new(FAMILIES[index]).unwrap()
}

/// The definition of a view, as a request has it.
#[derive(Clone, Debug)]
struct Definition {
    rows: Vec<Bytes>,
    families: BTreeMap<usize, (Vec<Bytes>, Vec<Bytes>)>,
}

impl Definition {
    fn view(&self) -> SubsetView {
        let columns = |(index, (qualifiers, prefixes)): (&usize, &(Vec<Bytes>, Vec<Bytes>))| {
            (family(*index), FamilySubset::new(qualifiers.clone(), prefixes.clone()))
        };
        SubsetView::new(self.rows.clone(), self.families.iter().map(columns))
    }

    fn has_row(&self, row: &[u8]) -> bool {
        self.rows.iter().any(|prefix| row.starts_with(prefix))
    }

    fn has_column(&self, index: usize, qualifier: &[u8]) -> bool {
        self.families.get(&index).is_some_and(|(qualifiers, prefixes)| {
            qualifiers.iter().any(|one| one == qualifier) || prefixes.iter().any(|prefix| qualifier.starts_with(prefix))
        })
    }
}

/// Short texts of few bytes, so that prefixes meet keys.
fn text() -> impl Strategy<Value = Bytes> {
    prop::collection::vec(prop::sample::select(vec![0u8, b'a', b'b', 0xff]), 0..4).prop_map(Bytes::from)
}

fn definitions() -> impl Strategy<Value = Definition> {
    let texts = || prop::collection::vec(text(), 0..4);
    let families = prop::collection::btree_map(0..FAMILIES.len(), (texts(), texts()), 0..4);
    (texts(), families).prop_map(|(rows, families)| Definition { rows, families })
}

fn cells() -> impl Strategy<Value = Vec<(usize, Bytes)>> {
    prop::collection::btree_set((0..FAMILIES.len(), text()), 0..12).prop_map(|cells| cells.into_iter().collect())
}

fn readable() -> impl Strategy<Value = FamilySet> {
    let some = prop::collection::btree_set((0..FAMILIES.len()).prop_map(family), 0..4).prop_map(FamilySet::Only);
    prop_oneof![Just(FamilySet::All), some]
}

proptest! {
    /// The filter passes exactly the included cells of readable families, each once; the rows are exactly those of the prefixes.
    #[test]
    fn a_view_is_what_its_prefixes_say(
        definition in definitions(), cells in cells(), readable in readable(), rows in prop::collection::vec(text(), 1..8),
    ) {
        let view = definition.view();
        for row in &rows {
            prop_assert_eq!(view.includes_row(&RowKey::new(row.clone())), definition.has_row(row), "{:?}", row);
        }
        let mut row = Row::empty(RowKey::new("r"));
        row.cells = cells
            .iter()
            .map(|(index, qualifier)| Cell::new(family(*index), qualifier.clone(), Micros::ZERO, Bytes::new()))
            .collect();
        row.cells.sort_by(|one, other| one.order(other));
        let expected: Vec<_> = row
            .cells
            .iter()
            .filter(|cell| {
                let index = FAMILIES.iter().position(|name| *name == cell.family.as_str()).unwrap();
                readable.contains(cell.family.as_str()) && definition.has_column(index, &cell.qualifier)
            })
            .cloned()
            .collect();
        let filter = view.filter(&readable);
        filter.validate().unwrap();
        let passed = CompiledFilter::compile(filter).unwrap().apply(row, &|| false).unwrap();
        prop_assert_eq!(passed.cells, expected);
    }

    /// A permitted mutation changes included columns only.
    #[test]
    fn mutations_change_nothing_outside(definition in definitions(), index in 0..FAMILIES.len(), qualifier in text()) {
        let view = definition.view();
        let name = FAMILIES[index].to_owned();
        let included = definition.has_column(index, &qualifier);
        prop_assert_eq!(view.includes_column(&name, &qualifier), included);
        let set = Mutation::SetCell {
            family: name.clone(),
            qualifier: qualifier.clone(),
            timestamp: WriteTime::Server,
            value: Bytes::new(),
        };
        let delete =
            Mutation::DeleteColumn { family: name.clone(), qualifier, start: Micros::ZERO, end: None };
        prop_assert_eq!((view.permits(&set), view.permits(&delete)), (included, included));
        let is_whole = definition.families.get(&index).is_some_and(|(_, prefixes)| prefixes.iter().any(Bytes::is_empty));
        prop_assert_eq!(view.permits(&Mutation::DeleteFamily { family: name }), is_whole);
        prop_assert!(!view.permits(&Mutation::DeleteRow));
    }
}

#[test]
fn names_survive_a_round_trip() {
    let name = "projects/p/instances/i/tables/t/authorizedViews/v";
    let parsed: ViewName = name.parse().unwrap();
    assert_eq!((parsed.to_string().as_str(), parsed.id(), parsed.table().table()), (name, "v", "t"));
    let long = "x".repeat(VIEW_ID_BYTES_MAX + 1);
    for id in ["", "-a", "a/b", "a b", "v/authorizedViews/w", &long] {
        assert!(format!("projects/p/instances/i/tables/t/authorizedViews/{id}").parse::<ViewName>().is_err(), "{id}");
    }
    assert!("projects/p/instances/i/tables/t".parse::<ViewName>().is_err());
}

#[test]
fn a_table_is_covered_by_whole_families_only() {
    let name = TableName::from_parts("p", "i", "t").unwrap();
    let schema = TableSchema::new(TableId::new(7), name, [(family(0), None), (family(3), None)]).unwrap();
    let whole = || FamilySubset::new([], [Bytes::new()]);
    let covers = |families: Vec<(FamilyName, FamilySubset)>| {
        SubsetView::new([Bytes::new()], families).includes_all_columns(&schema)
    };
    assert!(covers(vec![(family(0), whole()), (family(3), whole())]));
    assert!(!covers(vec![(family(0), whole())]), "a family is missing");
    assert!(!covers(vec![(family(0), whole()), (family(3), FamilySubset::new([Bytes::new()], []))]), "one column");
}

#[test]
fn many_long_family_names_compile() {
    let names: Vec<_> =
        (0..100).map(|number| FamilyName::new(&format!("{}{number:02}", "x".repeat(62))).unwrap()).collect();
    assert!(CompiledFilter::compile(families_filter(names.iter())).is_ok());
    assert_eq!(families_filter([family(0), family(1)].iter()), Filter::FamilyNameRegex("a|a\\.b".into()));
    assert_eq!(families_filter([].iter()), Filter::BlockAll);
}
