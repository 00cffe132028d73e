//! The commands against a running cluster, as a person or a script would use them, and the client library's examples.

#![expect(clippy::unwrap_used, reason = "a test may fail, and then says where")]

use crate::support;

use std::path::Path;
use std::process::Command;

use ebla_client::Client;
use ebla_client::table::ReadOptions;
use ebla_model::key::{RowKey, RowSet};
use ebla_model::mutation::{Mutation, WriteTime};
use ebla_model::schema::TableName;
use ebla_runtime::Runtime;
use serde_json::Value;
use support::{Up, run};

fn json(address: &str, arguments: &[&str]) -> Value {
    serde_json::from_str(&run(address, arguments)).unwrap()
}

/// The exit code and what was said on stderr.
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

#[test]
fn a_table_is_made_filled_split_and_removed_by_commands() {
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
    assert_eq!(row[0]["cells"][0]["value"], "CNN");
    let scan = json(address, &["row", "scan", "web", "--prefix", "com.", "--reversed", "-o", "json"]);
    let keys: Vec<_> = scan.as_array().unwrap().iter().map(|row| row["key"].as_str().unwrap()).collect();
    assert_eq!(keys, ["com.example", "com.cnn.www"]);

    run(address, &["tablet", "split", "web", "--at", "com.d"]);
    let tablets = json(address, &["tablet", "list", "web", "-o", "json"]);
    let ends: Vec<_> = tablets.as_array().unwrap().iter().map(|tablet| tablet["end"].as_str()).collect();
    assert_eq!(ends, [Some("com.d"), Some("m"), None]);
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

/// Looks again and again until `holds`; what was seen then.
fn until(address: &str, arguments: &[&str], holds: impl Fn(&Value) -> bool) -> Value {
    let found = (0..3_000).find_map(|_| {
        let seen = json(address, arguments);
        support::pause();
        holds(&seen).then_some(seen)
    });
    found.unwrap()
}

#[test]
fn the_status_of_a_healthy_cluster_says_so_first_and_by_its_exit_code() {
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
    let (code, said) = fails(address, &["table", "list", "--timeout", "1us"]);
    assert!(code == Some(6) && said.contains("--timeout"), "{code:?} {said}");
}

#[test]
fn arguments_that_cannot_be_meant_are_usage_errors_with_an_example() {
    for command in [&["status"][..], &["table", "list"], &["wait"]] {
        for addr in ["foo", "http://127.0.0.1:8086", "127.0.0.1:99999", "127.0.0.1:1,"] {
            let (code, said) = fails("", &[command, &["--addr", addr]].concat());
            assert!(code == Some(2) && said.contains("example: 127.0.0.1:8086"), "{addr}: {code:?} {said}");
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

#[test]
fn a_cluster_that_grows_says_so_when_it_is_ready_and_stops_without_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    let (data, log) = (folder.path().join("data"), folder.path().join("data.log"));
    let up = Up::start(&data, &["--servers", "1"]);
    let splits = ["b", "c", "d", "e", "f", "g", "h"].map(|key| ["--split", key]).concat();
    run(&up.addresses[0], &[&["table", "create", "web", "--family", "f"], &splits[..]].concat());
    assert!(
        run(&up.addresses[0], &["status", "--exit-code"]).starts_with("healthy\n"),
        "one replica each was asked for"
    );
    assert!(std::fs::read_to_string(&log).unwrap().contains("Writes are on 1 of 1 disk before they are acknowledged."));
    up.stop();
    assert_eq!(warnings(&log), Vec::<String>::new());

    let up = Up::start(&data, &[]);
    let said = std::fs::read_to_string(&log).unwrap();
    assert!(said.contains("Writes are on 1 of 1 disk now; 10 tablets are being copied to 3 servers"), "{said}");
    let status = until(&up.addresses[0], &["status", "-o", "json"], |status| status["verdict"] == "healthy");
    assert_eq!(status["replicas_live"].as_u64(), Some(30));
    up.stop();
    let said = std::fs::read_to_string(&log).unwrap();
    assert!(said.contains("all tablets are fully replicated"), "{said}");
    let warned: Vec<_> = warnings(&log).into_iter().filter(|line| !line.contains("under-replicated")).collect();
    assert_eq!(warned, Vec::<String>::new());
}

#[test]
fn without_a_cluster_a_command_says_how_to_start_one() {
    let (code, said) = fails("127.0.0.1:1", &["status"]);
    assert!(code == Some(6) && said.contains("ebla up"), "{code:?} {said}");
}

#[test]
fn a_folder_in_use_and_a_public_address_are_refused_with_the_next_step() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let _up = Up::start(&data, &[]);
    let (code, said) = fails("", &["up", "--data", data.to_str().unwrap(), "--listen", "127.0.0.1:0"]);
    assert!(code == Some(5) && said.contains("another ebla runs"), "{said}");
    let (code, said) = fails("", &["up", "--ephemeral", "--listen", "0.0.0.0:0"]);
    assert!(code == Some(2) && said.contains("--insecure"), "{said}");
}

#[test]
fn the_client_librarys_examples_run() {
    let folder = tempfile::tempdir().unwrap();
    let up = Up::start(&folder.path().join("data"), &[]);
    // Examples are built beside the program, by the same call of cargo.
    let examples = Path::new(support::ebla()).parent().unwrap().join("examples");
    for name in ["hello", "counter"] {
        let output = Command::new(examples.join(name)).arg(&up.addresses[1]).output().unwrap();
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn the_client_library_speaks_the_public_api_at_one_address() {
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
        assert_eq!(table.sample_row_keys().await.unwrap().len(), 1);
    });
}
