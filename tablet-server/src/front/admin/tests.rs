//! The hand-over between a client, a relay and masters that do what a test wants, over real sockets.

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

/// A master for a test, which counts the calls it has begun.
#[derive(Clone)]
struct Fake {
    begun: watch::Sender<u32>,
    answer: Answer,
}

/// What a master answers.
#[derive(Clone, Copy)]
enum Answer {
    /// Itself, by name.
    Name(&'static str),
    /// An error.
    Refuse(Reason),
    /// Nothing: it works until it is killed.
    Work,
}

impl Fake {
    fn new(answer: Answer) -> Self {
        Self { begun: watch::Sender::new(0), answer }
    }

    /// Returns when so many calls have begun.
    async fn has_begun(&self, calls: u32) {
        self.begun.subscribe().wait_for(|begun| *begun >= calls).await.unwrap();
    }

    async fn table(&self) -> Result<Response<admin::Table>, Status> {
        self.begun.send_modify(|begun| *begun += 1);
        match self.answer {
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

/// A relay with its Chubby, and a client of the relay.
struct House {
    runtime: Runtime,
    chubby: Arc<FaultyChubby>,
    directory: ChubbyDirectory,
    client: BigtableTableAdminClient<Channel>,
}

impl House {
    async fn new() -> Self {
        let runtime = Runtime::system("test");
        let embedded = Embedded::in_memory(runtime.clock.clone(), &runtime.tasks).shared();
        let chubby = FaultyChubby::new(embedded);
        let directory = ChubbyDirectory::start(chubby.shared(), &runtime);
        let master = Master::new(chubby.shared(), directory.clone(), runtime.clone());
        let relay = Relay::<BigtableTableAdminServer<()>>::new(master);
        let address = listen(&runtime, Routes::new(relay)).await;
        let client = BigtableTableAdminClient::new(runtime.net.channel(&address));
        Self { runtime, chubby, directory, client }
    }

    /// Starts a master and returns its address, and the runtime that it ends with.
    async fn master(&self, fake: Fake) -> (String, Runtime) {
        let runtime = self.runtime.child("master");
        let address = listen(&runtime, Routes::new(BigtableTableAdminServer::new(fake))).await;
        (address, runtime)
    }

    /// Puts the master of this address into office.
    async fn elect(&self, address: &str) {
        let record = record::Master { address: address.to_owned(), ..Default::default() };
        self.chubby.transact(Vec::new(), vec![Write::put(paths::MASTER, encode_record(record))]).await.unwrap();
    }

    /// As [`Self::elect`], and Chubby goes away when that is known here.
    async fn elect_and_leave(&self, address: &str) {
        let mut changes = self.directory.changes();
        self.elect(address).await;
        while self.directory.master().is_none() {
            changes.changed().await.unwrap();
        }
        self.chubby.start_outage();
    }

    async fn create(&self, limit: Duration) -> Result<String, Status> {
        let mut request = Request::new(admin::CreateTableRequest::default());
        request.set_timeout(limit);
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
/// A call that is to fail waits it out; a busy machine gets to the reason within it.
const SHORT: Duration = Duration::from_secs(2);

#[tokio::test]
async fn calls_reach_the_master_and_its_answers_come_back() {
    let house = House::new().await;
    let (address, _alive) = house.master(Fake::new(Answer::Name("one"))).await;
    house.elect(&address).await;
    assert_eq!(house.create(LONG).await.unwrap(), "one");
    house.client.clone().delete_table(admin::DeleteTableRequest::default()).await.unwrap();
    let missing = house.client.clone().list_backups(admin::ListBackupsRequest::default()).await.unwrap_err();
    assert_eq!(missing.code(), Code::Unimplemented);
    assert!(missing.message().contains("ListBackups"), "{missing}");
}

#[tokio::test]
async fn refusals_come_back_in_the_masters_own_words() {
    let house = House::new().await;
    let (address, _alive) = house.master(Fake::new(Answer::Refuse(Reason::AlreadyExists))).await;
    house.elect(&address).await;
    let status = house.create(LONG).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::AlreadyExists, "refused"));
    assert_eq!(from_status(&status).0.reason, Reason::AlreadyExists);
}

#[tokio::test]
async fn without_a_master_a_call_waits_for_one() {
    let house = House::new().await;
    let hopeless = house.create(SHORT).await.unwrap_err();
    assert_eq!(hopeless.code(), Code::Unavailable, "{hopeless}");
    let elected_later = async {
        let (address, alive) = house.master(Fake::new(Answer::Name("late"))).await;
        house.elect(&address).await;
        alive
    };
    let (answer, _alive) = tokio::join!(house.create(LONG), elected_later);
    assert_eq!(answer.unwrap(), "late");
}

#[tokio::test]
async fn a_master_that_does_not_answer_is_not_taken_for_a_lock_service_that_does_not() {
    let house = House::new().await;
    let none = house.create(SHORT).await.unwrap_err();
    assert_eq!((none.code(), none.message()), (Code::Unavailable, "no master is in office"));
    // Killed, and its lease has not ended.
    house.elect("127.0.0.1:1").await;
    let killed = house.create(SHORT).await.unwrap_err();
    assert_eq!(killed.code(), Code::Unavailable, "{killed}");
    assert!(!killed.message().contains("lock service"), "{killed}");
}

#[tokio::test]
async fn a_master_that_left_office_is_followed_to_the_next() {
    let house = House::new().await;
    let leaving = Fake::new(Answer::Refuse(Reason::NotMaster));
    let (old, _old) = house.master(leaving.clone()).await;
    house.elect(&old).await;
    let (new, _new) = house.master(Fake::new(Answer::Name("new"))).await;
    let change = async {
        leaving.has_begun(2).await;
        house.elect(&new).await;
    };
    let (answer, ()) = tokio::join!(house.create(LONG), change);
    assert_eq!(answer.unwrap(), "new");
}

#[tokio::test]
async fn a_master_that_dies_at_work_is_asked_again_only_for_what_may_be_repeated() {
    let house = House::new().await;
    let dying = Fake::new(Answer::Work);
    let (old, old_runtime) = house.master(dying.clone()).await;
    house.elect(&old).await;
    let (new, _new) = house.master(Fake::new(Answer::Name("new"))).await;
    let change = async {
        dying.has_begun(2).await;
        house.elect(&new).await;
        old_runtime.tasks.stop(Duration::ZERO).await;
    };
    let (made, read, ()) = tokio::join!(house.create(LONG), house.get(), change);
    assert_eq!(read.unwrap(), "new");
    let status = made.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded);
    assert!(status.message().contains("look before trying again"), "{status}");
}

#[tokio::test]
async fn while_chubby_is_away_the_last_master_is_asked() {
    let house = House::new().await;
    let (address, _alive) = house.master(Fake::new(Answer::Name("last"))).await;
    house.elect_and_leave(&address).await;
    assert_eq!(house.create(LONG).await.unwrap(), "last");
}

#[tokio::test]
async fn who_waits_for_chubby_in_vain_is_told_so_and_else_finds_the_next_master() {
    let house = House::new().await;
    let over = Fake::new(Answer::Refuse(Reason::NotMaster));
    let (old, _old) = house.master(over.clone()).await;
    house.elect_and_leave(&old).await;
    let status = house.create(SHORT).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    assert!(status.message().contains("the lock service is away"), "{status}");
    let begun = *over.begun.borrow();
    let (new, _new) = house.master(Fake::new(Answer::Name("new"))).await;
    let change = async {
        over.has_begun(begun + 1).await;
        house.chubby.end_outage();
        house.elect(&new).await;
    };
    let (answer, ()) = tokio::join!(house.create(LONG), change);
    assert_eq!(answer.unwrap(), "new");
}

#[test]
fn what_may_be_sent_again() {
    let may = |reason, path| may_be_sent_again(&Error::new(reason, ""), path);
    assert!(may(Reason::NotMaster, "/a/CreateTable"));
    assert!(may(Reason::Unavailable, "/a/CreateTable"));
    assert!(!may(Reason::OutcomeUnknown, "/a/CreateTable"));
    assert!(may(Reason::OutcomeUnknown, "/a/GetTable"));
    assert!(may(Reason::OutcomeUnknown, "/a/DropRowRange"));
    assert!(!may(Reason::AlreadyExists, "/a/GetTable"));
}
