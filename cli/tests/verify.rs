//! `ebla verify` against `ebla up`: without faults, with a kill, and with a forged log.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail, and then says where")]

use crate::support;

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use ebla_model::schema::TableName;
use ebla_runtime::Runtime;
use ebla_workload::verify::{Load, Plan, create_table, endpoints};
use serde_json::Value;
use support::Up;

fn verify(up: &Up, arguments: &[&str]) -> Output {
    Command::new(support::ebla())
        .arg("verify")
        .args(arguments)
        .args(["-o", "json"])
        .env("EBLA_ADDR", up.addresses.join(","))
        .output()
        .unwrap()
}

/// The report of a run that must find nothing.
fn good(up: &Up, arguments: &[&str]) -> Value {
    let output = verify(up, arguments);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stdout));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    for anomaly in ["lost", "stale", "doubled", "half", "invented", "undecided"] {
        assert_eq!(report[anomaly], 0, "{anomaly}: {report:#}");
    }
    assert_eq!(report["read_through"].as_array().unwrap().len(), up.addresses.len());
    report
}

#[test]
fn a_run_without_faults_finds_nothing_and_a_second_one_uses_the_table() {
    let folder = tempfile::tempdir().unwrap();
    let up = Up::start(&folder.path().join("data"), &[]);
    for _ in 0..2 {
        let report = good(&up, &["--for", "2"]);
        assert_eq!(report["errors"], serde_json::json!({}), "no kind of call may be refused always");
        let count = |field: &str| report[field].as_u64().unwrap();
        assert!(count("acknowledged") > 0 && count("longest_stall_ms") > 0, "{report:#}");
        assert_eq!(count("attempted"), count("acknowledged") + count("unknown") + count("failed"));
    }
    // No address: nothing was verified, and that is no success.
    let output = Command::new(support::ebla()).args(["verify", "--addr", ","]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn a_log_is_checked_after_a_kill_and_a_forged_acknowledgement_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let log = folder.path().join("verify.log");
    let log_name = log.to_str().unwrap();
    let up = Up::start(&data, &[]);
    good(&up, &["--for", "2", "--log", log_name]);
    up.kill();
    let up = Up::start(&data, &[]);
    good(&up, &["--check", log_name]);

    let row = forge(&log);
    let output = verify(&up, &["--check", log_name]);
    assert_eq!(output.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((report["lost"].as_u64(), report["findings"][0]["row"].as_str()), (Some(1), Some(row.as_str())));
    assert!(String::from_utf8_lossy(&output.stderr).contains("1 lost"));
}

/// Adds a forged acknowledgement to a log; returns its row.
fn forge(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap();
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let is_put = |line: &&String| line.contains("\"do\":\"put\"") && line.contains("\"outcome\":\"ok\"");
    let mut forged: Value = serde_json::from_str(lines.iter().rev().find(is_put).unwrap()).unwrap();
    let version = forged["version"].as_str().unwrap().to_owned();
    let (writer, _) = version.split_once('.').unwrap();
    forged["version"] = Value::from(format!("{writer}.99999999"));
    let last = lines.len() - 1;
    lines.insert(last, forged.to_string());
    std::fs::write(log, lines.join("\n") + "\n").unwrap();
    forged["row"].as_str().unwrap().to_owned()
}

#[test]
fn a_load_continues_after_sigkill_and_restart_without_anomalies() {
    support::block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        let runtime = Runtime::system("verify");
        let table = TableName::from_parts("dev", "dev", "verify").unwrap();
        let mut up = Up::start(&data, &[]);
        let plan = Plan::default();
        create_table(&up.addresses[0], &table, plan.slots, &runtime).await.unwrap();
        let mut load = Load::new(plan, &runtime);
        for round in 1..=2 {
            let running = load.start(&endpoints(&up.addresses, &table, &runtime)).await.unwrap();
            while running.acknowledged() < round * 500 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            up.kill();
            load.finish(running).await;
            up = Up::start(&data, &[]);
        }
        let report = load.check(&endpoints(&up.addresses, &table, &runtime)).await.unwrap();
        assert!(report.is_good() && report.read_through.len() == up.addresses.len(), "{}", report.text());
    });
}
