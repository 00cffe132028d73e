//! Carries the workloads out, one after the other.

use std::time::Duration;

use ebla_model::error::Error;
use ebla_mounttable::service::messages;
use ebla_proto::mounttable::CountersReply;
use ebla_proto::mounttable::glob_reply::Reply;
use ebla_runtime::Runtime;
use tonic::transport::Channel;

use super::asker::{Asker, Deed, Order};
use super::caller::Caller;
use super::report::{Cost, Figures, Memory, Requests};
use super::shape::{Names, Shape};
use super::stock::Stock;
use super::{Plan, Workload};
use crate::bench::closed::{self, Outcome};
use crate::bench::processes::Processes;

/// Clients share connections: this many clients one.
const CLIENTS_PER_CHANNEL: usize = 16;

/// What is measured of lookups.
const CPU: &str = "CPU-s per million";
/// What is measured of mounts.
const CHANGES: &str = "changes each";
/// Seconds of processor for a million names, one a call.
const RESOLVE_CPU_MAX: f64 = 25.0;
/// The same, a hundred names a call.
const BATCH_CPU_MAX: f64 = 3.0;
/// Names of a directory that are asked for: enough for a median and few enough for a directory of a thousand.
const SAMPLE: u64 = 1_000;
/// Names of a directory that are mounted when the others are written.
const MOUNTED: u64 = 100;
/// By how much the median may be higher in the large directory: noise.
const WIDE_RATIO_MAX: f64 = 1.1;
/// MiB by which a listing may make the server grow.
const LISTING_GROWTH_MAX: f64 = 64.0;
/// Servers that are asked for of a node with very many.
const SERVERS_ASKED: u32 = 10;
/// Entries of a listing between two looks at the server's memory.
const LOOK_EVERY: u64 = 1_000;

/// A load on one table, through all servers of it that are named.
pub struct Bench {
    runtime: Runtime,
    /// Of each server several.
    channels: Vec<Channel>,
    /// The first user at each server.
    owners: Vec<Caller>,
    called: String,
    folder: String,
    processes: Processes,
    plan: Plan,
    /// Where large directories are written; without it they are mounted.
    stock: Option<Stock>,
}

impl Bench {
    /// A load on the servers at `addresses`, `HOST:PORT`, by users whose names begin with `called`, below a node of its own.
    /// `processes` are those whose costs are counted.
    ///
    /// # Errors
    /// `InvalidArgument` without an address, or when nobody can be called so.
    pub fn new(
        runtime: Runtime,
        addresses: &[String],
        called: &str,
        processes: Processes,
        plan: Plan,
    ) -> Result<Self, Error> {
        let count = plan.clients.div_ceil(CLIENTS_PER_CHANNEL).max(addresses.len());
        let channels: Vec<_> =
            addresses.iter().cycle().take(count).map(|address| runtime.net.channel(address)).collect();
        let owner = |channel| Caller::new(channel, &format!("{called}-0"));
        let owners = channels.iter().take(addresses.len()).map(owner).collect::<Result<Vec<_>, _>>();
        let owners = owners.map_err(|error| Error::invalid(error.message))?;
        if owners.is_empty() {
            return Err(Error::invalid("no mounttable to ask"));
        }
        let folder = format!("bench-{:08x}", runtime.rng.below(1 << 32));
        Ok(Self { runtime, channels, owners, called: called.to_owned(), folder, processes, plan, stock: None })
    }

    /// The children of large directories are written there, which is the table behind the servers.
    #[must_use]
    pub fn stocked(self, stock: Option<Stock>) -> Self {
        Self { stock, ..self }
    }

    /// Carries one workload out: first what it needs is mounted, then it is measured.
    ///
    /// # Errors
    /// When what it needs cannot be mounted. What is refused while it is measured is counted.
    pub async fn measure(&self, workload: Workload) -> Result<Vec<Figures>, Error> {
        let warm = || Names::new(&self.folder, Shape::Spread, self.plan.names);
        match workload {
            Workload::Resolve => {
                let names = self.filled(warm()).await?;
                let figures = self.for_a_while("resolve", Deed::Resolve(0), &names).await?;
                Ok(vec![figures.bar(CPU, RESOLVE_CPU_MAX, Figures::cpu_seconds_per_million)])
            }
            Workload::BatchResolve => {
                let names = self.filled(warm()).await?;
                let figures = self.for_a_while("batch-resolve", Deed::ResolveMany, &names).await?;
                Ok(vec![figures.bar(CPU, BATCH_CPU_MAX, Figures::cpu_seconds_per_million)])
            }
            Workload::Mount => {
                let names = self.filled(warm()).await?;
                let figures = self.again(&names).await?;
                Ok(vec![figures.bar(CHANGES, 1.0, Figures::changes_each)])
            }
            Workload::Cold => {
                let names = self.filled(Names::new(&self.folder, Shape::Deep, self.plan.cold)).await?;
                let figures = self.once("cold", Deed::Resolve(0), &names, 0, names.count()).await?;
                Ok(vec![figures.bar("reads each", 1.0, Figures::reads_each)])
            }
            Workload::SameNode => self.same_node().await,
            Workload::Wide => self.wide().await,
        }
    }

    /// Takes away whatever the load has mounted.
    ///
    /// # Errors
    /// What the server answers; the mounts end by themselves then.
    pub async fn clean_up(&self) -> Result<u64, Error> {
        let Some(mut owner) = self.owners.first().cloned() else { return Ok(0) };
        owner.delete(&self.folder).await.map_err(|error| Error::internal(error.message))
    }

    /// Each mount changes the node's row once, if nobody spoils what another one does.
    async fn same_node(&self) -> Result<Vec<Figures>, Error> {
        let names = Names::new(&self.folder, Shape::Together, self.plan.servers);
        // The node is made by its first server, which is not counted.
        let first = self.once("first", Deed::Mount, &names, 0, 1).await?;
        done(&first.outcome)?;
        let mounted = self.once("same-node mount", Deed::Mount, &names, 1, names.count()).await?;
        let mounted = mounted.bar(CHANGES, 1.0, Figures::changes_each);
        let resolved = self.for_a_while("same-node resolve", Deed::Resolve(SERVERS_ASKED), &names).await?;
        Ok(vec![mounted, resolved])
    }

    /// Two directories that differ in their size alone, asked in turn.
    async fn wide(&self) -> Result<Vec<Figures>, Error> {
        let wide = Names::new(&self.folder, Shape::Directory("wide"), self.plan.children);
        let narrow = Names::new(&self.folder, Shape::Directory("narrow"), SAMPLE.min(self.plan.children));
        let mounted = if self.stock.is_some() { MOUNTED.min(wide.count()) } else { wide.count() };
        let made = self.once("wide mount", Deed::Mount, &wide, 0, mounted).await?;
        done(&made.outcome)?;
        if let Some(stock) = &self.stock {
            stock.write(&wide, &self.called, mounted).await?;
        }
        self.fill(&narrow).await?;
        let (half, all) = (narrow.count() / 2, narrow.count());
        let first = self.once("wide resolve", Deed::Resolve(0), &wide, 0, half).await?;
        let first_narrow = self.once("narrow resolve", Deed::Resolve(0), &narrow, 0, half).await?;
        let small = plus(first_narrow, self.once("narrow resolve", Deed::Resolve(0), &narrow, half, all).await?);
        let large = plus(first, self.once("wide resolve", Deed::Resolve(0), &wide, half, all).await?);
        let median = |figures: &Figures| figures.outcome.quantile_micros(0.5);
        let ratio = median(&large).zip(median(&small)).map(|(large, small)| large / small.max(1.0));
        let large = large.bar("median, of the narrow one's", WIDE_RATIO_MAX, |_large| ratio);
        Ok(vec![made, small, large, self.list(&wide).await?])
    }

    /// Lists a directory, and looks at the server's memory meanwhile.
    async fn list(&self, names: &Names) -> Result<Figures, Error> {
        let Some(mut owner) = self.owners.first().cloned() else { return Err(Error::invalid("nobody asks")) };
        let before = self.spent().await;
        let resident = self.processes.resident_bytes();
        let started = self.runtime.clock.monotonic();
        let mut outcome = Outcome::none();
        let mut peak = resident;
        let failed = |error: ebla_mounttable::Error| Error::internal(error.message).context("list the directory");
        let mut listing = owner.glob(&names.directory(), "*").await.map_err(failed)?;
        while let Some(reply) = listing.message().await.map_err(|status| failed(messages::error(&status)))? {
            match reply.reply {
                Some(Reply::Entry(_)) => outcome.operations += 1,
                Some(Reply::Error(error)) => {
                    outcome.errors += 1;
                    outcome.first_error.get_or_insert(error.failure.unwrap_or_default().message);
                }
                Some(Reply::Summary(_)) | None => {}
            }
            if outcome.operations.is_multiple_of(LOOK_EVERY) {
                peak = peak.max(self.processes.resident_bytes());
            }
        }
        outcome.took = self.runtime.clock.monotonic().saturating_sub(started);
        if outcome.operations != names.count() {
            outcome.errors += 1;
            let short = format!("{} entries where there must be {}", outcome.operations, names.count());
            outcome.first_error.get_or_insert(short);
        }
        let after = self.processes.resident_bytes();
        let memory = resident.zip(peak).zip(after);
        let memory = memory.map(|((before, peak), after)| Memory { before, peak: peak.max(after), after });
        let cost = self.spent().await.since(before);
        let figures = Figures { name: "wide glob", outcome, cost, memory, bar: None };
        Ok(figures.bar("MiB grown", LISTING_GROWTH_MAX, Figures::growth_mebibytes))
    }

    async fn filled(&self, names: Names) -> Result<Names, Error> {
        self.fill(&names).await?;
        Ok(names)
    }

    /// Mounts a server on each name; those that are there already stay.
    async fn fill(&self, names: &Names) -> Result<(), Error> {
        let figures = self.once("fill", Deed::Mount, names, 0, names.count()).await?;
        done(&figures.outcome)
    }

    /// Resolves names in any order.
    async fn for_a_while(&self, name: &'static str, deed: Deed, names: &Names) -> Result<Figures, Error> {
        let length = Some(self.plan.length);
        self.run(name, deed, names, length, |_client| Order::Random(self.runtime.rng.fork())).await
    }

    /// Mounts again what is mounted. Each client has its own names, as servers have: nobody refreshes the mounts of others.
    async fn again(&self, names: &Names) -> Result<Figures, Error> {
        let step = u64::try_from(self.plan.clients).unwrap_or(u64::MAX);
        let length = Some(self.plan.length);
        self.run("mount again", Deed::Mount, names, length, |client| Order::own(client, step)).await
    }

    /// Does it to the names `[start, end)`, once each.
    async fn once(
        &self,
        name: &'static str,
        deed: Deed,
        names: &Names,
        start: u64,
        end: u64,
    ) -> Result<Figures, Error> {
        let order = Order::once(start, end);
        self.run(name, deed, names, None, |_client| order.clone()).await
    }

    async fn run(
        &self,
        name: &'static str,
        deed: Deed,
        names: &Names,
        length: Option<Duration>,
        order: impl Fn(u64) -> Order,
    ) -> Result<Figures, Error> {
        let channels = self.channels.iter().cycle().take(self.plan.clients);
        let client = |(channel, number): (&Channel, u64)| {
            Asker::new(channel.clone(), &self.called, deed, names.clone(), order(number))
        };
        let clients = channels.zip(0..).map(client).collect();
        let before = self.spent().await;
        let outcome = closed::run(&self.runtime, clients, length).await?;
        Ok(Figures { name, outcome, cost: self.spent().await.since(before), memory: None, bar: None })
    }

    /// What all has cost since the processes were started; the servers' requests together.
    async fn spent(&self) -> Cost {
        let mut requests = Some(Requests::default());
        for mut owner in self.owners.iter().cloned() {
            let told = owner.counters().await.ok();
            let one = |it: CountersReply| Requests { reads: it.reads, changes: it.changes, counters: it.counters };
            requests = requests.zip(told.map(one)).map(|(sum, one)| sum + one);
        }
        let (cpu_micros, generator_micros) = (self.processes.cpu_micros(), Processes::own().cpu_micros());
        Cost { cpu_micros, generator_micros, requests }
    }
}

/// Two slices of the same as one.
fn plus(mut one: Figures, other: Figures) -> Figures {
    one.outcome.add(other.outcome);
    one.cost = one.cost.plus(other.cost);
    one
}

/// What has to be there before anything is measured is there.
fn done(outcome: &Outcome) -> Result<(), Error> {
    match &outcome.first_error {
        None => Ok(()),
        Some(error) => Err(Error::internal(format!("{} mounts failed, first: {error}", outcome.errors))),
    }
}
