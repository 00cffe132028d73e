//! Reads scripts, runs their cases, compares or rewrites.

use std::path::{Path, PathBuf};

/// Runs every script of `subject`: `run` computes the output of a case from its input lines.
pub(crate) fn run(subject: &str, run: impl Fn(&[&str]) -> Vec<String>) {
    let scripts = scripts(subject);
    assert!(!scripts.is_empty(), "no scripts in testdata/{subject}");
    let wrong: Vec<_> = scripts.iter().filter_map(|path| check(path, &run)).collect();
    assert!(wrong.is_empty(), "{}\nUPDATE=1 writes what came out", wrong.join("\n"));
}

fn scripts(subject: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(subject);
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

/// Runs a script. Returns the difference, unless it is written.
fn check(path: &Path, run: &impl Fn(&[&str]) -> Vec<String>) -> Option<String> {
    let expected = std::fs::read_to_string(path).unwrap();
    let actual = transcript(&expected, run);
    if actual == expected {
        return None;
    }
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(path, actual).unwrap();
        return None;
    }
    let lines = expected.lines().zip(actual.lines()).enumerate();
    let first = lines.clone().find(|(_, (expected, actual))| expected != actual);
    let (at, (expected, actual)) = first.unwrap_or((0, ("(another length)", "(another length)")));
    Some(format!("{}:{}\n  expected {expected}\n  came out {actual}", path.display(), at + 1))
}

/// The script with the current output of each case.
fn transcript(script: &str, run: &impl Fn(&[&str]) -> Vec<String>) -> String {
    let mut out = String::new();
    let mut input = Vec::new();
    let mut lines = script.lines();
    while let Some(line) = lines.next() {
        out.push_str(line);
        out.push('\n');
        if line == "---" {
            for line in run(&input) {
                assert!(!line.is_empty(), "an outcome holds an empty line");
                out.push_str(&line);
                out.push('\n');
            }
            input.clear();
            // The old output is skipped, up to the empty line that ends the case.
            if lines.by_ref().find(|line| line.is_empty()).is_some() {
                out.push('\n');
            }
        } else if !line.is_empty() && !line.starts_with('#') {
            input.push(line);
        }
    }
    assert!(input.is_empty(), "a case has no ---: {input:?}");
    out
}
