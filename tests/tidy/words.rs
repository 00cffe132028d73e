//! Words that the project does not use, in code or in texts: metaphors, and verbs that nobody searches for.
//!
//! A word of the tables below is refused in every Rust file, document, proto file and Makefile, also as a part of a snake case
//! identifier. The second column is the standard term. `docs/inside/style.md` explains the rule.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use regex::Regex;

use super::{files, relative, root};

/// Words and phrases of texts and snake case identifiers, in any case; patterns of the crate `regex`.
const PHRASES: [(&str, &str); 39] = [
    ("anew", "again"),
    ("lest", "so that … not"),
    ("whoever", "a named subject"),
    ("whosoever", "a named subject"),
    ("told", "reported, requested"),
    ("taken for", "treated as"),
    ("(in|out of|into|for) office", "active, standby, election"),
    ("depos(e|ed|es)", "lost mastership"),
    ("(is|are|was|were) to be", "must be"),
    ("stands in", "is in"),
    ("stand still", "static"),
    ("of its own accord", "by itself"),
    ("(/|[a-z]+,?) for good", "permanently"),
    ("mend(s|ed|ing)?", "repair"),
    ("(stop|stops|stopped|ends|end|leaves) in order", "graceful stop"),
    ("laid at the door", "attributed"),
    ("goodbye", "no metaphor"),
    ("(he|his|him|himself)", "they"),
    ("patients", "candidates"),
    ("hopeless", "unavailable"),
    ("strangers?", "unknown, of another cluster"),
    ("heirs?", "transfer candidates"),
    ("succession", "fast election"),
    ("accompany", "spawn"),
    ("leave_office", "step down"),
    ("nursery", "replica factory"),
    ("cradle", "child store"),
    ("crews?", "group executor"),
    ("comeback", "follower recovery"),
    ("bury|buried|buries", "add a tombstone"),
    ("neighbou?rs", "local peers"),
    ("boarding", "pending lookup"),
    ("rotor", "round-robin offset"),
    ("purse", "quota reservation"),
    ("blueprint", "new node"),
    ("glimpse|glance", "path read"),
    ("half.made", "incomplete"),
    ("ledger", "blind writes"),
    ("border rows?", "boundary rows"),
];

/// Identifiers in camel case, as they are.
const IDENTIFIERS: [(&str, &str); 56] = [
    ("Crew", "GroupExecutor"),
    ("Crews", "GroupExecutor"),
    ("Comeback", "FollowerRecovery"),
    ("Voices", "PeerConnections"),
    ("VotingWait", "VoteHoldoff"),
    ("Hood", "LocalPeers"),
    ("Neighbours", "LocalPeers"),
    ("Lane", "Priority"),
    ("Hosted", "ReplicaManager"),
    ("Nursery", "ReplicaFactory"),
    ("Cradle", "child store"),
    ("Birth", "StartMode"),
    ("Beginning", "InitialState"),
    ("SplitHelp", "TabletHost"),
    ("Announcer", "MetadataWriter"),
    ("Keeper", "MaintenanceLoop"),
    ("Looked", "Probe"),
    ("KeptFile", "HintFile"),
    ("Shape", "a view or snapshot"),
    ("Subject", "a qualified name"),
    ("Wanted", "Projection"),
    ("Stretch", "ColumnRange"),
    ("Gatherer", "RowAssembler"),
    ("StoreOr", "ReadError"),
    ("Pilot", "LookupTask"),
    ("Flight", "SingleFlight"),
    ("Flights", "SingleFlight"),
    ("Boarding", "PendingLookup"),
    ("Landed", "PendingLookup"),
    ("Landing", "PendingLookup"),
    ("Voice", "FailureSource"),
    ("Tried", "RetryState"),
    ("Doubt", "Ambiguity"),
    ("Ward", "RepairPlanner"),
    ("Circumstances", "PlanContext"),
    ("Desk", "AdminGateway"),
    ("Office", "MasterTerm"),
    ("Seat", "Leadership"),
    ("Told", "LogOnce"),
    ("TellLost", "ReportQuorumLoss"),
    ("SegmentWitness", "SegmentManifest"),
    ("Survey", "SegmentScan"),
    ("Grounded", "SystemStore"),
    ("Gathered", "CoalescingStore"),
    ("Surroundings", "Environment"),
    ("Glimpse", "PathRead"),
    ("Wish", "Batchable"),
    ("Trip", "BatchFuture"),
    ("Purse", "QuotaReservation"),
    ("Blueprint", "NewNode"),
    ("Deed", "Operation"),
    ("Act", "Action, Event"),
    ("Asker", "LoadClient"),
    ("Stock", "Fixture"),
    ("Picture", "ClusterSnapshot"),
    ("Ledger", "BlindWrites"),
];

/// Files and folders that keep their words, and why.
const EXCEPTIONS: [(&str, &str); 3] = [
    ("tests/tidy/words.rs", "the list itself"),
    ("docs/reports/", "dated reports of runs are not rewritten"),
    ("CHANGELOG.md", "entries of earlier releases are not rewritten"),
];

/// Every file that is checked.
fn checked() -> Vec<PathBuf> {
    let mut found: Vec<_> = [".rs", ".md", ".proto"].iter().flat_map(|suffix| files(&root(), suffix)).collect();
    found.push(root().join("Makefile"));
    found.retain(|path| !EXCEPTIONS.iter().any(|(place, _reason)| relative(path).starts_with(place)));
    found
}

/// The patterns with their words and replacements. An underscore separates words like a space.
fn patterns() -> Vec<(Regex, &'static str, &'static str)> {
    let phrase = |(word, instead): (&'static str, &'static str)| {
        let spaced = word.replace(' ', r"[ _]+");
        (Regex::new(&format!(r"(?i)(^|[^a-z])({spaced})([^a-z]|$)")).unwrap(), word, instead)
    };
    let identifier = |(word, instead): (&'static str, &'static str)| {
        // In prose such a word may begin a sentence: only code is searched, where it follows or precedes a mark.
        (Regex::new(&format!(r"(::|<|&|\(|\[|: |-> |struct |enum |impl |trait |for ){word}\b")).unwrap(), word, instead)
    };
    PHRASES.into_iter().map(phrase).chain(IDENTIFIERS.into_iter().map(identifier)).collect()
}

#[test]
fn refused_words_are_not_used() {
    let patterns = patterns();
    let mut found: BTreeMap<String, BTreeMap<&str, (usize, &str)>> = BTreeMap::new();
    for path in checked() {
        let text = fs::read_to_string(&path).unwrap();
        let is_code = path.extension().is_some_and(|extension| extension == "rs");
        for (pattern, word, instead) in &patterns {
            let is_identifier = word.starts_with(char::is_uppercase);
            if is_identifier && !is_code {
                continue;
            }
            let lines = text.lines().filter(|line| !is_identifier || !line.trim_start().starts_with("//"));
            let count = lines.filter(|line| pattern.is_match(line)).count();
            if count > 0 {
                found.entry(relative(&path)).or_default().insert(word, (count, instead));
            }
        }
    }
    let lines: Vec<_> = found
        .iter()
        .map(|(file, words)| {
            let words: Vec<_> = words.iter().map(|(word, (count, use_))| format!("{word} x{count} ({use_})")).collect();
            format!("{file}: {}", words.join(", "))
        })
        .collect();
    super::report("use the standard term instead of these words (tests/tidy/words.rs)", lines);
}

#[test]
fn words_are_found_in_texts_and_identifiers() {
    let is_found = |line: &str| patterns().iter().any(|(pattern, _, _)| pattern.is_match(line));
    let refused = [
        "made anew",
        "fn is_told()",
        "// Whoever asks",
        "let x: Crew = 1;",
        "he may",
        "it stops in order",
        "gone for good",
        "// for good",
    ];
    for line in refused {
        assert!(is_found(line), "{line}");
    }
    for line in [
        "the newest",
        "threshold",
        "// in order of keys",
        "let active = Actor::new();",
        "history",
        "    for good in [1] {",
    ] {
        assert!(!is_found(line), "{line}");
    }
}
