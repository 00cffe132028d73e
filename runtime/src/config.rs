//! Settings in layers: a TOML file, then the environment (`EBLA_…`), then flags; what comes later wins.
//!
//! A process declares one `serde` struct with `#[serde(deny_unknown_fields)]`; [`load`] merges the layers into it, so an
//! unknown key is an error wherever it was written. Sizes and durations are text with a unit ([`ByteSize`], [`Span`]).

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use thiserror::Error;

/// What is wrong with the settings, and where.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("read {path}: {source}")]
    Read {
        /// The file that was named.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// The file is no TOML.
    #[error("parse {path}: {source}")]
    Parse {
        /// The file that was named.
        path: String,
        /// Where in it and why.
        source: Box<toml::de::Error>,
    },
    /// A key that does not exist, or a value that does not fit.
    #[error("settings: {0}")]
    Invalid(Box<toml::de::Error>),
}

/// A text that is no size or duration.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{text:?} is not a {expected}")]
pub struct UnitError {
    text: String,
    expected: &'static str,
}

/// Bytes, written `512`, `64KiB`, `128 MiB`, `1GiB` or with decimal units (`10MB`). `64K`, `64M`, `64G` and `64Ki`, `64Mi`, `64Gi`
/// are binary. Upper and lower case are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(u64);

impl ByteSize {
    /// That many bytes.
    #[must_use]
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// That many times 2^20 bytes.
    #[must_use]
    pub const fn mebibytes(count: u32) -> Self {
        Self((count as u64) << 20)
    }

    /// The number of bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.0
    }
}

const BYTE_UNITS: [(&str, u64); 14] = [
    ("", 1),
    ("B", 1),
    ("K", 1 << 10),
    ("M", 1 << 20),
    ("G", 1 << 30),
    ("Ki", 1 << 10),
    ("Mi", 1 << 20),
    ("Gi", 1 << 30),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
];

impl FromStr for ByteSize {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        quantity(text, &BYTE_UNITS).map(Self).ok_or(UnitError {
            text: text.to_owned(),
            expected: "size; expected a number of bytes with or without a unit, such as 64MiB",
        })
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = |unit: &(&str, u64)| self.0 >= unit.1 && self.0.is_multiple_of(unit.1);
        match [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1_u64 << 10)].iter().find(|unit| whole(unit)) {
            Some((name, unit)) => write!(f, "{}{name}", self.0 / unit),
            None => write!(f, "{}B", self.0),
        }
    }
}

/// A duration, written `150us`, `300ms`, `10s`, `5m`, `2h` or `7d`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(Duration);

impl Span {
    /// That duration.
    #[must_use]
    pub const fn new(duration: Duration) -> Self {
        Self(duration)
    }

    /// The duration.
    #[must_use]
    pub const fn get(self) -> Duration {
        self.0
    }
}

const SPAN_UNITS: [(&str, u64); 6] =
    [("us", 1), ("ms", 1_000), ("s", 1_000_000), ("m", 60_000_000), ("h", 3_600_000_000), ("d", 86_400_000_000)];

impl FromStr for Span {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let micros = quantity(text, &SPAN_UNITS);
        let micros = micros.ok_or(UnitError {
            text: text.to_owned(),
            expected: "duration; expected a number with a unit, such as 10s",
        })?;
        Ok(Self(Duration::from_micros(micros)))
    }
}

/// The number before the unit times the unit, where both are known and the product fits.
fn quantity(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim_start();
    let (_name, factor) = units.iter().find(|(name, _factor)| name.eq_ignore_ascii_case(unit))?;
    number.parse::<u64>().ok()?.checked_mul(*factor)
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Settings from `file` (where there is one), overlaid with `environment` and then with `flags`.
///
/// `environment`: the process's variables; those named `EBLA_<KEY>` set `key`, with `__` between nested tables.
/// `flags`: dotted keys. Text values that read as a TOML value (numbers, `true`, arrays) are taken as one.
///
/// # Errors
/// When the file cannot be read or parsed, or when a key is unknown to `T` or does not fit it.
pub fn load<T: DeserializeOwned>(
    file: Option<&Path>,
    environment: impl IntoIterator<Item = (String, String)>,
    flags: &BTreeMap<String, String>,
) -> Result<T, ConfigError> {
    let mut settings = file.map(read).transpose()?.unwrap_or_default();
    for (name, value) in environment {
        if let Some(key) = name.strip_prefix("EBLA_") {
            set(&mut settings, &key.to_ascii_lowercase().replace("__", "."), &value);
        }
    }
    for (key, value) in flags {
        set(&mut settings, key, value);
    }
    T::deserialize(settings).map_err(|error| ConfigError::Invalid(Box::new(error)))
}

fn read(path: &Path) -> Result<toml::Table, ConfigError> {
    let shown = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read { path: shown.clone(), source })?;
    text.parse().map_err(|source| ConfigError::Parse { path: shown, source: Box::new(source) })
}

/// Puts `value` at the dotted `key`, making tables on the way; what stood there goes.
fn set(table: &mut toml::Table, key: &str, value: &str) {
    match key.split_once('.') {
        None => _ = table.insert(key.to_owned(), scalar(value)),
        Some((first, rest)) => {
            let entry = table.entry(first).or_insert_with(|| toml::Table::new().into());
            if !entry.is_table() {
                *entry = toml::Table::new().into();
            }
            if let Some(inner) = entry.as_table_mut() {
                set(inner, rest, value);
            }
        }
    }
}

fn scalar(text: &str) -> toml::Value {
    let parsed = format!("value = {text}").parse::<toml::Table>().ok();
    parsed.and_then(|mut table| table.remove("value")).unwrap_or_else(|| text.to_owned().into())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(deny_unknown_fields)]
    struct Settings {
        listen: String,
        replicas: u32,
        store: Store,
    }

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(deny_unknown_fields)]
    struct Store {
        cache: ByteSize,
        lease: Span,
    }

    fn file() -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"listen = 'a:1'\nreplicas = 3\n[store]\ncache = '32MiB'\nlease = '10s'\n").unwrap();
        file
    }

    fn flags(of: &[(&str, &str)]) -> BTreeMap<String, String> {
        of.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn later_layers_win() {
        let file = file();
        let environment = [("EBLA_REPLICAS", "1"), ("EBLA_STORE__CACHE", "64MiB"), ("PATH", "x")];
        let environment = environment.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let loaded: Settings = load(Some(file.path()), environment, &flags(&[("replicas", "5")])).unwrap();
        let store = Store { cache: ByteSize::mebibytes(64), lease: Span::new(Duration::from_secs(10)) };
        assert_eq!(loaded, Settings { listen: "a:1".to_owned(), replicas: 5, store });
    }

    #[test]
    fn unknown_keys_are_errors_in_every_layer() {
        let file = file();
        let loaded = load::<Settings>(Some(file.path()), [], &flags(&[("store.colour", "red")]));
        assert!(loaded.unwrap_err().to_string().contains("colour"));
        let environment = [("EBLA_NOISE".to_owned(), "1".to_owned())];
        assert!(load::<Settings>(Some(file.path()), environment, &flags(&[])).is_err());
    }

    #[test]
    fn sizes_and_spans_need_their_units() {
        assert_eq!("128 MiB".parse(), Ok(ByteSize::mebibytes(128)));
        assert_eq!("10MB".parse(), Ok(ByteSize::new(10_000_000)));
        for binary in ["64M", "64m", "64Mi", "64mib", "65536K", "67108864"] {
            assert_eq!(binary.parse(), Ok(ByteSize::mebibytes(64)), "{binary}");
        }
        assert_eq!(ByteSize::mebibytes(64).to_string(), "64MiB");
        assert_eq!("300ms".parse(), Ok(Span::new(Duration::from_millis(300))));
        assert!("300".parse::<Span>().is_err());
        assert!("12 XiB".parse::<ByteSize>().is_err());
        assert!("99999999999 GiB".parse::<ByteSize>().is_err());
    }
}
