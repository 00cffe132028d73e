//! One process of a cluster under test: started, signalled by its id, started again, and never left behind.
//!
//! A child ends with its test in every case: dropped, it is killed; and the kernel kills it when the thread that started
//! it ends, so start children from the test's own future, never from a task that may move between threads.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use ebla_runtime::Clock;
use rustix::process::{Pid, Signal, kill_process};

/// Polling interval for the state of a process, which is visible only through files and ports.
pub const POLL: Duration = Duration::from_millis(20);
/// Lines of a log shown in a failure.
const TAIL: usize = 40;

/// A process that can be restarted, with the same command line unless another is set. Its log is appended to.
pub struct Child {
    name: String,
    command: Vec<String>,
    log: PathBuf,
    process: Option<std::process::Child>,
}

impl Child {
    /// Starts `command` (a program and its arguments) with its output in `log`.
    ///
    /// # Errors
    /// When the program cannot be started or the log not be opened.
    pub fn start(name: &str, command: Vec<String>, log: &Path) -> io::Result<Self> {
        let mut child = Self { name: name.to_owned(), command, log: log.to_path_buf(), process: None };
        child.restart()?;
        Ok(child)
    }

    /// Starts it again; kills it first if it runs.
    ///
    /// # Errors
    /// As [`Child::start`].
    pub fn restart(&mut self) -> io::Result<()> {
        self.kill();
        let log = File::options().create(true).append(true).open(&self.log)?;
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).args(&self.command);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let started = command.spawn().map_err(|error| io::Error::other(format!("start {}: {error}", self.name)))?;
        self.process = Some(started);
        Ok(())
    }

    /// Sets the command line of the next restart.
    pub fn set_command(&mut self, command: Vec<String>) {
        self.command = command;
    }

    /// The process id, until its exit was noticed.
    #[must_use]
    pub fn id(&self) -> Option<u32> {
        self.process.as_ref().map(std::process::Child::id)
    }

    /// Sends SIGKILL and waits for the exit. No effect if it does not run.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            drop(process.kill());
            drop(process.wait());
        }
    }

    /// Sends SIGTERM and waits for the exit.
    ///
    /// # Errors
    /// `TimedOut` after `timeout`; the process continues.
    pub async fn terminate(&mut self, timeout: Duration) -> io::Result<ExitStatus> {
        self.signal(Signal::TERM)?;
        let clock = Clock::system();
        let started = clock.monotonic();
        loop {
            if let Some(status) = self.ended() {
                self.process = None;
                return Ok(status);
            }
            if clock.monotonic() - started > timeout {
                return Err(
                    self.failure(io::ErrorKind::TimedOut, &format!("did not exit within {timeout:?} after SIGTERM"))
                );
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// SIGSTOP: the process is frozen.
    ///
    /// # Errors
    /// `NotFound` when it does not run.
    pub fn pause(&self) -> io::Result<()> {
        self.signal(Signal::STOP)
    }

    /// SIGCONT.
    ///
    /// # Errors
    /// `NotFound` when it does not run.
    pub fn resume(&self) -> io::Result<()> {
        self.signal(Signal::CONT)
    }

    fn signal(&self, signal: Signal) -> io::Result<()> {
        let id = self.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        let id = id.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("{} is not running", self.name)))?;
        kill_process(id, signal).map_err(io::Error::from)
    }

    /// Its exit status, if it exited by itself.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.process.as_mut()?.try_wait().ok()?
    }

    /// An error of this process, with the end of its log.
    #[must_use]
    pub fn failure(&self, kind: io::ErrorKind, what: &str) -> io::Error {
        io::Error::new(kind, format!("{} {what}\n{}", self.name, self.log_tail()))
    }

    /// The last lines of its log.
    #[must_use]
    pub fn log_tail(&self) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<_> = text.lines().collect();
        let tail = lines.get(lines.len().saturating_sub(TAIL)..).unwrap_or_default();
        format!("--- {} ---\n{}", self.log.display(), tail.join("\n"))
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sleeper(folder: &Path) -> Child {
        let command = ["sh", "-c", "echo up; exec sleep 600"].map(str::to_owned).to_vec();
        Child::start("sleeper", command, &folder.join("log")).unwrap()
    }

    fn is_there(id: u32) -> bool {
        Path::new(&format!("/proc/{id}")).exists()
    }

    #[test]
    fn a_dropped_child_is_killed() {
        let folder = tempfile::tempdir().unwrap();
        let child = sleeper(folder.path());
        let id = child.id().unwrap();
        assert!(is_there(id));
        drop(child);
        assert!(!is_there(id));
    }

    #[tokio::test]
    async fn a_child_is_paused_resumed_stopped_and_restarted() {
        let folder = tempfile::tempdir().unwrap();
        let mut child = sleeper(folder.path());
        child.pause().unwrap();
        child.resume().unwrap();
        child.terminate(Duration::from_secs(30)).await.unwrap();
        assert!(child.pause().is_err());
        child.restart().unwrap();
        assert!(is_there(child.id().unwrap()));
        child.kill();
        assert_eq!(child.id(), None);
    }
}
