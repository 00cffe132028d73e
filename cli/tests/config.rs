//! Configuration files: a process that is started with one, its reload, `ebla config`, and the Debian package with its units.

#![expect(clippy::unwrap_used, reason = "a test may fail, and then says where")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use ebla_tests::containers;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::{Process, ebla, pause, run};

/// Attempts to find a line in a log, a pause apart.
const ATTEMPTS: usize = 2_000;

fn output(arguments: &[&str]) -> Output {
    let mut command = Command::new(ebla());
    command.args(arguments).env_remove("EBLA_CONFIG").env_remove("EBLA_LOG").output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Waits until the log has a line with this text.
fn wait_for(log: &Path, text: &str) {
    let found = (0..ATTEMPTS).any(|_| {
        pause();
        fs::read_to_string(log).is_ok_and(|log| log.contains(text))
    });
    assert!(found, "{text:?} is not in\n{}", fs::read_to_string(log).unwrap_or_default());
}

#[test]
fn a_process_runs_with_its_file_and_reads_it_again() {
    let folder = tempfile::tempdir().unwrap();
    let (file, data) = (folder.path().join("up.toml"), folder.path().join("data"));
    let write = |rest: &str| {
        let fixed = format!("listen = \"127.0.0.1:0\"\ndata = {:?}\nservers = 1\n", data.to_str().unwrap());
        fs::write(&file, fixed + rest).unwrap();
    };
    write("split-load = 0\n");
    let process = Process::start(&folder.path().join("up"), &["up".as_ref(), "--config".as_ref(), file.as_ref()]);
    let address = process.ready["bigtable"].as_str().unwrap().to_owned();
    let servers = run(&address, &["server", "list", "-o", "json"]);
    assert_eq!(serde_json::from_str::<Value>(&servers).unwrap().as_array().unwrap().len(), 1);
    assert!(data.is_dir());

    let log = folder.path().join("up.log");
    let id = Pid::from_raw(i32::try_from(process.id()).unwrap()).unwrap();
    let reload = || kill_process(id, Signal::HUP).unwrap();
    write("split-load = 5\nlog-level = \"debug\"\n");
    reload();
    wait_for(&log, "ebla: configuration reloaded: log-level = debug; restart for split-load");
    run(&address, &["table", "create", "t", "--family", "f"]);
    wait_for(&log, "DEBUG ");
    write("split-laod = 5\n");
    reload();
    wait_for(&log, "`ebla up` has no option split-laod; did you mean split-load?");
    // It goes on to serve.
    run(&address, &["row", "set", "t", "r", "f:c=v"]);
    process.stop();
}

#[test]
fn a_file_that_cannot_be_used_is_refused_before_anything_starts() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("server.toml");
    let config = format!("--config={}", file.display());
    fs::write(&file, "listne = \"127.0.0.1:0\"\n").unwrap();
    for arguments in [&["tablet-server", &config][..], &["config", "show", "tablet-server", &config]] {
        let output = output(arguments);
        assert_eq!(output.status.code(), Some(2));
        let expected = format!(
            "ebla: configuration file {}, line 1: `ebla tablet-server` has no option listne; did you mean listen?\n",
            file.display()
        );
        assert_eq!(stderr(&output), expected);
    }
    let output = output(&["up", "--config", "/no/such/file.toml"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("/no/such/file.toml: No such file"), "{}", stderr(&output));
}

#[test]
fn config_show_says_where_each_value_comes_from() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("master.toml");
    fs::write(&file, "# The master.\nlisten = \"127.0.0.1:8085\"\nbalance = false\nreplicas = 5\n").unwrap();
    let mut command = Command::new(ebla());
    command.args(["config", "show", "--origin", "master", "--replicas", "3", "--config"]).arg(&file);
    let output = command.env("EBLA_ETCD", "http://127.0.0.1:1").env("EBLA_DATA", "/d").output().unwrap();
    let shown = String::from_utf8(output.stdout).unwrap();
    let row = |option: &str| {
        let line = shown.lines().find(|line| line.starts_with(&format!("{option} "))).unwrap_or_default();
        line.split_whitespace().skip(1).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(row("listen"), ["127.0.0.1:8085".to_owned(), format!("{}:2", file.display())], "{shown}");
    assert_eq!(row("balance"), ["off".to_owned(), format!("{}:3", file.display())]);
    assert_eq!(row("replicas"), ["3", "flag"]);
    assert_eq!(row("etcd"), ["http://127.0.0.1:1", "EBLA_ETCD"]);
    assert_eq!(row("lease-ttl"), ["10", "default"]);
    assert_eq!(row("advertise"), ["-", "-"]);
}

#[test]
fn the_units_of_systemd_are_valid() {
    let mut systemd = Command::new("systemd-analyze");
    if !systemd.arg("--version").stdout(Stdio::null()).status().is_ok_and(|status| status.success()) {
        eprintln!("skipped: systemd-analyze is not installed");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let units = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/systemd");
    let mut names = Vec::new();
    for unit in fs::read_dir(units).unwrap().map(|entry| entry.unwrap().path()) {
        let text = fs::read_to_string(&unit).unwrap().replace("/usr/bin/ebla", ebla());
        assert!(text.contains(ebla()), "{}", unit.display());
        let copy = folder.path().join(unit.file_name().unwrap());
        fs::write(&copy, text).unwrap();
        let output = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&copy).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{}: {}", unit.display(), stderr(&output));
        names.push(unit.file_name().unwrap().to_string_lossy().into_owned());
    }
    names.sort();
    assert_eq!(names, ["ebla-master.service", "ebla-mounttable.service", "ebla-tablet-server.service", "ebla.service"]);
}

/// Installs the package, runs a cluster with its file as its user, reloads and stops it, and removes the package.
const INSTALL: &str = r#"
set -eu
dpkg -i /package.deb >/dev/null
test "$(stat -c %U:%a /var/lib/ebla)" = ebla:750
for role in master tablet-server mounttable; do test -f /etc/ebla/$role.toml; done
ebla config show --origin up --config /etc/ebla/up.toml | grep '^data *'
cat >> /etc/ebla/up.toml <<END
listen = "127.0.0.1:8086"
END
setpriv --reuid ebla --regid ebla --clear-groups ebla up --config /etc/ebla/up.toml --ready-file /tmp/ready 2>/tmp/log &
for i in $(seq 600); do test -s /tmp/ready && break; sleep 0.1; done
test -s /tmp/ready || { cat /tmp/log; exit 1; }
ebla table create t --family f
ebla row set t r f:c=v
kill -HUP $!
for i in $(seq 100); do grep -q 'nothing has changed' /tmp/log && break; sleep 0.1; done
grep 'nothing has changed' /tmp/log
kill -TERM $!; wait $!
dpkg -i /package.deb >/dev/null
grep '^listen = "127.0.0.1:8086"' /etc/ebla/up.toml
dpkg --purge ebla 2>/dev/null | grep 'not removed'
test -d /var/lib/ebla/up && test ! -e /usr/bin/ebla && test ! -e /etc/ebla/up.toml
echo removed
"#;

#[test]
fn the_package_is_installed_used_and_removed() {
    if let Some(reason) = containers::missing() {
        eprintln!("skipped: {reason}");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let script = |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(name);
    let done = |command: &mut Command| {
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{command:?}: {}\n{said}{}", output.status, stderr(&output));
        said
    };
    let package = done(Command::new(script("package.sh")).arg(ebla()).arg(folder.path()));
    let package = PathBuf::from(package.trim());
    assert!(package.extension().is_some_and(|extension| extension == "deb"), "{}", package.display());

    let image = format!("ebla-test-package-{}", std::process::id());
    done(Command::new(script("image.sh")).args([ebla(), &image]));
    let mount = format!("{}:/package.deb:ro", package.display());
    let mut docker = Command::new("docker");
    docker.args(["run", "--rm", "--init", "--network", "none", "--user", "0", "--volume", &mount, &image]);
    // The image has the program and its user; what the package installs must be its own.
    let prepare = "rm /usr/local/bin/ebla; userdel ebla; rm -rf /var/lib/ebla /etc/ebla; cd /;";
    let said = docker.args(["bash", "-c", &format!("{prepare}{INSTALL}")]).output();
    done(Command::new("docker").args(["image", "rm", "--force", &image]));
    let output = said.unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && said.ends_with("removed\n"), "{said}{}", stderr(&output));
    assert!(said.contains("/var/lib/ebla/up") && said.contains("/etc/ebla/up.toml:"), "{said}");
}
