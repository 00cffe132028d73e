//! `row KEY CELL...`, then filters, one a line: the cells each lets pass.
//!
//! A filter is `name` or `name(argument, ...)`; patterns and strings stand in `'...'`, in which nothing is escaped, but
//! `\xHH` in bounds and masks; bounds are `['a', 'b')`, `-` where open; times are milliseconds; `-` is an absent branch of
//! `if`.

use std::ops::Bound;

use bytes::Bytes;
use ebla_model::cell::Row;
use ebla_model::filter::{CompiledFilter, Filter};

use crate::notation::{bytes, cell, cells_text, error_text, key, millis};
use crate::runner;

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

/// The filter that a line states.
pub(crate) fn parse(line: &str) -> Filter {
    let mut parser = Parser { rest: line };
    let filter = parser.filter();
    parser.space();
    assert!(parser.rest.is_empty(), "left over: {}", parser.rest);
    filter
}

struct Parser<'a> {
    rest: &'a str,
}

impl Parser<'_> {
    fn filter(&mut self) -> Filter {
        let name = self.word();
        match name.as_str() {
            "pass" => return Filter::PassAll,
            "block" => return Filter::BlockAll,
            "strip" => return Filter::StripValue,
            "sink" => return Filter::Sink,
            _ => {}
        }
        self.expect('(');
        let filter = self.with_arguments(&name);
        self.expect(')');
        filter
    }

    fn with_arguments(&mut self, name: &str) -> Filter {
        match name {
            "chain" => Filter::Chain(self.members()),
            "interleave" => Filter::Interleave(self.members()),
            "if" => {
                let predicate = Box::new(self.filter());
                let then = self.branch();
                let otherwise = self.branch();
                Filter::Condition { predicate, then, otherwise }
            }
            "row" => Filter::RowKeyRegex(self.string()),
            "family" => Filter::FamilyNameRegex(self.string()),
            "qualifier" => Filter::ColumnQualifierRegex(self.string()),
            "value" => Filter::ValueRegex(self.string()),
            "mask" => Filter::ValueBitmask(bytes(std::str::from_utf8(&self.string()).unwrap())),
            "label" => Filter::ApplyLabel(String::from_utf8(self.string().to_vec()).unwrap()),
            "sample" => Filter::RowSample(self.word().parse().unwrap()),
            "offset" => Filter::CellsPerRowOffset(self.word().parse().unwrap()),
            "limit" => Filter::CellsPerRowLimit(self.word().parse().unwrap()),
            "versions" => Filter::CellsPerColumnLimit(self.word().parse().unwrap()),
            "values" => {
                let (start, end) = self.bounds();
                Filter::ValueRange { start, end }
            }
            "columns" => {
                let family = String::from_utf8(self.string().to_vec()).unwrap();
                self.expect(',');
                let (start, end) = self.bounds();
                Filter::ColumnRange { family, start, end }
            }
            "time" => {
                let start = millis(&self.word());
                self.expect(',');
                let end = self.word();
                Filter::TimestampRange { start, end: (end != "-").then(|| millis(&end)) }
            }
            _ => panic!("not a filter: {name}"),
        }
    }

    fn members(&mut self) -> Vec<Filter> {
        let mut members = Vec::new();
        while !self.peek(')') {
            members.push(self.filter());
            self.skip(',');
        }
        members
    }

    fn branch(&mut self) -> Option<Box<Filter>> {
        self.expect(',');
        if self.skip('-') { None } else { Some(Box::new(self.filter())) }
    }

    fn bounds(&mut self) -> (Bound<Bytes>, Bound<Bytes>) {
        let lower: fn(Bytes) -> Bound<Bytes> = if self.skip('[') {
            Bound::Included
        } else {
            self.expect('(');
            Bound::Excluded
        };
        let start = self.bound();
        self.expect(',');
        let end = self.bound();
        let upper: fn(Bytes) -> Bound<Bytes> = if self.skip(']') {
            Bound::Included
        } else {
            self.expect(')');
            Bound::Excluded
        };
        (start.map_or(Bound::Unbounded, lower), end.map_or(Bound::Unbounded, upper))
    }

    fn bound(&mut self) -> Option<Bytes> {
        if self.skip('-') { None } else { Some(bytes(std::str::from_utf8(&self.string()).unwrap())) }
    }

    fn string(&mut self) -> Bytes {
        self.expect('\'');
        let (string, rest) = self.rest.split_once('\'').unwrap();
        self.rest = rest;
        Bytes::copy_from_slice(string.as_bytes())
    }

    fn word(&mut self) -> String {
        self.space();
        let end = self.rest.find(['(', ')', ',', ' ']).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        word.to_owned()
    }

    fn space(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn peek(&mut self, wanted: char) -> bool {
        self.space();
        self.rest.starts_with(wanted)
    }

    fn skip(&mut self, wanted: char) -> bool {
        let found = self.peek(wanted);
        if found {
            self.rest = &self.rest[wanted.len_utf8()..];
        }
        found
    }

    fn expect(&mut self, wanted: char) {
        assert!(self.skip(wanted), "{wanted} expected before {}", self.rest);
    }
}
