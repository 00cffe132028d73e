//! What a load did and what was found: as numbers, as JSON, as a few lines for a person.

use std::collections::BTreeMap;
use std::time::Duration;

use ebla_model::time::Micros;
use serde_json::{Value, json};

use super::finding::{Anomaly, Finding};
use super::history::{Moment, Outcome, Process};
use super::rows::Slot;
use crate::output::Table;

/// Stalls that are listed; the longest is known beyond that.
const STALLS_MAX: usize = 10_000;
/// Findings that are shown to a person.
const FINDINGS_SHOWN: usize = 20;

/// A time in which a writer had no success, although it tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stall {
    /// When it began: the last success before it.
    pub at: Moment,
    /// How long it lasted, up to the next success or the end of the round.
    pub lasted: Duration,
    /// Who waited.
    pub who: Process,
    /// Which tablet it writes to, as the table was cut when it was made.
    pub slot: Slot,
}

/// Counts of a load or of a round of it.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Writes that were sent.
    pub attempted: u64,
    /// Writes that were acknowledged.
    pub acknowledged: u64,
    /// Writes of which nobody knows.
    pub unknown: u64,
    /// Writes that were surely not made.
    pub failed: u64,
    /// Reads and scans that were answered.
    pub reads: u64,
    /// The longest time between two successes of any writer.
    pub longest_stall: Duration,
    /// The longest by slot.
    pub longest_by_slot: BTreeMap<Slot, Duration>,
    /// Stalls above the plan's threshold, in the order in which they ended.
    pub stalls: Vec<Stall>,
    /// Errors by their reason.
    pub errors: BTreeMap<String, u64>,
}

impl Tally {
    /// Counts a write that ended so.
    pub fn count(&mut self, outcome: Outcome) {
        self.attempted += 1;
        match outcome {
            Outcome::Ok => self.acknowledged += 1,
            Outcome::Failed => self.failed += 1,
            Outcome::Unknown => self.unknown += 1,
        }
    }

    /// Takes in a time between two successes; it is listed when it is `listed` or longer.
    pub fn stall(&mut self, stall: Stall, listed: Duration) {
        self.longest_stall = self.longest_stall.max(stall.lasted);
        let of_slot = self.longest_by_slot.entry(stall.slot).or_default();
        *of_slot = stall.lasted.max(*of_slot);
        if stall.lasted >= listed && self.stalls.len() < STALLS_MAX {
            self.stalls.push(stall);
        }
    }

    /// Adds another's counts.
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

    /// The longest part of `[from, to)` in which any writer of `slot` (`None`: of any) waited, of what is listed.
    pub fn longest_within(&self, from: Moment, to: Moment, slot: Option<Slot>) -> Duration {
        let of_slot = self.stalls.iter().filter(|stall| slot.is_none_or(|slot| slot == stall.slot));
        let within = of_slot.map(|stall| {
            let end = Moment::after(stall.at.elapsed() + stall.lasted);
            end.min(to).since(stall.at.max(from))
        });
        within.max().unwrap_or_default()
    }
}

/// The whole result.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// When the load's clock showed zero: to set stalls beside what else happened.
    pub began: Micros,
    /// What was done.
    pub tally: Tally,
    /// What is wrong.
    pub findings: Vec<Finding>,
    /// Rows whose order could not be decided.
    pub undecided: u64,
    /// The addresses that everything was read back through.
    pub read_through: Vec<String>,
    /// The addresses that did not answer.
    pub silent: Vec<String>,
    /// The longest stall that is allowed, if any.
    pub stall_max: Option<Duration>,
}

impl Report {
    /// Whether everything held.
    pub fn is_good(&self) -> bool {
        self.findings.is_empty() && !self.is_late()
    }

    fn is_late(&self) -> bool {
        self.stall_max.is_some_and(|most| self.tally.longest_stall > most)
    }

    /// Findings of one kind.
    pub fn count(&self, anomaly: Anomaly) -> usize {
        self.findings.iter().filter(|finding| finding.anomaly == anomaly).count()
    }

    /// One line: the verdict.
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
            true => format!("nothing lost, stale, doubled, half or invented; {through}"),
            false => format!("WRONG: {wrong}; {through}"),
        }
    }

    fn addresses(&self) -> usize {
        self.read_through.len() + self.silent.len()
    }

    /// As JSON; the names are part of the interface.
    pub fn json(&self) -> Value {
        let tally = &self.tally;
        let stall = |stall: &Stall| {
            json!({
                "at_ms": millis(stall.at.elapsed()), "ms": millis(stall.lasted),
                "what": stall.who.to_string(), "slot": stall.slot.0,
            })
        };
        let mut report = json!({
            "began_micros": self.began.get(),
            "attempted": tally.attempted,
            "acknowledged": tally.acknowledged,
            "unknown": tally.unknown,
            "failed": tally.failed,
            "reads": tally.reads,
            "undecided": self.undecided,
            "longest_stall_ms": millis(tally.longest_stall),
            "stalls": tally.stalls.iter().map(stall).collect::<Vec<_>>(),
            "errors": tally.errors,
            "read_through": self.read_through,
            "silent": self.silent,
            "findings": self.findings.iter().map(Finding::json).collect::<Vec<_>>(),
        });
        if let Some(fields) = report.as_object_mut() {
            fields.extend(
                Anomaly::ALL.into_iter().map(|anomaly| (anomaly.name().to_owned(), json!(self.count(anomaly)))),
            );
        }
        report
    }

    /// A table, the findings, and the verdict in the last line.
    pub fn text(&self) -> String {
        let tally = &self.tally;
        let mut table =
            Table::new(&["WRITES", "ACKNOWLEDGED", "UNKNOWN", "FAILED", "READS", "LONGEST STALL", "UNDECIDED"]);
        table.row(vec![
            tally.attempted.to_string(),
            tally.acknowledged.to_string(),
            tally.unknown.to_string(),
            tally.failed.to_string(),
            tally.reads.to_string(),
            shown(tally.longest_stall),
            self.undecided.to_string(),
        ]);
        let mut text = table.render();
        if !tally.errors.is_empty() {
            let errors: Vec<_> = tally.errors.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
            text.push_str(&format!("errors: {}\n", errors.join(", ")));
        }
        if !tally.stalls.is_empty() {
            text.push_str(&format!("stalls listed: {}\n", tally.stalls.len()));
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
    fn stalls_are_listed_from_a_threshold_on_and_the_longest_is_known_anyhow() {
        let mut tally = Tally::default();
        let listed = Duration::from_millis(500);
        tally.stall(stall(0, 400, 0), listed);
        assert!(tally.stalls.is_empty() && tally.longest_stall == Duration::from_millis(400));
        tally.stall(stall(1_000, 900, 1), listed);
        assert_eq!(tally.stalls, [stall(1_000, 900, 1)]);
        assert_eq!(tally.longest_by_slot[&Slot(0)], Duration::from_millis(400));
    }

    #[test]
    fn a_stall_counts_for_the_span_that_it_reaches_into() {
        let mut tally = Tally::default();
        tally.stall(stall(1_000, 900, 1), Duration::ZERO);
        let at = |ms| Moment::after(Duration::from_millis(ms));
        assert_eq!(tally.longest_within(at(1_500), at(9_000), None), Duration::from_millis(400));
        assert_eq!(tally.longest_within(at(0), at(1_100), Some(Slot(1))), Duration::from_millis(100));
        assert_eq!(tally.longest_within(at(0), at(9_000), Some(Slot(0))), Duration::ZERO);
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
    fn a_writer_that_waits_too_long_is_late() {
        let mut report = Report { stall_max: Some(Duration::from_secs(3)), ..Report::default() };
        assert!(report.is_good());
        report.tally.longest_stall = Duration::from_secs(4);
        assert!(!report.is_good() && report.verdict().contains("stalled"));
    }
}
