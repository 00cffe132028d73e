//! Clients that write and read rows of each tablet all the time, and record how long each request took.
//!
//! A request that fails is sent again, and its time goes on: the time is that in which a caller could not do what it wanted.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ebla_client::Table;
use ebla_model::error::Error;
use ebla_model::key::RowKey;
use ebla_runtime::{Clock, Runtime};
use parking_lot::Mutex;

use crate::rows::{Rows, row_key, set};

/// Between a failed request and its repetition.
const RETRY: Duration = Duration::from_millis(10);
/// The timeout of a request. Shorter ones would fail where a caller would wait.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Requests that take less are not recorded.
const RECORDED: Duration = Duration::from_millis(20);
/// Rows that a client writes in turn.
const ROWS: u64 = 16;
/// Half of them have numbers from here on, above those of all other rows.
const FIRST_ROW: u64 = 900_000_000;
const VALUE_BYTES: u64 = 100;

/// A request: when it was sent, and how long it took.
#[derive(Clone, Copy, Debug)]
struct Slow {
    began: Duration,
    took: Duration,
}

/// What the client of a tablet has seen.
#[derive(Clone, Debug, Default)]
struct Seen {
    /// When the request in progress was sent.
    in_progress: Option<Duration>,
    slow: Vec<Slow>,
}

#[derive(Debug, Default)]
struct Shared {
    /// By the number of the tablet.
    seen: BTreeMap<u64, Mutex<Seen>>,
    counts: Mutex<Counts>,
}

/// Requests of all clients.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) succeeded: u64,
    /// Failed ones, by the reason.
    pub(crate) failed: BTreeMap<&'static str, u64>,
}

/// The running clients.
pub(crate) struct Probes {
    shared: Arc<Shared>,
    runtime: Runtime,
}

impl Probes {
    /// One client for each of these tablets, with its pause between two writes and reads.
    pub(crate) fn start(rows: &Rows, tablets: impl Iterator<Item = (u64, Duration)>, runtime: &Runtime) -> Self {
        let runtime = runtime.child("probes");
        let tablets: Vec<(u64, Duration)> = tablets.collect();
        let seen = tablets.iter().map(|(tablet, _pause)| (*tablet, Mutex::default())).collect();
        let shared = Arc::new(Shared { seen, counts: Mutex::default() });
        for (tablet, pause) in tablets {
            let (shared, clock, table) = (Arc::clone(&shared), runtime.clock.clone(), rows.table(TIMEOUT));
            let value = rows.value(VALUE_BYTES);
            let probe = Probe { shared, clock, table, tablet, pause, value };
            runtime.tasks.spawn_until_stopped("probe", probe.run());
        }
        Self { shared, runtime }
    }

    /// The longest request to each tablet that was in progress since `from`.
    pub(crate) fn longest_since(&self, from: Duration) -> BTreeMap<u64, Duration> {
        let now = self.runtime.clock.monotonic();
        let longest = |seen: &Mutex<Seen>| {
            let seen = seen.lock();
            let ended = seen.slow.iter().filter(|slow| slow.began + slow.took >= from).map(|slow| slow.took);
            let running = seen.in_progress.map(|began| now.saturating_sub(began));
            ended.chain(running).max().unwrap_or_default()
        };
        self.shared.seen.iter().map(|(tablet, seen)| (*tablet, longest(seen))).collect()
    }

    /// Ends the clients.
    pub(crate) async fn stop(self) -> Counts {
        self.runtime.tasks.stop(Duration::from_secs(1)).await;
        self.shared.counts.lock().clone()
    }
}

/// The client of one tablet.
struct Probe {
    shared: Arc<Shared>,
    clock: Clock,
    table: Table,
    tablet: u64,
    pause: Duration,
    value: Bytes,
}

#[derive(Clone, Copy, Debug)]
enum Request {
    Write,
    Read,
}

impl Probe {
    async fn run(self) {
        for row in (0..ROWS).cycle() {
            // In turn at the beginning and at the end, so that both halves of a tablet that is split are used.
            let key = row_key(self.tablet, if row % 2 == 0 { row } else { FIRST_ROW + row });
            for request in [Request::Write, Request::Read] {
                self.repeat(request, &key).await;
            }
            tokio::time::sleep(self.pause).await;
        }
    }

    /// Sends a request until it succeeds.
    async fn repeat(&self, request: Request, key: &RowKey) {
        let Some(seen) = self.shared.seen.get(&self.tablet) else { return };
        let began = self.clock.monotonic();
        seen.lock().in_progress = Some(began);
        while let Err(error) = self.send(request, key).await {
            *self.shared.counts.lock().failed.entry(error.reason.name()).or_default() += 1;
            tokio::time::sleep(RETRY).await;
        }
        let took = self.clock.monotonic().saturating_sub(began);
        self.shared.counts.lock().succeeded += 1;
        let mut seen = seen.lock();
        seen.in_progress = None;
        if took >= RECORDED {
            seen.slow.push(Slow { began, took });
        }
    }

    async fn send(&self, request: Request, key: &RowKey) -> Result<(), Error> {
        match request {
            Request::Write => self.table.mutate_row(key, &[set(self.value.clone())]).await,
            Request::Read => self.table.read_row(key, None).await.map(drop),
        }
    }
}
