//! `row KEY CELL...`, then filters, one per line: the cells that pass each.

use ebla_model::cell::Row;
use ebla_model::filter::CompiledFilter;

use crate::notation::{cell, cells_text, error_text, key};
use crate::runner;
use crate::tree::parse;

#[test]
fn filters_let_cells_pass() {
    runner::run("filter", |input| {
        let mut row = Row::default();
        let mut out = Vec::new();
        for line in input {
            if let Some(rest) = line.strip_prefix("row ") {
                row = parse_row(rest);
            } else {
                out.push(outcome(&row, line));
            }
        }
        out
    });
}

fn parse_row(line: &str) -> Row {
    let mut words = line.split_whitespace();
    let key = key(words.next().unwrap());
    let mut cells: Vec<_> = words.map(cell).collect();
    cells.sort_by(ebla_model::Cell::order);
    Row { key, cells }
}

fn outcome(row: &Row, line: &str) -> String {
    match CompiledFilter::compile(parse(line)) {
        Ok(filter) => match filter.apply(row.clone(), &|| false) {
            Ok(passed) => {
                assert_eq!(
                    filter.matches(row, &|| false),
                    Ok(!passed.is_empty()),
                    "matches and apply disagree: {line}"
                );
                cells_text(&passed.cells)
            }
            Err(error) => error_text(&error),
        },
        Err(error) => error_text(&error),
    }
}
