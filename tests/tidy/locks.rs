//! Locks: one mutex type, without poisoning (docs/inside/style.md, rule 10).

use super::{read, relative, report, sources};

/// Types of `std::sync` that `parking_lot` replaces. Tokio's locks of the same names are refused too.
const REPLACED: [&str; 4] = ["Mutex", "RwLock", "Condvar", "PoisonError"];

/// Files that may name them, and why.
const EXCEPTIONS: [(&str, &str); 3] = [
    ("mounttable/", "its crates are not converted yet"),
    ("storage/src/log/mod.rs", "std's condition variable wakes the log's writer later: larger batches, fewer fsyncs"),
    ("tests/tidy/locks.rs", "the list itself"),
];

/// The types of the list above that a source text takes from `std::sync`, by path or by import.
fn replaced_types(text: &str) -> Vec<&'static str> {
    let is_named = |name: &str| {
        text.split("sync::").skip(1).any(|rest| match rest.strip_prefix('{') {
            Some(imports) => imports.split(';').next().unwrap_or_default().contains(name),
            None => rest.starts_with(name),
        })
    };
    REPLACED.into_iter().filter(|name| is_named(name)).collect()
}

#[test]
fn locks_are_those_of_parking_lot() {
    let mut found: Vec<(String, &str)> = Vec::new();
    for path in sources() {
        let types = replaced_types(&read(&path));
        found.extend(types.into_iter().map(|name| (relative(&path), name)));
    }
    for (place, _reason) in EXCEPTIONS {
        let is_used = found.iter().any(|(path, _)| path.starts_with(place));
        if !is_used {
            println!("{place} names none of {REPLACED:?}: remove it from EXCEPTIONS");
        }
    }
    found.retain(|(path, _)| !EXCEPTIONS.iter().any(|(place, _reason)| path.starts_with(place)));
    let lines = found.into_iter().map(|(path, name)| format!("{path}: {name}")).collect();
    report("use the type of `parking_lot`; its locks have no poisoning", lines);
}

#[test]
fn imports_of_locks_are_found() {
    let grouped = "use std::{\n    sync::{\n        Arc, Mutex,\n        atomic::{AtomicU64, Ordering},\n    },\n};";
    assert_eq!(replaced_types(grouped), ["Mutex"]);
    assert_eq!(
        replaced_types("use std::sync::{Arc, RwLockReadGuard};\nlet a: std::sync::Condvar;"),
        ["RwLock", "Condvar"]
    );
    assert!(replaced_types("use std::sync::{Arc, OnceLock};\nuse parking_lot::{Condvar, Mutex, RwLock};").is_empty());
}
