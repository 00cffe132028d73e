//! The commands against a running cluster, as a person or a script would use them, and the client library's examples.

#![expect(clippy::unwrap_used, reason = "a test may fail, and then says where")]

use crate::support;

use std::fs::File;
use std::net::TcpListener;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use ebla_client::Client;
use ebla_client::table::ReadOptions;
use ebla_model::key::{RowKey, RowSet};
use ebla_model::mutation::{Mutation, WriteTime};
use ebla_model::schema::TableName;
use ebla_runtime::Runtime;
use rustix::process::Signal;
use serde_json::Value;
use support::{Up, run};

fn json(address: &str, arguments: &[&str]) -> Value {
    serde_json::from_str(&run(address, arguments)).unwrap()
}

/// The exit code and stderr.
fn fails(address: &str, arguments: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(support::ebla()).args(arguments).env("EBLA_ADDR", address).output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

/// What `server list` shows once all three replicas of each tablet are there: followers apply a split a moment later.
fn servers_when_split(address: &str) -> Vec<Value> {
    let looked = (0..2_000).find_map(|_| {
        let servers = json(address, &["server", "list", "-o", "json"]).as_array().cloned().unwrap();
        let whole = servers.iter().all(|server| server["replicas"] == server["assigned"]);
        support::pause();
        whole.then_some(servers)
    });
    looked.unwrap()
}

/// Moves the last tablet of `web` to the group of the first one and back. `tablets`: of the table, in order.
fn move_there_and_back(address: &str, tablets: &Value) {
    let at = |value: &Value, path: &str| value.pointer(path).unwrap().to_string();
    let (tablet, from, to) = (at(tablets, "/2/tablet"), at(tablets, "/2/group"), at(tablets, "/0/group"));
    let order = |tablet: &str, group: &str| fails(address, &["tablet", "move", tablet, "--group", group]);
    for (group, code, says) in [(from.as_str(), 5, "already"), ("1", 5, "METADATA"), ("999", 3, "ebla group list")] {
        let (failed, said) = order(&tablet, group);
        assert!(failed == Some(code) && said.contains(says), "{said}");
    }
    assert_eq!(order("999", &to).0, Some(3));
    assert_eq!(fails(address, &["tablet", "move", &tablet]).0, Some(2));
    let moved = json(address, &["tablet", "move", &tablet, "--group", &to, "-o", "json"]);
    assert_eq!((at(&moved, "/moved/tablet"), at(&moved, "/moved/group")), (tablet.clone(), to.clone()));
    assert_eq!(at(&moved, "/from_group"), from);
    let shown = run(address, &["tablet", "move", &tablet, "--group", &from]);
    assert_eq!(shown, format!("tablet {tablet} moved from group {to} to group {from}\n"));
}

/// Merges the halves of a split tablet of `web`, and splits it at the same key again. `tablets`: of the table, in order.
fn merge_and_split_again(address: &str, tablets: &Value) {
    let at = |value: &Value, path: &str| value.pointer(path).unwrap().to_string();
    let (left, right, other) = (at(tablets, "/0/tablet"), at(tablets, "/1/tablet"), at(tablets, "/2/tablet"));
    let (code, said) = fails(address, &["tablet", "merge", &left, &other]);
    assert!(code == Some(5) && said.contains("not adjacent"), "{said}");
    let (code, said) = fails(address, &["tablet", "merge", "1", "--next"]);
    assert!(code == Some(5) && said.contains("root tablet"), "{said}");
    assert_eq!(fails(address, &["tablet", "merge", "999", "--next"]).0, Some(3));
    for invalid in [&[left.as_str()][..], &[&left, &right, "--next"], &["0", "1"]] {
        assert_eq!(fails(address, &[&["tablet", "merge"], invalid].concat()).0, Some(2));
    }
    let merged = json(address, &["tablet", "merge", &left, "--next", "-o", "json"]);
    assert_eq!((at(&merged, "/merged/tablet"), at(&merged, "/removed")), (right, left.clone()));
    assert_eq!(
        (at(&merged, "/merged/start"), at(&merged, "/merged/end")),
        (r#""""#.to_owned(), r#""bQ==""#.to_owned())
    );
    let listed = json(address, &["tablet", "list", "web", "-o", "json"]);
    assert_eq!(listed.as_array().unwrap().len(), 2);
    assert_eq!(fails(address, &["tablet", "merge", &left, "--next"]).0, Some(3), "the tablet is gone");
    run(address, &["tablet", "split", "web", "--at", "com.d"]);
    let split = json(address, &["tablet", "list", "web", "-o", "json"]);
    let shown = run(address, &["tablet", "merge", &at(&split, "/1/tablet"), &at(&split, "/0/tablet")]);
    assert!(shown.starts_with("TABLET") && shown.lines().count() == 2, "{shown}");
    run(address, &["tablet", "split", "web", "--at", "com.d"]);
}

#[test]
fn tables_are_created_written_split_merged_and_deleted_by_commands() {
    let folder = tempfile::tempdir().unwrap();
    let up = Up::start(&folder.path().join("data"), &[]);
    let address = up.addresses[2].as_str();

    run(
        address,
        &["table", "create", "web", "--family", "anchor", "--family", "contents:maxversions=3", "--split", "m"],
    );
    assert_eq!(run(address, &["table", "list"]), "web\n");
    let described = json(address, &["table", "describe", "web", "-o", "json"]);
    assert_eq!(described["tablets"], 2);
    assert_eq!(described["families"]["contents"]["gc"], "maxversions=3");

    for row in ["com.cnn.www", "com.example", "org.kernel"] {
        run(address, &["row", "set", "web", row, "anchor:cnnsi.com=CNN"]);
    }
    let row = json(address, &["row", "get", "web", "com.cnn.www", "-o", "json"]);
    assert_eq!(row[0]["cells"][0]["value"], "Q05O", "base64 of CNN");
    let scan = json(address, &["row", "scan", "web", "--prefix", "com.", "--reversed", "-o", "json"]);
    let keys: Vec<_> = scan.as_array().unwrap().iter().map(|row| row["key"].as_str().unwrap()).collect();
    assert_eq!(keys, ["Y29tLmV4YW1wbGU=", "Y29tLmNubi53d3c="], "base64 of com.example and com.cnn.www");

    run(address, &["tablet", "split", "web", "--at", "com.d"]);
    let tablets = json(address, &["tablet", "list", "web", "-o", "json"]);
    // The full name of the table is accepted too, and an invalid one is named as it was given.
    assert_eq!(json(address, &["tablet", "list", "projects/dev/instances/dev/tables/web", "-o", "json"]), tablets);
    let (code, said) = fails(address, &["tablet", "list", "tables/web"]);
    assert!(code == Some(2) && said.contains("\"tables/web\""), "{said}");
    let ends: Vec<_> = tablets.as_array().unwrap().iter().map(|tablet| tablet["end"].as_str()).collect();
    assert_eq!(ends, [Some("Y29tLmQ="), Some("bQ=="), None], "base64 of com.d and m");
    move_there_and_back(address, &tablets);
    merge_and_split_again(address, &tablets);
    let lookup = json(address, &["meta", "lookup", "web", "com.cnn.www", "-o", "json"]);
    let hops: Vec<_> = lookup["hops"].as_array().unwrap().iter().map(|hop| hop["from"].as_str().unwrap()).collect();
    assert_eq!(hops, ["Chubby", "root tablet", "METADATA tablet"]);
    let status = json(address, &["status", "-o", "json"]);
    assert_eq!((status["tables"].as_u64(), status["servers"].as_array().unwrap().len()), (Some(1), 3));
    let servers = servers_when_split(address);
    for (number, server) in (1..).zip(&servers) {
        assert_eq!((server["id"].as_u64(), server["state"].as_str()), (Some(number), Some("up")));
        assert_eq!((server["replicas"].as_u64(), server["assigned"].as_u64()), (Some(5), Some(5)));
    }
    assert!(run(address, &["server", "list"]).lines().count() == 4);

    assert_eq!(fails(address, &["row", "get", "web", "absent"]).0, Some(3));
    assert_eq!(fails(address, &["table", "create", "web"]).0, Some(4));
    assert_eq!(fails(address, &["row", "set", "web", "r", "absent:q=v"]).0, Some(3));
    let (code, said) = fails(address, &["table", "delete", "web"]);
    assert!(code == Some(2) && said.contains("--yes"), "{said}");
    run(address, &["table", "delete", "web", "--yes"]);
    assert_eq!(run(address, &["table", "list"]), "");
}

/// Polls until `holds`; returns the last result.
fn until(address: &str, arguments: &[&str], holds: impl Fn(&Value) -> bool) -> Value {
    let found = (0..3_000).find_map(|_| {
        let seen = json(address, arguments);
        support::pause();
        holds(&seen).then_some(seen)
    });
    found.unwrap()
}

#[test]
fn the_status_of_a_healthy_cluster_starts_with_healthy_and_exits_with_zero() {
    let folder = tempfile::tempdir().unwrap();
    let up = Up::start(&folder.path().join("data"), &[]);
    let address = up.addresses[0].as_str();
    run(address, &["table", "create", "web", "--family", "f", "--split", "m"]);
    let status = until(address, &["status", "-o", "json"], |status| status["verdict"] == "healthy");
    assert_eq!((status["reasons"].as_array().unwrap().len(), &status["trouble"]), (0, &Value::from("")));
    assert_eq!((status["tablets"].as_u64(), status["replicas_live"].as_u64()), (Some(4), Some(12)));
    assert_eq!((status["replicas_wanted"].as_u64(), status["master_answers"].as_bool()), (Some(12), Some(true)));
    let shown = run(address, &["status", "--exit-code"]);
    assert!(shown.starts_with("healthy\n") && shown.contains("tablets 4/4 led"), "{shown}");
    // The first address that answers is used, by every command.
    let several = format!("127.0.0.1:1,{address}");
    assert!(run(&several, &["status"]).starts_with("healthy\n"));
    assert_eq!(run(&several, &["table", "list"]), "web\n");
    assert!(run(&several, &["wait", "--servers", "3"]).contains("3 tablet servers answer"));
    // There is time for a command, or there is not.
    run(address, &["--timeout", "1m", "table", "list"]);
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let (code, said) = fails(&silent.local_addr().unwrap().to_string(), &["table", "list", "--timeout", "300ms"]);
    assert!(code == Some(6) && said.contains("--timeout"), "{code:?} {said}");
}

#[test]
fn invalid_arguments_are_usage_errors_with_an_example() {
    for command in [&["status"][..], &["table", "list"], &["wait"]] {
        for addr in ["foo", "http://127.0.0.1:8086", "127.0.0.1:99999", "127.0.0.1:1,"] {
            let (code, said) = fails("", &[command, &["--addr", addr]].concat());
            assert!(code == Some(2) && said.contains("for example 127.0.0.1:8086"), "{addr}: {code:?} {said}");
        }
        let (code, said) = fails("", &[command, &["--timeout", "soon"]].concat());
        assert!(code == Some(2) && said.contains("500ms"), "{code:?} {said}");
        let (code, said) = fails("", &[command, &["--log-level", "inof"]].concat());
        assert!(code == Some(2) && said.contains("error, warn, info, debug or trace"), "{code:?} {said}");
    }
}

/// The lines that a process has logged as warnings or errors.
fn warnings(log: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(log).unwrap();
    let is_bad = |line: &&str| line.contains(" WARN ") || line.contains("ERROR ");
    text.lines().filter(is_bad).map(str::to_owned).collect()
}

/// What a process has logged, once it is as wanted.
fn logged(log: &Path, wanted: impl Fn(&str) -> bool) -> String {
    let said = (0..2_000).find_map(|_| {
        let said = std::fs::read_to_string(log).unwrap();
        support::pause();
        wanted(&said).then_some(said)
    });
    said.unwrap()
}

#[test]
fn a_growing_cluster_reports_its_copies_and_stops_without_warnings() {
    let folder = tempfile::tempdir().unwrap();
    let (data, log) = (folder.path().join("data"), folder.path().join("data.log"));
    let up = Up::start(&data, &["--servers", "1"]);
    let splits = ["b", "c", "d", "e", "f", "g", "h"].map(|key| ["--split", key]).concat();
    run(&up.addresses[0], &[&["table", "create", "web", "--family", "f"], &splits[..]].concat());
    // One replica of each tablet was requested.
    until(&up.addresses[0], &["status", "-o", "json"], |status| status["verdict"] == "healthy");
    assert!(std::fs::read_to_string(&log).unwrap().contains("Writes are on 1 of 1 disk before they are acknowledged."));
    up.stop();
    assert_eq!(warnings(&log), Vec::<String>::new());

    let up = Up::start(&data, &[]);
    // The ready file is written before the block, of which this is the last line.
    let said = logged(&log, |said| said.matches("Ctrl-C drains").count() == 2);
    // The numbers depend on the progress of the copies.
    assert!(said.contains(" being copied to 3 servers: see ebla status."), "{said}");
    let status = until(&up.addresses[0], &["status", "-o", "json"], |status| status["verdict"] == "healthy");
    assert_eq!(status["replicas_live"].as_u64(), Some(30));
    // A state is logged when it has lasted for a moment, which copies of empty groups need not.
    if warnings(&log).iter().any(|line| line.contains("under-replicated")) {
        logged(&log, |said| said.contains("all tablets are fully replicated"));
    }
    up.stop();
    let warned: Vec<_> = warnings(&log).into_iter().filter(|line| !line.contains("under-replicated")).collect();
    assert_eq!(warned, Vec::<String>::new());
}

#[test]
fn without_a_cluster_a_command_says_how_to_start_one() {
    let (code, said) = fails("127.0.0.1:1", &["status"]);
    assert!(code == Some(6) && said.contains("ebla up"), "{code:?} {said}");
    for command in ["verify", "bench"] {
        let (code, said) = fails("127.0.0.1:1", &[command]);
        assert!(code == Some(6) && said.contains("ebla up") && said.lines().count() == 1, "{command}: {code:?} {said}");
    }
}

/// Malformed arguments are refused before a cluster is contacted.
#[test]
fn malformed_arguments_are_usage_errors() {
    let wrong: [(&[&str], &str); 9] = [
        (&["row", "get", "web", r"\q"], r"\xff"),
        (&["row", "set", "web", "r", r"f:q=\q"], "backslash"),
        (&["row", "set", "web", "r", "f:q"], "FAMILY:QUALIFIER=VALUE"),
        (&["row", "get", "web", "r", "--hex", "-o", "json"], "base64"),
        (&["tablet", "split", "web", "--at", ""], "empty key"),
        (&["table", "create", "web", "--split", ""], "empty key"),
        (&["bench", "--value-bytes", "0"], "at least 1 byte"),
        (&["mounttable", "--cluster", "nowhere"], "HOST:PORT"),
        (&["mt", "ls", "--root", "nowhere"], "host:port"),
    ];
    for (arguments, says) in wrong {
        let (code, said) = fails("127.0.0.1:1", arguments);
        assert!(code == Some(2) && said.contains(says), "{arguments:?}: {code:?} {said}");
    }
}

#[test]
fn the_version_command_shows_all_facts() {
    let version = json("", &["version", "-o", "json"]);
    for field in ["version", "commit", "date", "target"] {
        assert!(version[field].as_str().is_some_and(|value| !value.is_empty()), "{field} in {version}");
    }
    assert!(run("", &["version"]).contains(version["commit"].as_str().unwrap()));
}

/// A command that runs against `address`; its exit code, stdout and stderr.
fn ended(address: &str, arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(support::ebla()).args(arguments).env("EBLA_ADDR", address).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// The same with stdout somewhere else.
fn ended_into(address: &str, stdout: Stdio, arguments: &[&str]) -> (Option<i32>, String) {
    let mut child = Command::new(support::ebla())
        .args(arguments)
        .env("EBLA_ADDR", address)
        .stdout(stdout)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // If stdout is a pipe, it is closed before anything is written.
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

/// Escaping round-trips, and an incomplete scan says so.
#[test]
fn rows_are_written_shown_and_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let up = Up::start(&folder.path().join("data"), &["--servers", "1"]);
    let address = up.addresses.first().unwrap().as_str();
    let (code, shown, said) = ended(address, &["table", "list"]);
    assert!(code == Some(0) && shown.is_empty() && said.contains("no tables"), "{shown}{said}");
    let made = json(address, &["table", "create", "t", "--family", "f", "--family", "g", "-o", "json"]);
    assert_eq!((&made["name"], &made["tablets"]), (&"projects/dev/instances/dev/tables/t".into(), &1.into()));
    assert_eq!(ended(address, &["row", "scan", "t"]), (Some(0), String::new(), "no rows\n".to_owned()));

    // What is shown can be typed back.
    run(address, &["row", "set", "t", r"r\xff", r"f:a\x3db=\xff\\"]);
    let shown = run(address, &["row", "get", "t", r"r\xff"]);
    let words: Vec<_> = shown.split_whitespace().collect();
    let ["r\\xff", r"f:a\x3db", time, r"\xff\\"] = words.as_slice() else { panic!("{shown}") };
    assert!(time.ends_with('Z') && time.contains('T'), "{shown}");
    assert!(run(address, &["row", "get", "t", r"r\xff", "--hex"]).ends_with("ff5c\n"));
    let row = json(address, &["row", "get", "t", r"r\xff", "-o", "json"]);
    assert_eq!((&row[0]["key"], &row[0]["cells"][0]["value"]), (&"cv8=".into(), &"/1w=".into()));
    assert_eq!(row[0]["cells"][0]["qualifier"], "YT1i");
    run(address, &["row", "set", "t", "hex", "--hex", "f:q=00c3a9"]);
    assert!(run(address, &["row", "get", "t", "hex"]).ends_with("\\x00\u{e9}\n"));

    // Both rows fit, so there is no note. With one more row, the note says how to continue.
    assert_eq!(ended(address, &["row", "scan", "t", "--limit", "2"]).2, "");
    run(address, &["row", "set", "t", "it's", "f:q=v", "g:q=v", "g:p=v"]);
    let (code, shown, said) = ended(address, &["row", "scan", "t", "--limit", "2"]);
    assert!(
        code == Some(0) && shown.contains("it's") && said.contains(r"--start 'r\xff'") && said.contains("--limit 0")
    );
    assert_eq!(json(address, &["row", "scan", "t", "--start", r"r\xff", "-o", "json"]).as_array().unwrap().len(), 1);
    let (_, shown, said) = ended(address, &["row", "scan", "t", "--limit", "2", "--reversed"]);
    assert!(shown.contains("it's") && said.contains(r"--end 'it'\''s'"), "{said}");
    let rest = run(address, &["row", "scan", "t", "--reversed", "--end", "it's"]);
    assert!(rest.starts_with("hex\n") && rest.lines().count() == 2, "{rest}");

    // The short verbs, and the layouts for programs.
    assert_eq!(run(address, &["count", "t"]), "3\n");
    assert_eq!(json(address, &["count", "t", "--prefix", "h", "-o", "json"])["rows"], 1);
    let shown = run(address, &["scan", "t", "--end", "i", "-o", "csv"]);
    assert!(shown.starts_with("KEY,FAMILY,QUALIFIER,TIMESTAMP_MICROS,VALUE\nhex,f,q,"), "{shown}");
    assert!(shown.ends_with(",\\x00\u{e9}\n") && shown.lines().count() == 2, "{shown}");
    let shown = run(address, &["get", "t", "hex", "--hex", "-o", "raw"]);
    assert!(shown.starts_with("hex\tf\tq\t") && shown.ends_with("\t00c3a9\n"), "{shown}");
    let shown = run(address, &["scan", "t", "-o", "ndjson"]);
    let rows: Vec<Value> = shown.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.iter().map(|row| row["key"].as_str().unwrap()).collect::<Vec<_>>(), ["aGV4", "aXQncw==", "cv8="]);
    assert_eq!(run(address, &["table", "list", "-o", "ndjson"]), "\"t\"\n");

    // A failed write to stdout is a failure of every command; a closed pipe is not.
    for arguments in [&["row", "scan", "t", "--limit", "0"][..], &["table", "list"], &["version"], &["--help"]] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let (code, said) = ended_into(address, full.into(), arguments);
        assert!(code == Some(1) && said.contains("cannot write to stdout"), "{arguments:?}: {code:?} {said}");
        assert_eq!(ended_into(address, Stdio::piped(), arguments), (Some(0), String::new()), "{arguments:?}");
    }

    let keys = |row: &str| {
        let row = json(address, &["row", "get", "t", row, "-o", "json"]);
        row[0]["cells"].as_array().unwrap().len()
    };
    run(address, &["row", "delete", "t", "it's", "--column", "g:p"]);
    assert_eq!(keys("it's"), 2);
    run(address, &["row", "delete", "t", "it's", "--family", "g"]);
    assert_eq!(keys("it's"), 1);
    let deleted = json(address, &["row", "delete", "t", "it's", "-o", "json"]);
    assert_eq!(deleted["key"], "aXQncw==");
    assert_eq!(fails(address, &["row", "get", "t", "it's"]).0, Some(3));
}

#[test]
fn families_and_protection_are_changed_by_commands() {
    let folder = tempfile::tempdir().unwrap();
    let up = Up::start(&folder.path().join("data"), &["--servers", "1"]);
    let address = up.addresses.first().unwrap().as_str();
    run(address, &["table", "create", "t", "--family", "f"]);
    run(address, &["family", "add", "t", "g:maxversions=2", "h"]);
    let changed = json(address, &["family", "update", "t", "g:maxage=30d", "f:maxversions=1", "-o", "json"]);
    assert_eq!(changed["families"]["g"]["gc"], "maxage=30d");
    let (code, said) = fails(address, &["family", "drop", "t", "h"]);
    assert!(code == Some(2) && said.contains("--yes"), "{said}");
    run(address, &["family", "drop", "t", "h", "--yes"]);
    let families = json(address, &["family", "list", "t", "-o", "json"]);
    assert_eq!(families, serde_json::json!({"f": {"gc": "maxversions=1"}, "g": {"gc": "maxage=30d"}}));
    assert!(run(address, &["family", "list", "t"]).starts_with("FAMILY  GARBAGE COLLECTION\n"));
    assert_eq!(fails(address, &["family", "add", "t", "g"]).0, Some(4));
    assert_eq!(fails(address, &["family", "update", "t", "never"]).0, Some(3));

    run(address, &["table", "update", "t", "--deletion-protection", "on"]);
    assert!(run(address, &["table", "describe", "t"]).contains("1 tablet, protected against deletion"));
    assert_eq!(fails(address, &["table", "delete", "t", "--yes"]).0, Some(5));
    let changed = json(address, &["table", "update", "t", "--deletion-protection", "off", "-o", "json"]);
    assert_eq!(changed["deletion_protection"], false);
    let split = json(address, &["tablet", "split", "t", "--at", "m", "-o", "json"]);
    assert_eq!((&split[0]["end"], &split[1]["start"]), (&"bQ==".into(), &"bQ==".into()));
    let deleted = json(address, &["table", "delete", "t", "--yes", "-o", "json"]);
    assert_eq!(deleted["deleted"], true);
}

#[test]
fn groups_in_memory_are_used_within_the_budget_and_refused_beyond_it() {
    let folder = tempfile::tempdir().unwrap();
    let up = Up::start(&folder.path().join("data"), &["--servers", "1", "--memory-groups", "64K"]);
    let address = up.addresses.first().unwrap().as_str();
    let families = ["--family", "small", "--family", "large", "--locality-group", "pages=large"];
    run(address, &[&["table", "create", "web"], &families[..]].concat());
    let content = format!("large:={}", "x".repeat(100_000));
    run(address, &["row", "set", "web", "com.cnn.www", &content]);

    let set = ["table", "locality-group", "set", "web", "pages", "in-memory=yes"];
    let (_code, said) = fails(address, &set);
    assert!(said.contains("locality group not put in memory") && said.contains("--memory-groups"), "{said}");
    let groups = json(address, &["table", "locality-group", "describe", "web", "-o", "json"]);
    assert_eq!(groups["pages"]["options"]["in-memory"], "no");

    run(address, &["table", "locality-group", "set", "web", "words", "in-memory=yes;bloom=columns"]);
    let added = json(address, &["family", "add", "web", "language", "--locality-group", "words", "-o", "json"]);
    assert!(added["families"].to_string().contains("language"), "{added}");
    run(address, &["row", "set", "web", "com.cnn.www", "language:=EN"]);
    assert!(run(address, &["row", "get", "web", "com.cnn.www"]).contains("EN"));
    let described = json(address, &["table", "describe", "web", "-o", "json"]);
    assert_eq!(described["locality_groups"]["words"]["families"], serde_json::json!(["language"]));
    assert_eq!(described["locality_groups"]["words"]["options"]["in-memory"], "yes");
    let (code, said) = fails(address, &["family", "add", "web", "other", "--locality-group", "never"]);
    assert!(code == Some(3) && said.contains("locality group not found: never"), "{said}");

    let servers = json(address, &["server", "list", "-o", "json"]);
    let memory = &servers[0]["memory_groups"];
    assert_eq!((&memory["limit_bytes"], &memory["excess_bytes"]), (&serde_json::json!(65_536), &serde_json::json!(0)));
    assert_eq!(memory["disk_reads"], 0, "METADATA's locations are in memory too");
}

#[test]
fn locality_groups_are_created_changed_and_shown_by_commands() {
    let folder = tempfile::tempdir().unwrap();
    let up = Up::start(&folder.path().join("data"), &["--servers", "1"]);
    let address = up.addresses.first().unwrap().as_str();
    let group = "pages=contents;compression=zstd:3;block=64k";
    let families = ["--family", "anchor", "--family", "contents"];
    let create = [&["table", "create", "web"], &families[..], &["--locality-group", group, "-o", "json"]].concat();
    let made = json(address, &create);
    assert_eq!(made["locality_groups"]["pages"]["families"], serde_json::json!(["contents"]));
    let options = serde_json::json!({ "compression": "zstd:3", "block": "64k", "bloom": "rows", "in-memory": "no" });
    assert_eq!(made["locality_groups"]["pages"]["options"], options);
    assert!(run(address, &["table", "describe", "web"]).contains("pages           contents  compression=zstd:3"));

    run(address, &["row", "set", "web", "com.cnn.www", "contents:=<html>", "anchor:cnnsi.com=CNN"]);
    let shown = run(address, &["row", "get", "web", "com.cnn.www"]);
    let flushed = json(address, &["table", "locality-group", "describe", "web", "--flush", "-o", "json"]);
    for group in ["default", "pages"] {
        assert!(flushed[group]["data_bytes"].as_u64().unwrap() > 0, "{flushed}");
        assert!(flushed[group]["file_bytes"].as_u64().unwrap() > 0, "{flushed}");
    }
    for step in [
        &["table", "locality-group", "move", "web", "anchor", "pages"][..],
        &["table", "locality-group", "set", "web", "pages", "compression=two-pass"],
        &["table", "locality-group", "move", "web", "contents", "default"],
        &["table", "locality-group", "move", "web", "anchor", "default"],
        &["table", "locality-group", "remove", "web", "pages"],
    ] {
        run(address, step);
        assert_eq!(run(address, &["row", "get", "web", "com.cnn.www"]), shown, "{step:?}");
    }
    let left = json(address, &["table", "locality-group", "describe", "web", "-o", "json"]);
    assert_eq!(left["default"]["families"], serde_json::json!(["anchor", "contents"]));
    assert_eq!(left.as_object().unwrap().len(), 1);

    for (arguments, code, expected) in [
        (&["table", "locality-group", "move", "web", "anchor", "never"][..], 3, "locality group not found: never"),
        (&["table", "locality-group", "set", "web", "g", "compression=zip"], 2, "expected none, lz4"),
        (&["table", "create", "u", "--family", "f", "--locality-group", "g"], 2, "write NAME=FAMILY"),
    ] {
        let (found, said) = fails(address, arguments);
        assert!(found == Some(code) && said.contains(expected), "{arguments:?}: {found:?} {said}");
    }
}

#[test]
fn a_folder_in_use_and_a_public_address_are_refused_with_the_next_step() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let _up = Up::start(&data, &[]);
    let (code, said) = fails("", &["up", "--data", data.to_str().unwrap(), "--listen", "127.0.0.1:0"]);
    assert!(code == Some(5) && said.contains("another ebla process uses"), "{said}");
    let (code, said) = fails("", &["up", "--ephemeral", "--listen", "0.0.0.0:0"]);
    assert!(code == Some(2) && said.contains("--insecure"), "{said}");
}

#[test]
fn invalid_options_of_up_are_refused_before_the_start_and_leave_no_files() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let up = |more: &[&str]| fails("", &[&["up", "--data", data.to_str().unwrap()], more].concat());
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for (more, code, cause) in [
        (&["--listen", "foo"][..], 2, "127.0.0.1:8086"),
        (&["--mounttable", "127.0.0.1:port"], 2, "127.0.0.1:8086"),
        (&["--split-bytes", "0"], 2, "64MiB"),
        (&["--ready-file", "/nonexist/x"], 2, "the folder /nonexist does not exist"),
        (&["--listen", "127.0.0.1:0", "--mounttable", "0.0.0.0:0"], 2, "--insecure"),
        (&["--listen", &address], 5, "--listen"),
        (&["--listen", "127.0.0.1:0", "--mounttable", &address], 5, "--mounttable"),
    ] {
        let (found, said) = up(more);
        assert!(found == Some(code) && said.contains(cause), "{more:?}: {found:?} {said}");
        assert!(!data.exists(), "{more:?} left a folder");
    }
    assert!(up(&["--listen", &address]).1.contains(&address));
    std::fs::create_dir(&data).unwrap();
    std::fs::write(data.join("notes.txt"), "").unwrap();
    let (code, said) = up(&["--listen", "127.0.0.1:0"]);
    assert!(code == Some(5) && said.contains("notes.txt"), "{code:?} {said}");
    assert_eq!(std::fs::read_dir(&data).unwrap().count(), 1);
}

#[test]
fn up_stops_gracefully_when_the_ready_file_cannot_be_written() {
    let folder = tempfile::tempdir().unwrap();
    // The file is written under another name and renamed: a folder of that name makes this fail after the start.
    std::fs::create_dir(folder.path().join("ready.part")).unwrap();
    let ready = folder.path().join("ready");
    for _ in 0..3 {
        let arguments = ["up", "--ephemeral", "--listen", "127.0.0.1:0", "--ready-file", ready.to_str().unwrap()];
        let (code, said) = fails("", &arguments);
        assert!(code == Some(1) && said.contains("write the ready file"), "{code:?} {said}");
        assert!(!said.contains("pthread"), "{said}");
    }
}

#[test]
fn two_simultaneous_signals_are_one_request() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let status = Up::start(&data, &["--split-bytes", "64M"]).end_by(&[Signal::TERM, Signal::INT]);
    let said = std::fs::read_to_string(data.with_extension("log")).unwrap();
    assert!(
        status.success() && said.contains("stopping: draining") && !said.contains("second signal"),
        "{status} {said}"
    );
}

#[test]
fn a_panic_ends_a_cluster_in_one_process_at_once() {
    let folder = tempfile::tempdir().unwrap();
    // Without the panic `timeout` ends it with another status.
    let mut command = Command::new("timeout");
    command.args(["120", support::ebla(), "up", "--servers", "1", "--listen", "127.0.0.1:0", "--data"]);
    command.arg(folder.path().join("data")).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut up = command.spawn().unwrap();
    // Rust's macros panic when the stream has no reader; `up` prints on it when it is ready.
    drop(up.stderr.take());
    assert_eq!(up.wait().unwrap().signal(), Some(Signal::ABORT.as_raw()));
}

#[test]
fn the_client_librarys_examples_run() {
    let folder = tempfile::tempdir().unwrap();
    let up = Up::start(&folder.path().join("data"), &[]);
    // Examples are built next to the program by the same cargo command.
    let examples = Path::new(support::ebla()).parent().unwrap().join("examples");
    for name in ["hello", "counter"] {
        let output = Command::new(examples.join(name)).arg(&up.addresses[1]).output().unwrap();
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn the_client_library_uses_the_public_api_at_one_address() {
    let folder = tempfile::tempdir().unwrap();
    let up = Up::start(&folder.path().join("data"), &[]);
    let address = up.addresses[0].as_str();
    run(address, &["table", "create", "plain", "--family", "f"]);
    support::block_on(async {
        let client = Client::endpoint(address, Runtime::system("endpoint"));
        let table = client.table(&TableName::from_parts("dev", "dev", "plain").unwrap());
        let key = RowKey::copy_from_slice(b"row");
        let cell = Mutation::SetCell {
            family: "f".to_owned(),
            qualifier: "q".into(),
            timestamp: WriteTime::Server,
            value: "v".into(),
        };
        table.mutate_row(&key, std::slice::from_ref(&cell)).await.unwrap();
        let many = [(RowKey::copy_from_slice(b"other"), vec![cell])];
        assert!(table.mutate_rows(&many).await.unwrap().iter().all(Result::is_ok));
        let row = table.read_row(&key, None).await.unwrap().unwrap();
        assert_eq!(row.newest("f", b"q").unwrap().value, "v");
        assert_eq!(table.read_rows(RowSet::all(), ReadOptions::default()).await.unwrap().len(), 2);
        let samples: Vec<_> = table.sample_row_keys().await.unwrap().into_iter().map(|(key, _bytes)| key).collect();
        assert_eq!(samples, [key, RowKey::EMPTY], "the last row, and the end");
    });
}
