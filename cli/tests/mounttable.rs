//! A mounttable on a cluster of `ebla up`, used by commands as a person or a script would.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail, and then says where")]

mod support;

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use support::{Process, Up};

/// A running `ebla mounttable`, killed when dropped.
struct Names {
    _process: Process,
    address: String,
}

impl Names {
    /// One that believes its callers.
    fn start(folder: &Path, label: &str, arguments: &[&str]) -> Self {
        Self::start_with(folder, label, &[&["--insecure-dev-identity"], arguments].concat())
    }

    fn start_with(folder: &Path, label: &str, arguments: &[&str]) -> Self {
        let fixed = ["mounttable", "--listen", "127.0.0.1:0", "--superuser", "server"];
        let small = ["--gc-grace", "0", "--tablets", "2"];
        let all: Vec<_> = fixed.iter().chain(&small).chain(arguments).map(OsStr::new).collect();
        let process = Process::start(&folder.join(label), &all);
        let address = process.ready["address"].as_str().unwrap().to_owned();
        Self { _process: process, address }
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
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    }

    fn json(&self, caller: &str, arguments: &[&str]) -> Value {
        let (code, said) = self.mt(caller, &[arguments, &["-o", "json"]].concat());
        assert_eq!(code, Some(0), "{arguments:?}");
        serde_json::from_str(&said).unwrap()
    }
}

/// What a person does first, and what each refusal is to a script.
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
    let refused: [(&str, &[&str], i32); 7] = [
        ("bob", &["resolve", "prod/mail"], 4),
        ("bob", &["unmount", "prod/mail"], 4),
        ("alice", &stale, 5),
        ("alice", &["resolve", "prod/never"], 3),
        ("alice", &["mount", "prod/mail/below", "h:1"], 5),
        ("alice", &["mount", "a/../b", "h:1"], 2),
        ("alice", &["rm", "prod"], 5),
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
            .args(["--root", root, "--as", "alice"])
            .output()
            .unwrap();
        up.kill();
        (command.status.code(), String::from_utf8(command.stdout).unwrap())
    };
    assert_eq!(run(&["mount", "prod/web", "10.0.0.1:80"]).0, Some(0));
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
    let two = Names::start(folder.path(), "two", &["--cluster", cluster]);
    assert_eq!(one.mt("alice", &["mount", "a/b", "h:1"]).0, Some(0));
    assert_eq!(two.json("bob", &["resolve", "a/b"])["servers"][0]["address"], "h:1");
    drop(one);
    drop(two);
    let three = Names::start(folder.path(), "three", &["--cluster", cluster]);
    assert_eq!(three.json("bob", &["resolve", "a/b"])["servers"][0]["address"], "h:1");
}

/// Names that lead from one table into another, by the same commands.
#[test]
fn a_table_that_is_mounted_is_followed() {
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
    ok(&["rm", "to/lower"]);
    assert_eq!(upper.mt("alice", &["resolve", "to/lower/web"]).0, Some(3));
    assert_eq!(lower.mt("alice", &["resolve", "web"]).0, Some(0), "the mount was removed, not the table");
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

#[test]
fn without_a_server_and_without_a_login_a_command_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let names = Names::start(folder.path(), "memory", &["--in-memory"]);
    let nowhere = Command::new(support::ebla()).args(["mt", "ls", "--root", "127.0.0.1:1"]).output().unwrap();
    assert_eq!(nowhere.status.code(), Some(6));
    assert_eq!(names.mt("...", &["ls"]).0, Some(2), "no name of a caller");
}

/// Keys and a token as an identity provider would hand them out.
#[test]
fn callers_are_known_by_their_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let kept = concat!(env!("CARGO_MANIFEST_DIR"), "/../mounttable/testdata/tokens");
    let (keys, token) = (format!("{kept}/keys.json"), format!("{kept}/alice.jwt"));
    let trust = ["--jwt-keys", &keys, "--jwt-issuer", "https://login.example.org", "--jwt-audience", "names"];
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
    let (code, who) = mt(&["whoami", "--token-file", &token]);
    assert_eq!((code, &who["user"]), (Some(0), &"login.example.org:u:alice".into()), "{who}");
    let only_ops = r#"{"Admin":{"In":["login.example.org:g:ops"]}}"#;
    assert_eq!(mt(&["mount", "a/web", "h:1", "--token-file", &token]).0, Some(0));
    assert_eq!(mt(&["perms", "set", "a", only_ops, "--token-file", &token]).0, Some(0));
    assert_eq!(mt(&["resolve", "a/web", "--token-file", &token]).0, Some(0));
    assert_eq!(mt(&["resolve", "a/web"]).0, Some(4), "without a token one is nobody");
    assert_eq!(mt(&["resolve", "a/web", "--as", "login.example.org:u:alice"]).0, Some(4), "a name is no proof");
    let forged = folder.path().join("forged.jwt");
    std::fs::write(&forged, std::fs::read_to_string(&token).unwrap().replacen(".eyJ", ".eyK", 1)).unwrap();
    assert_eq!(mt(&["resolve", "a/web", "--token-file", forged.to_str().unwrap()]).0, Some(4));
    let alone =
        Command::new(support::ebla()).args(["mounttable", "--in-memory", "--jwt-keys", &keys]).output().unwrap();
    assert_eq!(alone.status.code(), Some(2), "whose tokens, and for whom?");
}
