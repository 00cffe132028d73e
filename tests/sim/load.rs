//! What the clients do: appends, single rows, bulk writes, reads and scans under faults, and at the end the proof that all
//! of it works again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use ebla_client::{Client, ReadOptions, Table};
use ebla_model::cell::Row;
use ebla_model::error::{Error, Reason};
use ebla_model::gc::GcRule;
use ebla_model::key::{RowKey, RowSet};
use ebla_model::mutation::{Mutation, WriteTime};
use ebla_model::rmw::{Operation, Rule};
use ebla_model::schema::TableName;
use ebla_runtime::{Rng, Runtime};

use crate::history::{Append, Fate, Final, Look, Put, Sweep, tokens};
use crate::time::{self, HostTime};
use crate::world::{Phase, World, held};

/// The lists, spread over the keys so that splits part them.
const LISTS: [&str; 6] = ["b", "d", "h", "m", "r", "w"];
/// Between two operations of a worker, about.
const PAUSE: Duration = Duration::from_millis(60);
/// How long everything may take to work again after the faults are healed.
const CONVERGE: Duration = Duration::from_secs(60);
/// Operations that one client has under way at once.
const WORKERS: u64 = 2;

pub(crate) fn table_name() -> TableName {
    TableName::from_parts("sim", "sim", "t").unwrap()
}

fn key(text: &str) -> RowKey {
    RowKey::copy_from_slice(text.as_bytes())
}

fn list_key(list: &str) -> RowKey {
    key(&format!("{list}/list"))
}

/// One client host: its workers run until the load ends.
pub(crate) async fn client(world: Arc<World>, number: u64) -> turmoil::Result {
    let name = format!("client-{number}");
    let runtime = world.runtime(&name, &HostTime::default(), 0);
    wait_for(&world, Phase::Load).await;
    let workers = (0..WORKERS).map(|worker| {
        let rng = runtime.rng.fork();
        let (id, own) = (number * WORKERS + worker, None);
        Worker { world: Arc::clone(&world), runtime: runtime.clone(), rng, id, sent: 0, own }
    });
    futures::future::join_all(workers.map(Worker::run)).await;
    world.drained.fetch_add(1, Ordering::Relaxed);
    world.note(&name, "drained", "");
    Ok(())
}

async fn wait_for(world: &World, phase: Phase) {
    while world.phase() != phase {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

struct Worker {
    world: Arc<World>,
    runtime: Runtime,
    rng: Rng,
    id: u64,
    sent: u64,
    /// The row that it alone writes, until a write fails.
    own: Option<String>,
}

impl Worker {
    async fn run(mut self) {
        while self.world.phase() == Phase::Load {
            let Some(table) = self.connect().await else { continue };
            // After some operations, or an error, another way in.
            for _ in 0..20 + self.rng.below(40) {
                if self.world.phase() != Phase::Load || !self.operate(&table).await {
                    break;
                }
                tokio::time::sleep(self.rng.jitter(PAUSE)).await;
            }
        }
    }

    /// A way in through some server: half of the time the public API, half of the time straight to the tablets' leaders.
    async fn connect(&self) -> Option<Table> {
        let servers = &self.world.servers;
        let server = &servers[usize::try_from(self.rng.below(servers.len() as u64)).unwrap()];
        let client = if self.rng.below(2) == 0 {
            Client::endpoint(&server.address(), self.runtime.clone())
        } else {
            let address = server.address();
            let asked = Client::connect_cluster(&address, self.runtime.clone());
            match tokio::time::timeout(Duration::from_secs(2), asked).await {
                Ok(Ok(client)) => client,
                _ => {
                    tokio::time::sleep(self.rng.jitter(Duration::from_millis(200))).await;
                    return None;
                }
            }
        };
        let timeout = Duration::from_secs(1 + self.rng.below(8));
        Some(client.table(&table_name()).with_timeout(timeout))
    }

    /// One operation by chance; whether it succeeded.
    async fn operate(&mut self, table: &Table) -> bool {
        if self.world.owns && self.rng.below(100) < 40 {
            return self.overwrite(table).await;
        }
        match self.rng.below(100) {
            0..40 => self.append(table).await,
            40..65 => self.look(table).await,
            65..80 => self.put(table).await,
            80..92 => self.put_many(table).await,
            _ => self.sweep(table).await,
        }
    }

    fn list(&self) -> String {
        LISTS[usize::try_from(self.rng.below(LISTS.len() as u64)).unwrap()].to_owned()
    }

    async fn append(&mut self, table: &Table) -> bool {
        self.sent += 1;
        let (list, token) = (self.list(), format!("{}-{}", self.id, self.sent));
        let began = time::elapsed();
        let place = {
            let mut history = held(&self.world.history);
            history.appends.push(Append { list: list.clone(), token: token.clone(), began, fate: Fate::Unknown });
            history.appends.len() - 1
        };
        let answer = append(table, &list, &token).await;
        let ended = time::elapsed();
        self.note("append", &token, answer.as_ref().err());
        let Ok(row) = answer else { return false };
        let mut history = held(&self.world.history);
        history.appends[place].fate = Fate::Acknowledged(ended);
        let seen = list_of(&row);
        if seen.last() != Some(&token) {
            history.wrong.push(format!("append: the answer to {token} of list {list} does not end in it"));
        }
        history.looks.push(Look { list, began, ended, seen });
        true
    }

    async fn look(&self, table: &Table) -> bool {
        let (list, began) = (self.list(), time::elapsed());
        let answer = table.read_row(&list_key(&list), None).await;
        let ended = time::elapsed();
        self.note("look", &list, answer.as_ref().err());
        let Ok(row) = answer else { return false };
        let seen = row.as_ref().map(list_of).unwrap_or_default();
        held(&self.world.history).looks.push(Look { list, began, ended, seen });
        true
    }

    async fn put(&mut self, table: &Table) -> bool {
        let (row, value) = self.fresh();
        let places = self.announce([(row.clone(), value.clone())]);
        let answer = table.mutate_row(&key(&row), &both(&value)).await;
        self.note("put", &row, answer.as_ref().err());
        self.acknowledge(&places, &[answer.is_ok()]);
        answer.is_ok()
    }

    async fn put_many(&mut self, table: &Table) -> bool {
        let rows: Vec<(String, String)> = (0..2 + self.rng.below(4)).map(|_| self.fresh()).collect();
        let places = self.announce(rows.clone());
        let entries: Vec<_> = rows.iter().map(|(row, value)| (key(row), both(value))).collect();
        let answer = table.mutate_rows(&entries).await;
        self.note("put-many", &rows[0].0, answer.as_ref().err());
        let Ok(answers) = answer else { return false };
        let fates: Vec<bool> = answers.iter().map(Result::is_ok).collect();
        self.acknowledge(&places, &fates);
        fates.iter().all(|fate| *fate)
    }

    /// Writes the next number to the row of its own, and reads it.
    async fn overwrite(&mut self, table: &Table) -> bool {
        let row = match self.own.take() {
            Some(row) => row,
            None => self.fresh().0,
        };
        let number = {
            let mut history = held(&self.world.history);
            let own = history.owns.entry(row.clone()).or_default();
            own.sent += 1;
            own.sent
        };
        let value = Bytes::from(number.to_string());
        let set = Mutation::SetCell {
            family: "v".to_owned(),
            qualifier: Bytes::from_static(b"q"),
            timestamp: WriteTime::Server,
            value,
        };
        let answer = table.mutate_row(&key(&row), &[set]).await;
        self.note("overwrite", &row, answer.as_ref().err());
        if answer.is_err() {
            return false;
        }
        self.own = Some(row.clone());
        if let Some(own) = held(&self.world.history).owns.get_mut(&row) {
            own.acknowledged = number;
        }
        let read = table.read_row(&key(&row), None).await;
        self.note("look-own", &row, read.as_ref().err());
        let Ok(read) = read else { return false };
        let seen = read.map(|row| values(&row).1.concat()).unwrap_or_default();
        let mut history = held(&self.world.history);
        let wrong = history.judge_own(&row, &seen, number);
        history.wrong.extend(wrong);
        true
    }

    async fn sweep(&self, table: &Table) -> bool {
        let began = time::elapsed();
        let answer = table.read_rows(RowSet::all(), ReadOptions::default()).await;
        self.note("sweep", "", answer.as_ref().err());
        let Ok(rows) = answer else { return false };
        let rows = rows.iter().map(|row| String::from_utf8_lossy(row.key.as_bytes()).into_owned()).collect();
        held(&self.world.history).sweeps.push(Sweep { began, rows });
        true
    }

    /// A row that nobody has written, and what to write.
    fn fresh(&mut self) -> (String, String) {
        self.sent += 1;
        let letter = char::from(b'a' + u8::try_from(self.rng.below(26)).unwrap());
        (format!("{letter}/{}-{}", self.id, self.sent), format!("v{}-{}", self.id, self.sent))
    }

    fn announce(&self, rows: impl IntoIterator<Item = (String, String)>) -> Vec<usize> {
        let began = time::elapsed();
        let mut history = held(&self.world.history);
        let rows = rows.into_iter().map(|(row, value)| {
            history.puts.push(Put { row, value, began, fate: Fate::Unknown });
            history.puts.len() - 1
        });
        rows.collect()
    }

    fn acknowledge(&self, places: &[usize], fates: &[bool]) {
        let ended = time::elapsed();
        let mut history = held(&self.world.history);
        for (place, _) in places.iter().zip(fates).filter(|(_, fate)| **fate) {
            history.puts[*place].fate = Fate::Acknowledged(ended);
        }
    }

    fn note(&self, kind: &str, what: &str, error: Option<&Error>) {
        let outcome = error.map_or("ok", |error| error.reason.name());
        self.world.note(&format!("worker-{}", self.id), kind, &format!("{what} {outcome}"));
        if let Some(error) = error {
            tracing::info!(worker = self.id, kind, what, %error, "operation failed");
        }
    }
}

fn both(value: &str) -> Vec<Mutation> {
    let set = |family: &str| Mutation::SetCell {
        family: family.to_owned(),
        qualifier: Bytes::from_static(b"q"),
        timestamp: WriteTime::Server,
        value: Bytes::copy_from_slice(value.as_bytes()),
    };
    vec![set("v"), set("w")]
}

async fn append(table: &Table, list: &str, token: &str) -> Result<Row, Error> {
    let rule = Rule {
        family: "l".to_owned(),
        qualifier: Bytes::from_static(b"q"),
        operation: Operation::Append(Bytes::from(format!("{token},"))),
    };
    table.read_modify_write(&list_key(list), &[rule]).await
}

fn list_of(row: &Row) -> Vec<String> {
    let cells = row.cells.iter().filter(|cell| cell.family.as_str() == "l");
    cells.max_by_key(|cell| cell.timestamp).map(|cell| tokens(&cell.value)).unwrap_or_default()
}

/// The host that makes the table, orders splits, and proves in the end that everything works.
pub(crate) async fn overseer(world: Arc<World>, splits: Vec<(Duration, String)>) -> turmoil::Result {
    let runtime = world.runtime("overseer", &HostTime::default(), 0);
    make_table(&world, &runtime).await;
    world.note("overseer", "table", "");
    *held(&world.phase) = Phase::Load;
    for (at, split) in splits {
        let now = time::elapsed();
        tokio::time::sleep(at.saturating_sub(now)).await;
        if world.phase() != Phase::Load {
            break;
        }
        order_split(&world, &runtime, &split).await;
    }
    wait_for(&world, Phase::Converge).await;
    let wrong = match tokio::time::timeout(CONVERGE, read_all(&world, &runtime)).await {
        Ok(end) => held(&world.history).check(&end),
        Err(_elapsed) => vec![format!("not live: not everything works {CONVERGE:?} after all faults were healed")],
    };
    world.note("overseer", "verdict", &wrong.len().to_string());
    *held(&world.verdict) = Some(wrong);
    Ok(())
}

async fn make_table(world: &World, runtime: &Runtime) {
    let families: Vec<_> =
        ["l", "v", "w"].iter().map(|name| ((*name).to_owned(), Some(GcRule::MaxVersions(1)))).collect();
    for turn in 0.. {
        let server = &world.servers[turn % world.servers.len()];
        let admin = ebla_client::Admin::connect(&server.address(), runtime);
        match tokio::time::timeout(Duration::from_secs(10), admin.create_table(&table_name(), &families, &[])).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) if error.reason == Reason::AlreadyExists => return,
            Ok(Err(error)) => tracing::info!(%error, "no table yet"),
            Err(_elapsed) => {}
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

async fn order_split(world: &World, runtime: &Runtime, split: &str) {
    let server = &world.servers[usize::try_from(runtime.rng.below(world.servers.len() as u64)).unwrap()];
    let admin = ebla_client::Admin::connect(&server.address(), runtime);
    let (name, at, nowhere) = (table_name(), key(split), RowKey::EMPTY);
    let ordered = admin.split(&name, Some(&at), &nowhere);
    let outcome = match tokio::time::timeout(Duration::from_secs(5), ordered).await {
        Ok(Ok(_)) => "ok",
        Ok(Err(error)) => error.reason.name(),
        Err(_elapsed) => "silence",
    };
    held(&world.trace).count(time::elapsed(), "overseer", "split", &format!("{split} {outcome}"));
}

/// Appends to every list, reads every row through every server: all of it must succeed in the end.
async fn read_all(world: &World, runtime: &Runtime) -> Final {
    let mut end = Final::default();
    for (number, server) in world.servers.iter().enumerate() {
        let table = Client::endpoint(&server.address(), runtime.clone()).table(&table_name());
        let table = table.with_timeout(Duration::from_secs(5));
        for list in LISTS {
            let token = format!("last-{number}-{list}");
            let began = time::elapsed();
            let mut tries = 0;
            let row = loop {
                let attempt = format!("{token}-{tries}");
                let place = {
                    let mut history = held(&world.history);
                    history.appends.push(Append {
                        list: list.to_owned(),
                        token: attempt.clone(),
                        began,
                        fate: Fate::Unknown,
                    });
                    history.appends.len() - 1
                };
                match append(&table, list, &attempt).await {
                    Ok(row) => {
                        held(&world.history).appends[place].fate = Fate::Acknowledged(time::elapsed());
                        break row;
                    }
                    Err(error) => tracing::info!(%error, server = server.name, list, "not yet"),
                }
                tries += 1;
                tokio::time::sleep(Duration::from_millis(100)).await;
            };
            end.lists.insert(list.to_owned(), list_of(&row));
        }
        world.note("overseer", "appended", &server.name);
        end.rows = read_rows(&table).await;
    }
    end
}

async fn read_rows(table: &Table) -> BTreeMap<String, Vec<String>> {
    loop {
        match table.read_rows(RowSet::all(), ReadOptions::default()).await {
            Ok(rows) => {
                let written = rows.iter().filter(|row| !row.key.as_bytes().ends_with(b"/list"));
                return written.map(values).collect();
            }
            Err(error) => tracing::info!(%error, "not yet"),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn values(row: &Row) -> (String, Vec<String>) {
    let key = String::from_utf8_lossy(row.key.as_bytes()).into_owned();
    (key, row.cells.iter().map(|cell| String::from_utf8_lossy(&cell.value).into_owned()).collect())
}
