//! Notation of filters and ranges in scripts.
//!
//! A filter is `name` or `name(argument, ...)`; patterns and strings are in `'...'`, in which nothing is escaped, but
//! `\xHH` in bounds and masks; bounds are `['a', 'b')`, `-` where open; times are milliseconds; `-` is an absent branch of
//! `if`.

use std::ops::Bound;

use bytes::Bytes;
use ebla_model::filter::Filter;

use super::notation::{bytes, millis};

/// The filter of a line.
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
