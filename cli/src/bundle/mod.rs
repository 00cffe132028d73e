//! The file of `ebla debug zip`: what a person needs who helps with a problem, and nothing that belongs to users.
//!
//! ```text
//!   README.txt, manifest.json   the list of all parts, with sizes, and errors of those that are missing
//!   cluster/                    status, findings, versions, registration, groups, loads, tables, tablets, events   (collect)
//!   processes/HOST_PORT/        metrics, readiness, age and arguments of each process                     (pages)
//!   configuration/              configuration files without secrets                                       (redact)
//!   local.json                  this program and this machine
//! ```
//!
//! No part has values of cells. Keys of rows (bounds of tablets, hot rows) are removed unless the user asks for them. A part has at most
//! [`PART_BYTES_MAX`], all parts together have at most [`BUNDLE_BYTES_MAX`]: what is longer is cut, and the list says so. A part that cannot be collected
//! is listed with its error; the others are written.

mod collect;
mod pages;
mod redact;
mod slow;

use std::io::{self, Seek, Write};

use ebla_model::Micros;
use ebla_model::capacity::readable_bytes;
use serde_json::{Value, json};
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

pub use self::collect::{Collection, check_folder, collect};
pub use self::pages::is_of_ebla;
pub use self::redact::Keys;
use crate::output::{self, Table};

/// The largest part, in bytes before it is compressed.
pub const PART_BYTES_MAX: usize = 8 << 20;
/// All parts together.
pub const BUNDLE_BYTES_MAX: usize = 64 << 20;
/// The most parts: those of the cluster, and four for each of some hundred processes.
const PARTS_MAX: usize = 500;

/// The parts that every bundle has.
const RESERVED: [&str; 2] = ["README.txt", "manifest.json"];

/// A part of a bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Part {
    /// Its path in the file.
    name: String,
    /// Its content, or why there is none.
    content: Result<Vec<u8>, String>,
    /// How many bytes were cut off.
    cut_bytes: usize,
}

/// The parts of a bundle.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bundle {
    parts: Vec<Part>,
    bytes: usize,
}

impl Bundle {
    /// Adds a part, or why it is missing, of which the first 200 characters are kept. A part beyond the bounds is cut. A part gets another name if
    /// there is one of its name.
    pub fn add(&mut self, name: &str, content: Result<Vec<u8>, String>) {
        if self.parts.len() >= PARTS_MAX {
            return;
        }
        let content = content.map_err(|error| pages::excerpt(&error));
        let mut part = Part { name: self.free_name(safe_name(name)), content, cut_bytes: 0 };
        if let Ok(content) = &mut part.content {
            let room = PART_BYTES_MAX.min(BUNDLE_BYTES_MAX.saturating_sub(self.bytes));
            part.cut_bytes = content.len().saturating_sub(room);
            content.truncate(room);
            self.bytes += content.len();
        }
        self.parts.push(part);
    }

    /// The name, or, if a part has it, the first free one with a number: `configuration/x-2.toml`.
    fn free_name(&self, name: String) -> String {
        let is_taken =
            |name: &str| RESERVED.contains(&name) || self.parts.iter().any(|part| part.name.eq_ignore_ascii_case(name));
        if !is_taken(&name) {
            return name;
        }
        let file = name.rfind('/').map_or(0, |at| at + 1);
        let (stem, extension) =
            name.split_at(name.get(file..).and_then(|file| file.rfind('.')).map_or(name.len(), |at| file + at));
        let mut number = 2_u32;
        loop {
            let other = format!("{stem}-{number}{extension}");
            if !is_taken(&other) {
                return other;
            }
            number += 1;
        }
    }

    /// Adds a JSON document.
    pub fn add_json(&mut self, name: &str, document: Result<Value, String>) {
        self.add(name, document.map(|document| output::document(&document).into_bytes()));
    }

    /// The parts, for people.
    pub fn table(&self) -> Table {
        let mut table = Table::new(&["PART", "SIZE", "NOTE"]);
        for part in &self.parts {
            let size =
                part.content.as_ref().map_or_else(|_| "-".to_owned(), |content| readable_bytes(content.len() as u64));
            table.row(vec![part.name.clone(), size, note(part)]);
        }
        table
    }

    /// The parts, for programs.
    pub fn to_json(&self) -> Value {
        let one = |part: &Part| {
            json!({
                "part": part.name,
                "bytes": part.content.as_ref().ok().map(Vec::len),
                "cut_bytes": part.cut_bytes,
                "error": part.content.as_ref().err(),
            })
        };
        json!(self.parts.iter().map(one).collect::<Vec<_>>())
    }

    /// Writes the file. `keys`: whether parts have keys of rows; `at`: the time of the collection.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn write(&self, file: impl Write + Seek, keys: Keys, at: Micros) -> io::Result<()> {
        let mut zip = ZipWriter::new(file);
        let options = SimpleFileOptions::default().unix_permissions(0o600);
        let manifest = json!({
            "time_micros": at.get(),
            "version": env!("CARGO_PKG_VERSION"),
            "with_keys": keys == Keys::Included,
            "parts": self.to_json(),
        });
        zip.start_file("README.txt", options)?;
        zip.write_all(self.readme(keys, at).as_bytes())?;
        zip.start_file("manifest.json", options)?;
        zip.write_all(output::document(&manifest).as_bytes())?;
        for part in &self.parts {
            if let Ok(content) = &part.content {
                zip.start_file(part.name.as_str(), options)?;
                zip.write_all(content)?;
            }
        }
        zip.finish()?;
        Ok(())
    }

    fn readme(&self, keys: Keys, at: Micros) -> String {
        let keys = match keys {
            Keys::Included => "Keys of rows are included (--with-keys): bounds of tablets, hot rows.",
            Keys::Removed => "Keys of rows were removed; --with-keys includes them.",
        };
        format!(
            "Made by ebla debug zip (ebla {}) at {}.\n\nNo part has values of cells, tokens or private keys. {keys} Names of tables, \
             families, addresses and options of processes are included.\n\n{}",
            env!("CARGO_PKG_VERSION"),
            output::time(at),
            self.list()
        )
    }

    /// The list without the layout of the output.
    fn list(&self) -> String {
        let line = |part: &Part| {
            let size =
                part.content.as_ref().map_or_else(|_| "-".to_owned(), |content| readable_bytes(content.len() as u64));
            format!("  {:<40}  {size:>10}  {}", part.name, note(part)).trim_end().to_owned() + "\n"
        };
        self.parts.iter().map(line).collect()
    }
}

fn note(part: &Part) -> String {
    match (&part.content, part.cut_bytes) {
        (Err(error), _) => format!("missing: {error}"),
        (Ok(_), 0) => String::new(),
        (Ok(_), cut) => format!("cut: {} more", readable_bytes(cut as u64)),
    }
}

/// A relative path without parent folders: names of processes and files come from elsewhere.
fn safe_name(name: &str) -> String {
    let allowed = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' };
    let segments = name.split('/').filter(|segment| !segment.is_empty() && !segment.chars().all(|c| c == '.'));
    segments.map(|segment| segment.chars().map(allowed).collect::<String>()).collect::<Vec<_>>().join("/")
}

#[cfg(test)]
mod tests {
    use std::io::{Cursor, Read as _};

    use zip::ZipArchive;

    use super::*;

    fn bundle() -> Bundle {
        let mut bundle = Bundle::default();
        bundle.add_json("cluster/status.json", Ok(json!({"verdict": "healthy"})));
        bundle.add("cluster/loads.json", Err("no master is active".to_owned()));
        bundle.add("processes/127.0.0.1:8080/metrics.txt", Ok(vec![b'x'; PART_BYTES_MAX + 5_000]));
        bundle
    }

    #[test]
    fn the_file_has_the_parts_and_a_list_of_them() {
        let mut file = Cursor::new(Vec::new());
        bundle().write(&mut file, Keys::Removed, Micros::ZERO).unwrap();
        let mut zip = ZipArchive::new(file).unwrap();
        let mut names: Vec<String> = zip.file_names().map(|name| name.unwrap().into_owned()).collect();
        names.sort();
        let expected = ["README.txt", "cluster/status.json", "manifest.json", "processes/127.0.0.1_8080/metrics.txt"];
        assert_eq!(names, expected);
        let mut text = |name: &str| {
            let mut text = String::new();
            zip.by_name(name).unwrap().read_to_string(&mut text).unwrap();
            text
        };
        assert_eq!(text("cluster/status.json"), "{\n  \"verdict\": \"healthy\"\n}\n");
        assert_eq!(text("processes/127.0.0.1_8080/metrics.txt").len(), PART_BYTES_MAX);
        let manifest: Value = serde_json::from_str(&text("manifest.json")).unwrap();
        assert_eq!(manifest["with_keys"], false);
        assert_eq!(manifest["parts"][1]["error"], "no master is active");
        assert_eq!(manifest["parts"][2]["cut_bytes"], 5_000);
        let readme = text("README.txt");
        assert!(readme.contains("Keys of rows were removed"), "{readme}");
        assert!(readme.contains("missing: no master is active") && readme.contains("cut: 4.8 KiB more"), "{readme}");
    }

    #[test]
    fn the_whole_bundle_is_bounded() {
        let mut bundle = Bundle::default();
        for part in 0..PARTS_MAX + 10 {
            bundle.add(&format!("{part}"), Ok(vec![0; 1 << 20]));
        }
        assert_eq!((bundle.bytes, bundle.parts.len()), (BUNDLE_BYTES_MAX, PARTS_MAX));
        assert_eq!(bundle.parts.last().unwrap().cut_bytes, 1 << 20);
    }

    #[test]
    fn parts_of_one_name_get_different_names() {
        let mut bundle = Bundle::default();
        for name in ["a/x.toml", "a/x.toml", "a/X.toml", "a.b/x", "a.b/x", "README.txt", "x+y", "x-y", "x?y"] {
            bundle.add(name, Ok(Vec::new()));
        }
        let names: Vec<&str> = bundle.parts.iter().map(|part| part.name.as_str()).collect();
        let expected =
            ["a/x.toml", "a/x-2.toml", "a/X-3.toml", "a.b/x", "a.b/x-2", "README-2.txt", "x_y", "x-y", "x_y-2"];
        assert_eq!(names, expected);
        bundle.write(Cursor::new(Vec::new()), Keys::Removed, Micros::ZERO).unwrap();
    }

    #[test]
    fn an_error_is_short_and_printable() {
        let mut bundle = Bundle::default();
        bundle.add("a", Err(format!("500: \x1b[2J{}", "x".repeat(1_000))));
        let error = bundle.parts[0].content.clone().unwrap_err();
        assert!(error.starts_with("500: \u{fffd}[2Jxx") && error.chars().count() == 201, "{error}");
    }

    #[test]
    fn paths_stay_in_the_folder() {
        for (name, expected) in [
            ("/etc/passwd", "etc/passwd"),
            ("../../x", "x"),
            ("a/./b", "a/b"),
            ("processes/[::1]:80/x.txt", "processes/___1__80/x.txt"),
        ] {
            assert_eq!(safe_name(name), expected);
        }
    }
}
