//! Google's own clients against `ebla up`, through each of its three servers: cbt and the Python client, unchanged. And
//! the commands of documents: the tutorial, and snippets for clients.

#![expect(clippy::unwrap_used, reason = "a test may fail, and then says where")]

use crate::support;
#[path = "support/tutorial.rs"]
mod tutorial;

use std::path::Path;
use std::process::Command;

use ebla_client::read::RowMerger;
use ebla_client::{Client, ReadOptions};
use ebla_model::cell::Row;
use ebla_model::key::{RowKey, RowSet};
use ebla_model::mutation::{Mutation, WriteTime};
use ebla_model::schema::TableName;
use ebla_model::time::Micros;
use ebla_proto::data;
use ebla_proto::services::bigtable_client::BigtableClient;
use ebla_runtime::Runtime;
use prost::Message as _;
use support::Up;

/// A document of the book.
fn document(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(name)
}

#[test]
fn the_tutorial_works() {
    tutorial::run(&document("learn/tutorial.md"), "");
}

#[test]
fn the_python_snippets_work() {
    tutorial::run(&document("learn/clients.md"), "ebla up > up.log 2>&1 &\nebla wait\n");
}

#[test]
fn the_first_program_of_the_readme_works() {
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

/// Rows of these sizes, in bytes of their one cell.
fn sized(sizes: &[(&str, usize)]) -> Vec<(RowKey, Vec<Mutation>)> {
    let row = |(row, size): &(&str, usize)| {
        let cell = Mutation::SetCell {
            family: "f".to_owned(),
            qualifier: "q".into(),
            timestamp: WriteTime::At(Micros::ZERO),
            value: row.as_bytes().iter().copied().cycle().take(*size).collect(),
        };
        (RowKey::copy_from_slice(row.as_bytes()), vec![cell])
    };
    sizes.iter().map(row).collect()
}

fn table_name(table: &str) -> TableName {
    TableName::from_parts("dev", "dev", table).unwrap()
}

async fn make_table(address: &str, table: &str, rows: &[(RowKey, Vec<Mutation>)]) {
    let client = Client::endpoint(address, Runtime::system("clients"));
    client.admin().create_table(&table_name(table), &[("f".to_owned(), None)], &[]).await.unwrap();
    for row in rows {
        client.table(&table_name(table)).mutate_row(&row.0, &row.1).await.unwrap();
    }
}

/// Reads all rows with gRPC's own limit of 4 MiB a message; also the size of the largest message.
async fn read_with_the_default_limit(address: &str, table: &str) -> (Vec<Row>, usize) {
    let mut client = BigtableClient::new(Runtime::system("clients").net.channel(address));
    let request = data::ReadRowsRequest { table_name: table_name(table).to_string(), ..Default::default() };
    let mut answers = client.read_rows(request).await.unwrap().into_inner();
    let (mut merger, mut rows, mut largest) = (RowMerger::default(), Vec::new(), 0);
    while let Some(answer) = answers.message().await.unwrap() {
        largest = largest.max(answer.encoded_len());
        rows.extend(merger.merge(answer).unwrap());
    }
    merger.finish().unwrap();
    (rows, largest)
}

#[test]
fn rows_larger_than_a_message_are_read_with_the_default_limit_of_grpc() {
    let folder = tempfile::tempdir().unwrap();
    let up = Up::start(&folder.path().join("data"), &[]);
    let written = sized(&[("a", 10), ("b", 5_000_000), ("c", 900_000), ("d", 2_900_000), ("e", 12_000_000), ("f", 10)]);
    let expected: Vec<_> = written.iter().map(|(key, mutations)| (key.clone(), mutations[0].clone())).collect();
    support::block_on(async {
        make_table(&up.addresses[0], "large", &written).await;
        let check = |rows: Vec<Row>| {
            assert_eq!(rows.len(), expected.len());
            for (row, (key, mutation)) in rows.iter().zip(&expected) {
                let Mutation::SetCell { value, .. } = mutation else { unreachable!() };
                assert!(row.key == *key && row.cells[0].value == *value, "row {key}");
            }
        };
        for address in &up.addresses {
            let (rows, largest) = read_with_the_default_limit(address, "large").await;
            check(rows);
            assert!(largest < 3 << 20, "a message of {largest} bytes");
            let endpoint = Client::endpoint(address, Runtime::system("endpoint"));
            let cluster = Client::connect_cluster(address, Runtime::system("cluster")).await.unwrap();
            for client in [endpoint, cluster] {
                let rows = client.table(&table_name("large")).read_rows(RowSet::all(), ReadOptions::default()).await;
                check(rows.unwrap());
            }
        }
    });
}

#[test]
fn cbt_reads_rows_that_fit_into_grpcs_limit() {
    if Command::new("cbt").arg("version").output().is_err() {
        eprintln!("skipped: cbt is not installed; it comes with the Google Cloud CLI");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let up = Up::start(&folder.path().join("data"), &[]);
    // Larger than a part, and larger than what stays whole for other clients.
    let rows = sized(&[("a", 900_000), ("b", 2_000_000), ("c", 3_900_000), ("d", 10)]);
    support::block_on(make_table(&up.addresses[0], "large", &rows));
    let all = cbt(&up.addresses[0], &["read", "large"]);
    for (key, size) in [("a", 900_000), ("b", 2_000_000), ("c", 3_900_000), ("d", 10)] {
        assert!(all.contains(&format!("\"{}\"", key.repeat(size))), "row {key}");
    }
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
