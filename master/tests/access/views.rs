//! Authorized views: what they show, and attacks on what they hide.

use ebla_model::Filter;
use ebla_proto::admin::longrunning;
use ebla_proto::services::operations_client::OperationsClient;
use tonic::Code;

use super::attacks::{ADMIN, ALICE, FAMILY_ADMIN, READER, USER, code, contains, is_denied, message};
use super::*;

/// A table with hidden rows, columns and a hidden family, and a view of it of which Alice is a user. She has no right for the table.
async fn cluster_with_view() -> (Guarded, TestCaller, TestCaller) {
    let cluster = Guarded::start().await;
    let root = cluster.caller("root");
    let alice = cluster.caller("alice");
    root.create_table("t", &["open", "part", "secret"]).await.unwrap();
    let cells =
        vec![set("open", "seen"), set("part", "seen"), set_column("part", "h", "HIDDEN"), set("secret", "HIDDEN")];
    root.write("t", "a1", cells.clone()).await.unwrap();
    root.write("t", "hidden", cells).await.unwrap();
    root.create_view("t/v", &["a"], &["open:", "part:q"]).await.unwrap();
    root.set_policy(&view_name("t/v"), &[(USER, ALICE)], Bytes::new()).await.unwrap();
    within_a_second(async || alice.read("t/v", None).await, Result::is_ok).await.unwrap();
    (cluster, root, alice)
}

const VISIBLE: [&str; 2] = ["a1 open seen", "a1 part seen"];

fn is_outside<T: std::fmt::Debug>(answer: Result<T, Status>) -> bool {
    is_denied(&answer) && message(answer).contains("outside the Authorized View")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_view_shows_its_subset_only() {
    let (cluster, root, alice) = cluster_with_view().await;
    let read = alice.read("t/v", None).await.unwrap();
    assert_eq!(read.shown(), VISIBLE);
    let stats = read.stats.unwrap();
    assert_eq!((stats.rows_seen_count, stats.cells_seen_count), (1, 2), "counts reveal nothing hidden");
    assert!(is_denied(&alice.read("t", None).await) && is_denied(&alice.sample("t").await));
    // Predicates and filters see the subset.
    let hidden = Filter::ValueRegex("HIDDEN".into());
    for filter in [&hidden, &Filter::FamilyNameRegex("secret".into()), &Filter::ColumnQualifierRegex("h".into())] {
        assert_eq!(alice.read("t/v", Some(filter)).await.unwrap().shown(), [""; 0]);
        assert!(!alice.check("t/v", "a1", Some(filter), vec![set("open", "leaked")]).await.unwrap());
    }
    assert!(!alice.check("t/v", "a2", None, vec![set("open", "leaked")]).await.unwrap(), "no such row");
    assert!(is_outside(alice.check("t/v", "hidden", None, vec![set("open", "leaked")]).await));
    // An administrator sees no more through it.
    assert_eq!(root.read("t/v", None).await.unwrap().shown(), VISIBLE);
    // Samples: nothing about tablets, whose ends and sizes depend on all columns.
    assert_eq!(alice.sample("t/v").await.unwrap(), [("a".into(), 0), (Bytes::new(), 0)]);
    root.create_view("t/rows", &["h"], &["open:", "part:", "secret:"]).await.unwrap();
    let samples = root.sample("t/rows").await.unwrap();
    assert_eq!(samples, [("hidden".into(), 0), (Bytes::new(), 0)], "the tablet is larger than the view: no size");
    root.create_view("t/other", &["b"], &["open:", "part:", "secret:"]).await.unwrap();
    assert_eq!(root.sample("t/other").await.unwrap(), [(Bytes::new(), 0)], "keys outside are no samples");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_outside_a_view_are_refused_and_nothing_is_applied() {
    let (cluster, root, alice) = cluster_with_view().await;
    // A family outside is answered as one that does not exist.
    for family in ["secret", "missing"] {
        let refused = message(alice.write("t/v", "a1", vec![set("open", "x"), set(family, "x")]).await);
        assert_eq!(
            refused.replace(family, "FAMILY").replace(&name("t"), "TABLE"),
            "a column of column family FAMILY is outside the Authorized View TABLE/authorizedViews/v"
        );
        assert!(is_outside(alice.append("t/v", "a1", family, None).await));
        assert!(is_outside(alice.check("t/v", "a1", None, vec![set(family, "x")]).await));
    }
    let outside = [set_column("part", "h", "x"), delete_family("part"), delete_family("secret"), delete_row()];
    for mutation in outside {
        assert!(is_outside(alice.write("t/v", "a1", vec![set("open", "x"), mutation.clone()]).await));
        let many = [("a1", vec![set("open", "x")]), ("a2", vec![mutation])];
        assert!(is_outside(alice.write_many("t/v", &many).await));
    }
    assert!(is_outside(alice.write("t/v", "hidden", vec![set("open", "x")]).await));
    assert!(is_outside(
        alice.write_many("t/v", &[("a1", vec![set("open", "x")]), ("b", vec![set("open", "x")])]).await
    ));
    assert!(is_outside(alice.append("t/v", "hidden", "open", None).await));
    assert_eq!(root.read("t", None).await.unwrap().cells.len(), 8, "nothing was applied");
    assert_eq!(root.read("t/v", None).await.unwrap().shown(), VISIBLE);
    // Inside.
    alice.write("t/v", "a2", vec![set("open", "new"), set("part", "new")]).await.unwrap();
    assert_eq!(alice.write_many("t/v", &[("a2", vec![delete_family("open")])]).await.unwrap(), [0]);
    assert!(contains(&alice.append("t/v", "a2", "part", None).await.unwrap(), "new+"));
    assert_eq!(alice.read("t/v", None).await.unwrap().cells.len(), 4, "two versions of the appended cell");
    // A reader writes nothing.
    root.set_policy(&view_name("t/v"), &[(READER, ALICE)], Bytes::new()).await.unwrap();
    within_a_second(async || alice.write("t/v", "a1", vec![set("open", "x")]).await, is_denied).await.unwrap_err();
    assert!(is_denied(&alice.check("t/v", "a1", None, vec![set("open", "x")]).await));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_view_is_not_widened_by_those_who_have_it_alone() {
    let (cluster, root, alice) = cluster_with_view().await;
    root.set_policy(&view_name("t/v"), &[(ADMIN, ALICE)], Bytes::new()).await.unwrap();
    within_a_second(async || alice.policy(&view_name("t/v")).await, Result::is_ok).await.unwrap();
    let update = |rows: &[&str], columns: &[&str]| admin::UpdateAuthorizedViewRequest {
        authorized_view: Some(view_message(&view_name("t/v"), rows, columns)),
        ..Default::default()
    };
    let widened = || update(&[""], &["open:", "secret:"]);
    assert!(is_denied(&alice.tables().update_authorized_view(alice.request(widened())).await));
    let delete = || admin::DeleteAuthorizedViewRequest { name: view_name("t/v"), ..Default::default() };
    assert!(is_denied(&alice.tables().delete_authorized_view(alice.request(delete())).await));
    assert!(is_denied(&alice.create_view("t/w", &[""], &["secret:"]).await));
    let list = || admin::ListAuthorizedViewsRequest { parent: name("t"), ..Default::default() };
    assert!(is_denied(&alice.tables().list_authorized_views(alice.request(list())).await));
    assert!(is_denied(&alice.policy(&name("t")).await) && is_denied(&alice.read("t", None).await));
    let asked = ["bigtable.authorizedViews.readRows", "bigtable.authorizedViews.update", "bigtable.tables.readRows"];
    assert_eq!(alice.test_permissions(&view_name("t/v"), &asked).await.unwrap(), asked[..1]);
    // She may let others in, to what she sees.
    let bob = cluster.caller("bob");
    alice.set_policy(&view_name("t/v"), &[(ADMIN, ALICE), (READER, &["subject:bob"])], Bytes::new()).await.unwrap();
    let read = within_a_second(async || bob.read("t/v", None).await, Result::is_ok).await.unwrap();
    assert_eq!(read.shown(), VISIBLE);
    // Those who have no right learn nothing, also not whether there is a view.
    let eve = cluster.caller("eve");
    let refused = |view: &'static str| {
        let eve = eve.clone();
        async move { message(eve.read(view, None).await).replace(&view_name(view), "VIEW") }
    };
    assert_eq!(refused("t/v").await, refused("missing/v").await);
    assert_eq!(refused("t/v").await, refused("t/missing").await);
    let get = |view: &str| admin::GetAuthorizedViewRequest { name: view_name(view), ..Default::default() };
    for view in ["t/v", "t/missing", "missing/v"] {
        assert!(is_denied(&eve.tables().get_authorized_view(eve.request(get(view))).await));
        assert!(is_denied(&eve.sample(view).await) && is_denied(&eve.policy(&view_name(view)).await));
        assert!(is_denied(&eve.write(view, "a1", vec![set("open", "x")]).await));
    }
    // Narrower within a second, and wider for those whose right is for the table.
    root.tables().update_authorized_view(root.request(update(&["a"], &["open:"]))).await.unwrap();
    let is_narrow = |answer: &Result<ReadResult, Status>| answer.as_ref().is_ok_and(|read| read.cells.len() == 1);
    within_a_second(async || alice.read("t/v", None).await, is_narrow).await.unwrap();
    // Deleted, and created again: the policy of the former one is gone.
    root.tables().delete_authorized_view(root.request(delete())).await.unwrap();
    within_a_second(async || alice.read("t/v", None).await, is_denied).await.unwrap_err();
    root.create_view("t/v", &["a"], &["open:"]).await.unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(is_denied(&alice.read("t/v", None).await));
    assert_eq!(code(&root.read("t/missing", None).await), Code::NotFound);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_of_families_restrict_views_and_stored_answers_belong_to_one() {
    let (cluster, root, alice) = cluster_with_view().await;
    // The same token through another view, or for the table, gets no stored answer.
    root.set_policy(&name("t"), &[(USER, ALICE)], Bytes::new()).await.unwrap();
    let append = async || alice.append("t", "a1", "secret", Some("token-of-alice")).await;
    assert!(contains(&within_a_second(append, Result::is_ok).await.unwrap(), "HIDDEN"));
    root.set_policy(&name("t"), &[], Bytes::new()).await.unwrap();
    within_a_second(append, is_denied).await.unwrap_err();
    assert!(is_outside(alice.append("t/v", "a1", "secret", Some("token-of-alice")).await));
    assert!(!contains(&alice.append("t/v", "a1", "open", Some("token-of-alice")).await.unwrap(), "HIDDEN"));
    // A list without her.
    let owner: &[(&str, &[&str])] = &[(FAMILY_ADMIN, &["subject:root"])];
    root.set_policy(&family_name("t", "open"), owner, Bytes::new()).await.unwrap();
    let is_restricted = |answer: &Result<ReadResult, Status>| {
        answer.as_ref().is_ok_and(|read| read.shown().iter().all(|cell| cell.contains(" part ")))
    };
    within_a_second(async || alice.read("t/v", None).await, is_restricted).await.unwrap();
    assert!(is_denied(&alice.write("t/v", "a1", vec![set("open", "x")]).await));
    alice.write("t/v", "a1", vec![set("part", "x")]).await.unwrap();
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_in_progress_ends_when_its_view_is_narrowed() {
    let (cluster, root, alice) = cluster_with_view().await;
    // More than the windows of a connection and the budget of prepared answers hold.
    let value = "seen".repeat(240_000);
    for row in 0..96 {
        root.write("t", &format!("a-{row:03}"), vec![set("open", &value)]).await.unwrap();
    }
    let request = data::ReadRowsRequest { authorized_view_name: view_name("t/v"), ..Default::default() };
    let mut messages = alice.data().read_rows(alice.request(request)).await.unwrap().into_inner();
    assert!(messages.message().await.unwrap().is_some());
    let narrow = admin::UpdateAuthorizedViewRequest {
        authorized_view: Some(view_message(&view_name("t/v"), &["a1"], &["part:q"])),
        ..Default::default()
    };
    root.tables().update_authorized_view(root.request(narrow)).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let ended = loop {
        match messages.message().await {
            Ok(Some(_message)) => {}
            Ok(None) => panic!("the read went on to its end"),
            Err(status) => break status,
        }
    };
    assert_eq!(ended.code(), Code::Unavailable, "{ended}");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn views_are_administered() {
    let (cluster, root, _alice) = cluster_with_view().await;
    assert_eq!(code(&root.create_view("t/v", &["b"], &["open:"]).await), Code::AlreadyExists);
    assert_eq!(
        code(&root.create_view("t/w", &["b"], &["missing:"]).await),
        Code::NotFound,
        "a family that does not exist"
    );
    assert_eq!(code(&root.create_view("missing/w", &["b"], &["open:"]).await), Code::NotFound);
    assert_eq!(code(&root.create_view("t/-w", &["b"], &["open:"]).await), Code::InvalidArgument);
    root.create_view("t/w", &["b"], &["open:"]).await.unwrap();
    let list = admin::ListAuthorizedViewsRequest { parent: name("t"), page_size: 1, ..Default::default() };
    let page = root.tables().list_authorized_views(root.request(list.clone())).await.unwrap().into_inner();
    assert_eq!(page.authorized_views, [admin::AuthorizedView { name: view_name("t/v"), ..Default::default() }]);
    let next = admin::ListAuthorizedViewsRequest { page_token: page.next_page_token, ..list };
    let page = root.tables().list_authorized_views(root.request(next)).await.unwrap().into_inner();
    assert_eq!((page.authorized_views[0].name.clone(), page.next_page_token), (view_name("t/w"), String::new()));
    let get = |view: admin::authorized_view::ResponseView| {
        let request = admin::GetAuthorizedViewRequest { name: view_name("t/w"), view: view.into() };
        let root = root.clone();
        async move { root.tables().get_authorized_view(root.request(request)).await.map(Response::into_inner) }
    };
    let full = get(admin::authorized_view::ResponseView::Full).await.unwrap();
    assert_eq!(full.authorized_view, view_message("", &["b"], &["open:"]).authorized_view);
    let basic = get(admin::authorized_view::ResponseView::Unspecified).await.unwrap();
    assert_eq!(basic, admin::AuthorizedView { authorized_view: None, ..full.clone() });
    // Protection, with an etag and a mask.
    let protect = |etag: &str, deletion_protection: bool| admin::UpdateAuthorizedViewRequest {
        authorized_view: Some(admin::AuthorizedView {
            name: view_name("t/w"),
            etag: etag.to_owned(),
            deletion_protection,
            ..Default::default()
        }),
        update_mask: Some(prost_types::FieldMask { paths: vec!["deletion_protection".to_owned()] }),
        ..Default::default()
    };
    let stale = root.tables().update_authorized_view(root.request(protect("1", true))).await;
    assert_eq!(code(&stale), Code::Aborted);
    let operation =
        root.tables().update_authorized_view(root.request(protect(&full.etag, true))).await.unwrap().into_inner();
    assert!(operation.done && operation.name.starts_with(&format!("operations/{}/", view_name("t/w"))));
    let mut operations = OperationsClient::new(cluster.channel.clone());
    let get = longrunning::GetOperationRequest { name: operation.name.clone() };
    assert_eq!(operations.get_operation(root.request(get)).await.unwrap().into_inner(), operation);
    let delete = |name: String| admin::DeleteAuthorizedViewRequest { name, ..Default::default() };
    let refused = root.tables().delete_authorized_view(root.request(delete(view_name("t/w")))).await;
    assert_eq!(code(&refused), Code::FailedPrecondition);
    let drop = || admin::DeleteTableRequest { name: name("t") };
    assert_eq!(code(&root.tables().delete_table(root.request(drop())).await), Code::FailedPrecondition);
    let whole = admin::DeleteInstanceRequest { name: INSTANCE.to_owned() };
    assert_eq!(code(&root.instances().delete_instance(root.request(whole)).await), Code::FailedPrecondition);
    assert_eq!(root.read("t/v", None).await.unwrap().shown(), VISIBLE, "nothing was deleted");
    root.tables().update_authorized_view(root.request(protect("", false))).await.unwrap();
    root.tables().delete_table(root.request(drop())).await.unwrap();
    // A table of the same name has no view.
    root.create_table("t", &["open"]).await.unwrap();
    let list = admin::ListAuthorizedViewsRequest { parent: name("t"), ..Default::default() };
    let page = root.tables().list_authorized_views(root.request(list)).await.unwrap().into_inner();
    assert_eq!(page.authorized_views, []);
    assert_eq!(code(&root.read("t/v", None).await), Code::NotFound);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn views_hold_without_chubby() {
    let (cluster, _root, alice) = cluster_with_view().await;
    cluster.chubby.start_outage();
    assert_eq!(alice.read("t/v", None).await.unwrap().shown(), VISIBLE);
    assert!(is_outside(alice.write("t/v", "a1", vec![set("secret", "x")]).await));
    assert!(is_denied(&cluster.caller("bob").read("t/v", None).await));
    cluster.chubby.end_outage();
    cluster.stop().await;
}
