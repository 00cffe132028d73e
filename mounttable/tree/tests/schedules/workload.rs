//! Concurrent calls below `p`, and a record of the start and end of each.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use ebla_model::Micros;
use ebla_mounttable_tree::store::coalescing::CoalescingStore;
use ebla_mounttable_tree::store::memory::MemoryStore;
use ebla_mounttable_tree::table::{Mount, Subtree, TableOptions};
use ebla_mounttable_tree::{
    BlessingPattern, Caller, Environment, Error, MountMode, NodeName, Permissions, Table, Target,
};

use crate::scheduler::{Draw, Task, alone};

/// A call.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Call {
    Mount(&'static str, &'static str),
    Unmount(&'static str, &'static str),
    Delete(&'static str),
    Resolve(&'static str),
    Collect(&'static str),
    Sweep,
}

/// The outcome of a call. Times are steps of the schedule.
#[derive(Clone, Debug)]
pub(crate) struct Note {
    pub(crate) call: Call,
    pub(crate) began: u64,
    /// `None` when its process crashed.
    pub(crate) ended: Option<u64>,
    pub(crate) outcome: Option<Result<(), Error>>,
}

/// A table with its storage, and the record of calls.
pub(crate) struct World {
    pub(crate) memory: MemoryStore,
    pub(crate) table: Table<CoalescingStore<MemoryStore>>,
    /// Another server of the same table: it gets every other call.
    servers_to_read: Table<CoalescingStore<MemoryStore>>,
    pub(crate) notes: RefCell<Vec<Note>>,
    steps: Cell<u64>,
}

pub(crate) fn caller(name: &str) -> Caller {
    Caller::new(vec![name.parse().unwrap()], &[BlessingPattern::new("root")])
}

pub(crate) fn name(text: &str) -> NodeName {
    text.parse().unwrap()
}

impl World {
    /// A table with an open root; empty nodes are collected at once.
    pub(crate) fn new() -> Self {
        let memory = MemoryStore::at(Micros::from_millis(1_000_000));
        let options = TableOptions { grace: Duration::ZERO, ..TableOptions::default() };
        let server = || Table::new(CoalescingStore::new(memory.clone()), options);
        let (table, servers_to_read) = (server(), server());
        assert!(alone(table.setup(Permissions::open())).unwrap());
        Self { memory, table, servers_to_read, notes: RefCell::default(), steps: Cell::default() }
    }

    /// One of its two servers.
    pub(crate) fn server(&self, draw: &mut Draw) -> &Table<CoalescingStore<MemoryStore>> {
        if draw.chance(1, 2) { &self.table } else { &self.servers_to_read }
    }

    fn tick(&self) -> u64 {
        self.steps.set(self.steps.get() + 1);
        self.steps.get()
    }

    /// Executes a call and records it.
    pub(crate) async fn call(&self, call: Call) -> Result<(), Error> {
        let at = self.notes.borrow().len();
        let note = Note { call: call.clone(), began: self.tick(), ended: None, outcome: None };
        self.notes.borrow_mut().push(note);
        let table = if at.is_multiple_of(2) { &self.table } else { &self.servers_to_read };
        let outcome = make(table, call).await;
        let mut notes = self.notes.borrow_mut();
        let note = notes.get_mut(at).unwrap();
        (note.ended, note.outcome) = (Some(self.tick()), Some(outcome.clone()));
        outcome
    }

    /// A task that yields a while, and then executes its call.
    pub(crate) fn task(&self, call: Call, delay: u64) -> Task<'_> {
        Box::pin(async move {
            for _ in 0..delay {
                self.memory.back_off(0).await;
            }
            let _ = self.call(call).await;
        })
    }

    /// The calls of one schedule: a mount and a deletion, and random others.
    pub(crate) fn tasks(&self, draw: &mut Draw) -> Vec<Task<'_>> {
        let mut calls = vec![Call::Mount("p/c", "h:1")];
        let others = [
            (Call::Delete("p"), 3),
            (Call::Mount("p/c", "h:2"), 2),
            (Call::Delete("p"), 1),
            (Call::Delete("p/c"), 1),
            (Call::Unmount("p/c", "h:1"), 2),
            (Call::Mount("p/d", "h:3"), 1),
            (Call::Mount("p/c/e", "h:4"), 1),
            (Call::Mount("p/c", "h:5"), 2),
            (Call::Collect("p/c"), 1),
            (Call::Collect("p"), 1),
            (Call::Sweep, 2),
            (Call::Sweep, 2),
            (Call::Resolve("p/c"), 2),
        ];
        calls.extend(others.into_iter().filter(|(_, weight)| draw.chance(*weight, 4)).map(|(call, _)| call));
        // Delayed starts let calls follow each other; without them all overlap.
        calls.into_iter().map(|call| self.task(call, if draw.chance(1, 2) { draw.below(20) } else { 0 })).collect()
    }
}

async fn make(table: &Table<CoalescingStore<MemoryStore>>, call: Call) -> Result<(), Error> {
    let root = caller("root");
    match call {
        Call::Mount(at, server) => {
            let mount =
                Mount { address: server.parse()?, target: Target::Object, ttl: Duration::ZERO, mode: MountMode::Add };
            table.mount(&root, &name(at), &mount).await.map(|_| ())
        }
        Call::Unmount(at, server) => table.unmount(&root, &name(at), Some(&server.parse()?)).await.map(|_| ()),
        Call::Delete(at) => table.delete(&root, &name(at), Subtree::Delete, None).await.map(|_| ()),
        Call::Collect(at) => table.collect(&name(at)).await,
        Call::Sweep => table.sweep().await.map(|_| ()),
        Call::Resolve(at) => table.resolve(&root, &name(at)).await.map(|_| ()),
    }
}
