//! What a new user meets: the ready file of `ebla up`, the verbs of cbt, events, the registration of the cluster, the traffic of `ebla demo`.

#![expect(clippy::unwrap_used, reason = "a test may fail, and then says where")]

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;

use crate::support::{self, Process, Up, run};

/// Readings of a state that arrives by itself, with a pause after each.
const ATTEMPTS: usize = 6_000;

fn json(address: &str, arguments: &[&str]) -> Value {
    serde_json::from_str(&run(address, arguments)).unwrap()
}

/// The exit code and stderr.
fn fails(address: &str, arguments: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(support::ebla()).args(arguments).env("EBLA_ADDR", address).output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

/// Repeats a command until what it prints as JSON is as expected.
fn until(address: &str, arguments: &[&str], is_expected: impl Fn(&Value) -> bool) -> Value {
    let found = (0..ATTEMPTS).find_map(|_| {
        let shown = json(address, arguments);
        support::pause();
        Some(shown).filter(&is_expected)
    });
    found.unwrap()
}

fn names(events: &Value) -> BTreeSet<&str> {
    events.as_array().unwrap().iter().map(|event| event["event"].as_str().unwrap()).collect()
}

#[test]
fn the_verbs_of_cbt_create_write_read_and_delete() {
    let folder = tempfile::tempdir().unwrap();
    let up = Up::start(&folder.path().join("data"), &["--cluster-name", "first-run"]);
    let address = up.addresses[1].as_str();
    assert_eq!((&up.ready()["event"], &up.ready()["cluster"]), (&Value::from("ready"), &Value::from("first-run")));
    assert!(up.ready()["console"].as_str().unwrap().starts_with("http://127.0.0.1:"), "{}", up.ready());

    run(address, &["createtable", "web", "families=anchor,contents:maxversions=3", "splits=m"]);
    assert_eq!(run(address, &["ls"]), "web\n");
    run(address, &["createfamily", "web", "language"]);
    run(address, &["setgcpolicy", "web", "contents", "maxage=30d", "or", "maxversions=1"]);
    let families = run(address, &["ls", "web"]);
    assert!(families.contains("maxage=30d || maxversions=1") && families.contains("language"), "{families}");
    for row in ["com.cnn.www", "com.example", "org.kernel"] {
        run(address, &["set", "web", row, "anchor:a=1", "anchor:b=2", "language:=en"]);
    }
    assert_eq!(run(address, &["count", "web", "prefix=com."]), "2\n");
    let read = run(address, &["read", "web", "prefix=com.", "columns=anchor:b,language:", "-o", "raw"]);
    let columns: Vec<_> = read.lines().map(|line| line.split('\t').take(3).collect::<Vec<_>>().join(" ")).collect();
    let expected = ["com.cnn.www anchor b", "com.cnn.www language ", "com.example anchor b", "com.example language "];
    assert_eq!(columns, expected);
    let (code, said) = fails(address, &["read", "web", "count=1", "reversed=true"]);
    assert!(code == Some(0) && said.contains("continue with end=org.kernel"), "{said}");
    let row = json(address, &["lookup", "web", "com.cnn.www", "columns=anchor:.*", "-o", "json"]);
    assert_eq!(row[0]["cells"].as_array().unwrap().len(), 2);
    assert_eq!(fails(address, &["lookup", "web", "com.cnn.www", "columns=contents:"]).0, Some(3), "no such cells");
    let (code, said) = fails(address, &["read", "web", "pefix=com."]);
    assert!(code == Some(2) && said.contains("prefix="), "{said}");

    run(address, &["deletecolumn", "web", "com.cnn.www", "anchor", "a"]);
    run(address, &["deleterow", "web", "org.kernel"]);
    assert_eq!(run(address, &["count", "web"]), "2\n");
    run(address, &["deletefamily", "web", "language", "--yes"]);
    assert_eq!(fails(address, &["deleteallrows", "web"]).0, Some(2), "without a terminal it needs --yes");
    run(address, &["deleteallrows", "web", "--yes"]);
    assert_eq!(run(address, &["count", "web"]), "0\n");

    let events = until(address, &["events", "-o", "json"], |events| names(events).contains("schema-changed"));
    for name in ["master-elected", "table-created", "created"] {
        assert!(names(&events).contains(name), "{name} in {events}");
    }
    let of_table = json(address, &["events", "web", "-o", "json"]);
    assert!(names(&of_table).contains("table-created") && !names(&of_table).contains("master-elected"), "{of_table}");
    run(address, &["deletetable", "web", "--yes"]);
    let listed = json(address, &["cluster", "list", "--addr", &up.addresses.join(","), "-o", "json"]);
    assert_eq!(listed.as_array().unwrap().len(), 1, "the addresses are of one cluster: {listed}");
    let described = until(address, &["cluster", "describe", "-o", "json"], |shown| shown["registered"] == true);
    assert_eq!((&described["name"], &described["servers"]), (&Value::from("first-run"), &Value::from(3)));
    up.stop();
}

#[test]
fn a_demo_has_traffic_and_names() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let mut command = Command::new(support::ebla());
    command.args(["demo", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--mounttable", "127.0.0.1:0"]);
    // Without apt the data set is the small sample that ships with the program.
    command.args(["--traffic", "200", "--data"]).arg(&data).env("PATH", folder.path());
    let demo = Process::start_command(&data, command);
    let address = demo.ready["bigtable"].as_str().unwrap().to_owned();
    let rows = (0..ATTEMPTS).find_map(|_| {
        let counted =
            Command::new(support::ebla()).args(["count", "weather"]).env("EBLA_ADDR", &address).output().unwrap();
        support::pause();
        let rows: u64 = String::from_utf8(counted.stdout).unwrap().trim().parse().unwrap_or(0);
        Some(rows).filter(|rows| *rows > 0)
    });
    assert!(rows.unwrap() <= 5 * 24 * 60);
    let root = demo.ready["mounttable"].as_str().unwrap();
    let names = (0..ATTEMPTS).find_map(|_| {
        let listed = Command::new(support::ebla()).args(["mt", "--root", root, "glob", "demo/..."]).output().unwrap();
        support::pause();
        Some(String::from_utf8(listed.stdout).unwrap()).filter(|names| names.contains("demo/tablet-servers/3"))
    });
    assert!(names.unwrap().contains("demo/tablet-servers/1"));
    demo.stop();
}
