//! The commands against a running cluster, as a person or a script would use them, and the client library's examples.

#![expect(clippy::unwrap_used, reason = "a test may fail, and then says where")]

mod support;

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
