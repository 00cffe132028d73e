//! gRPC's health checking protocol (`grpc.health.v1.Health`) for the servers of a cluster: what load balancers and supervisors ask.
//!
//! It needs no identity: the answer says only whether the process can serve. A server that is stopping answers that it does not serve, and
//! ends the calls that watch it.

use std::sync::Arc;
use std::time::Duration;

use ebla_model::error::Error;
use ebla_proto::health::health_check_response::ServingStatus;
use ebla_proto::health::health_server::Health;
use ebla_proto::health::{HealthCheckRequest, HealthCheckResponse};
use ebla_proto::status::to_status;
use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

/// How often a call that watches the health looks at it.
const WATCH_INTERVAL: Duration = Duration::from_millis(500);

/// Whether the process can serve; the error is the reason why it cannot. It must not block.
pub type ReadinessCheck = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// The service. Cheap to clone.
#[derive(Clone)]
pub struct HealthService {
    services: &'static [&'static str],
    check: ReadinessCheck,
    closing: CancellationToken,
}

impl std::fmt::Debug for HealthService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HealthService").field("services", &self.services).finish_non_exhaustive()
    }
}

impl HealthService {
    /// The health of these services, whose full names callers may ask for, as `check` decides; the empty name stands for the whole server.
    /// `closing`: cancelled when the server stops.
    #[must_use]
    pub const fn new(services: &'static [&'static str], check: ReadinessCheck, closing: CancellationToken) -> Self {
        Self { services, check, closing }
    }

    fn status(&self) -> ServingStatus {
        let serves = !self.closing.is_cancelled() && (self.check)().is_ok();
        if serves { ServingStatus::Serving } else { ServingStatus::NotServing }
    }

    fn knows(&self, service: &str) -> bool {
        service.is_empty() || self.services.contains(&service)
    }

    /// The status when it differs from `before`; `None` when the server stopped and that was said.
    async fn next(self, before: Option<ServingStatus>) -> Option<(ServingStatus, Self)> {
        loop {
            let now = self.status();
            if before != Some(now) {
                return Some((now, self));
            }
            if self.closing.is_cancelled() {
                return None;
            }
            tokio::select! {
                () = tokio::time::sleep(WATCH_INTERVAL) => {}
                () = self.closing.cancelled() => {}
            }
        }
    }
}

fn reply(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}

#[tonic::async_trait]
impl Health for HealthService {
    type WatchStream = BoxStream<'static, Result<HealthCheckResponse, Status>>;

    async fn check(&self, request: Request<HealthCheckRequest>) -> Result<Response<HealthCheckResponse>, Status> {
        let service = request.into_inner().service;
        if self.knows(&service) {
            return Ok(Response::new(reply(self.status())));
        }
        let wrong = format!("this server has no service {service:?}");
        Err(to_status(&Error::new(ebla_model::Reason::NotFound, wrong)))
    }

    async fn watch(&self, request: Request<HealthCheckRequest>) -> Result<Response<Self::WatchStream>, Status> {
        if !self.knows(&request.get_ref().service) {
            // The protocol's answer for a service that may be added later.
            let unknown = stream::iter([Ok(reply(ServingStatus::ServiceUnknown))]);
            let closed = self.closing.clone().cancelled_owned();
            return Ok(Response::new(unknown.chain(stream::pending()).take_until(closed).boxed()));
        }
        let changes = stream::unfold((self.clone(), None), |(service, before)| async move {
            let (status, service) = service.next(before).await?;
            Some((Ok(reply(status)), (service, Some(status))))
        });
        Ok(Response::new(changes.boxed()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    fn request(service: &str) -> Request<HealthCheckRequest> {
        Request::new(HealthCheckRequest { service: service.to_owned() })
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_reports_changes_and_ends_with_the_server() {
        let (serves, closing) = (Arc::new(AtomicBool::new(false)), CancellationToken::new());
        let state = Arc::clone(&serves);
        let check = move || if state.load(Ordering::Relaxed) { Ok(()) } else { Err("starting".to_owned()) };
        let health = HealthService::new(&["a.B"], Arc::new(check), closing.clone());
        let mut watched = health.watch(request("a.B")).await.unwrap().into_inner();
        let mut next = async || watched.next().await.map(|reply| reply.unwrap().status());
        assert_eq!(next().await, Some(ServingStatus::NotServing));
        serves.store(true, Ordering::Relaxed);
        assert_eq!(next().await, Some(ServingStatus::Serving));
        assert_eq!(health.check(request("")).await.unwrap().into_inner().status(), ServingStatus::Serving);
        closing.cancel();
        assert_eq!(next().await, Some(ServingStatus::NotServing));
        assert_eq!(next().await, None);
    }

    #[tokio::test]
    async fn an_unknown_service_is_not_found_and_a_watch_of_it_stays_open() {
        let closing = CancellationToken::new();
        let health = HealthService::new(&["a.B"], Arc::new(|| Ok(())), closing.clone());
        let refused = health.check(request("a.C")).await.unwrap_err();
        assert_eq!(ebla_proto::status::from_status(&refused).0.reason, ebla_model::Reason::NotFound);
        let mut watched = health.watch(request("a.C")).await.unwrap().into_inner();
        assert_eq!(watched.next().await.unwrap().unwrap().status(), ServingStatus::ServiceUnknown);
        closing.cancel();
        assert!(watched.next().await.is_none());
    }
}
