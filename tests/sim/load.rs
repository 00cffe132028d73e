//! The clients: appends, single rows, bulk writes, reads and scans under faults, and at the end the check that all operations
//! succeed again.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use ebla_client::{Admin, Client, ReadOptions, Table};
use ebla_model::cell::Row;
use ebla_model::error::{Error, Reason};
use ebla_model::gc::GcRule;
use ebla_model::id::GroupId;
use ebla_model::key::{RowKey, RowSet};
use ebla_model::mutation::{Mutation, WriteTime};
use ebla_model::rmw::{Operation, Rule};
use ebla_model::schema::TableName;
use ebla_runtime::{Rng, Runtime};
use ebla_workload::verify::history::{Prefix, Token};
use tokio::time::error::Elapsed;

use crate::cluster::{Phase, SimCluster, SimHost};
use crate::divisions::request_division;
use crate::history::{Copies, Final, FullScan, ListRead, content, list_row};
use crate::time::{self, HostTime};
use crate::{ages, drops, large, lost, lost_answers, names, quiet, space, steps, sums};

/// The lists, spread over the keys so that splits part them.
const LISTS: [&str; 6] = ["b", "d", "h", "m", "r", "w"];
/// Between two operations of a worker, about.
const PAUSE: Duration = Duration::from_millis(60);
/// The same after an error while a disk is full.
const AFTER_REFUSAL: Duration = Duration::from_millis(200);
/// Timeout of the recovery after all faults have ended.
const CONVERGE: Duration = Duration::from_secs(60);
/// Timeout after that until METADATA lists each tablet once: the master reconciles once a minute.
const LISTED: Duration = Duration::from_secs(90);
/// The maximum age of cells: longer than any run, shorter than some jumps of clocks.
const AGE_MAX: Duration = Duration::from_secs(30 * 60);
/// The writer of the appends of the final checks.
const OVERSEER: u32 = 1_000;
/// Concurrent operations of one client.
const WORKERS: u64 = 2;

pub(crate) fn table_name() -> TableName {
    TableName::from_parts("sim", "sim", "t").unwrap()
}

pub(crate) fn key(text: &str) -> RowKey {
    RowKey::copy_from_slice(text.as_bytes())
}

fn list_key(list: &str) -> RowKey {
    key(&list_row(list))
}

/// One client host: its workers run until the load ends.
pub(crate) async fn client(cluster: Arc<SimCluster>, number: u64) -> turmoil::Result {
    let name = format!("client-{number}");
    let runtime = cluster.runtime(&name, &HostTime::default(), 0);
    wait_for(&cluster, Phase::Load).await;
    let workers = (0..WORKERS).map(|worker| {
        let rng = runtime.rng.fork();
        let (id, own) = (u32::try_from(number * WORKERS + worker).unwrap(), None);
        Worker { cluster: Arc::clone(&cluster), runtime: runtime.clone(), rng, id, sent: 0, own }
    });
    futures::future::join_all(workers.map(Worker::run)).await;
    cluster.drained.fetch_add(1, Ordering::Relaxed);
    cluster.note(&name, "drained", "");
    Ok(())
}

pub(crate) async fn wait_for(cluster: &SimCluster, phase: Phase) {
    while cluster.phase() != phase {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Connects to a random server: half of the time with the public API, half of the time with direct access to leaders.
pub(crate) async fn connect(cluster: &SimCluster, runtime: &Runtime, rng: &Rng) -> Option<Client> {
    let address = any_address(cluster, rng);
    if rng.below(2) == 0 {
        return Some(Client::endpoint(&address, runtime.clone()));
    }
    let asked = Client::connect_cluster(&address, runtime.clone());
    if let Ok(Ok(client)) = tokio::time::timeout(Duration::from_secs(2), asked).await {
        return Some(client);
    }
    tokio::time::sleep(rng.jitter(Duration::from_millis(200))).await;
    None
}

struct Worker {
    cluster: Arc<SimCluster>,
    runtime: Runtime,
    rng: Rng,
    id: u32,
    sent: u64,
    /// The row that it alone writes, until a write fails.
    own: Option<String>,
}

impl Worker {
    async fn run(mut self) {
        while self.cluster.phase() == Phase::Load {
            let Some(table) = self.connect().await else { continue };
            // A new connection after some operations or an error.
            for _ in 0..20 + self.rng.below(40) {
                if self.cluster.phase() != Phase::Load || !self.operate(&table).await {
                    break;
                }
                tokio::time::sleep(self.rng.jitter(PAUSE)).await;
            }
            // Servers with full disks refuse at once.
            if space::is_any_full(&self.cluster) {
                tokio::time::sleep(self.rng.jitter(AFTER_REFUSAL)).await;
            }
        }
    }

    /// Connects to a random server, with a random timeout of each call.
    async fn connect(&self) -> Option<Table> {
        let client = connect(&self.cluster, &self.runtime, &self.rng).await?;
        let timeout = Duration::from_secs(1 + self.rng.below(8));
        Some(client.table(&table_name()).with_timeout(timeout))
    }

    /// Runs one random operation; returns whether it succeeded.
    async fn operate(&mut self, table: &Table) -> bool {
        if self.cluster.owns && self.rng.below(100) < 40 {
            return self.overwrite(table).await;
        }
        // Scans of large values take several batches.
        if self.cluster.value_bytes > 0 && self.rng.below(100) < 40 {
            return self.sweep(table).await;
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
        let (list, token) = (self.list(), self.next_token());
        let began = time::elapsed();
        let number = self.cluster.history.lock().begin_append(&list, token, began);
        let answer = append(table, &list, token).await;
        let ended = time::elapsed();
        self.note("append", &token.to_string(), answer.as_ref().err());
        let Ok(row) = answer else { return false };
        self.cluster.history.lock().acknowledge_append(number, ended, &list_of(&row));
        space::check_accepted(&self.cluster, &format!("append {token}"), began);
        true
    }

    async fn look(&self, table: &Table) -> bool {
        let (list, began) = (self.list(), time::elapsed());
        let answer = table.read_row(&list_key(&list), None).await;
        let ended = time::elapsed();
        self.note("look", &list, answer.as_ref().err());
        let Ok(row) = answer else { return false };
        let seen = Prefix::of(&row.as_ref().map(list_of).unwrap_or_default());
        self.cluster.history.lock().list_reads.push(ListRead { list, began, ended, seen });
        true
    }

    async fn put(&mut self, table: &Table) -> bool {
        let (row, version) = self.fresh();
        let began = time::elapsed();
        let numbers = self.announce(&[(row.clone(), version)]);
        let answer = table.mutate_row(&key(&row), &both(version)).await;
        self.note("put", &row, answer.as_ref().err());
        self.acknowledge(&numbers, &[answer.is_ok()]);
        if answer.is_ok() {
            space::check_accepted(&self.cluster, &format!("write {version}"), began);
        }
        answer.is_ok()
    }

    async fn put_many(&mut self, table: &Table) -> bool {
        let rows: Vec<(String, Token)> = (0..2 + self.rng.below(4)).map(|_| self.fresh()).collect();
        let numbers = self.announce(&rows);
        let entries: Vec<_> = rows.iter().map(|(row, version)| (key(row), both(*version))).collect();
        let answer = table.mutate_rows(&entries).await;
        self.note("put-many", &rows[0].0, answer.as_ref().err());
        let Ok(answers) = answer else { return false };
        let are_written: Vec<bool> = answers.iter().map(Result::is_ok).collect();
        self.acknowledge(&numbers, &are_written);
        are_written.iter().all(|is_written| *is_written)
    }

    /// Writes the next version to the worker's own row, and reads it.
    async fn overwrite(&mut self, table: &Table) -> bool {
        let row = match self.own.take() {
            Some(row) => row,
            None => self.fresh().0,
        };
        let version = self.next_token();
        let began = time::elapsed();
        let number = self.cluster.history.lock().begin_write(&row, version, Copies::One, began);
        let answer = table.mutate_row(&key(&row), &[set("v", version, self.cluster.value_bytes)]).await;
        self.note("overwrite", &row, answer.as_ref().err());
        if answer.is_err() {
            return false;
        }
        self.own = Some(row.clone());
        self.cluster.history.lock().acknowledge_write(number, time::elapsed());
        space::check_accepted(&self.cluster, &format!("write {version}"), began);
        let read = table.read_row(&key(&row), None).await;
        self.note("look-own", &row, read.as_ref().err());
        let Ok(read) = read else { return false };
        if lost::may_miss(&self.cluster, began) {
            return true;
        }
        let seen = read.map(|row| content(&values(&row).1, Copies::One));
        self.cluster.history.lock().check_own_read(&row, version, seen.as_ref());
        true
    }

    async fn sweep(&self, table: &Table) -> bool {
        let began = time::elapsed();
        let answer = table.read_rows(RowSet::all(), ReadOptions::default()).await;
        self.note("sweep", "", answer.as_ref().err());
        let Ok(rows) = answer else { return false };
        let rows = rows.iter().map(name).filter(|row| !is_of_other_load(row)).collect();
        self.cluster.history.lock().full_scans.push(FullScan { began, rows });
        true
    }

    /// The mark of the next write.
    fn next_token(&mut self) -> Token {
        self.sent += 1;
        Token { writer: self.id, sequence: self.sent }
    }

    /// A new row and its version.
    fn fresh(&mut self) -> (String, Token) {
        let version = self.next_token();
        let letter = char::from(b'a' + u8::try_from(self.rng.below(26)).unwrap());
        (format!("{letter}/{}-{}", version.writer, version.sequence), version)
    }

    /// Records writes of rows that are written once; their numbers.
    fn announce(&self, rows: &[(String, Token)]) -> Vec<usize> {
        let began = time::elapsed();
        let mut history = self.cluster.history.lock();
        rows.iter().map(|(row, version)| history.begin_write(row, *version, Copies::Two, began)).collect()
    }

    fn acknowledge(&self, numbers: &[usize], are_written: &[bool]) {
        let ended = time::elapsed();
        let mut history = self.cluster.history.lock();
        for (number, _) in numbers.iter().zip(are_written).filter(|(_, is_written)| **is_written) {
            history.acknowledge_write(*number, ended);
        }
    }

    fn note(&self, kind: &str, what: &str, error: Option<&Error>) {
        let outcome = error.map_or("ok", |error| error.reason.name());
        self.cluster.note(&format!("worker-{}", self.id), kind, &format!("{what} {outcome}"));
        if let Some(error) = error {
            tracing::info!(worker = self.id, kind, what, %error, "operation failed");
        }
    }
}

/// A write of a version, followed by spaces up to this number of bytes.
fn set(family: &str, version: Token, value_bytes: usize) -> Mutation {
    let mut value = version.to_string();
    value.extend(std::iter::repeat_n(' ', value_bytes.saturating_sub(value.len())));
    Mutation::SetCell {
        family: family.to_owned(),
        qualifier: Bytes::from_static(b"q"),
        timestamp: WriteTime::Server,
        value: Bytes::from(value),
    }
}

fn both(version: Token) -> Vec<Mutation> {
    vec![set("v", version, 0), set("w", version, 0)]
}

async fn append(table: &Table, list: &str, token: Token) -> Result<Row, Error> {
    let rule = Rule {
        family: "l".to_owned(),
        qualifier: Bytes::from_static(b"q"),
        operation: Operation::Append(Bytes::from(format!("{token},"))),
    };
    table.read_modify_write(&list_key(list), &[rule]).await
}

/// The text of a list: tokens, each followed by a comma.
fn list_of(row: &Row) -> String {
    let cells = row.cells.iter().filter(|cell| cell.family.as_str() == "l");
    let newest = cells.max_by_key(|cell| cell.timestamp);
    newest.map(|cell| String::from_utf8_lossy(&cell.value).into_owned()).unwrap_or_default()
}

/// Maximum number of divisions of groups that a run requests. Each group costs processor time until the end of the run.
const DIVISIONS_MAX: usize = 3;

/// The host that creates the table, requests splits, merges, moves and divisions of groups, and runs the final checks.
pub(crate) async fn overseer(
    cluster: Arc<SimCluster>,
    splits: Vec<(Duration, String)>,
    moves: Option<Duration>,
) -> turmoil::Result {
    let runtime = cluster.runtime("overseer", &HostTime::default(), 0);
    // A tablet for each of the groups that tables have at first.
    let initial_splits: &[&str] = if moves.is_some() { &["g", "n"] } else { &[] };
    let (table, initial_splits) = (table_name(), initial_splits.iter().map(|split| key(split)).collect::<Vec<_>>());
    create_table(&cluster, &runtime, &table, &initial_splits).await;
    if cluster.counters > 0 {
        sums::add_families(&cluster, &runtime).await;
    }
    if let Some(groups) = cluster.groups {
        quiet::create(&cluster, &runtime, groups).await;
    }
    if cluster.value_bytes_max.is_some() {
        large::create(&cluster, &runtime).await;
    }
    cluster.note("overseer", "table", "");
    *cluster.phase.lock() = Phase::Load;
    tokio::join!(request_splits(&cluster, &runtime, splits), request_moves(&cluster, &runtime, moves));
    wait_for(&cluster, Phase::Converge).await;
    let wrong = match tokio::time::timeout(CONVERGE, read_all(&cluster, &runtime)).await {
        Ok(end) => {
            let names = async {
                if cluster.mounttables.is_empty() { Vec::new() } else { names::prove(&cluster, &runtime).await }
            };
            let ages = async { if cluster.ages { ages::prove(&cluster, &runtime).await } else { Vec::new() } };
            let checked = async {
                if cluster.step_watch.is_some() { steps::prove(&cluster, &runtime).await } else { Vec::new() }
            };
            let (rows, names, ages, checked) =
                tokio::join!(wait_for_rows(&cluster, &runtime, &table), names, ages, checked);
            let mut history = cluster.history.lock().clone();
            if let Some(loss) = &*cluster.loss.lock() {
                history.forgive(loss);
            }
            let mut wrong = history.check(&end);
            wrong.extend(rows.into_iter().chain(names).chain(ages).chain(checked));
            if let Some(groups) = cluster.groups {
                wrong.extend(quiet::prove(&cluster, &runtime, groups).await);
            }
            if cluster.value_bytes_max.is_some() {
                wrong.extend(large::prove(&cluster, &runtime).await);
            }
            wrong
        }
        Err(_elapsed) => vec![format!("not live: some operations still fail {CONVERGE:?} after the end of all faults")],
    };
    cluster.note("overseer", "result", &wrong.len().to_string());
    *cluster.result.lock() = Some(wrong);
    Ok(())
}

/// Requests the splits of the plan, and merges and divisions with them.
async fn request_splits(cluster: &SimCluster, runtime: &Runtime, splits: Vec<(Duration, String)>) {
    for (number, (at, split)) in splits.into_iter().enumerate() {
        let now = time::elapsed();
        tokio::time::sleep(at.saturating_sub(now)).await;
        if cluster.phase() != Phase::Load {
            break;
        }
        request_split(cluster, runtime, &split).await;
        // Every third one, the first included. It may undo the split, or join tablets that other splits have made.
        if number % 3 == 0 {
            request_merge(cluster, runtime).await;
        }
        // Every second one, so that tablets are also split in the groups that a division has created.
        if number % 2 == 1 && number / 2 < DIVISIONS_MAX {
            request_division(cluster, runtime).await;
        }
    }
}

/// Requests moves of random tablets until the load ends.
async fn request_moves(cluster: &SimCluster, runtime: &Runtime, mean: Option<Duration>) {
    let Some(mean) = mean else { return };
    loop {
        tokio::time::sleep(runtime.rng.jitter(mean)).await;
        if cluster.phase() != Phase::Load {
            return;
        }
        request_move(cluster, runtime).await;
    }
}

/// Waits until METADATA lists each tablet of the table once: the rows that merges have left behind are removed, at the latest by
/// the master's periodic reconciliation.
pub(crate) async fn wait_for_rows(cluster: &SimCluster, runtime: &Runtime, table: &TableName) -> Vec<String> {
    let end = time::elapsed() + LISTED;
    let list = async || {
        let client = Client::connect_cluster(&cluster.servers[0].address(), runtime.clone()).await?;
        client.tablets(table).await
    };
    loop {
        let listed = tokio::time::timeout(Duration::from_secs(5), list()).await;
        let tablets: Vec<_> = listed.iter().flatten().flatten().map(|(tablet, _leader)| tablet).collect();
        let is_first = tablets.first().is_some_and(|tablet| tablet.range.start().is_empty());
        let is_last = tablets.last().is_some_and(|tablet| tablet.range.end().is_none());
        if is_first && is_last && tablets.windows(2).all(|pair| pair[0].range.end() == Some(pair[1].range.start())) {
            return Vec::new();
        }
        if time::elapsed() > end {
            let ranges: Vec<_> = tablets.iter().map(|one| format!("{} {}", one.tablet, one.range)).collect();
            return vec![format!("METADATA lists {ranges:?} of {table}, {}", outcome_name(&listed))];
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// Creates a table with the families `l`, `v` and `w`; retries until it exists.
pub(crate) async fn create_table(cluster: &SimCluster, runtime: &Runtime, table: &TableName, splits: &[RowKey]) {
    let rule = GcRule::Any(vec![GcRule::MaxVersions(1), GcRule::MaxAge(AGE_MAX)]);
    let families: Vec<_> = ["l", "v", "w"].iter().map(|name| ((*name).to_owned(), Some(rule.clone()))).collect();
    for turn in 0.. {
        let server = &cluster.servers[turn % cluster.servers.len()];
        let admin = Admin::connect(&server.address(), runtime);
        match tokio::time::timeout(Duration::from_secs(10), admin.create_table(table, &families, splits)).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) if error.reason == Reason::AlreadyExists => return,
            Ok(Err(error)) => tracing::info!(%error, "no table yet"),
            Err(_elapsed) => {}
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// The address of any server.
pub(crate) fn any_address(cluster: &SimCluster, rng: &Rng) -> String {
    cluster.servers[usize::try_from(rng.below(cluster.servers.len() as u64)).unwrap()].address()
}

/// Requests from any server.
pub(crate) fn any_admin(cluster: &SimCluster, runtime: &Runtime) -> Admin {
    Admin::connect(&any_address(cluster, &runtime.rng), runtime)
}

/// The trace's word for the outcome of a request with a timeout.
pub(crate) fn outcome_name<T>(outcome: &Result<Result<T, Error>, Elapsed>) -> &'static str {
    match outcome {
        Ok(Ok(_)) => "ok",
        Ok(Err(error)) => error.reason.name(),
        Err(_elapsed) => "silence",
    }
}

/// Moves a random tablet to a random other group.
async fn request_move(cluster: &SimCluster, runtime: &Runtime) {
    let server = any_address(cluster, &runtime.rng);
    let pick = |count: usize| usize::try_from(runtime.rng.below(count.max(1) as u64)).unwrap();
    let moved = async {
        let client = Client::connect_cluster(&server, runtime.clone()).await?;
        let listed = client.tablets(&table_name()).await?;
        let tablet = listed.get(pick(listed.len())).map(|(tablet, _leader)| tablet);
        let tablet = tablet.ok_or_else(|| Error::new(Reason::Unavailable, "METADATA lists no tablet"))?;
        let groups = client.admin().groups().await?.into_iter().map(|one| one.group.group);
        let others: Vec<_> = groups.filter(|group| *group != GroupId::METADATA && *group != tablet.group).collect();
        let group = others.get(pick(others.len()));
        let group = group.ok_or_else(|| Error::new(Reason::FailedPrecondition, "there is no other group"))?;
        if !cluster.loses_answers {
            return client.admin().move_tablet(tablet.tablet, *group).await;
        }
        let move_it =
            async |other: &SimHost| Admin::connect(&other.address(), runtime).move_tablet(tablet.tablet, *group).await;
        lost_answers::during(cluster, tablet.group, move_it).await
    };
    let outcome = tokio::time::timeout(Duration::from_secs(5), moved).await;
    let kind = if matches!(outcome, Ok(Ok(_))) { "moved" } else { "not-moved" };
    cluster.trace.lock().count(time::elapsed(), "overseer", kind, outcome_name(&outcome));
}

/// Merges two adjacent tablets, as far as METADATA is current. If they are in different groups, one is moved first.
async fn request_merge(cluster: &SimCluster, runtime: &Runtime) {
    let server = any_address(cluster, &runtime.rng);
    let merged = async {
        let client = Client::connect_cluster(&server, runtime.clone()).await?;
        let listed = client.tablets(&table_name()).await?;
        let pairs: Vec<_> = listed.windows(2).collect();
        let chosen = runtime.rng.below(pairs.len().max(1) as u64);
        let pair = pairs.get(usize::try_from(chosen).unwrap());
        let pair = pair.ok_or_else(|| Error::new(Reason::FailedPrecondition, "there is one tablet"))?;
        client.admin().merge_tablets(pair[0].0.tablet, Some(pair[1].0.tablet)).await
    };
    let outcome = tokio::time::timeout(Duration::from_secs(5), merged).await;
    let kind = if matches!(outcome, Ok(Ok(_))) { "merged" } else { "not-merged" };
    cluster.trace.lock().count(time::elapsed(), "overseer", kind, outcome_name(&outcome));
}

async fn request_split(cluster: &SimCluster, runtime: &Runtime, split: &str) {
    let admin = any_admin(cluster, runtime);
    let (name, at, nowhere) = (table_name(), key(split), RowKey::EMPTY);
    let ordered = admin.split(&name, Some(&at), &nowhere);
    let outcome = tokio::time::timeout(Duration::from_secs(5), ordered).await;
    let outcome = outcome_name(&outcome);
    cluster.trace.lock().count(time::elapsed(), "overseer", "split", &format!("{split} {outcome}"));
}

/// Appends to every list and reads every row through every server; retries until all succeed.
async fn read_all(cluster: &SimCluster, runtime: &Runtime) -> Final {
    let mut end = Final::default();
    let mut sequence = 0;
    for server in &cluster.servers {
        let table = Client::endpoint(&server.address(), runtime.clone()).table(&table_name());
        let table = table.with_timeout(Duration::from_secs(5));
        for list in LISTS {
            let row = loop {
                sequence += 1;
                let token = Token { writer: OVERSEER, sequence };
                let began = time::elapsed();
                let number = cluster.history.lock().begin_append(list, token, began);
                match append(&table, list, token).await {
                    Ok(row) => {
                        cluster.history.lock().acknowledge_append(number, time::elapsed(), &list_of(&row));
                        break row;
                    }
                    Err(error) => tracing::info!(%error, server = server.name, list, "append failed; retrying"),
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            };
            end.lists.insert(list.to_owned(), list_of(&row));
        }
        cluster.note("overseer", "appended", &server.name);
        let rows = read_rows(&table).await;
        end.of_drops = rows.iter().map(name).filter(|row| drops::is_row(row)).collect();
        end.rows =
            rows.iter().map(values).filter(|(row, _)| !row.ends_with("/list") && !is_of_other_load(row)).collect();
        if cluster.counters > 0 {
            sums::read_all(cluster, runtime, &server.address()).await;
        }
    }
    end
}

async fn read_rows(table: &Table) -> Vec<Row> {
    loop {
        match table.read_rows(RowSet::all(), ReadOptions::default()).await {
            Ok(rows) => return rows,
            Err(error) => tracing::info!(%error, "read failed; retrying"),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Whether the row is checked in its own way.
fn is_of_other_load(row: &str) -> bool {
    sums::is_row(row) || drops::is_row(row)
}

/// The row's key as text.
pub(crate) fn name(row: &Row) -> String {
    String::from_utf8_lossy(row.key.as_bytes()).into_owned()
}

/// The row's key and its values, without the spaces at their ends.
fn values(row: &Row) -> (String, Vec<String>) {
    (name(row), row.cells.iter().map(|cell| String::from_utf8_lossy(&cell.value).trim_end().to_owned()).collect())
}
