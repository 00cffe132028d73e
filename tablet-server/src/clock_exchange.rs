//! Asks the other servers for their time and whether their disks are slow, and keeps a server whose clock is off from leading.
//!
//! ```text
//!   at the start, until others respond every second, then every 5 s
//!                each registered server is asked for the time of its clock; half of the round trip is added
//!   then         the clock is off if most clocks agree, and it differs from them by more than 5 s (`model::clock_offset`)
//!   while off    leaderships are transferred to servers whose clocks are not off and whose disks are not slow
//! ```

use std::sync::Arc;
use std::time::Duration;

use ebla_client::channel::Channels;
use ebla_model::id::ServerId;
use ebla_proto::control::ClockRequest;
use ebla_proto::control::control_client::ControlClient;
use ebla_routing::ChubbyDirectory;
use ebla_runtime::net::Windows;
use ebla_runtime::{Clock, Runtime};
use futures::future::join_all;
use tonic::Request;
use tracing::{info, warn};

use crate::clock_comparison::seconds;
use crate::disk_speeds::DiskSpeed;
use crate::drain;
use crate::tablet::lifecycle::manager::TabletManager;

/// Between two comparisons until there is a result: a server that starts with a wrong clock should lead nothing.
const FIRST_PERIOD: Duration = Duration::from_secs(1);
/// Between two comparisons.
const PERIOD: Duration = Duration::from_secs(5);
/// A server that does not respond within this time is not compared: its time would be known too inexactly.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Starts the comparisons; they end with `runtime.tasks`.
pub(crate) fn start(manager: &Arc<TabletManager>, directory: &ChubbyDirectory, runtime: &Runtime) {
    let comparing = Comparing {
        manager: Arc::clone(manager),
        directory: directory.clone(),
        channels: Channels::to_peers(runtime, Windows::CALLS),
        runtime: runtime.clone(),
    };
    runtime.tasks.spawn_until_stopped("clocks", comparing.run());
}

struct Comparing {
    manager: Arc<TabletManager>,
    directory: ChubbyDirectory,
    channels: Channels,
    runtime: Runtime,
}

impl Comparing {
    async fn run(self) {
        loop {
            self.compare().await;
            let (clocks, now) = (self.manager.clocks(), self.now());
            let server = self.manager.server();
            if let Some(state) = clocks.evaluate(now) {
                let offset_seconds = seconds(state.offset_micros.unwrap_or_default());
                if state.is_off {
                    warn!(%server, offset_seconds, "clock is off; leaderships are transferred to other servers");
                } else {
                    info!(%server, offset_seconds, "clock agrees with the other servers again");
                }
            }
            if clocks.state().is_off {
                drain::release_leaderships(&self.manager, &self.manager.leadership_targets()).await;
            }
            let period = if clocks.state().offset_micros.is_some() { PERIOD } else { FIRST_PERIOD };
            tokio::time::sleep(self.runtime.rng.jitter(period)).await;
        }
    }

    fn now(&self) -> Duration {
        self.runtime.clock.monotonic()
    }

    /// Asks all other registered servers for their time.
    async fn compare(&self) {
        let own = self.manager.server();
        let peers = self.directory.servers().into_iter().filter(|peer| peer.server != own.get());
        let asked = peers.map(|peer| async move { self.ask(ServerId::new(peer.server), &peer.address).await });
        join_all(asked.collect::<Vec<_>>()).await;
    }

    async fn ask(&self, peer: ServerId, address: &str) {
        let sent = self.now();
        let mut request = Request::new(ClockRequest {});
        request.set_timeout(TIMEOUT);
        let mut client = ControlClient::new(self.channels.get(address));
        let Ok(Ok(reply)) = tokio::time::timeout(TIMEOUT, client.clock(request)).await else { return };
        let reply = reply.into_inner();
        // The address of a dead server may belong to another server now.
        if reply.server == peer.get() {
            let now = self.now();
            let offset = offset(&self.runtime.clock, reply.time_micros, now.saturating_sub(sent));
            self.manager.clocks().record(peer, offset, now);
            let speed = if reply.slow_disk { DiskSpeed::Slow } else { DiskSpeed::Sound };
            self.manager.disk_speeds().record(peer, speed);
        }
    }
}

/// By how much a clock is ahead that showed `time_micros` in the middle of a round trip that ends now.
fn offset(clock: &Clock, time_micros: i64, round_trip: Duration) -> i64 {
    let half = i64::try_from(round_trip.as_micros() / 2).unwrap_or(i64::MAX);
    time_micros.saturating_add(half).saturating_sub(clock.wall().get())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_round_trip_is_added() {
        let clock = Clock::manual();
        clock.set_wall(ebla_model::time::Micros::new(100_000_000));
        assert_eq!(offset(&clock, 99_000_000, Duration::from_millis(500)), -750_000);
    }
}
