//! Processes that take part: started, waited for, ended by their ids.

use std::error::Error;
use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

/// How long a process may take until it answers.
const READY_MAX: Duration = Duration::from_secs(60);

/// Starts Ebla so and waits until it serves; returns the contents of its ready file, which is in `folder`.
pub(super) fn serve(program: &Path, arguments: &[&OsStr], folder: &Path) -> Result<(Value, Running), Box<dyn Error>> {
    let ready = folder.join("ready");
    let mut command = Command::new(program);
    command.args(arguments).arg("--ready-file").arg(&ready).stdout(Stdio::null()).stderr(Stdio::null());
    let running = Running(command.spawn()?);
    wait_for(|| ready.exists())?;
    Ok((serde_json::from_str(&fs::read_to_string(&ready)?)?, running))
}

/// Ends its process when dropped.
pub(super) struct Running(pub(super) Child);

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the state of a process is visible only through files and ports, so it must be polled"
)]
pub(super) fn wait_for(is_ready: impl Fn() -> bool) -> Result<(), &'static str> {
    let pause = Duration::from_millis(100);
    let mut left = READY_MAX;
    while !is_ready() {
        left = left.checked_sub(pause).ok_or("it does not answer")?;
        std::thread::sleep(pause);
    }
    Ok(())
}
