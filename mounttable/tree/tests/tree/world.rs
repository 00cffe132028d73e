//! A table over an in-memory store that counts calls, and callers with one name each; the superuser is `server`, so
//! that rights hide nothing.

use std::future::Future;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use ebla_model::Micros;
use ebla_mounttable_tree::store::memory::MemoryStore;
use ebla_mounttable_tree::store::{Cell, Change, ChildSelection, Condition, Family, Row, ServerSelection};
use ebla_mounttable_tree::table::{
    GlobMatch, GlobSink, GlobSummary, Maintained, Mount, Mounted, NodeChange, NodeInfo, Problem, QuotaKind,
    Restoration, Subtree, Swept, TableOptions, Tally,
};
use ebla_mounttable_tree::{
    BlessingPattern, Caller, Deadline, Environment, Error, MountMode, MountedServer, NodeName, Permissions, Reason,
    Store, Table, Target, UserId, delegate, row_key,
};

pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// An in-memory store that counts reads and changes.
#[derive(Clone)]
struct Counted {
    memory: MemoryStore,
    calls: Arc<[AtomicUsize; 2]>,
}

impl Store for Counted {
    async fn read_with(
        &self,
        keys: &[String],
        children: &ChildSelection,
        servers: &ServerSelection,
    ) -> Result<Vec<Option<Row>>, Error> {
        self.calls[0].fetch_add(1, Ordering::Relaxed);
        self.memory.read_with(keys, children, servers).await
    }

    async fn change_if(&self, key: &str, when: Condition, then: Vec<Change>) -> Result<bool, Error> {
        self.calls[1].fetch_add(1, Ordering::Relaxed);
        self.memory.change_if(key, when, then).await
    }

    delegate!(memory: keys, add, counter, set_counter, counters);
}

impl Environment for Counted {
    /// No back-off: the deadlines of a test are exact.
    async fn back_off(&self, _tries: u32) {}

    delegate!(memory: now, unique_u64, sleep);
}

pub(crate) struct World {
    pub(crate) memory: MemoryStore,
    calls: Arc<[AtomicUsize; 2]>,
    table: Table<Counted>,
}

/// A sink that collects the nodes that could not be read.
#[derive(Default)]
struct Failures(Vec<(String, Reason)>);

impl GlobSink for Failures {
    async fn found(&mut self, _found: GlobMatch) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    async fn failed(&mut self, name: &str, error: &Error) -> ControlFlow<()> {
        self.0.push((name.to_owned(), error.reason));
        ControlFlow::Continue(())
    }
}

/// A sink that accepts nothing; the number of offered matches.
struct Nobody(usize);

impl GlobSink for Nobody {
    async fn found(&mut self, _found: GlobMatch) -> ControlFlow<()> {
        self.0 += 1;
        ControlFlow::Break(())
    }

    async fn failed(&mut self, _name: &str, _error: &Error) -> ControlFlow<()> {
        ControlFlow::Break(())
    }
}

/// A sink whose reader leaves at the page with this number, from 1.
struct Leaving(usize);

impl GlobSink for Leaving {
    async fn found(&mut self, _found: GlobMatch) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    async fn next_page(&mut self) -> ControlFlow<()> {
        self.0 = self.0.saturating_sub(1);
        if self.0 == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    async fn failed(&mut self, _name: &str, _error: &Error) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

fn caller(name: &str) -> Caller {
    Caller::new(vec![name.parse().unwrap()], &[BlessingPattern::new("server")])
}

fn name(text: &str) -> NodeName {
    text.parse().unwrap()
}

fn alone<T>(future: impl Future<Output = T>) -> T {
    let mut future = Box::pin(future);
    for _ in 0..10_000 {
        if let Poll::Ready(out) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return out;
        }
    }
    panic!("a call does not end");
}

impl World {
    pub(crate) fn open() -> Self {
        Self::with(&Permissions::open().to_json())
    }

    /// A root with these permissions; empty nodes are collected at once. A user has a quota of ten nodes and fifteen
    /// servers; root has none.
    pub(crate) fn with(permissions: &str) -> Self {
        let memory = MemoryStore::at(Micros::from_millis(1_000_000));
        let calls = Arc::default();
        let options =
            TableOptions { grace: Duration::ZERO, nodes_per_user: 10, servers_per_user: 15, ..TableOptions::default() };
        let table = Table::new(Counted { memory: memory.clone(), calls: Arc::clone(&calls) }, options);
        alone(table.setup(Permissions::from_json(permissions).unwrap())).unwrap();
        let world = Self { memory, calls, table };
        QuotaKind::ALL.into_iter().for_each(|quota| world.set_limit("root", quota, 0));
        world
    }

    /// A table without a root.
    pub(crate) fn empty() -> Self {
        let world = Self::open();
        world.destroy();
        world
    }

    pub(crate) fn destroy(&self) {
        alone(self.table.destroy()).unwrap();
    }

    pub(crate) fn seed(&self, file: &str) -> usize {
        alone(self.table.seed(&ebla_mounttable_tree::file::parse(file, &Permissions::open()).unwrap())).unwrap()
    }

    /// The error of setting up an open root.
    pub(crate) fn setup_reason(&self) -> Option<Reason> {
        alone(self.table.setup(Permissions::open())).err().map(|error| error.reason)
    }

    pub(crate) fn begin_restore(&self) -> Result<Restoration, Error> {
        alone(self.table.begin_restore())
    }

    pub(crate) fn restore_row(&self, restoration: &mut Restoration, key: &str, row: &Row) {
        alone(self.table.restore_row(restoration, key, row.clone())).unwrap();
    }

    pub(crate) fn finish_restore(&self, restoration: Restoration) -> Result<Tally, Error> {
        alone(self.table.finish_restore(restoration))
    }

    /// The same table, after a restart of its server.
    pub(crate) fn restarted(self) -> Self {
        let options = TableOptions { grace: Duration::ZERO, ..TableOptions::default() };
        let calls = Arc::clone(&self.calls);
        let table = Table::new(Counted { memory: self.memory.clone(), calls }, options);
        Self { table, ..self }
    }

    pub(crate) fn mount(&self, by: &str, at: &str, server: &str, ttl_seconds: u32) -> Result<Mounted, Error> {
        self.mount_as(by, at, server, ttl_seconds, MountMode::Add)
    }

    pub(crate) fn mount_as(
        &self,
        by: &str,
        at: &str,
        server: &str,
        ttl: u32,
        mode: MountMode,
    ) -> Result<Mounted, Error> {
        let mount = Mount { address: server.parse()?, target: Target::Object, ttl: SECOND * ttl, mode };
        alone(self.table.mount(&caller(by), &name(at), &mount))
    }

    pub(crate) fn refresh(&self, by: &str, mounted: &Mounted, server: &str, ttl: u32) -> Option<Deadline> {
        let server = MountedServer {
            address: server.parse().unwrap(),
            target: Target::Object,
            deadline: mounted.deadline,
            ttl: mounted.deadline.as_micros().since(self.memory.now()),
            mounter: caller(by).user_id(),
        };
        alone(self.table.refresh(&mounted.node, &server, SECOND * ttl)).unwrap()
    }

    pub(crate) fn unmount(&self, by: &str, at: &str, server: Option<&str>) -> Result<usize, Error> {
        let server = server.map(|server| server.parse().unwrap());
        alone(self.table.unmount(&caller(by), &name(at), server.as_ref()))
    }

    pub(crate) fn delete(&self, by: &str, at: &str, subtree: Subtree) -> Result<usize, Error> {
        alone(self.table.delete(&caller(by), &name(at), subtree, None))
    }

    /// The servers, and the suffix after a plus if there is one.
    pub(crate) fn resolve(&self, by: &str, at: &str) -> Result<String, Error> {
        let found = alone(self.table.resolve(&caller(by), &name(at)))?;
        let servers: Vec<_> = found.servers.iter().map(|server| server.address.to_string()).collect();
        let suffix = if found.suffix.is_empty() { String::new() } else { format!(" + {}", found.suffix) };
        Ok(servers.join(" ") + &suffix)
    }

    pub(crate) fn permissions(&self, by: &str, at: &str) -> Result<(Permissions, String), Error> {
        alone(self.table.permissions(&caller(by), &name(at)))
    }

    pub(crate) fn set_permissions(&self, by: &str, at: &str, json: &str, version: Option<&str>) -> Result<(), Error> {
        let permissions = Permissions::from_json(json)?;
        alone(self.table.set_permissions(&caller(by), &name(at), &permissions, version))
    }

    /// The matches of a pattern, in order, each with its servers after a `=` if there are any.
    pub(crate) fn glob(&self, by: &str, receiver: &str, pattern: &str) -> Vec<String> {
        let mut found: Vec<GlobMatch> = Vec::new();
        alone(self.table.glob(&caller(by), &name(receiver), &pattern.parse().unwrap(), &mut found)).unwrap();
        let shown = |found: &GlobMatch| {
            let servers = found.servers.iter().map(|server| server.address.with_suffix(&found.suffix));
            let servers: Vec<_> = servers.collect();
            if servers.is_empty() { found.name.clone() } else { format!("{}={}", found.name, servers.join(" ")) }
        };
        let mut names: Vec<_> = found.iter().map(shown).collect();
        names.sort();
        names
    }

    /// The names only.
    pub(crate) fn glob_names(&self, by: &str, receiver: &str, pattern: &str) -> Vec<String> {
        let name = |entry: String| entry.split('=').next().unwrap().to_owned();
        self.glob(by, receiver, pattern).into_iter().map(name).collect()
    }

    /// The summary of a listing, or its error.
    pub(crate) fn glob_summary(&self, by: &str, receiver: &str, pattern: &str) -> Result<GlobSummary, Error> {
        let mut found: Vec<GlobMatch> = Vec::new();
        alone(self.table.glob(&caller(by), &name(receiver), &pattern.parse()?, &mut found))
    }

    /// The charges of a user: nodes and servers.
    pub(crate) fn usage(&self, user: &str) -> (i64, i64) {
        let of = |quota| alone(self.table.usage(&UserId::stored(user), quota)).unwrap().used;
        (of(QuotaKind::Nodes), of(QuotaKind::Servers))
    }

    pub(crate) fn set_limit(&self, user: &str, of: QuotaKind, to: i64) {
        alone(self.table.set_limit(&UserId::stored(user), of, Some(to))).unwrap();
    }

    pub(crate) fn recount(&self) -> usize {
        alone(self.table.recount()).unwrap().len()
    }

    pub(crate) fn check(&self) -> Vec<Problem> {
        alone(self.table.check()).unwrap().into_iter().map(|finding| finding.problem).collect()
    }

    /// Changes a row bypassing the protocol.
    pub(crate) fn behind(&self, at: &str, change: Change) {
        let anything = Condition::All(Vec::new());
        assert!(alone(self.memory.change_if(&row_key(&name(at)), anything, vec![change])).unwrap());
    }

    pub(crate) fn repair(&self) -> Result<(), Error> {
        alone(self.table.repair())
    }

    /// A listing with a sink that accepts nothing: the number of offered entries, and the error.
    pub(crate) fn glob_without_rights(&self, pattern: &str) -> (usize, Error) {
        let mut nobody = Nobody(0);
        let outcome =
            alone(self.table.glob(&caller("root"), &NodeName::root(), &pattern.parse().unwrap(), &mut nobody));
        (nobody.0, outcome.unwrap_err())
    }

    /// A listing whose reader leaves at the read of a page with this number, from 1.
    pub(crate) fn glob_until_page(&self, page: usize, pattern: &str) -> Result<(), Error> {
        let (caller, mut reader) = (caller("root"), Leaving(page));
        alone(self.table.glob(&caller, &name(""), &pattern.parse().unwrap(), &mut reader)).map(drop)
    }

    /// The nodes that a listing could not read.
    pub(crate) fn glob_failures(&self, receiver: &str, pattern: &str) -> Vec<(String, Reason)> {
        let mut failures = Failures::default();
        alone(self.table.glob(&caller("root"), &name(receiver), &pattern.parse().unwrap(), &mut failures)).unwrap();
        failures.0
    }

    /// The servers of a name, with their deadlines.
    pub(crate) fn deadlines(&self, at: &str) -> Vec<(String, Micros)> {
        let found = alone(self.table.resolve(&caller("root"), &name(at))).unwrap();
        found.servers.iter().map(|one| (one.address.to_string(), one.deadline.as_micros())).collect()
    }

    /// Damages a row.
    pub(crate) fn damage(&self, at: &str) {
        let cell = Cell { timestamp: self.memory.now(), value: "what?".to_owned() };
        let set = Change::Set(Family::Meta, "e".to_owned(), cell);
        let key = row_key(&name(at));
        let changed = self.memory.change_if(&key, Condition::Has(Family::Meta, "e".to_owned()), vec![set]);
        assert!(alone(changed).unwrap());
    }

    /// Makes a counter wrong.
    pub(crate) fn drift(&self, counter: &str, by: i64) {
        alone(self.memory.add(counter, by)).unwrap();
    }

    pub(crate) fn maintain(&self) -> Maintained {
        alone(self.table.maintain()).unwrap()
    }

    pub(crate) fn sweep(&self) -> Swept {
        alone(self.table.sweep()).unwrap()
    }

    pub(crate) fn node_info(&self, by: &str, at: &str) -> Result<NodeInfo, Error> {
        alone(self.table.node_info(&caller(by), &name(at)))
    }

    pub(crate) fn delete_version(&self, by: &str, at: &str, version: &str) -> Result<usize, Error> {
        alone(self.table.delete(&caller(by), &name(at), Subtree::Refuse, Some(version)))
    }

    /// Applies a permissions file.
    pub(crate) fn apply(&self, file: &str) -> usize {
        alone(self.table.apply(&ebla_mounttable_tree::file::parse(file, &Permissions::open()).unwrap())).unwrap()
    }

    /// The changes that a permissions file would make: name, permissions before and after.
    pub(crate) fn preview(&self, file: &str) -> Vec<(String, Option<String>, String)> {
        let nodes = ebla_mounttable_tree::file::parse(file, &Permissions::open()).unwrap();
        let shown =
            |it: NodeChange| (it.name.to_string(), it.before.map(|before| before.to_string()), it.after.to_string());
        alone(self.table.preview(&nodes)).unwrap().into_iter().map(shown).collect()
    }

    /// The names of all nodes below the root, in order.
    pub(crate) fn names(&self) -> Vec<String> {
        let mut names: Vec<_> = alone(self.table.children(&NodeName::root())).unwrap();
        let mut at = 0;
        while at < names.len() {
            names.extend(alone(self.table.children(&names[at])).unwrap());
            at += 1;
        }
        names.sort();
        names.iter().map(ToString::to_string).collect()
    }

    pub(crate) fn reason<T>(&self, outcome: Result<T, Error>) -> Reason {
        outcome.err().unwrap().reason
    }

    /// Reads and changes since the last call.
    pub(crate) fn take_calls(&self) -> (usize, usize) {
        (self.calls[0].swap(0, Ordering::Relaxed), self.calls[1].swap(0, Ordering::Relaxed))
    }
}
