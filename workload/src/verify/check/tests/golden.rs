//! The golden scripts of `testdata/verify`: a history with one line for each operation, then the findings.
//!
//! ```text
//!   list | count | register, followed by `cut` for a truncated history
//!   START END WHO DO        in milliseconds; WHO w1 r1 back; DO append T | list … | increment | count N |
//!                           write T | swap X T | read T; then `-> answer`, or `?` for an unknown outcome; `-`: nothing
//! ```
//!
//! `UPDATE=1` rewrites the files; the change is reviewed as code.

use std::path::Path;
use std::time::Duration;

use crate::verify::check;
use crate::verify::history::{Action, History, Moment, Operation, Outcome, Prefix, Process, Token};

#[test]
fn findings_match_the_golden_scripts() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/verify");
    let mut wrong = Vec::new();
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        let expected = std::fs::read_to_string(&path).unwrap();
        let cases = expected.split("\n\n").map(|case| checked(case.trim_end()));
        let actual = format!("{}\n", cases.collect::<Vec<_>>().join("\n\n"));
        if actual != expected && std::env::var_os("UPDATE").is_some() {
            std::fs::write(&path, &actual).unwrap();
        }
        if actual != expected {
            wrong.push(format!("{}:\n{actual}", path.display()));
        }
    }
    assert!(wrong.is_empty(), "{}\nUPDATE=1 rewrites the golden files", wrong.join("\n"));
}

/// The case followed by its current findings.
fn checked(case: &str) -> String {
    let history_of = case.split("\n---").next().unwrap();
    let mut history = History::default();
    let mut row = String::new();
    for line in history_of.lines().filter(|line| !line.starts_with('#')) {
        let words: Vec<_> = line.split_whitespace().collect();
        match words.as_slice() {
            [kind @ ("list" | "count" | "register"), rest @ ..] => {
                row = format!("00/{kind}/r/00000000");
                if rest == ["cut"] {
                    history = History::cut();
                }
            }
            [start, end, who, what @ ..] => {
                let (outcome, action, text) = action(what);
                let text = text.filter(|_| *who == "back");
                text.into_iter().for_each(|text| history.note_text(&row, &text));
                let (start, end) = (moment(start), moment(end));
                history.note(&row, Operation { by: process(who), start, end, outcome, action });
            }
            _ => panic!("cannot read {line:?}"),
        }
    }
    let verdict = check::all(&history);
    let mut lines: Vec<_> = verdict
        .findings
        .iter()
        .map(|finding| format!("{}: {}\n  expected {}", finding.anomaly.name(), finding.seen, finding.expected))
        .collect();
    if verdict.undecided > 0 {
        lines.push("undecided".to_owned());
    }
    if lines.is_empty() {
        lines.push("valid".to_owned());
    }
    format!("{}\n---\n{}", history_of.trim_end(), lines.join("\n"))
}

fn moment(text: &str) -> Moment {
    Moment::after(Duration::from_millis(text.parse().unwrap()))
}

fn process(text: &str) -> Process {
    match text.split_at(1) {
        ("w", number) => Process::Writer(number.parse().unwrap()),
        ("r", number) => Process::Reader(number.parse().unwrap()),
        _ => Process::ReadBack,
    }
}

fn value(word: &str) -> Option<Token> {
    (word != "-").then(|| word.parse().unwrap())
}

fn list(words: &[&str]) -> String {
    words.iter().map(|word| format!("{word},")).collect()
}

/// The outcome, the action, and the text of a list that was read.
fn action(words: &[&str]) -> (Outcome, Action, Option<String>) {
    let ok = |action| (Outcome::Ok, action, None);
    let unknown = |action| (Outcome::Unknown, action, None);
    match words {
        ["append", token, "?"] => unknown(Action::Append { token: token.parse().unwrap(), list: None }),
        ["append", token, "->", seen @ ..] => {
            ok(Action::Append { token: token.parse().unwrap(), list: Some(Prefix::of(&list(seen))) })
        }
        ["list", seen @ ..] => {
            let text = list(seen);
            (Outcome::Ok, Action::List { list: Prefix::of(&text) }, Some(text))
        }
        ["increment", "?"] => unknown(Action::Increment { count: None }),
        ["increment", "->", count] => ok(Action::Increment { count: Some(count.parse().unwrap()) }),
        ["count", count] => ok(Action::Count { count: count.parse().unwrap() }),
        ["write", token, "?"] => unknown(Action::Write { value: token.parse().unwrap() }),
        ["write", token] => ok(Action::Write { value: token.parse().unwrap() }),
        ["swap", expected, token, answer @ ..] => {
            let swapped = match answer {
                ["->", "yes"] => Some(true),
                ["->", "no"] => Some(false),
                _ => None,
            };
            let action = Action::Swap { expected: value(expected), value: token.parse().unwrap(), swapped };
            if swapped.is_none() { unknown(action) } else { ok(action) }
        }
        ["read", seen] => ok(Action::Read { value: value(seen) }),
        _ => panic!("cannot read {words:?}"),
    }
}
