//! `/healthz`, and the same state over gRPC.

use ebla_proto::health::HealthCheckRequest;
use ebla_proto::health::health_check_response::ServingStatus;
use ebla_proto::health::health_client::HealthClient;
use ebla_proto::mounttable as wire;
use http::StatusCode;
use serde_json::json;
use tonic::Code;

use crate::gateway::client::{Answer, ask};
use crate::world::{TABLE, World, by, ok};

/// The answer as soon as it has this status.
async fn when(world: &World, status: StatusCode) -> Answer {
    let wait = async {
        loop {
            let answer = ask(world, "", "GET", "/healthz", "").await;
            if answer.status == status {
                return answer;
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(60), wait).await.expect("within a generous time")
}

#[tokio::test]
async fn a_server_is_healthy_while_it_can_read_its_table() {
    let world = World::start().await;
    let answer = when(&world, StatusCode::OK).await;
    assert_eq!(answer.json(), json!({"status": "SERVING"}));
    let mut client = HealthClient::new(world.runtime.net.channel(world.server.address()));
    let request = |service: &str| HealthCheckRequest { service: service.to_owned() };
    for service in ["", "mounttable.v1.MountTable", "mounttable.v1.MountTableAdmin"] {
        assert_eq!(ok(client.check(request(service)).await).status(), ServingStatus::Serving, "{service:?}");
    }
    let unknown = client.check(request("mounttable.v1.Mail")).await.unwrap_err();
    assert_eq!(unknown.code(), Code::NotFound);
    let mut watched = ok(client.watch(request("")).await);
    assert_eq!(watched.message().await.unwrap().unwrap().status(), ServingStatus::Serving);
    ok(world.admin().destroy(by("server", wire::DestroyRequest { table: TABLE.to_owned() })).await);
    let answer = when(&world, StatusCode::SERVICE_UNAVAILABLE).await;
    let body: serde_json::Value = serde_json::from_str(&answer.body).unwrap();
    assert_eq!(body, json!({"status": "NOT_SERVING", "reason": "NO_SUCH_NAME_ROOT"}));
    assert_eq!(ok(client.check(request("")).await).status(), ServingStatus::NotServing);
    assert_eq!(watched.message().await.unwrap().unwrap().status(), ServingStatus::NotServing);
}
