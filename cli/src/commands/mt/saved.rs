//! A dump as a file: a line of JSON for each part. Pure.
//!
//! ```text
//!   {"dump":{"version":1}}
//!   {"row":{"key":"4f53cda1a/b","cells":[{"family":"m","column":"i","timestamp_micros":0,"value":"…"}]}}
//!   {"counter":{"name":"n:alice","value":3}}
//!   {"end":{"parts":2}}
//! ```
//!
//! The last line says how many stand between it and the first, so that a file that was cut off is not taken for a whole one.

use std::io::{self, Write};

use ebla_mounttable::service::messages;
use ebla_mounttable::table::Tally;
use ebla_mounttable_namespace::operate::Saved;
use ebla_proto::mounttable::dump_reply;
use serde::{Deserialize, Serialize};

/// What this program writes, and all that it reads.
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
pub(super) struct Writer<W> {
    to: W,
    parts: u64,
    /// Of a row in several parts.
    last: String,
    tally: Tally,
}

impl<W: Write> Writer<W> {
    pub(super) fn begin(to: W) -> io::Result<Self> {
        let mut writer = Self { to, parts: 0, last: String::new(), tally: Tally::default() };
        writer.line(&Line::Dump { version: VERSION })?;
        Ok(writer)
    }

    pub(super) fn write(&mut self, part: Saved) -> io::Result<()> {
        self.parts = self.parts.saturating_add(1);
        let line = match part {
            Saved::Row(key, row) => {
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
            Saved::Counter(name, value) => {
                self.tally.counters = self.tally.counters.saturating_add(1);
                Line::Counter { name, value }
            }
        };
        self.line(&line)
    }

    /// The last line; how many rows and counters there are.
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

/// Reads a dump: its parts, and what is wrong with it as the last item.
pub(super) struct Reader<L> {
    lines: L,
    /// Of the line that is read next, from 1.
    number: u64,
    is_over: bool,
}

impl<L: Iterator<Item = io::Result<String>>> Reader<L> {
    pub(super) const fn of(lines: L) -> Self {
        Self { lines, number: 0, is_over: false }
    }

    fn read(&mut self) -> Result<Option<Saved>, String> {
        loop {
            self.number = self.number.saturating_add(1);
            let line = self.lines.next().ok_or("it has no last line, so it was cut off: make another dump")?;
            let line = line.map_err(|error| error.to_string())?;
            let line = serde_json::from_str(&line).map_err(|error| format!("no line of a dump: {error}"))?;
            match (self.number, line) {
                (1, Line::Dump { version: VERSION }) => {}
                (1, Line::Dump { version }) => {
                    return Err(format!("version {version} of dumps, of which this program knows {VERSION} only"));
                }
                (1, _) => return Err("a dump begins with its version".to_owned()),
                (_, Line::Dump { .. }) => return Err("a dump within a dump".to_owned()),
                (_, Line::Row { key, cells }) => {
                    let cell = |it: Cell| dump_reply::Cell {
                        family: it.family,
                        column: it.column,
                        timestamp_micros: it.timestamp_micros,
                        value: it.value,
                    };
                    let row = messages::row(cells.into_iter().map(cell).collect()).map_err(|error| error.message)?;
                    return Ok(Some(Saved::Row(key, row)));
                }
                (_, Line::Counter { name, value }) => return Ok(Some(Saved::Counter(name, value))),
                (number, Line::End { parts }) => {
                    let read = number.saturating_sub(2);
                    if parts != read {
                        return Err(format!("{parts} parts were written, {read} are here: make another dump"));
                    }
                    return if self.lines.next().is_none() {
                        Ok(None)
                    } else {
                        Err("something behind the end".to_owned())
                    };
                }
            }
        }
    }
}

impl<L: Iterator<Item = io::Result<String>>> Iterator for Reader<L> {
    type Item = Result<Saved, String>;

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
    use ebla_mounttable::store;
    use ebla_mounttable::store::Family;

    use super::*;

    fn parts() -> Vec<Saved> {
        let cell = |value: &str| store::Cell { timestamp: Micros::from_millis(7), value: value.to_owned() };
        let row = |column: &str| [((Family::Servers, column.to_owned()), cell("{\"a\": \"\u{e9}\n\"}"))].into();
        vec![
            Saved::Row("k/a".to_owned(), row("h:1")),
            Saved::Row("k/a".to_owned(), row("h:2")),
            Saved::Row("k/b".to_owned(), row("h:1")),
            Saved::Counter("n:alice".to_owned(), -3),
        ]
    }

    fn written(parts: Vec<Saved>) -> (String, Tally) {
        let mut text = Vec::new();
        let mut writer = Writer::begin(&mut text).unwrap();
        parts.into_iter().for_each(|part| writer.write(part).unwrap());
        let tally = writer.end().unwrap();
        (String::from_utf8(text).unwrap(), tally)
    }

    fn read(text: &str) -> Result<Vec<Saved>, String> {
        Reader::of(text.lines().map(|line| Ok(line.to_owned()))).collect()
    }

    #[test]
    fn what_was_written_is_read() {
        let (text, tally) = written(parts());
        assert_eq!(tally, Tally { rows: 2, counters: 1 });
        assert_eq!(read(&text).unwrap(), parts());
        assert_eq!(read(&written(Vec::new()).0).unwrap(), []);
    }

    #[test]
    fn no_line_can_be_missing_and_none_too_many() {
        let (text, _) = written(parts());
        let lines: Vec<_> = text.lines().collect();
        for left_out in 0..lines.len() {
            let rest: Vec<_> =
                lines.iter().enumerate().filter(|(at, _)| *at != left_out).map(|(_, line)| *line).collect();
            let wrong = read(&rest.join("\n")).unwrap_err();
            let says = match left_out {
                0 => "line 1: a dump begins with its version",
                5 => "line 6: it has no last line",
                _ => "line 5: 4 parts were written, 3 are here",
            };
            assert!(wrong.starts_with(says), "{wrong}");
        }
        assert!(read(&format!("{text}{text}")).unwrap_err().starts_with("line 6: something behind the end"));
    }

    #[test]
    fn what_is_no_dump_is_refused() {
        let newer = "{\"dump\":{\"version\":2}}";
        assert_eq!(read(newer).unwrap_err(), "line 1: version 2 of dumps, of which this program knows 1 only");
        let family = "{\"row\":{\"key\":\"k\",\"cells\":[{\"family\":\"z\",\"column\":\"\",\"timestamp_micros\":0,\"value\":\"\"}]}}";
        let begun = format!("{{\"dump\":{{\"version\":1}}}}\n{family}");
        assert_eq!(read(&begun).unwrap_err(), "line 2: no table has a family \"z\"");
        assert!(read("names").unwrap_err().starts_with("line 1: no line of a dump: "));
        assert!(read("").unwrap_err().starts_with("line 1: it has no last line"));
    }
}
