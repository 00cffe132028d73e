//! An operator who drains servers under load, one after another, and ends each drain after a while, done or not.

use std::sync::Arc;
use std::time::Duration;

use ebla_client::Admin;
use ebla_client::admin::ExecutionMode;
use ebla_model::error::{Error, Reason};
use ebla_model::id::ServerId;
use ebla_runtime::Runtime;

use crate::cluster::{Phase, SimCluster};
use crate::load::{any_address, wait_for};
use crate::time::{self, HostTime};

/// Timeout of a call.
const CALL: Duration = Duration::from_secs(5);
/// Between two attempts to end a drain.
const PAUSE: Duration = Duration::from_millis(200);
/// A drain lasts this long, about.
const LASTS: Duration = Duration::from_secs(4);

/// The operator: `mean` is the time between two drains. No server is drained after the load.
pub(crate) async fn operator(cluster: Arc<SimCluster>, mean: Duration) -> turmoil::Result {
    let runtime = cluster.runtime("drainer", &HostTime::default(), 0);
    wait_for(&cluster, Phase::Load).await;
    loop {
        tokio::time::sleep(runtime.rng.jitter(mean)).await;
        if cluster.phase() != Phase::Load {
            return Ok(());
        }
        drain(&cluster, &runtime).await;
    }
}

/// Drains a random server for a while.
async fn drain(cluster: &SimCluster, runtime: &Runtime) {
    let number = usize::try_from(runtime.rng.below(cluster.servers.len() as u64)).unwrap();
    let host = &cluster.servers[number];
    // A server that does not run has no id that the operator could ask for.
    let Some(server) = host.hosted().map(|hosted| hosted.server()) else { return };
    let outcome = call(cluster, runtime, async |admin| admin.drain_server(ExecutionMode::Execute, server).await).await;
    let kind = if outcome.is_ok() { "drained" } else { "not-drained" };
    count(cluster, &host.name, kind, outcome.err());
    // An unknown outcome may be a drain.
    tokio::time::sleep(runtime.rng.jitter(LASTS)).await;
    let is_empty = call(cluster, runtime, async |admin| is_empty(&admin, server).await).await;
    undrain(cluster, runtime, server).await;
    if is_empty.is_ok_and(|is_empty| is_empty) {
        count(cluster, &host.name, "emptied-by-drain", None);
    }
}

/// Ends the drain of a server, as soon as the master carries it out.
pub(crate) async fn undrain(cluster: &SimCluster, runtime: &Runtime, server: ServerId) {
    while let Err(error) =
        call(cluster, runtime, async |admin| admin.undrain_server(ExecutionMode::Execute, server).await).await
    {
        tracing::info!(%error, %server, "the drain goes on");
        tokio::time::sleep(PAUSE).await;
    }
}

/// Whether nothing is left on a drained server.
async fn is_empty(admin: &Admin, server: ServerId) -> Result<bool, Error> {
    let reply = admin.drain_server(ExecutionMode::DryRun, server).await?;
    Ok(reply.drained && reply.replicas.is_empty())
}

/// A call by any server.
pub(crate) async fn call<T>(
    cluster: &SimCluster,
    runtime: &Runtime,
    with: impl AsyncFnOnce(Admin) -> Result<T, Error>,
) -> Result<T, Error> {
    let admin = Admin::connect(&any_address(cluster, &runtime.rng), runtime);
    let outcome = tokio::time::timeout(CALL, with(admin)).await;
    outcome.unwrap_or_else(|_elapsed| Err(Error::new(Reason::Deadline, "no answer")))
}

fn count(cluster: &SimCluster, host: &str, kind: &'static str, error: Option<Error>) {
    let reason = error.map_or("ok", |error| error.reason.name());
    cluster.trace.lock().count(time::elapsed(), host, kind, reason);
}
