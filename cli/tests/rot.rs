//! Bytes of files that change on the disk: what is refused, and what is said about it.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail, and then says where")]

use crate::support;

use std::process::Command;

use support::{Up, run};

#[test]
fn a_flipped_byte_in_the_lock_service_refuses_the_start_and_nothing_is_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let up = Up::start(&data, &["--servers", "1"]);
    run(&up.addresses[0], &["table", "create", "t", "--family", "f"]);
    up.stop();
    let journal = data.join("chubby/journal");
    let sound = std::fs::read(&journal).unwrap();
    let mut damaged = sound.clone();
    damaged[40] ^= 1;
    std::fs::write(&journal, &damaged).unwrap();
    let start = Command::new(support::ebla())
        .args(["up", "--servers", "1", "--listen", "127.0.0.1:0", "--data"])
        .arg(&data)
        .output();
    let start = start.unwrap();
    let said = String::from_utf8_lossy(&start.stderr);
    assert!(!start.status.success(), "{said}");
    for part in ["open the lock service", "chubby/journal", "restore this file from a copy"] {
        assert!(said.contains(part), "{part:?} is missing in {said}");
    }
    assert_eq!(std::fs::read(&journal).unwrap(), damaged);
    std::fs::write(&journal, &sound).unwrap();
    let up = Up::start(&data, &["--servers", "1"]);
    assert_eq!(run(&up.addresses[0], &["table", "list"]), "t\n");
    up.stop();
}
