//! Scopes of lists and of views.

use ebla_model::access::{FamilySubset, Policy, SubsetView};
use ebla_model::mutation::WriteTime;
use ebla_model::rmw::Operation;
use ebla_model::schema::Protection;
use ebla_model::{FamilyName, Filter, TableId};
use ebla_proto::convert::{filter_from_bytes, mutation_to_bytes};

use super::*;

fn family(name: &str) -> FamilyName {
    FamilyName::new(name).unwrap()
}

fn names(names: &[&str]) -> FamilySet {
    FamilySet::Only(names.iter().map(|name| family(name)).collect())
}

fn table() -> TableName {
    TableName::from_parts("p", "i", "t").unwrap()
}

fn with_readable(readable: FamilySet) -> Scope {
    Scope::of_table(FamilyRights { readable, ..FamilyRights::default() })
}

/// Rows that begin with `a`; the family `x`, and the column `q` of the family `y`.
fn through_view(rights: FamilyRights) -> Scope {
    let columns = [
        (family("x"), FamilySubset::new([], [Bytes::new()])),
        (family("y"), FamilySubset::new([Bytes::from("q")], [])),
    ];
    let view = AuthorizedView {
        subset: SubsetView::new([Bytes::from("a")], columns),
        protection: Protection::Off,
        policy: Policy::default(),
    };
    let schema = TableSchema::new(TableId::new(7), table(), [(family("x"), None), (family("y"), None)]).unwrap();
    Scope::of_view(rights, ViewName::new(table(), "v").unwrap(), view.into(), &schema)
}

fn set(family: &str, qualifier: &'static str) -> Bytes {
    mutation_to_bytes(&Mutation::SetCell {
        family: family.to_owned(),
        qualifier: qualifier.into(),
        timestamp: WriteTime::Server,
        value: Bytes::new(),
    })
}

fn is_denied<T: std::fmt::Debug>(result: Result<T, Error>) -> bool {
    let error = result.unwrap_err();
    error.reason == Reason::PermissionDenied && error.message.contains("outside the Authorized View")
}

#[test]
fn a_restricted_filter_is_a_chain() {
    let filter = filter_to_bytes(&Filter::StripValue);
    assert_eq!(with_readable(FamilySet::All).filter(Some(&filter)), Ok(Some(filter.clone())));
    assert_eq!(with_readable(FamilySet::All).filter(None), Ok(None));
    let decoded = |filter: Option<&Bytes>, readable: FamilySet| {
        filter_from_bytes(&with_readable(readable).filter(filter).unwrap().unwrap()).unwrap()
    };
    let only = Filter::FamilyNameRegex("a|b\\.c".into());
    assert_eq!(decoded(None, names(&["a", "b.c"])), only);
    assert_eq!(decoded(Some(&filter), names(&["a", "b.c"])), Filter::Chain(vec![only, Filter::StripValue]));
    assert_eq!(decoded(None, names(&[])), Filter::BlockAll);
    let invalid = with_readable(names(&["a"])).filter(Some(&Bytes::from_static(b"\xff"))).unwrap().unwrap();
    assert!(filter_from_bytes(&invalid).is_err());
}

#[test]
fn large_filters_are_refused_before_they_are_copied() {
    let filter = |size: usize| Bytes::from(vec![0; size]);
    let all = with_readable(FamilySet::All);
    assert!(
        all.filter(Some(&filter(FILTER_BYTES_MAX))).is_ok() && all.filter(Some(&filter(FILTER_BYTES_MAX + 1))).is_err()
    );
    let scope = through_view(FamilyRights::default());
    let own = scope.filter(None).unwrap().unwrap().len();
    assert!(scope.filter(Some(&filter(FILTER_BYTES_MAX - own))).is_ok());
    assert!(scope.filter(Some(&filter(FILTER_BYTES_MAX - own + 1))).is_err());
}

#[test]
fn reads_through_a_view_see_what_the_caller_may_see_of_it() {
    let scope = through_view(FamilyRights::default());
    assert!(!scope.sees_everything() && Scope::default().sees_everything());
    let rows = scope.rows(RowSet::all());
    assert!(rows.contains(b"ab") && !rows.contains(b"b"));
    let filter = filter_from_bytes(&scope.filter(None).unwrap().unwrap()).unwrap();
    assert!(matches!(&filter, Filter::Interleave(members) if members.len() == 2), "{filter:?}");
    let listed = through_view(FamilyRights { readable: names(&["x"]), ..FamilyRights::default() });
    let filter = filter_from_bytes(&listed.filter(None).unwrap().unwrap()).unwrap();
    assert_eq!(filter, Filter::FamilyNameRegex("x".into()), "a list restricts a view too");
    assert!(!scope.reads_as(&listed) && scope.reads_as(&through_view(FamilyRights::default())));
}

#[test]
fn writes_outside_a_view_are_refused() {
    let scope = through_view(FamilyRights::default());
    assert!(scope.check_row(&RowKey::new("ab")).is_ok() && is_denied(scope.check_row(&RowKey::new("b"))));
    let checked = |mutations: &[Bytes]| scope.check_mutations(mutations, &table());
    assert_eq!(checked(&[set("x", "any"), set("y", "q")]).unwrap().len(), 2);
    let delete = |family: &str| mutation_to_bytes(&Mutation::DeleteFamily { family: family.to_owned() });
    assert!(checked(&[delete("x")]).is_ok());
    for outside in [set("y", "other"), set("z", "q"), delete("y"), mutation_to_bytes(&Mutation::DeleteRow)] {
        assert!(is_denied(checked(&[set("x", "q"), outside])));
    }
    let rule = |family: &str, qualifier: &'static str| Rule {
        family: family.to_owned(),
        qualifier: qualifier.into(),
        operation: Operation::Increment(1),
    };
    assert!(scope.check_rule(&rule("y", "q"), &table()).is_ok());
    assert!(
        is_denied(scope.check_rule(&rule("y", "p"), &table()))
            && is_denied(scope.check_rule(&rule("z", "q"), &table()))
    );
    // A list restricts a view too.
    let listed = through_view(FamilyRights { writable: names(&["y"]), ..FamilyRights::default() });
    let refused = listed.check_mutations(&[set("x", "q")], &table()).unwrap_err();
    assert_eq!(refused.reason, Reason::PermissionDenied);
    assert!(listed.check_rule(&rule("x", "q"), &table()).is_err());
}

#[test]
fn samples_through_a_view_say_nothing_about_other_columns() {
    let sample = |scope: Scope| scope.sample(KeyRange::all(), &table()).map(|sample| sample.keys);
    assert_eq!(sample(Scope::default()), Ok(SampleKeys::Tablets));
    assert!(sample(with_readable(names(&["x"]))).is_err());
    let rows = RowSet::from_ranges([KeyRange::prefix(b"a")]);
    assert_eq!(sample(through_view(FamilyRights::default())), Ok(SampleKeys::RangesOf(rows)));
}

#[test]
fn a_stored_answer_has_one_owner() {
    let token = || Some(IdempotencyToken { token: "12345678".into(), started: None });
    let columns = |qualifier: &'static str| BTreeSet::from([("x", qualifier.as_bytes())]);
    let open = Scope::default();
    assert_eq!(open.owned_token(token(), None, &columns("q")), token(), "access control is off");
    let view = through_view(FamilyRights::default());
    let all = [
        open.owned_token(token(), Some("subject:a"), &columns("q")),
        open.owned_token(token(), Some("subject:b"), &columns("q")),
        open.owned_token(token(), Some("subject:a"), &BTreeSet::new()),
        view.owned_token(token(), Some("subject:a"), &columns("q")),
        view.owned_token(token(), Some("subject:a"), &columns("p")),
        view.owned_token(token(), None, &columns("q")),
        token(),
    ];
    let different: BTreeSet<_> = all.iter().map(|token| token.as_ref().unwrap().token.clone()).collect();
    assert_eq!(different.len(), all.len());
    assert_eq!(
        open.owned_token(token(), Some("subject:a"), &columns("q")),
        open.owned_token(token(), Some("subject:a"), &columns("p")),
        "of a table the families count"
    );
}
