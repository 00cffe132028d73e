//! A PostgreSQL of three copies: a primary that answers when it and one of its two standbys have a write on disk, which is
//! what a majority of three is elsewhere.

use std::fs;
use std::io;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::systems::{Running, wait_for};
use crate::{Start, Started};

const PORT: u16 = 21_188;
const STANDBYS: u16 = 2;
/// The user that it runs as where this runs as root, which it refuses to.
const USER: &str = "postgres";

/// Beside Debian's own settings; memory and log as a careful operator would have them on such a machine.
const SETTINGS: &str = "
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
max_connections = 300
shared_buffers = '512MB'
max_wal_size = '4GB'
wal_level = replica
hot_standby = on
synchronous_commit = on
synchronous_standby_names = 'ANY 1 (standby1, standby2)'
";

/// Its address, and a guard that stops it when dropped.
pub(super) fn start() -> Start {
    let programs = programs().ok_or("it is not installed (the Debian package postgresql)")?;
    let folder = tempfile::tempdir()?;
    if is_root() {
        let id = Command::new("id").args(["-u", USER]).output()?;
        chown(folder.path(), Some(String::from_utf8(id.stdout)?.trim().parse()?), None)?;
    }
    let program = |name: &str| as_user(&programs.join(name));
    let primary = folder.path().join("0");
    finish(program("initdb").args(["-U", USER, "-A", "trust", "-E", "UTF8", "--no-locale", "-D"]).arg(&primary))?;
    let mut running = vec![serve(program("postgres"), &primary, PORT, "primary")?];
    wait_for(|| is_ready(&programs, PORT))?;
    for number in 1..=STANDBYS {
        let data = folder.path().join(number.to_string());
        let copy = ["-h", "127.0.0.1", "-U", USER, "-R", "-X", "stream", "--checkpoint=fast", "-p"];
        finish(program("pg_basebackup").args(copy).arg(PORT.to_string()).arg("-D").arg(&data))?;
        running.push(serve(program("postgres"), &data, PORT + number, &format!("standby{number}"))?);
        wait_for(|| is_ready(&programs, PORT + number))?;
    }
    Ok(Started::new(format!("postgres://127.0.0.1:{PORT}"), (running, folder)))
}

/// The newest that Debian has installed.
fn programs() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?.flatten();
    let number = |path: &PathBuf| path.file_name()?.to_str()?.parse::<u32>().ok();
    let newest = versions.map(|entry| entry.path()).max_by_key(number)?.join("bin");
    newest.join("postgres").exists().then_some(newest)
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// It stays the same process, so that it can be ended and its time be counted.
fn as_user(program: &Path) -> Command {
    if !is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args([&format!("--reuid={USER}"), &format!("--regid={USER}"), "--clear-groups"]).arg(program);
    command
}

fn serve(mut program: Command, data: &Path, port: u16, name: &str) -> io::Result<Running> {
    // The primary identifies a standby by its cluster_name. The last setting of a file is used.
    let settings = format!("{SETTINGS}port = {port}\ncluster_name = '{name}'\n");
    let file = data.join("postgresql.conf");
    let before = fs::read_to_string(&file)?;
    fs::write(&file, before + &settings)?;
    program.arg("-D").arg(data).stdout(Stdio::null()).stderr(Stdio::null());
    program.spawn().map(Running)
}

fn is_ready(programs: &Path, port: u16) -> bool {
    let mut ask = Command::new(programs.join("pg_isready"));
    ask.args(["-q", "-h", "127.0.0.1", "-p", &port.to_string()]);
    ask.status().is_ok_and(|status| status.success())
}

fn finish(command: &mut Command) -> Result<(), Box<dyn std::error::Error>> {
    let done = command.stdout(Stdio::null()).output()?;
    if done.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&done.stderr).into_owned().into()) }
}
