//! What a command shows: data on stdout as a plain table or as JSON, messages on stderr, and the exit code.
//!
//! Tables have no borders and two spaces between columns, so that they read well and cut well. Bytes are shown escaped
//! (`\x00`) and accepted escaped. JSON field names are part of the interface.

use std::io::Write as _;

use ebla_model::error::{Error, Reason};
use serde_json::Value;

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

/// Rows of text under a heading, columns aligned by the widest cell.
#[derive(Debug, Default)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with this heading.
    pub fn new(heading: &[&str]) -> Self {
        Self { rows: vec![heading.iter().map(|cell| (*cell).to_owned()).collect()] }
    }

    /// Adds a row; a row may be shorter than the heading.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// The table as text, a line for each row.
    pub fn render(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<_> = (0..columns).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            let line: Vec<_> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
            text.push_str(line.join("  ").trim_end());
            text.push('\n');
        }
        text
    }
}

/// Writes to stdout. A reader that went away (`| head`) is no failure.
pub fn print(text: &str) {
    drop(std::io::stdout().lock().write_all(text.as_bytes()));
}

/// Writes one JSON document to stdout.
pub fn print_json(value: &Value) {
    print(&document(value));
}

/// A JSON document as it is shown, in lines.
pub fn document(value: &Value) -> String {
    format!("{value:#}\n")
}

/// Bytes as a person reads and types them: printable ASCII as it is, the rest as `\xHH`.
pub fn escaped(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for byte in bytes {
        match byte {
            b'\\' => text.push_str("\\\\"),
            0x20..=0x7e => text.push(char::from(*byte)),
            _ => text.push_str(&format!("\\x{byte:02x}")),
        }
    }
    text
}

/// A value for people: readable text as it is (UTF-8 included), otherwise escaped.
pub fn readable(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.chars().any(char::is_control) => text.to_owned(),
        _ => escaped(bytes),
    }
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
        assert_eq!(table.render(), "ID    NAME\n1     long name\n1000  x\n");
    }

    #[test]
    fn bytes_are_shown_escaped() {
        assert_eq!(escaped(b"a\\b\x00\xff"), "a\\\\b\\x00\\xff");
        assert_eq!(readable("é".as_bytes()), "é");
        assert_eq!(readable(b"\x00\x01"), "\\x00\\x01");
    }

    #[test]
    fn sizes_are_short() {
        assert_eq!(size(1_000), "1000 B");
        assert_eq!(size(1_536), "1.5 KiB");
        assert_eq!(size(128 << 20), "128.0 MiB");
    }
}
