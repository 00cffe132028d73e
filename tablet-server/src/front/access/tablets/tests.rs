//! What calls of tablets touch, for a caller who may not touch one of the families.

use ebla_model::access::{FamilyRights, FamilySet};
use ebla_model::mutation::{Mutation, WriteTime};
use ebla_model::rmw::{Operation, Rule};
use ebla_model::{FamilyName, Filter};
use ebla_proto::convert::{mutation_to_bytes, rule_to_bytes};

use super::*;

fn family(name: &str) -> FamilyName {
    FamilyName::new(name).unwrap()
}

fn table() -> TableSchema {
    let name = TableName::from_parts("p", "i", "names").unwrap();
    TableSchema::new(TableId::new(7), name, [(family("nodes"), None), (family("secret"), None)]).unwrap()
}

fn nodes() -> FamilySet {
    FamilySet::Only([family("nodes")].into())
}

fn checked(rights: FamilyRights, call: TabletCall<'_>) -> Result<BTreeSet<String>, Reason> {
    call.restrict(&Scope::of_table(rights), &table(), "certificate:m").map_err(|error| error.reason)
}

fn filter(filter: Filter) -> CompiledFilter {
    CompiledFilter::compile(filter).unwrap()
}

fn set(family: &str) -> Bytes {
    mutation_to_bytes(&Mutation::SetCell {
        family: family.to_owned(),
        qualifier: Bytes::from_static(b"q"),
        timestamp: WriteTime::Server,
        value: Bytes::new(),
    })
}

fn add(family: &str) -> Bytes {
    let operation = Operation::Increment(1);
    rule_to_bytes(&Rule { family: family.to_owned(), qualifier: Bytes::from_static(b"q"), operation })
}

const DENIED: Result<BTreeSet<String>, Reason> = Err(Reason::PermissionDenied);

#[test]
fn a_read_is_refused_if_its_result_can_depend_on_an_unreadable_family() {
    let unreadable = || FamilyRights { readable: nodes(), ..FamilyRights::default() };
    let of_nodes = filter(Filter::FamilyNameRegex(Bytes::from_static(b"nodes")));
    let of_both = filter(Filter::FamilyNameRegex(Bytes::from_static(b"nodes|sec.*")));
    assert_eq!(checked(unreadable(), TabletCall::Read(Some(&of_nodes))), Ok(BTreeSet::new()));
    assert_eq!(checked(unreadable(), TabletCall::Read(Some(&of_both))), DENIED);
    assert_eq!(checked(unreadable(), TabletCall::Read(None)), DENIED);
    assert_eq!(checked(unreadable(), TabletCall::Sample), DENIED);
    for call in [TabletCall::Read(None), TabletCall::Read(Some(&of_both)), TabletCall::Sample] {
        assert_eq!(checked(FamilyRights::default(), call), Ok(BTreeSet::new()));
    }
}

#[test]
fn a_predicate_is_a_read() {
    let unreadable = || FamilyRights { readable: nodes(), ..FamilyRights::default() };
    let of_nodes = filter(Filter::FamilyNameRegex(Bytes::from_static(b"nodes")));
    let mut request =
        wire::CheckRequest { then: vec![set("nodes")], otherwise: vec![set("secret")], ..Default::default() };
    assert_eq!(checked(unreadable(), TabletCall::Check(&mut request, None)), DENIED, "whether the row exists");
    let named = Ok(["nodes".to_owned(), "secret".to_owned()].into());
    let unwritable = FamilyRights { writable: nodes(), ..FamilyRights::default() };
    assert_eq!(checked(unwritable.clone(), TabletCall::Check(&mut request, None)), DENIED);
    request.otherwise = vec![set("nodes")];
    assert_eq!(checked(unwritable, TabletCall::Check(&mut request, None)), Ok(["nodes".to_owned()].into()));
    request.otherwise = vec![set("secret")];
    // Only families that something restricts are decoded.
    let both = FamilyRights { writable: FamilySet::Only([family("nodes"), family("secret")].into()), ..unreadable() };
    assert_eq!(checked(both, TabletCall::Check(&mut request, Some(&of_nodes))), named);
}

#[test]
fn writes_of_unwritable_families_are_refused() {
    let unwritable = || FamilyRights { writable: nodes(), ..FamilyRights::default() };
    let row = |mutations: Vec<Bytes>| wire::RowMutations { mutations, ..Default::default() };
    let mut rows = [row(vec![set("nodes")]), row(vec![Bytes::from_static(b"\xff")])];
    assert_eq!(checked(unwritable(), TabletCall::Write(&mut rows)), Ok(["nodes".to_owned()].into()));
    for refused in [set("secret"), mutation_to_bytes(&Mutation::DeleteRow)] {
        let mut rows = [row(vec![set("nodes")]), row(vec![refused])];
        assert_eq!(checked(unwritable(), TabletCall::Write(&mut rows)), DENIED);
    }
    let mut request = wire::ModifyRequest { rules: vec![add("nodes")], ..Default::default() };
    assert_eq!(checked(unwritable(), TabletCall::Modify(&mut request)), Ok(["nodes".to_owned()].into()));
    let unreadable = FamilyRights { readable: FamilySet::Only([family("secret")].into()), ..unwritable() };
    assert_eq!(checked(unreadable, TabletCall::Modify(&mut request)), DENIED, "its answer has the cell");
    request.rules = vec![add("secret")];
    assert_eq!(checked(unwritable(), TabletCall::Modify(&mut request)), DENIED);
}

#[test]
fn a_stored_answer_is_not_given_to_another_caller() {
    let of = |owner: &str, family: &str| {
        let token = Some(wire::IdempotencyToken { token: Bytes::from_static(b"token"), started_micros: Some(1) });
        let mut request = wire::ModifyRequest { rules: vec![add(family)], token, ..Default::default() };
        let scope = Scope::of_table(FamilyRights::default());
        TabletCall::Modify(&mut request).restrict(&scope, &table(), owner).unwrap();
        request.token.unwrap()
    };
    let one = of("certificate:m", "nodes");
    assert_eq!((&one, one.started_micros), (&of("certificate:m", "nodes"), Some(1)));
    assert_ne!(one, of("certificate:other", "nodes"));
    assert_ne!(one, of("certificate:m", "secret"));
}
