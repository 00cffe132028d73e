//! `table FAMILY...`, the current `row CELL...`, `now T`, then rules: the writes for the log, and the response.

use ebla_model::cell::Row;
use ebla_model::rmw::{Operation, Rule, evaluate, validate};
use ebla_model::time::Micros;

use crate::mutation::change_text;
use crate::notation::{bytes, cell, cells_text, column, error_text, key, millis, table};
use crate::runner;

#[test]
fn rules_read_modify_and_write() {
    runner::run("rmw", |input| {
        let mut schema = table("f g");
        let mut row = Row::empty(key("k"));
        let mut now = Micros::from_millis(1000);
        let mut rules = Vec::new();
        for line in input {
            match line.split_whitespace().collect::<Vec<_>>().as_slice() {
                ["row", cells @ ..] => row.cells = cells.iter().map(|text| cell(text)).collect(),
                ["table", ..] => schema = table(line.trim_start_matches("table")),
                ["now", time] => now = millis(time),
                ["append", place, suffix] => rules.push(rule(place, Operation::Append(bytes(suffix)))),
                ["increment", place, amount] => rules.push(rule(place, Operation::Increment(amount.parse().unwrap()))),
                _ => panic!("not a line of an rmw script: {line}"),
            }
        }
        let outcome = validate(&row.key, &rules).and_then(|()| evaluate(&schema, &row, &rules, now));
        match outcome {
            Ok((changes, cells)) => {
                let mut out: Vec<_> = changes.iter().map(change_text).collect();
                out.push(format!("answer {}", cells_text(&cells)));
                out
            }
            Err(error) => vec![error_text(&error)],
        }
    });
}

fn rule(place: &str, operation: Operation) -> Rule {
    let (family, qualifier) = column(place);
    Rule { family, qualifier, operation }
}
