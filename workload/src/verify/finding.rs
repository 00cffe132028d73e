//! Findings: anomalies with their evidence.

use std::fmt;

use serde_json::{Value, json};

use super::history::Operation;

/// Kinds of anomalies, by Jepsen's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Anomaly {
    /// An acknowledged write is missing.
    Lost,
    /// A read did not see a write that was acknowledged before the read was sent.
    Stale,
    /// One write was applied twice.
    Duplicate,
    /// A part of a row's transaction, or of a scan, without the rest.
    Torn,
    /// Data that was never written, or whose write was reported as not applied.
    Phantom,
}

impl Anomaly {
    /// All of them, in the order of the report.
    pub const ALL: [Self; 5] = [Self::Lost, Self::Stale, Self::Duplicate, Self::Torn, Self::Phantom];

    /// Its name in text.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lost => "lost",
            Self::Stale => "stale",
            Self::Duplicate => "duplicate",
            Self::Torn => "torn",
            Self::Phantom => "phantom",
        }
    }

    /// Its name in JSON, which is stable.
    pub const fn key(self) -> &'static str {
        match self {
            Self::Lost => "lost",
            Self::Stale => "stale",
            Self::Duplicate => "doubled",
            Self::Torn => "half",
            Self::Phantom => "invented",
        }
    }
}

/// One anomaly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Its kind.
    pub anomaly: Anomaly,
    /// The row.
    pub row: String,
    /// What a correct store would have returned.
    pub expected: String,
    /// What was returned.
    pub seen: String,
    /// The operations around it, as text.
    pub around: Vec<String>,
}

/// Operations shown before and after the anomalous one.
const AROUND: usize = 4;

impl Finding {
    /// A finding without the operations around it.
    pub fn new(anomaly: Anomaly, row: &str, expected: impl Into<String>, seen: impl Into<String>) -> Self {
        Self { anomaly, row: row.to_owned(), expected: expected.into(), seen: seen.into(), around: Vec::new() }
    }

    /// The same with the operations around the one at `place`.
    #[must_use]
    pub fn around(mut self, operations: &[Operation], place: usize) -> Self {
        let first = place.saturating_sub(AROUND);
        let shown = operations.iter().enumerate().skip(first).take(2 * AROUND + 1);
        self.around = shown
            .map(|(number, operation)| format!("{} {operation}", if number == place { '>' } else { ' ' }))
            .collect();
        self
    }

    /// The same with the operations around the first one that `is_it` matches.
    #[must_use]
    pub fn around_first(self, operations: &[Operation], is_it: impl Fn(&Operation) -> bool) -> Self {
        match operations.iter().position(is_it) {
            Some(place) => self.around(operations, place),
            None => self,
        }
    }

    /// As JSON.
    pub fn json(&self) -> Value {
        json!({
            "anomaly": self.anomaly.key(), "row": self.row, "expected": self.expected, "seen": self.seen,
            "around": self.around,
        })
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { anomaly, row, expected, seen, around } = self;
        write!(f, "{}: row {row}\n  expected  {expected}\n  seen      {seen}", anomaly.name())?;
        around.iter().try_for_each(|line| write!(f, "\n  {line}"))
    }
}
