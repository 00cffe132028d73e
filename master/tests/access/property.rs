//! No answer depends on what the caller cannot read, a family with a list or what a view leaves out: two tables have the same readable cells, one has hidden cells too. Random
//! filters, invalid ones included, are read and used as predicates on both; the answers, their counts and their errors must be equal.

use bytes::Bytes;
use ebla_model::{Filter, Micros};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use std::ops::Bound;

use super::*;

/// Random filters that are tried at least.
const CASES: usize = 300;
/// Filters at most, if some of the first ones were all of one kind.
const MOST_CASES: usize = 10 * CASES;
/// Of each kind there must be more than this: answers with cells, refusals, predicates that match.
const OF_EACH_KIND: usize = 20;
const ROWS: [&str; 5] = ["a", "b", "c", "d", "hidden-only"];

fn texts() -> impl Strategy<Value = &'static str> {
    prop::sample::select(&["open", "secret", "o.*", "s.*", ".*", "HIDDEN", "seen", "q", "h", "(", "x{1000}{1000}"][..])
}

fn leaves() -> impl Strategy<Value = Filter> {
    let regex = |make: fn(Bytes) -> Filter| texts().prop_map(move |text| make(text.into()));
    let bound = |text: &'static str| prop::sample::select(vec![Bound::Unbounded, Bound::Included(Bytes::from(text))]);
    let column_range = (prop::sample::select(&["open", "secret", "missing"][..]), bound("a"), bound("z"))
        .prop_map(|(family, start, end)| Filter::ColumnRange { family: family.to_owned(), start, end });
    let counts = -1i32..4;
    prop_oneof![
        Just(Filter::PassAll),
        Just(Filter::BlockAll),
        Just(Filter::Sink),
        Just(Filter::StripValue),
        regex(Filter::RowKeyRegex),
        regex(Filter::FamilyNameRegex),
        regex(Filter::ColumnQualifierRegex),
        regex(Filter::ValueRegex),
        column_range,
        (0i64..4).prop_map(|start| Filter::TimestampRange { start: Micros::new(start * 1_000), end: None }),
        counts.clone().prop_map(Filter::CellsPerRowLimit),
        counts.clone().prop_map(Filter::CellsPerRowOffset),
        counts.prop_map(Filter::CellsPerColumnLimit),
        prop::sample::select(&["label", "Not A Label"][..]).prop_map(|label| Filter::ApplyLabel(label.to_owned())),
    ]
}

fn filters() -> impl Strategy<Value = Filter> {
    leaves().prop_recursive(4, 12, 3, |inner| {
        let members = prop::collection::vec(inner.clone(), 1..4);
        prop_oneof![
            members.clone().prop_map(Filter::Chain),
            members.prop_map(Filter::Interleave),
            (inner.clone(), prop::option::of(inner.clone()), prop::option::of(inner)).prop_map(
                |(predicate, then, otherwise)| Filter::Condition {
                    predicate: Box::new(predicate),
                    then: then.map(Box::new),
                    otherwise: otherwise.map(Box::new),
                }
            ),
        ]
    })
}

/// An answer of one table as text, so that it can be compared with that of the other one.
fn comparable<T: std::fmt::Debug>(table: &str, answer: Result<T, Status>) -> Result<T, (tonic::Code, String)> {
    let table = table.split('/').next().unwrap();
    answer.map_err(|status| (status.code(), status.message().replace(&name(table), "TABLE")))
}

#[tokio::test(flavor = "multi_thread")]
async fn no_answer_depends_on_a_family_that_the_caller_cannot_read() {
    let cluster = Guarded::start().await;
    let root = cluster.caller("root");
    let alice = cluster.caller("alice");
    for (table, families) in [("both", ["open", "secret"].as_slice()), ("alone", &["open"])] {
        root.create_table(table, families).await.unwrap();
        root.set_policy(&name(table), &[("roles/bigtable.user", &["subject:alice"])], Bytes::new()).await.unwrap();
        for (number, row) in ROWS.iter().enumerate() {
            if *row != "hidden-only" {
                root.write(table, row, vec![set("open", &format!("seen-{number}"))]).await.unwrap();
            }
            if table == "both" {
                root.write(table, row, vec![set("secret", "HIDDEN")]).await.unwrap();
            }
        }
    }
    let owner: &[(&str, &[&str])] = &[("roles/ebla.familyAdmin", &["subject:root"])];
    root.set_policy(&family_name("both", "secret"), owner, Bytes::new()).await.unwrap();
    let hides = |answer: &Result<ReadResult, Status>| answer.as_ref().is_ok_and(|read| read.cells.len() == 4);
    within_a_second(async || alice.read("both", None).await, hides).await.unwrap();
    within_a_second(async || alice.read("alone", None).await, hides).await.unwrap();

    compare(&alice, "both", "alone").await;
    cluster.stop().await;
}

/// The table `both` has rows and columns that its view leaves out, `alone` has not; the views are the same.
#[tokio::test(flavor = "multi_thread")]
async fn no_answer_depends_on_what_a_view_leaves_out() {
    let cluster = Guarded::start().await;
    let root = cluster.caller("root");
    let alice = cluster.caller("alice");
    for table in ["both", "alone"] {
        root.create_table(table, &["open", "secret"]).await.unwrap();
        let view = format!("{table}/v");
        root.create_view(&view, &["a", "b", "c", "d"], &["open:q"]).await.unwrap();
        let user: &[(&str, &[&str])] = &[("roles/bigtable.user", &["subject:alice"])];
        root.set_policy(&view_name(&view), user, Bytes::new()).await.unwrap();
        for (number, row) in ROWS.iter().enumerate() {
            if *row != "hidden-only" {
                root.write(table, row, vec![set("open", &format!("seen-{number}"))]).await.unwrap();
            }
            if table == "both" {
                let hidden =
                    vec![set("secret", "HIDDEN"), set_column("open", "h", "HIDDEN"), set_column("open", "r", "HIDDEN")];
                root.write(table, row, hidden).await.unwrap();
            }
        }
    }
    // A row of the view without a cell in it.
    root.write("both", "d-without", vec![set("secret", "HIDDEN")]).await.unwrap();
    let hides = |answer: &Result<ReadResult, Status>| answer.as_ref().is_ok_and(|read| read.cells.len() == 4);
    within_a_second(async || alice.read("both/v", None).await, hides).await.unwrap();
    within_a_second(async || alice.read("alone/v", None).await, hides).await.unwrap();
    assert_eq!(alice.sample("both/v").await.unwrap(), alice.sample("alone/v").await.unwrap());
    compare(&alice, "both/v", "alone/v").await;
    cluster.stop().await;
}

/// Compares the answers of two tables or views for random filters.
async fn compare(alice: &TestCaller, left: &str, right: &str) {
    let mut seed = [0; 32];
    seed[..8].copy_from_slice(&Runtime::system("seed").rng.u64().to_be_bytes());
    let mut runner = TestRunner::new_with_rng(Config::default(), TestRng::from_seed(RngAlgorithm::ChaCha, &seed));
    let (mut answers, mut refusals, mut matches) = (0, 0, 0);
    for (case, row) in ROWS.into_iter().cycle().take(MOST_CASES).enumerate() {
        if case >= CASES && [answers, refusals, matches].into_iter().all(|kind| kind > OF_EACH_KIND) {
            break;
        }
        let filter = filters().new_tree(&mut runner).unwrap().current();
        let both = comparable(left, alice.read(left, Some(&filter)).await);
        let mut alone = comparable(right, alice.read(right, Some(&filter)).await);
        // There the caller reads everything, and its counts include cells that a filter has dropped.
        if let Ok(ReadResult { stats: Some(stats), .. }) = &mut alone {
            stats.rows_seen_count = stats.rows_returned_count;
            stats.cells_seen_count = stats.cells_returned_count;
        }
        assert_eq!(both, alone, "{filter:?}, seed {seed:?}");
        match &both {
            Ok(read) if !read.cells.is_empty() => answers += 1,
            Ok(_empty) => {}
            Err(_refused) => refusals += 1,
        }
        let text = format!("{both:?}");
        assert!(!text.contains("HIDDEN") && !text.contains("hidden-only"), "{filter:?}: {text}");
        // A cell that no other test of this loop reads: it must not differ between the tables.
        let write = || vec![set("open", "seen-again")];
        let both = comparable(left, alice.check(left, row, Some(&filter), write()).await);
        let alone = comparable(right, alice.check(right, row, Some(&filter), write()).await);
        assert_eq!(both, alone, "{row} {filter:?}, seed {seed:?}");
        matches += usize::from(both == Ok(true));
    }
    assert!(
        [answers, refusals, matches].into_iter().all(|kind| kind > OF_EACH_KIND),
        "{answers} answers, {refusals} refusals, {matches} matches, seed {seed:?}"
    );
}
