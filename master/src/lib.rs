//! The master: keeps the cluster's map, and serves those who change it. Reads and writes of rows never pass through it.
//!
//! ```text
//!   election   the lock `master` in Chubby; its create revision is the epoch that fences every act
//!   recover    which cluster this is; the first tablets of a new one
//!   observe -> cluster (picture) -> plan (pure) -> execute     every minute, and when something was left
//!   health  events  how well the tablets are (pure); what of it operators are told in the log
//!   repair     changes of replicas that a plan has begun
//!   creation  deletion  schema  drop_range                     changes: intent in Chubby first, then steps that repeat
//!   instances  profiles  finished                              what is said of instances; outcomes of operations
//!   route      an order to the leader of a tablet; a walk over a table by key
//!   admin  operate                                             what is served
//! ```
//!
//! Invariants: an act is fenced three ways (ARCHITECTURE.md, invariant 6): transactions by the lock's create revision,
//! orders by (cluster id, epoch), orders about a tablet by what is believed of it. [`cluster`] and [`plan`] are pure. Nothing
//! is kept in memory that a new master would miss.

mod admin;
pub mod cluster;
mod creation;
mod deletion;
mod drop_range;
mod election;
pub mod events;
mod execute;
mod finished;
pub mod health;
mod instances;
mod observe;
mod office;
mod operate;
mod orders;
pub mod plan;
mod profiles;
mod records;
mod recover;
mod repair;
mod route;
mod schema;

use std::time::Duration;

use ebla_chubby::SharedChubby;
use ebla_client::ChubbyDirectory;
use ebla_model::error::{Error, Reason};
use ebla_model::id::Incarnation;
use ebla_proto::operate::operate_server::OperateServer;
use ebla_proto::record;
use ebla_proto::services::bigtable_instance_admin_server::BigtableInstanceAdminServer;
use ebla_proto::services::bigtable_table_admin_server::BigtableTableAdminServer;
use ebla_proto::services::operations_server::OperationsServer;
use ebla_runtime::{Runtime, ServeOptions, Tasks, serve};
use futures::future::BoxFuture;
use tokio::sync::watch;
use tonic::service::Routes;
use tracing::{info, warn};

use crate::election::{Seat, campaign};
use crate::health::Health;
use crate::office::Office;
use crate::recover::Awaited;

/// The pause before running for office again after Chubby failed.
const PAUSE: Duration = Duration::from_millis(500);
/// The pause between two looks at whether all tablets are led.
const READY_PAUSE: Duration = Duration::from_millis(20);
/// How long calls under way may take when the master stops in order.
const DRAIN: Duration = Duration::from_secs(3);
/// How long its tasks may take then.
const GRACE: Duration = Duration::from_secs(5);

/// How long a server may be gone by default before its replicas are made elsewhere.
pub const REPAIR_GRACE: Duration = Duration::from_secs(30);

/// How a master runs.
#[derive(Clone, Debug)]
pub struct MasterConfig {
    /// Where to listen, `host:port`; port 0 takes a free one.
    pub listen: String,
    /// What others are told to connect to; `None`: the address that was bound.
    pub advertise: Option<String>,
    /// Replicas of each new tablet, or as many as there are servers.
    pub replicas: usize,
    /// Servers that a new cluster waits for before its first tablets are made; they get a replica each.
    pub servers_first: usize,
    /// How long the lock outlives a master that is silent, and so how long a killed one is missed.
    pub lease_ttl: Duration,
    /// How long a server may be gone before its replicas are made elsewhere: longer than a restart takes.
    pub repair_grace: Duration,
}

impl MasterConfig {
    /// Replicas as given, and as many servers awaited by a new cluster; a lease of 10 s and a grace of 30 s.
    #[must_use]
    pub fn new(listen: &str, replicas: usize) -> Self {
        let replicas = replicas.max(1);
        Self {
            listen: listen.to_owned(),
            advertise: None,
            replicas,
            servers_first: replicas,
            lease_ttl: Duration::from_secs(10),
            repair_grace: REPAIR_GRACE,
        }
    }
}

/// A running master: in office, or waiting to be.
#[derive(Debug)]
pub struct Master {
    address: String,
    office: watch::Receiver<Option<Office>>,
    /// What answers calls: stopped first.
    serving: Runtime,
    runtime: Runtime,
}

/// What a term of office needs beside the lock.
struct Candidate {
    config: MasterConfig,
    chubby: SharedChubby,
    directory: ChubbyDirectory,
    runtime: Runtime,
    /// Told to end first when the master stops.
    serving: Tasks,
    master: record::Master,
    office: watch::Sender<Option<Office>>,
    /// The tablet servers that a new cluster waits for.
    awaited: watch::Sender<Option<Awaited>>,
}

impl Master {
    /// Binds, serves, and runs for office. Its tasks are a group of their own under `runtime`'s.
    ///
    /// # Errors
    /// `Unavailable` when the address cannot be bound.
    pub fn start(
        config: MasterConfig,
        chubby: SharedChubby,
        runtime: Runtime,
    ) -> BoxFuture<'static, Result<Self, Error>> {
        Box::pin(async move {
            let runtime = runtime.child("master");
            let listener = runtime.net.listen(&config.listen).await;
            let listener = listener
                .map_err(|error| Error::new(Reason::Unavailable, format!("listen on {}: {error}", config.listen)))?;
            let address = config.advertise.clone().unwrap_or_else(|| listener.local_addr().to_string());
            let master =
                record::Master { address: address.clone(), incarnation: runtime.rng.u64(), ..Default::default() };
            let (sender, office) = watch::channel(None);
            let serving = runtime.child("serving");
            let (awaited, told) = watch::channel(None);
            serve(&serving.tasks, listener, routes(&office, &told, &master), ServeOptions::default());
            let directory = ChubbyDirectory::start(chubby.clone(), &runtime);
            let candidate = Candidate {
                config,
                chubby,
                directory,
                runtime: runtime.clone(),
                serving: serving.tasks.clone(),
                master,
                office: sender,
                awaited,
            };
            runtime.tasks.spawn("office", candidate.run());
            Ok(Self { address, office, serving, runtime })
        })
    }

    /// Where it listens, `host:port`.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns when this master is in office, the cluster runs, and every tablet has a leader that answers. Cancel-safe.
    pub async fn ready(&self) {
        let mut office = self.office.clone();
        loop {
            let held = match office.wait_for(Option::is_some).await {
                Ok(held) => held.clone(),
                // The master was stopped; it will never be ready.
                Err(_stopped) => return std::future::pending().await,
            };
            if let Some(office) = held
                && observe::observe(&office).await.is_ok_and(|picture| picture.is_led())
            {
                return;
            }
            tokio::time::sleep(READY_PAUSE).await;
        }
    }

    /// How well the tablets are; `None` while this master is not in office, or cannot tell.
    pub async fn health(&self) -> Option<Health> {
        let office = self.office.borrow().clone()?;
        let picture = observe::observe(&office).await.ok()?;
        Some(Health::of(&picture, office.replicas()))
    }

    /// Stops in order: takes no calls, lets those under way end, leaves office. The next master need not wait for a lease
    /// to end. What was not finished is cut off where it stands, and finished by the next master.
    pub fn stop(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            // Whoever calls now is told by the broken connection that nothing was done, and tries until another is in office.
            self.serving.tasks.stop(DRAIN).await;
            self.runtime.tasks.stop(GRACE).await;
        })
    }

    /// Stops as a crash does: connections are cut, the lock stays until its lease ends.
    pub fn abort(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.runtime.tasks.stop(Duration::ZERO).await;
        })
    }
}

fn routes(
    office: &watch::Receiver<Option<Office>>,
    awaited: &watch::Receiver<Option<Awaited>>,
    master: &record::Master,
) -> Routes {
    let desk = admin::desk::Desk::new(office.clone());
    let tables = admin::tables::Tables::new(desk.clone());
    let operator = operate::Operator::new(desk.clone(), awaited.clone(), master.clone());
    Routes::new(BigtableTableAdminServer::new(tables))
        .add_service(OperateServer::new(operator))
        .add_service(BigtableInstanceAdminServer::new(admin::instances::Instances::new(desk.clone())))
        .add_service(OperationsServer::new(admin::operations::Done::new(desk)))
}

/// The time in which the office may be open: it closes when this goes, also when the master is cut off in the middle.
/// Calls that came later would act in its name, and the lock's session would be kept alive.
struct Open<'a>(&'a Candidate);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.office.send_replace(None);
        self.0.awaited.send_replace(None);
    }
}

impl Candidate {
    /// Runs for office, holds it, and again, until told to stop.
    async fn run(self) {
        let token = self.runtime.tasks.token();
        while !token.is_cancelled() {
            let incarnation = Incarnation::new(self.master.incarnation);
            let campaign = campaign(&self.chubby, self.config.lease_ttl, &self.master.address, incarnation);
            match token.run_until_cancelled(campaign).await {
                Some(Ok(seat)) => self.hold(seat).await,
                Some(Err(error)) => {
                    warn!(%error, "cannot run for office");
                    _ = token.run_until_cancelled(tokio::time::sleep(PAUSE)).await;
                }
                None => return,
            }
        }
    }

    /// One term: until the lock is lost or the master is told to stop.
    async fn hold(&self, seat: Seat) {
        let epoch = seat.epoch();
        info!(%epoch, "in office");
        let term = self.runtime.child("term");
        let token = self.runtime.tasks.token();
        let open = Open(self);
        tokio::select! {
            () = seat.lost() => warn!(%epoch, "the lock is lost"),
            () = token.cancelled() => {}
            () = self.govern(&seat, &term) => {}
        }
        drop(open);
        // What runs is cut off where it stands: every step of it can be repeated by the next master.
        term.tasks.stop(Duration::ZERO).await;
        seat.resign().await;
        info!(%epoch, "out of office");
    }

    /// Opens for business and reconciles. Returns only when the beginning fails: then the office is given up.
    async fn govern(&self, seat: &Seat, term: &Runtime) {
        match self.take_over(seat, term).await {
            Ok(office) => {
                self.office.send_replace(Some(office.clone()));
                execute::reconcile(office, self.config.repair_grace, self.serving.clone()).await;
            }
            Err(error) => {
                warn!(%error, "cannot take over");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    async fn take_over(&self, seat: &Seat, term: &Runtime) -> Result<Office, Error> {
        let identity = recover::identify(seat, self.config.servers_first, &self.awaited, &term.rng).await?.value;
        let office = Office::new(seat.clone(), identity.cluster, &self.directory, self.config.replicas, term.clone());
        recover::bootstrap(&office, &identity).await?;
        Ok(office)
    }
}
