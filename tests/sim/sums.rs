//! Clients that count: increments of counters and additions to aggregate cells, with and without an idempotency token.
//!
//! A write without a token may fail with an unknown outcome. A write with a token is repeated through new connections, which
//! have new sessions, until it is acknowledged, so only its token prevents that it counts twice. The checker of the verifying load
//! decides: each acknowledged write counts once, one of unknown outcome at most once.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use ebla_client::{Client, Modify, RowWrite};
use ebla_model::aggregate::AggregateInput;
use ebla_model::cell::Row;
use ebla_model::error::{Error, Reason};
use ebla_model::gc::GcRule;
use ebla_model::idempotency::IdempotencyToken;
use ebla_model::mutation::Mutation;
use ebla_model::rmw::{Operation, Rule};
use ebla_model::time::Micros;
use ebla_proto::admin::modify_column_families_request::{Modification, modification::Mod};
use ebla_proto::admin::r#type::{Aggregate, Kind, aggregate::Aggregator};
use ebla_proto::services::bigtable_table_admin_client::BigtableTableAdminClient;
use ebla_proto::{admin, convert, data};
use ebla_runtime::{Rng, Runtime};
use ebla_workload::verify::History as Recorded;
use ebla_workload::verify::history::{Action, Process};
use prost::Message;

use crate::cluster::{Phase, SimCluster};
use crate::history::operation;
use crate::load::{any_address, key, table_name, wait_for};
use crate::time::{self, HostTime};

/// The rows with sums, spread over the keys. The checkers recognise counters by the second part of the name.
const ROWS: [&str; 3] = ["c/count", "k/count", "s/count"];
/// The family of counters.
const COUNTERS: &str = "c";
/// The family of aggregate cells.
const AGGREGATES: &str = "a";
/// Concurrent operations of one client.
const WORKERS: u64 = 2;
/// Between two operations of a worker, about.
const PAUSE: Duration = Duration::from_millis(50);
/// The longest timeout of one attempt with a token, in milliseconds: short, so that writes are applied whose response is lost.
const ATTEMPT_MS_MAX: u64 = 400;
/// Timeout of a connection.
const CONNECT: Duration = Duration::from_secs(2);

/// A sum in one cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sum {
    row: &'static str,
    family: &'static str,
    /// The column is of its own, so that writes of unknown outcome do not hide errors in it.
    has_token: bool,
}

impl Sum {
    fn draw(rng: &Rng) -> Self {
        let row = ROWS[usize::try_from(rng.below(ROWS.len() as u64)).unwrap()];
        let family = if rng.below(2) == 0 { COUNTERS } else { AGGREGATES };
        Self { row, family, has_token: rng.below(2) == 0 }
    }

    fn of_row(row: &'static str) -> impl Iterator<Item = Self> {
        let families = [COUNTERS, AGGREGATES].into_iter();
        families.flat_map(move |family| [true, false].map(|has_token| Self { row, family, has_token }))
    }

    const fn qualifier(self) -> &'static str {
        if self.has_token { "token" } else { "plain" }
    }

    /// The sum in a row that was read; an error when the cell is not a number.
    fn read(self, row: Option<&Row>) -> Result<i64, String> {
        let cell = row.and_then(|row| row.newest(self.family, self.qualifier().as_bytes()));
        let Some(cell) = cell else { return Ok(0) };
        let bytes = <[u8; 8]>::try_from(cell.value.as_ref());
        bytes.map(i64::from_be_bytes).map_err(|_| format!("broken: {} has {:?}", self.name(), cell.value))
    }

    fn name(self) -> String {
        format!("{}/{}/{}", self.row, self.family, self.qualifier())
    }
}

/// Whether a row belongs to this load.
pub(crate) fn is_row(row: &str) -> bool {
    ROWS.contains(&row)
}

/// An addition of one.
#[derive(Clone, Debug)]
struct Addition {
    sum: String,
    writer: u32,
    began: Duration,
    /// When it was acknowledged, and the new sum if the response has it; `None`: its outcome is unknown.
    acknowledged: Option<(Duration, Option<i64>)>,
}

/// A read of a sum.
#[derive(Clone, Debug)]
struct SumRead {
    sum: String,
    began: Duration,
    ended: Duration,
    count: i64,
}

/// All operations on sums.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sums {
    additions: Vec<Addition>,
    reads: Vec<SumRead>,
}

impl Sums {
    /// Records an addition that is about to be sent; its number.
    fn begin(&mut self, sum: String, writer: u32, began: Duration) -> usize {
        self.additions.push(Addition { sum, writer, began, acknowledged: None });
        self.additions.len() - 1
    }

    fn acknowledge(&mut self, number: usize, at: Duration, count: Option<i64>) {
        self.additions[number].acknowledged = Some((at, count));
    }

    /// Adds the operations to a history for the checkers.
    pub(crate) fn record(&self, recorded: &mut Recorded) {
        for addition in &self.additions {
            let (end, count) = addition.acknowledged.unzip();
            let action = Action::Increment { count: count.flatten() };
            recorded.note(&addition.sum, operation(Process::Writer(addition.writer), addition.began, end, action));
        }
        for read in &self.reads {
            let action = Action::Count { count: read.count };
            recorded.note(&read.sum, operation(Process::ReadBack, read.began, Some(read.ended), action));
        }
    }

    /// The number of acknowledged additions, and of those with unknown outcome.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let known = self.additions.iter().filter(|addition| addition.acknowledged.is_some()).count();
        (known, self.additions.len() - known)
    }
}

/// Adds the families of the sums to the table; repeats until they exist.
pub(crate) async fn add_families(cluster: &SimCluster, runtime: &Runtime) {
    let integer = admin::Type { kind: Some(Kind::Int64Type(admin::r#type::Int64::default())) };
    let sum = Aggregate {
        input_type: Some(Box::new(integer)),
        state_type: None,
        aggregator: Some(Aggregator::Sum(admin::r#type::aggregate::Sum::default())),
    };
    let aggregates = admin::ColumnFamily {
        value_type: Some(admin::Type { kind: Some(Kind::AggregateType(Box::new(sum))) }),
        ..admin::ColumnFamily::default()
    };
    let counters = admin::ColumnFamily {
        gc_rule: Some(convert::admin::gc_rule_to_admin(&GcRule::MaxVersions(1))),
        ..admin::ColumnFamily::default()
    };
    let created = [(COUNTERS, counters), (AGGREGATES, aggregates)].map(|(id, family)| Modification {
        id: id.to_owned(),
        r#mod: Some(Mod::Create(family)),
        ..Modification::default()
    });
    let message = admin::ModifyColumnFamiliesRequest {
        name: table_name().as_str().to_owned(),
        modifications: created.to_vec(),
        ..admin::ModifyColumnFamiliesRequest::default()
    };
    loop {
        let mut client = BigtableTableAdminClient::new(runtime.net.channel(&any_address(cluster, &runtime.rng)));
        let answer = tokio::time::timeout(CONNECT, client.modify_column_families(message.clone())).await;
        let error = match answer {
            Ok(Ok(_table)) => return,
            Ok(Err(status)) => ebla_proto::status::from_status(&status).0,
            Err(_elapsed) => Error::new(Reason::Deadline, "no answer"),
        };
        if error.reason == Reason::AlreadyExists {
            return;
        }
        tracing::info!(%error, "no families yet");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// One client host that counts: its workers run until the load ends.
pub(crate) async fn client(cluster: Arc<SimCluster>, number: u64) -> turmoil::Result {
    let name = format!("counter-{number}");
    let runtime = cluster.runtime(&name, &HostTime::default(), 0);
    wait_for(&cluster, Phase::Load).await;
    let workers = (0..WORKERS).map(|worker| {
        let id = u32::try_from(number * WORKERS + worker).unwrap();
        let (cluster, runtime, rng) = (Arc::clone(&cluster), runtime.clone(), runtime.rng.fork());
        Worker { cluster, runtime, rng, id, sent: 0, client: None }
    });
    futures::future::join_all(workers.map(Worker::run)).await;
    cluster.drained.fetch_add(1, Ordering::Relaxed);
    cluster.note(&name, "drained", "");
    Ok(())
}

struct Worker {
    cluster: Arc<SimCluster>,
    runtime: Runtime,
    rng: Rng,
    id: u32,
    sent: u64,
    /// The connection, until an operation fails.
    client: Option<Client>,
}

impl Worker {
    async fn run(mut self) {
        while self.cluster.phase() == Phase::Load {
            match self.rng.below(4) {
                0 => self.read().await,
                _ => self.add(Sum::draw(&self.rng)).await,
            }
            tokio::time::sleep(self.rng.jitter(PAUSE)).await;
        }
    }

    /// Adds one. With a token until that is acknowledged, also after the end of the load.
    async fn add(&mut self, sum: Sum) {
        self.sent += 1;
        let token = sum.has_token.then(|| IdempotencyToken {
            token: Bytes::from(format!("{}-{:08}", sum.name(), (u64::from(self.id) << 32) | self.sent)),
            started: None,
        });
        let number = self.cluster.history.lock().sums.begin(sum.name(), self.id, time::elapsed());
        while matches!(self.cluster.phase(), Phase::Load | Phase::Drain) {
            let timeout = match token {
                Some(_) => Duration::from_millis(1 + self.rng.below(1 + self.rng.below(ATTEMPT_MS_MAX))),
                None => Duration::from_millis(500 + self.rng.below(5_000)),
            };
            let answer = match self.connect().await {
                Some(client) => add_one(&client, sum, token.clone(), timeout).await,
                None => Err(Error::new(Reason::Unavailable, "no connection")),
            };
            self.note("add", &sum.name(), answer.as_ref().err());
            match answer {
                Ok(count) => return self.cluster.history.lock().sums.acknowledge(number, time::elapsed(), count),
                Err(_) if token.is_none() => return,
                Err(_) => tokio::time::sleep(self.rng.jitter(PAUSE)).await,
            }
        }
    }

    /// Reads all sums of a row.
    async fn read(&mut self) {
        let row = ROWS[usize::try_from(self.rng.below(ROWS.len() as u64)).unwrap()];
        let Some(client) = self.connect().await else { return };
        let answer = read_row(&self.cluster, &client, row, Duration::from_secs(1 + self.rng.below(4))).await;
        self.note("read", row, answer.as_ref().err());
    }

    /// The connection to a random server.
    async fn connect(&mut self) -> Option<Client> {
        if self.client.is_none() {
            let address = any_address(&self.cluster, &self.rng);
            let asked = Client::connect_cluster(&address, self.runtime.clone());
            self.client = tokio::time::timeout(CONNECT, asked).await.ok().and_then(Result::ok);
        }
        if self.client.is_none() {
            tokio::time::sleep(self.rng.jitter(Duration::from_millis(200))).await;
        }
        self.client.clone()
    }

    fn note(&mut self, kind: &str, what: &str, error: Option<&Error>) {
        let outcome = error.map_or("ok", |error| error.reason.name());
        self.cluster.note(&format!("counter-{}", self.id), kind, &format!("{what} {outcome}"));
        if let Some(error) = error {
            self.client = None;
            tracing::info!(counter = self.id, kind, what, %error, "operation failed");
        }
    }
}

/// Adds one; the new sum, if the response has it.
async fn add_one(
    client: &Client,
    sum: Sum,
    token: Option<IdempotencyToken>,
    timeout: Duration,
) -> Result<Option<i64>, Error> {
    let added = async {
        let cluster = client.low_level()?;
        let table = cluster.table_id(&table_name()).await?;
        let deadline = cluster.deadline(timeout);
        let (row, qualifier) = (key(sum.row), Bytes::from_static(sum.qualifier().as_bytes()));
        if sum.family == AGGREGATES {
            let (family, timestamp, input) = (AGGREGATES.to_owned(), Micros::ZERO, AggregateInput::Int64(1));
            let add = Mutation::AddToCell { family, qualifier, timestamp, input };
            let write = RowWrite { row, mutations: vec![convert::mutation_to_bytes(&add)], token };
            return cluster.mutate_row(table, write, deadline).await.map(|()| None);
        }
        let rule = Rule { family: COUNTERS.to_owned(), qualifier, operation: Operation::Increment(1) };
        let modify = Modify { row, rules: vec![convert::rule_to_bytes(&rule)], token };
        let response = cluster.modify(table, &modify, deadline).await?;
        count_in(sum, response).map(Some)
    };
    tokio::time::timeout(timeout + CONNECT, added)
        .await
        .unwrap_or_else(|_elapsed| Err(Error::new(Reason::Deadline, "no answer")))
}

/// The new sum in an encoded response.
fn count_in(sum: Sum, response: Bytes) -> Result<i64, Error> {
    let response = data::ReadModifyWriteRowResponse::decode(response);
    let response = response.map_err(|error| Error::internal(format!("decode row: {error}")))?;
    let row = response.row.as_ref().map(convert::row_from_proto).transpose()?;
    sum.read(row.as_ref()).map_err(Error::internal)
}

/// Reads all sums of a row and records them.
async fn read_row(cluster: &SimCluster, client: &Client, row: &'static str, timeout: Duration) -> Result<(), Error> {
    let began = time::elapsed();
    let found = client.table(&table_name()).with_timeout(timeout).read_row(&key(row), None).await?;
    let ended = time::elapsed();
    let mut history = cluster.history.lock();
    for sum in Sum::of_row(row) {
        match sum.read(found.as_ref()) {
            Ok(count) => history.sums.reads.push(SumRead { sum: sum.name(), began, ended, count }),
            Err(wrong) => history.wrong.push(wrong),
        }
    }
    Ok(())
}

/// Reads all sums through this server; repeats until that succeeds.
pub(crate) async fn read_all(cluster: &SimCluster, runtime: &Runtime, address: &str) {
    for row in ROWS {
        let client = Client::endpoint(address, runtime.clone());
        while let Err(error) = read_row(cluster, &client, row, Duration::from_secs(5)).await {
            tracing::info!(%error, row, "read failed; retrying");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}
