//! The trace: a sequence of events and its hash. Two runs of a seed are equal if the hashes are equal.
//!
//! An event is (time, node, kind, numbers). Names of threads and files, and addresses in memory, never enter it.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::time::Duration;

/// The events so far.
pub(crate) struct Trace {
    hash: DefaultHasher,
    events: u64,
    counts: BTreeMap<String, u64>,
    /// Output of the events as lines, to compare two runs.
    lines: Option<std::io::BufWriter<std::fs::File>>,
}

impl Trace {
    /// No events; `path`: also write them as lines.
    pub(crate) fn new(path: Option<&str>) -> Self {
        let lines = path.map(|path| std::io::BufWriter::new(std::fs::File::create(path).unwrap()));
        // Its keys are constants: the same hash in every process.
        Self { hash: DefaultHasher::new(), events: 0, counts: BTreeMap::new(), lines }
    }

    /// Adds an event.
    pub(crate) fn note(&mut self, now: Duration, node: &str, kind: &str, what: &str) {
        self.events += 1;
        (now, node, kind, what).hash(&mut self.hash);
        if let Some(lines) = &mut self.lines {
            writeln!(lines, "{:.6} {node} {kind} {what}", now.as_secs_f64()).unwrap();
        }
    }

    /// Adds an event that is counted by its kind: a fault.
    pub(crate) fn count(&mut self, now: Duration, node: &str, kind: &str, what: &str) {
        *self.counts.entry(kind.to_owned()).or_default() += 1;
        self.note(now, node, kind, what);
    }

    /// The hash of all events, and how many there were.
    pub(crate) fn digest(&mut self) -> (u64, u64) {
        if let Some(lines) = &mut self.lines {
            lines.flush().unwrap();
        }
        (self.hash.finish(), self.events)
    }

    /// How often each fault was injected.
    pub(crate) fn counts(&self) -> &BTreeMap<String, u64> {
        &self.counts
    }
}
