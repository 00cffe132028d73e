//! Errors for programs: a code, and a reason in the details.

use std::sync::Arc;

use ebla_mounttable_server::service::bearer::{Issuer, TokenConfig, TokenVerifier};
use ebla_mounttable_server::service::identity::AuthMethod;
use ebla_mounttable_tree::Reason;
use ebla_mounttable_tree::messages::BEARER_HEADER;
use ebla_proto::mounttable as wire;
use ebla_runtime::Clock;
use tonic::{Code, Status};

use crate::world::{World, by, mount, ok, permissions, refusal};

/// T005 T019 T048 T050 T119, and the others of unary calls.
#[tokio::test]
async fn each_refusal_has_its_code_and_its_reason() {
    let world = World::start().await;
    world.mount("bob", "a/b", "h:1", 60).await;
    world.mount("bob", "table", "h:1", 60).await;
    world.write_permissions("bob", "closed", r#"{"Admin":{"In":["bob"]}}"#).await;
    let long = "x".repeat(513);
    let names: [&str; 6] = [&long, "a/..", ".", "__debug", "a\u{7}", &"x/".repeat(65)];
    for name in names {
        let refused = world.names().mount(by("bob", mount(name, "h:1", 1))).await;
        assert_eq!(refusal(refused), (Code::InvalidArgument, Reason::BadName), "{name}");
        assert_eq!(refusal(world.resolve("bob", name).await), (Code::InvalidArgument, Reason::BadName), "{name}");
    }
    let (wrong, denied) = (Code::InvalidArgument, Code::PermissionDenied);
    let leaf_table = wire::MountRequest { serves_mount_table: true, is_leaf: true, ..mount("c", "h:1", 1) };
    let other_sort = wire::MountRequest { is_leaf: true, ..mount("table", "h:2", 1) };
    let mounts = [
        ("bob", mount("c", "h", 1), wrong, Reason::BadAddress),
        ("bob", mount("c", "/@following the equator:8000@@@", 1), wrong, Reason::BadAddress),
        ("bob", leaf_table, wrong, Reason::BadRequest),
        ("bob", other_sort, Code::FailedPrecondition, Reason::FlagsConflict),
        ("bob", mount("table/below", "h:1", 1), Code::FailedPrecondition, Reason::ShadowedByMount),
        ("alice", mount("closed", "h:1", 1), denied, Reason::NoAccess),
        ("alice", mount("closed/below", "h:1", 1), denied, Reason::NoAccess),
        ("bob", mount("", "h:1", 1), denied, Reason::NoAccess),
    ];
    for (caller, request, code, reason) in mounts {
        let shown = format!("{caller} {request:?}");
        assert_eq!(refusal(world.names().mount(by(caller, request)).await), (code, reason), "{shown}");
    }
    assert_eq!(refusal(world.resolve("bob", "").await), (Code::NotFound, Reason::NoSuchNameRoot));
    assert_eq!(refusal(world.resolve("alice", "closed/x").await), (denied, Reason::NoAccess));
    let delete = wire::DeleteRequest { subtree: true, ..wire::DeleteRequest::default() };
    let refused = world.names().delete(by("server", delete)).await;
    assert_eq!(refusal(refused), (Code::FailedPrecondition, Reason::Root));
    let glob = wire::GlobRequest { receiver: String::new(), pattern: "a//b".to_owned() };
    assert_eq!(refusal(world.names().glob(by("bob", glob)).await), (wrong, Reason::BadPattern));
    let mut unknown = permissions("a", "{}", "");
    unknown.permissions = Some(wire::Permissions { lists: [("Fly".to_owned(), wire::AccessList::default())].into() });
    let refused = world.names().set_permissions(by("bob", unknown)).await;
    assert_eq!(refusal(refused), (wrong, Reason::BadPermissions));
    let nobody = by("...", wire::WhoAmIRequest {});
    assert_eq!(refusal(world.names().who_am_i(nobody).await), (wrong, Reason::BadName), "no name of a caller");
}

/// T039 T059
#[tokio::test]
async fn limits_of_users_are_independent() {
    let world = World::start().await;
    for at in 0..10 {
        world.mount("bob", &at.to_string(), "h:1", 60).await;
    }
    let refused = world.names().mount(by("bob", mount("one-more", "h:1", 60))).await;
    assert_eq!(refusal(refused), (Code::ResourceExhausted, Reason::NodeQuota));
    for port in 2..=6 {
        world.mount("bob", "0", &format!("h:{port}"), 60).await;
    }
    let refused = world.names().mount(by("bob", mount("0", "h:7", 60))).await;
    assert_eq!(refusal(refused), (Code::ResourceExhausted, Reason::ServerQuota));
    world.mount("bob", "0", "h:6", 60).await;
}

/// A server without an authentication method refuses every caller.
#[tokio::test]
async fn unauthenticated_callers_are_refused_every_call() {
    let world = World::with(AuthMethod::RefuseAll).await;
    let (mut names, mut admin) = (world.names(), world.admin());
    fn seen<T>(answer: Result<T, Status>) -> bool {
        refusal(answer) == (Code::PermissionDenied, Reason::NoAccess)
    }
    let nothing = || tokio_stream::iter(Vec::<wire::KeepMountedRequest>::new());
    let refused = [
        seen(names.resolve_step(by("server", wire::ResolveStepRequest::default())).await),
        seen(names.resolve(by("server", wire::ResolveRequest::default())).await),
        seen(names.batch_resolve(by("server", wire::BatchResolveRequest::default())).await),
        seen(names.mount(by("server", mount("a", "h:1", 1))).await),
        seen(names.keep_mounted(by("server", nothing())).await),
        seen(names.unmount(by("server", wire::UnmountRequest::default())).await),
        seen(names.delete(by("server", wire::DeleteRequest::default())).await),
        seen(names.glob(by("server", wire::GlobRequest::default())).await),
        seen(names.watch(by("server", wire::WatchRequest::default())).await),
        seen(names.get_permissions(by("server", wire::GetPermissionsRequest::default())).await),
        seen(names.set_permissions(by("server", permissions("", "{}", ""))).await),
        seen(names.test_permissions(by("server", wire::TestPermissionsRequest::default())).await),
        seen(names.get_node(by("server", wire::GetNodeRequest::default())).await),
        seen(names.who_am_i(by("server", wire::WhoAmIRequest {})).await),
        seen(admin.setup(by("server", wire::SetupRequest::default())).await),
        seen(admin.destroy(by("server", wire::DestroyRequest::default())).await),
    ];
    assert!(refused.iter().all(|is_refused| *is_refused), "{refused:?}");
}

/// A server that verifies tokens believes nothing else; a caller without a token has no names.
#[tokio::test]
async fn a_token_is_proof_and_a_header_of_names_is_none() {
    let trust = TokenConfig {
        issuers: vec![Issuer {
            url: "https://login.example.org".to_owned(),
            keys: include_str!("../../testdata/tokens/keys.json").to_owned(),
        }],
        audience: "names".to_owned(),
    };
    let bearer = TokenVerifier::new(&trust, Clock::manual()).unwrap();
    let world = World::with(AuthMethod::Bearer(Arc::new(bearer))).await;
    let who = async |header: Option<&str>| {
        let mut request = by("server", wire::WhoAmIRequest {});
        if let Some(header) = header {
            request.metadata_mut().insert(BEARER_HEADER, header.parse().unwrap());
        }
        world.names().who_am_i(request).await
    };
    let token = format!("Bearer {}", include_str!("../../testdata/tokens/alice.jwt").trim());
    assert_eq!(ok(who(Some(&token)).await).names, ["login.example.org:u:alice", "login.example.org:g:ops"]);
    assert_eq!(ok(who(None).await).names, [""; 0]);
    let refused = who(Some(&token[..token.len() - 4])).await;
    assert_eq!(refusal(refused), (Code::Unauthenticated, Reason::NotAuthenticated));
}

/// Calls for superusers are refused to others, without effect.
#[tokio::test]
async fn only_superusers_look_after_a_table() {
    let world = World::start().await;
    let mut admin = world.admin();
    fn seen<T>(answer: Result<T, Status>) -> bool {
        refusal(answer) == (Code::PermissionDenied, Reason::NoAccess)
    }
    let nothing = || tokio_stream::iter(Vec::<wire::DumpReply>::new());
    let refused = [
        seen(admin.setup(by("bob", wire::SetupRequest::default())).await),
        seen(admin.check(by("bob", wire::CheckRequest { fix: true })).await),
        seen(admin.dump(by("bob", wire::DumpRequest {})).await),
        seen(admin.restore(by("bob", nothing())).await),
        seen(admin.destroy(by("bob", wire::DestroyRequest { table: crate::world::TABLE.to_owned() })).await),
        seen(admin.sweep(by("bob", wire::SweepRequest {})).await),
        seen(admin.recount(by("bob", wire::RecountRequest {})).await),
        seen(
            admin
                .set_limit(by("bob", wire::SetLimitRequest { user: "bob".to_owned(), nodes: Some(0), servers: None }))
                .await,
        ),
        seen(admin.list_limits(by("bob", wire::ListLimitsRequest {})).await),
        seen(admin.set_read_only(by("bob", wire::SetReadOnlyRequest { read_only: true })).await),
    ];
    assert!(refused.iter().all(|is_refused| *is_refused), "{refused:?}");
    assert_eq!(world.memory.rows().len(), 1);
}
