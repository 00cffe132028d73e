//! Commands of `ebla` at one address of a cluster, repeated until they show what is expected.

#![expect(clippy::unwrap_used, reason = "a test may fail, and then says where")]

use std::process::{Command, Output};
use std::time::Duration;

use ebla_runtime::Runtime;

/// Timeout of expected changes: leases of 10 s end first, and lost replicas are replaced after 30 s.
const LIVE: Duration = Duration::from_secs(120);
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(250);

/// The address, and the clock for timeouts.
pub(crate) struct Commands {
    address: String,
    runtime: Runtime,
}

impl Commands {
    pub(crate) const fn new(address: String, runtime: Runtime) -> Self {
        Self { address, runtime }
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Runs a command, which may fail.
    pub(crate) fn output(&self, arguments: &[&str]) -> Output {
        Command::new(super::ebla()).args(arguments).args(["--addr", &self.address]).output().unwrap()
    }

    /// Runs a command that must succeed; returns what it prints.
    pub(crate) fn run(&self, arguments: &[&str]) -> String {
        super::run(&self.address, arguments)
    }

    /// Repeats a command until it succeeds; returns what it prints.
    pub(crate) async fn run_until_success(&self, arguments: &[&str]) -> String {
        let shown = self.repeat(arguments, |output| output.status.success()).await;
        String::from_utf8(shown.stdout).unwrap()
    }

    /// Waits until the first line of `ebla status` contains this text.
    pub(crate) async fn wait_for_status(&self, text: &str) {
        let is_shown = |output: &Output| {
            String::from_utf8_lossy(&output.stdout).lines().next().is_some_and(|verdict| verdict.contains(text))
        };
        self.repeat(&["status"], is_shown).await;
    }

    async fn repeat(&self, arguments: &[&str], is_expected: impl Fn(&Output) -> bool) -> Output {
        let deadline = self.runtime.clock.monotonic() + LIVE;
        loop {
            let output = self.output(arguments);
            if is_expected(&output) {
                return output;
            }
            assert!(self.runtime.clock.monotonic() < deadline, "{arguments:?}: {output:?}");
            tokio::time::sleep(PAUSE).await;
        }
    }
}
