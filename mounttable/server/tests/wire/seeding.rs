//! What a new table begins with, by how its callers are authenticated; and that a restart changes nothing.

use std::sync::Arc;
use std::time::Duration;

use ebla_mounttable_server::server::{Server, ServerConfig};
use ebla_mounttable_server::service::bearer::{Issuer, TokenConfig, TokenVerifier};
use ebla_mounttable_server::service::identity::AuthMethod;
use ebla_mounttable_tree::file;
use ebla_mounttable_tree::store::cache::CacheOptions;
use ebla_mounttable_tree::store::memory::MemoryStore;
use ebla_mounttable_tree::store::system::SystemStore;
use ebla_mounttable_tree::table::TableOptions;
use ebla_mounttable_tree::{BlessingPattern, Permissions, Reason};
use ebla_proto::mounttable as wire;
use ebla_proto::mounttable::mount_table_admin_client::MountTableAdminClient;
use ebla_proto::mounttable::mount_table_client::MountTableClient;
use ebla_runtime::{Clock, Runtime};
use tonic::transport::Channel;
use tonic::{Code, Request};

use crate::secured;
use crate::world::{as_alice, by, mount, ok, permissions, refusal};

/// A server of the table in `memory`, as a process with this permissions file would start it.
async fn start(
    memory: &MemoryStore,
    identity: AuthMethod,
    superuser: Option<&str>,
    file: Option<&str>,
) -> (Server, MountTableClient<Channel>) {
    let runtime = Runtime { clock: Clock::manual(), ..secured::runtime() };
    let nodes = file.map(|text| file::parse(text, &Permissions::default()).unwrap()).unwrap_or_default();
    let config = ServerConfig {
        listen: "127.0.0.1:0".to_owned(),
        http_listen: None,
        table: "names".to_owned(),
        options: TableOptions::default(),
        identity,
        superusers: superuser.map(BlessingPattern::new).into_iter().collect(),
        sweep_period: Duration::ZERO,
        cache: CacheOptions::default(),
    };
    let store = SystemStore::new(memory.clone(), runtime.clone());
    let server = Server::start_seeded(config, nodes, store, runtime.clone()).await.unwrap();
    let names = MountTableClient::new(runtime.net.channel(server.address()));
    (server, names)
}

fn tokens() -> AuthMethod {
    let trust = TokenConfig {
        issuers: vec![Issuer {
            url: "https://login.example.org".to_owned(),
            keys: include_str!("../../testdata/tokens/keys.json").to_owned(),
        }],
        audience: "names".to_owned(),
    };
    AuthMethod::Bearer(Arc::new(TokenVerifier::new(&trust, Clock::manual()).unwrap()))
}

#[tokio::test]
async fn callers_without_a_token_have_no_rights_in_a_new_table() {
    let (_server, mut names) = start(&MemoryStore::default(), tokens(), Some("login.example.org:g:ops"), None).await;
    let refused = names.mount(Request::new(mount("a", "h:1", 60))).await;
    assert_eq!(refusal(refused), (Code::PermissionDenied, Reason::NoAccess));
    ok(names.mount(as_alice(mount("a", "h:1", 60))).await);
}

/// Nor in one that is destroyed and set up again without a permissions file.
#[tokio::test]
async fn callers_without_a_token_have_no_rights_in_a_table_that_is_set_up_again() {
    let superuser = Some("login.example.org:g:ops");
    let (server, mut names) = start(&MemoryStore::default(), tokens(), superuser, None).await;
    let mut admin = MountTableAdminClient::new(secured::runtime().net.channel(server.address()));
    let destroy = wire::DestroyRequest { table: "names".to_owned() };
    let refused = admin.destroy(Request::new(destroy.clone())).await;
    assert_eq!(refusal(refused), (Code::PermissionDenied, Reason::NoAccess));
    ok(admin.destroy(as_alice(destroy)).await);
    assert_eq!(ok(admin.setup(as_alice(wire::SetupRequest::default())).await).changed, 1);
    for refused in [
        refusal(names.mount(Request::new(mount("a", "h:1", 60))).await),
        refusal(names.set_permissions(Request::new(permissions("", r#"{"Admin":{"In":["..."]}}"#, ""))).await),
    ] {
        assert_eq!(refused, (Code::PermissionDenied, Reason::NoAccess));
    }
    ok(names.mount(as_alice(mount("a", "h:1", 60))).await);
}

#[tokio::test]
async fn a_table_for_development_is_open() {
    let (_server, mut names) = start(&MemoryStore::default(), AuthMethod::Development, None, None).await;
    ok(names.mount(by("alice", mount("a", "h:1", 60))).await);
}

#[tokio::test]
async fn a_restart_with_a_file_does_not_undo_a_revocation() {
    let memory = MemoryStore::default();
    let file = r#"{"": {"Read":{"In":["..."]}}, "a": {"Admin":{"In":["bob"]}}}"#;
    let (server, mut names) = start(&memory, AuthMethod::Development, Some("server"), Some(file)).await;
    ok(names.mount(by("bob", mount("a", "h:1", 60))).await);
    ok(names.set_permissions(by("server", permissions("a", r#"{"Admin":{"In":["carol"]}}"#, ""))).await);
    server.stop().await;
    let (_server, mut names) = start(&memory, AuthMethod::Development, Some("server"), Some(file)).await;
    let refused = names.mount(by("bob", mount("a", "h:2", 60))).await;
    assert_eq!(refusal(refused), (Code::PermissionDenied, Reason::NoAccess));
}
