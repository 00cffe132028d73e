//! Limits of identities: one caller beyond its limits is refused, and no other one.

use ebla_proto::admin::rpc;
use prost::Message as _;
use tonic::Code;

use super::attacks::{USER, code};
use super::*;

/// The delay that a refusal names.
fn delay(status: &Status) -> Duration {
    let details = rpc::Status::decode(status.details()).unwrap().details;
    let info = details.iter().find(|detail| detail.type_url.ends_with("google.rpc.RetryInfo")).unwrap();
    let info = rpc::RetryInfo::decode(info.value.as_slice()).unwrap();
    info.retry_delay.unwrap().try_into().unwrap()
}

async fn cluster_with(limits: IdentityLimits) -> (Guarded, TestCaller, [TestCaller; 2]) {
    let cluster = Guarded::start_with(limits).await;
    let root = cluster.caller("root");
    root.create_table("t", &["open"]).await.unwrap();
    root.write("t", "r", vec![set("open", "seen")]).await.unwrap();
    root.set_policy(&name("t"), &[(USER, &["subject:alice", "subject:bob"])], Bytes::new()).await.unwrap();
    let callers = ["alice", "bob"].map(|subject| cluster.caller(subject));
    tokio::time::sleep(Duration::from_secs(1)).await;
    (cluster, root, callers)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_beyond_its_rate_is_refused_alone() {
    let limits = IdentityLimits { requests: 5, ..IdentityLimits::default() };
    let (cluster, root, [alice, bob]) = cluster_with(limits).await;
    let refused = loop {
        if let Err(status) = alice.read("t", None).await {
            break status;
        }
    };
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    assert!(
        alice.policy(&name("t")).await.is_err_and(|status| status.code() == Code::ResourceExhausted),
        "admin calls too"
    );
    bob.read("t", None).await.unwrap();
    for _call in 0..20 {
        root.read("t", None).await.unwrap();
    }
    let delay = delay(&refused);
    assert!(delay > Duration::ZERO && delay <= Duration::from_millis(200), "{delay:?}");
    tokio::time::sleep(Duration::from_secs(1)).await;
    alice.read("t", None).await.unwrap();
    let records = cluster.audit();
    let of_limit =
        |record: &&Value| record["decision"] == "RESOURCE_EXHAUSTED" && record["identity"] == "subject:alice";
    assert!(records.iter().any(|record| of_limit(&record)));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_have_a_limit() {
    let limits = IdentityLimits { bytes: 100_000, ..IdentityLimits::default() };
    let (cluster, _root, [alice, bob]) = cluster_with(limits).await;
    alice.write("t", "r", vec![set("open", &"x".repeat(300_000))]).await.unwrap();
    let refused = alice.read("t", None).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(delay(&refused) > Duration::from_secs(1), "{:?}", delay(&refused));
    bob.read("t", None).await.unwrap();
    let refused = bob.read("t", None).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "the response counts too: {refused}");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_at_once_have_a_limit() {
    let limits = IdentityLimits { streams: 2, ..IdentityLimits::default() };
    let (cluster, root, [alice, bob]) = cluster_with(limits).await;
    // Reads that their caller does not receive: more than the windows of a connection hold.
    for row in 0..64 {
        root.write("t", &format!("row-{row:03}"), vec![set("open", &"x".repeat(1_000_000))]).await.unwrap();
    }
    let request = || data::ReadRowsRequest { table_name: name("t"), ..Default::default() };
    let first = bob.data().read_rows(bob.request(request())).await.unwrap();
    let second = bob.data().read_rows(bob.request(request())).await.unwrap();
    let third = bob.data().read_rows(bob.request(request())).await;
    assert_eq!(code(&third), Code::ResourceExhausted);
    assert!(alice.data().read_rows(alice.request(request())).await.is_ok());
    drop((first, second));
    within_a_second(async || bob.write("t", "r", vec![set("open", "x")]).await, Result::is_ok).await.unwrap();
    cluster.stop().await;
}
