//! The life of a master process: standby, active master, standby again.
//!
//! A standby waits for the master lock. The active master bootstraps the cluster if it is new, serves admin calls, and
//! reconciles, until it loses the lock or stops.

use std::sync::Arc;
use std::time::Duration;

use ebla_chubby::SharedChubby;
use ebla_model::cluster_event::{ClusterEventKind, NewClusterEvent};
use ebla_model::error::Error;
use ebla_model::id::MasterEpoch;
use ebla_proto::record;
use ebla_routing::ChubbyDirectory;
use ebla_runtime::trace::Recorder;
use ebla_runtime::{Runtime, Tasks};
use tokio::sync::watch;
use tracing::{debug, error, info, warn};

use crate::active::ActiveMaster;
use crate::bootstrap::{self, PendingBootstrap};
use crate::election::MasterLock;
use crate::metrics::MasterMetrics;
use crate::plan::behind;
use crate::{MasterConfig, event_log, heat, observation, reconciler, registration, upgrade, usage};

/// The delay before a failed election or takeover is retried.
const RETRY_DELAY: Duration = Duration::from_millis(500);
/// The delay before a master whose release does not support the active version looks again.
const EXCLUDED_DELAY: Duration = Duration::from_secs(5);

/// A master process, whether active or standby.
pub(crate) struct Mastership {
    pub(crate) config: MasterConfig,
    pub(crate) chubby: SharedChubby,
    pub(crate) directory: ChubbyDirectory,
    pub(crate) runtime: Runtime,
    /// The tasks that serve calls, stopped first when the master stops.
    pub(crate) serving: Tasks,
    pub(crate) metrics: MasterMetrics,
    pub(crate) recorder: Arc<Recorder>,
    /// This process, as the master lock names it.
    pub(crate) record: record::Master,
    pub(crate) active: watch::Sender<Option<ActiveMaster>>,
    /// The tablet servers that a new cluster waits for.
    pub(crate) pending: watch::Sender<Option<PendingBootstrap>>,
}

/// Withdraws the active master when it is dropped, also when its task is cancelled. Later calls must not act in its name
/// or keep the session of its lock alive.
struct WithdrawOnDrop<'a>(&'a Mastership);

impl Drop for WithdrawOnDrop<'_> {
    fn drop(&mut self) {
        self.0.active.send_replace(None);
        self.0.pending.send_replace(None);
    }
}

impl Mastership {
    /// Alternates between standby and active master until the process stops.
    pub(crate) async fn run(self) {
        let token = self.runtime.tasks.token();
        while !token.is_cancelled() {
            if let Err(error) = upgrade::check_active(self.config.versions, &*self.chubby).await {
                error!(%error, "this master takes no part in the election");
                _ = token.run_until_cancelled(tokio::time::sleep(EXCLUDED_DELAY)).await;
                continue;
            }
            let lock = MasterLock::acquire(&self.chubby, self.config.lease_ttl, &self.record);
            match token.run_until_cancelled(lock).await {
                Some(Ok(lock)) => Box::pin(self.run_active(lock)).await,
                Some(Err(error)) => {
                    warn!(%error, "master election failed; retrying");
                    _ = token.run_until_cancelled(tokio::time::sleep(RETRY_DELAY)).await;
                }
                None => return,
            }
        }
    }

    /// Runs as the active master until the lock is lost or the process stops.
    async fn run_active(&self, lock: MasterLock) {
        let lock_revision = lock.revision();
        info!(%lock_revision, "became active master");
        self.metrics.begin_term(self.runtime.clock.monotonic());
        let runtime = self.runtime.child("active");
        let token = self.runtime.tasks.token();
        let guard = WithdrawOnDrop(self);
        tokio::select! {
            () = lock.lost() => warn!(%lock_revision, "master lock lost"),
            () = token.cancelled() => {}
            () = self.manage_cluster(&lock, &runtime) => {}
        }
        let ended = self.active.borrow().clone();
        drop(guard);
        // Running changes are cancelled: the next master can repeat every step of them.
        runtime.tasks.stop(Duration::ZERO).await;
        if let Some(master) = ended {
            event_log::end_term(&master, &self.term(master.epoch())).await;
        }
        lock.release().await;
        info!(%lock_revision, "no longer active master");
    }

    /// Takes over, serves and reconciles. Returns when the takeover fails, or when the master resigns; the lock is released then.
    async fn manage_cluster(&self, lock: &MasterLock, runtime: &Runtime) {
        match self.take_over(lock, runtime).await {
            Ok(master) => {
                self.active.send_replace(Some(master.clone()));
                if let Err(error) = event_log::record_lost_lease(&master).await {
                    debug!(%error, "cannot determine whether the last master has lost its lease");
                }
                let elected = NewClusterEvent::new(ClusterEventKind::MasterElected, self.term(master.epoch()));
                master.record_event(&elected);
                tokio::select! {
                    () = event_log::write_events(master.clone()) => {}
                    () = Box::pin(registration::register(master.clone(), &self.config.cluster_name, &self.record.address)) => {}
                    () = reconciler::reconcile(master.clone(), &self.config, self.serving.clone(), self.metrics.clone()) => {}
                    () = usage::enforce_quotas(master.clone()) => {}
                    () = Box::pin(heat::maintain(master.clone())) => {}
                    () = master.resigned() => info!("the epoch base was raised; starting a new term"),
                }
            }
            Err(error) => {
                warn!(%error, "master takeover failed; retrying");
                tokio::time::sleep(RETRY_DELAY).await;
            }
        }
    }

    /// A term of this master, for events.
    fn term(&self, epoch: MasterEpoch) -> String {
        format!("at {}, epoch {epoch}", self.record.address)
    }

    async fn take_over(&self, lock: &MasterLock, runtime: &Runtime) -> Result<ActiveMaster, Error> {
        let servers = self.config.bootstrap_servers;
        let identity = bootstrap::identify(lock, servers, &self.pending, &runtime.rng).await?.value;
        upgrade::check_version(self.config.versions, identity.active)?;
        let options = (self.config.replicas, self.config.heat);
        let recorder = Arc::clone(&self.recorder);
        let master = ActiveMaster::new(lock.clone(), &identity, &self.directory, options, runtime.clone(), recorder);
        bootstrap::bootstrap(&master, &identity).await?;
        check_chubby(&master).await?;
        Ok(master)
    }
}

/// Determines whether Chubby lacks changes that servers have seen, before anything takes a new id. Servers that do not respond
/// are left to the reconciler.
async fn check_chubby(master: &ActiveMaster) -> Result<(), Error> {
    let snapshot = observation::with_chubby(master, observation::observe_reports(master).await?).await?;
    for action in behind::actions(&snapshot).into_iter().flatten() {
        reconciler::execute(master, &action).await?;
    }
    if let Some(reasons) = &snapshot.behind {
        let reasons = reasons.join("; ");
        warn!(reasons, "the lock service lacks changes; changes are refused until `ebla recover`");
    }
    Ok(())
}
