//! What is wrong, with the evidence that convinces a stranger.

use std::fmt;

use serde_json::{Value, json};

use super::history::Operation;

/// The kinds of wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Anomaly {
    /// It was acknowledged, and is not there.
    Lost,
    /// A read did not see what was acknowledged before it was sent.
    Stale,
    /// One write took effect twice.
    Doubled,
    /// A part of a row's transaction, or of a scan, without the rest.
    Half,
    /// Nobody wrote it, or its writer was told that it was not written.
    Invented,
}

impl Anomaly {
    /// All of them, in the order of the report.
    pub const ALL: [Self; 5] = [Self::Lost, Self::Stale, Self::Doubled, Self::Half, Self::Invented];

    /// Its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lost => "lost",
            Self::Stale => "stale",
            Self::Doubled => "doubled",
            Self::Half => "half",
            Self::Invented => "invented",
        }
    }
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Which kind of wrong.
    pub anomaly: Anomaly,
    /// In which row.
    pub row: String,
    /// What should have been there.
    pub expected: String,
    /// What was there.
    pub seen: String,
    /// The operations around it, in words.
    pub around: Vec<String>,
}

/// Operations shown before and after the one in question.
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

    /// The same with the operations around the first that `is_it` says.
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
            "anomaly": self.anomaly.name(), "row": self.row, "expected": self.expected, "seen": self.seen,
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
