//! Streaming calls: KeepMounted, Watch, Glob.

use std::sync::Arc;
use std::time::Duration;

use ebla_model::Micros;
use ebla_mounttable_server::service::bearer::{Issuer, LEEWAY, TokenConfig, TokenVerifier};
use ebla_mounttable_server::service::identity::AuthMethod;
use ebla_mounttable_tree::{Permissions, Reason};
use ebla_proto::mounttable as wire;
use ebla_proto::mounttable::glob_reply;
use ebla_proto::mounttable::watch_reply::{Change, Heartbeat, Reply, Snapshot};
use ebla_runtime::Clock;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Status, Streaming};

use crate::world::{World, as_alice, by, mount, ok, reason, refusal};

/// A stream of KeepMounted, one message at a time.
struct Keeping {
    requests: mpsc::Sender<wire::KeepMountedRequest>,
    replies: Streaming<wire::KeepMountedReply>,
}

impl Keeping {
    async fn by(world: &World, caller: &str) -> Self {
        let (requests, receiver) = mpsc::channel(1);
        let replies = ok(world.names().keep_mounted(by(caller, ReceiverStream::new(receiver))).await);
        Self { requests, replies }
    }

    async fn keep(&mut self, mounts: Vec<wire::MountRequest>) -> Result<Vec<Result<Option<i64>, Reason>>, Status> {
        self.requests.send(wire::KeepMountedRequest { mounts }).await.unwrap();
        let outcome = |one: wire::keep_mounted_reply::Result| match &one.failure {
            None => Ok(one.deadline_micros),
            Some(failure) => Err(reason(failure)),
        };
        let reply = self.replies.message().await?.expect("an answer for each request");
        Ok(reply.results.into_iter().map(outcome).collect())
    }
}

#[tokio::test]
async fn servers_are_kept_mounted_for_as_long_as_they_are_refreshed() {
    let world = World::start().await;
    let mut keeping = Keeping::by(&world, "bob").await;
    let replace = wire::MountRequest { replace: true, ..mount("a/b", "h:9", 60) };
    let mounts = || vec![mount("a/b", "h:1", 60), replace.clone(), mount("a/c", "nowhere", 60), mount("a/c", "h:2", 0)];
    let expected =
        |world: &World| vec![Ok(Some(world.micros_in(60))), Err(Reason::BadRequest), Err(Reason::BadAddress), Ok(None)];
    assert_eq!(keeping.keep(mounts()).await.unwrap(), expected(&world));
    for _ in 0..3 {
        world.clock.advance(Duration::from_secs(50));
        assert_eq!(keeping.keep(mounts()).await.unwrap(), expected(&world));
        assert_eq!(world.resolve("alice", "a/b").await.unwrap().0, ["h:1"]);
    }
    let longer = vec![mount("a/b", "h:1", 90)];
    assert_eq!(keeping.keep(longer).await.unwrap(), [Ok(Some(world.micros_in(90)))], "another time to live");
    world.clock.advance(Duration::from_secs(90));
    assert_eq!(refusal(world.resolve("alice", "a/b").await), (Code::NotFound, Reason::NoSuchName));
    assert_eq!(keeping.keep(mounts()).await.unwrap(), expected(&world), "an expired mount is created again");
    world.write_permissions("alice", "a/b", r#"{"Admin":{"In":["alice"]}}"#).await;
    let refused = keeping.keep(vec![mount("a/b", "h:1", 60)]).await.unwrap();
    assert_eq!(refused, [Err(Reason::NoAccess)], "a revoked right keeps nothing mounted");
    let too_many = vec![mount("a/b", "h:1", 60); 1_001];
    assert_eq!(refusal(keeping.keep(too_many).await), (Code::InvalidArgument, Reason::BadRequest));
}

#[tokio::test]
async fn a_keeper_that_ends_its_requests_gets_its_last_answers() {
    let world = World::start().await;
    let requests = (0..5).map(|at| wire::KeepMountedRequest { mounts: vec![mount(&format!("k/{at}"), "h:1", 60)] });
    let requests = tokio_stream::iter(requests.collect::<Vec<_>>());
    let mut replies = ok(world.names().keep_mounted(by("bob", requests)).await);
    let mut answered = 0;
    while let Some(reply) = replies.message().await.unwrap() {
        assert_eq!(reply.results[0].failure, None);
        answered += 1;
    }
    assert_eq!(answered, 5);
}

/// The messages of a watch, without heartbeats.
struct Watching(Streaming<wire::WatchReply>);

impl Watching {
    async fn on(world: &World, caller: &str, name: &str, include_refresh: bool) -> Self {
        let request = wire::WatchRequest { name: name.to_owned(), include_refresh };
        Self(ok(world.names().watch(by(caller, request)).await))
    }

    async fn next(&mut self) -> Result<Reply, Status> {
        loop {
            match self.0.message().await?.expect("a watch ends with a status").reply.unwrap() {
                Reply::Heartbeat(Heartbeat {}) => {}
                reply => return Ok(reply),
            }
        }
    }

    async fn change(&mut self) -> Change {
        match self.next().await.unwrap() {
            Reply::Change(change) => change,
            other => panic!("{other:?}"),
        }
    }
}

fn addresses(servers: &[wire::Server]) -> Vec<&str> {
    servers.iter().map(|server| server.address.as_str()).collect()
}

/// T120
#[tokio::test]
async fn a_watcher_receives_the_changes_of_a_name() {
    let world = World::start().await;
    let mut watching = Watching::on(&world, "alice", "a/b", false).await;
    assert_eq!(watching.next().await.unwrap(), Reply::Snapshot(Snapshot { entry: None }));
    world.mount("bob", "a/b", "h:1", 60).await;
    assert_eq!(addresses(&watching.change().await.added), ["h:1"]);
    // A refresh is not reported, so the next message is the second server.
    world.mount("bob", "a/b", "h:1", 600).await;
    world.mount("bob", "a/b", "h:2", 30).await;
    let change = watching.change().await;
    assert_eq!((addresses(&change.added), change.updated.len(), change.gone), (vec!["h:2"], 0, false));
    world.clock.advance(Duration::from_secs(30));
    let change = watching.change().await;
    assert_eq!((change.removed, change.gone), (vec!["h:2".to_owned()], false), "it has expired");
    let unmount = wire::UnmountRequest { name: "a/b".to_owned(), server: "h:1".to_owned() };
    ok(world.names().unmount(by("bob", unmount)).await);
    let change = watching.change().await;
    assert_eq!((change.removed, change.gone), (vec!["h:1".to_owned()], true));
    world.mount("bob", "a", "h:3", 60).await;
    let change = watching.change().await;
    assert_eq!((addresses(&change.added), change.suffix.as_str()), (vec!["h:3"], "b"), "a mount above answers now");
    let delete = wire::DeleteRequest { name: "a".to_owned(), subtree: true, ..wire::DeleteRequest::default() };
    ok(world.names().delete(by("bob", delete)).await);
    assert!(watching.change().await.gone);
    world.write_permissions("bob", "a", r#"{"Admin":{"In":["bob"]}}"#).await;
    assert_eq!(refusal(watching.next().await), (Code::PermissionDenied, Reason::NoAccess));
}

/// T120
#[tokio::test]
async fn a_watcher_receives_refreshes_on_request() {
    let world = World::start().await;
    world.mount("bob", "a", "h:1", 60).await;
    let mut watching = Watching::on(&world, "bob", "a", true).await;
    let Reply::Snapshot(snapshot) = watching.next().await.unwrap() else { panic!("the snapshot comes first") };
    assert_eq!(addresses(&snapshot.entry.unwrap().servers), ["h:1"]);
    world.mount("bob", "a", "h:1", 90).await;
    let change = watching.change().await;
    assert_eq!((change.updated[0].deadline_micros, change.added.len()), (Some(world.micros_in(90)), 0));
}

/// What comes within 20 seconds: a stream that goes on fails the test, and does not delay it for ever.
async fn soon<T>(next: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), next).await.expect("the stream ends with its token")
}

/// The token of alice, who opens a stream shortly before it ends.
#[tokio::test]
async fn streams_end_with_the_token_that_opened_them() {
    let clock = Clock::manual();
    // The token's `exp`, and the tolerance.
    let end = Micros::from_millis(4_102_444_800_000).plus(LEEWAY);
    clock.set_wall(end.minus(Duration::from_secs(10)));
    let trust = TokenConfig {
        issuers: vec![Issuer {
            url: "https://login.example.org".to_owned(),
            keys: include_str!("../../testdata/tokens/keys.json").to_owned(),
        }],
        audience: "names".to_owned(),
    };
    let bearer = TokenVerifier::new(&trust, clock.clone()).unwrap();
    let world = World::with(AuthMethod::Bearer(Arc::new(bearer))).await;
    let request = wire::WatchRequest { name: "a".to_owned(), include_refresh: false };
    let mut watching = Watching(ok(world.names().watch(as_alice(request.clone())).await));
    let mut nobodys = Watching(ok(world.names().watch(Request::new(request)).await));
    assert_eq!(watching.next().await.unwrap(), Reply::Snapshot(Snapshot { entry: None }));
    assert_eq!(nobodys.next().await.unwrap(), Reply::Snapshot(Snapshot { entry: None }));
    let (requests, receiver) = mpsc::channel(1);
    let replies = ok(world.names().keep_mounted(as_alice(ReceiverStream::new(receiver))).await);
    let mut keeping = Keeping { requests, replies };
    keeping.keep(vec![mount("a", "h:1", 600)]).await.unwrap()[0].unwrap();
    assert_eq!(addresses(&watching.change().await.added), ["h:1"]);
    clock.advance(Duration::from_secs(11));
    let expired = (Code::Unauthenticated, Reason::NotAuthenticated);
    assert_eq!(refusal(soon(watching.next()).await), expired);
    assert_eq!(refusal(soon(keeping.replies.message()).await), expired, "without another request");
    assert_eq!(addresses(&nobodys.change().await.added), ["h:1"]);
    assert_eq!(refusal(world.names().watch(as_alice(wire::WatchRequest::default())).await), expired);
}

/// Entries by name with their deadlines, errors, and the summary.
async fn glob(world: &World, caller: &str, pattern: &str) -> (Vec<wire::Entry>, Vec<String>, glob_reply::Summary) {
    let request = wire::GlobRequest { receiver: String::new(), pattern: pattern.to_owned() };
    let mut replies = ok(world.names().glob(by(caller, request)).await);
    let (mut entries, mut errors, mut summary) = (Vec::new(), Vec::new(), None);
    while let Some(reply) = replies.message().await.unwrap() {
        assert_eq!(summary, None, "the summary is the last message");
        match reply.reply.unwrap() {
            glob_reply::Reply::Entry(entry) => entries.push(entry),
            glob_reply::Reply::Error(error) => {
                let failure = error.failure.unwrap();
                errors.push(format!("{:?} {} {}", error.name, failure.reason, failure.message));
            }
            glob_reply::Reply::Summary(last) => summary = Some(last),
        }
    }
    (entries, errors, summary.unwrap())
}

/// T070: like a mounttable that is mounted in itself.
#[tokio::test]
async fn a_listing_tells_of_servers_until_when_they_are_mounted() {
    let world = World::start().await;
    let itself = world.server.address().to_owned();
    let table = wire::MountRequest { serves_mount_table: true, ..mount("mounttabled", &itself, 300) };
    ok(world.names().mount(by("server", table)).await);
    world.mount("server", "google", "/www.google.com:80", 300).await;
    let (entries, errors, summary) = glob(&world, "bob", "*").await;
    let entry = |name: &str, address: &str, serves_mount_table| wire::Entry {
        name: name.to_owned(),
        servers: vec![wire::Server {
            address: address.to_owned(),
            deadline_micros: Some(world.micros_in(300)),
            serves_mount_table,
            is_leaf: false,
        }],
        serves_mount_table,
        ..wire::Entry::default()
    };
    assert_eq!(entries, [entry("google", "/www.google.com:80", false), entry("mounttabled", &itself, true)]);
    assert_eq!((errors.len(), summary), (0, glob_reply::Summary { entries: 2, omitted: false }));
}

/// T110: one vague error for all omitted matches; an unreadable row does not end the listing.
#[tokio::test]
async fn omitted_matches_are_reported_once_and_vaguely() {
    let world = World::start().await;
    for name in ["open/a", "secret/b", "hidden/c"] {
        world.mount("bob", name, "h:1", 60).await;
    }
    for name in ["secret", "hidden"] {
        world.write_permissions("bob", name, r#"{"Admin":{"In":["bob"]}}"#).await;
    }
    let (entries, errors, summary) = glob(&world, "alice", "*/*").await;
    assert_eq!(entries.iter().map(|entry| entry.name.as_str()).collect::<Vec<_>>(), ["open/a"]);
    assert_eq!(errors, [r#""" MATCHES_OMITTED some matches might have been omitted"#]);
    assert_eq!(summary, glob_reply::Summary { entries: 1, omitted: true });
    let (entries, errors, _) = glob(&world, "bob", "*/*").await;
    assert_eq!((entries.len(), errors.len()), (3, 0));
}

/// T034: closing a listing ends its work, and disturbs no other.
#[tokio::test]
async fn a_listing_without_a_reader_ends() {
    let world = World::start().await;
    world.unlimit("server").await;
    world.write_permissions("server", "d", &Permissions::open().to_json()).await;
    for at in 0..100 {
        world.mount("server", &format!("d/{at:03}"), "h:1", 60).await;
    }
    let request = wire::GlobRequest { receiver: "d".to_owned(), pattern: "*".to_owned() };
    let mut replies = ok(world.names().glob(by("bob", request)).await);
    assert!(replies.message().await.unwrap().is_some());
    drop(replies);
    let (entries, _, summary) = glob(&world, "bob", "d/*").await;
    assert_eq!((entries.len(), summary.entries), (100, 100));
    world.server.stop().await;
}
