//! `ebla up`: three servers in one process.

use std::error::Error;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use ebla_runtime::Runtime;
use ebla_tests::child::{Child, POLL};
use ebla_workload::bench::processes::{Processes, open_files};
use ebla_workload::bench::scale::Scale;
use serde_json::Value;

use crate::table::Table;
use crate::{Arguments, limited};

/// How long a start may take until the ready file is there.
const READY_MAX: Duration = Duration::from_secs(120);
/// How long a stop may take.
const STOP_MAX: Duration = Duration::from_secs(120);
/// How long it may take until every tablet accepts a write.
const SERVED_MAX: Duration = Duration::from_secs(120);
/// When a cluster is treated as being at rest.
const SETTLED: Duration = Duration::from_secs(10);
/// For how long the processor time at rest is measured.
const REST: Duration = Duration::from_secs(20);

/// Measures everything but the failover. What was measured before an error stays in `scale`.
pub(super) async fn measure(scale: &mut Scale, arguments: &Arguments, runtime: &Runtime) -> Result<(), Box<dyn Error>> {
    let mut up = Up::start(arguments, runtime).await?;
    let figures = figures(scale, &mut up, runtime).await;
    match (figures, up.child.ended()) {
        (Err(error), Some(status)) => Err(format!("{error}; ebla up exited: {status}").into()),
        (figures, _) => figures,
    }
}

async fn figures(scale: &mut Scale, up: &mut Up, runtime: &Runtime) -> Result<(), Box<dyn Error>> {
    if scale.tablets > 0 {
        let table = Table::new(&up.addresses, scale.tablets, runtime).await?;
        scale.create = Some(table.create().await?);
        table.write_each(SERVED_MAX).await?;
    }
    rest(scale, up, runtime).await?;
    let started = up.restart(runtime).await?;
    if scale.tablets > 0 {
        Table::new(&up.addresses, scale.tablets, runtime).await?.write_each(SERVED_MAX).await?;
    }
    scale.restart = Some(runtime.clock.monotonic().saturating_sub(started));
    Ok(())
}

async fn rest(scale: &mut Scale, up: &Up, runtime: &Runtime) -> Result<(), Box<dyn Error>> {
    let pid = up.child.id().ok_or("ebla up does not run")?;
    let processes = Processes::parse(&pid.to_string())?;
    tokio::time::sleep(SETTLED).await;
    let (before, started) = (processes.cpu_micros(), runtime.clock.monotonic());
    tokio::time::sleep(REST).await;
    let took = runtime.clock.monotonic().saturating_sub(started);
    let spent = processes.cpu_micros().zip(before).map(|(after, before)| after.saturating_sub(before));
    let spent = Duration::from_micros(spent.ok_or("ebla up exited at rest")?);
    scale.rest = Some(spent.as_secs_f64() / took.as_secs_f64());
    scale.resident_bytes = processes.resident_bytes();
    scale.open_files = open_files(pid).and_then(|files| u64::try_from(files).ok());
    Ok(())
}

/// The process; killed when dropped.
struct Up {
    child: Child,
    ready_file: PathBuf,
    /// Of the three servers.
    addresses: Vec<String>,
    _folder: tempfile::TempDir,
}

impl Up {
    async fn start(arguments: &Arguments, runtime: &Runtime) -> Result<Self, Box<dyn Error>> {
        let folder = tempfile::tempdir()?;
        let ready_file = folder.path().join("ready");
        let mut command = limited(arguments.files);
        command.push(arguments.ebla.display().to_string());
        command.extend(["up", "--listen", "127.0.0.1:0", "--data"].map(str::to_owned));
        command.push(folder.path().join("data").display().to_string());
        command.extend(["--ready-file".to_owned(), ready_file.display().to_string()]);
        let child = Child::start("ebla up", command, &folder.path().join("log"))?;
        let mut up = Self { child, ready_file, addresses: Vec::new(), _folder: folder };
        up.wait_ready(runtime).await?;
        Ok(up)
    }

    /// Stops the process gracefully and starts it again; returns the time of the start.
    async fn restart(&mut self, runtime: &Runtime) -> Result<Duration, Box<dyn Error>> {
        self.child.terminate(STOP_MAX).await?;
        drop(fs::remove_file(&self.ready_file));
        let started = runtime.clock.monotonic();
        self.child.restart()?;
        self.wait_ready(runtime).await?;
        Ok(started)
    }

    async fn wait_ready(&mut self, runtime: &Runtime) -> Result<(), Box<dyn Error>> {
        let started = runtime.clock.monotonic();
        while !self.ready_file.exists() {
            if let Some(status) = self.child.ended() {
                return Err(format!("exited before it was ready: {status}\n{}", self.child.log_tail()).into());
            }
            if runtime.clock.monotonic().saturating_sub(started) > READY_MAX {
                return Err(format!("is not ready after {READY_MAX:?}\n{}", self.child.log_tail()).into());
            }
            tokio::time::sleep(POLL).await;
        }
        let ready: Value = serde_json::from_str(&fs::read_to_string(&self.ready_file)?)?;
        let servers = ready.get("servers").and_then(Value::as_array).into_iter().flatten();
        self.addresses = servers.filter_map(|server| Some(server.get("bigtable")?.as_str()?.to_owned())).collect();
        Ok(())
    }
}
