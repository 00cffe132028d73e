//! Nodes with very many children and servers: T114, T118. Larger ones need a cluster.

use std::ops::ControlFlow;
use std::time::Duration;

use ebla_model::Micros;
use ebla_mounttable_tree::node::{Epoch, Incarnation, Node, Reference, reference_changes};
use ebla_mounttable_tree::store::{Change, Condition, Environment, Family, Store};
use ebla_mounttable_tree::table::{GlobMatch, GlobSink, Mount};
use ebla_mounttable_tree::{Caller, Error, MountMode, NodeName, Pattern, Reason, Target, UserId, row_key};

use crate::storage::{Call, Storage, alone, together};
use crate::{Replica, SECOND, caller, name};

/// The number of children of the large directory.
const CHILDREN: usize = 100_000;

/// The largest number of cells of a row that a walk may read: those of the node itself, and one reference.
const WALK_CELLS_MAX: usize = 10;

/// The largest number of cells of a row that a listing may read at a time: a page of references, and the node's own.
const PAGE_CELLS_MAX: usize = 300;

/// The largest number of cells that a change of one server may read, of all rows together: the node's and the root's
/// own, and nine servers.
const CHANGE_CELLS_MAX: usize = 56;

/// The number of concurrent mounts on one node.
const MOUNTS: usize = 10_000;

fn change(storage: &Storage, name: &NodeName, changes: Vec<Change>) {
    assert!(alone(storage.memory.change_if(&row_key(name), Condition::All(Vec::new()), changes)).unwrap());
}

/// Writes a directory as if its children had been created one by one.
fn large_directory(storage: &Storage, replica: &Replica) {
    replica.mount("large/first", "h:1", Duration::ZERO).unwrap();
    let directory = name("large");
    let rows = storage.memory.rows();
    let parent = Node::decode(&directory, rows.get(&row_key(&directory)).unwrap()).unwrap();
    let mut references = Vec::new();
    for number in 1..CHILDREN {
        let element = format!("{number:06}");
        let child = Node {
            name: directory.child(&element).unwrap(),
            incarnation: Incarnation::new(storage.unique_u64()),
            version: 1,
            epoch: Epoch::Alive(0),
            parent: parent.incarnation,
            creator: UserId::server(),
            created: Micros::ZERO,
            stickiness: ebla_mounttable_tree::file::Stickiness::Sticky,
            permissions: parent.permissions.clone(),
            servers: Vec::new(),
            children: [].into(),
        };
        references.extend(reference_changes(&element, Reference::Committed(child.incarnation), Micros::ZERO));
        change(storage, &child.name, child.write());
    }
    change(storage, &directory, references);
}

/// Counts matches, and stops on request.
struct Counter {
    found: usize,
    enough: usize,
}

impl GlobSink for Counter {
    async fn found(&mut self, _found: GlobMatch) -> ControlFlow<()> {
        self.found += 1;
        if self.found < self.enough { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }

    async fn failed(&mut self, name: &str, error: &Error) -> ControlFlow<()> {
        panic!("{name}: {error}");
    }
}

/// T118, with a tenth of the children and in memory: neither a walk nor a page of a listing reads the directory.
#[test]
fn a_large_directory_is_never_read_completely() {
    let storage = Storage::new();
    let replica = Replica::of(&storage);
    large_directory(&storage, &replica);
    storage.advance(SECOND * 2);
    storage.take_cells_max();
    storage.take_calls();
    replica.mount("large/050000", "h:2", SECOND * 60).unwrap();
    assert_eq!(replica.servers("large/050000"), ["h:2"]);
    assert!(storage.take_cells_max() <= WALK_CELLS_MAX);
    let list = |pattern: &str, enough: usize| {
        let mut counter = Counter { found: 0, enough };
        let pattern: Pattern = pattern.parse().unwrap();
        let outcome = alone(replica.table.glob(&caller(), &name("large"), &pattern, &mut counter));
        (counter.found, outcome.is_ok())
    };
    storage.take_calls();
    assert_eq!(list("*", 10), (10, false), "the listing stops when the receiver has enough");
    assert!(storage.take_calls() < 10, "and the rest is not read");
    assert_eq!(list("0999*", usize::MAX), (100, true));
    assert!(storage.take_calls() < 10, "what every match begins with bounds what is read");
    assert_eq!(list("*", usize::MAX), (CHILDREN, true));
    assert!(storage.take_cells_max() <= PAGE_CELLS_MAX, "in pages");
}

/// T114: the mounts do not wait for each other.
#[test]
fn mounts_on_one_node_do_not_conflict() {
    let storage = Storage::new();
    let replica = Replica::of(&storage);
    replica.mount("popular", "h:1", Duration::ZERO).unwrap();
    // The default quota of one user.
    let (caller, node) = (Caller::new(vec!["another".parse().unwrap()], &[]), name("popular"));
    let before = storage.pauses();
    let mount = |port: usize| -> Call<'_, Result<(), Error>> {
        let address = format!("h:{port}").parse().unwrap();
        let mount = Mount { address, target: Target::Object, ttl: SECOND * 60, mode: MountMode::Add };
        let (replica, caller, node) = (&replica, &caller, &node);
        Box::pin(async move { replica.table.mount(caller, node, &mount).await.map(drop) })
    };
    let outcomes = together((2..2 + MOUNTS).map(mount));
    assert!(outcomes.iter().all(Result::is_ok), "{:?}", outcomes.iter().find(|outcome| outcome.is_err()));
    assert_eq!(replica.servers("popular").len(), MOUNTS + 1);
    assert_eq!(storage.pauses(), before, "no call had to retry");
}

/// T114: mounting, refreshing or unmounting one of very many servers reads no more than one of few.
#[test]
fn a_mount_reads_few_of_the_servers_of_its_node() {
    let storage = Storage::new();
    let replica = Replica::of(&storage);
    let mut read = [Vec::new(), Vec::new(), Vec::new()];
    for port in 1..=MOUNTS {
        let server = format!("h:{port}");
        let mount = || replica.mount("popular", &server, SECOND * 3_600).unwrap();
        mount();
        read[0].push(storage.take_cells());
        mount();
        read[1].push(storage.take_cells());
        if port % 100 == 0 {
            alone(replica.table.unmount(&caller(), &name("popular"), Some(&server.parse().unwrap()))).unwrap();
            read[2].push(storage.take_cells());
        }
    }
    for cells in read {
        // The first mount creates the node.
        assert!(cells.iter().skip(1).all(|it| *it <= CHANGE_CELLS_MAX), "{cells:?}");
    }
    assert_eq!(replica.servers("popular").len(), MOUNTS - MOUNTS / 100);
}

/// T114: a mount on a node with very many servers detects conflicts.
#[test]
fn a_mount_sees_what_it_conflicts_with_among_many() {
    let storage = Storage::new();
    let replica = Replica::of(&storage);
    let mount = |server: &str, target: Target, ttl: Duration| {
        let mount = Mount { address: server.parse().unwrap(), target, ttl, mode: MountMode::Add };
        alone(replica.table.mount(&caller(), &name("popular"), &mount)).map(drop).map_err(|error| error.reason)
    };
    for port in 1..100 {
        mount(&format!("h:{port}"), Target::Object, SECOND * 60).unwrap();
    }
    assert_eq!(mount("h:500", Target::Leaf, SECOND * 60), Err(Reason::FlagsConflict));
    assert_eq!(mount("h:50", Target::Leaf, SECOND * 60), Err(Reason::FlagsConflict), "its own sort is changed");
    let below = replica.mount("popular/below", "h:1", SECOND).unwrap_err().reason;
    assert_eq!(below, Reason::ShadowedByMount);
    storage.advance(SECOND * 60);
    mount("h:500", Target::Leaf, SECOND * 60).unwrap();
    assert_eq!(replica.servers("popular"), ["h:500"], "expired servers do not conflict, and are removed");
    let rows = storage.memory.rows();
    let left = rows.values().flatten().filter(|((family, _), _)| *family == Family::Servers).count();
    assert_eq!(left, 1);
}
