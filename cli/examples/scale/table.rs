//! The table of the measurement: created with one row for each tablet, and written until every tablet has accepted a write.

use std::error::Error;
use std::time::Duration;

use ebla_runtime::Runtime;
use ebla_workload::bench::processes::Processes;
use ebla_workload::bench::target::Target;
use ebla_workload::bench::{Values, Workload};
use futures::StreamExt as _;

/// Writes under way at the same time.
const WRITES: usize = 128;
/// The timeout of one write; it is sent again.
const WRITE_MAX: Duration = Duration::from_secs(2);
/// The pause before the refused writes are sent again.
const PAUSE: Duration = Duration::from_millis(50);
/// The timeout of the request that creates the table.
const CREATE_MAX: Duration = Duration::from_secs(240);
const VALUE_BYTES: usize = 100;

/// A table with this number of tablets, and clients on all addresses.
pub(super) struct Table {
    target: Target,
    tablets: u64,
    values: Values,
    runtime: Runtime,
}

impl Table {
    pub(super) async fn new(addresses: &[String], tablets: u64, runtime: &Runtime) -> Result<Self, Box<dyn Error>> {
        let target = Target::new(runtime, "ebla", &addresses.join(","), Processes::default(), WRITES).await?;
        Ok(Self { target, tablets, values: Values::new(runtime, VALUE_BYTES), runtime: runtime.clone() })
    }

    /// Creates the table; returns the time until the request was answered.
    pub(super) async fn create(&self) -> Result<Duration, Box<dyn Error>> {
        let started = self.runtime.clock.monotonic();
        let created = tokio::time::timeout(CREATE_MAX, self.target.create(self.tablets, self.tablets)).await;
        created.map_err(|_| format!("the table was not created in {CREATE_MAX:?}"))??;
        Ok(self.runtime.clock.monotonic().saturating_sub(started))
    }

    /// Returns when every tablet has accepted a write since this call.
    pub(super) async fn write_each(&self, timeout: Duration) -> Result<(), Box<dyn Error>> {
        let started = self.runtime.clock.monotonic();
        let mut left: Vec<u64> = (0..self.tablets).collect();
        loop {
            let attempts = left.iter().map(|tablet| self.write(*tablet));
            let mut outcomes = futures::stream::iter(attempts).buffer_unordered(WRITES);
            let mut refused = Vec::new();
            let mut last = None;
            while let Some((tablet, outcome)) = outcomes.next().await {
                if let Err(error) = outcome {
                    refused.push(tablet);
                    last = Some(error);
                }
            }
            drop(outcomes);
            let Some(last) = last else { return Ok(()) };
            if self.runtime.clock.monotonic().saturating_sub(started) > timeout {
                let (count, all) = (refused.len(), self.tablets);
                return Err(format!("{count} of {all} tablets accept no write after {timeout:?}: {last}").into());
            }
            left = refused;
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Writes the first row of a tablet once.
    async fn write(&self, tablet: u64) -> (u64, Result<(), String>) {
        let number = usize::try_from(tablet).unwrap_or_default();
        let Some(mut client) = self.target.client(number) else { return (tablet, Err("no address".to_owned())) };
        let request = client.request(Workload::Write, tablet, self.tablets, &self.values);
        let outcome = match tokio::time::timeout(WRITE_MAX, request).await {
            Ok(outcome) => outcome.map_err(|status| status.message().to_owned()),
            Err(_elapsed) => Err(format!("no answer in {WRITE_MAX:?}")),
        };
        (tablet, outcome)
    }
}
