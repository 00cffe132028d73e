//! The history of a run, and its checks with the checkers of the verifying load.
//!
//! Lists are rows to which every write appends a unique token: they must be linearizable. Other rows are blind writes of
//! versions: they must have the last acknowledged version, or one of unknown outcome. Scans must return every row that was
//! acknowledged before, in order. That finds lost, stale, duplicate, torn and phantom data. Sums and dropped prefixes have loads of
//! their own (`sums`, `drops`).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ebla_client::Direction;
use ebla_workload::verify::blind_writes::Content;
use ebla_workload::verify::check;
use ebla_workload::verify::check::drops::Drops;
use ebla_workload::verify::check::scans::{self, Scan};
use ebla_workload::verify::history::{Action, Moment, Operation, Outcome, Prefix, Process, Token};
use ebla_workload::verify::{Anomaly, Finding, History as Recorded};

use crate::lost::Loss;
use crate::sums::Sums;

/// An append of a token.
#[derive(Clone, Debug)]
pub(crate) struct Append {
    list: String,
    token: Token,
    began: Duration,
    /// When it was acknowledged, and the list that was returned; `None`: its outcome is unknown.
    acknowledged: Option<(Duration, Prefix)>,
}

/// A read of a list.
#[derive(Clone, Debug)]
pub(crate) struct ListRead {
    pub(crate) list: String,
    pub(crate) began: Duration,
    pub(crate) ended: Duration,
    pub(crate) seen: Prefix,
}

/// How many copies of its version a row has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Copies {
    /// One family: rows that one worker overwrites repeatedly, until the outcome of a write is unknown.
    One,
    /// Two families: rows that are written once.
    Two,
}

/// A write of a version.
#[derive(Clone, Debug)]
struct Write {
    row: String,
    version: Token,
    copies: Copies,
    began: Duration,
    /// When it was acknowledged; `None`: its outcome is unknown.
    acknowledged: Option<Duration>,
}

/// A scan of the whole table: the rows that it returned.
#[derive(Clone, Debug)]
pub(crate) struct FullScan {
    pub(crate) began: Duration,
    pub(crate) rows: Vec<String>,
}

/// All operations.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    appends: Vec<Append>,
    writes: Vec<Write>,
    pub(crate) list_reads: Vec<ListRead>,
    pub(crate) full_scans: Vec<FullScan>,
    pub(crate) sums: Sums,
    pub(crate) drops: Drops,
    /// Anomalies that were found while the load ran.
    pub(crate) wrong: Vec<String>,
}

/// What the table holds in the end: the texts of the lists, and the values of the rows that are written blindly.
#[derive(Clone, Debug, Default)]
pub(crate) struct Final {
    pub(crate) lists: BTreeMap<String, String>,
    pub(crate) rows: BTreeMap<String, Vec<String>>,
    /// The rows of the prefixes that are dropped.
    pub(crate) of_drops: Vec<String>,
}

/// The row of a list. The checkers recognise lists by the second part of the name.
pub(crate) fn list_row(list: &str) -> String {
    format!("{list}/list")
}

/// What the values of a row say.
pub(crate) fn content(values: &[String], copies: Copies) -> Content {
    let expected = match copies {
        Copies::One => 1,
        Copies::Two => 2,
    };
    let first = values.first().and_then(|value| value.parse().ok());
    match first {
        Some(version) if values.len() == expected && values.iter().all(|value| *value == values[0]) => {
            Content::Version(version)
        }
        _ => Content::Broken(format!("{values:?}, expected {expected} equal versions")),
    }
}

impl History {
    /// Records an append that is about to be sent; its number.
    pub(crate) fn begin_append(&mut self, list: &str, token: Token, began: Duration) -> usize {
        self.appends.push(Append { list: list.to_owned(), token, began, acknowledged: None });
        self.appends.len() - 1
    }

    /// Records that an append was acknowledged with this list.
    pub(crate) fn acknowledge_append(&mut self, number: usize, at: Duration, list: &str) {
        self.appends[number].acknowledged = Some((at, Prefix::of(list)));
    }

    /// Records a write that is about to be sent; its number.
    pub(crate) fn begin_write(&mut self, row: &str, version: Token, copies: Copies, began: Duration) -> usize {
        self.writes.push(Write { row: row.to_owned(), version, copies, began, acknowledged: None });
        self.writes.len() - 1
    }

    /// Records that a write was acknowledged.
    pub(crate) fn acknowledge_write(&mut self, number: usize, at: Duration) {
        self.writes[number].acknowledged = Some(at);
    }

    /// Checks a read of a row by its only writer, which has written `version` and nothing since.
    pub(crate) fn check_own_read(&mut self, row: &str, version: Token, seen: Option<&Content>) {
        let anomaly = match seen {
            Some(Content::Version(seen)) if *seen == version => return,
            Some(Content::Version(seen)) if *seen > version => Anomaly::Phantom,
            Some(Content::Broken(_)) => Anomaly::Torn,
            Some(Content::Version(_)) | None => Anomaly::Stale,
        };
        let finding = Finding::new(anomaly, row, format!("version {version}"), format!("{seen:?}"));
        self.wrong.push(finding.to_string());
    }

    /// Takes the outcome of what may be lost as unknown, and forgets reads that may have returned it.
    pub(crate) fn forgive(&mut self, loss: &Loss) {
        for append in &mut self.appends {
            let row = list_row(&append.list);
            append.acknowledged = append.acknowledged.filter(|(at, _list)| !loss.may_lose(&row, append.began, *at));
        }
        for write in &mut self.writes {
            write.acknowledged = write.acknowledged.filter(|at| !loss.may_lose(&write.row, write.began, *at));
        }
        self.list_reads.retain(|read| !loss.may_have_read(&list_row(&read.list), read.began, read.ended));
    }

    /// All anomalies, as text.
    pub(crate) fn check(&self, end: &Final) -> Vec<String> {
        let recorded = self.recorded(end);
        let mut findings = check::all(&recorded).findings;
        findings.extend(recorded.blind.check(&self.contents(end), |_version| false));
        findings.extend(self.check_scans());
        findings.extend(self.drops.check_all(&end.of_drops));
        self.wrong.iter().cloned().chain(findings.iter().map(Finding::to_string)).collect()
    }

    /// The history as the checkers take it.
    fn recorded(&self, end: &Final) -> Recorded {
        let mut recorded = Recorded::default();
        for append in &self.appends {
            let (end, list) = append.acknowledged.unzip();
            let action = Action::Append { token: append.token, list };
            let operation = operation(Process::Writer(append.token.writer), append.began, end, action);
            recorded.note(&list_row(&append.list), operation);
        }
        for read in &self.list_reads {
            let action = Action::List { list: read.seen };
            recorded.note(&list_row(&read.list), operation(Process::Reader(0), read.began, Some(read.ended), action));
        }
        for write in &self.writes {
            let action = Action::Put { version: write.version };
            let by = Process::Writer(write.version.writer);
            recorded.note(&write.row, operation(by, write.began, write.acknowledged, action));
        }
        self.sums.record(&mut recorded);
        for (list, text) in &end.lists {
            recorded.note_text(&list_row(list), text);
        }
        recorded
    }

    fn contents(&self, end: &Final) -> BTreeMap<String, Content> {
        let overwritten: BTreeSet<&str> =
            self.writes.iter().filter(|write| write.copies == Copies::One).map(|write| write.row.as_str()).collect();
        let content = |(row, values): (&String, &Vec<String>)| {
            let copies = if overwritten.contains(row.as_str()) { Copies::One } else { Copies::Two };
            (row.clone(), content(values, copies))
        };
        end.rows.iter().map(content).collect()
    }

    fn check_scans(&self) -> Vec<Finding> {
        let lists = self.appends.iter().map(|append| list_row(&append.list));
        let all: BTreeSet<String> = self.writes.iter().map(|write| write.row.clone()).chain(lists).collect();
        let range: Vec<String> = all.into_iter().collect();
        let check = |scan: &FullScan| {
            let is_due = |write: &&Write| write.acknowledged.is_some_and(|at| at < scan.began);
            let required: BTreeSet<String> = self.writes.iter().filter(is_due).map(|write| write.row.clone()).collect();
            let required: Vec<String> = required.into_iter().collect();
            let (direction, seen) = (Direction::Ascending, scan.rows.as_slice());
            scans::check(&Scan { range: &range, required: &required, direction, limit: 0, seen, layout: None })
        };
        self.full_scans.iter().flat_map(check).collect()
    }

    /// The number of acknowledged writes, and of those with unknown outcome.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let appends = self.appends.iter().map(|append| append.acknowledged.is_some());
        let (known, unknown): (Vec<_>, Vec<_>) =
            appends.chain(self.writes.iter().map(|write| write.acknowledged.is_some())).partition(|is_known| *is_known);
        let (known_sums, unknown_sums) = self.sums.counts();
        (known.len() + known_sums, unknown.len() + unknown_sums)
    }
}

/// An operation that ended at `end`; without an end its outcome is unknown.
pub(crate) fn operation(by: Process, began: Duration, end: Option<Duration>, action: Action) -> Operation {
    let outcome = if end.is_some() { Outcome::Ok } else { Outcome::Unknown };
    let start = Moment::after(began);
    Operation { by, start, end: end.map_or(start, Moment::after), outcome, action }
}
