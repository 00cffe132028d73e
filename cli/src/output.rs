//! What a command shows: data on stdout as a plain table or as JSON, messages on stderr, and the exit code.
//!
//! Tables have no borders and two spaces between columns, so that they read well and cut well; their headings are bold on a
//! terminal. Bytes are shown as [`crate::escape`] says. Times are ISO 8601 in UTC for people and microseconds since 1970 in
//! JSON, whose field names are part of the interface.
//!
//! A failed write to stdout is kept until the command ends, and is then its failure; a reader that went away (`| head`) is
//! none.

use std::io::{ErrorKind, IsTerminal as _, Write as _};
use std::sync::OnceLock;

use ebla_model::Micros;
use ebla_model::error::{Error, Reason};
use serde_json::Value;

use crate::escape;

/// The first write to stdout that failed.
static WRITE_FAILED: OnceLock<std::io::Error> = OnceLock::new();
/// How headings are shown; plain until the program says otherwise.
static STYLE: OnceLock<Style> = OnceLock::new();

/// How data is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Aligned columns for people.
    Table,
    /// One JSON document for programs.
    Json,
}

/// A failure as the shell sees it: the words, and the code that says what to do.
#[derive(Debug)]
pub struct Failure {
    /// What went wrong and what to do next; empty when the exit code is all that was asked for.
    pub message: String,
    /// 1 other, 2 usage, 3 not found, 4 already exists, 5 precondition, 6 unavailable or deadline, 7 permission, 8 damage.
    pub code: u8,
}

impl Failure {
    /// A failure that has no more special code: 1.
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

/// Whether headings stand out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Text alone.
    Plain,
    /// Bold headings, by a terminal's control sequences.
    Bold,
}

impl Style {
    /// What suits stdout: bold on a terminal, unless `NO_COLOR` is set or the terminal is a dumb one.
    pub fn of_stdout() -> Self {
        let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        if std::io::stdout().is_terminal() && !is_set("NO_COLOR") && !is_dumb { Self::Bold } else { Self::Plain }
    }
}

/// Has every later table shown so. The first call counts.
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

    /// The table as text, a line for each row.
    pub fn render(&self) -> String {
        self.render_in(STYLE.get().copied().unwrap_or(Style::Plain))
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

/// Writes to stdout. The first failure is kept for [`finish`]; nothing is written after it.
pub fn print(text: &str) {
    print_bytes(text.as_bytes());
}

/// As [`print()`], of bytes that need not be text.
pub fn print_bytes(bytes: &[u8]) {
    if !is_closed()
        && let Err(error) = std::io::stdout().lock().write_all(bytes)
    {
        let _first_counts = WRITE_FAILED.set(error);
    }
}

/// Whether stdout takes nothing more. A command that prints for long may end then: [`finish`] tells why.
pub fn is_closed() -> bool {
    WRITE_FAILED.get().is_some()
}

/// Ends the output of a command.
///
/// # Errors
/// When something could not be written to stdout, unless its reader went away.
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

/// Writes a line to stderr: what a person should know beside the data. It does not matter whether anybody reads it.
pub fn note(line: &str) {
    drop(writeln!(std::io::stderr().lock(), "{line}"));
}

/// Writes one JSON document to stdout.
pub fn print_json(value: &Value) {
    print(&document(value));
}

/// A JSON document as it is shown, in lines.
pub fn document(value: &Value) -> String {
    format!("{value:#}\n")
}

/// Bytes as a person reads and types them, by the rule of [`crate::escape`].
pub fn escaped(bytes: &[u8]) -> String {
    escape::text(bytes)
}

/// A value for people: as [`escaped`].
pub fn readable(bytes: &[u8]) -> String {
    escape::text(bytes)
}

/// A point in time for people: ISO 8601, UTC.
pub fn time(at: Micros) -> String {
    let (seconds, micros) = (at.get().div_euclid(1_000_000), at.get().rem_euclid(1_000_000));
    let nanos = i32::try_from(micros * 1_000).unwrap_or_default();
    prost_types::Timestamp { seconds, nanos }.to_string()
}

/// A size with the unit that keeps it short: `132.4 MiB`.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    #[expect(clippy::cast_precision_loss, reason = "shown with one decimal")]
    let mut value = bytes as f64 / 1024.0;
    let mut unit = UNITS[0];
    for next in UNITS.iter().skip(1) {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    format!("{value:.1} {unit}")
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
    fn a_table_without_a_heading_has_nothing_bold() {
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

    #[test]
    fn sizes_are_short() {
        assert_eq!(size(1_000), "1000 B");
        assert_eq!(size(1_536), "1.5 KiB");
        assert_eq!(size(128 << 20), "128.0 MiB");
    }
}
