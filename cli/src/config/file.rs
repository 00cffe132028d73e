//! The file: TOML with one key for each option, at the top level.

use std::path::{Path, PathBuf};

use toml::{Table, Value};

/// A configuration file.
#[derive(Clone, Debug, PartialEq)]
pub struct ConfigFile {
    /// Where it was read.
    pub path: PathBuf,
    /// The settings in alphabetical order.
    pub settings: Vec<Setting>,
}

/// One line `key = value`.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// The long name of an option, as written in the file.
    pub key: String,
    /// What it is set to.
    pub value: Given,
    /// The line of the key, from 1; 0 when it is not known.
    pub line: usize,
}

/// The value of a setting.
#[derive(Clone, Debug, PartialEq)]
pub enum Given {
    /// `true` or `false`.
    Truth(bool),
    /// A text or a number, as text.
    Text(String),
    /// A list of them.
    List(Vec<String>),
}

/// A file that cannot be used: which, where and why.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("configuration file {}{}: {reason}", path.display(), place(*line))]
pub struct InvalidFile {
    /// The file.
    pub path: PathBuf,
    /// The line, from 1; 0 when the file as a whole is meant.
    pub line: usize,
    /// What is wrong and what to do.
    pub reason: String,
}

fn place(line: usize) -> String {
    if line == 0 { String::new() } else { format!(", line {line}") }
}

/// The largest file that is read, in bytes: far more than all options need.
const FILE_BYTES_MAX: u64 = 1 << 20;

impl ConfigFile {
    /// Reads a file.
    ///
    /// # Errors
    /// When it cannot be read, has more than 1 MiB, or is no such file.
    pub fn open(path: &Path) -> Result<Self, InvalidFile> {
        let invalid = |reason: String| InvalidFile { path: path.to_owned(), line: 0, reason };
        let metadata = std::fs::metadata(path).map_err(|error| invalid(error.to_string()))?;
        if !metadata.is_file() {
            return Err(invalid("it is not a file".to_owned()));
        }
        if metadata.len() > FILE_BYTES_MAX {
            return Err(invalid(format!("it has {} bytes; at most {FILE_BYTES_MAX} are read", metadata.len())));
        }
        let text = std::fs::read_to_string(path).map_err(|error| invalid(error.to_string()))?;
        Self::parse(path, &text)
    }

    /// The file with this text.
    ///
    /// # Errors
    /// When it is not TOML, or has a section, a date or a nested list.
    pub fn parse(path: &Path, text: &str) -> Result<Self, InvalidFile> {
        let invalid = |line: usize, reason: String| InvalidFile { path: path.to_owned(), line, reason };
        let table: Table = text.parse().map_err(|error: toml::de::Error| {
            let line = error.span().map_or(0, |span| line_of(text, span.start));
            invalid(line, error.message().trim().replace('\n', "; "))
        })?;
        let mut settings = Vec::new();
        for (key, value) in table {
            let line = line_of_key(text, &key);
            let value = given(&value).map_err(|what| {
                let allowed = "a text, a number, true, false, or a list of texts";
                invalid(line, format!("{key} is {what}; an option is {allowed}, at the top level of the file"))
            })?;
            settings.push(Setting { key, value, line });
        }
        settings.sort_by(|one, other| one.key.cmp(&other.key));
        Ok(Self { path: path.to_owned(), settings })
    }

    /// The setting with this key.
    pub fn get(&self, key: &str) -> Option<&Setting> {
        self.settings.iter().find(|setting| setting.key == key)
    }

    /// An error at a setting.
    pub(super) fn invalid(&self, setting: &Setting, reason: String) -> InvalidFile {
        InvalidFile { path: self.path.clone(), line: setting.line, reason }
    }
}

fn given(value: &Value) -> Result<Given, &'static str> {
    match value {
        Value::Boolean(truth) => Ok(Given::Truth(*truth)),
        Value::Array(values) => values
            .iter()
            .map(scalar)
            .collect::<Option<Vec<_>>>()
            .map(Given::List)
            .ok_or("a list with other things than texts"),
        Value::Table(_) => Err("a section"),
        Value::Datetime(_) => Err("a date"),
        other => scalar(other).map(Given::Text).ok_or("of an unknown type"),
    }
}

/// A text or a number as text.
fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Integer(number) => Some(number.to_string()),
        Value::Float(number) => Some(number.to_string()),
        _ => None,
    }
}

/// The line, from 1, of a place in a text.
fn line_of(text: &str, place: usize) -> usize {
    1 + text.bytes().take(place).filter(|byte| *byte == b'\n').count()
}

/// The line, from 1, at which a key is set; 0 when it is written in a way that this simple search does not find.
fn line_of_key(text: &str, key: &str) -> usize {
    let sets = |line: &str| {
        let line = line.trim_start();
        let bare = line.strip_prefix('[').unwrap_or(line).trim_start_matches(['"', '\'']);
        bare.strip_prefix(key)
            .is_some_and(|rest| rest.trim_start_matches(['"', '\'']).trim_start().starts_with(['=', ']', '.']))
    };
    text.lines().position(sets).map_or(0, |index| index + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<ConfigFile, String> {
        ConfigFile::parse(Path::new("ebla.toml"), text).map_err(|error| error.to_string())
    }

    #[test]
    fn settings_are_texts_numbers_truths_and_lists() {
        let file = parse("# A server.\nlisten = \"0.0.0.0:8086\"\nsplit-load = 500\ninsecure = true\n\netcd = [\"http://a:1\", \"http://b:1\"]\n").unwrap();
        let shown: Vec<_> = file.settings.iter().map(|one| (one.key.as_str(), one.value.clone(), one.line)).collect();
        assert_eq!(
            shown,
            [
                ("etcd", Given::List(vec!["http://a:1".into(), "http://b:1".into()]), 6),
                ("insecure", Given::Truth(true), 4),
                ("listen", Given::Text("0.0.0.0:8086".into()), 2),
                ("split-load", Given::Text("500".into()), 3),
            ]
        );
        assert_eq!(parse("").unwrap().settings, []);
    }

    #[test]
    fn what_is_not_such_a_file_is_refused_with_its_line() {
        let refused = parse("data = \"/d\"\nlisten = \n").unwrap_err();
        assert!(refused.starts_with("configuration file ebla.toml, line 2: "), "{refused}");
        let refused = parse("data = \"/d\"\ndata = \"/e\"\n").unwrap_err();
        assert!(refused.contains("line 2") && refused.contains("duplicate key"), "{refused}");
        let refused = parse("\n[tablet-server]\ndata = \"/d\"\n").unwrap_err();
        assert!(refused.contains("line 2: tablet-server is a section; an option is a text"), "{refused}");
        let refused = parse("data = 2026-11-26\n").unwrap_err();
        assert!(refused.contains("line 1: data is a date"), "{refused}");
        let refused = parse("etcd = [[\"a\"]]\n").unwrap_err();
        assert!(refused.contains("a list with other things than texts"), "{refused}");
    }

    #[test]
    fn a_file_that_cannot_be_read_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let refused = ConfigFile::open(&folder.path().join("none.toml")).unwrap_err().to_string();
        assert!(refused.contains("none.toml") && refused.contains("No such file"), "{refused}");
        let refused = ConfigFile::open(folder.path()).unwrap_err().to_string();
        assert!(refused.contains("it is not a file"), "{refused}");
    }
}
