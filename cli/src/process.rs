//! What a process that runs part of a cluster has to do with the machine: a folder that is its own, an address that is
//! safe to serve on, a ready file, the order to stop.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use ebla_model::error::{Error, Reason};
use serde_json::Value;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::output::Failure;

/// What an orderly stop may take before the process ends all the same. Ending is always safe: what was acknowledged is on
/// disk.
const STOP_MAX: Duration = Duration::from_secs(10);

/// Makes the folder and holds its lock until the file is dropped; the system releases it when a process is killed.
///
/// # Errors
/// `FailedPrecondition` when the folder cannot be used or another process holds it.
pub fn lock(data: &Path) -> Result<File, Error> {
    let failed = |error: std::io::Error| {
        Error::new(Reason::FailedPrecondition, format!("use {} as the data folder: {error}", data.display()))
    };
    std::fs::create_dir_all(data).map_err(failed)?;
    let file = File::options().create(true).truncate(false).write(true).open(data.join("LOCK")).map_err(failed)?;
    rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).map_err(|_| {
        let folder = data.display();
        Error::new(
            Reason::FailedPrecondition,
            format!("another ebla runs on {folder}: stop it, or give --data another folder"),
        )
    })?;
    Ok(file)
}

/// Refuses to serve beyond loopback, where anyone could read and write, unless that was asked for.
///
/// # Errors
/// Usage, with what to add.
pub fn check_exposure(listen: &str, insecure: bool) -> Result<(), Failure> {
    if insecure || is_loopback(listen) {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "{listen} is not a loopback address, and there is no TLS and no login yet: add --insecure if the network is yours alone"
    )))
}

/// Refuses an address that others could not connect to.
///
/// # Errors
/// Usage: `listen` means every address of the machine, and nothing says which one to tell.
pub fn check_reachable(listen: &str, advertise: Option<&str>) -> Result<(), Failure> {
    match advertise {
        Some(told) if host(told).is_empty() || is_unspecified(told) || told.ends_with(":0") => {
            Err(Failure::usage(format!("--advertise {told} names no address that others can connect to")))
        }
        None if is_unspecified(listen) => Err(Failure::usage(format!(
            "others cannot connect to {listen}: say with --advertise HOST:PORT where they reach this process"
        ))),
        _ => Ok(()),
    }
}

/// Writes the ready file. A reader never sees half of it: it is written beside and renamed.
///
/// # Errors
/// When the file cannot be written.
pub fn write_ready(file: &Path, ready: &Value) -> Result<(), Failure> {
    let beside = file.with_extension("part");
    std::fs::write(&beside, format!("{ready}\n"))
        .and_then(|()| std::fs::rename(&beside, file))
        .map_err(|error| Failure::other(format!("write the ready file {}: {error}", file.display())))
}

/// SIGTERM and Ctrl-C, watched from when this is made: the first means stop in order, the second means at once.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Watches from now on.
    ///
    /// # Errors
    /// When the signals cannot be watched.
    pub fn watch() -> Result<Self, Failure> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Returns at the next signal. Cancel-safe.
    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    /// Runs `work` until it ends or a signal comes; whether it ended.
    pub async fn unless_told<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            done = work => Some(done),
            () = self.next() => None,
        }
    }

    /// Stops in order, but ends at a second signal or when the time is over.
    pub async fn stop(&mut self, orderly: impl Future<Output = ()>) {
        tokio::select! {
            ended = tokio::time::timeout(STOP_MAX, orderly) => {
                if ended.is_err() {
                    eprintln!("ebla: not stopped in order after {STOP_MAX:?}: ending now, which loses nothing");
                }
            }
            () = self.next() => eprintln!("ebla: told twice: ending now, which loses nothing"),
        }
    }
}

fn host(address: &str) -> &str {
    address.rsplit_once(':').map_or(address, |(host, _)| host).trim_matches(['[', ']'])
}

fn is_loopback(address: &str) -> bool {
    let host = host(address);
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

fn is_unspecified(address: &str) -> bool {
    host(address).parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_unspecified())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_serves_one_process_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let held = lock(folder.path()).unwrap();
        assert_eq!(lock(folder.path()).unwrap_err().reason, Reason::FailedPrecondition);
        drop(held);
        assert!(lock(folder.path()).is_ok());
    }

    #[test]
    fn only_loopback_is_loopback() {
        assert!(is_loopback("127.0.0.1:80") && is_loopback("[::1]:80") && is_loopback("localhost:0"));
        assert!(!is_loopback("0.0.0.0:8086") && !is_loopback("10.0.0.1:1") && !is_loopback("example.org:1"));
    }

    #[test]
    fn who_listens_everywhere_says_where_it_is_found() {
        assert!(check_reachable("127.0.0.1:0", None).is_ok());
        assert!(check_reachable("server-1:8086", None).is_ok());
        assert!(check_reachable("0.0.0.0:8086", None).is_err() && check_reachable("[::]:8086", None).is_err());
        assert!(check_reachable("0.0.0.0:8086", Some("server-1:8086")).is_ok());
        for useless in ["0.0.0.0:8086", ":8086", "server-1:0"] {
            assert!(check_reachable("0.0.0.0:8086", Some(useless)).is_err(), "{useless}");
        }
    }
}
