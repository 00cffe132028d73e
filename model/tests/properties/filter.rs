//! Filters: the compiled program against a naive definition, the laws of the tree, push-down.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Bound, RangeBounds};

use bytes::Bytes;
use ebla_model::cell::{Cell, Row};
use ebla_model::filter::{ColumnRange, CompiledFilter, Filter};
use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, any, prop_assert, prop_assert_eq, prop_assume, prop_oneof, proptest};
use proptest::sample::select;

use crate::values::{row, text, time};

/// The smallest sample includes no row of a test, the largest includes each.
const NEARLY_NONE: f64 = 1e-15;
const NEARLY_ALL: f64 = 1.0 - 1e-15;

fn leaf() -> impl Strategy<Value = Filter> {
    let pattern = select(vec!["", "a", "b", "f", "g", "a.*", "[ab]", "f|g", "a?b", ".*"]).prop_map(Bytes::from);
    prop_oneof![
        Just(Filter::PassAll),
        Just(Filter::BlockAll),
        Just(Filter::StripValue),
        pattern.clone().prop_filter("empty", |pattern| !pattern.is_empty()).prop_map(Filter::RowKeyRegex),
        pattern.clone().prop_map(Filter::FamilyNameRegex),
        pattern.clone().prop_map(Filter::ColumnQualifierRegex),
        pattern.prop_map(Filter::ValueRegex),
        (select(vec!["f", "g"]), bounds()).prop_map(|(family, (start, end))| Filter::ColumnRange {
            family: family.into(),
            start,
            end
        }),
        bounds().prop_map(|(start, end)| Filter::ValueRange { start, end }),
        (time(), proptest::option::of(time())).prop_filter_map("inverted", |(start, end)| {
            (end.is_none_or(|end| start <= end)).then_some(Filter::TimestampRange { start, end })
        }),
        (0_i32..5).prop_map(Filter::CellsPerRowOffset),
        (1_i32..5).prop_map(Filter::CellsPerRowLimit),
        (1_i32..4).prop_map(Filter::CellsPerColumnLimit),
        vec(select(vec![0, b'a', b'b', b'a' & b'b', b'a' | b'b', 0xff]), 0..3)
            .prop_map(|mask| Filter::ValueBitmask(mask.into())),
        select(vec![NEARLY_NONE, NEARLY_ALL]).prop_map(Filter::RowSample),
        Just(Filter::Sink),
        select(vec!["l", "m-9"]).prop_map(|label| Filter::ApplyLabel(label.into())),
    ]
}

fn bounds() -> impl Strategy<Value = (Bound<Bytes>, Bound<Bytes>)> {
    let bound =
        || prop_oneof![Just(Bound::Unbounded), text().prop_map(Bound::Included), text().prop_map(Bound::Excluded)];
    let key = |bound: &Bound<Bytes>| match bound {
        Bound::Included(key) | Bound::Excluded(key) => Some(key.clone()),
        Bound::Unbounded => None,
    };
    (bound(), bound()).prop_filter("inverted", move |(start, end)| match (key(start), key(end)) {
        (Some(start), Some(end)) => start <= end,
        _ => true,
    })
}

fn filter() -> impl Strategy<Value = Filter> {
    leaf().prop_recursive(4, 16, 3, |inner| {
        let dry = inner.clone().prop_filter("a sink in a condition", |filter| !sinks(filter));
        let branch = || proptest::option::of(dry.clone().prop_map(Box::new));
        prop_oneof![
            vec(inner.clone(), 2..4).prop_filter("two labels", |chain| is_legal(chain)).prop_map(Filter::Chain),
            vec(inner.clone(), 2..4).prop_map(Filter::Interleave),
            (dry.clone().prop_map(Box::new), branch(), branch())
                .prop_map(|(predicate, then, otherwise)| Filter::Condition { predicate, then, otherwise }),
        ]
    })
}

/// Whether these are valid members of one chain: at most one of them labels.
fn is_legal(chain: &[Filter]) -> bool {
    chain.iter().filter(|member| labels(member)).count() < 2
}

fn labels(filter: &Filter) -> bool {
    match filter {
        Filter::ApplyLabel(_) => true,
        Filter::Chain(members) | Filter::Interleave(members) => members.iter().any(labels),
        Filter::Condition { predicate, then, otherwise } => {
            labels(predicate) || then.as_deref().is_some_and(labels) || otherwise.as_deref().is_some_and(labels)
        }
        _ => false,
    }
}

/// A filter that is valid in a condition.
fn dry_filter() -> impl Strategy<Value = Filter> {
    filter().prop_filter("a sink in a condition", |filter| !sinks(filter))
}

fn sinks(filter: &Filter) -> bool {
    match filter {
        Filter::Sink => true,
        Filter::Chain(members) | Filter::Interleave(members) => members.iter().any(sinks),
        // None was generated with a sink.
        _ => false,
    }
}

/// The definition: the cells that pass and those that sinks took, in order.
fn definition(filter: &Filter, key: &[u8], cells: Vec<Cell>) -> Vec<Cell> {
    let mut sunk = Vec::new();
    let mut all = naive(filter, key, cells, &mut sunk);
    all.append(&mut sunk);
    all.sort_by(Cell::order);
    all
}

/// Each filter is a function from cells to cells, which may add cells to `sunk`.
fn naive(filter: &Filter, key: &[u8], cells: Vec<Cell>, sunk: &mut Vec<Cell>) -> Vec<Cell> {
    let only = |passes: &dyn Fn(&Cell) -> bool| cells.iter().filter(|cell| passes(cell)).cloned().collect();
    match filter {
        Filter::PassAll => cells,
        Filter::BlockAll => Vec::new(),
        Filter::Chain(members) => members.iter().fold(cells, |cells, member| naive(member, key, cells, sunk)),
        Filter::Interleave(members) => {
            let mut pool: Vec<_> = members.iter().flat_map(|member| naive(member, key, cells.clone(), sunk)).collect();
            pool.sort_by(Cell::order);
            pool
        }
        Filter::Condition { predicate, then, otherwise } => {
            let way = if naive(predicate, key, cells.clone(), sunk).is_empty() { otherwise } else { then };
            way.as_ref().map_or_else(Vec::new, |way| naive(way, key, cells, sunk))
        }
        Filter::RowKeyRegex(pattern) => only(&|_| whole(pattern, key)),
        Filter::FamilyNameRegex(pattern) => only(&|cell| whole(pattern, cell.family.as_str().as_bytes())),
        Filter::ColumnQualifierRegex(pattern) => only(&|cell| whole(pattern, &cell.qualifier)),
        Filter::ValueRegex(pattern) => only(&|cell| whole(pattern, &cell.value)),
        Filter::ColumnRange { family, start, end } => {
            let bounds = (start.clone(), end.clone());
            only(&|cell| cell.family.as_str() == family && bounds.contains(&cell.qualifier))
        }
        Filter::ValueRange { start, end } => {
            let bounds = (start.clone(), end.clone());
            only(&|cell| bounds.contains(&cell.value))
        }
        Filter::TimestampRange { start, end } => {
            only(&|cell| cell.timestamp >= *start && end.is_none_or(|end| cell.timestamp < end))
        }
        Filter::CellsPerRowOffset(count) => cells.into_iter().skip(size(*count)).collect(),
        Filter::CellsPerRowLimit(count) => cells.into_iter().take(size(*count)).collect(),
        Filter::CellsPerColumnLimit(count) => first_of_columns(cells, size(*count)),
        Filter::StripValue => cells.into_iter().map(|cell| Cell { value: Bytes::new(), ..cell }).collect(),
        Filter::ApplyLabel(label) => {
            cells.into_iter().map(|cell| Cell { labels: vec![label.as_str().into()], ..cell }).collect()
        }
        Filter::Sink => {
            sunk.extend(cells);
            Vec::new()
        }
        Filter::ValueBitmask(mask) => {
            only(&|cell| bits(&cell.value) & bits(mask) == bits(mask) && cell.value.len() == mask.len())
        }
        Filter::RowSample(share) => only(&|_| *share > 0.5),
    }
}

/// Bytes as one number: there are only few.
fn bits(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |bits, byte| bits << 8 | u64::from(*byte))
}

fn first_of_columns(cells: Vec<Cell>, count: usize) -> Vec<Cell> {
    let mut seen: BTreeMap<(String, Bytes), usize> = BTreeMap::new();
    let keep = |cell: &Cell| {
        let seen = seen.entry((cell.family.to_string(), cell.qualifier.clone())).or_default();
        *seen += 1;
        *seen <= count
    };
    cells.into_iter().filter(keep).collect()
}

/// The cells in the ranges of their family and within the ranges' limits.
fn needed(cells: Vec<Cell>, ranges: impl Fn(&str) -> Vec<ColumnRange>) -> Vec<Cell> {
    let mut kept = Vec::new();
    for family in ["f", "g", "h"] {
        let of_family = || cells.iter().filter(|cell| cell.family.as_str() == family).cloned();
        let ranges = ranges(family);
        assert!(ranges.is_sorted_by(|a, b| a.end.as_ref().is_some_and(|end| *end <= b.start)), "{ranges:?}");
        for ColumnRange { start, end, columns, versions } in ranges {
            let inside = |cell: &Cell| cell.qualifier >= start && end.as_ref().is_none_or(|end| cell.qualifier < *end);
            let mut seen = BTreeSet::new();
            let cells = of_family().filter(inside).filter(|cell| {
                seen.insert(cell.qualifier.clone());
                seen.len() <= columns
            });
            kept.extend(first_of_columns(cells.collect(), versions));
        }
    }
    kept
}

fn whole(pattern: &Bytes, bytes: &[u8]) -> bool {
    let pattern = std::str::from_utf8(pattern).unwrap();
    regex::bytes::Regex::new(&format!("^(?:{pattern})$")).unwrap().is_match(bytes)
}

fn size(count: i32) -> usize {
    usize::try_from(count).unwrap()
}

fn apply(filter: &Filter, row: &Row) -> Vec<Cell> {
    run(&CompiledFilter::compile(filter.clone()).unwrap(), row).cells
}

fn run(filter: &CompiledFilter, row: &Row) -> Row {
    filter.apply(row.clone(), &|| false).unwrap()
}

fn matches(filter: &CompiledFilter, row: &Row) -> bool {
    filter.matches(row, &|| false).unwrap()
}

proptest! {
    #[test]
    fn the_program_does_what_the_definition_says(filter in filter(), row in row()) {
        prop_assert_eq!(apply(&filter, &row), definition(&filter, row.key.as_bytes(), row.cells.clone()));
    }

    #[test]
    fn matches_says_whether_anything_passes(filter in filter(), row in row()) {
        let compiled = CompiledFilter::compile(filter).unwrap();
        prop_assert_eq!(matches(&compiled, &row), !run(&compiled, &row).is_empty());
    }

    #[test]
    fn what_passes_is_in_order(filter in filter(), row in row()) {
        prop_assert!(apply(&filter, &row).is_sorted_by(|a, b| a.order(b).is_le()));
    }

    #[test]
    fn pass_is_the_one_and_block_the_zero(f in dry_filter(), row in row()) {
        let passed = apply(&f, &row);
        let chain = |a: &Filter, b: &Filter| apply(&Filter::Chain(vec![a.clone(), b.clone()]), &row);
        let pool = |a: &Filter, b: &Filter| apply(&Filter::Interleave(vec![a.clone(), b.clone()]), &row);
        prop_assert_eq!(&chain(&f, &Filter::PassAll), &passed);
        prop_assert_eq!(&chain(&Filter::PassAll, &f), &passed);
        prop_assert_eq!(chain(&f, &Filter::BlockAll), vec![]);
        prop_assert_eq!(chain(&Filter::BlockAll, &f), vec![]);
        prop_assert_eq!(&pool(&f, &Filter::BlockAll), &passed);
        prop_assert_eq!(&pool(&Filter::BlockAll, &f), &passed);
    }

    #[test]
    fn chains_associate(f in filter(), g in filter(), h in filter(), row in row()) {
        prop_assume!(is_legal(&[f.clone(), g.clone(), h.clone()]));
        let left = Filter::Chain(vec![Filter::Chain(vec![f.clone(), g.clone()]), h.clone()]);
        let right = Filter::Chain(vec![f.clone(), Filter::Chain(vec![g.clone(), h.clone()])]);
        prop_assert_eq!(apply(&left, &row), apply(&right, &row));
        prop_assert_eq!(apply(&left, &row), apply(&Filter::Chain(vec![f, g, h]), &row));
    }

    #[test]
    fn interleaves_commute_but_for_equal_versions(f in filter(), g in filter(), row in row()) {
        let sorted = |mut cells: Vec<Cell>| {
            cells.sort_by(|a, b| a.order(b).then_with(|| (&a.value, &a.labels).cmp(&(&b.value, &b.labels))));
            cells
        };
        let pool = |a: &Filter, b: &Filter| sorted(apply(&Filter::Interleave(vec![a.clone(), b.clone()]), &row));
        prop_assert_eq!(pool(&f, &g), pool(&g, &f));
        prop_assert_eq!(pool(&f, &g).len(), apply(&f, &row).len() + apply(&g, &row).len());
    }

    #[test]
    fn conditions_take_one_way(p in dry_filter(), f in dry_filter(), g in dry_filter(), row in row()) {
        let matched = matches(&CompiledFilter::compile(p.clone()).unwrap(), &row);
        let way = if matched { &f } else { &g };
        let expected = apply(way, &row);
        let condition = Filter::Condition { predicate: Box::new(p), then: Some(Box::new(f)), otherwise: Some(Box::new(g)) };
        prop_assert_eq!(apply(&condition, &row), expected);
    }

    #[test]
    fn what_a_filter_does_not_need_changes_nothing(filter in filter(), row in row()) {
        let compiled = CompiledFilter::compile(filter).unwrap();
        let mut less = row.clone();
        less.cells = needed(less.cells, |family| compiled.needed_columns(family));
        if !compiled.may_pass_row(row.key.as_bytes()) {
            less.cells.clear();
        }
        prop_assert_eq!(run(&compiled, &less).cells, run(&compiled, &row).cells);
    }

    #[test]
    fn what_it_does_not_need_to_match_changes_nothing(filter in filter(), row in row()) {
        let compiled = CompiledFilter::compile(filter).unwrap();
        let less = Row { cells: needed(row.cells.clone(), |family| compiled.needed_columns_to_match(family)), ..row.clone() };
        prop_assert_eq!(matches(&compiled, &less), matches(&compiled, &row));
    }

    #[test]
    fn a_quoted_literal_matches_itself_only(literal in vec(any::<u8>(), 0..8), other in vec(any::<u8>(), 0..8)) {
        let pattern = quote(&literal);
        let filter = CompiledFilter::compile(Filter::ValueRegex(pattern.into())).unwrap();
        let row = |value: &[u8]| {
            let family = ebla_model::FamilyName::new("f").unwrap();
            let cell = Cell::new(family, Bytes::new(), ebla_model::Micros::ZERO, Bytes::copy_from_slice(value));
            Row { key: ebla_model::RowKey::new("k"), cells: vec![cell] }
        };
        prop_assert!(matches(&filter, &row(&literal)));
        prop_assert_eq!(matches(&filter, &row(&other)), literal == other);
    }

    #[test]
    fn any_pattern_is_taken_or_refused(pattern in vec(select(br"ab\[](){}*+?|^$.-:,=<>PQECxdwsUim019&~".to_vec()), 0..14)) {
        let _ = CompiledFilter::compile(Filter::ValueRegex(pattern.into()));
    }
}

/// Quoting of Google's clients: a backslash before ASCII bytes except letters, digits and `_`; NUL as `\x00`.
fn quote(literal: &[u8]) -> Vec<u8> {
    literal
        .iter()
        .flat_map(|&byte| match byte {
            0 => br"\x00".to_vec(),
            _ if byte.is_ascii_alphanumeric() || byte == b'_' || !byte.is_ascii() => vec![byte],
            _ => vec![b'\\', byte],
        })
        .collect()
}
