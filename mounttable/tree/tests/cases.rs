//! The conformance cases T001 to T124: which of them a test shows, and which it does not.
//!
//! A test names its cases in its documentation (`/// T017 T018`), a golden script in its comments (`# T072 ...`), which
//! count for the test that reads the script. Cases without a test, or with an incomplete one, are in
//! `testdata/cases/exceptions.txt` with the reason; a case is in exactly one of both, unless it is marked as partly
//! shown.
//!
//! Tests that need a whole cluster are in `cli/tests/mounttables`, those of the command line in `cli/src/commands/mt`;
//! they name their cases in the same way.
//!
//! `make mounttable` passes the output of `cargo test` to [`the_table`] (`EBLA_CASES`): a case has passed when each
//! test that names it is `ok` there; tests of other crates are not part of that run.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test may fail, and then says where")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The number of cases.
const CASES: usize = 124;

/// Tests by the case that they name.
type Shown = BTreeMap<String, BTreeSet<String>>;

/// The other crates of the mounttable, relative to this one.
const SIBLINGS: [&str; 2] = ["../server", "../namespace"];

/// Tests of other crates that show cases, relative to this one: of a cluster, and of the command line.
const ELSEWHERE: [&str; 2] = ["../../cli/tests/mounttables", "../../cli/src/commands/mt"];

/// An entry of the list of exceptions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Exception {
    Waits,
    Partly,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// All files below `folder` with this suffix.
fn files(folder: &Path, suffix: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() {
            found.extend(files(&entry, suffix));
        } else if entry.to_string_lossy().ends_with(suffix) {
            found.push(entry);
        }
    }
    found.sort();
    found
}

/// The cases in a line: words of a T and three digits.
fn cases(line: &str) -> Vec<String> {
    let words = line.split(|c: char| !c.is_ascii_alphanumeric());
    let is_case =
        |word: &&str| word.len() == 4 && word.starts_with('T') && word.bytes().skip(1).all(|b| b.is_ascii_digit());
    words.filter(is_case).map(str::to_owned).collect()
}

/// The tests of a source file, each with the lines of its documentation and attributes, and those of its body.
fn tests(source: &str) -> Vec<(String, Vec<&str>, Vec<&str>)> {
    let mut tests: Vec<(String, Vec<&str>, Vec<&str>)> = Vec::new();
    let mut above = Vec::new();
    for line in source.lines().map(str::trim_start) {
        let name = line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ");
        let name = name.and_then(|rest| rest.split('(').next());
        if line.starts_with("///") || line.starts_with("#[") {
            above.push(line);
        } else if let Some(name) = name {
            tests.push((name.to_owned(), std::mem::take(&mut above), Vec::new()));
        } else {
            above.clear();
            if let Some((_, _, body)) = tests.last_mut() {
                body.push(line);
            }
        }
    }
    let is_test = |above: &[&str]| above.iter().any(|line| *line == "#[test]" || line.starts_with("#[tokio::test"));
    let is_ignored = |above: &[&str]| above.iter().any(|line| line.starts_with("#[ignore"));
    tests.retain(|(_, above, _)| is_test(above) && !is_ignored(above));
    tests
}

/// The sources of other crates.
fn sources_elsewhere() -> Vec<PathBuf> {
    ELSEWHERE.iter().flat_map(|folder| files(&root().join(folder), ".rs")).collect()
}

/// The names of the tests of other crates.
fn elsewhere() -> BTreeSet<String> {
    let sources = sources_elsewhere().into_iter().map(|path| fs::read_to_string(path).unwrap());
    let names = |source: String| tests(&source).into_iter().map(|(name, ..)| name).collect::<Vec<_>>();
    sources.flat_map(names).collect()
}

fn shown() -> Shown {
    let mut shown = Shown::new();
    let mut readers = BTreeMap::new();
    let siblings = SIBLINGS.iter().flat_map(|folder| files(&root().join(folder), ".rs")).collect();
    for path in [files(root(), ".rs"), siblings, sources_elsewhere()].concat() {
        let source = fs::read_to_string(path).unwrap();
        for (name, above, body) in tests(&source) {
            for case in above.iter().filter(|line| line.starts_with("///")).flat_map(|line| cases(line)) {
                shown.entry(case).or_default().insert(name.clone());
            }
            for subject in body.iter().filter_map(|line| line.split("runner::run(\"").nth(1)) {
                readers.insert(subject.split('"').next().unwrap().to_owned(), name.clone());
            }
        }
    }
    for path in files(&root().join("testdata"), ".txt") {
        let subject = path.parent().unwrap().file_name().unwrap().to_string_lossy().into_owned();
        let script = fs::read_to_string(&path).unwrap();
        let named = script.lines().filter(|line| line.starts_with('#')).flat_map(cases);
        for case in named.filter(|_| subject != "cases") {
            let Some(reader) = readers.get(&subject) else { panic!("{} is read by no test", path.display()) };
            shown.entry(case).or_default().insert(reader.clone());
        }
    }
    shown
}

fn exceptions() -> BTreeMap<String, (Exception, String)> {
    let list = fs::read_to_string(root().join("testdata/cases/exceptions.txt")).unwrap();
    let mut exceptions = BTreeMap::new();
    for line in list.lines().filter(|line| !line.starts_with('#')) {
        let words: Vec<_> = line.splitn(3, ' ').collect();
        let (kind, case, reason) = match words.as_slice() {
            ["waits", case, reason] => (Exception::Waits, *case, *reason),
            ["partly", case, reason] => (Exception::Partly, *case, *reason),
            _ => panic!("no exception: {line:?}"),
        };
        let before = exceptions.insert(case.to_owned(), (kind, reason.to_owned()));
        assert!(before.is_none() && !reason.trim().is_empty(), "{line:?} stands there twice, or without a reason");
    }
    exceptions
}

fn all() -> impl Iterator<Item = String> {
    (1..=CASES).map(|number| format!("T{number:03}"))
}

#[test]
fn every_case_is_shown_or_waits_for_a_reason() {
    let (shown, exceptions) = (shown(), exceptions());
    let mut wrong = Vec::new();
    for case in all() {
        match (shown.get(&case), exceptions.get(&case)) {
            (None, None) => wrong.push(format!("{case} is named by no test and not listed as waiting")),
            (Some(tests), Some((Exception::Waits, _))) => {
                wrong.push(format!("{case} is listed as waiting, and named by {tests:?}"));
            }
            (None, Some((Exception::Partly, _))) => {
                wrong.push(format!("{case} is listed as shown in part, by no test"))
            }
            _ => {}
        }
    }
    let known: BTreeSet<_> = all().collect();
    let unknown = shown.keys().chain(exceptions.keys()).filter(|case| !known.contains(*case));
    wrong.extend(unknown.map(|case| format!("there is no case {case}")));
    assert!(wrong.is_empty(), "correct testdata/cases/exceptions.txt, or write the tests:\n{}", wrong.join("\n"));
}

/// The outcomes in the output of `cargo test`, by the last part of the test's name; of two with one name the worse.
fn outcomes(log: &str) -> BTreeMap<&str, bool> {
    let mut outcomes = BTreeMap::new();
    for line in log.lines().filter_map(|line| line.strip_prefix("test ")) {
        let Some((name, outcome)) = line.split_once(" ... ") else { continue };
        let name = name.rsplit("::").next().unwrap_or(name);
        let is_ok = outcomes.entry(name).or_insert(true);
        *is_ok &= outcome == "ok";
    }
    outcomes
}

/// Prints each case, and whether every test that names it has passed according to the log in `EBLA_CASES`.
#[test]
fn the_table() {
    let Ok(path) = std::env::var("EBLA_CASES") else { return };
    let log = fs::read_to_string(&path).unwrap_or_else(|error| panic!("read {path}: {error}"));
    let (shown, exceptions, outcomes, elsewhere) = (shown(), exceptions(), outcomes(&log), elsewhere());
    let (mut passed, mut partly, mut waiting, mut failed) = (0, 0, 0, Vec::new());
    for case in all() {
        let Some(tests) = shown.get(&case) else {
            let reason = exceptions.get(&case).map_or("", |(_, reason)| reason.as_str());
            println!("{case}  waits    {reason}");
            waiting += 1;
            continue;
        };
        let is_ok = |test: &String| outcomes.get(test.as_str()).copied().unwrap_or_else(|| elsewhere.contains(test));
        let bad: Vec<_> = tests.iter().filter(|test| !is_ok(test)).collect();
        if !bad.is_empty() {
            println!("{case}  FAILED   not ok: {bad:?}");
            failed.push(case);
        } else if let Some((_, reason)) = exceptions.get(&case) {
            println!("{case}  partly   {reason}");
            partly += 1;
        } else {
            println!("{case}  passed   {}", tests.iter().cloned().collect::<Vec<_>>().join(", "));
            passed += 1;
        }
    }
    println!("{passed} passed, {partly} passed in part, {waiting} wait");
    assert!(failed.is_empty(), "no test shows these cases in {path}: {failed:?}");
}
