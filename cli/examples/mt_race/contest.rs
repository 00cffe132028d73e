//! The mounttable and its peer under the same load, in rounds that alternate.

use std::error::Error;
use std::time::Duration;

use ebla_runtime::Runtime;
use ebla_workload::bench::Combination;
use ebla_workload::bench::closed_loop::{self, Client, LoopResult};
use ebla_workload::bench::etcd::{Consistency, Etcd, Lease};
use ebla_workload::bench::names::load_client::{LoadClient, NameOrder, Operation, TTL};
use ebla_workload::bench::names::shape::{Names, TreeShape};
use ebla_workload::bench::processes::Processes;
use ebla_workload::bench::report::Comparison;
use ebla_workload::bench::round::{Round, alternate};
use tonic::transport::Channel;

/// What the load's user is called, and the node that it mounts below.
const USER_PREFIX: &str = "race";

/// Clients share connections: this many clients one.
const CLIENTS_PER_CHANNEL: usize = 16;

/// The mounttable.
pub(super) struct Ours {
    channels: Vec<Channel>,
    processes: Processes,
    names: Names,
}

impl Ours {
    /// The mounttable at `channels`.
    pub(super) fn new(channels: Vec<Channel>, processes: Processes, names: u64) -> Self {
        Self { channels, processes, names: Names::new(USER_PREFIX, TreeShape::Spread, names) }
    }

    fn clients(&self, count: usize, operation: Operation, order: impl Fn(u64) -> NameOrder) -> Vec<LoadClient> {
        let client = |(channel, number): (&Channel, u64)| {
            LoadClient::new(channel.clone(), USER_PREFIX, operation, self.names.clone(), order(number))
        };
        self.channels.iter().cycle().take(count).zip(0..).map(client).collect()
    }
}

/// The etcd.
pub(super) struct Theirs {
    channels: Vec<Channel>,
    processes: Processes,
    names: Names,
    /// As long as the mounts.
    lease: Lease,
}

impl Theirs {
    /// The etcd at `channels`, where the load takes a lease.
    ///
    /// # Errors
    /// When it gives none.
    pub(super) async fn new(channels: Vec<Channel>, processes: Processes, names: u64) -> Result<Self, Box<dyn Error>> {
        let first = channels.first().cloned().ok_or("an etcd without an address")?;
        let lease = Etcd::new(first).grant(i64::try_from(TTL.as_secs())?).await?;
        Ok(Self { channels, processes, names: Names::new(USER_PREFIX, TreeShape::Spread, names), lease })
    }

    fn clients(&self, count: usize, operation: EtcdOperation, order: impl Fn(u64) -> NameOrder) -> Vec<Registrar> {
        let client = |(channel, number): (&Channel, u64)| Registrar {
            etcd: Etcd::new(channel.clone()),
            operation,
            lease: self.lease,
            names: self.names.clone(),
            order: order(number),
        };
        self.channels.iter().cycle().take(count).zip(0..).map(client).collect()
    }
}

/// Enough channels for this number of clients, spread over all addresses, `HOST:PORT`.
pub(super) fn channels(runtime: &Runtime, addresses: &[String], clients: usize) -> Vec<Channel> {
    let count = clients.div_ceil(CLIENTS_PER_CHANNEL).max(addresses.len());
    addresses.iter().cycle().take(count).map(|address| runtime.net.channel(address)).collect()
}

/// An operation on etcd.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum EtcdOperation {
    Register,
    LookUp(Consistency),
}

/// A client of an etcd.
struct Registrar {
    etcd: Etcd,
    operation: EtcdOperation,
    lease: Lease,
    names: Names,
    order: NameOrder,
}

impl Client for Registrar {
    async fn request(&mut self) -> Result<Option<u64>, String> {
        let Some(number) = self.order.next(self.names.count()) else { return Ok(None) };
        let item = self.names.item(number);
        let done = match self.operation {
            EtcdOperation::Register => self.etcd.register(&item.name, &item.server, self.lease).await,
            EtcdOperation::LookUp(consistency) => match self.etcd.look_up(&item.name, consistency).await {
                Ok(None) => return Err(format!("{} is not there", item.name)),
                found => found.map(drop),
            },
        };
        done.map(|()| Some(1)).map_err(|status| status.to_string())
    }
}

/// Both.
pub(super) struct Contest<'a> {
    pub(super) runtime: &'a Runtime,
    pub(super) ours: Ours,
    pub(super) theirs: Theirs,
    /// Length of a slice.
    pub(super) slice: Duration,
    /// Slices of each.
    pub(super) rounds: usize,
}

/// Who is measured, in the order of the table.
#[derive(Clone, Copy)]
enum Side {
    Ours(&'static str, Operation),
    Theirs(&'static str, EtcdOperation),
}

impl Contest<'_> {
    /// Mounts every name and puts every key.
    ///
    /// # Errors
    /// When one cannot be.
    pub(super) async fn fill(&self) -> Result<(), Box<dyn Error>> {
        let count = self.ours.names.count();
        let order = NameOrder::once(0, count);
        let ours =
            closed_loop::run(self.runtime, self.ours.clients(16, Operation::Mount, |_| order.clone()), None).await?;
        let order = NameOrder::once(0, count);
        let theirs =
            closed_loop::run(self.runtime, self.theirs.clients(16, EtcdOperation::Register, |_| order.clone()), None)
                .await?;
        without_errors(&ours)?;
        without_errors(&theirs)
    }

    pub(super) async fn mounts(&self, clients: usize) -> Result<Comparison, Box<dyn Error>> {
        let sides = [Side::Ours("mount", Operation::Mount), Side::Theirs("etcd put", EtcdOperation::Register)];
        self.measure("mount", clients, &sides).await
    }

    pub(super) async fn resolves(&self, clients: usize) -> Result<Comparison, Box<dyn Error>> {
        let sides = [
            Side::Ours("resolve", Operation::Resolve(0)),
            Side::Theirs("etcd get, linearizable", EtcdOperation::LookUp(Consistency::Linearizable)),
            Side::Theirs("etcd get, serializable", EtcdOperation::LookUp(Consistency::Serializable)),
        ];
        self.measure("resolve", clients, &sides).await
    }

    async fn measure(
        &self,
        workload: &'static str,
        clients: usize,
        sides: &[Side],
    ) -> Result<Comparison, Box<dyn Error>> {
        let slices = alternate(sides, self.rounds, |side| side.name(), async |side| self.slice(*side, clients).await);
        let slices = slices.await?;
        eprintln!("{workload} with {clients} clients: done");
        let combination = Combination { workload, clients, tablets: None };
        Ok(Comparison::new(combination, &slices, &self.runtime.rng))
    }

    /// The first error ends it: a race of refused requests would flatter.
    async fn slice(&self, side: Side, clients: usize) -> Result<Round, Box<dyn Error>> {
        let step = u64::try_from(clients)?;
        // Servers renew their own mounts; lookups are random.
        let order = |number| match side {
            Side::Ours(_, Operation::Mount) | Side::Theirs(_, EtcdOperation::Register) => NameOrder::own(number, step),
            Side::Ours(..) | Side::Theirs(..) => NameOrder::Random(self.runtime.rng.fork()),
        };
        let processes = match side {
            Side::Ours(..) => &self.ours.processes,
            Side::Theirs(..) => &self.theirs.processes,
        };
        let (before, own) = (processes.usage(), Processes::own().cpu_micros());
        let length = Some(self.slice);
        let outcome = match side {
            Side::Ours(_, operation) => {
                closed_loop::run(self.runtime, self.ours.clients(clients, operation, order), length).await?
            }
            Side::Theirs(_, operation) => {
                closed_loop::run(self.runtime, self.theirs.clients(clients, operation, order), length).await?
            }
        };
        without_errors(&outcome)?;
        let grown = |before: Option<u64>, after: Option<u64>| Some(after?.saturating_sub(before?));
        Ok(Round {
            rows: outcome.operations,
            took: outcome.took,
            latencies: outcome.latencies,
            spent: before.zip(processes.usage()).map(|(before, after)| after.since(&before)),
            generator_micros: grown(own, Processes::own().cpu_micros()),
            servers: None,
        })
    }
}

impl Side {
    const fn name(self) -> &'static str {
        match self {
            Self::Ours(name, _) | Self::Theirs(name, _) => name,
        }
    }
}

fn without_errors(outcome: &LoopResult) -> Result<(), Box<dyn Error>> {
    match &outcome.first_error {
        None => Ok(()),
        Some(error) => Err(format!("{} errors, the first: {error}", outcome.errors).into()),
    }
}
