//! A majority of the servers is lost permanently, and everything is recovered from the last one, as an operator does it.
//!
//! ```text
//!   the survivor is cut off from the other servers, which go on: they acknowledge writes that it does not have
//!   the others crash, and their disks are emptied
//!   the operator has the groups recovered from the survivor; the report says up to which time it has all writes
//!   the others start with empty disks, as new servers, and get replicas
//! ```
//!
//! After that only acknowledged writes of later than the reported time may be missing: those of each tablet after the time of its group.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use ebla_client::Admin;
use ebla_client::admin::ExecutionMode;
use ebla_model::error::{Error, Reason};
use ebla_model::id::GroupId;
use ebla_model::key::KeyRange;
use ebla_proto::convert;
use ebla_proto::operate::RecoverTabletsReply;
use ebla_runtime::Rng;
use turmoil::Sim;

use crate::cluster::{Phase, SimCluster, SimHost};
use crate::time::{self, HostTime};

/// Timeout of the operator's call.
const CALL: Duration = Duration::from_secs(110);
/// Between two calls.
const PAUSE: Duration = Duration::from_secs(1);
/// Responses of a server arrive until this time after its crash.
const ON_THE_WAY: Duration = Duration::from_millis(10);

/// The loss of a majority.
#[derive(Clone, Debug)]
pub(crate) struct Loss {
    /// The server that remains, by its number among the servers.
    pub(crate) survivor: usize,
    /// When the others crashed.
    at: Duration,
    /// Ranges of rows with the time up to which the survivor has all writes, once this is reported.
    reported: Option<Vec<(KeyRange, Duration)>>,
}

impl Loss {
    /// Whether the groups were recovered.
    pub(crate) fn is_recovered(&self) -> bool {
        self.reported.is_some()
    }

    /// The time after which acknowledged writes of this row may be lost; `None`: none may be.
    fn from(&self, row: &str) -> Option<Duration> {
        let ranges = self.reported.as_ref()?;
        ranges.iter().find(|(range, _time)| range.contains(row.as_bytes())).map(|(_range, time)| *time)
    }

    /// Whether a write of this row that was sent and acknowledged at these times may be lost. The acknowledgement may arrive after the loss: that of a
    /// row in a call with others waits for those.
    pub(crate) fn may_lose(&self, row: &str, began: Duration, acknowledged: Duration) -> bool {
        self.from(row).is_some_and(|from| acknowledged > from && began <= self.at + ON_THE_WAY)
    }

    /// Whether a read of this row between these times may have returned what is lost.
    pub(crate) fn may_have_read(&self, row: &str, began: Duration, ended: Duration) -> bool {
        self.from(row).is_some_and(|from| ended > from && began <= self.at + ON_THE_WAY)
    }
}

/// Whether a read that ends now, of what was written since `began`, may miss it.
pub(crate) fn may_miss(cluster: &SimCluster, began: Duration) -> bool {
    cluster.loss.lock().as_ref().is_some_and(|loss| began <= loss.at + ON_THE_WAY)
}

fn others(cluster: &SimCluster, survivor: usize) -> impl Iterator<Item = &SimHost> {
    cluster.servers.iter().enumerate().filter(move |(number, _)| *number != survivor).map(|(_, host)| host)
}

/// Cuts a random server off from the others; returns its number, and for how long.
pub(crate) fn cut_off(sim: &Sim<'_>, cluster: &SimCluster, rng: &Rng) -> (usize, Duration) {
    let survivor = usize::try_from(rng.below(cluster.servers.len() as u64)).unwrap();
    for other in others(cluster, survivor) {
        sim.partition(cluster.servers[survivor].name.as_str(), other.name.as_str());
    }
    (survivor, Duration::from_millis(300 + rng.below(2_000)))
}

/// The other servers crash, and their disks are emptied.
pub(crate) fn lose(sim: &mut Sim<'_>, cluster: &SimCluster, survivor: usize) {
    for other in others(cluster, survivor) {
        sim.crash(other.name.as_str());
        sim.repair(cluster.servers[survivor].name.as_str(), other.name.as_str());
        fs::remove_dir_all(&other.folder).unwrap();
        other.disk.erase();
        cluster.trace.lock().count(sim.elapsed(), &other.name, "lost-for-good", "");
    }
    *cluster.loss.lock() = Some(Loss { survivor, at: sim.elapsed(), reported: None });
}

/// They start again, empty.
pub(crate) fn replace(sim: &mut Sim<'_>, cluster: &SimCluster, survivor: usize) {
    for other in others(cluster, survivor) {
        sim.bounce(other.name.as_str());
    }
}

/// The operator, who waits for the loss and has everything recovered.
pub(crate) async fn operator(cluster: Arc<SimCluster>) -> turmoil::Result {
    let runtime = cluster.runtime("operator", &HostTime::default(), 0);
    while cluster.phase() != Phase::Converge {
        tokio::time::sleep(PAUSE).await;
        let Some(survivor) = cluster.loss.lock().as_ref().map(|loss| loss.survivor) else { continue };
        let host = &cluster.servers[survivor];
        let Some(server) = host.hosted().map(|hosted| hosted.server()) else { continue };
        let admin = Admin::connect(&host.address(), &runtime).with_timeout(CALL);
        let recovered = admin.recover_tablets(ExecutionMode::Execute, server, None).await;
        let outcome = recovered.as_ref().err().map_or("ok", |error| error.reason.name());
        cluster.note("operator", "recover", outcome);
        match recovered.and_then(|reply| reported(&reply)) {
            Ok(ranges) => {
                if let Some(loss) = cluster.loss.lock().as_mut() {
                    loss.reported = Some(ranges);
                }
                return Ok(());
            }
            Err(error) => tracing::info!(%error, "not recovered yet"),
        }
    }
    Ok(())
}

/// What the report says: a time for the rows of each tablet. METADATA has rows of its own.
fn reported(reply: &RecoverTabletsReply) -> Result<Vec<(KeyRange, Duration)>, Error> {
    let missing = || Error::new(Reason::DataDamaged, "a tablet without a range");
    let groups = reply.groups.iter().filter(|group| group.group != GroupId::METADATA.get());
    let ranges = groups.flat_map(|group| group.tablets.iter().map(move |tablet| (tablet, group.time_micros)));
    ranges
        .map(|(tablet, micros)| {
            let range = convert::key_range_from_proto(tablet.range.as_ref().ok_or_else(missing)?)?;
            Ok((range, time::since_epoch(micros)))
        })
        .collect()
}
