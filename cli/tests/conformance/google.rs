//! Google's system tests of its Python client, as PyPI publishes them, against `ebla up`; and against a cluster with TLS and access control, with
//! a token. The latter runs one suite in `make test`, and all in `make conformance`.
//!
//! They are not in this repository: `make google-tests` fetches the package. A plugin for pytest
//! (`tests/conformance/python`) runs also what the tests would skip on an emulator. Lists beside it name the excluded tests.
//! It is an error when a test fails, skips itself, or when a line of a list fits no test.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use ebla_model::access::{Member, Permission, Policy, Resource, Role};
use ebla_runtime::{Clock, Runtime};
use ebla_tests::cluster::Cluster as _;
use ebla_tests::etcd::Build;
use ebla_tests::network::Loopback;
use ebla_tests::process::{Plan, ProcessCluster};
use ebla_tests::secured::{Callers, Security, USER};
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

/// The variable with which no test is left out for the time that it takes.
const WHOLE: &str = "EBLA_CONFORMANCE_WHOLE";
/// The project of all instances.
const PROJECT: &str = "ebla";

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

/// The suite that calls as a user with rights for its instance; the others create instances, so they call as an administrator.
const OF_USER: &str = "async";
/// The subject of the token of an administrator.
const ADMINISTRATOR: &str = "google";

/// The server of a suite.
struct Endpoint {
    address: String,
    /// The file of the CA and that of a token, with TLS and access control.
    secured: Option<(PathBuf, PathBuf)>,
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
    let plain = |address: &String| Endpoint { address: address.clone(), secured: None };
    let suites: Vec<_> = SUITES
        .iter()
        .zip(up.addresses.iter().map(plain))
        .map(|(suite, endpoint)| start(&python, &tests, folder.path(), &endpoint, *suite))
        .collect();
    let passed = finish(suites);
    assert!(passed > 150, "only {passed} tests were run: what was fetched is not what it was");
}

#[test]
fn googles_system_tests_pass_with_tls_and_a_token() {
    let Some((python, tests)) = environment() else {
        eprintln!("skipped: Google's tests or pytest are missing; `make google-tests` fetches them");
        return;
    };
    if let Err(skip) = Build::Debian.program() {
        eprintln!("skipped: {skip}");
        return;
    }
    support::block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let runtime = Runtime::system("google");
        let user: Member = format!("subject:{USER}").parse().unwrap();
        let instance: Resource = format!("projects/{PROJECT}/instances/{}", instance(OF_USER)).parse().unwrap();
        let options = ["--split-load", "0", "--administrators", &format!("subject:{ADMINISTRATOR}")];
        let mut plan = Plan {
            etcd: 1,
            masters: 1,
            server_options: options.map(str::to_owned).to_vec(),
            policies: vec![(instance.clone(), Policy::new([(Role::Admin, user)]).unwrap())],
            ..Plan::new(support::ebla(), SUITES.len())
        };
        let network = Loopback::claim().unwrap();
        let callers = Callers::prepare(Security::On, &mut plan, 0, &network, &runtime).unwrap();
        let cluster = ProcessCluster::start(plan, network, &callers.operator).await.unwrap();
        callers.wait_permitted(&cluster.addresses(), USER, &instance, Permission::CreateTable).await.unwrap();
        let is_whole = std::env::var_os(WHOLE).is_some();
        let wanted = SUITES.iter().filter(|(name, _paths)| is_whole || *name == OF_USER);
        let suites = wanted.zip(cluster.addresses()).map(|(suite, address)| {
            let subject = if suite.0 == OF_USER { USER } else { ADMINISTRATOR };
            let files = (callers.ca_file().unwrap(), callers.token_file(subject).unwrap().unwrap());
            start(&python, &tests, folder.path(), &Endpoint { address, secured: Some(files) }, *suite)
        });
        let passed = finish(suites.collect());
        assert!(passed > 40, "only {passed} tests were run: what was fetched is not what it was");
    });
}

/// Waits for these suites; the number of tests that have passed. Every other outcome is a failure.
fn finish(suites: Vec<Suite>) -> usize {
    let is_all = suites.len() == SUITES.len();
    let mut account = Account::default();
    for suite in suites {
        account.add(suite);
    }
    // A part of the suites need not have a test for each line.
    account.check_lines(if is_all { 1 } else { 0 });
    let counts: Vec<_> = account.counts.iter().map(|(outcome, count)| format!("{count} {outcome}")).collect();
    eprintln!("Google's system tests: {}", counts.join(", "));
    for (pattern, (count, reason)) in &account.lines {
        eprintln!("  left out: {count:4} {pattern}: {reason}");
    }
    assert!(account.wrong.is_empty(), "{}", account.wrong.join("\n"));
    account.counts.get("passed").copied().unwrap_or_default()
}

/// The instance of a suite.
fn instance(suite: &str) -> String {
    format!("python-{suite}")
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

fn start(
    python: &Path,
    tests: &Path,
    folder: &Path,
    endpoint: &Endpoint,
    (name, paths): (&'static str, &[&str]),
) -> Suite {
    let (report, output) = (folder.join(format!("{name}.json")), folder.join(format!("{name}.txt")));
    let mut lists = vec![ours().join("deselected.txt")];
    if std::env::var_os(WHOLE).is_none() {
        lists.push(ours().join("timed.txt"));
    }
    let lists: Vec<_> = lists.iter().map(|list| list.to_str().unwrap()).collect();
    let log = std::fs::File::create(&output).unwrap();
    let mut command = Command::new(python);
    if let Some((ca, token)) = &endpoint.secured {
        command.env("EBLA_CONFORMANCE_CA", ca).env("EBLA_CONFORMANCE_TOKEN_FILE", token);
    }
    let child = command
        .args(["-m", "pytest", "-p", "ebla_conformance", "-p", "no:cacheprovider", "-q", "--tb=short"])
        .args(paths.iter().map(|path| format!("tests/system/{path}")))
        .current_dir(tests)
        .env("PYTHONPATH", ours())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("GOOGLE_CLOUD_PROJECT", PROJECT)
        .env("BIGTABLE_TEST_INSTANCE", instance(name))
        .env("EBLA_CONFORMANCE_ADDRESS", &endpoint.address)
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

    /// `least`: how many tests each line must fit.
    fn check_lines(&mut self, least: u64) {
        for (pattern, (tests, reason)) in &self.lines {
            if *tests < least {
                self.wrong.push(format!("no test is {pattern}: remove the line"));
            }
            if reason.is_empty() {
                self.wrong.push(format!("{pattern} is left out without a reason"));
            }
        }
    }
}
