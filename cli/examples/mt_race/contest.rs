//! The mounttable and its peer under the same load, in slices that alternate.

use std::error::Error;
use std::time::Duration;

use ebla_cli::bench::closed::{self, Client, Outcome};
use ebla_cli::bench::etcd::{Consistency, Etcd, Lease};
use ebla_cli::bench::names::asker::{Asker, Deed, Order, TTL};
use ebla_cli::bench::names::shape::{Names, Shape};
use ebla_cli::bench::processes::Processes;
use ebla_cli::bench::report::Measured;
use ebla_cli::bench::slice::{Slice, alternate};
use ebla_runtime::Runtime;
use tonic::transport::Channel;

/// What the load's user is called, and the node that it mounts below.
const CALLED: &str = "race";

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
        Self { channels, processes, names: Names::new(CALLED, Shape::Spread, names) }
    }

    fn clients(&self, count: usize, deed: Deed, order: impl Fn(u64) -> Order) -> Vec<Asker> {
        let client = |(channel, number): (&Channel, u64)| {
            Asker::new(channel.clone(), CALLED, deed, self.names.clone(), order(number))
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
        Ok(Self { channels, processes, names: Names::new(CALLED, Shape::Spread, names), lease })
    }

    fn clients(&self, count: usize, deed: Asked, order: impl Fn(u64) -> Order) -> Vec<Registrar> {
        let client = |(channel, number): (&Channel, u64)| Registrar {
            etcd: Etcd::new(channel.clone()),
            deed,
            lease: self.lease,
            names: self.names.clone(),
            order: order(number),
        };
        self.channels.iter().cycle().take(count).zip(0..).map(client).collect()
    }
}

/// Enough for so many clients, spread over all addresses, `HOST:PORT`.
pub(super) fn channels(runtime: &Runtime, addresses: &[String], clients: usize) -> Vec<Channel> {
    let count = clients.div_ceil(CLIENTS_PER_CHANNEL).max(addresses.len());
    addresses.iter().cycle().take(count).map(|address| runtime.net.channel(address)).collect()
}

/// What is asked of an etcd.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Asked {
    Register,
    LookUp(Consistency),
}

/// A client of an etcd.
struct Registrar {
    etcd: Etcd,
    deed: Asked,
    lease: Lease,
    names: Names,
    order: Order,
}

impl Client for Registrar {
    async fn request(&mut self) -> Result<Option<u64>, String> {
        let Some(number) = self.order.next(self.names.count()) else { return Ok(None) };
        let item = self.names.item(number);
        let done = match self.deed {
            Asked::Register => self.etcd.register(&item.name, &item.server, self.lease).await,
            Asked::LookUp(consistency) => match self.etcd.look_up(&item.name, consistency).await {
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
    Ours(&'static str, Deed),
    Theirs(&'static str, Asked),
}

impl Contest<'_> {
    /// Mounts every name and puts every key.
    ///
    /// # Errors
    /// When one cannot be.
    pub(super) async fn fill(&self) -> Result<(), Box<dyn Error>> {
        let count = self.ours.names.count();
        let order = Order::once(0, count);
        let ours = closed::run(self.runtime, self.ours.clients(16, Deed::Mount, |_| order.clone()), None).await?;
        let order = Order::once(0, count);
        let theirs =
            closed::run(self.runtime, self.theirs.clients(16, Asked::Register, |_| order.clone()), None).await?;
        without_errors(&ours)?;
        without_errors(&theirs)
    }

    pub(super) async fn mounts(&self, clients: usize) -> Result<Measured, Box<dyn Error>> {
        let sides = [Side::Ours("mount", Deed::Mount), Side::Theirs("etcd put", Asked::Register)];
        self.measure("mount", clients, &sides).await
    }

    pub(super) async fn resolves(&self, clients: usize) -> Result<Measured, Box<dyn Error>> {
        let sides = [
            Side::Ours("resolve", Deed::Resolve(0)),
            Side::Theirs("etcd get, linearizable", Asked::LookUp(Consistency::Linearizable)),
            Side::Theirs("etcd get, serializable", Asked::LookUp(Consistency::Serializable)),
        ];
        self.measure("resolve", clients, &sides).await
    }

    async fn measure(
        &self,
        workload: &'static str,
        clients: usize,
        sides: &[Side],
    ) -> Result<Measured, Box<dyn Error>> {
        let slices = alternate(sides, self.rounds, |side| side.name(), async |side| self.slice(*side, clients).await);
        let slices = slices.await?;
        eprintln!("{workload} with {clients} clients: done");
        Ok(Measured::new(workload, clients, &slices, &self.runtime.rng))
    }

    /// The first error ends it: a race of refused requests would flatter.
    async fn slice(&self, side: Side, clients: usize) -> Result<Slice, Box<dyn Error>> {
        let step = u64::try_from(clients)?;
        // Servers refresh their own mounts, and nobody knows who looks for whom.
        let order = |number| match side {
            Side::Ours(_, Deed::Mount) | Side::Theirs(_, Asked::Register) => Order::own(number, step),
            Side::Ours(..) | Side::Theirs(..) => Order::Random(self.runtime.rng.fork()),
        };
        let processes = match side {
            Side::Ours(..) => &self.ours.processes,
            Side::Theirs(..) => &self.theirs.processes,
        };
        let (before, own) = (processes.cpu_micros(), Processes::own().cpu_micros());
        let length = Some(self.slice);
        let outcome = match side {
            Side::Ours(_, deed) => closed::run(self.runtime, self.ours.clients(clients, deed, order), length).await?,
            Side::Theirs(_, deed) => {
                closed::run(self.runtime, self.theirs.clients(clients, deed, order), length).await?
            }
        };
        without_errors(&outcome)?;
        let grown = |before: Option<u64>, after: Option<u64>| Some(after?.saturating_sub(before?));
        Ok(Slice {
            rows: outcome.operations,
            took: outcome.took,
            latencies: outcome.latencies,
            cpu_micros: grown(before, processes.cpu_micros()),
            generator_micros: grown(own, Processes::own().cpu_micros()),
            syncs: None,
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

fn without_errors(outcome: &Outcome) -> Result<(), Box<dyn Error>> {
    match &outcome.first_error {
        None => Ok(()),
        Some(error) => Err(format!("{} errors, the first: {error}", outcome.errors).into()),
    }
}
