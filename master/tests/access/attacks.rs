//! Identities, policies and lists, and the attacks that must be refused.

use ebla_model::Filter;
use ebla_proto::operate;
use ebla_proto::operate::operate_client::OperateClient;
use tonic::Code;

use super::*;

pub(super) const READER: &str = "roles/bigtable.reader";
pub(super) const USER: &str = "roles/bigtable.user";
pub(super) const ADMIN: &str = "roles/bigtable.admin";
pub(super) const FAMILY_READER: &str = "roles/ebla.familyReader";
const FAMILY_WRITER: &str = "roles/ebla.familyWriter";
pub(super) const FAMILY_ADMIN: &str = "roles/ebla.familyAdmin";
pub(super) const ALICE: &[&str] = &["subject:alice"];

pub(super) fn code<T>(answer: &Result<T, Status>) -> Code {
    answer.as_ref().map_or_else(Status::code, |_answer| Code::Ok)
}

pub(super) fn is_denied<T>(answer: &Result<T, Status>) -> bool {
    code(answer) == Code::PermissionDenied
}

pub(super) fn message<T: std::fmt::Debug>(answer: Result<T, Status>) -> String {
    answer.unwrap_err().message().to_owned()
}

/// A cluster with a table of two families and a row, and its administrator.
async fn cluster_with_table() -> (Guarded, TestCaller) {
    let cluster = Guarded::start().await;
    let root = cluster.caller("root");
    root.create_table("t", &["open", "secret"]).await.unwrap();
    root.write("t", "r", vec![set("open", "seen"), set("secret", "HIDDEN")]).await.unwrap();
    (cluster, root)
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_without_a_valid_token_are_refused_everywhere() {
    let (cluster, _root) = cluster_with_table().await;
    let with = |field: &str, value: Value| {
        let mut claims = claims("root");
        claims[field] = value;
        Some(token(&claims))
    };
    let good = token(&claims("root"));
    let altered = format!("{}A{}", &good[..good.len() - 10], &good[good.len() - 9..]);
    let secret = EncodingKey::from_secret(ED);
    let confused = encode(&Header::new(Algorithm::HS256), &claims("root"), &secret).unwrap();
    let bad = [
        None,
        Some(String::new()),
        with("exp", json!(1_000)),
        with("aud", json!("another")),
        with("iss", json!("https://evil.example.org")),
        Some(altered),
        Some(confused),
    ];
    for token in bad {
        let caller = cluster.with_token(token.clone());
        let filter = None;
        assert_eq!(code(&caller.read("t", filter).await), Code::Unauthenticated, "{token:?}");
        assert_eq!(code(&caller.write("t", "r", vec![set("open", "x")]).await), Code::Unauthenticated);
        assert_eq!(code(&caller.sample("t").await), Code::Unauthenticated);
        assert_eq!(code(&caller.policy(INSTANCE).await), Code::Unauthenticated);
        assert_eq!(code(&caller.test_permissions(INSTANCE, &[]).await), Code::Unauthenticated);
        let status = OperateClient::new(cluster.channel.clone()).status(operate::StatusRequest::default()).await;
        assert_eq!(code(&status), Code::Unauthenticated);
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn roles_grant_and_tables_are_not_revealed() {
    let (cluster, root) = cluster_with_table().await;
    let alice = cluster.caller("alice");
    // The same answer for a table that exists and for one that does not.
    for table in ["t", "missing"] {
        let hidden = |message: String| message.replace(&name(table), "TABLE");
        let read = hidden(message(alice.read(table, None).await));
        assert_eq!(read, "permission bigtable.tables.readRows is denied on TABLE, or the resource does not exist");
        assert!(is_denied(&alice.write(table, "r", vec![set("open", "x")]).await));
        assert!(is_denied(&alice.sample(table).await) && is_denied(&alice.policy(&name(table)).await));
        let get = admin::GetTableRequest { name: name(table), ..Default::default() };
        assert!(is_denied(&alice.tables().get_table(alice.request(get)).await));
        let drop = admin::DeleteTableRequest { name: name(table) };
        assert!(is_denied(&alice.tables().delete_table(alice.request(drop)).await));
        assert_eq!(alice.test_permissions(&name(table), &["bigtable.tables.readRows"]).await.unwrap(), [""; 0]);
    }
    assert!(is_denied(&alice.create_table("mine", &[]).await));
    let list = admin::ListInstancesRequest { parent: "projects/p".to_owned(), ..Default::default() };
    assert!(is_denied(&alice.instances().list_instances(alice.request(list)).await));
    let mut operator = OperateClient::new(cluster.channel.clone());
    assert!(is_denied(&operator.status(alice.request(operate::StatusRequest::default())).await));
    // A reader of the table.
    root.set_policy(&name("t"), &[(READER, ALICE)], Bytes::new()).await.unwrap();
    let read = within_a_second(async || alice.read("t", None).await, Result::is_ok).await.unwrap();
    assert_eq!(read.shown(), ["r open seen", "r secret HIDDEN"]);
    assert!(is_denied(&alice.write("t", "r", vec![set("open", "x")]).await));
    assert!(is_denied(&alice.check("t", "r", None, vec![set("open", "x")]).await));
    assert!(is_denied(&alice.append("t", "r", "open", None).await));
    let asked = ["bigtable.tables.readRows", "bigtable.tables.mutateRows", "unknown"];
    assert_eq!(alice.test_permissions(&name("t"), &asked).await.unwrap(), asked[..1]);
    // A user of the instance.
    root.set_policy(INSTANCE, &[(USER, ALICE)], Bytes::new()).await.unwrap();
    within_a_second(async || alice.write("t", "s", vec![set("open", "y")]).await, Result::is_ok).await.unwrap();
    assert_eq!(code(&alice.read("missing", None).await), Code::NotFound, "its caller may read all tables");
    // And no caller any more.
    root.set_policy(INSTANCE, &[], Bytes::new()).await.unwrap();
    root.set_policy(&name("t"), &[], Bytes::new()).await.unwrap();
    within_a_second(async || alice.read("t", None).await, is_denied).await.unwrap_err();
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn policies_have_etags() {
    let (cluster, root) = cluster_with_table().await;
    let empty = root.policy(INSTANCE).await.unwrap();
    assert_eq!((empty.version, empty.bindings.len(), empty.etag.len()), (0, 0, 3));
    let first = root.set_policy(INSTANCE, &[(READER, ALICE)], empty.etag.clone()).await.unwrap();
    assert_eq!(root.policy(INSTANCE).await.unwrap(), first);
    let stale = root.set_policy(INSTANCE, &[(USER, ALICE)], empty.etag).await;
    assert_eq!(code(&stale), Code::Aborted);
    assert_eq!(root.policy(INSTANCE).await.unwrap(), first, "nothing changed");
    root.set_policy(INSTANCE, &[(USER, ALICE)], first.etag).await.unwrap();
    for (role, member) in [("roles/owner", "subject:a"), (READER, "allUsers"), (FAMILY_READER, "subject:a")] {
        let wrong = root.set_policy(INSTANCE, &[(role, &[member])], Bytes::new()).await;
        assert_eq!(code(&wrong), Code::InvalidArgument, "{role} {member}");
    }
    assert_eq!(code(&root.policy(&name("missing")).await), Code::NotFound);
    assert_eq!(code(&root.policy(&family_name("t", "missing")).await), Code::NotFound);
    cluster.stop().await;
}

/// Alice is a user of the table, and the family `secret` has a list without her.
async fn cluster_with_list() -> (Guarded, TestCaller, TestCaller) {
    let (cluster, root) = cluster_with_table().await;
    let alice = cluster.caller("alice");
    root.set_policy(&family_name("t", "secret"), &[(FAMILY_ADMIN, &["subject:root"])], Bytes::new()).await.unwrap();
    root.set_policy(&name("t"), &[(USER, ALICE)], Bytes::new()).await.unwrap();
    within_a_second(async || alice.read("t", None).await, Result::is_ok).await.unwrap();
    (cluster, root, alice)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_hides_its_family() {
    let (cluster, root, alice) = cluster_with_list().await;
    root.write("t", "secret-row", vec![set("secret", "HIDDEN")]).await.unwrap();
    let read = alice.read("t", None).await.unwrap();
    assert_eq!(read.shown(), ["r open seen"], "the other row does not exist for her");
    let stats = read.stats.unwrap();
    assert_eq!((stats.rows_seen_count, stats.cells_seen_count), (1, 1), "counts reveal no hidden cell");
    // Predicates.
    let secret = Filter::FamilyNameRegex("secret".into());
    let hidden = Filter::ValueRegex("HIDDEN".into());
    for predicate in [Some(&secret), Some(&hidden)] {
        assert!(!alice.check("t", "r", predicate, vec![set("open", "leaked")]).await.unwrap());
    }
    assert!(!alice.check("t", "secret-row", None, vec![set("open", "leaked")]).await.unwrap());
    let condition = Filter::Condition {
        predicate: Box::new(hidden),
        then: Some(Box::new(Filter::PassAll)),
        otherwise: Some(Box::new(Filter::BlockAll)),
    };
    assert_eq!(alice.read("t", Some(&condition)).await.unwrap().shown(), [""; 0]);
    // Writes: the call as a whole, and nothing is applied. A family that does not exist is answered in the same way.
    for family in ["secret", "missing"] {
        let refused = message(alice.write("t", "r", vec![set("open", "x"), set(family, "x")]).await);
        let shown = refused.replace(family, "FAMILY");
        assert!(shown.contains("column family FAMILY is denied, or the family does not exist"), "{refused}");
        let many = [("r", vec![set("open", "x")]), ("z", vec![set(family, "x")])];
        assert!(is_denied(&alice.write_many("t", &many).await));
        assert!(is_denied(&alice.check("t", "r", None, vec![set(family, "x")]).await));
        assert!(is_denied(&alice.append("t", "r", family, None).await));
    }
    assert!(is_denied(&alice.write("t", "r", vec![delete_row()]).await), "it would delete hidden cells");
    assert!(is_denied(&alice.sample("t").await), "sizes and keys depend on hidden cells");
    assert_eq!(
        root.read("t", None).await.unwrap().shown(),
        ["r open seen", "r secret HIDDEN", "secret-row secret HIDDEN"]
    );
    assert_eq!(alice.write_many("t", &[("r", vec![set("open", "changed")])]).await.unwrap(), [0]);
    // Drops.
    root.set_policy(INSTANCE, &[(ADMIN, ALICE)], Bytes::new()).await.unwrap();
    within_a_second(async || alice.policy(INSTANCE).await, Result::is_ok).await.unwrap();
    let all = admin::drop_row_range_request::Target::DeleteAllDataFromTable(true);
    let drop = admin::DropRowRangeRequest { name: name("t"), target: Some(all) };
    assert!(is_denied(&alice.tables().drop_row_range(alice.request(drop)).await));
    let delete = admin::DeleteTableRequest { name: name("t") };
    assert!(is_denied(&alice.tables().delete_table(alice.request(delete)).await));
    let delete = admin::DeleteInstanceRequest { name: INSTANCE.to_owned() };
    assert!(is_denied(&alice.instances().delete_instance(alice.request(delete)).await));
    let change = |family: &str| {
        use admin::modify_column_families_request::{Modification, modification::Mod};
        let dropped = Modification { id: family.to_owned(), r#mod: Some(Mod::Drop(true)), ..Default::default() };
        admin::ModifyColumnFamiliesRequest { name: name("t"), modifications: vec![dropped], ..Default::default() }
    };
    assert!(is_denied(&alice.tables().modify_column_families(alice.request(change("secret"))).await));
    let list = family_name("t", "secret");
    assert!(is_denied(&alice.set_policy(&list, &[], Bytes::new()).await), "an admin of the table does not open a list");
    assert!(is_denied(&alice.set_policy(&list, &[(FAMILY_READER, ALICE)], Bytes::new()).await));
    alice.tables().modify_column_families(alice.request(change("open"))).await.unwrap();
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn read_modify_write_needs_both_rights_and_stored_answers_have_an_owner() {
    let (cluster, root, alice) = cluster_with_list().await;
    let list = family_name("t", "secret");
    let owner: (&str, &[&str]) = (FAMILY_ADMIN, &["subject:root"]);
    for role in [FAMILY_READER, FAMILY_WRITER] {
        root.set_policy(&list, &[owner, (role, ALICE)], Bytes::new()).await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(is_denied(&alice.append("t", "r", "secret", None).await), "{role} alone");
    }
    // The answer to another caller's call is not given away, whatever the token.
    let answer = root.append("t", "r", "secret", Some("token-of-root")).await.unwrap();
    assert!(contains(&answer, "HIDDEN"));
    assert_eq!(root.append("t", "r", "secret", Some("token-of-root")).await.unwrap(), answer, "it is stored");
    let other = alice.append("t", "r", "open", Some("token-of-root")).await.unwrap();
    assert!(!contains(&other, "HIDDEN") && contains(&other, "seen+"));
    // Nor the answer to an own call, after the right was lost.
    root.set_policy(&list, &[owner, (FAMILY_READER, ALICE), (FAMILY_WRITER, ALICE)], Bytes::new()).await.unwrap();
    let append = async || alice.append("t", "r", "secret", Some("token-of-alice")).await;
    assert!(contains(&within_a_second(append, Result::is_ok).await.unwrap(), "HIDDEN"));
    root.set_policy(&list, &[owner], Bytes::new()).await.unwrap();
    within_a_second(append, is_denied).await.unwrap_err();
    assert!(!contains(&alice.append("t", "r", "open", Some("token-of-alice")).await.unwrap(), "HIDDEN"));
    cluster.stop().await;
}

pub(super) fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_family_is_revoked_under_load() {
    let (cluster, root, alice) = cluster_with_list().await;
    let list = family_name("t", "secret");
    let (owner, granted): ((&str, &[&str]), _) = ((FAMILY_ADMIN, &["subject:root"]), (FAMILY_READER, ALICE));
    let sees = |answer: &Result<ReadResult, Status>| answer.as_ref().is_ok_and(|read| read.shown().len() == 2);
    for _round in 0..3 {
        root.set_policy(&list, &[owner, granted], Bytes::new()).await.unwrap();
        within_a_second(async || alice.read("t", None).await, sees).await.unwrap();
        let readers: Vec<_> = (0..4).map(|_| alice.clone()).collect();
        let revoked = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            root.set_policy(&list, &[owner], Bytes::new()).await.unwrap();
            tokio::time::sleep(Duration::from_secs(1)).await;
        };
        let reading = async |reader: TestCaller| {
            loop {
                // A read that meets the change is repeated by every client.
                let read = reader.read("t", None).await;
                assert!(matches!(code(&read), Code::Ok | Code::Unavailable), "{read:?}");
            }
        };
        let [a, b, c, d] = [0, 1, 2, 3].map(|index| reading(readers[index].clone()));
        tokio::select! {
            () = revoked => {}
            never = a => never, never = b => never, never = c => never, never = d => never,
        }
        for _read in 0..50 {
            assert!(!sees(&alice.read("t", None).await));
        }
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_in_progress_ends_when_a_family_is_revoked() {
    let (cluster, root, alice) = cluster_with_list().await;
    let list = family_name("t", "secret");
    let owner: (&str, &[&str]) = (FAMILY_ADMIN, &["subject:root"]);
    root.set_policy(&list, &[owner, (FAMILY_READER, ALICE)], Bytes::new()).await.unwrap();
    let sees = |answer: &Result<ReadResult, Status>| answer.as_ref().is_ok_and(|read| read.shown().len() == 2);
    within_a_second(async || alice.read("t", None).await, sees).await.unwrap();
    // More than the windows of a connection and the budget of prepared answers hold.
    let value = "HIDDEN".repeat(160_000);
    for row in 0..96 {
        root.write("t", &format!("row-{row:03}"), vec![set("secret", &value)]).await.unwrap();
    }
    let request = data::ReadRowsRequest { table_name: name("t"), ..Default::default() };
    let mut messages = alice.data().read_rows(alice.request(request)).await.unwrap().into_inner();
    assert!(messages.message().await.unwrap().is_some());
    root.set_policy(&list, &[owner], Bytes::new()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut later = 0;
    let ended = loop {
        match messages.message().await {
            Ok(Some(_message)) => later += 1,
            Ok(None) => panic!("the read went on to its end, {later} messages after the change"),
            Err(status) => break status,
        }
    };
    assert_eq!(ended.code(), Code::Unavailable, "{ended}");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_lists_hold_without_chubby() {
    let (cluster, _root, alice) = cluster_with_list().await;
    cluster.chubby.start_outage();
    assert_eq!(alice.read("t", None).await.unwrap().shown(), ["r open seen"]);
    assert!(is_denied(&alice.write("t", "r", vec![set("secret", "x")]).await));
    assert!(is_denied(&cluster.caller("bob").read("t", None).await));
    cluster.chubby.end_outage();
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_decided_is_recorded() {
    let (cluster, _root, alice) = cluster_with_list().await;
    alice.write("t", "r", vec![set("secret", "VALUE")]).await.unwrap_err();
    alice.write("t", "r", vec![set("open", "VALUE")]).await.unwrap();
    cluster.with_token(None).read("t", None).await.unwrap_err();
    let find = |method: &str, decision: &str| {
        let records = cluster.audit();
        records.into_iter().rfind(|record| record["method"] == method && record["decision"] == decision)
    };
    let mut waited = Duration::ZERO;
    while find("/google.bigtable.v2.Bigtable/ReadRows", "UNAUTHENTICATED").is_none() {
        assert!(waited < TIMEOUT, "no record");
        tokio::time::sleep(Duration::from_millis(10)).await;
        waited += Duration::from_millis(10);
    }
    let refused = find("MutateRow", "PERMISSION_DENIED").unwrap();
    assert_eq!((&refused["identity"], &refused["resource"]), (&json!("subject:alice"), &json!(name("t"))));
    assert_eq!(refused["request"], "r-1");
    assert!(refused["peer"].as_str().unwrap().starts_with("127.0.0.1:"));
    assert_eq!(find("MutateRow", "permitted").unwrap()["families"], json!(["open"]));
    let set = find("/google.bigtable.admin.v2.BigtableTableAdmin/SetIamPolicy", "permitted").unwrap();
    assert_eq!((&set["identity"], &set["resource"]), (&json!("subject:root"), &json!(name("t"))));
    let text = std::fs::read_to_string(cluster.folder.path().join("audit.log")).unwrap();
    assert!(!text.contains("VALUE") && !text.contains("HIDDEN") && !text.contains("eyJ"), "no values and no tokens");
    cluster.stop().await;
}
