//! Output of commands: data on stdout as a plain table or as JSON, messages on stderr, and the exit code.
//!
//! Tables have no borders and two spaces between columns, so that they are easy to read and to cut; their headings are bold on
//! a terminal. Bytes are escaped by [`crate::encoding`]. Times are ISO 8601 in UTC for people and microseconds since 1970 in
//! JSON, whose field names are part of the interface. A command makes a table or a JSON document ([`Format`]); the
//! [`Layout`] says how it is written: `-o csv` and `-o raw` write the table for programs, `-o ndjson` the document on one line,
//! or each of its elements.
//!
//! A failed write to stdout is recorded and becomes the failure of the command at its end; a closed pipe (`| head`) is not a
//! failure.

use std::io::{ErrorKind, IsTerminal as _, Write as _};
use std::sync::OnceLock;

use clap::builder::{EnumValueParser, TypedValueParser};
use clap::{ArgMatches, ValueEnum as _};
use ebla_model::Micros;
use ebla_model::error::{Error, Reason};
use serde_json::Value;

/// The first write to stdout that failed.
static WRITE_FAILED: OnceLock<std::io::Error> = OnceLock::new();
/// Style of headings; plain by default.
static STYLE: OnceLock<Style> = OnceLock::new();

/// Layout of the output; table by default.
static LAYOUT: OnceLock<Layout> = OnceLock::new();

/// What a command makes of its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A table, or text.
    Table,
    /// A JSON document.
    Json,
}

/// How the output is written: the values of `-o`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Layout {
    /// Aligned columns for people.
    Table,
    /// One JSON document for programs.
    Json,
    /// JSON, a line for each element of a list.
    Ndjson,
    /// Tables with commas between columns (RFC 4180), with a heading.
    Csv,
    /// Tables with tabs between columns, without a heading.
    Raw,
}

impl From<Layout> for Format {
    fn from(layout: Layout) -> Self {
        match layout {
            Layout::Table | Layout::Csv | Layout::Raw => Self::Table,
            Layout::Json | Layout::Ndjson => Self::Json,
        }
    }
}

/// The parser of `-o`: the names of the layouts, as formats. [`layout_of`] has the layout itself.
pub fn layouts() -> impl TypedValueParser<Value = Format> {
    EnumValueParser::<Layout>::new().map(Format::from)
}

/// The layout that a command line asks for with `-o`, in its innermost command that has this option.
pub fn layout_of(matches: &ArgMatches) -> Option<Layout> {
    let inner = matches.subcommand().and_then(|(_, inner)| layout_of(inner));
    let own = || matches.try_get_raw("output").ok().flatten()?.next_back()?.to_str();
    inner.or_else(|| Layout::from_str(own()?, false).ok())
}

/// Sets the layout of all later output. Only the first call has an effect.
pub fn set_layout(layout: Layout) {
    let _first_counts = LAYOUT.set(layout);
}

/// The layout of the output.
pub fn layout() -> Layout {
    LAYOUT.get().copied().unwrap_or(Layout::Table)
}

/// A failure as the shell sees it: the message and the exit code.
#[derive(Debug)]
pub struct Failure {
    /// What failed and what to do next; empty when only the exit code was requested.
    pub message: String,
    /// 1 other, 2 usage, 3 not found, 4 already exists, 5 precondition, 6 unavailable or deadline, 7 permission, 8 damage.
    pub code: u8,
}

impl Failure {
    /// A failure without a specific code: 1.
    pub fn other(message: impl Into<String>) -> Self {
        Self { message: message.into(), code: 1 }
    }

    /// The command line is wrong: 2.
    pub fn usage(message: impl Into<String>) -> Self {
        Self { message: message.into(), code: 2 }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { code: exit_code(error.reason), message: error.message }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::other(error.to_string())
    }
}

fn exit_code(reason: Reason) -> u8 {
    match reason {
        Reason::InvalidArgument => 2,
        Reason::NotFoundTable | Reason::NotFoundFamily | Reason::NotFound => 3,
        Reason::AlreadyExists => 4,
        Reason::FailedPrecondition => 5,
        Reason::Unavailable
        | Reason::Deadline
        | Reason::NoLeader
        | Reason::NotLeader
        | Reason::NotMaster
        | Reason::OutcomeUnknown
        | Reason::Busy => 6,
        Reason::PermissionDenied | Reason::Unauthenticated => 7,
        Reason::DataDamaged => 8,
        _ => 1,
    }
}

/// Style of headings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Text alone.
    Plain,
    /// Bold headings, by a terminal's control sequences.
    Bold,
}

impl Style {
    /// The style for stdout: bold on a terminal, unless `NO_COLOR` is set or the terminal is dumb.
    pub fn of_stdout() -> Self {
        let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        if std::io::stdout().is_terminal() && !is_set("NO_COLOR") && !is_dumb { Self::Bold } else { Self::Plain }
    }
}

/// Sets the style of all later tables. Only the first call has an effect.
pub fn set_style(style: Style) {
    let _first_counts = STYLE.set(style);
}

/// Rows of text under a heading, columns aligned by the widest cell.
#[derive(Debug, Default)]
pub struct Table {
    /// Whether the first row is a heading.
    has_heading: bool,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with this heading.
    pub fn new(heading: &[&str]) -> Self {
        Self { has_heading: true, rows: vec![heading.iter().map(|cell| (*cell).to_owned()).collect()] }
    }

    /// Adds a row; a row may be shorter than the heading.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// The table as text, a line for each row, in the layout of the output.
    pub fn render(&self) -> String {
        match layout() {
            Layout::Csv => self.render_csv(),
            Layout::Raw => self.render_raw(),
            _ => self.render_in(STYLE.get().copied().unwrap_or(Style::Plain)),
        }
    }

    /// Commas between columns; cells with commas, quotes or line ends in quotes (RFC 4180, but with a plain line end).
    fn render_csv(&self) -> String {
        let cell = |cell: &String| match cell.contains(['"', ',', '\n', '\r']) {
            true => format!("\"{}\"", cell.replace('"', "\"\"")),
            false => cell.clone(),
        };
        let line = |row: &Vec<String>| format!("{}\n", row.iter().map(cell).collect::<Vec<_>>().join(","));
        self.rows.iter().map(line).collect()
    }

    /// Tabs between columns, no heading. Bytes of rows are escaped, so a cell has no tab of its own.
    fn render_raw(&self) -> String {
        let rows = self.rows.iter().skip(usize::from(self.has_heading));
        rows.map(|row| format!("{}\n", row.join("\t"))).collect()
    }

    fn render_in(&self, style: Style) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<_> = (0..columns).map(width).collect();
        let mut text = String::new();
        for (number, row) in self.rows.iter().enumerate() {
            let line: Vec<_> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
            let line = line.join("  ");
            match style {
                Style::Bold if number == 0 && self.has_heading => {
                    text.push_str(&format!("\x1b[1m{}\x1b[0m", line.trim_end()));
                }
                _ => text.push_str(line.trim_end()),
            }
            text.push('\n');
        }
        text
    }
}

/// Writes to stdout. The first failure is recorded for [`finish`]; nothing is written after it.
pub fn print(text: &str) {
    print_bytes(text.as_bytes());
}

/// Like [`print()`], for bytes that need not be UTF-8.
pub fn print_bytes(bytes: &[u8]) {
    if !is_closed()
        && let Err(error) = std::io::stdout().lock().write_all(bytes)
    {
        let _first_counts = WRITE_FAILED.set(error);
    }
}

/// Whether a write to stdout has failed. A command with much output may stop then; [`finish`] returns the failure.
pub fn is_closed() -> bool {
    WRITE_FAILED.get().is_some()
}

/// Flushes the output of a command.
///
/// # Errors
/// When a write to stdout failed, unless the pipe was closed by its reader.
pub fn finish() -> Result<(), Failure> {
    if let Err(error) = std::io::stdout().lock().flush() {
        let _first_counts = WRITE_FAILED.set(error);
    }
    match WRITE_FAILED.get() {
        Some(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::other(format!("cannot write to stdout: {error}; the output is incomplete")))
        }
        _ => Ok(()),
    }
}

/// Writes a line to stderr: a message beside the data. Failures are ignored.
pub fn note(line: &str) {
    drop(writeln!(std::io::stderr().lock(), "{line}"));
}

/// Writes one JSON document to stdout; with `-o ndjson` on one line, or a list with a line for each element.
pub fn print_json(value: &Value) {
    match layout() {
        Layout::Ndjson => print(&lines(value)),
        _ => print(&document(value)),
    }
}

fn lines(value: &Value) -> String {
    match value {
        Value::Array(elements) => elements.iter().map(|element| format!("{element}\n")).collect(),
        other => format!("{other}\n"),
    }
}

/// A JSON document, pretty-printed.
pub fn document(value: &Value) -> String {
    format!("{value:#}\n")
}

/// A point in time for people: ISO 8601, UTC.
pub fn time(at: Micros) -> String {
    let (seconds, micros) = (at.get().div_euclid(1_000_000), at.get().rem_euclid(1_000_000));
    let nanos = i32::try_from(micros * 1_000).unwrap_or_default();
    prost_types::Timestamp { seconds, nanos }.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_without_trailing_blanks() {
        let mut table = Table::new(&["ID", "NAME"]);
        table.row(vec!["1".into(), "long name".into()]);
        table.row(vec!["1000".into(), "x".into()]);
        assert_eq!(table.render_in(Style::Plain), "ID    NAME\n1     long name\n1000  x\n");
        assert_eq!(table.render_in(Style::Bold), "\x1b[1mID    NAME\x1b[0m\n1     long name\n1000  x\n");
    }

    #[test]
    fn csv_quotes_what_needs_it_and_raw_has_tabs() {
        let mut table = Table::new(&["KEY", "VALUE"]);
        table.row(vec!["a,b".into(), "say \"x\"".into()]);
        table.row(vec!["c".into(), String::new()]);
        assert_eq!(table.render_csv(), "KEY,VALUE\n\"a,b\",\"say \"\"x\"\"\"\nc,\n");
        assert_eq!(table.render_raw(), "a,b\tsay \"x\"\nc\t\n");
        let mut plain = Table::default();
        plain.row(vec!["1".into(), "2".into()]);
        assert_eq!(plain.render_raw(), "1\t2\n");
    }

    #[test]
    fn ndjson_has_a_line_for_each_element() {
        assert_eq!(lines(&serde_json::json!([{ "a": 1 }, { "a": 2 }])), "{\"a\":1}\n{\"a\":2}\n");
        assert_eq!(lines(&serde_json::json!({ "a": [1, 2] })), "{\"a\":[1,2]}\n");
        assert_eq!(lines(&serde_json::json!([])), "");
    }

    #[test]
    fn a_table_without_a_heading_is_plain() {
        let mut table = Table::default();
        table.row(vec!["user".into(), "alice".into()]);
        assert_eq!(table.render_in(Style::Bold), "user  alice\n");
    }

    #[test]
    fn times_are_shown_in_utc() {
        assert_eq!(time(Micros::ZERO), "1970-01-01T00:00:00Z");
        assert_eq!(time(Micros::new(1_763_879_499_123_456)), "2025-11-23T06:31:39.123456Z");
        assert_eq!(time(Micros::new(-1)), "1969-12-31T23:59:59.999999Z");
    }
}
