//! Streams of replies whose reader is slow: they wait for it, but not after the token that opened them has expired.

use std::time::Duration;

use ebla_model::time::Micros;
use ebla_mounttable_tree::access::Permissions;
use ebla_mounttable_tree::identity::BlessingPattern;
use ebla_mounttable_tree::messages::BEARER_HEADER;
use ebla_mounttable_tree::store::cache::CacheOptions;
use ebla_mounttable_tree::store::caching::CachingStore;
use ebla_mounttable_tree::store::memory::MemoryStore;
use ebla_mounttable_tree::store::system::SystemStore;
use ebla_mounttable_tree::table::TableOptions;
use ebla_proto::mounttable as wire;
use ebla_proto::mounttable::mount_table_admin_server::MountTableAdmin as _;
use ebla_proto::mounttable::mount_table_server::MountTable as _;
use ebla_runtime::{Clock, Runtime};
use tonic::Request;

use super::*;
use crate::service::bearer::{Issuer, LEEWAY, TokenConfig, TokenVerifier};
use crate::service::identity::AuthMethod;

/// More than a stream queues for its reader.
const NAMES: usize = 3 * QUEUED_MAX;

/// A request with a token of alice.
fn as_alice<T>(message: T) -> Request<T> {
    let token = format!("Bearer {}", include_str!("../../testdata/tokens/alice.jwt").trim());
    let mut request = Request::new(message);
    request.metadata_mut().insert(BEARER_HEADER, token.parse().unwrap());
    request
}

/// A table with [`NAMES`] names, of which alice is a superuser.
async fn service(clock: &Clock) -> Service<CachingStore<SystemStore<MemoryStore>>> {
    let runtime = Runtime { clock: clock.clone(), ..Runtime::system("test") };
    let store = SystemStore::new(MemoryStore::default(), runtime.clone());
    let store = CachingStore::new(store, CacheOptions::default());
    let cache_handle = store.cache_handle();
    let table = Table::new(store, TableOptions::default());
    table.setup(Permissions::open()).await.unwrap();
    let trust = TokenConfig {
        issuers: vec![Issuer {
            url: "https://login.example.org".to_owned(),
            keys: include_str!("../../testdata/tokens/keys.json").to_owned(),
        }],
        audience: "names".to_owned(),
    };
    let bearer = TokenVerifier::new(&trust, clock.clone()).unwrap();
    let superusers = vec![BlessingPattern::new("login.example.org:u:alice")];
    let authenticator = Authenticator::new(AuthMethod::Bearer(Arc::new(bearer)), superusers);
    let service = Service::new(table, "names", authenticator, cache_handle, runtime.tasks.clone());
    for at in 0..NAMES {
        let (name, server) = (format!("d/{at:03}"), "h:1".to_owned());
        let mount = wire::MountRequest { name, server, ttl_millis: 600_000, ..wire::MountRequest::default() };
        service.mount(as_alice(mount)).await.unwrap();
    }
    service
}

/// The stream has what was queued for its reader, and then the error of an expired token.
async fn expect_expired<T>(stream: ReplyStream<T>) {
    let replies: Vec<_> = stream.collect().await;
    let (last, queued) = replies.split_last().unwrap();
    assert!(queued.len() <= QUEUED_MAX && queued.iter().all(Result::is_ok), "{} messages", queued.len());
    let Err(status) = last else { panic!("the stream ended without an error") };
    assert_eq!(messages::error(status).reason, Reason::NotAuthenticated);
}

/// Without sockets, which would take more than the queue of a stream.
#[tokio::test(start_paused = true)]
async fn a_listing_and_a_dump_end_with_the_token_that_opened_them() {
    let clock = Clock::manual();
    // The token's `exp`, and the tolerance.
    let end = Micros::from_millis(4_102_444_800_000).plus(LEEWAY);
    clock.set_wall(end.minus(Duration::from_secs(10)));
    let service = service(&clock).await;
    let request = wire::GlobRequest { receiver: String::new(), pattern: "d/*".to_owned() };
    let mut listing = service.glob(as_alice(request)).await.unwrap().into_inner();
    let mut dump = service.dump(as_alice(wire::DumpRequest {})).await.unwrap().into_inner();
    // Their readers take one message each; then both streams wait for them.
    assert!(listing.next().await.unwrap().is_ok() && dump.next().await.unwrap().is_ok());
    clock.advance(Duration::from_secs(11));
    tokio::time::sleep(Duration::from_secs(1)).await;
    expect_expired(listing).await;
    expect_expired(dump).await;
}
