//! The report of a load: counts and findings, as JSON and as text.

use std::collections::BTreeMap;
use std::time::Duration;

use ebla_model::time::Micros;
use serde_json::{Value, json};

use super::finding::{Anomaly, Finding};
use super::history::{Moment, Outcome, Process};
use super::rows::Slot;

/// Maximum number of listed stalls; the longest is always known.
const STALLS_MAX: usize = 10_000;
/// Findings shown in the text.
const FINDINGS_SHOWN: usize = 20;

/// A time in which a writer had no successful write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stall {
    /// Its start: the last success before it.
    pub at: Moment,
    /// Its duration, up to the next success or the end of the round.
    pub lasted: Duration,
    /// The stalled writer.
    pub who: Process,
    /// The slot of the writer.
    pub slot: Slot,
}

/// Counts of a load or of one of its rounds.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Writes that were sent.
    pub attempted: u64,
    /// Writes that were acknowledged.
    pub acknowledged: u64,
    /// Writes with unknown outcome.
    pub unknown: u64,
    /// Writes that were not applied.
    pub failed: u64,
    /// Successful reads and scans.
    pub reads: u64,
    /// The longest time between two successes of any writer.
    pub longest_stall: Duration,
    /// The longest by slot.
    pub longest_by_slot: BTreeMap<Slot, Duration>,
    /// Stalls above the plan's threshold, in the order of their ends.
    pub stalls: Vec<Stall>,
    /// Errors by their reason.
    pub errors: BTreeMap<String, u64>,
}

impl Counts {
    /// Counts a write.
    pub fn count(&mut self, outcome: Outcome) {
        self.attempted += 1;
        match outcome {
            Outcome::Ok => self.acknowledged += 1,
            Outcome::Failed => self.failed += 1,
            Outcome::Unknown => self.unknown += 1,
        }
    }

    /// Records the time between two successes; it is listed when it is `listed` or longer.
    pub fn stall(&mut self, stall: Stall, listed: Duration) {
        self.longest_stall = self.longest_stall.max(stall.lasted);
        let of_slot = self.longest_by_slot.entry(stall.slot).or_default();
        *of_slot = stall.lasted.max(*of_slot);
        if stall.lasted >= listed && self.stalls.len() < STALLS_MAX {
            self.stalls.push(stall);
        }
    }

    /// Adds other counts.
    pub fn add(&mut self, other: &Self) {
        self.attempted += other.attempted;
        self.acknowledged += other.acknowledged;
        self.unknown += other.unknown;
        self.failed += other.failed;
        self.reads += other.reads;
        self.longest_stall = self.longest_stall.max(other.longest_stall);
        for (slot, longest) in &other.longest_by_slot {
            let own = self.longest_by_slot.entry(*slot).or_default();
            *own = (*longest).max(*own);
        }
        let room = STALLS_MAX.saturating_sub(self.stalls.len());
        self.stalls.extend(other.stalls.iter().take(room).cloned());
        for (reason, count) in &other.errors {
            *self.errors.entry(reason.clone()).or_default() += count;
        }
    }

    /// The longest part of `[from, to)` in which a writer of `slot` (`None`: any writer) was stalled, among listed stalls.
    pub fn longest_within(&self, from: Moment, to: Moment, slot: Option<Slot>) -> Duration {
        let of_slot = self.stalls.iter().filter(|stall| slot.is_none_or(|slot| slot == stall.slot));
        let within = of_slot.map(|stall| {
            let end = Moment::after(stall.at.elapsed() + stall.lasted);
            end.min(to).since(stall.at.max(from))
        });
        within.max().unwrap_or_default()
    }
}

/// The report.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Wall time of the start of the load's clock, to correlate stalls with other events.
    pub began: Micros,
    /// Counts of operations.
    pub counts: Counts,
    /// The anomalies.
    pub findings: Vec<Finding>,
    /// Rows whose order could not be decided.
    pub undecided: u64,
    /// The endpoints through which all data was read back.
    pub read_through: Vec<String>,
    /// The endpoints that did not answer.
    pub silent: Vec<String>,
    /// The longest allowed stall, if there is a limit.
    pub stall_max: Option<Duration>,
}

impl Report {
    /// Whether there are no anomalies and no stall exceeds the limit.
    pub fn is_good(&self) -> bool {
        self.findings.is_empty() && !self.is_late()
    }

    fn is_late(&self) -> bool {
        self.stall_max.is_some_and(|most| self.counts.longest_stall > most)
    }

    /// Findings of one kind.
    pub fn count(&self, anomaly: Anomaly) -> usize {
        self.findings.iter().filter(|finding| finding.anomaly == anomaly).count()
    }

    /// The verdict in one line.
    pub fn verdict(&self) -> String {
        let found: Vec<_> = Anomaly::ALL
            .into_iter()
            .filter(|anomaly| self.count(*anomaly) > 0)
            .map(|anomaly| format!("{} {}", self.count(anomaly), anomaly.name()))
            .collect();
        let late = match self.stall_max {
            Some(most) if self.is_late() => format!("a writer stalled longer than {}", shown(most)),
            _ => String::new(),
        };
        let through = format!("read back through {} of {} addresses", self.read_through.len(), self.addresses());
        let wrong = [found.join(", "), late].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ");
        match wrong.is_empty() {
            true => format!("no anomalies found; {through}"),
            false => format!("ANOMALIES: {wrong}; {through}"),
        }
    }

    fn addresses(&self) -> usize {
        self.read_through.len() + self.silent.len()
    }

    /// The report as JSON; the field names are part of the interface.
    pub fn json(&self) -> Value {
        let counts = &self.counts;
        let stall = |stall: &Stall| {
            json!({
                "at_ms": millis(stall.at.elapsed()), "ms": millis(stall.lasted),
                "what": stall.who.to_string(), "slot": stall.slot.0,
            })
        };
        let mut report = json!({
            "began_micros": self.began.get(),
            "attempted": counts.attempted,
            "acknowledged": counts.acknowledged,
            "unknown": counts.unknown,
            "failed": counts.failed,
            "reads": counts.reads,
            "undecided": self.undecided,
            "longest_stall_ms": millis(counts.longest_stall),
            "stalls": counts.stalls.iter().map(stall).collect::<Vec<_>>(),
            "errors": counts.errors,
            "read_through": self.read_through,
            "silent": self.silent,
            "findings": self.findings.iter().map(Finding::json).collect::<Vec<_>>(),
        });
        if let Some(fields) = report.as_object_mut() {
            fields
                .extend(Anomaly::ALL.into_iter().map(|anomaly| (anomaly.key().to_owned(), json!(self.count(anomaly)))));
        }
        report
    }

    /// The counts with their headings, for a table.
    pub fn columns(&self) -> [(&'static str, String); 7] {
        let counts = &self.counts;
        [
            ("WRITES", counts.attempted.to_string()),
            ("ACKNOWLEDGED", counts.acknowledged.to_string()),
            ("UNKNOWN", counts.unknown.to_string()),
            ("FAILED", counts.failed.to_string()),
            ("READS", counts.reads.to_string()),
            ("LONGEST STALL", shown(counts.longest_stall)),
            ("UNDECIDED", self.undecided.to_string()),
        ]
    }

    /// The counts, the findings, and the verdict in the last line.
    pub fn text(&self) -> String {
        let counts = self.columns().map(|(heading, count)| format!("{} {count}", heading.to_lowercase()));
        format!("{}\n{}", counts.join(", "), self.details())
    }

    /// Errors, stalls and findings, and the verdict in the last line.
    pub fn details(&self) -> String {
        let counts = &self.counts;
        let mut text = String::new();
        if !counts.errors.is_empty() {
            let errors: Vec<_> = counts.errors.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
            text.push_str(&format!("errors: {}\n", errors.join(", ")));
        }
        if !counts.stalls.is_empty() {
            text.push_str(&format!("stalls listed: {}\n", counts.stalls.len()));
        }
        for finding in self.findings.iter().take(FINDINGS_SHOWN) {
            text.push_str(&format!("\n{finding}\n"));
        }
        if self.findings.len() > FINDINGS_SHOWN {
            text.push_str(&format!("\nand {} more\n", self.findings.len() - FINDINGS_SHOWN));
        }
        for address in &self.silent {
            text.push_str(&format!("no answer from {address}\n"));
        }
        text.push_str(&format!("{}\n", self.verdict()));
        text
    }
}

fn shown(time: Duration) -> String {
    format!("{:.3} s", time.as_secs_f64())
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stall(at_ms: u64, ms: u64, slot: u32) -> Stall {
        let at = Moment::after(Duration::from_millis(at_ms));
        Stall { at, lasted: Duration::from_millis(ms), who: Process::Writer(1), slot: Slot(slot) }
    }

    #[test]
    fn stalls_above_the_threshold_are_listed_and_the_longest_is_known() {
        let mut counts = Counts::default();
        let listed = Duration::from_millis(500);
        counts.stall(stall(0, 400, 0), listed);
        assert!(counts.stalls.is_empty() && counts.longest_stall == Duration::from_millis(400));
        counts.stall(stall(1_000, 900, 1), listed);
        assert_eq!(counts.stalls, [stall(1_000, 900, 1)]);
        assert_eq!(counts.longest_by_slot[&Slot(0)], Duration::from_millis(400));
    }

    #[test]
    fn a_stall_is_clipped_to_the_span() {
        let mut counts = Counts::default();
        counts.stall(stall(1_000, 900, 1), Duration::ZERO);
        let at = |ms| Moment::after(Duration::from_millis(ms));
        assert_eq!(counts.longest_within(at(1_500), at(9_000), None), Duration::from_millis(400));
        assert_eq!(counts.longest_within(at(0), at(1_100), Some(Slot(1))), Duration::from_millis(100));
        assert_eq!(counts.longest_within(at(0), at(9_000), Some(Slot(0))), Duration::ZERO);
    }

    #[test]
    fn the_json_has_the_agreed_fields() {
        let finding = Finding::new(Anomaly::Lost, "00/list/r/00000000", "1.1", "nothing");
        let report = Report { findings: vec![finding], ..Report::default() };
        let json = report.json();
        for field in ["attempted", "acknowledged", "unknown", "failed", "stale", "doubled", "half", "invented"] {
            assert_eq!(json[field], 0, "{field}");
        }
        assert_eq!((json["lost"].as_u64(), json["longest_stall_ms"].as_u64()), (Some(1), Some(0)));
        assert!(json["stalls"].is_array() && json["errors"].is_object());
        assert!(!report.is_good() && report.text().contains("1 lost"));
    }

    #[test]
    fn a_stall_above_the_limit_fails() {
        let mut report = Report { stall_max: Some(Duration::from_secs(3)), ..Report::default() };
        assert!(report.is_good());
        report.counts.longest_stall = Duration::from_secs(4);
        assert!(!report.is_good() && report.verdict().contains("stalled"));
    }
}
