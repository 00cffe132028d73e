//! What families cost, and quotas: writes beyond one are refused until enough is deleted, also after a restart.

#![expect(clippy::unwrap_used, reason = "a test may fail, and then says where")]

use crate::support;

use std::process::Command;

use bytes::Bytes;
use ebla_client::Client;
use ebla_model::error::{Error, Reason};
use ebla_model::key::RowKey;
use ebla_model::mutation::{Mutation, WriteTime};
use ebla_model::rmw::{Operation, Rule};
use ebla_model::schema::TableName;
use ebla_runtime::Runtime;
use serde_json::{Value, json};
use support::{Up, run};

/// Polls of a state that changes with a comparison of quotas, every five seconds.
const POLLS: usize = 3_000;

fn read_json(address: &str, arguments: &[&str]) -> Value {
    serde_json::from_str(&run(address, arguments)).unwrap()
}

fn describe(address: &str) -> Value {
    read_json(address, &["table", "describe", "t", "-o", "json"])
}

/// The exit code of a command, and what it said.
fn outcome(address: &str, arguments: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(support::ebla()).args(arguments).env("EBLA_ADDR", address).output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

/// Waits until a write of this cell to row `r` is refused, or accepted: the leaders get the state of a quota after the master has recorded it.
fn wait_for_write(address: &str, cell: &str, is_refused: bool) {
    let write = || outcome(address, &["row", "set", "t", "r", cell]);
    let is_reached = (0..POLLS).any(|_| {
        support::pause();
        write().1.contains("more than its quota") == is_refused
    });
    assert!(is_reached, "{cell} is not {}: {:?}", if is_refused { "refused" } else { "accepted" }, write());
}

/// Waits until the quota of a family, or of the table (`""`), is exceeded or not.
fn wait_for(address: &str, family: &str, exceeded: bool) {
    let path =
        if family.is_empty() { "/quota/exceeded".to_owned() } else { format!("/families/{family}/quota/exceeded") };
    let is_reached = (0..POLLS).any(|_| {
        support::pause();
        describe(address).pointer(&path) == Some(&json!(exceeded))
    });
    assert!(is_reached, "{path} is not {exceeded}: {}", describe(address));
}

fn set(family: &str) -> Mutation {
    Mutation::SetCell {
        family: family.to_owned(),
        qualifier: Bytes::from_static(b"q"),
        timestamp: WriteTime::Server,
        value: Bytes::from_static(b"value"),
    }
}

/// The calls of the data API while the quota of the family `large` is exceeded.
async fn calls_beyond_the_quota(address: &str) {
    let client = Client::endpoint(address, Runtime::system("test"));
    let name = TableName::from_parts("dev", "dev", "t").unwrap();
    let table = client.table(&name);
    let row = RowKey::new("row");
    let refused = |error: &Error| {
        error.reason == Reason::ResourceExhausted
            && error.message.contains("the column family large has more than its quota")
    };
    let rows = [
        (row.clone(), vec![set("large")]),
        (row.clone(), vec![set("small")]),
        (row.clone(), vec![set("small"), set("large")]),
        (RowKey::new("deleted"), vec![Mutation::DeleteRow]),
    ];
    let results = table.mutate_rows(&rows).await.unwrap();
    let is_refused: Vec<bool> = results.iter().map(|result| result.as_ref().is_err_and(refused)).collect();
    assert_eq!(is_refused, [true, false, true, false], "each row by itself: {results:?}");
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 2, "{results:?}");
    // Only the branch that is executed counts.
    let checked = table.check_and_mutate(&row, None, &[set("large")], &[]).await;
    assert!(checked.as_ref().is_err_and(refused), "{checked:?}");
    table.check_and_mutate(&row, None, &[set("small")], &[set("large")]).await.unwrap();
    let rule = |family: &str| Rule {
        family: family.to_owned(),
        qualifier: Bytes::from_static(b"n"),
        operation: Operation::Increment(1),
    };
    let modified = table.read_modify_write(&row, &[rule("large")]).await;
    assert!(modified.as_ref().is_err_and(refused), "{modified:?}");
    table.read_modify_write(&row, &[rule("small")]).await.unwrap();
}

#[test]
fn a_family_is_limited_and_the_others_are_not() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let up = Up::start(&data, &[]);
    let address = up.addresses[0].clone();
    run(&address, &["table", "create", "t", "--family", "large", "--family", "small", "--split", "m"]);
    let value = "x".repeat(1_000);
    for row in 0..40 {
        let row = if row % 2 == 0 { format!("a{row:03}") } else { format!("z{row:03}") };
        run(&address, &["row", "set", "t", &row, &format!("large:q={value}"), "small:q=v"]);
    }
    run(&address, &["row", "scan", "t"]);
    let described = describe(&address);
    let usage = |family: &str, what: &str| described["families"][family]["usage"][what].as_u64().unwrap();
    assert_eq!((usage("large", "cells"), usage("small", "cells")), (40, 40), "{described}");
    assert_eq!((usage("large", "cells_written"), usage("large", "cells_read")), (40, 40), "{described}");
    assert!(usage("large", "stored_bytes") > 40_000 && usage("small", "stored_bytes") < 10_000, "{described}");
    assert!(usage("large", "memory_bytes") > 40_000, "{described}");
    assert_eq!((&described["quota"], &described["families"]["large"]["quota"]), (&Value::Null, &Value::Null));
    let by_tablet = read_json(&address, &["table", "describe", "t", "--tablets", "-o", "json"]);
    let cells: Vec<_> = by_tablet["tablet_usage"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tablet| &tablet["families"]["large"]["cells"])
        .collect();
    assert_eq!(cells, [&json!(20), &json!(20)], "{by_tablet}");
    let text = run(&address, &["table", "describe", "t", "--tablets"]);
    assert!(text.contains("QUOTA") && text.contains("- to m"), "{text}");

    run(&address, &["table", "quota", "set", "t", "--family", "large", "--bytes", "20000"]);
    wait_for(&address, "large", true);
    wait_for_write(&address, "large:q=v", true);
    support::block_on(calls_beyond_the_quota(&address));
    let (code, said) = outcome(&address, &["row", "set", "t", "r", "large:q=v"]);
    assert!(
        code == Some(1) && said.contains("more than its quota of 19.5 KiB") && said.contains("ebla table quota"),
        "{said}"
    );
    up.stop();

    // It is part of the schema, so it holds from the first write on.
    let up = Up::start(&data, &[]);
    let address = up.addresses[0].clone();
    let (code, said) = outcome(&address, &["row", "set", "t", "r", "large:q=v"]);
    assert!(code == Some(1) && said.contains("more than its quota"), "{said}");
    for row in 0..40 {
        let row = if row % 2 == 0 { format!("a{row:03}") } else { format!("z{row:03}") };
        run(&address, &["row", "delete", "t", &row]);
    }
    wait_for(&address, "large", false);
    wait_for_write(&address, "large:q=v", false);
    run(&address, &["row", "set", "t", "r", "large:q=v"]);

    // Cells, of the table as a whole; and a quota that is raised or removed.
    run(&address, &["table", "quota", "set", "t", "--cells", "2"]);
    run(&address, &["row", "set", "t", "r", "small:p=v", "small:q=v"]);
    wait_for(&address, "", true);
    wait_for_write(&address, "small:s=v", true);
    assert!(
        outcome(&address, &["row", "set", "t", "r", "small:s=v"]).1.contains("it has more than its quota of 2 cells")
    );
    run(&address, &["table", "quota", "remove", "t"]);
    run(&address, &["row", "set", "t", "r", "small:s=v"]);
    let (code, said) = outcome(&address, &["table", "quota", "set", "t", "--family", "never", "--bytes", "1M"]);
    assert!(code == Some(3) && said.contains("never"), "{said}");
    assert_eq!(outcome(&address, &["table", "quota", "set", "t"]).0, Some(2), "without a limit");
    up.stop();
}
