//! `ebla up` as a process: started on a folder, waited for by its ready file, killed by its id.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may fail, and then says where"
)]
#![allow(dead_code, clippy::allow_attributes, reason = "each suite uses a part of it")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use ebla_runtime::Clock;
use serde_json::Value;

/// A process that has not come up by then never will: recovery of a gigabyte takes seconds.
const READY_MAX: Duration = Duration::from_secs(120);

/// What a cluster in trouble may answer. Whatever else it says is a fault: the requests are all right.
pub(crate) const TROUBLE: [&str; 3] = ["DEADLINE", "OUTCOME_UNKNOWN", "UNAVAILABLE"];

/// Carries out `test` on threads of its own. Tasks that it leaves behind do not hold up the end.
pub(crate) fn block_on<T>(test: impl Future<Output = T>) -> T {
    let tokio = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let outcome = tokio.block_on(Box::pin(test));
    tokio.shutdown_background();
    outcome
}

/// The program under test.
pub(crate) fn ebla() -> &'static str {
    env!("CARGO_BIN_EXE_ebla")
}

/// A running `ebla up`, killed when dropped.
pub(crate) struct Up {
    child: Child,
    /// The public address of each server.
    pub(crate) addresses: Vec<String>,
    /// How long it took from the start of the process until the ready file was there.
    pub(crate) took: Duration,
}

impl Up {
    /// Starts it on `data` with a free port and waits until all serves.
    pub(crate) fn start(data: &Path, arguments: &[&str]) -> Self {
        let clock = Clock::system();
        let started = clock.monotonic();
        let ready = data.with_extension("ready");
        drop(std::fs::remove_file(&ready));
        let log = std::fs::File::options().create(true).append(true).open(data.with_extension("log")).unwrap();
        let child = Command::new(ebla())
            .args(["up", "--listen", "127.0.0.1:0", "--data"])
            .arg(data)
            .arg("--ready-file")
            .arg(&ready)
            .args(arguments)
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut up = Self { child, addresses: Vec::new(), took: Duration::ZERO };
        let text = loop {
            if let Ok(text) = std::fs::read_to_string(&ready) {
                break text;
            }
            if let Some(status) = up.child.try_wait().unwrap() {
                panic!("ebla up ended with {status} before it was ready:\n{}", tail(&data.with_extension("log")));
            }
            assert!(
                clock.monotonic() - started < READY_MAX,
                "ebla up is not ready after {READY_MAX:?}:\n{}",
                tail(&data.with_extension("log"))
            );
            pause();
        };
        up.took = clock.monotonic() - started;
        let ready: Value = serde_json::from_str(&text).unwrap();
        let servers = ready["servers"].as_array().unwrap();
        up.addresses = servers.iter().map(|server| server["bigtable"].as_str().unwrap().to_owned()).collect();
        assert_eq!(ready["bigtable"].as_str().unwrap(), up.addresses[0]);
        assert_eq!(ready["pid"].as_u64().unwrap(), u64::from(up.child.id()));
        up
    }

    /// SIGKILL: no drain, no flush, no goodbye.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// The process's id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Runs a command of `ebla` against `address`; its stdout. A failure fails the test with what it said.
pub(crate) fn run(address: &str, arguments: &[&str]) -> String {
    let output = Command::new(ebla()).args(arguments).env("EBLA_ADDR", address).output().unwrap();
    assert!(
        output.status.success(),
        "ebla {} failed: {}{}",
        arguments.join(" "),
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

/// The virtual environment that `make test` prepares, when it is there.
pub(crate) fn python() -> Option<PathBuf> {
    let home = std::env::var("HOME").unwrap_or_default();
    let default = PathBuf::from(home).join(".cache/ebla/python/bin/python");
    Some(std::env::var("EBLA_TEST_PYTHON").map_or(default, PathBuf::from)).filter(|path| path.exists())
}

/// A little while, for polling a process that we do not control.
#[expect(clippy::disallowed_methods, reason = "a process tells nothing but through files: polling it is all there is")]
pub(crate) fn pause() {
    std::thread::sleep(Duration::from_millis(10));
}

fn tail(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(30)..].join("\n")
}
