//! MountTableAdmin: setup, check, repair, recount, limits, dump and restore.

use std::collections::BTreeMap;
use std::time::Duration;

use ebla_model::Micros;
use ebla_mounttable_server::service::identity::AuthMethod;
use ebla_mounttable_tree::store::{Cell, Change, Condition, Family};
use ebla_mounttable_tree::{NodeName, Reason, Store, row_key};
use ebla_proto::mounttable as wire;
use ebla_proto::mounttable::dump_reply::Reply;
use ebla_proto::mounttable::list_limits_reply::Limit;
use ebla_proto::mounttable::recount_reply::Correction;
use tonic::{Code, Status};

use crate::world::{TABLE, World, by, mount, ok, permissions, reason, refusal};

fn key(name: &str) -> String {
    row_key(&name.parse::<NodeName>().unwrap())
}

/// Changes a row bypassing the server.
async fn change(world: &World, name: &str, change: Change) {
    assert!(world.memory.change_if(&key(name), Condition::All(Vec::new()), vec![change]).await.unwrap());
}

async fn check(world: &World, fix: bool) -> Vec<(String, String, bool)> {
    let mut findings = ok(world.admin().check(by("server", wire::CheckRequest { fix })).await);
    let mut found = Vec::new();
    while let Some(finding) = findings.message().await.unwrap() {
        found.push((finding.kind, finding.place, finding.fixed));
    }
    found.sort();
    found
}

async fn dump(world: &World) -> Vec<wire::DumpReply> {
    let mut replies = ok(world.admin().dump(by("server", wire::DumpRequest {})).await);
    let mut dumped = Vec::new();
    while let Some(reply) = replies.message().await.unwrap() {
        dumped.push(reply);
    }
    dumped
}

async fn restore(world: &World, dump: Vec<wire::DumpReply>) -> Result<wire::RestoreReply, Status> {
    world.admin().restore(by("server", tokio_stream::iter(dump))).await.map(tonic::Response::into_inner)
}

async fn destroy(world: &World) -> wire::DestroyReply {
    ok(world.admin().destroy(by("server", wire::DestroyRequest { table: TABLE.to_owned() })).await)
}

/// T058 T060
#[tokio::test]
async fn a_table_is_set_up_again_and_again() {
    let world = World::start().await;
    let setup = |file: &str| by("server", wire::SetupRequest { permissions_file: file.to_owned(), preview: false });
    let preview = |file: &str| by("server", wire::SetupRequest { permissions_file: file.to_owned(), preview: true });
    let file = r#"{"":{"Read":{"In":["..."]},"Admin":{"In":["root"]}},"x/y":{"Admin":{"In":["bob"]}}}"#;
    let seen = ok(world.admin().setup(preview(file)).await);
    let names: Vec<_> = seen.changes.iter().map(|it| (it.name.as_str(), it.before.is_empty())).collect();
    assert_eq!((seen.changed, names), (0, vec![("", false), ("x", true), ("x/y", true)]));
    assert_eq!(ok(world.admin().setup(setup(file)).await).changed, 3, "the root changes, two nodes are made");
    assert_eq!(ok(world.admin().setup(setup(file)).await).changed, 0);
    assert_eq!(ok(world.admin().setup(preview(file)).await).changes, []);
    let refused = world.admin().setup(setup("{")).await;
    assert_eq!(refusal(refused), (Code::InvalidArgument, Reason::BadPermissions));
    assert_eq!(ok(world.admin().setup(setup("")).await).changed, 0, "a closed root stays closed");
    world.mount("bob", "x/y", "h:1", 60).await;
    let refused = world.names().mount(by("alice", mount("x/y", "h:1", 60))).await;
    assert_eq!(refusal(refused), (Code::PermissionDenied, Reason::NoAccess));
}

/// T066 T123: inconsistencies are found, reported and repaired while the server serves.
#[tokio::test]
async fn inconsistencies_are_found_and_repaired() {
    let world = World::start().await;
    world.mount("bob", "a/b", "h:1", 60).await;
    world.mount("bob", "a/lost", "h:1", 60).await;
    world.mount("bob", "damaged", "h:1", 60).await;
    assert_eq!(check(&world, false).await, []);
    assert_eq!(check(&world, true).await, []);
    change(&world, "a/lost", Change::DeleteRow).await;
    let nonsense = Cell { timestamp: Micros::ZERO, value: "what?".to_owned() };
    change(&world, "damaged", Change::Set(Family::Meta, "e".to_owned(), Cell { timestamp: Micros::MAX, ..nonsense }))
        .await;
    // No parent refers to it any more.
    world.mount("bob", "o/p", "h:1", 60).await;
    change(&world, "", Change::DeleteColumn(Family::Children, "o".to_owned())).await;
    world.memory.add("num-nodes-per-user:bob", 5).await.unwrap();
    let found = |kind: &str, place: String, fixed| (kind.to_owned(), place, fixed);
    let nodes = "num-nodes-per-user:bob".to_owned();
    let servers = "num-servers-per-user:bob".to_owned();
    let all = |fixed: bool| {
        let mut all = vec![
            found("COUNTER", nodes.clone(), fixed),
            found("COUNTER", servers.clone(), fixed),
            found("DAMAGED", key("damaged"), false),
            found("DANGLING", key("a"), fixed),
            found("ORPHAN", key("o"), fixed),
        ];
        all.sort();
        all
    };
    assert_eq!(check(&world, false).await, all(false));
    assert_eq!(check(&world, true).await, all(true));
    assert_eq!(check(&world, false).await, [found("DAMAGED", key("damaged"), false)]);
    assert_eq!(world.resolve("bob", "a/b").await.unwrap().0, ["h:1"]);
    let who = ok(world.names().who_am_i(by("bob", wire::WhoAmIRequest {})).await);
    assert_eq!((who.nodes.unwrap().used, who.servers.unwrap().used), (2, 1));
}

#[tokio::test]
async fn counters_are_put_right() {
    let world = World::start().await;
    world.mount("bob", "a/b", "h:1", 60).await;
    world.memory.add("num-servers-per-user:bob", 3).await.unwrap();
    let corrections = ok(world.admin().recount(by("server", wire::RecountRequest {})).await).corrections;
    assert_eq!(corrections, [Correction { counter: "num-servers-per-user:bob".to_owned(), was: 4, is: 1 }]);
    assert_eq!(ok(world.admin().recount(by("server", wire::RecountRequest {})).await).corrections, []);
}

#[tokio::test]
async fn a_server_puts_counters_right_without_an_operator() {
    let world = World::with_sweeps(AuthMethod::Development, Duration::from_millis(10)).await;
    world.mount("bob", "a/b", "h:1", 60).await;
    world.memory.add("num-servers-per-user:bob", 3).await.unwrap();
    let used = async || ok(world.names().who_am_i(by("bob", wire::WhoAmIRequest {})).await).servers.unwrap().used;
    let corrected = async {
        while used().await != 1 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), corrected).await.unwrap();
}

#[tokio::test]
async fn a_sweep_tells_what_it_removed() {
    let world = World::start().await;
    world.mount("bob", "a/b", "h:1", 60).await;
    world.mount("bob", "c", "h:1", 600).await;
    world.clock.advance(Duration::from_secs(60));
    let swept = ok(world.admin().sweep(by("server", wire::SweepRequest {})).await);
    assert_eq!(swept, wire::SweepReply { expired: 1, ..wire::SweepReply::default() });
    assert_eq!(world.memory.rows().into_keys().collect::<Vec<_>>().len(), 2, "the root and c");
}

#[tokio::test]
async fn users_have_limits_of_their_own() {
    let world = World::start().await;
    let set =
        |user: &str, nodes, servers| by("server", wire::SetLimitRequest { user: user.to_owned(), nodes, servers });
    let list = || by("server", wire::ListLimitsRequest {});
    let limit = |user: &str, nodes, servers| Limit { user: user.to_owned(), nodes, servers };
    let everybody = Some(limit("", Some(10), Some(15)));
    let none = wire::ListLimitsReply { everybody: everybody.clone(), limits: vec![] };
    assert_eq!(ok(world.admin().list_limits(list()).await), none);
    ok(world.admin().set_limit(set("idp:u:bob", Some(2), None)).await);
    ok(world.admin().set_limit(set("ann", Some(0), Some(1))).await);
    let limits = vec![limit("ann", Some(0), Some(1)), limit("idp:u:bob", Some(2), None)];
    assert_eq!(ok(world.admin().list_limits(list()).await), wire::ListLimitsReply { everybody, limits });
    let refused = world.names().mount(by("idp:u:bob:phone", mount("1/2/3", "h:1", 60))).await;
    assert_eq!(refusal(refused), (Code::ResourceExhausted, Reason::NodeQuota));
    world.mount("ann", "1/2/3/4/5/6/7/8/9/10/11", "h:1", 60).await;
    let refused = world.names().mount(by("ann", mount("1", "h:2", 60))).await;
    assert_eq!(refusal(refused), (Code::ResourceExhausted, Reason::ServerQuota));
    for user in ["ann", "idp:u:bob"] {
        ok(world.admin().set_limit(set(user, Some(-1), Some(-1))).await);
    }
    assert_eq!(ok(world.admin().list_limits(list()).await), none);
    let refused = world.admin().set_limit(set("", Some(1), None)).await;
    assert_eq!(refusal(refused), (Code::InvalidArgument, Reason::BadRequest));
}

/// A dump restores the same table.
#[tokio::test]
async fn a_dump_restores_the_table() {
    let world = World::start().await;
    world.unlimit("server").await;
    // More children than fit into one message.
    for at in 0..300 {
        world.mount("server", &format!("big/{at}"), "h:1", 0).await;
    }
    world.mount("bob", "a/b", "h:1", 60).await;
    world.write_permissions("bob", "a", r#"{"Admin":{"In":["bob"]}}"#).await;
    let rows = world.memory.rows();
    let dumped = dump(&world).await;
    let of_big =
        dumped.iter().filter(|one| matches!(&one.reply, Some(Reply::Row(row)) if row.key == key("big"))).count();
    assert_eq!(of_big, 2);
    assert_eq!(refusal(restore(&world, dumped.clone()).await), (Code::FailedPrecondition, Reason::NotEmpty));
    assert_eq!(world.memory.rows(), rows, "nothing was touched");
    let counters: BTreeMap<_, _> = dumped
        .iter()
        .filter_map(|one| match &one.reply {
            Some(Reply::Counter(counter)) => Some((counter.name.clone(), counter.value)),
            _ => None,
        })
        .collect();
    assert_eq!(counters["num-nodes-per-user:bob"], 2);
    let reply = destroy(&world).await;
    assert_eq!((reply.rows, reply.counters), (304, u64::try_from(counters.len()).unwrap()));
    let gone = refusal(world.resolve("bob", "a/b").await);
    assert_eq!(gone, (Code::NotFound, Reason::NoSuchNameRoot));
    let reply = restore(&world, dumped.clone()).await.unwrap();
    assert_eq!((reply.rows, reply.counters), (304, u64::try_from(counters.len()).unwrap()));
    assert_eq!(world.memory.rows(), rows);
    assert_eq!(dump(&world).await, dumped);
    assert_eq!(check(&world, false).await, []);
    assert_eq!(world.resolve("bob", "a/b").await.unwrap().0, ["h:1"]);
    assert_eq!(refusal(world.resolve("alice", "a/b").await), (Code::PermissionDenied, Reason::NoAccess));
    // Another server, whose table has only a root.
    let other = World::start().await;
    restore(&other, dumped).await.unwrap();
    assert_eq!(other.resolve("alice", "big/7").await.unwrap().0, ["h:1"]);
}

/// However many servers a user has mounted on one node.
#[tokio::test]
async fn a_large_row_is_dumped_in_pieces_that_a_restore_accepts() {
    let world = World::start().await;
    world.mount("bob", "a", "h:1", 0).await;
    let row = world.memory.rows().remove(&key("a")).unwrap();
    let cell = row.get(&(Family::Servers, "h:1".to_owned())).unwrap();
    let servers = (0..6_000).map(|number| format!("/h:1/{number}/{}", "x".repeat(1_000)));
    let changes = servers.map(|address| Change::Set(Family::Servers, address, cell.clone())).collect();
    assert!(world.memory.change_if(&key("a"), Condition::All(Vec::new()), changes).await.unwrap());
    let dumped = dump(&world).await;
    let other = World::start().await;
    restore(&other, dumped).await.unwrap();
    assert_eq!(other.memory.rows().remove(&key("a")).map(|row| row.len()), Some(row.len() + 6_000));
}

/// An aborted restore leaves a table that does not serve, and that must be destroyed before the next restore.
#[tokio::test]
async fn half_a_dump_is_no_table() {
    let world = World::start().await;
    world.mount("bob", "a/b/c", "h:1", 0).await;
    let dumped = dump(&world).await;
    destroy(&world).await;
    let (root, others): (Vec<_>, Vec<_>) =
        dumped.clone().into_iter().partition(|one| matches!(&one.reply, Some(Reply::Row(row)) if row.key == key("")));
    assert_eq!(refusal(restore(&world, others).await), (Code::InvalidArgument, Reason::BadRequest), "no root");
    assert_eq!(refusal(world.resolve("bob", "a/b/c").await), (Code::NotFound, Reason::NoSuchNameRoot));
    let swept = ok(world.admin().sweep(by("server", wire::SweepRequest {})).await);
    assert_eq!((swept, world.memory.rows().len()), (wire::SweepReply::default(), 3), "what is restored is not swept");
    assert_eq!(refusal(restore(&world, root).await), (Code::FailedPrecondition, Reason::NotEmpty));
    destroy(&world).await;
    restore(&world, dumped.clone()).await.unwrap();
    assert_eq!(world.resolve("bob", "a/b/c").await.unwrap().0, ["h:1"]);
    let mut strange = dumped;
    if let Some(Reply::Row(row)) = &mut strange[0].reply {
        row.cells[0].family = "x".to_owned();
    }
    destroy(&world).await;
    assert_eq!(refusal(restore(&world, strange).await), (Code::InvalidArgument, Reason::BadRequest));
}

#[tokio::test]
async fn destroy_requires_the_name_of_the_table() {
    let world = World::start().await;
    world.mount("bob", "a", "h:1", 60).await;
    for table in ["", "other", "Names"] {
        let refused = world.admin().destroy(by("server", wire::DestroyRequest { table: table.to_owned() })).await;
        assert_eq!(refusal(refused), (Code::InvalidArgument, Reason::BadRequest));
    }
    assert_eq!(world.resolve("bob", "a").await.unwrap().0, ["h:1"]);
    assert_eq!(destroy(&world).await.rows, 2);
    assert_eq!(world.memory.rows().len(), 0);
    ok(world.admin().setup(by("server", wire::SetupRequest::default())).await);
    world.mount("bob", "a", "h:2", 60).await;
    assert_eq!(world.resolve("bob", "a").await.unwrap().0, ["h:2"]);
}

/// A read-only server refuses all changes and answers reads; nothing is lost.
#[tokio::test]
async fn a_server_that_is_read_only_goes_on_answering() {
    let world = World::start().await;
    world.mount("bob", "a", "h:1", 60).await;
    let rows = world.memory.rows();
    let switch = |caller: &str, read_only| by(caller, wire::SetReadOnlyRequest { read_only });
    let refused = world.admin().set_read_only(switch("bob", true)).await;
    assert_eq!(refusal(refused), (Code::PermissionDenied, Reason::NoAccess));
    assert!(!ok(world.admin().set_read_only(switch("server", true)).await).was_read_only);
    fn seen<T>(answer: Result<T, Status>) -> bool {
        refusal(answer) == (Code::FailedPrecondition, Reason::ReadOnly)
    }
    let (mut names, mut admin) = (world.names(), world.admin());
    let destroy = wire::DestroyRequest { table: TABLE.to_owned() };
    let limit = wire::SetLimitRequest { user: "bob".to_owned(), nodes: Some(1), servers: None };
    let unmount = wire::UnmountRequest { name: "a".to_owned(), server: String::new() };
    let delete = wire::DeleteRequest { name: "a".to_owned(), ..wire::DeleteRequest::default() };
    let refused = [
        seen(names.mount(by("bob", mount("a", "h:2", 60))).await),
        seen(names.unmount(by("bob", unmount)).await),
        seen(names.delete(by("bob", delete)).await),
        seen(names.set_permissions(by("bob", permissions("a", "{}", ""))).await),
        seen(admin.setup(by("server", wire::SetupRequest::default())).await),
        seen(admin.check(by("server", wire::CheckRequest { fix: true })).await),
        seen(restore(&world, Vec::new()).await),
        seen(admin.destroy(by("server", destroy)).await),
        seen(admin.sweep(by("server", wire::SweepRequest {})).await),
        seen(admin.recount(by("server", wire::RecountRequest {})).await),
        seen(admin.set_limit(by("server", limit)).await),
    ];
    assert!(refused.iter().all(|is_refused| *is_refused), "{refused:?}");
    let requests = tokio_stream::iter([wire::KeepMountedRequest { mounts: vec![mount("a", "h:1", 90)] }]);
    let kept = ok(names.keep_mounted(by("bob", requests)).await).message().await.unwrap().unwrap();
    assert_eq!(kept.results[0].failure.as_ref().map(reason), Some(Reason::ReadOnly));
    assert_eq!(world.resolve("alice", "a").await.unwrap().0, ["h:1"]);
    assert_eq!((check(&world, false).await, dump(&world).await.is_empty()), (Vec::new(), false));
    assert_eq!(world.memory.rows(), rows);
    assert!(ok(world.admin().set_read_only(switch("server", false)).await).was_read_only);
    world.mount("bob", "a", "h:2", 60).await;
    assert_eq!(world.resolve("alice", "a").await.unwrap().0, ["h:1", "h:2"]);
}
