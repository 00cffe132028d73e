//! A mounttable on a cluster of `ebla up`, used by commands as a person or a script would.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail, and then says where")]

use crate::support;

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use support::{Process, Up, documents};

/// A running `ebla mounttable`, killed when dropped.
struct Names {
    process: Process,
    address: String,
}

impl Names {
    /// Starts one without authentication.
    fn start(folder: &Path, label: &str, arguments: &[&str]) -> Self {
        Self::start_with(folder, label, &[&["--insecure-dev-identity"], arguments].concat())
    }

    fn start_with(folder: &Path, label: &str, arguments: &[&str]) -> Self {
        let fixed = ["mounttable", "--listen", "127.0.0.1:0", "--superuser", "server"];
        let small = ["--gc-grace", "0", "--tablets", "2"];
        let all: Vec<_> = fixed.iter().chain(&small).chain(arguments).map(OsStr::new).collect();
        let process = Process::start(&folder.join(label), &all);
        let address = process.ready["address"].as_str().unwrap().to_owned();
        Self { process, address }
    }

    /// The exit code, and what was shown.
    fn mt(&self, caller: &str, arguments: &[&str]) -> (Option<i32>, String) {
        let output = Command::new(support::ebla())
            .arg("mt")
            .args(arguments)
            .env("MT_ROOT", &self.address)
            .env("MT_IDENTITY", caller)
            .output()
            .unwrap();
        // Shown by the test runner when an assertion about the exit code fails.
        print!("{}", String::from_utf8_lossy(&output.stderr));
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    }

    fn json(&self, caller: &str, arguments: &[&str]) -> Value {
        let (code, said) = self.mt(caller, &[arguments, &["-o", "json"]].concat());
        assert_eq!(code, Some(0), "{arguments:?}");
        serde_json::from_str(&said).unwrap()
    }
}

/// Basic commands, and the exit codes of refusals.
fn used_by_hand(names: &Names) {
    let ok = |caller: &str, arguments: &[&str]| {
        let (code, said) = names.mt(caller, arguments);
        assert_eq!(code, Some(0), "{arguments:?}");
        said
    };
    ok("alice", &["mount", "prod/search/web", "10.0.0.1:80", "60"]);
    ok("alice", &["mount", "prod/search/web", "10.0.0.2:80", "--leaf", "--replace"]);
    ok("alice", &["mount", "prod/mail", "10.0.0.3:25"]);
    let found = names.json("bob", &["resolve", "prod/search/web/index"]);
    assert_eq!(found["suffix"], "index");
    assert_eq!(found["servers"][0]["address"], "10.0.0.2:80");
    assert_eq!((&found["servers"][0]["leaf"], &found["servers"][1]), (&Value::Bool(true), &Value::Null));
    assert_eq!(ok("bob", &["ls", "prod"]), "mail  10.0.0.3:25\nsearch\n");
    let found = ok("bob", &["glob", "prod/*/w*"]);
    assert_eq!(found, "prod/search/web  10.0.0.2:80\n");
    let who = names.json("alice", &["whoami"]);
    assert_eq!((&who["user"], &who["nodes"]["used"], &who["servers"]["used"]), (&"alice".into(), &4.into(), &2.into()));
    ok("alice", &["perms", "set", "prod/mail", r#"{"Admin":{"In":["alice"]}}"#]);
    let permissions = names.json("alice", &["perms", "get", "prod/mail"]);
    assert_eq!(permissions["permissions"]["Admin"]["In"][0], "alice");
    let stale = ["perms", "set", "prod/mail", "{}", "--etag", "xyzzy"];
    let refused: [(&str, &[&str], i32); 9] = [
        ("bob", &["resolve", "prod/mail"], 4),
        ("bob", &["unmount", "prod/mail"], 4),
        ("alice", &stale, 5),
        ("alice", &["resolve", "prod/never"], 3),
        ("alice", &["mount", "prod/mail/below", "h:1"], 5),
        ("alice", &["mount", "a/../b", "h:1"], 2),
        ("alice", &["rm", "prod"], 5),
        ("alice", &["rm", "prod/never"], 3),
        ("alice", &["rm", "-r", "never"], 3),
    ];
    for (caller, arguments, code) in refused {
        assert_eq!(names.mt(caller, arguments).0, Some(code), "{caller} {arguments:?}");
    }
    ok("alice", &["unmount", "prod/search/web"]);
    assert_eq!(
        ok("bob", &["glob", "prod/..."]),
        "prod\n",
        "what is empty is collected, what is bob's business is shown"
    );
    ok("server", &["rm", "-r", "prod"]);
    assert_eq!(ok("bob", &["glob", "*"]), "");
    assert_eq!(names.json("alice", &["whoami"])["nodes"]["used"], 0);
}

/// What one `ebla up` knew, the next one on the same folder knows.
#[test]
fn a_cluster_in_one_process_serves_names_and_keeps_them() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let run = |arguments: &[&str]| {
        let up = Up::start(&data, &["--mounttable", "127.0.0.1:0"]);
        let root = up.ready()["mounttable"].as_str().unwrap();
        let command = Command::new(support::ebla())
            .arg("mt")
            .args(arguments)
            .args(["--root", root])
            .env("MT_IDENTITY", "alice")
            .output()
            .unwrap();
        up.kill();
        (command.status.code(), String::from_utf8(command.stdout).unwrap())
    };
    assert_eq!(run(&["mount", "prod/web", "10.0.0.1:80"]).0, Some(0));
    assert_eq!(run(&["admin", "check"]).0, Some(4));
    assert_eq!(run(&["admin", "check", "--as", "admin"]), (Some(0), "KIND  PLACE  MESSAGE  FIXED\n".to_owned()));
    assert_eq!(run(&["glob", "prod/..."]), (Some(0), "prod\nprod/web  10.0.0.1:80\n".to_owned()));
}

#[test]
fn names_are_served_from_memory() {
    let folder = tempfile::tempdir().unwrap();
    used_by_hand(&Names::start(folder.path(), "memory", &["--in-memory"]));
}

#[test]
fn names_are_served_from_a_cluster_by_any_number_of_processes() {
    let folder = tempfile::tempdir().unwrap();
    let up = Up::start(&folder.path().join("data"), &[]);
    let cluster = up.addresses.first().unwrap().as_str();
    let one = Names::start(folder.path(), "one", &["--cluster", cluster]);
    used_by_hand(&one);
    // No process listens at the first address.
    let seeds = format!("127.0.0.1:1,{cluster}");
    let two = Names::start(folder.path(), "two", &["--cluster", &seeds]);
    assert_eq!(one.mt("alice", &["mount", "a/b", "h:1"]).0, Some(0));
    assert_eq!(two.json("bob", &["resolve", "a/b"])["servers"][0]["address"], "h:1");
    drop(one);
    drop(two);
    let three = Names::start(folder.path(), "three", &["--cluster", cluster]);
    assert_eq!(three.json("bob", &["resolve", "a/b"])["servers"][0]["address"], "h:1");
}

/// A mounttable that is started before its cluster serves once the cluster does.
#[test]
fn a_mounttable_waits_for_its_cluster() {
    let folder = tempfile::tempdir().unwrap();
    // Free a moment ago.
    let cluster = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let mut child = Command::new(support::ebla())
        .args(["mounttable", "--listen", "127.0.0.1:0", "--insecure-dev-identity", "--cluster", &cluster])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    let waits = said.find(|line| line.contains("waiting for the cluster"));
    let data = folder.path().join("data");
    let up = ["up", "--servers", "1", "--listen", &cluster, "--data", data.to_str().unwrap()].map(OsStr::new);
    let up = waits.is_some().then(|| Process::start(&data, &up));
    let serves = said.any(|line| line.contains("mounttable at"));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(waits.is_some_and(|line| line.contains(&cluster)) && serves);
    drop(up);
}

/// Rows written by the load are like those of mounts: a check finds no inconsistencies, and they can be deleted.
#[test]
fn a_written_directory_equals_a_mounted_one() {
    let folder = tempfile::tempdir().unwrap();
    let up = Up::start(&folder.path().join("data"), &[]);
    let cluster = up.addresses.first().unwrap().as_str();
    let kept = ["--cluster", cluster, "--table", "names"];
    let names = Names::start(folder.path(), "names", &kept);
    let wide = ["bench", "--workloads", "wide", "--children", "300", "--keep"];
    let figures = names.json("bench", &[&wide[..], &kept].concat());
    let counted = |name: &str| {
        let figure = figures.as_array().unwrap().iter().find(|figure| figure["workload"] == name).unwrap();
        (figure["operations"].as_u64().unwrap(), figure["errors"].as_u64().unwrap())
    };
    assert_eq!((counted("wide mount"), counted("wide resolve")), ((100, 0), (300, 0)), "{figures}");
    assert_eq!(counted("wide glob"), (300, 0), "{figures}");
    assert_eq!(names.json("server", &["admin", "check"]), serde_json::json!([]));
    assert_eq!(names.json("bench-0", &["whoami"])["servers"]["used"], 600);
    let load = names.mt("server", &["glob", "bench-*"]).1;
    assert_eq!(names.mt("server", &["--timeout", "5m", "rm", "-r", load.trim()]).0, Some(0));
    assert_eq!(names.json("bench-0", &["whoami"])["nodes"]["used"], 0);
}

/// Who has changed what is in the log.
#[test]
fn changes_by_superusers_are_logged_with_their_caller() {
    let folder = tempfile::tempdir().unwrap();
    let names = Names::start(folder.path(), "logged", &["--in-memory"]);
    let admin = |caller: &str, arguments: &[&str]| names.mt(caller, &[&["admin"], arguments].concat()).0;
    let dump = folder.path().join("dump.jsonl").to_str().unwrap().to_owned();
    assert_eq!(admin("alice", &["readonly", "on"]), Some(4));
    let orders: [&[&str]; 10] = [
        &["setup"],
        &["limit", "alice", "--nodes", "3"],
        &["readonly", "on"],
        &["readonly", "off"],
        &["sweep"],
        &["recount"],
        &["check", "--fix"],
        &["dump", &dump],
        &["destroy", "mounttable"],
        &["restore", &dump],
    ];
    for order in orders {
        assert_eq!(admin("server", order), Some(0), "{order:?}");
    }
    let log = std::fs::read_to_string(folder.path().join("logged.log")).unwrap();
    for line in [
        "table set up caller=server",
        "limit set caller=server user=alice",
        "write mode changed caller=server",
        "table swept caller=server",
        "counters recounted caller=server",
        "table repaired caller=server",
        "table dump begun caller=server",
        "table destroyed caller=server",
        "table restored caller=server",
    ] {
        assert!(log.contains(line), "{line:?} is missing in {log}");
    }
    assert!(!log.contains("caller=alice"), "a refused call changes nothing: {log}");
}

/// Someone mounts a mounttable over a part of the names, to redirect the deletions of others.
#[test]
fn a_deletion_follows_a_mounted_mounttable_only_if_asked() {
    let folder = tempfile::tempdir().unwrap();
    let [names, other] = ["names", "other"].map(|label| Names::start(folder.path(), label, &["--in-memory"]));
    assert_eq!(other.mt("alice", &["mount", "a/b", "h:1"]).0, Some(0));
    assert_eq!(names.mt("alice", &["mount", "link", &other.address, "--mt"]).0, Some(0));
    assert_eq!(names.mt("server", &["rm", "-r", "link/a"]).0, Some(5));
    assert_eq!(other.json("alice", &["resolve", "a/b"])["servers"][0]["address"], "h:1");
    assert_eq!(names.mt("server", &["--follow-mounts", "rm", "-r", "link/a"]).0, Some(0));
    assert_eq!(other.mt("alice", &["resolve", "a/b"]).0, Some(3));
}

/// Administration of a mounttable, from one backup to the next.
#[test]
fn a_mounttable_is_administered_by_commands() {
    let folder = tempfile::tempdir().unwrap();
    let names = Names::start(folder.path(), "memory", &["--in-memory"]);
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let admin = |arguments: &[&str]| names.mt("server", &[&["admin"], arguments].concat());
    let json = |arguments: &[&str]| names.json("server", &[&["admin"], arguments].concat());
    let (open, dump, cut) = (file("open.json"), file("dump.jsonl"), file("cut.jsonl"));
    std::fs::write(&open, r#"{"": {"Admin": {"In": ["..."]}}, "team": {"Admin": {"In": ["alice"]}}}"#).unwrap();
    let new = json!([{"name": "team", "before": null, "after": r#"{"Admin":{"In":["alice"]}}"#}]);
    assert_eq!(
        json(&["setup", &open, "--dry-run"]),
        json!({"changed": 0, "changes": new}),
        "the root is like that already"
    );
    assert_eq!(json(&["setup", &open]), json!({"changed": 1, "changes": new}));
    assert_eq!(json(&["setup", &open]), json!({"changed": 0, "changes": []}));
    let other = file("other.json");
    std::fs::write(&other, r#"{"team": {"Admin": {"In": ["bob"]}}}"#).unwrap();
    assert_eq!(admin(&["setup", &other]).0, Some(5), "alice's rights are overwritten only on request");
    assert!(!names.mt("alice", &["perms", "get", "team"]).1.contains("bob"));
    assert_eq!(json(&["setup", &other, "--overwrite"])["changed"], 1);
    assert_eq!(json(&["setup", &open, "--overwrite"])["changed"], 1);
    assert_eq!(names.mt("alice", &["mount", "team/web", "h:1"]).0, Some(0));
    assert_eq!(json(&["check"]), json!([]));
    for arguments in [&["check"][..], &["dump"], &["sweep"], &["destroy", "mounttable"]] {
        assert_eq!(names.mt("alice", &[&["admin"], arguments].concat()).0, Some(4), "{arguments:?} is for superusers");
    }
    assert_eq!(json(&["sweep"])["damaged"], 0);
    assert_eq!(json(&["recount"]), json!([]));
    assert!(json(&["counters"])["changes"].as_u64().unwrap() > 0);

    assert_eq!(admin(&["limit", "alice", "--nodes", "3", "--servers", "unlimited"]).0, Some(0));
    let own = json!({"user": "alice", "nodes": 3, "servers": "unlimited"});
    assert_eq!(json(&["limits"])[1], own);
    assert_eq!(names.json("alice", &["whoami"])["nodes"]["limit"], 3);
    assert_eq!(admin(&["limit", "alice", "--nodes", "default"]).0, Some(0));
    assert_eq!(json(&["limits"])[1], json!({"user": "alice", "nodes": "default", "servers": "unlimited"}));
    assert_eq!(admin(&["limit", "alice", "--nodes", "-1"]).0, Some(2));

    assert_eq!(json(&["readonly", "on"]), json!({"read_only": true, "was_read_only": false}));
    assert_eq!(names.mt("alice", &["mount", "team/web", "h:2"]).0, Some(6));
    assert_eq!(names.mt("alice", &["resolve", "team/web"]).0, Some(0));
    assert_eq!(json(&["readonly", "off"])["was_read_only"], true);

    let saved = json(&["dump", &dump]);
    assert!(saved["rows"].as_u64().unwrap() >= 3, "the root, team and team/web: {saved}");
    let text = std::fs::read_to_string(&dump).unwrap();
    assert_eq!(admin(&["dump"]), (Some(0), text.clone()), "two dumps of an unchanged table are equal");
    std::fs::write(&cut, text.lines().take(3).collect::<Vec<_>>().join("\n")).unwrap();
    assert_eq!(admin(&["restore", &dump]).0, Some(5), "it is not empty");
    assert_eq!(admin(&["destroy", "another"]).0, Some(2));
    assert_eq!(json(&["destroy", "mounttable"])["rows"], saved["rows"]);
    assert_eq!(names.mt("alice", &["resolve", "team/web"]).0, Some(3), "there is no root");
    assert_eq!(admin(&["restore", &cut]).0, Some(2), "a file that was cut off is not half restored");
    assert_eq!(json(&["restore", &dump])["rows"], saved["rows"]);
    assert_eq!(names.json("alice", &["resolve", "team/web"])["servers"][0]["address"], "h:1");
    assert_eq!(json(&["check", "--fix"]), json!([]));
    assert_eq!(json(&["limits"])[1], json!({"user": "alice", "nodes": "default", "servers": "unlimited"}));
}

/// Commands that inspect names, and commands for permissions.
#[test]
fn names_are_inspected_and_permissions_are_changed() {
    let folder = tempfile::tempdir().unwrap();
    let upper = Names::start(folder.path(), "upper", &["--in-memory"]);
    let lower = Names::start(folder.path(), "lower", &["--in-memory"]);
    let ok = |caller: &str, arguments: &[&str]| {
        let (code, said) = upper.mt(caller, arguments);
        assert_eq!(code, Some(0), "{arguments:?}");
        said
    };
    ok("alice", &["mount", "a/web", "h:1", "--leaf", "--forever"]);
    ok("alice", &["mount", "to/lower", &lower.address, "--mt"]);
    ok("alice", &["mount", "to/lower/mail", "h:25"]);
    let tree = format!("a\n  web  h:1\nto\n  lower  {}\n    mail  h:25\n", lower.address);
    assert_eq!(ok("bob", &["tree"]), tree);
    assert_eq!(ok("bob", &["tree", "to", "--depth", "1"]), format!("lower  {}\n", lower.address));
    assert_eq!(ok("bob", &["ls", "--long", "a"]), "web  h:1  leaf  never\n");
    let server = |arguments: &[&str]| upper.json("bob", arguments)["servers"][0]["address"].clone();
    assert_eq!(server(&["resolve", "to/lower/mail"]), "h:25");
    assert_eq!(server(&["resolve", "--shallow", "to/lower"]), lower.address.as_str());
    assert!(server(&["resolve", "--table", "to/lower/mail"]).as_str().unwrap().contains(&lower.address));

    let first = upper.mt("bob", &["watch", "to/lower/mail", "--count", "1", "-o", "json"]);
    let watched: Value = serde_json::from_str(first.1.trim()).unwrap();
    assert_eq!((first.0, &watched["servers"][0]["address"]), (Some(0), &"h:25".into()), "watched where it is held");
    assert_eq!(upper.mt("bob", &["watch", "never", "--count", "1"]), (Some(0), "no servers\n\n".to_owned()));

    ok("alice", &["perms", "set", "a", r#"{"Admin":{"In":["alice"]}}"#]);
    assert_eq!(upper.mt("bob", &["watch", "a/web", "--count", "1"]).0, Some(4));
    ok("alice", &["perms", "add", "a", "bob", "Resolve", "Read"]);
    let tested = upper.json("alice", &["perms", "test", "a", "--who", "bob"]);
    let tags: Vec<_> = tested.as_array().unwrap().iter().map(|it| it["tag"].as_str().unwrap()).collect();
    assert_eq!(tags, ["Read", "Resolve"], "{tested}");
    assert_eq!(tested[0]["pattern"], "bob");
    ok("alice", &["perms", "remove", "a", "bob", "Read"]);
    assert_eq!(upper.json("bob", &["perms", "test", "a"]).as_array().unwrap().len(), 1);
    assert_eq!(upper.mt("bob", &["perms", "add", "a", "bob", "Admin"]).0, Some(4));
    assert_eq!(upper.mt("alice", &["perms", "add", "a", "bob", "Everything"]).0, Some(2));
}

/// With `-o ndjson` every command writes its document on one line, and a list on a line for each element.
#[test]
fn documents_are_written_on_lines() {
    let folder = tempfile::tempdir().unwrap();
    let names = Names::start(folder.path(), "memory", &["--in-memory"]);
    let write = |caller: &str, arguments: &[&str]| {
        let (code, output) = names.mt(caller, &[arguments, &["-o", "ndjson"]].concat());
        assert_eq!(code, Some(0), "{arguments:?}");
        output
    };
    let check = |cases: &[(&str, &str, &[&str], usize)]| {
        for &(command, caller, arguments, count) in cases {
            let output = write(caller, arguments);
            let lines = documents::check_lines(&format!("ebla mt {command}"), &output);
            assert_eq!(lines.len(), count, "{arguments:?}: {output}");
        }
    };
    // The section of the description, the caller, the command, and the number of its lines.
    let of_names: [(&str, &str, &[&str], usize); 15] = [
        ("mount", "alice", &["mount", "a/web", "h:1", "--leaf"], 1),
        ("mount", "alice", &["mount", "a/mail", "h:2", "--forever"], 1),
        ("resolve", "bob", &["resolve", "a/web/index"], 1),
        ("resolve", "bob", &["resolve", "a/mail"], 1),
        ("resolve --trace", "bob", &["resolve", "a/mail", "--trace"], 1),
        ("watch", "bob", &["watch", "a/web", "--count", "1"], 1),
        ("ls", "bob", &["ls", "a"], 2),
        ("glob", "bob", &["glob", "a/w*"], 1),
        ("glob", "bob", &["glob", "z*"], 0),
        ("tree", "bob", &["tree"], 3),
        ("stat", "alice", &["stat", "a"], 1),
        ("whoami", "alice", &["whoami"], 1),
        ("perms set", "alice", &["perms", "set", "a", r#"{"Admin":{"In":["alice"]}}"#], 1),
        ("perms add", "alice", &["perms", "add", "a", "bob", "Resolve"], 1),
        ("perms test", "bob", &["perms", "test", "a"], 1),
    ];
    check(&of_names);
    // The names of its fields are those of tags, so it is not compared with the description.
    let permissions = documents::lines(&write("alice", &["perms", "get", "a"]));
    assert_eq!((permissions.len(), &permissions[0]["permissions"]["Resolve"]["In"][0]), (1, &"bob".into()));
    let dump = folder.path().join("dump.jsonl");
    let dump = dump.to_str().unwrap();
    let of_administration: [(&str, &str, &[&str], usize); 14] = [
        ("perms remove", "alice", &["perms", "remove", "a", "bob", "Resolve"], 1),
        ("unmount", "alice", &["unmount", "a/mail"], 1),
        ("admin setup", "server", &["admin", "setup", "--dry-run"], 1),
        ("admin check", "server", &["admin", "check"], 0),
        ("admin limit", "server", &["admin", "limit", "alice", "--nodes", "30"], 1),
        ("admin limits", "server", &["admin", "limits"], 2),
        ("admin counters", "server", &["admin", "counters"], 1),
        ("admin readonly", "server", &["admin", "readonly", "off"], 1),
        ("admin sweep", "server", &["admin", "sweep"], 1),
        ("admin recount", "server", &["admin", "recount"], 0),
        ("admin dump", "server", &["admin", "dump", dump], 1),
        ("rm", "server", &["rm", "-r", "a"], 1),
        ("admin destroy", "server", &["admin", "destroy", "mounttable"], 1),
        ("admin restore", "server", &["admin", "restore", dump], 1),
    ];
    check(&of_administration);
}

/// Names that lead from one table into another, by the same commands.
#[test]
fn mounted_mounttables_are_followed() {
    let folder = tempfile::tempdir().unwrap();
    let upper = Names::start(folder.path(), "upper", &["--in-memory"]);
    let lower = Names::start(folder.path(), "lower", &["--in-memory"]);
    let ok = |arguments: &[&str]| {
        let (code, said) = upper.mt("alice", arguments);
        assert_eq!(code, Some(0), "{arguments:?}");
        said
    };
    ok(&["mount", "to/lower", lower.address.as_str(), "--mt"]);
    ok(&["mount", "to/lower/web", "h:1", "--leaf"]);
    assert_eq!(lower.json("alice", &["resolve", "web"])["servers"][0]["address"], "h:1");
    assert_eq!(ok(&["glob", "..."]), format!("\nto\nto/lower  {}\nto/lower/web  h:1\n", lower.address));
    assert_eq!(ok(&["ls", "to/lower"]), "web  h:1\n");
    let traced = upper.json("alice", &["resolve", "to/lower/web", "--trace"]);
    assert_eq!((traced["hops"].as_array().unwrap().len(), &traced["names"][0]), (2, &"/h:1".into()));
    let over_both = ["resolve", "to/lower/web", "--root", "127.0.0.1:1", "--root", upper.address.as_str()];
    assert_eq!(upper.json("alice", &over_both)["servers"][0]["leaf"], true, "a dead root is skipped");
    let twice = [&["mount", "of/both", "h:2"], &over_both[2..]].concat();
    ok(&twice);
    let unreachable = ["mount", "of/none", "h:2", "--root", "127.0.0.1:1"];
    assert_eq!(upper.mt("alice", &unreachable).0, Some(6), "no root is reachable");
    ok(&["rm", "-r", "of"]);
    ok(&["rm", "to/lower"]);
    assert_eq!(upper.mt("alice", &["resolve", "to/lower/web"]).0, Some(3));
    assert_eq!(lower.mt("alice", &["resolve", "web"]).0, Some(0), "the mount was removed, not the table");
}

/// The default is five minutes, and the command shows it.
#[test]
fn a_mount_expires_by_default() {
    let folder = tempfile::tempdir().unwrap();
    let names = Names::start(folder.path(), "memory", &["--in-memory"]);
    let seconds_left = |name: &str| {
        let listed = names.mt("alice", &["ls", "--long", name]).1;
        let left = listed.split_once("  in ").and_then(|(_, rest)| rest.split_once(' ')).map(|(seconds, _)| seconds);
        left.map(|seconds| seconds.parse::<u64>().unwrap())
    };
    let made = names.json("alice", &["mount", "short/web", "h:1"]);
    assert!(made["deadline_micros"].as_i64().is_some() && made["server"] == "h:1", "{made}");
    assert!((200..=300).contains(&seconds_left("short").unwrap()));
    assert_eq!(names.json("alice", &["mount", "long/web", "h:1", "--forever"])["deadline_micros"], Value::Null);
    assert_eq!(seconds_left("long"), None);
    assert_eq!(names.json("alice", &["mount", "long/mail", "h:2", "0"])["deadline_micros"], Value::Null);
    let output = Command::new(support::ebla())
        .args(["mt", "mount", "short/mail", "h:2", "60", "--root", &names.address, "--as", "alice"])
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("expires in ") && said.contains("mt publish"), "{said}");
}

#[test]
fn a_command_does_not_start_before_its_server_is_mounted() {
    let folder = tempfile::tempdir().unwrap();
    let names = Names::start(folder.path(), "memory", &["--in-memory"]);
    let started = folder.path().join("started");
    let touch = format!("touch {}", started.display());
    let publish = |more: &[&str]| {
        let fixed = ["publish", "a/web", "--server", "h:1"];
        names.mt("bob", &[&fixed[..], more, &["--", "sh", "-c", touch.as_str()]].concat()).0
    };
    assert_eq!(names.mt("alice", &["perms", "set", "a", r#"{"Admin":{"In":["alice"]}}"#]).0, Some(0));
    assert_eq!(publish(&[]), Some(4), "bob may not mount there");
    assert_eq!(publish(&["--root", "127.0.0.1:1", "--wait", "1"]), Some(6), "no root is reachable");
    assert!(!started.exists());
    assert_eq!(names.mt("alice", &["perms", "add", "a", "bob", "Mount", "Create", "Resolve"]).0, Some(0));
    assert_eq!(publish(&[]), Some(0));
    assert!(started.exists());
}

#[test]
fn a_server_is_mounted_while_its_command_runs() {
    let folder = tempfile::tempdir().unwrap();
    let names = Names::start(folder.path(), "memory", &["--in-memory"]);
    let look = format!("until {} mt resolve a/web >&2; do sleep 0.05; done; exit 7", support::ebla());
    let (code, _) = names.mt("alice", &["publish", "a/web", "--server", "h:1", "--", "sh", "-c", look.as_str()]);
    assert_eq!(code, Some(7), "the command's own, which saw the mount");
    assert_eq!(names.mt("alice", &["resolve", "a/web"]).0, Some(3));
}

/// With a check of a file, and with a TCP check of a closed port.
#[test]
fn a_server_is_mounted_while_it_is_healthy() {
    let folder = tempfile::tempdir().unwrap();
    let names = Names::start(folder.path(), "memory", &["--in-memory"]);
    let well = folder.path().join("well");
    let (ebla, well) = (support::ebla(), well.display());
    let there = format!("until {ebla} mt resolve a/web >&2; do sleep 0.05; done");
    let gone = format!("while {ebla} mt resolve a/web >&2; do sleep 0.05; done");
    let script = format!("{ebla} mt resolve a/web && exit 1; touch {well}; {there}; rm {well}; {gone}; exit 7");
    let check = format!("exec=test -e {well} -a $SERVER = h:1");
    let publish = ["publish", "a/web", "--check-every", "1", "--server"];
    let of = |server: &'static str, check: &str, script: &str| {
        names.mt("alice", &[&publish[..], &[server, "--check", check, "--", "sh", "-c", script]].concat()).0
    };
    assert_eq!(of("h:1", &check, &script), Some(7), "not there before, there while it is well, and not there after");
    let never = format!("sleep 1; {ebla} mt resolve a/web; test $? = 3 && exit 7");
    assert_eq!(of("127.0.0.1:1", "tcp", &never), Some(7));
    assert_eq!(of("h:1", "udp", "true"), Some(2));
}

/// With the mounttable as the server: its gateway answers HTTP, and it does not implement the health service.
#[test]
fn health_is_checked_over_http_and_grpc() {
    let folder = tempfile::tempdir().unwrap();
    let names = Names::start(folder.path(), "memory", &["--in-memory", "--http-listen", "127.0.0.1:0"]);
    let http = names.process.ready["http"].as_str().unwrap().to_owned();
    let ebla = support::ebla();
    let there = format!("for i in $(seq 100); do {ebla} mt resolve a/web && exit 7; sleep 0.05; done; exit 1");
    let not = format!("sleep 1; {ebla} mt resolve a/web; test $? = 3 && exit 8");
    let publish = |server: &str, check: &str, script: &str| {
        let arguments = ["publish", "a/web", "--server", server, "--check", check, "--", "sh", "-c", script];
        names.mt("alice", &arguments).0
    };
    assert_eq!(publish(&http, "http=/v1/openapi.json", &there), Some(7));
    assert_eq!(publish(&http, "http=/nothing/here", &not), Some(8));
    assert_eq!(publish(&names.address, "grpc", &there), Some(7));
    assert_eq!(publish(&http, "grpc", &not), Some(8), "it speaks HTTP/1 and knows no such service");
    assert_eq!(publish(&names.address, "tcp", &there), Some(7));
}

#[test]
fn missing_servers_and_invalid_identities_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let names = Names::start(folder.path(), "memory", &["--in-memory"]);
    let nowhere = Command::new(support::ebla()).args(["mt", "ls", "--root", "127.0.0.1:1"]).output().unwrap();
    assert_eq!(nowhere.status.code(), Some(6));
    let said = String::from_utf8(nowhere.stderr).unwrap();
    assert!(said.lines().count() == 1 && said.contains("127.0.0.1:1") && said.contains("ebla mounttable"), "{said}");
    assert_eq!(names.mt("...", &["ls"]).0, Some(2), "no name of a caller");
}

/// Keys and a token as an identity provider would hand them out.
#[test]
fn callers_are_authenticated_by_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let kept = concat!(env!("CARGO_MANIFEST_DIR"), "/../mounttable/server/testdata/tokens");
    let (keys, token) = (format!("{kept}/keys.json"), format!("{kept}/alice.jwt"));
    let trust = ["--jwt-keys", &keys, "--jwt-issuer", "https://login.example.org", "--jwt-audience", "names"];
    // With signed tokens a new table is closed until a permissions file or a superuser opens it.
    let trust = [&trust[..], &["--superuser", "login.example.org:g:ops"]].concat();
    let names = Names::start_with(folder.path(), "tokens", &[&["--in-memory"], &trust[..]].concat());
    let mt = |arguments: &[&str]| {
        let output = Command::new(support::ebla())
            .arg("mt")
            .args(arguments)
            .args(["--root", &names.address, "-o", "json"])
            .output()
            .unwrap();
        (output.status.code(), serde_json::from_slice::<Value>(&output.stdout).unwrap_or_default())
    };
    assert_eq!(mt(&["whoami", "--token-file", &token]).0, Some(2), "the connection has no TLS");
    let (code, who) = mt(&["whoami", "--token-file", &token, "--insecure-token"]);
    assert_eq!((code, &who["user"]), (Some(0), &"login.example.org:u:alice".into()), "{who}");
    let only_ops = r#"{"Admin":{"In":["login.example.org:g:ops"]}}"#;
    assert_eq!(mt(&["mount", "a/web", "h:1", "--token-file", &token, "--insecure-token"]).0, Some(0));
    assert_eq!(mt(&["perms", "set", "a", only_ops, "--token-file", &token, "--insecure-token"]).0, Some(0));
    assert_eq!(mt(&["resolve", "a/web", "--token-file", &token, "--insecure-token"]).0, Some(0));
    assert_eq!(mt(&["resolve", "a/web"]).0, Some(4), "without a token the caller has no names");
    assert_eq!(mt(&["resolve", "a/web", "--as", "login.example.org:u:alice"]).0, Some(4), "a name is no proof");
    let forged = folder.path().join("forged.jwt");
    std::fs::write(&forged, std::fs::read_to_string(&token).unwrap().replacen(".eyJ", ".eyK", 1)).unwrap();
    assert_eq!(mt(&["resolve", "a/web", "--token-file", forged.to_str().unwrap(), "--insecure-token"]).0, Some(4));
    let alone =
        Command::new(support::ebla()).args(["mounttable", "--in-memory", "--jwt-keys", &keys]).output().unwrap();
    assert_eq!(alone.status.code(), Some(2), "whose tokens, and for whom?");
    let two = [
        &["mounttable", "--in-memory", "--listen", "127.0.0.1:0", "--jwt-issuer", "https://login.example.com"],
        &trust[..],
    ]
    .concat();
    let output = Command::new(support::ebla()).args(two).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && said.contains("each issuer has a file of its own keys"), "{said}");
}
