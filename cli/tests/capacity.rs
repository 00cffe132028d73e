//! Resources that run out: what does not fit is refused with numbers, and everything else goes on.

#![expect(clippy::unwrap_used, reason = "a test may fail, and then says where")]

use crate::support;

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use bytes::Bytes;
use ebla_client::Client;
use ebla_model::error::{Error, Reason};
use ebla_model::key::RowKey;
use ebla_model::mutation::{Mutation, WriteTime};
use ebla_model::rmw::{Operation, Rule};
use ebla_model::schema::TableName;
use ebla_runtime::Runtime;
use rustix::fs::{FallocateFlags, fallocate, statvfs};
use serde_json::Value;
use support::{Up, run};

/// Polls of a state that changes with a sample of the disk: at least twenty seconds.
const POLLS: usize = 2_000;

/// The exit code of a command and what it printed on stderr.
fn outcome(address: &str, arguments: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(support::ebla()).args(arguments).env("EBLA_ADDR", address).output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

/// Checks that the command is refused for lack of a resource, with these parts in its message.
fn assert_refused(address: &str, arguments: &[&str], parts: &[&str]) {
    let (code, said) = outcome(address, arguments);
    assert_eq!(code, Some(1), "{said}");
    for part in parts {
        assert!(said.contains(part), "{part:?} is missing in {said}");
    }
}

fn json(address: &str, arguments: &[&str]) -> Value {
    serde_json::from_str(&run(address, arguments)).unwrap()
}

fn set(row: &str) -> [&str; 5] {
    ["row", "set", "t", row, "f:q=value"]
}

/// The calls of the data API while writes are refused: only those that store are.
async fn mixed_calls(address: &str) {
    let client = Client::endpoint(address, Runtime::system("test"));
    let name = TableName::from_parts("dev", "dev", "t").unwrap();
    let table = client.table(&name);
    let (row, family) = (RowKey::new("kept"), "f".to_owned());
    let store = Mutation::SetCell {
        family: family.clone(),
        qualifier: Bytes::from_static(b"q"),
        timestamp: WriteTime::Server,
        value: Bytes::from_static(b"other"),
    };
    let refused = |error: Error| error.reason == Reason::ResourceExhausted && error.message.contains("disk space");
    let rows = [(row.clone(), vec![store.clone()]), (RowKey::new("deleted"), vec![Mutation::DeleteRow])];
    let results = table.mutate_rows(&rows).await.unwrap();
    let [stored, deleted] = <[_; 2]>::try_from(results).unwrap();
    assert!(stored.is_err_and(refused) && deleted.is_ok(), "each row has a result of its own");
    let checked = table.check_and_mutate(&row, None, &[store], &[]).await;
    assert!(checked.is_err_and(refused));
    let delete = Mutation::DeleteFamily { family: family.clone() };
    assert!(table.check_and_mutate(&RowKey::new("deleted"), None, &[delete], &[]).await.is_ok());
    let rule = Rule { family, qualifier: Bytes::from_static(b"n"), operation: Operation::Increment(1) };
    assert!(table.read_modify_write(&row, &[rule]).await.is_err_and(refused));
    client.admin().drop_row_range(&name, &RowKey::new("dropped")).await.unwrap();
}

#[test]
fn below_the_reserve_only_writes_that_store_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let up = Up::start(&data, &["--servers", "1"]);
    let address = up.addresses[0].clone();
    run(&address, &["table", "create", "t", "--family", "f"]);
    run(&address, &["table", "create", "old", "--family", "f"]);
    for row in ["kept", "deleted", "dropped"] {
        run(&address, &set(row));
    }
    let status = json(&address, &["status", "-o", "json"]);
    let server = &status["servers"][0];
    assert_eq!((&status["verdict"], &server["refuses_writes"]), (&Value::from("healthy"), &Value::Null));
    for known in
        ["disk_free_bytes", "disk_total_bytes", "files_open", "files_limit", "memory_bytes", "memory_limit_bytes"]
    {
        assert!(server[known].as_u64().is_some_and(|number| number > 0), "{known}: {server}");
    }
    up.stop();

    // More than any disk has.
    let up = Up::start(&data, &["--servers", "1", "--disk-reserve", "1000000G"]);
    let address = up.addresses[0].clone();
    assert_refused(&address, &set("more"), &["tablet server 1 refuses writes", "are free", "976.5 TiB are reserved"]);
    // Nothing of a refused table exists, so its name is free afterwards.
    let create = ["table", "create", "more", "--family", "f", "--split", "m"];
    assert_refused(
        &address,
        &create,
        &["no room for table", "with 2 tablets: server 1 needs", "of disk space", "are free"],
    );
    assert_eq!(run(&address, &["table", "list"]), "old\nt\n");
    assert_refused(
        &address,
        &["tablet", "split", "t", "--at", "m"],
        &["no room for a split of tablet", "of disk space"],
    );
    let status = run(&address, &["status"]);
    assert!(status.starts_with("unavailable: tablet server 1 refuses writes: disk ("), "{status}");
    assert!(status.contains("up, refuses writes: disk"), "{status}");
    assert_eq!(json(&address, &["status", "-o", "json"])["servers"][0]["refuses_writes"], "disk");
    // Reads, and everything that frees space.
    assert!(run(&address, &["row", "get", "t", "kept"]).contains("value"));
    run(&address, &["row", "delete", "t", "deleted"]);
    support::block_on(mixed_calls(&address));
    run(&address, &["table", "delete", "old", "--yes"]);
    assert_eq!(run(&address, &["table", "list"]), "t\n");
    up.stop();

    let up = Up::start(&data, &["--servers", "1", "--disk-reserve", "1M"]);
    let address = up.addresses[0].clone();
    run(&address, &set("more"));
    run(&address, &create);
    let rows = json(&address, &["row", "scan", "t", "-o", "json"]);
    let keys: Vec<_> = rows.as_array().unwrap().iter().map(|row| row["key"].as_str().unwrap()).collect();
    assert_eq!(keys, ["a2VwdA==", "bW9yZQ=="], "base64 of kept and more");
}

#[test]
fn a_table_beyond_the_open_files_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let create = ["table", "create", "t", "--family", "f"];
    // Each of three servers would have some more files for one more group, and one group needs 40.
    let up = Up::start_with_files(&folder.path().join("few"), 180);
    let address = up.addresses[0].as_str();
    assert_refused(
        address,
        &create,
        &["no room for table", "open files and may use", "of 180 are open", "3 servers share", "ulimit -n"],
    );
    assert_eq!(run(address, &["table", "list"]), "");
    up.stop();

    let up = Up::start_with_files(&folder.path().join("enough"), 1_024);
    let address = up.addresses[0].as_str();
    let keys: Vec<String> = (1..300).map(|number| format!("{number:03}")).collect();
    let splits = keys.iter().flat_map(|key| ["--split", key.as_str()]);
    run(address, &create.iter().copied().chain(splits).collect::<Vec<_>>());
    for row in ["000", "150", "299"] {
        run(address, &set(row));
    }
    assert!(run(address, &["row", "get", "t", "150"]).contains("value"));
}

/// A file system in memory of its own, unmounted when dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    /// One of 512 MiB with an empty folder for data; `None` without the privilege to mount, which it prints.
    fn with_data(folder: &Path) -> Option<(Self, PathBuf)> {
        let Some(disk) = Self::mount(&folder.join("disk"), 512) else {
            eprintln!("skipped: mounting a file system needs root");
            return None;
        };
        let data = disk.0.join("data");
        std::fs::create_dir(&data).unwrap();
        Some((disk, data))
    }

    /// `None` without the privilege to mount.
    fn mount(at: &Path, mebibytes: u64) -> Option<Self> {
        std::fs::create_dir(at).unwrap();
        let options = format!("size={mebibytes}m");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(at).output();
        mounted.is_ok_and(|output| output.status.success()).then(|| Self(at.to_owned()))
    }

    fn free_bytes(&self) -> u64 {
        let found = statvfs(&self.0).unwrap();
        found.f_bavail * found.f_frsize
    }

    /// Fills it with a file, up to this many free bytes.
    fn fill(&self, free_bytes: u64) -> PathBuf {
        let path = self.0.join("ballast");
        let ballast = File::create(&path).unwrap();
        fallocate(&ballast, FallocateFlags::empty(), 0, self.free_bytes() - free_bytes).unwrap();
        path
    }

    /// Fills it, up to the last page.
    fn fill_up(&self) -> PathBuf {
        let path = self.fill(1 << 20);
        let mut ballast = File::options().append(true).open(&path).unwrap();
        while ballast.write_all(&[0; 4096]).is_ok() {}
        path
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        drop(Command::new("umount").arg("--lazy").arg(&self.0).status());
    }
}

#[test]
fn writes_are_accepted_again_when_space_was_freed() {
    let folder = tempfile::tempdir().unwrap();
    let Some((disk, data)) = SmallDisk::with_data(folder.path()) else { return };
    let up = Up::start(&data, &["--servers", "1", "--disk-reserve", "64M"]);
    let address = up.addresses[0].as_str();
    run(address, &["table", "create", "t", "--family", "f"]);
    run(address, &set("before"));
    let ballast = disk.fill(32 << 20);
    let refused = (0..POLLS).find_map(|_| {
        support::pause();
        Some(outcome(address, &set("refused")).1).filter(|said| !said.is_empty())
    });
    let refused = refused.unwrap();
    assert!(
        refused.contains("refuses writes for lack of disk space") && refused.contains("64.0 MiB are reserved"),
        "{refused}"
    );
    assert!(run(address, &["row", "get", "t", "before"]).contains("value"));
    run(address, &["row", "delete", "t", "before"]);
    std::fs::remove_file(ballast).unwrap();
    let accepted = (0..POLLS).any(|_| {
        support::pause();
        outcome(address, &set("after")).0 == Some(0)
    });
    assert!(accepted, "writes are not accepted again");
    assert!(run(address, &["row", "get", "t", "after"]).contains("value"));
    assert!(run(address, &["status"]).starts_with("healthy"));
    up.stop();
}

/// Deletes more rows than the rest of a page has room for.
async fn delete_many(address: &str) {
    let client = Client::endpoint(address, Runtime::system("test"));
    let table = client.table(&TableName::from_parts("dev", "dev", "t").unwrap()).with_timeout(Duration::from_secs(120));
    let row = |number: u32| (RowKey::new(format!("row-{number:0100}")), vec![Mutation::DeleteRow]);
    let rows: Vec<_> = (0..500).map(row).collect();
    for deleted in table.mutate_rows(&rows).await.unwrap() {
        deleted.unwrap();
    }
}

#[test]
fn a_server_on_a_full_disk_waits_until_there_is_space() {
    let folder = tempfile::tempdir().unwrap();
    let Some((disk, data)) = SmallDisk::with_data(folder.path()) else { return };
    let flags = ["--servers", "1", "--disk-reserve", "1M"];
    let up = Up::start(&data, &flags);
    let address = up.addresses[0].clone();
    run(&address, &["table", "create", "t", "--family", "f"]);
    run(&address, &set("kept"));
    let ballast = disk.fill_up();
    std::thread::scope(|scope| {
        let deleting = scope.spawn(|| support::block_on(delete_many(&address)));
        (0..POLLS / 10).for_each(|_| support::pause());
        assert!(!deleting.is_finished(), "the commit log has no space");
        assert!(run(&address, &["row", "get", "t", "kept"]).contains("value"), "the server lives");
        std::fs::remove_file(&ballast).unwrap();
        deleting.join().unwrap();
    });
    up.stop();

    let ballast = disk.fill_up();
    std::thread::scope(|scope| {
        let started = scope.spawn(|| Up::start(&data, &flags));
        (0..POLLS / 10).for_each(|_| support::pause());
        assert!(!started.is_finished(), "a server does not start without space");
        std::fs::remove_file(&ballast).unwrap();
        let up = started.join().unwrap();
        assert!(run(&up.addresses[0], &["row", "get", "t", "kept"]).contains("value"));
        up.stop();
    });
}
