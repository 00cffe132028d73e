//! Google's own clients against `ebla up`, through each of its three servers: cbt and the Python client, unchanged. And
//! what documents tell users to do, as it stands there: the tutorial, and snippets for clients.

#![expect(clippy::unwrap_used, reason = "a test may fail, and then says where")]

use crate::support;
#[path = "support/tutorial.rs"]
mod tutorial;

use std::path::Path;
use std::process::Command;

use support::Up;

/// A document of the book.
fn document(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(name)
}

#[test]
fn the_tutorial_works_as_it_is_written() {
    tutorial::run(&document("learn/tutorial.md"), "");
}

#[test]
fn the_snippets_for_python_work_as_they_are_written() {
    tutorial::run(&document("learn/clients.md"), "ebla up > up.log 2>&1 &\nebla wait\n");
}

#[test]
fn the_first_program_of_the_readme_works_as_it_is_written() {
    tutorial::run(&document("../README.md"), "");
}

#[test]
fn googles_python_client_works_through_each_server() {
    let Some(python) = support::python() else {
        eprintln!("skipped: no Python client; `make python` prepares one");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let up = Up::start(&folder.path().join("data"), &[]);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/clients/python_client.py");
    for (number, address) in up.addresses.iter().enumerate() {
        let table = format!("python-{number}");
        let output = Command::new(&python).args([script, address, &table]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && said.contains("all done"),
            "through {address}:\n{said}\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

/// Runs cbt against `address`; its answer.
fn cbt(address: &str, arguments: &[&str]) -> String {
    let output = Command::new("cbt")
        .args(["-project", "dev", "-instance", "dev"])
        .args(arguments)
        .env("BIGTABLE_EMULATOR_HOST", address)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cbt {} through {address}: {said}", arguments.join(" "));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn cbt_works_through_each_server() {
    if Command::new("cbt").arg("version").output().is_err() {
        eprintln!("skipped: cbt is not installed; it comes with the Google Cloud CLI");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let up = Up::start(&folder.path().join("data"), &[]);
    for (number, address) in up.addresses.iter().enumerate() {
        let table = format!("cbt-{number}");
        let table = table.as_str();
        cbt(address, &["createtable", table]);
        cbt(address, &["createfamily", table, "anchor"]);
        cbt(address, &["createfamily", table, "contents"]);
        assert!(cbt(address, &["ls"]).contains(table));
        let families = cbt(address, &["ls", table]);
        assert!(families.contains("anchor") && families.contains("contents"), "{families}");
        for row in ["com.cnn.www", "com.example", "org.kernel"] {
            cbt(address, &["set", table, row, "anchor:cnnsi.com=CNN", "contents:=<html>"]);
        }
        let all = cbt(address, &["read", table]);
        assert!(all.contains("com.cnn.www") && all.contains("org.kernel") && all.contains("<html>"), "{all}");
        let some = cbt(address, &["read", table, "prefix=com.", "count=1"]);
        assert!(some.contains("com.cnn.www") && !some.contains("com.example"), "{some}");
        let one = cbt(address, &["lookup", table, "com.example", "columns=anchor:cnnsi.com", "cells-per-column=1"]);
        assert!(one.contains("CNN") && !one.contains("<html>"), "{one}");
        assert_eq!(cbt(address, &["count", table]).trim(), "3");
        cbt(address, &["deleterow", table, "com.example"]);
        assert_eq!(cbt(address, &["count", table]).trim(), "2");
        let counts = format!("{table}-counts");
        let families = "families=total:maxversions=1:intsum,users:maxversions=1:inthll";
        cbt(address, &["createtable", &counts, families]);
        for user in ["101", "102", "101"] {
            let (total, users) = (format!("total:q={user}@1000"), format!("users:q={user}@1000"));
            cbt(address, &["addtocell", &counts, "page", &total, &users]);
        }
        let page = cbt(address, &["lookup", &counts, "page"]);
        // 304, and the beginning of a sketch of two.
        assert!(page.contains(r"\x00\x010") && page.contains(r"\bp\x10\x02"), "{page}");
        cbt(address, &["deletetable", &counts]);
        cbt(address, &["deletetable", table]);
        assert!(!cbt(address, &["ls"]).contains(table));
    }
}
