//! The dump file format: one line of JSON for each part. Pure.
//!
//! ```text
//!   {"dump":{"version":1}}
//!   {"row":{"key":"4f53cda1a/b","cells":[{"family":"m","column":"i","timestamp_micros":0,"value":"…"}]}}
//!   {"counter":{"name":"n:alice","value":3}}
//!   {"end":{"parts":2}}
//! ```
//!
//! The last line has the number of parts, so that a truncated file is detected.

use std::io::{self, Write};

use ebla_mounttable_namespace::operate::DumpRecord;
use ebla_mounttable_tree::messages;
use ebla_mounttable_tree::table::Tally;
use ebla_proto::mounttable::dump_reply;
use serde::{Deserialize, Serialize};

/// The version of the format that this program writes and reads.
const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Line {
    Dump { version: u32 },
    Row { key: String, cells: Vec<Cell> },
    Counter { name: String, value: i64 },
    End { parts: u64 },
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Cell {
    family: String,
    column: String,
    timestamp_micros: i64,
    value: String,
}

/// Writes a dump.
pub(super) struct DumpWriter<W> {
    to: W,
    parts: u64,
    /// Key of the previous row: a row may be written in several parts.
    last: String,
    tally: Tally,
}

impl<W: Write> DumpWriter<W> {
    pub(super) fn begin(to: W) -> io::Result<Self> {
        let mut writer = Self { to, parts: 0, last: String::new(), tally: Tally::default() };
        writer.line(&Line::Dump { version: VERSION })?;
        Ok(writer)
    }

    pub(super) fn write(&mut self, part: DumpRecord) -> io::Result<()> {
        self.parts = self.parts.saturating_add(1);
        let line = match part {
            DumpRecord::Row(key, row) => {
                if self.last != key {
                    self.tally.rows = self.tally.rows.saturating_add(1);
                    key.clone_into(&mut self.last);
                }
                let cell = |it: dump_reply::Cell| Cell {
                    family: it.family,
                    column: it.column,
                    timestamp_micros: it.timestamp_micros,
                    value: it.value,
                };
                Line::Row { key, cells: messages::cells(row).into_iter().map(cell).collect() }
            }
            DumpRecord::Counter(name, value) => {
                self.tally.counters = self.tally.counters.saturating_add(1);
                Line::Counter { name, value }
            }
        };
        self.line(&line)
    }

    /// Writes the last line; returns the number of rows and counters.
    pub(super) fn end(mut self) -> io::Result<Tally> {
        self.line(&Line::End { parts: self.parts })?;
        self.to.flush()?;
        Ok(self.tally)
    }

    fn line(&mut self, line: &Line) -> io::Result<()> {
        serde_json::to_writer(&mut self.to, line)?;
        self.to.write_all(b"\n")
    }
}

/// Reads a dump: yields its parts, and an error as the last item if the dump is invalid.
pub(super) struct DumpReader<L> {
    lines: L,
    /// Number of the line that is read next, from 1.
    number: u64,
    is_over: bool,
}

impl<L: Iterator<Item = io::Result<String>>> DumpReader<L> {
    pub(super) const fn of(lines: L) -> Self {
        Self { lines, number: 0, is_over: false }
    }

    fn read(&mut self) -> Result<Option<DumpRecord>, String> {
        loop {
            self.number = self.number.saturating_add(1);
            let line =
                self.lines.next().ok_or("the last line is missing: the dump is truncated; create another dump")?;
            let line = line.map_err(|error| error.to_string())?;
            let line = serde_json::from_str(&line).map_err(|error| format!("not a line of a dump: {error}"))?;
            match (self.number, line) {
                (1, Line::Dump { version: VERSION }) => {}
                (1, Line::Dump { version }) => {
                    return Err(format!("unsupported dump version {version}; this program reads version {VERSION}"));
                }
                (1, _) => return Err("a dump must begin with its version".to_owned()),
                (_, Line::Dump { .. }) => return Err("unexpected version line inside the dump".to_owned()),
                (_, Line::Row { key, cells }) => {
                    let cell = |it: Cell| dump_reply::Cell {
                        family: it.family,
                        column: it.column,
                        timestamp_micros: it.timestamp_micros,
                        value: it.value,
                    };
                    let row = messages::row(cells.into_iter().map(cell).collect()).map_err(|error| error.message)?;
                    return Ok(Some(DumpRecord::Row(key, row)));
                }
                (_, Line::Counter { name, value }) => return Ok(Some(DumpRecord::Counter(name, value))),
                (number, Line::End { parts }) => {
                    let read = number.saturating_sub(2);
                    if parts != read {
                        return Err(format!("the dump has {read} parts instead of {parts}; create another dump"));
                    }
                    return if self.lines.next().is_none() {
                        Ok(None)
                    } else {
                        Err("unexpected data after the end of the dump".to_owned())
                    };
                }
            }
        }
    }
}

impl<L: Iterator<Item = io::Result<String>>> Iterator for DumpReader<L> {
    type Item = Result<DumpRecord, String>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_over {
            return None;
        }
        let read = self.read();
        self.is_over = !matches!(read, Ok(Some(_)));
        read.map_err(|wrong| format!("line {}: {wrong}", self.number)).transpose()
    }
}

#[cfg(test)]
mod tests {
    use ebla_model::Micros;
    use ebla_mounttable_tree::store;
    use ebla_mounttable_tree::store::Family;

    use super::*;

    fn parts() -> Vec<DumpRecord> {
        let cell = |value: &str| store::Cell { timestamp: Micros::from_millis(7), value: value.to_owned() };
        let row = |column: &str| [((Family::Servers, column.to_owned()), cell("{\"a\": \"\u{e9}\n\"}"))].into();
        vec![
            DumpRecord::Row("k/a".to_owned(), row("h:1")),
            DumpRecord::Row("k/a".to_owned(), row("h:2")),
            DumpRecord::Row("k/b".to_owned(), row("h:1")),
            DumpRecord::Counter("n:alice".to_owned(), -3),
        ]
    }

    fn written(parts: Vec<DumpRecord>) -> (String, Tally) {
        let mut text = Vec::new();
        let mut writer = DumpWriter::begin(&mut text).unwrap();
        parts.into_iter().for_each(|part| writer.write(part).unwrap());
        let tally = writer.end().unwrap();
        (String::from_utf8(text).unwrap(), tally)
    }

    fn read(text: &str) -> Result<Vec<DumpRecord>, String> {
        DumpReader::of(text.lines().map(|line| Ok(line.to_owned()))).collect()
    }

    #[test]
    fn a_dump_round_trips() {
        let (text, tally) = written(parts());
        assert_eq!(tally, Tally { rows: 2, counters: 1 });
        assert_eq!(read(&text).unwrap(), parts());
        assert_eq!(read(&written(Vec::new()).0).unwrap(), []);
    }

    #[test]
    fn missing_and_extra_lines_are_detected() {
        let (text, _) = written(parts());
        let lines: Vec<_> = text.lines().collect();
        for left_out in 0..lines.len() {
            let rest: Vec<_> =
                lines.iter().enumerate().filter(|(at, _)| *at != left_out).map(|(_, line)| *line).collect();
            let wrong = read(&rest.join("\n")).unwrap_err();
            let says = match left_out {
                0 => "line 1: a dump must begin with its version",
                5 => "line 6: the last line is missing",
                _ => "line 5: the dump has 3 parts instead of 4",
            };
            assert!(wrong.starts_with(says), "{wrong}");
        }
        assert!(
            read(&format!("{text}{text}"))
                .unwrap_err()
                .starts_with("line 6: unexpected data after the end of the dump")
        );
    }

    #[test]
    fn invalid_dumps_are_refused() {
        let newer = "{\"dump\":{\"version\":2}}";
        assert_eq!(read(newer).unwrap_err(), "line 1: unsupported dump version 2; this program reads version 1");
        let family = "{\"row\":{\"key\":\"k\",\"cells\":[{\"family\":\"z\",\"column\":\"\",\"timestamp_micros\":0,\"value\":\"\"}]}}";
        let begun = format!("{{\"dump\":{{\"version\":1}}}}\n{family}");
        assert_eq!(read(&begun).unwrap_err(), "line 2: unknown column family \"z\"");
        assert!(read("names").unwrap_err().starts_with("line 1: not a line of a dump: "));
        assert!(read("").unwrap_err().starts_with("line 1: the last line is missing"));
    }
}
