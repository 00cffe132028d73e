//! `ebla up` as a process: started on a folder, waited for by its ready file, killed by its id.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may fail, and then says where"
)]
#![allow(dead_code, clippy::allow_attributes, reason = "each suite uses a part of it")]

pub(crate) mod commands;
pub(crate) mod documents;
pub(crate) mod pages;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use ebla_runtime::Clock;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Timeout of a start; recovery of a gigabyte takes seconds.
const READY_MAX: Duration = Duration::from_secs(120);

/// Errors that an unhealthy cluster may return. Any other error is a fault, because the requests are valid.
pub(crate) const TROUBLE: [&str; 3] = ["DEADLINE", "OUTCOME_UNKNOWN", "UNAVAILABLE"];

/// Runs `test` on a separate runtime. Leftover tasks do not delay the end.
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

/// A running process of the program with a ready file; killed when dropped.
pub(crate) struct Process {
    child: Child,
    /// The contents of the ready file.
    pub(crate) ready: Value,
    /// How long it took from the start of the process until the ready file was there.
    pub(crate) took: Duration,
}

impl Process {
    /// Starts `ebla` with these arguments and waits until it serves. `base`: the path of its ready file and its log, without
    /// their extensions; the log is appended to.
    pub(crate) fn start(base: &Path, arguments: &[&OsStr]) -> Self {
        let mut command = Command::new(ebla());
        command.args(arguments);
        Self::start_command(base, command)
    }

    /// As [`Process::start`], with a command that executes `ebla`.
    pub(crate) fn start_command(base: &Path, mut command: Command) -> Self {
        let clock = Clock::system();
        let started = clock.monotonic();
        let (ready, log) = (base.with_extension("ready"), base.with_extension("log"));
        drop(std::fs::remove_file(&ready));
        let mut child = command
            // Tests count tables and tablets; those of key heat give the option.
            .env("EBLA_HEAT_MAP", "off")
            .arg("--ready-file")
            .arg(&ready)
            .stdout(Stdio::null())
            .stderr(std::fs::File::options().create(true).append(true).open(&log).unwrap())
            .spawn()
            .unwrap();
        let process = loop {
            if let Ok(text) = std::fs::read_to_string(&ready) {
                let ready = serde_json::from_str(&text).unwrap();
                break Self { child, ready, took: clock.monotonic() - started };
            }
            if let Some(status) = child.try_wait().unwrap() {
                panic!("ebla ended with {status} before it was ready:\n{}", tail(&log));
            }
            if clock.monotonic() - started > READY_MAX {
                drop(child.kill());
                panic!("ebla is not ready after {READY_MAX:?}:\n{}", tail(&log));
            }
            pause();
        };
        assert_eq!(process.ready["pid"].as_u64().unwrap(), u64::from(process.id()));
        process
    }

    /// Sends SIGKILL.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// SIGTERM; returns when it has ended, which it must without an error.
    pub(crate) fn stop(mut self) {
        let killed = Command::new("kill").args(["-TERM", &self.id().to_string()]).status().unwrap();
        assert!(killed.success() && self.child.wait().unwrap().success());
    }

    /// Sends these signals, one right after the other, and waits for the end: its status.
    pub(crate) fn end_by(mut self, signals: &[Signal]) -> ExitStatus {
        let id = Pid::from_child(&self.child);
        for signal in signals {
            kill_process(id, *signal).unwrap();
        }
        self.child.wait().unwrap()
    }

    /// The process's id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// A running `ebla up`, killed when dropped.
pub(crate) struct Up {
    process: Process,
    /// The public address of each server.
    pub(crate) addresses: Vec<String>,
}

impl Up {
    /// Starts it on `data` with a free port and waits until all serves.
    pub(crate) fn start(data: &Path, arguments: &[&str]) -> Self {
        let fixed = ["up", "--listen", "127.0.0.1:0", "--data"].map(OsStr::new);
        let given: Vec<_> = arguments.iter().map(OsStr::new).collect();
        Self::of(Process::start(data, &[&fixed[..], &[data.as_os_str()], &given].concat()))
    }

    /// As [`Up::start`], with a limit of open files.
    pub(crate) fn start_with_files(data: &Path, files: u64) -> Self {
        let mut command = Command::new("prlimit");
        command.arg(format!("--nofile={files}:{files}")).arg(ebla());
        command.args(["up", "--listen", "127.0.0.1:0", "--data"]).arg(data);
        Self::of(Process::start_command(data, command))
    }

    fn of(process: Process) -> Self {
        let servers = process.ready["servers"].as_array().unwrap();
        let addresses: Vec<_> = servers.iter().map(|server| server["bigtable"].as_str().unwrap().to_owned()).collect();
        assert_eq!(process.ready["bigtable"].as_str().unwrap(), addresses[0]);
        Self { process, addresses }
    }

    /// The contents of its ready file.
    pub(crate) fn ready(&self) -> &Value {
        &self.process.ready
    }

    /// How long it took until it served.
    pub(crate) fn took(&self) -> Duration {
        self.process.took
    }

    /// As [`Process::kill`].
    pub(crate) fn kill(self) {
        self.process.kill();
    }

    /// As [`Process::stop`].
    pub(crate) fn stop(self) {
        self.process.stop();
    }

    /// As [`Process::end_by`].
    pub(crate) fn end_by(self, signals: &[Signal]) -> ExitStatus {
        self.process.end_by(signals)
    }

    /// The process's id.
    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }
}

/// Runs a command of `ebla` against `address` and returns its stdout. A failure fails the test with the output.
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

/// A short pause for polling a process.
#[expect(
    clippy::disallowed_methods,
    reason = "the state of a process is visible only through files, so it must be polled"
)]
pub(crate) fn pause() {
    std::thread::sleep(Duration::from_millis(10));
}

/// The last lines of a log.
pub(crate) fn tail(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(30)..].join("\n")
}
