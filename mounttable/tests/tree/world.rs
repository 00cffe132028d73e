//! A table over storage in memory that counts its calls, and callers known by one name each; the superuser is `server`,
//! so that nothing is hidden by its rights.

use std::future::Future;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use ebla_model::Micros;
use ebla_mounttable::store::memory::Memory;
use ebla_mounttable::store::{Cell, Change, Children, Family, Predicate, Row, Servers};
use ebla_mounttable::table::{
    Charge, Facts, Found, Mount, Mounted, Options, Receive, Subtree, Summary, Swept, Trouble,
};
use ebla_mounttable::{
    BlessingPattern, Caller, Deadline, Error, MountMode, MountedServer, NodeName, Permissions, Reason, Store,
    Surroundings, Table, Target, UserId, row_key,
};

pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// Storage in memory that counts reads and changes.
#[derive(Clone)]
struct Counted {
    memory: Memory,
    calls: Arc<[AtomicUsize; 2]>,
}

impl Store for Counted {
    async fn read_with(
        &self,
        keys: &[String],
        children: &Children,
        servers: &Servers,
    ) -> Result<Vec<Option<Row>>, Error> {
        self.calls[0].fetch_add(1, Ordering::Relaxed);
        self.memory.read_with(keys, children, servers).await
    }

    async fn change_if(&self, key: &str, when: Predicate, then: Vec<Change>) -> Result<bool, Error> {
        self.calls[1].fetch_add(1, Ordering::Relaxed);
        self.memory.change_if(key, when, then).await
    }

    async fn keys(&self, after: Option<&str>, limit: usize) -> Result<Vec<String>, Error> {
        self.memory.keys(after, limit).await
    }

    async fn add(&self, counter: &str, by: i64) -> Result<i64, Error> {
        self.memory.add(counter, by).await
    }

    async fn counter(&self, counter: &str) -> Result<Option<i64>, Error> {
        self.memory.counter(counter).await
    }

    async fn set_counter(&self, counter: &str, to: Option<i64>) -> Result<(), Error> {
        self.memory.set_counter(counter, to).await
    }

    async fn counters(&self, after: Option<&str>, limit: usize) -> Result<Vec<(String, i64)>, Error> {
        self.memory.counters(after, limit).await
    }
}

impl Surroundings for Counted {
    fn now(&self) -> Micros {
        self.memory.now()
    }

    fn fresh(&self) -> u64 {
        self.memory.fresh()
    }

    /// Nobody is waited for here, and the deadlines of a test are exact.
    async fn pause(&self, _tries: u32) {}

    async fn sleep(&self, duration: Duration) {
        self.memory.sleep(duration).await;
    }
}

pub(crate) struct World {
    pub(crate) memory: Memory,
    calls: Arc<[AtomicUsize; 2]>,
    table: Table<Counted>,
}

/// Takes nothing; how often it was asked to.
struct Nobody(usize);

impl Receive for Nobody {
    async fn found(&mut self, _found: Found) -> ControlFlow<()> {
        self.0 += 1;
        ControlFlow::Break(())
    }

    async fn failed(&mut self, _name: &str, _error: &Error) -> ControlFlow<()> {
        ControlFlow::Break(())
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

    /// A root with these permissions; empty nodes are collected at once, and a user has ten nodes and fifteen servers. Root
    /// has as many as it likes.
    pub(crate) fn with(permissions: &str) -> Self {
        let memory = Memory::at(Micros::from_millis(1_000_000));
        let calls = Arc::default();
        let options = Options { grace: Duration::ZERO, nodes_per_user: 10, servers_per_user: 15, ..Options::default() };
        let table = Table::new(Counted { memory: memory.clone(), calls: Arc::clone(&calls) }, options);
        alone(table.setup(Permissions::from_json(permissions).unwrap())).unwrap();
        let world = Self { memory, calls, table };
        Charge::ALL.into_iter().for_each(|charge| world.set_limit("root", charge, 0));
        world
    }

    /// The same table, served anew.
    pub(crate) fn restarted(self) -> Self {
        let options = Options { grace: Duration::ZERO, ..Options::default() };
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

    /// The servers, and the suffix behind a plus if there is one.
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

    /// The names of what a pattern asks for, in order, each with its servers behind a `=` if there are any.
    pub(crate) fn glob(&self, by: &str, receiver: &str, pattern: &str) -> Vec<String> {
        let mut found: Vec<Found> = Vec::new();
        alone(self.table.glob(&caller(by), &name(receiver), &pattern.parse().unwrap(), &mut found)).unwrap();
        let shown = |found: &Found| {
            let servers = found.servers.iter().map(|server| server.address.with_suffix(&found.suffix));
            let servers: Vec<_> = servers.collect();
            if servers.is_empty() { found.name.clone() } else { format!("{}={}", found.name, servers.join(" ")) }
        };
        let mut names: Vec<_> = found.iter().map(shown).collect();
        names.sort();
        names
    }

    /// The names alone.
    pub(crate) fn glob_names(&self, by: &str, receiver: &str, pattern: &str) -> Vec<String> {
        let name = |entry: String| entry.split('=').next().unwrap().to_owned();
        self.glob(by, receiver, pattern).into_iter().map(name).collect()
    }

    /// What a listing came to, and the error it ended with.
    pub(crate) fn glob_summary(&self, by: &str, receiver: &str, pattern: &str) -> Result<Summary, Error> {
        let mut found: Vec<Found> = Vec::new();
        alone(self.table.glob(&caller(by), &name(receiver), &pattern.parse()?, &mut found))
    }

    /// Nodes and servers that a user is charged for.
    pub(crate) fn usage(&self, user: &str) -> (i64, i64) {
        let of = |charge| alone(self.table.usage(&UserId::stored(user), charge)).unwrap().used;
        (of(Charge::Nodes), of(Charge::Servers))
    }

    pub(crate) fn set_limit(&self, user: &str, of: Charge, to: i64) {
        alone(self.table.set_limit(&UserId::stored(user), of, Some(to))).unwrap();
    }

    pub(crate) fn recount(&self) -> usize {
        alone(self.table.recount()).unwrap().len()
    }

    pub(crate) fn check(&self) -> Vec<Trouble> {
        alone(self.table.check()).unwrap().into_iter().map(|finding| finding.trouble).collect()
    }

    /// Changes a row as no server would.
    pub(crate) fn behind(&self, at: &str, change: Change) {
        let anything = Predicate::All(Vec::new());
        assert!(alone(self.memory.change_if(&row_key(&name(at)), anything, vec![change])).unwrap());
    }

    pub(crate) fn mend(&self) {
        alone(self.table.mend()).unwrap();
    }

    /// A listing that nobody takes; how many entries were offered, and how it ended.
    pub(crate) fn glob_for_nobody(&self, pattern: &str) -> (usize, Error) {
        let mut nobody = Nobody(0);
        let outcome =
            alone(self.table.glob(&caller("root"), &NodeName::root(), &pattern.parse().unwrap(), &mut nobody));
        (nobody.0, outcome.unwrap_err())
    }

    /// The servers of a name, with the times of their deadlines.
    pub(crate) fn deadlines(&self, at: &str) -> Vec<(String, Micros)> {
        let found = alone(self.table.resolve(&caller("root"), &name(at))).unwrap();
        found.servers.iter().map(|one| (one.address.to_string(), one.deadline.as_micros())).collect()
    }

    /// Makes a row one that no node writes.
    pub(crate) fn damage(&self, at: &str) {
        let cell = Cell { timestamp: self.memory.now(), value: "what?".to_owned() };
        let set = Change::Set(Family::Meta, "e".to_owned(), cell);
        let key = row_key(&name(at));
        let changed = self.memory.change_if(&key, Predicate::Has(Family::Meta, "e".to_owned()), vec![set]);
        assert!(alone(changed).unwrap());
    }

    /// Makes a counter wrong.
    pub(crate) fn drift(&self, counter: &str, by: i64) {
        alone(self.memory.add(counter, by)).unwrap();
    }

    pub(crate) fn sweep(&self) -> Swept {
        alone(self.table.sweep()).unwrap()
    }

    pub(crate) fn facts(&self, by: &str, at: &str) -> Result<Facts, Error> {
        alone(self.table.facts(&caller(by), &name(at)))
    }

    pub(crate) fn delete_version(&self, by: &str, at: &str, version: &str) -> Result<usize, Error> {
        alone(self.table.delete(&caller(by), &name(at), Subtree::Refuse, Some(version)))
    }

    /// Makes the nodes of a permissions file.
    pub(crate) fn apply(&self, file: &str) -> usize {
        alone(self.table.apply(&ebla_mounttable::file::nodes(file).unwrap())).unwrap()
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

    /// Reads and changes since this was last asked.
    pub(crate) fn take_calls(&self) -> (usize, usize) {
        (self.calls[0].swap(0, Ordering::Relaxed), self.calls[1].swap(0, Ordering::Relaxed))
    }
}
