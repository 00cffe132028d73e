//! `ebla up` for one measurement.

use std::error::Error;
use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// How long a start may take.
const READY_MAX: Duration = Duration::from_secs(60);

/// `ebla up` in an empty folder, ended when dropped.
pub(crate) struct Up {
    child: Child,
    /// The address of its HTTP port.
    http: Option<String>,
    _folder: tempfile::TempDir,
}

impl Up {
    /// Starts it and waits until it serves. `command`: the program, possibly after one that executes it, with its arguments.
    ///
    /// Returns the addresses of its servers too, separated by commas.
    pub(crate) async fn start(command: &[&str]) -> Result<(Self, String), Box<dyn Error>> {
        let folder = tempfile::tempdir()?;
        let ready = folder.path().join("ready");
        let (program, arguments) = command.split_first().ok_or("no program to start")?;
        let mut command = Command::new(program);
        command.args(arguments).args(["up", "--listen", "127.0.0.1:0", "--data"]).arg(folder.path().join("data"));
        command.arg("--ready-file").arg(&ready).stdout(Stdio::null()).stderr(Stdio::null());
        let mut up = Self { child: command.spawn()?, http: None, _folder: folder };
        let contents = tokio::time::timeout(READY_MAX, async {
            while !ready.exists() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            fs::read_to_string(&ready)
        });
        let ready: Value = serde_json::from_str(&contents.await??)?;
        up.http = ready.get("metrics").and_then(Value::as_str).map(str::to_owned);
        let servers = ready.get("servers").and_then(Value::as_array).into_iter().flatten();
        let addresses: Vec<_> = servers.filter_map(|server| server.get("bigtable")?.as_str()).collect();
        Ok((up, addresses.join(",")))
    }

    /// The sum of a counter over all labels, from its metrics.
    #[allow(dead_code, clippy::allow_attributes, reason = "not every measurement needs it")]
    pub(crate) async fn counter(&self, name: &str) -> Result<u64, Box<dyn Error>> {
        let address = self.http.as_deref().ok_or("the program reported no HTTP port")?;
        let mut connection = TcpStream::connect(address).await?;
        connection.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").await?;
        let mut page = String::new();
        connection.read_to_string(&mut page).await?;
        let samples = page.lines().filter(|line| line.split(['{', ' ']).next() == Some(name));
        let values: Vec<u64> = samples.filter_map(|line| line.rsplit(' ').next()?.parse().ok()).collect();
        if values.is_empty() {
            return Err(format!("the metrics have no {name}").into());
        }
        Ok(values.iter().sum())
    }

    /// The id of its process.
    #[allow(dead_code, clippy::allow_attributes, reason = "not every measurement needs it")]
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
