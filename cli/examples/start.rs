//! Start time and memory of an idle cluster, compared with Google's emulator in the same run.
//!
//! ```sh
//! cargo run --release -p ebla-cli --example start -- target/release/ebla [path/to/cbtemulator] [rounds]
//! ```
//!
//! Ready means, for `ebla up --ephemeral`: its ready file is there, so every tablet serves; for the emulator: its port
//! takes connections. Memory is the resident set three seconds later.

use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use ebla_runtime::Clock;
use ebla_workload::bench::processes::resident;

/// What one start gave.
struct Start {
    ready: Duration,
    resident_mebibytes: f64,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some(ebla) = arguments.first() else {
        eprintln!("usage: start EBLA [CBTEMULATOR] [ROUNDS]");
        return;
    };
    let emulator = arguments.get(1).filter(|path| Path::new(path).exists());
    let rounds: usize = arguments.get(2).and_then(|text| text.parse().ok()).unwrap_or(5);
    let mut ours = Vec::new();
    let mut theirs = Vec::new();
    for round in 0..rounds {
        ours.extend(start_ebla(ebla));
        if let Some(emulator) = emulator {
            theirs.extend(start_emulator(emulator, 21_000 + u16::try_from(round).unwrap_or(0)));
        }
    }
    println!("                       ready ms (median, max)   resident MiB (median)");
    show("ebla up --ephemeral", ours);
    show("cbtemulator", theirs);
}

fn show(name: &str, mut starts: Vec<Start>) {
    starts.sort_by_key(|start| start.ready);
    let (Some(middle), Some(last)) = (starts.get(starts.len() / 2), starts.last()) else { return };
    let mut memory: Vec<f64> = starts.iter().map(|start| start.resident_mebibytes).collect();
    memory.sort_by(f64::total_cmp);
    println!(
        "{name:<22} {:>9} {:>9} {:>20.0}",
        middle.ready.as_millis(),
        last.ready.as_millis(),
        memory.get(memory.len() / 2).copied().unwrap_or(f64::NAN)
    );
}

fn start_ebla(program: &str) -> Option<Start> {
    let folder = tempfile::tempdir().ok()?;
    let ready = folder.path().join("ready");
    let mut command = Command::new(program);
    command.args(["up", "--ephemeral", "--listen", "127.0.0.1:0", "--ready-file"]).arg(&ready);
    measure(&mut command, || ready.exists())
}

fn start_emulator(program: &str, port: u16) -> Option<Start> {
    let mut command = Command::new(program);
    command.arg(format!("--port={port}"));
    measure(&mut command, || TcpStream::connect(("127.0.0.1", port)).is_ok())
}

fn measure(command: &mut Command, is_ready: impl Fn() -> bool) -> Option<Start> {
    let clock = Clock::system();
    let started = clock.monotonic();
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()?;
    while !is_ready() && child.try_wait().ok()?.is_none() {
        wait(Duration::from_millis(1));
    }
    let ready = clock.monotonic().saturating_sub(started);
    wait(Duration::from_secs(3));
    let resident_mebibytes = resident(child.id()).map(mebibytes);
    child.kill().ok()?;
    child.wait().ok()?;
    Some(Start { ready, resident_mebibytes: resident_mebibytes? })
}

#[expect(clippy::cast_precision_loss, reason = "no process holds 2^52 bytes")]
fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

#[expect(
    clippy::disallowed_methods,
    reason = "the state of a process is visible only through files and ports, so it must be polled"
)]
fn wait(time: Duration) {
    std::thread::sleep(time);
}
