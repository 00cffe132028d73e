//! `write N lowest=N now=SECONDS [result=TEXT]` and `idle now=SECONDS`: the check of each write.

use ebla_model::id::Sequence;
use ebla_model::session::{SequenceCheck, SessionWindow};
use ebla_model::time::Micros;

use crate::notation::{bytes, option, text};
use crate::runner;

#[test]
fn writes_are_judged_by_their_session() {
    runner::run("session", |input| {
        let mut window = SessionWindow::default();
        input.iter().map(|line| step(&mut window, line)).collect()
    });
}

fn step(window: &mut SessionWindow, line: &str) -> String {
    let now = Micros::from_millis(option(line, "now").unwrap().parse::<i64>().unwrap() * 1000);
    if line.starts_with("idle ") {
        return if window.is_expired(now) { "expired".into() } else { "alive".into() };
    }
    let sequence: Sequence = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    let lowest = option(line, "lowest").unwrap().parse().unwrap();
    let verdict = match window.check(sequence) {
        SequenceCheck::New => {
            window.record(sequence, lowest, option(line, "result").map(bytes), now);
            "applied".into()
        }
        SequenceCheck::Duplicate(None) => "duplicate".to_owned(),
        SequenceCheck::Duplicate(Some(result)) => format!("duplicate, result {}", text(&result)),
        SequenceCheck::Acknowledged => "forgotten".into(),
    };
    let kept: Vec<_> = window.applied.keys().map(ToString::to_string).collect();
    format!("{verdict}; from {} kept [{}]", window.lowest_outstanding, kept.join(" "))
}
