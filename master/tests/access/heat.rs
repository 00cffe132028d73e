//! Key heat shows keys: to callers who may read all of a table.

use ebla_model::heat::HeatOption;
use ebla_proto::operate;
use ebla_proto::operate::operate_client::OperateClient;
use tonic::Code;

use super::attacks::{ALICE, FAMILY_ADMIN, FAMILY_READER, READER, code, is_denied};
use super::*;

const VIEWER: &str = "roles/bigtable.viewer";

impl TestCaller {
    async fn key_heat(&self, table: &str) -> Result<operate::GetKeyHeatReply, Status> {
        let request = operate::GetKeyHeatRequest { table: table.to_owned(), ..Default::default() };
        let mut client = OperateClient::new(self.channel.clone());
        client.get_key_heat(self.request(request)).await.map(Response::into_inner)
    }

    async fn hot_tablets(&self) -> Result<admin::ListHotTabletsResponse, Status> {
        let clusters = admin::ListClustersRequest { parent: INSTANCE.to_owned(), ..Default::default() };
        let root = TestCaller { channel: self.channel.clone(), token: Some(token(&claims("root"))) };
        let clusters = root.instances().list_clusters(root.request(clusters)).await?.into_inner().clusters;
        let request =
            admin::ListHotTabletsRequest { parent: clusters.first().unwrap().name.clone(), ..Default::default() };
        self.instances().list_hot_tablets(self.request(request)).await.map(Response::into_inner)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn key_heat_is_shown_to_readers_of_the_whole_table() {
    let cluster = Guarded::start_of(IdentityLimits::default(), HeatOption::Every(Duration::from_millis(500))).await;
    let [root, alice, bob, eve] = ["root", "alice", "bob", "eve"].map(|subject| cluster.caller(subject));
    root.create_table("t", &["open", "secret"]).await.unwrap();
    let members: [(&str, &[&str]); 2] = [(READER, ALICE), (VIEWER, &["subject:bob"])];
    root.set_policy(&name("t"), &members, Bytes::new()).await.unwrap();
    let counted = async {
        loop {
            root.write("t", "r", vec![set("open", "seen")]).await.unwrap();
            match root.key_heat(&name("t")).await {
                Ok(heat) if !heat.columns.is_empty() => return heat,
                Ok(_) => {}
                Err(status) => assert_eq!(status.code(), Code::FailedPrecondition, "{status}"),
            }
        }
    };
    let heat = tokio::time::timeout(TIMEOUT, counted).await.unwrap();
    assert!(heat.columns.iter().flat_map(|column| &column.values).sum::<u64>() > 0);

    within_a_second(async || alice.key_heat(&name("t")).await, Result::is_ok).await.unwrap();
    assert!(is_denied(&bob.key_heat(&name("t")).await), "a viewer sees no keys");
    assert!(is_denied(&eve.key_heat(&name("t")).await));
    assert!(is_denied(&eve.key_heat(&name("missing")).await), "no caller without rights learns what exists");
    assert_eq!(code(&cluster.with_token(None).key_heat(&name("t")).await), Code::Unauthenticated);
    // A row may have cells of the hidden family alone.
    root.set_policy(&family_name("t", "secret"), &[(FAMILY_ADMIN, &["subject:root"])], Bytes::new()).await.unwrap();
    within_a_second(async || alice.key_heat(&name("t")).await, is_denied).await.unwrap_err();

    // Hot tablets are of all tables of an instance.
    assert!(is_denied(&alice.hot_tablets().await), "the role is for the table");
    let members: [(&str, &[&str]); 2] = [(READER, ALICE), (VIEWER, &["subject:bob"])];
    root.set_policy(INSTANCE, &members, Bytes::new()).await.unwrap();
    within_a_second(async || alice.hot_tablets().await, Result::is_ok).await.unwrap();
    // Alice may read all of one table, and of the other one all but a family.
    root.create_table("u", &["open"]).await.unwrap();
    let tables = |answer: admin::ListHotTabletsResponse| {
        let names = answer.hot_tablets.into_iter().map(|hot| (hot.table_name, hot.start_key, hot.end_key));
        names.collect::<std::collections::BTreeSet<_>>()
    };
    let shown = |table: &str| (name(table), String::new(), String::new());
    let both = async {
        loop {
            for number in 0..20 {
                root.write("t", &format!("r{number}"), vec![set("open", "seen")]).await.unwrap();
                root.write("u", &format!("r{number}"), vec![set("open", "seen")]).await.unwrap();
            }
            let of_root = tables(root.hot_tablets().await.unwrap());
            if of_root.len() >= 2 {
                return of_root;
            }
        }
    };
    let of_root = tokio::time::timeout(TIMEOUT, both).await.unwrap();
    assert_eq!(of_root, [shown("t"), shown("u")].into(), "boundaries of tablets, no keys of rows");
    let of_alice = within_a_second(async || alice.hot_tablets().await, Result::is_ok).await.unwrap();
    assert_eq!(tables(of_alice), [shown("u")].into(), "a family of the other table is hidden");
    root.set_policy(&family_name("t", "secret"), &[(FAMILY_READER, ALICE)], Bytes::new()).await.unwrap();
    let sees_both = |answer: &Result<admin::ListHotTabletsResponse, Status>| {
        answer.as_ref().is_ok_and(|answer| tables(answer.clone()).len() == 2)
    };
    within_a_second(async || alice.hot_tablets().await, sees_both).await.unwrap();
    assert!(is_denied(&bob.hot_tablets().await));
    assert_eq!(
        alice.test_permissions(INSTANCE, &["bigtable.hotTablets.list"]).await.unwrap(),
        ["bigtable.hotTablets.list"]
    );

    // The stored keys of all tables are for no caller.
    let system = ebla_model::TableName::heat().to_string();
    for caller in [&root, &alice, &eve] {
        let request = data::ReadRowsRequest { table_name: system.clone(), ..Default::default() };
        let read = caller.data().read_rows(caller.request(request)).await;
        assert!(matches!(code(&read), Code::InvalidArgument | Code::PermissionDenied), "{:?}", code(&read));
        assert_ne!(code(&caller.key_heat(&system).await), Code::Ok);
    }
    cluster.stop().await;
}
