//! Output of commands: data on stdout as a plain table or as JSON, messages on stderr, and the exit code.
//!
//! Tables have no borders and two spaces between columns, so that they are easy to read and to cut; their headings are bold on
//! a terminal. Bytes are escaped by [`ebla_client::encoding`]. Times are ISO 8601 in UTC for people and microseconds since 1970 in
//! JSON, whose field names are part of the interface. A command makes a table or a JSON document ([`Format`]); the
//! [`Layout`] says how it is written: `-o csv` and `-o raw` write the table for programs, `-o ndjson` the document on one line,
//! or each of its elements.
//!
//! A failed write to stdout is recorded and becomes the failure of the command at its end; a closed pipe (`| head`) is not a
//! failure.

use std::borrow::Cow;
use std::io::{ErrorKind, IsTerminal as _, Write as _};
use std::sync::OnceLock;

use clap::builder::{EnumValueParser, TypedValueParser};
use clap::{ArgMatches, ValueEnum as _};
pub use ebla_client::encoding::time;
use ebla_model::error::{Error, Reason};
use parking_lot::Mutex;
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
    /// As table, with more columns.
    Wide,
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
            Layout::Table | Layout::Wide | Layout::Csv | Layout::Raw => Self::Table,
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

/// Which columns a table has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Columns {
    /// Those that fit on a line. `-o csv` and `-o raw` have the same.
    Standard,
    /// More of them: `-o wide`.
    Wide,
}

/// The columns of the layout of the output.
pub fn columns() -> Columns {
    match layout() {
        Layout::Wide => Columns::Wide,
        _ => Columns::Standard,
    }
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

/// The text with a replacement for each control character: texts of other processes must not send control sequences to the terminal.
pub fn printable(text: &str) -> Cow<'_, str> {
    match text.contains(char::is_control) {
        true => Cow::Owned(text.replace(char::is_control, "\u{fffd}")),
        false => Cow::Borrowed(text),
    }
}

/// As [`printable`], for a text that may have several lines.
pub fn printable_lines(text: &str) -> Cow<'_, str> {
    let is_disturbing = |c: char| c.is_control() && c != '\n';
    match text.contains(is_disturbing) {
        true => Cow::Owned(text.replace(is_disturbing, "\u{fffd}")),
        false => Cow::Borrowed(text),
    }
}

/// Rows of text under a heading, columns aligned by the widest cell. Control characters in cells are replaced, except in CSV, where line ends are
/// data.
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
        let line = |row: &Vec<String>| row.iter().map(|cell| printable(cell)).collect::<Vec<_>>().join("\t");
        rows.map(|row| format!("{}\n", line(row))).collect()
    }

    fn render_in(&self, style: Style) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<_> = (0..columns).map(width).collect();
        let mut text = String::new();
        for (number, row) in self.rows.iter().enumerate() {
            let cells = row.iter().map(|cell| printable(cell));
            let line: Vec<_> = cells.zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
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

/// The output of a command that is repeated, until its run has ended. Locked to append to it or to take it.
static FRAME: Mutex<Option<Frame>> = Mutex::new(None);

/// What one run of a repeated command has written.
#[derive(Debug)]
struct Frame {
    text: Vec<u8>,
    notes: Notes,
}

/// Where messages go while the output is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notes {
    /// To stderr at once.
    Stderr,
    /// Into the output: on a terminal they would disturb it.
    Inline,
}

/// Keeps what is written from now on, for [`end_frame`].
pub fn begin_frame(notes: Notes) {
    *FRAME.lock() = Some(Frame { text: Vec::new(), notes });
}

/// What was written since [`begin_frame`]; later output is written at once again.
pub fn end_frame() -> Vec<u8> {
    FRAME.lock().take().map(|frame| frame.text).unwrap_or_default()
}

/// Writes to stdout. The first failure is recorded for [`finish`]; nothing is written after it.
pub fn print(text: &str) {
    print_bytes(text.as_bytes());
}

/// Like [`print()`], for bytes that need not be UTF-8.
pub fn print_bytes(bytes: &[u8]) {
    if let Some(frame) = FRAME.lock().as_mut() {
        frame.text.extend_from_slice(bytes);
        return;
    }
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

/// Writes what is buffered to stdout now, while a command goes on.
pub fn flush() {
    if let Err(error) = std::io::stdout().lock().flush() {
        let _first_counts = WRITE_FAILED.set(error);
    }
}

/// Flushes the output of a command.
///
/// # Errors
/// When a write to stdout failed, unless the pipe was closed by its reader.
pub fn finish() -> Result<(), Failure> {
    flush();
    match WRITE_FAILED.get() {
        Some(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::other(format!("cannot write to stdout: {error}; the output is incomplete")))
        }
        _ => Ok(()),
    }
}

/// Writes a line to stderr: a message beside the data. Control characters are replaced. Failures are ignored.
pub fn note(line: &str) {
    let line = printable_lines(line);
    if let Some(frame) = FRAME.lock().as_mut().filter(|frame| frame.notes == Notes::Inline) {
        frame.text.extend_from_slice(line.as_bytes());
        frame.text.push(b'\n');
        return;
    }
    drop(writeln!(std::io::stderr().lock(), "{line}"));
}

/// Writes one JSON document to stdout, as [`json_text`].
pub fn print_json(value: &Value) {
    print(&json_text(value));
}

/// A JSON document in the layout of the output: with `-o ndjson` on one line, or a list with a line for each element.
pub fn json_text(value: &Value) -> String {
    match layout() {
        Layout::Ndjson => lines(value),
        _ => document(value),
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
    fn control_characters_of_cells_do_not_reach_the_terminal() {
        let mut table = Table::default();
        table.row(vec!["a\x1b[2J".into(), "b\nc\td".into()]);
        assert_eq!(table.render_in(Style::Plain), "a\u{fffd}[2J  b\u{fffd}c\u{fffd}d\n");
        assert_eq!(table.render_raw(), "a\u{fffd}[2J\tb\u{fffd}c\u{fffd}d\n");
        assert_eq!(table.render_csv(), "a\x1b[2J,\"b\nc\td\"\n", "bytes for programs");
        assert_eq!(printable_lines("one\ntwo\r\x1b[A"), "one\ntwo\u{fffd}\u{fffd}[A");
        assert!(matches!(printable("ä…日"), Cow::Borrowed("ä…日")));
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
}
