//! The commands of an operator: doctor, top, --watch, -o wide, debug zip, on a cluster of one process.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may fail, and then says where"
)]

use crate::support;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use support::{Up, documents, run};

/// A row key that bounds a tablet.
const KEY: &str = "hidden-key";
/// The same in base64.
const KEY_BASE64: &str = "aGlkZGVuLWtleQ==";

/// The exit code of a command, and its stdout as JSON.
fn json(address: &str, arguments: &[&str]) -> (i32, Value) {
    let output = Command::new(support::ebla()).args(arguments).env("EBLA_ADDR", address).output().unwrap();
    let shown = String::from_utf8(output.stdout).unwrap();
    (output.status.code().unwrap(), serde_json::from_str(&shown).unwrap_or_else(|error| panic!("{error}: {shown}")))
}

/// The contents of a zip file, by name.
fn contents(file: &Path) -> BTreeMap<String, String> {
    let mut zip = zip::ZipArchive::new(File::open(file).unwrap()).unwrap();
    let names: Vec<String> = zip.file_names().map(|name| name.unwrap().into_owned()).collect();
    let text = |name: String| {
        let mut text = String::new();
        zip.by_name(&name).unwrap().read_to_string(&mut text).unwrap();
        (name, text)
    };
    names.into_iter().map(text).collect()
}

#[test]
fn an_operator_sees_what_a_cluster_does_and_what_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let up = Up::start(&folder.path().join("data"), &["--http", "127.0.0.1:0"]);
    let address = up.addresses[0].clone();
    let address = address.as_str();
    run(address, &["table", "create", "t", "--family", "f", "--split", KEY]);
    run(address, &["set", "t", "a-row", "f:q=the-value"]);
    run(address, &["table", "quota", "set", "t", "--bytes", "1"]);

    doctor(address);
    top(address);
    wide(address);
    watch(address);
    let http = up.ready()["metrics"].as_str().unwrap().to_owned();
    zip_file(address, &http, folder.path());
    up.stop();

    let (code, shown) = json(address, &["doctor", "-o", "json"]);
    assert_eq!(
        (code, &shown["verdict"], &shown["findings"][0]["check"]),
        (6, &"unavailable".into(), &"cluster".into())
    );
    assert!(shown["not_checked"].as_array().unwrap().iter().any(|one| one["check"] == "leader"), "{shown}");
}

/// A quota that is exceeded is found, and nothing else but what the machine of the test may have.
fn doctor(address: &str) {
    let (code, shown) = json(address, &["doctor", "-o", "json"]);
    assert!(code == 5 || code == 6, "{shown}");
    let findings = shown["findings"].as_array().unwrap();
    let quota = findings.iter().find(|finding| finding["check"] == "quota").unwrap();
    assert_eq!(quota["place"], "projects/dev/instances/dev/tables/t");
    assert!(quota["next_step"].as_str().unwrap().contains("ebla table quota set t"), "{quota}");
    // A slow machine may have slow syncs, elections and replicas that are behind.
    let of_machine = [
        "quota",
        "disk",
        "memory",
        "files",
        "local-environment",
        "slow-disk",
        "clock",
        "lag",
        "leader",
        "server",
        "replicas",
    ];
    assert!(findings.iter().all(|one| of_machine.contains(&one["check"].as_str().unwrap())), "{shown}");
    assert_eq!(shown["not_checked"], Value::Array(Vec::new()), "{shown}");
    documents::check("ebla doctor", &shown);
    checks(address);
}

/// The list of the checks is the same in every format.
fn checks(address: &str) {
    let listed = run(address, &["doctor", "--list"]);
    assert!(listed.contains("hot-row") && listed.lines().count() > 20, "{listed}");
    let (code, checks) = json(address, &["doctor", "--list", "-o", "json"]);
    assert_eq!(code, 0, "{checks}");
    documents::check("ebla doctor --list", &checks);
    let checks = checks.as_array().unwrap();
    assert_eq!(checks.len() + 1, listed.lines().count(), "the table has a heading");
    for (one, line) in checks.iter().zip(listed.lines().skip(1)) {
        let (check, what) = (one["check"].as_str().unwrap(), one["what"].as_str().unwrap());
        assert!(line.starts_with(&format!("{check} ")) && line.ends_with(what), "{one}: {line}");
    }
    let lines = run(address, &["doctor", "--list", "-o", "ndjson"]);
    assert_eq!(&documents::check_lines("ebla doctor --list", &lines), checks);
}

fn top(address: &str) {
    let (code, shown) = json(address, &["top", "--once", "-o", "json"]);
    assert_eq!((code, shown["servers"].as_array().unwrap().len()), (0, 3), "{shown}");
    let tables = shown["tables"].as_array().unwrap();
    let table = tables.iter().find(|one| one["table"] == "projects/dev/instances/dev/tables/t").unwrap();
    assert_eq!(table["tablets"], 2, "{shown}");
    assert!(shown["tablets"].as_array().unwrap().iter().any(|one| one["start"] == KEY_BASE64), "{shown}");
    assert!(shown["servers"][0]["connections_limit"].as_u64().unwrap() > 1_000, "{shown}");
    let text = run(address, &["top", "--once"]);
    for heading in ["SERVER ", "TABLE ", "TABLET "] {
        assert_eq!(text.lines().filter(|line| line.starts_with(heading)).count(), 1, "{text}");
    }
    let csv = run(address, &["top", "tables", "-o", "csv"]);
    assert!(csv.starts_with("TABLE,READS/S,WRITES/S,TABLETS,SIZE\n"), "{csv}");
}

fn wide(address: &str) {
    for (arguments, column) in [
        (&["status"][..], "CONNECTIONS"),
        (&["server", "list"], "LAG"),
        (&["table", "list"], "WRITES/S"),
        (&["tablet", "list", "t"], "HOT ROW"),
    ] {
        let shown = run(address, &[arguments, &["-o", "wide"]].concat());
        let heading = shown.lines().find(|line| line.contains(column)).unwrap_or_else(|| panic!("{shown}"));
        assert!(!run(address, arguments).contains(heading), "{heading}");
    }
}

/// Two outputs, then the reader goes away.
fn watch(address: &str) {
    let mut command = Command::new(support::ebla());
    command.args(["table", "list", "--watch=1"]).env("EBLA_ADDR", address).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().take(3).map(Result::unwrap);
    assert_eq!(lines.collect::<Vec<_>>(), ["t", "", "t"]);
    let status = child.wait().unwrap();
    assert!(status.success(), "a closed pipe ends it: {status}");
}

fn zip_file(address: &str, http: &str, folder: &Path) {
    let config = folder.join("x.toml");
    std::fs::write(&config, "servers = 3\ntls-key = \"the-secret\"\n").unwrap();
    let (file, config) = (folder.join("x.zip"), config.to_str().unwrap().to_owned());
    let arguments = ["debug", "zip", file.to_str().unwrap(), "--http", http, "--config", &config];
    run(address, &arguments);
    let parts = contents(&file);
    for name in ["README.txt", "cluster/events.json", "cluster/tables.json", "cluster/tablets.json", "local.json"] {
        assert!(parts.contains_key(name), "{name} is not in {:?}", parts.keys());
    }
    let slow: Value = serde_json::from_str(&parts["cluster/slow.json"]).unwrap();
    assert!(slow["processes"].is_array() && slow["missing"] == serde_json::json!([]), "{slow}");
    let manifest: Value = serde_json::from_str(&parts["manifest.json"]).unwrap();
    for part in manifest["parts"].as_array().unwrap() {
        assert_eq!(part["error"], Value::Null, "{part}");
    }
    let metrics = parts.iter().find(|(name, _)| name.ends_with("metrics.txt")).unwrap().1;
    assert!(metrics.contains("ebla_build"), "{metrics}");
    assert!(parts["configuration/x.toml"].contains("tls-key = \"(hidden)\""), "{:?}", parts["configuration/x.toml"]);
    for (name, text) in &parts {
        for hidden in [KEY, KEY_BASE64, "the-value", "the-secret"] {
            assert!(!text.contains(hidden), "{hidden} is in {name}");
        }
    }
    let refused = Command::new(support::ebla()).args(arguments).env("EBLA_ADDR", address).output().unwrap();
    assert_eq!(refused.status.code(), Some(4), "{refused:?}");
    run(address, &[&arguments[..], &["--replace", "--with-keys"]].concat());
    assert!(contents(&file)["cluster/tablets.json"].contains(KEY_BASE64));
}
