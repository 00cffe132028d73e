//! The active cluster version as the file `cluster` stores it: who takes part in the cluster, the change to the next version, and an
//! operator's hold. The decision is in [`crate::plan::upgrade`].

use std::collections::BTreeSet;
use std::time::Duration;

use ebla_chubby::{Chubby, Compare, Revision, TransactionOutcome, Write, paths};
use ebla_model::cluster_event::{ClusterEventKind, NewClusterEvent};
use ebla_model::cluster_version::{ClusterVersion, SupportedVersions};
use ebla_model::error::{Error, Reason};
use ebla_model::id::ServerId;
use ebla_proto::{convert, operate, record};
use ebla_runtime::Failpoint;
use tracing::info;

use crate::active::ActiveMaster;
use crate::cluster::ClusterSnapshot;
use crate::observation;
use crate::plan::upgrade::{Hold, Next, Participant, Process, Readiness, Upgrade};
use crate::schema_store::{self, Identity, Processes, Stored};

/// How long a start waits for Chubby's answer which version is active.
const CHECK_TIMEOUT: Duration = Duration::from_secs(1);

/// When the next version becomes active.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UpgradeOptions {
    /// For how long every process must support it.
    pub(crate) delay: Duration,
    /// What this process supports.
    pub(crate) versions: SupportedVersions,
}

/// Checks that a process that supports `versions` supports the active one.
///
/// # Errors
/// `FailedPrecondition` when it does not, with the release to start instead.
pub(crate) fn check_version(versions: SupportedVersions, active: ClusterVersion) -> Result<(), Error> {
    versions.check(active, env!("CARGO_PKG_VERSION"))
}

/// Checks that a process that supports `versions` supports the active one. While Chubby cannot be read, a master may start as a standby.
///
/// # Errors
/// As [`check_version`].
pub(crate) async fn check_active(versions: SupportedVersions, chubby: &dyn Chubby) -> Result<(), Error> {
    match tokio::time::timeout(CHECK_TIMEOUT, schema_store::read_identity(chubby)).await {
        Ok(Ok(Some(identity))) => check_version(versions, identity.value.active),
        Ok(Ok(None) | Err(_)) | Err(_) => Ok(()),
    }
}

/// The first version of a new cluster: the newest that its masters and the registered servers support.
pub(crate) fn first_version(processes: &Processes) -> ClusterVersion {
    let masters = processes.masters.iter().map(|master| &master.versions);
    let servers = processes.servers.values().map(|server| &server.versions);
    let newest = masters.chain(servers).map(|versions| convert::supported_from_proto(versions.as_ref()).newest);
    newest.min().unwrap_or_default()
}

/// Who takes part in the cluster, and its record.
pub(crate) struct Observed {
    pub(crate) upgrade: Upgrade,
    pub(crate) identity: Stored<Identity>,
    /// Holds as long as no process has registered since.
    unchanged: Vec<Compare>,
}

/// Reads what decides about the next version. `snapshot`: which servers have replicas.
///
/// # Errors
/// When Chubby cannot be read.
pub(crate) async fn observe(master: &ActiveMaster, snapshot: &ClusterSnapshot) -> Result<Observed, Error> {
    let chubby = master.chubby();
    // Before the processes: one that registers under this record is listed, registers after it was listed, or does not register because
    // the record has changed.
    let identity = read_identity(chubby).await?;
    let Processes { masters, servers, unchanged } = schema_store::list_processes(chubby).await?;
    let required = match Failpoint::VersionIgnoresAbsent.is_enabled() {
        true => BTreeSet::new(),
        false => &snapshot.assigned_servers() | &snapshot.drained,
    };
    let addresses = observation::addresses(master, snapshot).await;
    let missing = required.into_iter().filter(|server| !servers.contains_key(server)).map(|server| Participant {
        process: Process::TabletServer(server),
        address: addresses.get(&server).cloned().unwrap_or_default(),
        release: String::new(),
        versions: None,
    });
    let registered = servers.values().map(|server| Participant {
        process: Process::TabletServer(ServerId::new(server.server)),
        address: server.address.clone(),
        release: server.release.clone(),
        versions: Some(convert::supported_from_proto(server.versions.as_ref())),
    });
    let mut participants: Vec<_> = masters.iter().map(master_participant).chain(registered).chain(missing).collect();
    participants.sort_by(|one, other| (one.process, &one.address).cmp(&(other.process, &other.address)));
    let upgrade = Upgrade { active: identity.value.active, hold: identity.value.hold, participants };
    Ok(Observed { upgrade, identity, unchanged })
}

fn master_participant(master: &record::Master) -> Participant {
    Participant {
        process: Process::Master,
        address: master.address.clone(),
        release: master.release.clone(),
        versions: Some(convert::supported_from_proto(master.versions.as_ref())),
    }
}

async fn read_identity(chubby: &dyn Chubby) -> Result<Stored<Identity>, Error> {
    let identity = schema_store::read_identity(chubby).await?;
    identity.ok_or_else(|| Error::damaged("the cluster record is missing"))
}

/// One round: notes what follows the active version, and makes it active when it was possible for long enough. Not while Chubby is behind.
///
/// # Errors
/// Errors of Chubby; `Conflict` when the cluster record changed meanwhile: the next round reads it again.
pub(crate) async fn advance(
    master: &ActiveMaster,
    snapshot: &ClusterSnapshot,
    readiness: &mut Readiness,
    options: UpgradeOptions,
) -> Result<(), Error> {
    if master.directory().active_version() >= options.versions.newest || snapshot.behind.is_some() {
        *readiness = Readiness::default();
        return Ok(());
    }
    let observed = observe(master, snapshot).await?;
    let now = master.runtime().clock.monotonic();
    readiness.observe(&observed.upgrade.next(), now);
    match readiness.remaining(now, options.delay) {
        Some((version, Duration::ZERO)) => {
            check_version(options.versions, version)?;
            activate(master, observed, version).await
        }
        Some(_) | None => Ok(()),
    }
}

/// Makes a version active, unless a process has registered since: one of an earlier release may have replaced the registration that was
/// observed, after a start on the same folder.
async fn activate(master: &ActiveMaster, observed: Observed, version: ClusterVersion) -> Result<(), Error> {
    let Stored { value, modified } = observed.identity;
    let previous = value.active;
    let unchanged = if Failpoint::VersionIgnoresStarts.is_enabled() { Vec::new() } else { observed.unchanged };
    replace(master, &Identity { active: version, ..value }, modified, unchanged).await?;
    let detail = format!("version {version} after {previous}");
    master.record_event(&NewClusterEvent::new(ClusterEventKind::VersionActivated, detail));
    info!(%previous, %version, "every process supports it: a later cluster version is active");
    Ok(())
}

/// Replaces the cluster record that was last modified at this revision, if the other conditions hold, too.
async fn replace(
    master: &ActiveMaster,
    identity: &Identity,
    modified: Revision,
    mut conditions: Vec<Compare>,
) -> Result<(), Error> {
    conditions.push(Compare::Modified(paths::CLUSTER.to_owned(), modified));
    let write = Write::put(paths::CLUSTER, schema_store::encode_identity(identity));
    match master.transact(conditions, vec![write]).await? {
        TransactionOutcome::Committed(_) => Ok(()),
        TransactionOutcome::Conflict => Err(Error::new(
            Reason::Conflict,
            "the cluster record changed meanwhile, or a process registered; try again",
        )),
    }
}

/// The active version, as Chubby has it now.
///
/// # Errors
/// When Chubby cannot be read.
pub(crate) async fn active_version(master: &ActiveMaster) -> Result<ClusterVersion, Error> {
    Ok(read_identity(master.chubby()).await?.value.active)
}

/// What an operator sees.
///
/// # Errors
/// When Chubby cannot be read.
pub(crate) async fn status(master: &ActiveMaster, own: &record::Master) -> Result<operate::UpgradeStatusReply, Error> {
    let snapshot = observation::observe_without_metadata(master).await?;
    let Observed { upgrade, .. } = observe(master, &snapshot).await?;
    let next = upgrade.next();
    let (version, obstacles) = match &next {
        Next::Newest => (0, Vec::new()),
        Next::Ready(version) => (version.get(), Vec::new()),
        Next::Blocked { version, obstacles } => (version.get(), obstacles.clone()),
    };
    let now = master.runtime().clock.monotonic();
    let (readiness, delay) = master.upgrade_readiness();
    // The reconciler may not have seen yet that nothing prevents it.
    let remaining = readiness.remaining(now, delay).map_or(delay, |(_version, remaining)| remaining);
    let activates_in_millis =
        matches!(next, Next::Ready(_)).then(|| u64::try_from(remaining.as_millis()).unwrap_or(u64::MAX));
    Ok(operate::UpgradeStatusReply {
        active_version: upgrade.active.get(),
        held: upgrade.hold == Hold::Held,
        processes: upgrade.participants.iter().map(|participant| process(participant, own)).collect(),
        next_version: version,
        obstacles,
        activates_in_millis,
    })
}

fn process(participant: &Participant, own: &record::Master) -> operate::UpgradeProcess {
    let server = match participant.process {
        Process::Master => 0,
        Process::TabletServer(server) => server.get(),
    };
    operate::UpgradeProcess {
        server,
        address: participant.address.clone(),
        release: participant.release.clone(),
        versions: participant.versions.map(convert::supported_to_proto),
        registered: participant.versions.is_some(),
        active: participant.process == Process::Master && participant.address == own.address,
    }
}

/// Holds the active version, or ends that.
///
/// # Errors
/// Errors of Chubby; `Conflict` when the cluster record changed meanwhile.
pub(crate) async fn hold(
    master: &ActiveMaster,
    request: operate::HoldUpgradeRequest,
) -> Result<operate::HoldUpgradeReply, Error> {
    let Stored { value, modified } = read_identity(master.chubby()).await?;
    let (active, before) = (value.active, value.hold);
    let wanted = if request.hold { Hold::Held } else { Hold::Released };
    if wanted != before && !request.dry_run {
        replace(master, &Identity { hold: wanted, ..value }, modified, Vec::new()).await?;
        info!(version = %active, held = request.hold, "hold of the cluster version changed by request");
        master.request_reconcile();
    }
    Ok(operate::HoldUpgradeReply { active_version: active.get(), was_held: before == Hold::Held })
}
