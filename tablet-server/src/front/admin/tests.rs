//! Forwarding between a client, a proxy and fake masters, over real sockets.

use ebla_chubby::{Chubby as _, Write, embedded::Embedded, testing::faulty::FaultyChubby};
use ebla_proto::{
    admin,
    convert::encode_record,
    services::{
        Empty,
        bigtable_table_admin_client::BigtableTableAdminClient,
        bigtable_table_admin_server::{BigtableTableAdmin, BigtableTableAdminServer},
    },
};
use ebla_runtime::{ServeOptions, serve};
use tokio::sync::watch;
use tonic::{service::Routes, transport::Channel};

use tonic::Code;

use super::*;
use crate::front::budget::{RequestBudget, RequestBytes};
use crate::middleware::GrpcService as _;

/// A fake master, which counts the calls that have started.
#[derive(Clone)]
struct Fake {
    started: watch::Sender<u32>,
    response: Answer,
}

/// What the fake master does with a call.
#[derive(Clone, Copy)]
enum Answer {
    /// It returns this name.
    Name(&'static str),
    /// It returns an error.
    Refuse(Reason),
    /// It never responds.
    Work,
}

impl Fake {
    fn new(response: Answer) -> Self {
        Self { started: watch::Sender::new(0), response }
    }

    /// Returns when this number of calls has started.
    async fn has_started(&self, calls: u32) {
        self.started.subscribe().wait_for(|started| *started >= calls).await.unwrap();
    }

    async fn table(&self) -> Result<Response<admin::Table>, Status> {
        self.started.send_modify(|started| *started += 1);
        match self.response {
            Answer::Name(name) => Ok(Response::new(admin::Table { name: name.to_owned(), ..Default::default() })),
            Answer::Refuse(reason) => Err(to_status(&Error::new(reason, "refused"))),
            Answer::Work => std::future::pending().await,
        }
    }
}

#[tonic::async_trait]
impl BigtableTableAdmin for Fake {
    async fn create_table(&self, _: Request<admin::CreateTableRequest>) -> Result<Response<admin::Table>, Status> {
        self.table().await
    }

    async fn get_table(&self, _: Request<admin::GetTableRequest>) -> Result<Response<admin::Table>, Status> {
        self.table().await
    }

    async fn delete_table(&self, _: Request<admin::DeleteTableRequest>) -> Result<Response<Empty>, Status> {
        Ok(Response::new(()))
    }
}

/// A proxy with its Chubby, and a client of the proxy.
struct Fixture {
    runtime: Runtime,
    chubby: Arc<FaultyChubby>,
    directory: ChubbyDirectory,
    client: BigtableTableAdminClient<Channel>,
}

impl Fixture {
    async fn new() -> Self {
        Self::with_budget(RequestBytes::default()).await
    }

    /// With this memory for the calls that the proxy forwards.
    async fn with_budget(bounds: RequestBytes) -> Self {
        let runtime = Runtime::system("test");
        let embedded = Embedded::in_memory(runtime.clock.clone(), &runtime.tasks).shared();
        let chubby = FaultyChubby::new(embedded);
        let directory = ChubbyDirectory::start(chubby.shared(), &runtime);
        let master = MasterClient::new(chubby.shared(), directory.clone(), runtime.clone());
        let relay = AdminProxy::<BigtableTableAdminServer<()>>::new(master, AccessControl::off());
        let relay = relay.with(RequestBudget::new(bounds));
        let address = listen(&runtime, Routes::new(relay)).await;
        let client = BigtableTableAdminClient::new(runtime.net.channel(&address));
        Self { runtime, chubby, directory, client }
    }

    /// Starts a master and returns its address, and the runtime whose stop kills it.
    async fn master(&self, fake: Fake) -> (String, Runtime) {
        let runtime = self.runtime.child("master");
        let address = listen(&runtime, Routes::new(BigtableTableAdminServer::new(fake))).await;
        (address, runtime)
    }

    /// Makes the master at this address the active one.
    async fn elect(&self, address: &str) {
        let record = record::Master { address: address.to_owned(), ..Default::default() };
        self.chubby.transact(Vec::new(), vec![Write::put(paths::MASTER, encode_record(record))]).await.unwrap();
    }

    /// As [`Self::elect`]; then Chubby becomes unavailable once the directory has learned the address.
    async fn elect_and_stop_chubby(&self, address: &str) {
        let mut changes = self.directory.changes();
        self.elect(address).await;
        while self.directory.master().is_none() {
            changes.changed().await.unwrap();
        }
        self.chubby.start_outage();
    }

    async fn create(&self, timeout: Duration) -> Result<String, Status> {
        self.create_named(0, timeout).await
    }

    /// Creates a table with an id of this length.
    async fn create_named(&self, bytes: usize, timeout: Duration) -> Result<String, Status> {
        let create = admin::CreateTableRequest { table_id: "t".repeat(bytes), ..Default::default() };
        let mut request = Request::new(create);
        request.set_timeout(timeout);
        self.client.clone().create_table(request).await.map(|table| table.into_inner().name)
    }

    async fn get(&self) -> Result<String, Status> {
        let request = admin::GetTableRequest::default();
        self.client.clone().get_table(request).await.map(|table| table.into_inner().name)
    }
}

async fn listen(runtime: &Runtime, routes: Routes) -> String {
    let listener = runtime.net.listen("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().to_string();
    serve(&runtime.tasks, listener, routes, ServeOptions::default());
    address
}

const LONG: Duration = Duration::from_secs(30);
/// Timeout of a call that must fail; a slow machine reaches the reason within it.
const SHORT: Duration = Duration::from_secs(2);

#[tokio::test]
async fn calls_reach_the_master_and_its_answers_come_back() {
    let fixture = Fixture::new().await;
    let (address, _alive) = fixture.master(Fake::new(Answer::Name("one"))).await;
    fixture.elect(&address).await;
    assert_eq!(fixture.create(LONG).await.unwrap(), "one");
    fixture.client.clone().delete_table(admin::DeleteTableRequest::default()).await.unwrap();
    let missing = fixture.client.clone().list_backups(admin::ListBackupsRequest::default()).await.unwrap_err();
    assert_eq!(missing.code(), Code::Unimplemented);
    assert!(missing.message().contains("ListBackups"), "{missing}");
}

#[tokio::test]
async fn errors_of_the_master_are_returned_unchanged() {
    let fixture = Fixture::new().await;
    let (address, _alive) = fixture.master(Fake::new(Answer::Refuse(Reason::AlreadyExists))).await;
    fixture.elect(&address).await;
    let status = fixture.create(LONG).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::AlreadyExists, "refused"));
    assert_eq!(from_status(&status).0.reason, Reason::AlreadyExists);
}

#[tokio::test]
async fn without_a_master_a_call_waits_for_one() {
    let fixture = Fixture::new().await;
    let error = fixture.create(SHORT).await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable, "{error}");
    let elected_later = async {
        let (address, alive) = fixture.master(Fake::new(Answer::Name("late"))).await;
        fixture.elect(&address).await;
        alive
    };
    let (response, _alive) = tokio::join!(fixture.create(LONG), elected_later);
    assert_eq!(response.unwrap(), "late");
}

#[tokio::test]
async fn an_unreachable_master_is_not_reported_as_an_unavailable_lock_service() {
    let fixture = Fixture::new().await;
    let none = fixture.create(SHORT).await.unwrap_err();
    assert_eq!((none.code(), none.message()), (Code::Unavailable, "no active master"));
    // Killed, and its lease has not expired.
    fixture.elect("127.0.0.1:1").await;
    let killed = fixture.create(SHORT).await.unwrap_err();
    assert_eq!(killed.code(), Code::Unavailable, "{killed}");
    assert!(!killed.message().contains("lock service"), "{killed}");
}

#[tokio::test]
async fn a_call_follows_from_a_former_master_to_the_new_one() {
    let fixture = Fixture::new().await;
    let leaving = Fake::new(Answer::Refuse(Reason::NotMaster));
    let (old, _old) = fixture.master(leaving.clone()).await;
    fixture.elect(&old).await;
    let (new, _new) = fixture.master(Fake::new(Answer::Name("new"))).await;
    let change = async {
        leaving.has_started(2).await;
        fixture.elect(&new).await;
    };
    let (response, ()) = tokio::join!(fixture.create(LONG), change);
    assert_eq!(response.unwrap(), "new");
}

#[tokio::test]
async fn when_a_master_dies_during_a_call_only_idempotent_calls_are_retried() {
    let fixture = Fixture::new().await;
    let dying = Fake::new(Answer::Work);
    let (old, old_runtime) = fixture.master(dying.clone()).await;
    fixture.elect(&old).await;
    let (new, _new) = fixture.master(Fake::new(Answer::Name("new"))).await;
    let change = async {
        dying.has_started(2).await;
        fixture.elect(&new).await;
        old_runtime.tasks.stop(Duration::ZERO).await;
    };
    let (made, read, ()) = tokio::join!(fixture.create(LONG), fixture.get(), change);
    assert_eq!(read.unwrap(), "new");
    let status = made.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded);
    assert!(status.message().contains("check the result before retrying"), "{status}");
}

#[tokio::test]
async fn while_chubby_is_unavailable_calls_go_to_the_last_known_master() {
    let fixture = Fixture::new().await;
    let (address, _alive) = fixture.master(Fake::new(Answer::Name("last"))).await;
    fixture.elect_and_stop_chubby(&address).await;
    assert_eq!(fixture.create(LONG).await.unwrap(), "last");
}

#[tokio::test]
async fn a_call_during_an_outage_reports_it_and_later_finds_the_next_master() {
    let fixture = Fixture::new().await;
    let over = Fake::new(Answer::Refuse(Reason::NotMaster));
    let (old, _old) = fixture.master(over.clone()).await;
    fixture.elect_and_stop_chubby(&old).await;
    let status = fixture.create(SHORT).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    assert!(status.message().contains("the lock service is unavailable"), "{status}");
    let started = *over.started.borrow();
    let (new, _new) = fixture.master(Fake::new(Answer::Name("new"))).await;
    let change = async {
        over.has_started(started + 1).await;
        fixture.chubby.end_outage();
        fixture.elect(&new).await;
    };
    let (response, ()) = tokio::join!(fixture.create(LONG), change);
    assert_eq!(response.unwrap(), "new");
}

#[tokio::test]
async fn calls_beyond_the_budget_are_refused_until_others_have_ended() {
    const LARGE: usize = 3 << 20;
    let fixture = Fixture::with_budget(RequestBytes { total: 2 * LARGE, connection: 4 * LARGE }).await;
    let working = Fake::new(Answer::Work);
    let (old, old_runtime) = fixture.master(working.clone()).await;
    fixture.elect(&old).await;
    let others = async {
        working.has_started(1).await;
        let refused = fixture.create_named(LARGE, LONG).await.unwrap_err();
        assert_eq!(from_status(&refused).0.reason, Reason::ResourceExhausted, "{refused}");
        assert!(refused.message().contains("requests in flight on this server leave no room"), "{refused}");
        assert_eq!(*working.started.borrow(), 1, "the master has not seen it");
        // There is room for small calls.
        fixture.client.clone().delete_table(admin::DeleteTableRequest::default()).await.unwrap();
        let (new, alive) = fixture.master(Fake::new(Answer::Name("new"))).await;
        fixture.elect(&new).await;
        old_runtime.tasks.stop(Duration::ZERO).await;
        alive
    };
    let (held, _alive) = tokio::join!(fixture.create_named(LARGE, LONG), others);
    assert_eq!(held.unwrap_err().code(), Code::DeadlineExceeded, "its master was killed");
    assert_eq!(fixture.create_named(LARGE, LONG).await.unwrap(), "new", "the bytes of the first call are free");
}

#[test]
fn which_calls_are_retried() {
    let may = |reason, path| is_safe_to_retry(&Error::new(reason, ""), path);
    assert!(may(Reason::NotMaster, "/a/CreateTable"));
    assert!(may(Reason::Unavailable, "/a/CreateTable"));
    assert!(!may(Reason::OutcomeUnknown, "/a/CreateTable"));
    assert!(may(Reason::OutcomeUnknown, "/a/GetTable"));
    assert!(may(Reason::OutcomeUnknown, "/a/DropRowRange"));
    assert!(!may(Reason::AlreadyExists, "/a/GetTable"));
}
