//! Runs the workloads.

use std::time::Duration;

use ebla_model::error::Error;
use ebla_mounttable_tree::messages;
use ebla_proto::mounttable::CountersReply;
use ebla_proto::mounttable::glob_reply::Reply;
use ebla_runtime::Runtime;
use tonic::transport::Channel;

use super::fixture::Fixture;
use super::load_client::{LoadClient, NameOrder, Operation};
use super::report::{Cost, Measurement, Memory, Requests};
use super::session::Session;
use super::shape::{Names, TreeShape};
use super::{Plan, Workload};
use crate::bench::closed_loop::{self, LoopResult};
use crate::bench::processes::Processes;

/// Clients that share one connection.
const CLIENTS_PER_CHANNEL: usize = 16;

/// The measured value of lookups.
const CPU: &str = "CPU-s per million";
/// The measured value of mounts.
const CHANGES: &str = "changes each";
/// Processor seconds per million names, one name per call.
const RESOLVE_CPU_MAX: f64 = 25.0;
/// The same with a hundred names per call.
const BATCH_CPU_MAX: f64 = 3.0;
/// Names of a directory that are resolved: enough for a median, and available in a directory of a thousand.
const SAMPLE: u64 = 1_000;
/// Names of a directory that are mounted when the others are written into the table.
const MOUNTED: u64 = 100;
/// Maximum ratio of the medians in the large and the small directory; the difference is noise.
const WIDE_RATIO_MAX: f64 = 1.1;
/// Maximum growth of the server's memory during a listing, in MiB.
const LISTING_GROWTH_MAX: f64 = 64.0;
/// Maximum number of servers requested of a node with very many.
const SERVERS_ASKED: u32 = 10;
/// Entries of a listing between two measurements of the server's memory.
const MEASURE_EVERY: u64 = 1_000;

/// A load on one mounttable, through all given servers of it.
pub struct Bench {
    runtime: Runtime,
    /// Several for each server.
    channels: Vec<Channel>,
    /// A session of the first user with each server.
    owners: Vec<Session>,
    user_prefix: String,
    folder: String,
    processes: Processes,
    plan: Plan,
    /// Writes large directories; without it they are mounted.
    fixture: Option<Fixture>,
}

impl Bench {
    /// A load on the servers at `addresses`, `HOST:PORT`, by users whose names start with `user_prefix`, below a separate node.
    /// `processes`: the processes of the servers.
    ///
    /// # Errors
    /// `InvalidArgument` without an address, or when `user_prefix` is invalid.
    pub fn new(
        runtime: Runtime,
        addresses: &[String],
        user_prefix: &str,
        processes: Processes,
        plan: Plan,
    ) -> Result<Self, Error> {
        let count = plan.clients.div_ceil(CLIENTS_PER_CHANNEL).max(addresses.len());
        let channels: Vec<_> =
            addresses.iter().cycle().take(count).map(|address| runtime.net.channel(address)).collect();
        let owner = |channel| Session::new(channel, &format!("{user_prefix}-0"));
        let owners = channels.iter().take(addresses.len()).map(owner).collect::<Result<Vec<_>, _>>();
        let owners = owners.map_err(|error| Error::invalid(error.message))?;
        if owners.is_empty() {
            return Err(Error::invalid("no address of a mounttable"));
        }
        let folder = format!("bench-{:08x}", runtime.rng.below(1 << 32));
        Ok(Self {
            runtime,
            channels,
            owners,
            user_prefix: user_prefix.to_owned(),
            folder,
            processes,
            plan,
            fixture: None,
        })
    }

    /// Sets the fixture that writes children of large directories into the table behind the servers.
    #[must_use]
    pub fn with_fixture(self, fixture: Option<Fixture>) -> Self {
        Self { fixture, ..self }
    }

    /// Runs one workload: creates its mounts, then measures it.
    ///
    /// # Errors
    /// When its mounts cannot be created. Errors during the measurement are counted.
    pub async fn measure(&self, workload: Workload) -> Result<Vec<Measurement>, Error> {
        let warm = || Names::new(&self.folder, TreeShape::Spread, self.plan.names);
        match workload {
            Workload::Resolve => {
                let names = self.filled(warm()).await?;
                let measurement = self.for_a_while("resolve", Operation::Resolve(0), &names).await?;
                Ok(vec![measurement.with_limit(CPU, RESOLVE_CPU_MAX, Measurement::cpu_seconds_per_million)])
            }
            Workload::BatchResolve => {
                let names = self.filled(warm()).await?;
                let measurement = self.for_a_while("batch-resolve", Operation::ResolveMany, &names).await?;
                Ok(vec![measurement.with_limit(CPU, BATCH_CPU_MAX, Measurement::cpu_seconds_per_million)])
            }
            Workload::Mount => {
                let names = self.filled(warm()).await?;
                let measurement = self.again(&names).await?;
                Ok(vec![measurement.with_limit(CHANGES, 1.0, Measurement::changes_each)])
            }
            Workload::Cold => {
                let names = self.filled(Names::new(&self.folder, TreeShape::Deep, self.plan.cold)).await?;
                let measurement = self.once("cold", Operation::Resolve(0), &names, 0, names.count()).await?;
                Ok(vec![measurement.with_limit("reads each", 1.0, Measurement::reads_each)])
            }
            Workload::SameNode => self.same_node().await,
            Workload::Wide => self.wide().await,
        }
    }

    /// Deletes all mounts of the load.
    ///
    /// # Errors
    /// The error of the server; the mounts expire then.
    pub async fn clean_up(&self) -> Result<u64, Error> {
        let Some(mut owner) = self.owners.first().cloned() else { return Ok(0) };
        owner.delete(&self.folder).await.map_err(|error| Error::internal(error.message))
    }

    /// Each mount changes the node's row once if there are no conflicts.
    async fn same_node(&self) -> Result<Vec<Measurement>, Error> {
        let names = Names::new(&self.folder, TreeShape::Together, self.plan.servers);
        // The first mount creates the node and is not counted.
        let first = self.once("first", Operation::Mount, &names, 0, 1).await?;
        done(&first.outcome)?;
        let mounted = self.once("same-node mount", Operation::Mount, &names, 1, names.count()).await?;
        let mounted = mounted.with_limit(CHANGES, 1.0, Measurement::changes_each);
        let resolved = self.for_a_while("same-node resolve", Operation::Resolve(SERVERS_ASKED), &names).await?;
        Ok(vec![mounted, resolved])
    }

    /// Compares two directories that differ only in their size, in alternation.
    async fn wide(&self) -> Result<Vec<Measurement>, Error> {
        let wide = Names::new(&self.folder, TreeShape::Directory("wide"), self.plan.children);
        let narrow = Names::new(&self.folder, TreeShape::Directory("narrow"), SAMPLE.min(self.plan.children));
        let mounted = if self.fixture.is_some() { MOUNTED.min(wide.count()) } else { wide.count() };
        let made = self.once("wide mount", Operation::Mount, &wide, 0, mounted).await?;
        done(&made.outcome)?;
        if let Some(fixture) = &self.fixture {
            fixture.write(&wide, &self.user_prefix, mounted).await?;
        }
        self.fill(&narrow).await?;
        let (half, all) = (narrow.count() / 2, narrow.count());
        let first = self.once("wide resolve", Operation::Resolve(0), &wide, 0, half).await?;
        let first_narrow = self.once("narrow resolve", Operation::Resolve(0), &narrow, 0, half).await?;
        let small = plus(first_narrow, self.once("narrow resolve", Operation::Resolve(0), &narrow, half, all).await?);
        let large = plus(first, self.once("wide resolve", Operation::Resolve(0), &wide, half, all).await?);
        let median = |measurement: &Measurement| measurement.outcome.quantile_micros(0.5);
        let ratio = median(&large).zip(median(&small)).map(|(large, small)| large / small.max(1.0));
        let large = large.with_limit("median, of the narrow one's", WIDE_RATIO_MAX, |_large| ratio);
        Ok(vec![made, small, large, self.list(&wide).await?])
    }

    /// Lists a directory and measures the server's memory meanwhile.
    async fn list(&self, names: &Names) -> Result<Measurement, Error> {
        let Some(mut owner) = self.owners.first().cloned() else {
            return Err(Error::invalid("no address of a mounttable"));
        };
        let before = self.spent().await;
        let resident = self.processes.resident_bytes();
        let started = self.runtime.clock.monotonic();
        let mut outcome = LoopResult::none();
        let mut peak = resident;
        let failed = |error: ebla_mounttable_tree::Error| Error::internal(error.message).context("list the directory");
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
            if outcome.operations.is_multiple_of(MEASURE_EVERY) {
                peak = peak.max(self.processes.resident_bytes());
            }
        }
        outcome.took = self.runtime.clock.monotonic().saturating_sub(started);
        if outcome.operations != names.count() {
            outcome.errors += 1;
            let short = format!("{} entries instead of {}", outcome.operations, names.count());
            outcome.first_error.get_or_insert(short);
        }
        let after = self.processes.resident_bytes();
        let memory = resident.zip(peak).zip(after);
        let memory = memory.map(|((before, peak), after)| Memory { before, peak: peak.max(after), after });
        let cost = self.spent().await.since(before);
        let measurement = Measurement { name: "wide glob", outcome, cost, memory, limit: None };
        Ok(measurement.with_limit("MiB grown", LISTING_GROWTH_MAX, Measurement::growth_mebibytes))
    }

    async fn filled(&self, names: Names) -> Result<Names, Error> {
        self.fill(&names).await?;
        Ok(names)
    }

    /// Mounts a server on each name; existing mounts stay.
    async fn fill(&self, names: &Names) -> Result<(), Error> {
        let measurement = self.once("fill", Operation::Mount, names, 0, names.count()).await?;
        done(&measurement.outcome)
    }

    /// Runs an operation on random names for the plan's length.
    async fn for_a_while(&self, name: &'static str, operation: Operation, names: &Names) -> Result<Measurement, Error> {
        let length = Some(self.plan.length);
        self.run(name, operation, names, length, |_client| NameOrder::Random(self.runtime.rng.fork())).await
    }

    /// Renews mounts. Each client has its own names, like real servers, which renew only their own mounts.
    async fn again(&self, names: &Names) -> Result<Measurement, Error> {
        let step = u64::try_from(self.plan.clients).unwrap_or(u64::MAX);
        let length = Some(self.plan.length);
        self.run("mount again", Operation::Mount, names, length, |client| NameOrder::own(client, step)).await
    }

    /// Runs an operation once on each of the names `[start, end)`.
    async fn once(
        &self,
        name: &'static str,
        operation: Operation,
        names: &Names,
        start: u64,
        end: u64,
    ) -> Result<Measurement, Error> {
        let order = NameOrder::once(start, end);
        self.run(name, operation, names, None, |_client| order.clone()).await
    }

    async fn run(
        &self,
        name: &'static str,
        operation: Operation,
        names: &Names,
        length: Option<Duration>,
        order: impl Fn(u64) -> NameOrder,
    ) -> Result<Measurement, Error> {
        let channels = self.channels.iter().cycle().take(self.plan.clients);
        let client = |(channel, number): (&Channel, u64)| {
            LoadClient::new(channel.clone(), &self.user_prefix, operation, names.clone(), order(number))
        };
        let clients = channels.zip(0..).map(client).collect();
        let before = self.spent().await;
        let outcome = closed_loop::run(&self.runtime, clients, length).await?;
        Ok(Measurement { name, outcome, cost: self.spent().await.since(before), memory: None, limit: None })
    }

    /// Costs since the start of the processes; requests are summed over the servers.
    async fn spent(&self) -> Cost {
        let mut requests = Some(Requests::default());
        for mut owner in self.owners.iter().cloned() {
            let reply = owner.counters().await.ok();
            let one = |it: CountersReply| Requests { reads: it.reads, changes: it.changes, counters: it.counters };
            requests = requests.zip(reply.map(one)).map(|(sum, one)| sum + one);
        }
        let (cpu_micros, generator_micros) = (self.processes.cpu_micros(), Processes::own().cpu_micros());
        Cost { cpu_micros, generator_micros, requests }
    }
}

/// Combines two parts of one measurement.
fn plus(mut one: Measurement, other: Measurement) -> Measurement {
    one.outcome.add(other.outcome);
    one.cost = one.cost.plus(other.cost);
    one
}

/// Fails unless all mounts that a measurement needs were created.
fn done(outcome: &LoopResult) -> Result<(), Error> {
    match &outcome.first_error {
        None => Ok(()),
        Some(error) => Err(Error::internal(format!("{} mounts failed, first: {error}", outcome.errors))),
    }
}
