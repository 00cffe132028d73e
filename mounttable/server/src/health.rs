//! Whether a server can do its work: whether it can read its table. For load balancers and supervisors.
//!
//! gRPC callers use `grpc.health.v1.Health`, HTTP callers `GET /healthz` of the gateway. Neither needs an identity: the answer says
//! nothing about the names.
//!
//! A task reads the root of the tree every two seconds. One success makes the server healthy, two failures in a row make it
//! unhealthy, and so does its stop. Checks only report this state, so that many of them cost the cluster nothing. An unhealthy server
//! still answers what it has cached.

use std::time::Duration;

use ebla_mounttable_tree::error::{Error, Reason};
use ebla_mounttable_tree::name::NodeName;
use ebla_mounttable_tree::store::{Environment, Store};
use ebla_mounttable_tree::table::Table;
use ebla_proto::health::health_check_response::ServingStatus;
use ebla_proto::health::health_server::Health as HealthCalls;
use ebla_proto::health::{HealthCheckRequest, HealthCheckResponse};
use ebla_proto::mounttable::{mount_table_admin_server, mount_table_server};
use ebla_runtime::Runtime;
use futures::{StreamExt, stream};
use tokio::sync::watch;
use tonic::{Request, Response};
use tracing::{info, warn};

use crate::service::{ReplyStream, RpcResult, messages};

/// The pause between two reads.
const PROBE_INTERVAL: Duration = Duration::from_secs(2);
/// The time for a read.
const PROBE_TIMEOUT: Duration = Duration::from_secs(3);
/// Failures in a row after which a server is unhealthy: one may be a failover.
const FAILURES_MAX: u32 = 2;
/// The services of a server, by the names that a caller may check.
const SERVICES: [&str; 3] = ["", mount_table_server::SERVICE_NAME, mount_table_admin_server::SERVICE_NAME];

/// Whether a server can do its work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Health {
    /// It can.
    Serving,
    /// It cannot, for this reason.
    NotServing(Reason),
    /// It is stopping.
    Stopping,
}

/// The health of a server, as far as it is known.
#[derive(Debug)]
struct HealthRecord {
    health: Health,
    /// Failed reads in a row.
    failures: u32,
}

impl HealthRecord {
    /// Before the first read.
    const fn new() -> Self {
        Self { health: Health::NotServing(Reason::Unavailable), failures: 0 }
    }

    /// Records a read; returns whether the health has changed.
    fn record(&mut self, outcome: Result<(), Reason>) -> bool {
        let before = self.health;
        match outcome {
            _ if before == Health::Stopping => {}
            Ok(()) => (self.health, self.failures) = (Health::Serving, 0),
            Err(reason) => {
                self.failures = self.failures.saturating_add(1);
                if self.failures >= FAILURES_MAX {
                    self.health = Health::NotServing(reason);
                }
            }
        }
        self.health != before
    }

    /// The server stops; returns whether the health has changed.
    fn stop(&mut self) -> bool {
        std::mem::replace(&mut self.health, Health::Stopping) != Health::Stopping
    }
}

/// Reads the table periodically. Dropping it ends the calls that watch the health.
#[derive(Debug)]
pub(crate) struct HealthMonitor(watch::Sender<HealthRecord>);

impl HealthMonitor {
    /// A monitor that has not read yet.
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(HealthRecord::new()))
    }

    /// A view of the health, which changes with it.
    pub(crate) fn view(&self) -> HealthView {
        HealthView(self.0.subscribe())
    }

    /// The server stops.
    pub(crate) fn stop(&self) {
        self.0.send_if_modified(HealthRecord::stop);
    }

    /// Reads the root of `table` until the tasks of `runtime` are stopped.
    pub(crate) fn start<S>(&self, table: Table<S>, runtime: &Runtime)
    where
        S: Store + Environment + Clone + 'static,
    {
        let state = self.0.clone();
        runtime.tasks.spawn_until_stopped("health", async move {
            loop {
                let probed = tokio::time::timeout(PROBE_TIMEOUT, table.path_version(&NodeName::root())).await;
                let late = |_elapsed| Err(Error::new(Reason::Unavailable, format!("no answer in {PROBE_TIMEOUT:?}")));
                let outcome = probed.unwrap_or_else(late).map(drop);
                if state
                    .send_if_modified(|record| record.record(outcome.as_ref().copied().map_err(|error| error.reason)))
                {
                    match outcome {
                        Ok(()) => info!("the table can be read; health checks succeed"),
                        Err(error) => warn!(%error, "the table cannot be read; health checks fail"),
                    }
                }
                tokio::time::sleep(PROBE_INTERVAL).await;
            }
        });
    }
}

/// The health of a server as its callers see it. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct HealthView(watch::Receiver<HealthRecord>);

impl HealthView {
    /// The health now.
    pub(crate) fn now(&self) -> Health {
        self.0.borrow().health
    }
}

fn reply(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}

fn status_of(health: Health) -> ServingStatus {
    match health {
        Health::Serving => ServingStatus::Serving,
        Health::NotServing(_) | Health::Stopping => ServingStatus::NotServing,
    }
}

fn is_known(request: &Request<HealthCheckRequest>) -> bool {
    SERVICES.contains(&request.get_ref().service.as_str())
}

#[tonic::async_trait]
impl HealthCalls for HealthView {
    type WatchStream = ReplyStream<HealthCheckResponse>;

    async fn check(&self, request: Request<HealthCheckRequest>) -> RpcResult<HealthCheckResponse> {
        if !is_known(&request) {
            let wrong = format!("this server has no service {:?}", request.get_ref().service);
            return Err(messages::status(&Error::new(Reason::NoSuchName, wrong)));
        }
        Ok(Response::new(reply(status_of(self.now()))))
    }

    async fn watch(&self, request: Request<HealthCheckRequest>) -> RpcResult<Self::WatchStream> {
        if !is_known(&request) {
            // The protocol's answer for a service that may be added later.
            let unknown = stream::iter([Ok(reply(ServingStatus::ServiceUnknown))]);
            return Ok(Response::new(unknown.chain(stream::pending()).boxed()));
        }
        let mut changes = self.0.clone();
        changes.mark_changed();
        let next = |changes: Option<watch::Receiver<HealthRecord>>| async move {
            let mut changes = changes?;
            changes.changed().await.ok()?;
            let health = changes.borrow_and_update().health;
            let rest = if health == Health::Stopping { None } else { Some(changes) };
            Some((Ok(reply(status_of(health))), rest))
        };
        Ok(Response::new(stream::unfold(Some(changes), next).boxed()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_failed_read_is_forgiven_and_two_are_not() {
        let mut record = HealthRecord::new();
        assert_eq!(record.health, Health::NotServing(Reason::Unavailable), "before the first read");
        assert!(record.record(Ok(())));
        assert!(!record.record(Err(Reason::Unavailable)));
        assert_eq!(record.health, Health::Serving);
        assert!(record.record(Err(Reason::NoSuchNameRoot)));
        assert_eq!(record.health, Health::NotServing(Reason::NoSuchNameRoot));
        assert!(record.record(Ok(())));
        assert!(!record.record(Err(Reason::Unavailable)), "the failures before do not count any more");
    }

    #[test]
    fn a_server_that_stops_stays_unhealthy() {
        let mut record = HealthRecord::new();
        assert!(record.record(Ok(())) && record.stop());
        assert!(!record.record(Ok(())) && !record.stop());
        assert_eq!(record.health, Health::Stopping);
    }

    #[tokio::test]
    async fn a_watch_reports_changes_and_ends_with_the_server() {
        let monitor = HealthMonitor::new();
        let request = || Request::new(HealthCheckRequest::default());
        let mut watched = monitor.view().watch(request()).await.unwrap().into_inner();
        let mut next = async || watched.next().await.map(|reply| reply.unwrap().status());
        assert_eq!(next().await, Some(ServingStatus::NotServing));
        monitor.0.send_if_modified(|record| record.record(Ok(())));
        assert_eq!(next().await, Some(ServingStatus::Serving));
        monitor.stop();
        assert_eq!(next().await, Some(ServingStatus::NotServing));
        assert_eq!(next().await, None);
        assert_eq!(monitor.view().check(request()).await.unwrap().into_inner().status(), ServingStatus::NotServing);
    }
}
