//! Starts `ebla up` and, where it is installed, Google's emulator, and runs `ebla bench` on both in alternation.
//!
//! ```sh
//! cargo run --release -p ebla-cli --example beside -- target/release/ebla [path/to/cbtemulator] [bench arguments…]
//! ```

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Far from the ports that people use.
const OUR_ADDRESS: &str = "127.0.0.1:21186";
const EMULATOR_PORT: u16 = 21_187;

/// Ends its process when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

fn main() -> std::io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some((ebla, rest)) = arguments.split_first() else {
        eprintln!("usage: beside EBLA [CBTEMULATOR] [BENCH ARGUMENTS]");
        return Ok(());
    };
    let (emulator, more) = rest.split_first().map_or((None, rest), |(path, more)| (Some(path), more));
    let folder = tempfile::tempdir()?;
    let ready = folder.path().join("ready");
    let data = folder.path().join("data");
    let mut up = Command::new(ebla);
    up.args(["up", "--listen", OUR_ADDRESS, "--data"]).arg(&data).arg("--ready-file").arg(&ready);
    let _up = Running(up.stderr(Stdio::null()).spawn()?);
    while !ready.exists() {
        wait();
    }
    let mut bench = Command::new(ebla);
    bench.args(["bench", "--addr", OUR_ADDRESS]).args(more);
    let mut _emulator = None;
    if let Some(path) = emulator.filter(|path| Path::new(path).exists()) {
        let port = format!("--port={EMULATOR_PORT}");
        _emulator = Some(Running(Command::new(path).arg(port).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?));
        wait();
        bench.arg(format!("--peer=emulator=127.0.0.1:{EMULATOR_PORT}"));
    }
    bench.status().map(drop)
}

#[expect(clippy::disallowed_methods, reason = "a process tells nothing but through files: polling is all there is")]
fn wait() {
    std::thread::sleep(Duration::from_millis(200));
}
