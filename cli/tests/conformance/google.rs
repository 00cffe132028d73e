//! Google's system tests of its Python client, as PyPI publishes them, against `ebla up`.
//!
//! They are not in this repository: `make google-tests` fetches the package. A plugin for pytest
//! (`tests/conformance/python`) runs also what the tests would skip on an emulator. Lists beside it name the excluded tests.
//! It is an error when a test fails, skips itself, or when a line of a list fits no test.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use ebla_runtime::Clock;
use serde_json::Value;

use crate::support::{self, Up};

/// The tests of each process. Each process has its own server, and all run concurrently.
const SUITES: [(&str, &[&str]); 3] = [
    ("sync", &["data/test_system_autogen.py", "data/test_metrics_autogen.py", "admin_overlay"]),
    ("async", &["data/test_system_async.py", "data/test_metrics_async.py"]),
    ("table", &["v2_client"]),
];
/// The longest suite takes two minutes where nothing else runs.
const LIMIT: Duration = Duration::from_secs(15 * 60);

/// A suite at work.
struct Suite {
    name: &'static str,
    child: Child,
    report: PathBuf,
    output: PathBuf,
}

/// The reports of all suites.
#[derive(Default)]
struct Account {
    counts: BTreeMap<String, usize>,
    /// How many tests each line of a list fits, and its reason.
    lines: BTreeMap<String, (u64, String)>,
    wrong: Vec<String>,
}

#[test]
fn googles_system_tests_pass() {
    let Some((python, tests)) = environment() else {
        eprintln!("skipped: Google's tests or pytest are missing; `make google-tests` fetches them");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    // The tests count the tablets of their table, which must not split by their load.
    let up = Up::start(&folder.path().join("data"), &["--split-load", "0"]);
    let suites: Vec<_> = SUITES
        .iter()
        .zip(&up.addresses)
        .map(|((name, paths), address)| start(&python, &tests, folder.path(), address, (*name, *paths)))
        .collect();
    let mut account = Account::default();
    for suite in suites {
        account.add(suite);
    }
    account.check_lines();
    let counts: Vec<_> = account.counts.iter().map(|(outcome, count)| format!("{count} {outcome}")).collect();
    eprintln!("Google's system tests: {}", counts.join(", "));
    for (pattern, (count, reason)) in &account.lines {
        eprintln!("  left out: {count:4} {pattern}: {reason}");
    }
    assert!(account.wrong.is_empty(), "{}", account.wrong.join("\n"));
    let passed = account.counts.get("passed").copied().unwrap_or_default();
    assert!(passed > 150, "only {passed} tests were run: what was fetched is not what it was");
}

/// Python with pytest, and the folder of the package with its tests.
fn environment() -> Option<(PathBuf, PathBuf)> {
    let home = PathBuf::from(std::env::var("HOME").unwrap_or_default());
    let folder = std::env::var("EBLA_CONFORMANCE_FOLDER").map_or(home.join(".cache/ebla/conformance"), PathBuf::from);
    let (python, tests) = (folder.join("bin/python"), folder.join("google-cloud-bigtable"));
    (python.exists() && tests.join("tests/system").exists()).then_some((python, tests))
}

/// Where the plugin and the lists are.
fn ours() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/conformance/python")
}

fn start(python: &Path, tests: &Path, folder: &Path, address: &str, (name, paths): (&'static str, &[&str])) -> Suite {
    let (report, output) = (folder.join(format!("{name}.json")), folder.join(format!("{name}.txt")));
    let mut lists = vec![ours().join("deselected.txt")];
    if std::env::var_os("EBLA_CONFORMANCE_WHOLE").is_none() {
        lists.push(ours().join("timed.txt"));
    }
    let lists: Vec<_> = lists.iter().map(|list| list.to_str().unwrap()).collect();
    let log = std::fs::File::create(&output).unwrap();
    let child = Command::new(python)
        .args(["-m", "pytest", "-p", "ebla_conformance", "-p", "no:cacheprovider", "-q", "--tb=short"])
        .args(paths.iter().map(|path| format!("tests/system/{path}")))
        .current_dir(tests)
        .env("PYTHONPATH", ours())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("GOOGLE_CLOUD_PROJECT", "ebla")
        .env("BIGTABLE_TEST_INSTANCE", format!("python-{name}"))
        .env("EBLA_CONFORMANCE_ADDRESS", address)
        .env("EBLA_CONFORMANCE_REPORT", &report)
        .env("EBLA_CONFORMANCE_LISTS", lists.join(":"))
        .stdout(Stdio::from(log.try_clone().unwrap()))
        .stderr(Stdio::from(log))
        .spawn()
        .unwrap();
    Suite { name, child, report, output }
}

impl Suite {
    /// Waits for its end; its report, if it came to one.
    fn finish(&mut self) -> Option<Value> {
        let clock = Clock::system();
        let begun = clock.monotonic();
        while self.child.try_wait().unwrap().is_none() {
            if clock.monotonic() - begun > LIMIT {
                return None;
            }
            support::pause();
        }
        serde_json::from_str(&std::fs::read_to_string(&self.report).ok()?).ok()
    }
}

impl Drop for Suite {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Account {
    fn add(&mut self, mut suite: Suite) {
        let Some(report) = suite.finish() else {
            let output = std::fs::read_to_string(&suite.output).unwrap_or_default();
            self.wrong.push(format!("{} did not finish:\n{output}", suite.name));
            return;
        };
        for test in report["tests"].as_array().unwrap() {
            let (outcome, detail) = (test["outcome"].as_str().unwrap(), test["detail"].as_str().unwrap());
            *self.counts.entry(outcome.to_owned()).or_default() += 1;
            if !matches!(outcome, "passed" | "deselected") {
                self.wrong.push(format!("{outcome}: {}\n{detail}", test["test"].as_str().unwrap()));
            }
        }
        for line in report["lines"].as_array().unwrap() {
            let (pattern, reason) = (line["pattern"].as_str().unwrap(), line["reason"].as_str().unwrap());
            let entry = self.lines.entry(pattern.to_owned()).or_insert((0, reason.to_owned()));
            entry.0 += line["tests"].as_u64().unwrap();
        }
    }

    fn check_lines(&mut self) {
        for (pattern, (tests, reason)) in &self.lines {
            if *tests == 0 {
                self.wrong.push(format!("no test is {pattern}: remove the line"));
            }
            if reason.is_empty() {
                self.wrong.push(format!("{pattern} is left out without a reason"));
            }
        }
    }
}
