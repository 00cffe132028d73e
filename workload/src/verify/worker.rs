//! One worker: it repeatedly draws a random operation, runs it, and records the response.
//!
//! A writer stays in one slot, so its stalls are those of one tablet until that tablet splits. Its blind rows are its own; lists,
//! counters, registers and bank rows are shared with other writers of the slot. A reader reads in all slots, and scans across
//! boundaries.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ebla_client::Direction;
use ebla_model::cell::Row;
use ebla_model::error::{Error, Reason};
use ebla_model::key::{KeyRange, RowKey};
use ebla_model::mutation::Mutation;
use ebla_runtime::Rng;

use super::check::scans::{self, Scan};
use super::finding::{Anomaly, Finding};
use super::history::{Action, Moment, Operation, Outcome, Prefix, Process, Token};
use super::load::{PAUSE, Shared};
use super::report::Stall;
use super::rows::{self, BLIND_ROWS, Bank, Kind, Slot, VALUE};
use super::store::{self, Endpoint, Store};

/// Rows of one bulk write.
const BULK_ROWS: u64 = 20;
/// Upper bound of the limits of scans.
const SCAN_LIMIT_MAX: u64 = 100;

pub(super) struct Worker<S> {
    by: Process,
    slot: Slot,
    shared: Arc<Shared>,
    endpoints: Vec<Endpoint<S>>,
    /// Index of its current endpoint.
    at: usize,
    rng: Rng,
    stop: Arc<AtomicBool>,
    /// Time of the last acknowledged write.
    last: Moment,
}

/// A completed call.
struct Answer<T> {
    start: Moment,
    end: Moment,
    result: Result<T, Error>,
}

impl<T> Answer<T> {
    fn outcome(&self) -> Outcome {
        self.result.as_ref().map_or_else(store::outcome, |_| Outcome::Ok)
    }
}

impl<S: Store> Worker<S> {
    pub(super) fn new(
        by: Process,
        number: usize,
        shared: Arc<Shared>,
        endpoints: Vec<Endpoint<S>>,
        rng: Rng,
        stop: Arc<AtomicBool>,
    ) -> Self {
        let slot = match by {
            Process::Writer(writer) => Slot(writer % shared.layout.slots),
            _ => Slot(0),
        };
        Self { by, slot, last: shared.now(), shared, endpoints, at: number, rng, stop }
    }

    /// Works until `stop` is set and the last call has completed.
    pub(super) async fn run(mut self) {
        while !self.stop.load(Ordering::Relaxed) {
            match self.by {
                Process::Writer(writer) => Box::pin(self.write(writer)).await,
                _ => Box::pin(self.read()).await,
            }
        }
        // The last stall counts too.
        if let Process::Writer(_) = self.by {
            self.waited();
        }
    }

    async fn write(&mut self, writer: u32) {
        let drawn = self.rng.below(100);
        match if self.shared.has_room() { drawn } else { drawn % 40 } {
            0..26 => self.put(writer).await,
            26..32 => self.bulk(writer).await,
            32..40 => self.boundary().await,
            40..62 => self.append(writer).await,
            62..72 => self.increment(writer).await,
            72..80 => self.overwrite(writer).await,
            80..88 => self.swap(writer).await,
            _ => self.transfer(writer).await,
        }
    }

    async fn read(&mut self) {
        self.slot = Slot(self.below(self.shared.layout.slots));
        let drawn = self.rng.below(100);
        match if self.shared.has_room() { drawn } else { drawn % 40 } {
            0..20 => self.scan().await,
            20..40 => self.get().await,
            40..60 => self.read_list().await,
            60..70 => self.read_count().await,
            70..85 => drop(self.read_register().await),
            _ => drop(self.read_bank().await),
        }
    }

    /// Overwrites one of the writer's blind rows.
    async fn put(&mut self, writer: u32) {
        let row = self.shared.layout.blind_row(self.slot, writer, self.rng.below(BLIND_ROWS));
        let version = self.shared.next(writer);
        let (key, store) = (RowKey::new(row.clone()), self.store());
        let answer = self.ask(store.write(&key, &rows::blind_mutations(&row, version))).await;
        self.wrote(&row, &answer, Action::Put { version }).await;
    }

    /// Overwrites several of them in one call.
    async fn bulk(&mut self, writer: u32) {
        let first = self.rng.below(BLIND_ROWS);
        let version = self.shared.next(writer);
        let names: Vec<_> =
            (first..first + BULK_ROWS).map(|at| self.shared.layout.blind_row(self.slot, writer, at)).collect();
        let writes: Vec<(RowKey, Vec<Mutation>)> =
            names.iter().map(|row| (RowKey::new(row.clone()), rows::blind_mutations(row, version))).collect();
        let store = self.store();
        let answer = self.ask(store.bulk(&writes)).await;
        let Answer { start, end, result } = answer;
        // A call that failed as a whole may have been partly applied: the outcome of every row is unknown.
        let results = result.map_err(|error| Error::new(Reason::OutcomeUnknown, error.message));
        let results = match results {
            Ok(results) => results,
            Err(error) => vec![Err(error); names.len()],
        };
        for (row, result) in names.iter().zip(results) {
            if let Err(error) = &result {
                self.shared.count_error(error.reason);
            }
            self.wrote(row, &Answer { start, end, result }, Action::Put { version }).await;
        }
    }

    /// Writes or deletes a boundary row that is not static.
    async fn boundary(&mut self) {
        let keys = self.shared.layout.own_boundary(self.slot);
        let moving: Vec<_> = keys.into_iter().filter(|key| !rows::is_static(key)).collect();
        let Some(row) = moving.get(self.place(moving.len())) else { return };
        let mutations = if self.rng.below(3) == 0 { vec![Mutation::DeleteRow] } else { rows::boundary_mutations(row) };
        let (key, store) = (RowKey::new(row.clone()), self.store());
        let answer = self.ask(store.write(&key, &mutations)).await;
        self.shared.count(answer.outcome());
        self.succeeded(answer.outcome());
    }

    async fn append(&mut self, writer: u32) {
        let row = self.shared.row(self.slot, Kind::List);
        let token = self.shared.next(writer);
        let (key, store, text) = (RowKey::new(row.clone()), self.store(), token.to_string());
        let answer = self.ask(store.append(&key, &text)).await;
        let list = answer.result.as_ref().ok().and_then(|list| self.whole(&row, rows::list_text(list)));
        let action = Action::Append { token, list: list.map(|text| Prefix::of(&text)) };
        self.wrote(&row, &answer, action).await;
    }

    async fn increment(&mut self, writer: u32) {
        let row = self.shared.row(self.slot, Kind::Count);
        // The token is not written; it keeps the sequences of sent writes without gaps.
        let _token = self.shared.next(writer);
        let (key, store) = (RowKey::new(row.clone()), self.store());
        let answer = self.ask(store.increment(&key)).await;
        let count = answer.result.as_ref().ok().and_then(|counted| self.whole(&row, rows::count(counted)));
        self.wrote(&row, &answer, Action::Increment { count }).await;
    }

    async fn overwrite(&mut self, writer: u32) {
        let row = self.shared.row(self.slot, Kind::Register);
        let value = self.shared.next(writer);
        let (key, store) = (RowKey::new(row.clone()), self.store());
        let answer = self.ask(store.write(&key, &[VALUE.set(value.to_string())])).await;
        self.wrote(&row, &answer, Action::Write { value }).await;
    }

    /// Reads a register, then replaces the value if it is unchanged.
    async fn swap(&mut self, writer: u32) {
        let Some((row, expected)) = self.read_register().await else { return };
        let value = self.shared.next(writer);
        let held = expected.map(|token| token.to_string().into());
        let (key, store) = (RowKey::new(row.clone()), self.store());
        let answer = self.ask(store.swap(&key, VALUE, held, &[VALUE.set(value.to_string())])).await;
        let swapped = answer.result.as_ref().ok().copied();
        self.wrote(&row, &answer, Action::Swap { expected, value, swapped }).await;
    }

    /// Reads a bank row, moves money between two of its accounts, and writes the row if it is unchanged.
    async fn transfer(&mut self, writer: u32) {
        let Some((row, seen)) = self.read_bank().await else { return };
        let value = self.shared.next(writer);
        let expected = seen.as_ref().map(|(_, mark)| *mark);
        let held = seen.as_ref().map(|(bank, mark)| bank.guard(*mark));
        let mut bank = seen.map_or_else(Bank::default, |(bank, _)| bank);
        bank.transfer(self.rng.below(24), self.rng.below(24));
        let (key, store) = (RowKey::new(row.clone()), self.store());
        let answer = self.ask(store.swap(&key, Bank::GUARD, held, &bank.mutations(value))).await;
        let swapped = answer.result.as_ref().ok().copied();
        self.wrote(&row, &answer, Action::Swap { expected, value, swapped }).await;
    }

    async fn read_list(&mut self) {
        let row = self.shared.row(self.slot, Kind::List);
        let Some((start, end, found)) = self.fetch(&row).await else { return };
        if let Some(text) = self.whole(&row, found.as_ref().map_or(Ok(String::new()), rows::list_text)) {
            self.saw(&row, start, end, Action::List { list: Prefix::of(&text) }).await;
        }
    }

    async fn read_count(&mut self) {
        let row = self.shared.row(self.slot, Kind::Count);
        let Some((start, end, found)) = self.fetch(&row).await else { return };
        if let Some(count) = self.whole(&row, found.as_ref().map_or(Ok(0), rows::count)) {
            self.saw(&row, start, end, Action::Count { count }).await;
        }
    }

    async fn read_register(&mut self) -> Option<(String, Option<Token>)> {
        let row = self.shared.row(self.slot, Kind::Register);
        let (start, end, found) = self.fetch(&row).await?;
        let value = self.whole(&row, found.as_ref().map_or(Ok(None), rows::register))?;
        self.saw(&row, start, end, Action::Read { value }).await;
        Some((row, value))
    }

    async fn read_bank(&mut self) -> Option<(String, Option<(Bank, Token)>)> {
        let row = self.shared.row(self.slot, Kind::Bank);
        let (start, end, found) = self.fetch(&row).await?;
        let seen = self.whole(&row, Bank::read(found.as_ref()))?;
        let value = seen.as_ref().map(|(_, mark)| *mark);
        self.saw(&row, start, end, Action::Read { value }).await;
        Some((row, seen))
    }

    /// Reads a blind row: the version acknowledged before must be seen.
    async fn get(&mut self) {
        let writers: Vec<u32> =
            (0..self.shared.plan.writers).filter(|writer| writer % self.shared.layout.slots == self.slot.0).collect();
        let Some(writer) = writers.get(self.place(writers.len())).copied() else { return };
        let row = self.shared.layout.blind_row(self.slot, writer, self.rng.below(BLIND_ROWS));
        let floor = self.shared.with(|state| state.history.blind.floor(&row));
        let Some((_, _, found)) = self.fetch(&row).await else { return };
        self.shared.count_read();
        let content = found.as_ref().map(rows::blind_content);
        let finding = self.shared.with(|state| state.history.blind.check_read(&row, floor, content.as_ref()));
        finding.into_iter().for_each(|finding| self.shared.add_finding(finding));
    }

    /// Scans a part of the rows around a boundary, in either direction, with or without a limit.
    async fn scan(&mut self) {
        let keys = self.shared.layout.boundary(Slot(self.below(self.shared.layout.boundaries())));
        let (one, other) = (self.place(keys.len()), self.place(keys.len()));
        let (first, last) = (one.min(other), one.max(other));
        let limit = if self.rng.below(2) == 0 { 0 } else { 1 + self.rng.below(SCAN_LIMIT_MAX) };
        let direction = if self.rng.below(3) == 0 { Direction::Descending } else { Direction::Ascending };
        let range = keys.get(first..=last).unwrap_or_default();
        let (Some(low), Some(high)) = (range.first(), range.last()) else { return };
        let end = RowKey::new(high.clone()).successor();
        let Some(bounds) = KeyRange::new(RowKey::new(low.clone()), Some(end)) else { return };
        let store = self.store();
        let Ok(found) = self.ask(store.scan(&bounds, direction, limit)).await.result else { return };
        self.shared.count_read();
        self.check_scan(range, direction, limit, &found);
    }

    fn check_scan(&self, range: &[String], direction: Direction, limit: u64, found: &[Row]) {
        let seen: Vec<_> = found.iter().map(|row| rows::text_of(&row.key)).collect();
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let required: Vec<_> = range.iter().filter(|key| rows::is_static(key)).cloned().collect();
        let layout = Some(&self.shared.layout);
        let scan = Scan { range, required: &required, direction, limit, seen: &seen, layout };
        scans::check(&scan).into_iter().for_each(|finding| self.shared.add_finding(finding));
        torn_boundaries(found).for_each(|finding| self.shared.add_finding(finding));
    }

    /// Reads a row; returns the times of the call and the row, or `None` on failure.
    async fn fetch(&mut self, row: &str) -> Option<(Moment, Moment, Option<Row>)> {
        let (key, store) = (RowKey::new(row.to_owned()), self.store());
        let answer = self.ask(store.read(&key)).await;
        Some((answer.start, answer.end, answer.result.ok()?))
    }

    /// The contents of a row; inconsistent contents are a finding.
    fn whole<T>(&self, row: &str, content: Result<T, String>) -> Option<T> {
        let torn = |what| self.shared.add_finding(Finding::new(Anomaly::Torn, row, "one whole transaction", what));
        content.map_err(torn).ok()
    }

    async fn saw(&self, row: &str, start: Moment, end: Moment, action: Action) {
        let operation = Operation { by: self.by, start, end, outcome: Outcome::Ok, action };
        self.shared.note(self.slot, row, operation).await;
    }

    async fn wrote<T>(&mut self, row: &str, answer: &Answer<T>, action: Action) {
        let outcome = answer.outcome();
        let operation = Operation { by: self.by, start: answer.start, end: answer.end, outcome, action };
        self.shared.note(self.slot, row, operation).await;
        self.succeeded(outcome);
    }

    fn succeeded(&mut self, outcome: Outcome) {
        if outcome == Outcome::Ok {
            self.waited();
        }
    }

    /// Records the time since the last success.
    fn waited(&mut self) {
        let now = self.shared.now();
        let stall = Stall { at: self.last, lasted: now.since(self.last), who: self.by, slot: self.slot };
        self.shared.stall(stall);
        self.last = now;
    }

    fn store(&self) -> S {
        // A load has at least one endpoint: `Load::start` checks it.
        let number = self.at % self.endpoints.len().max(1);
        #[expect(clippy::expect_used, reason = "a load without endpoints is refused before workers are created")]
        self.endpoints.get(number).map(|endpoint| endpoint.store.clone()).expect("an endpoint")
    }

    /// Runs a call with the timeout. After an error it pauses, and the next call uses another endpoint. It is a random one: if all
    /// workers used the next endpoint, they would gather at the server that a test fails next.
    async fn ask<T>(&mut self, call: impl Future<Output = Result<T, Error>>) -> Answer<T> {
        let start = self.shared.now();
        let result = tokio::time::timeout(self.shared.plan.call_timeout, call).await;
        let result = result.unwrap_or_else(|_| Err(Error::new(Reason::Deadline, "timed out")));
        let end = self.shared.now();
        if let Err(error) = &result {
            self.shared.count_error(error.reason);
            self.at += 1 + self.place(self.endpoints.len().saturating_sub(1).max(1));
            tokio::time::sleep(self.rng.jitter(PAUSE)).await;
        }
        Answer { start, end, result }
    }

    fn below(&self, bound: u32) -> u32 {
        u32::try_from(self.rng.below(u64::from(bound))).unwrap_or(0)
    }

    fn place(&self, bound: usize) -> usize {
        usize::try_from(self.rng.below(u64::try_from(bound).unwrap_or(0))).unwrap_or(0)
    }
}

/// Findings for boundary rows that do not have their value.
pub(super) fn torn_boundaries(found: &[Row]) -> impl Iterator<Item = Finding> {
    found.iter().filter(|row| !rows::is_intact_boundary(row)).map(|row| {
        let seen = format!("{} cells", row.cells.len());
        Finding::new(Anomaly::Torn, &rows::text_of(&row.key), "the same bytes in two families", seen)
    })
}
