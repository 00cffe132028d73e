//! What is done at the same time below `p`, and a note of when each call began and ended.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use ebla_model::Micros;
use ebla_mounttable::store::gathered::Gathered;
use ebla_mounttable::store::memory::Memory;
use ebla_mounttable::table::{Mount, Options, Subtree};
use ebla_mounttable::{BlessingPattern, Caller, Error, MountMode, NodeName, Permissions, Surroundings, Table, Target};

use crate::scheduler::{Draw, Task, alone};

/// A call that somebody makes.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Call {
    Mount(&'static str, &'static str),
    Unmount(&'static str, &'static str),
    Delete(&'static str),
    Resolve(&'static str),
    Collect(&'static str),
    Sweep,
}

/// What became of a call. Times are steps of the schedule.
#[derive(Clone, Debug)]
pub(crate) struct Note {
    pub(crate) call: Call,
    pub(crate) began: u64,
    /// `None` when its process died.
    pub(crate) ended: Option<u64>,
    pub(crate) outcome: Option<Result<(), Error>>,
}

/// A table with its storage, and the notes of what was called.
pub(crate) struct World {
    pub(crate) memory: Memory,
    pub(crate) table: Table<Gathered<Memory>>,
    /// Another server of the same table: every other call is its.
    beside: Table<Gathered<Memory>>,
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
    /// A table whose root is open to everybody, and empty nodes are collected at once.
    pub(crate) fn new() -> Self {
        let memory = Memory::at(Micros::from_millis(1_000_000));
        let options = Options { grace: Duration::ZERO, ..Options::default() };
        let server = || Table::new(Gathered::new(memory.clone()), options);
        let (table, beside) = (server(), server());
        assert!(alone(table.setup(Permissions::open())).unwrap());
        Self { memory, table, beside, notes: RefCell::default(), steps: Cell::default() }
    }

    /// Any of its two servers.
    pub(crate) fn server(&self, draw: &mut Draw) -> &Table<Gathered<Memory>> {
        if draw.chance(1, 2) { &self.table } else { &self.beside }
    }

    fn tick(&self) -> u64 {
        self.steps.set(self.steps.get() + 1);
        self.steps.get()
    }

    /// Makes a call and notes it.
    pub(crate) async fn call(&self, call: Call) -> Result<(), Error> {
        let at = self.notes.borrow().len();
        let note = Note { call: call.clone(), began: self.tick(), ended: None, outcome: None };
        self.notes.borrow_mut().push(note);
        let table = if at.is_multiple_of(2) { &self.table } else { &self.beside };
        let outcome = make(table, call).await;
        let mut notes = self.notes.borrow_mut();
        let note = notes.get_mut(at).unwrap();
        (note.ended, note.outcome) = (Some(self.tick()), Some(outcome.clone()));
        outcome
    }

    /// A task that lets others go first for a while, and then makes its call.
    pub(crate) fn task(&self, call: Call, delay: u64) -> Task<'_> {
        Box::pin(async move {
            for _ in 0..delay {
                self.memory.pause(0).await;
            }
            let _ = self.call(call).await;
        })
    }

    /// The calls of one schedule: a mount and a deletion, and what else is drawn.
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
        // Late starts let calls follow each other; without them all of them overlap.
        calls.into_iter().map(|call| self.task(call, if draw.chance(1, 2) { draw.below(20) } else { 0 })).collect()
    }
}

async fn make(table: &Table<Gathered<Memory>>, call: Call) -> Result<(), Error> {
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
