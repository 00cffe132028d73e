//! Unary calls: resolving one name and many, permissions, details of nodes, the caller's identity.

use std::time::Duration;

use ebla_mounttable_tree::Reason;
use ebla_proto::mounttable as wire;
use ebla_proto::mounttable::batch_resolve_reply::result::Result as One;
use tonic::Code;

use crate::world::{World, by, ok, reason, refusal};

#[tokio::test]
async fn a_name_leads_to_its_servers_and_the_rest_of_it() {
    let world = World::start().await;
    let reply = world.mount("bob", "a/b", "h:1", 60).await;
    let expected =
        wire::MountReply { deadline_micros: Some(world.micros_in(60)), created_nodes: 2, shadowed_children: false };
    assert_eq!(reply, expected);
    world.mount("bob", "a/b", "h:2", 0).await;
    let step = wire::ResolveStepRequest { name: "/a//b/c".to_owned() };
    let mut entry = ok(world.names().resolve_step(by("alice", step)).await);
    entry.servers.sort_by(|a, b| a.address.cmp(&b.address));
    let server = |address: &str, deadline_micros| wire::Server {
        address: address.to_owned(),
        deadline_micros,
        ..wire::Server::default()
    };
    let servers = vec![server("h:1", Some(world.micros_in(60))), server("h:2", None)];
    assert_eq!(entry, wire::Entry { name: "c".to_owned(), servers, ..wire::Entry::default() });
    let one = wire::ResolveRequest { name: "a/b".to_owned(), max_servers: 1 };
    assert_eq!(ok(world.names().resolve(by("alice", one)).await).servers.len(), 1);
    let reply = world.mount("bob", "a", "h:3", 60).await;
    assert!(reply.shadowed_children && reply.created_nodes == 0);
    world.clock.advance(Duration::from_secs(60));
    assert_eq!(world.resolve("bob", "a/b").await.unwrap().0, ["h:2"], "what has expired hides nothing");
}

#[tokio::test]
async fn many_names_are_answered_in_their_order() {
    let world = World::start().await;
    world.mount("bob", "open", "h:1", 60).await;
    world.mount("bob", "closed/x", "h:2", 60).await;
    world.write_permissions("bob", "closed", r#"{"Admin":{"In":["bob"]}}"#).await;
    let names = ["open/x", "never", "closed/x", "a/../b", "open"].map(str::to_owned).to_vec();
    let request = wire::BatchResolveRequest { names };
    let reply = ok(world.names().batch_resolve(by("alice", request)).await);
    let outcomes: Vec<_> = reply
        .results
        .iter()
        .map(|result| match result.result.as_ref().unwrap() {
            One::Entry(entry) => format!("{} + {:?}", entry.servers[0].address, entry.name),
            One::Failure(failure) => format!("{}", reason(failure)),
        })
        .collect();
    assert_eq!(outcomes, [r#"h:1 + "x""#, "NO_SUCH_NAME", "NO_ACCESS", "BAD_NAME", r#"h:1 + """#]);
    let many = |count| wire::BatchResolveRequest { names: vec!["open".to_owned(); count] };
    assert_eq!(ok(world.names().batch_resolve(by("alice", many(1_000))).await).results.len(), 1_000);
    let refused = world.names().batch_resolve(by("alice", many(1_001))).await;
    assert_eq!(refusal(refused), (Code::InvalidArgument, Reason::BadRequest));
    assert!(world.server.lookups().hits >= 1_000, "{:?}", world.server.lookups());
}

/// 200 times a name with 40 servers, whose addresses have a kilobyte each: eight megabytes.
#[tokio::test]
async fn a_batch_of_names_with_many_servers_is_bounded() {
    let world = World::start().await;
    world.unlimit("bob").await;
    for number in 1..=40 {
        world.mount("bob", "big", &format!("{}:{number}", "h".repeat(1_000)), 60).await;
    }
    let request = |count| wire::BatchResolveRequest { names: vec!["big".to_owned(); count] };
    let reply = ok(world.names().batch_resolve(by("alice", request(200))).await);
    let is_entry = |one: &wire::batch_resolve_reply::Result| matches!(one.result, Some(One::Entry(_)));
    let entries = reply.results.iter().filter(|one| is_entry(one)).count();
    assert!((50..90).contains(&entries), "{entries} entries");
    let lookups = world.server.lookups();
    assert!(lookups.hits + lookups.misses + lookups.joined < 180, "a full reply needs no lookups: {lookups:?}");
    let Some(One::Failure(failure)) = &reply.results.last().unwrap().result else { panic!("the reply is full") };
    assert_eq!(reason(failure), Reason::BadRequest);
    assert!(failure.message.contains("another batch"), "{}", failure.message);
    let reply = ok(world.names().batch_resolve(by("alice", request(50))).await);
    assert!(reply.results.iter().all(is_entry));
}

#[tokio::test]
async fn a_deep_name_costs_one_read_at_first_and_then_none() {
    let world = World::start().await;
    world.mount("bob", "a/b/c/d/e/f/g/h/i", "h:1", 60).await;
    let mut counters = Vec::new();
    for _ in 0..3 {
        counters.push(ok(world.admin().counters(by("alice", wire::CountersRequest {})).await));
        world.resolve("alice", "a/b/c/d/e/f/g/h/i/j").await.unwrap();
    }
    let of = |count: fn(&wire::CountersReply) -> u64| counters.iter().map(count).collect::<Vec<_>>();
    let [reads, misses, hits] = [of(|it| it.reads), of(|it| it.misses), of(|it| it.hits)];
    assert_eq!([reads[1] - reads[0], reads[2] - reads[1]], [1, 0]);
    assert_eq!((misses, hits), (vec![0, 1, 1], vec![0, 0, 1]));
    let changes = of(|it| it.changes);
    assert!(changes[0] > 0 && changes.iter().all(|count| *count == changes[0]), "only the mount has changed anything");
    let server = ok(world.admin().counters(by("", wire::CountersRequest {})).await);
    assert_eq!((server.joined, server.stale), (0, 0));
}

/// T008 T009 T010
#[tokio::test]
async fn permissions_are_replaced_only_at_the_seen_version() {
    let world = World::start().await;
    world.write_permissions("bob", "a", r#"{"Admin":{"In":["bob"]},"Read":{"In":["alice"]}}"#).await;
    let get = |caller| by(caller, wire::GetPermissionsRequest { name: "a".to_owned() });
    let seen = ok(world.names().get_permissions(get("alice")).await);
    let lists = seen.permissions.clone().unwrap().lists;
    assert_eq!(
        (lists.len(), &lists["Admin"].r#in, &lists["Read"].r#in),
        (2, &vec!["bob".into()], &vec!["alice".into()])
    );
    let set = |etag: &str| wire::SetPermissionsRequest {
        name: "a".to_owned(),
        permissions: seen.permissions.clone(),
        etag: etag.to_owned(),
    };
    let refused = world.names().set_permissions(by("bob", set("xyzzy"))).await;
    assert_eq!(refusal(refused), (Code::Aborted, Reason::BadVersion));
    ok(world.names().set_permissions(by("bob", set(&seen.etag))).await);
    let later = ok(world.names().get_permissions(get("bob")).await);
    assert_ne!(later.etag, seen.etag);
    ok(world.names().set_permissions(by("bob", set(""))).await);
    let refused = world.names().get_permissions(get("carol")).await;
    assert_eq!(refusal(refused), (Code::PermissionDenied, Reason::NoAccess));
}

#[tokio::test]
async fn rights_are_tested_for_oneself_and_by_admins_for_others() {
    let world = World::start().await;
    let given = r#"{"Admin":{"In":["bob"]},"Read":{"In":["alice"]},"Resolve":{"In":["carol"],"NotIn":["carol:x"]}}"#;
    world.write_permissions("bob", "a", given).await;
    let ask = |caller: &str, tags: &[&str], names: &[&str]| {
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        by(caller, wire::TestPermissionsRequest { name: "a".to_owned(), tags: texts(tags), names: texts(names) })
    };
    let rights = |reply: wire::TestPermissionsReply| -> Vec<String> {
        reply.allowed.iter().map(|it| format!("{} by {} {:?}", it.tag, it.granted_by, it.pattern)).collect()
    };
    let mut client = world.names();
    let alices = rights(ok(client.test_permissions(ask("alice", &[], &[])).await));
    assert_eq!(alices, [r#"Read by Read "alice""#]);
    let bobs = rights(ok(client.test_permissions(ask("bob", &["Mount", "Read"], &[])).await));
    assert_eq!(bobs, [r#"Mount by Admin "bob""#, r#"Read by Admin "bob""#]);
    let carols = rights(ok(client.test_permissions(ask("carol", &[], &[])).await));
    assert_eq!(carols, [r#"Resolve by Resolve """#], "the pattern is withheld from a caller without Read");
    let others = rights(ok(client.test_permissions(ask("bob", &[], &["carol:y"])).await));
    assert_eq!(others, [r#"Resolve by Resolve "carol""#], "the pattern is reported to a caller with Read");
    let denied = rights(ok(client.test_permissions(ask("bob", &[], &["carol:x"])).await));
    assert_eq!(denied, Vec::<String>::new());
    let servers = rights(ok(client.test_permissions(ask("server", &["Admin"], &[])).await));
    assert_eq!(servers, [r#"Admin by Admin """#]);
    let refused = client.test_permissions(ask("alice", &[], &["bob"])).await;
    assert_eq!(refusal(refused), (Code::PermissionDenied, Reason::NoAccess), "only an Admin asks about others");
    let refused = client.test_permissions(ask("alice", &["Fly"], &[])).await;
    assert_eq!(refusal(refused), (Code::InvalidArgument, Reason::BadPermissions));
    let mut not_mounted = ask("alice", &[], &[]);
    not_mounted.get_mut().name = "never".to_owned();
    assert_eq!(refusal(client.test_permissions(not_mounted).await), (Code::NotFound, Reason::NoSuchName));
}

#[tokio::test]
async fn a_node_tells_what_it_is() {
    let world = World::start().await;
    let made = world.clock.wall().truncate_to_millis().get();
    world.mount("idp:u:bob:phone", "a/b", "h:1", 60).await;
    world.mount("alice", "a/b", "h:2", 30).await;
    world.mount("alice", "a/c", "h:1", 60).await;
    world.clock.advance(Duration::from_secs(31));
    let get = |caller: &str, name: &str| by(caller, wire::GetNodeRequest { name: name.to_owned() });
    let node = ok(world.names().get_node(get("alice", "a")).await);
    assert_eq!((node.creator.as_str(), node.created_micros, node.sticky), ("idp:u:bob", made, false));
    assert_eq!((node.servers, node.children), (0, 2));
    let leaf = ok(world.names().get_node(get("alice", "a/b")).await);
    assert_eq!((leaf.servers, leaf.children), (1, 0), "what has expired does not count");
    let delete = |version: &str| wire::DeleteRequest {
        name: "a/b".to_owned(),
        subtree: false,
        expected_version: version.to_owned(),
    };
    world.mount("alice", "a/b", "h:3", 60).await;
    let refused = world.names().delete(by("server", delete(&leaf.version))).await;
    assert_eq!(refusal(refused), (Code::Aborted, Reason::BadVersion));
    let version = ok(world.names().get_node(get("alice", "a/b")).await).version;
    assert_eq!(ok(world.names().delete(by("server", delete(&version))).await).deleted, 1);
    assert_eq!(refusal(world.names().get_node(get("alice", "a/b")).await), (Code::NotFound, Reason::NoSuchName));
    world.write_permissions("idp:u:bob", "a", r#"{"Admin":{"In":["idp:u:bob"]}}"#).await;
    let node = ok(world.names().get_node(get("idp:u:bob", "a")).await);
    assert!(node.sticky && node.etag.ends_with(".1"), "{node:?}");
    assert_eq!(refusal(world.names().get_node(get("alice", "a")).await), (Code::PermissionDenied, Reason::NoAccess));
}

#[tokio::test]
async fn callers_can_read_their_identity_and_quota() {
    let world = World::start().await;
    world.mount("idp:u:bob:phone,ann", "a/b", "h:1", 60).await;
    let who = ok(world.names().who_am_i(by("idp:u:bob:phone,ann", wire::WhoAmIRequest {})).await);
    let usage = |used, limit| Some(wire::Usage { used, limit: Some(limit) });
    let expected = wire::WhoAmIReply {
        names: vec!["idp:u:bob:phone".to_owned(), "ann".to_owned()],
        user: "idp:u:bob".to_owned(),
        superuser: false,
        nodes: usage(2, 10),
        servers: usage(1, 15),
    };
    assert_eq!(who, expected);
    assert!(ok(world.names().who_am_i(by("server:x", wire::WhoAmIRequest {})).await).superuser);
}

/// T014 T015 T020 T021 T044 T048
#[tokio::test]
async fn mounts_are_removed_and_nodes_deleted() {
    let world = World::start().await;
    world.mount("bob", "a/b", "h:1", 60).await;
    world.mount("bob", "a/b", "h:2", 60).await;
    let unmount = |name: &str, server: &str| wire::UnmountRequest { name: name.to_owned(), server: server.to_owned() };
    assert_eq!(ok(world.names().unmount(by("bob", unmount("a/b", "h:1"))).await).removed, 1);
    assert_eq!(ok(world.names().unmount(by("bob", unmount("a/b", "h:1"))).await).removed, 0);
    assert_eq!(ok(world.names().unmount(by("bob", unmount("never", ""))).await).removed, 0);
    assert_eq!(world.resolve("bob", "a/b").await.unwrap().0, ["h:2"]);
    let delete =
        |name: &str, subtree| wire::DeleteRequest { name: name.to_owned(), subtree, ..wire::DeleteRequest::default() };
    let refused = world.names().delete(by("bob", delete("a", false))).await;
    assert_eq!(refusal(refused), (Code::FailedPrecondition, Reason::NotEmpty));
    assert_eq!(ok(world.names().delete(by("bob", delete("a", true))).await).deleted, 2);
    assert_eq!(ok(world.names().delete(by("bob", delete("a", true))).await).deleted, 0);
    assert_eq!(refusal(world.resolve("bob", "a/b").await), (Code::NotFound, Reason::NoSuchName));
}
