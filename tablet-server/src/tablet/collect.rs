//! Removing versions beyond a count, from the leader's side: looked for stretch by stretch, removed by entries of the log.
//!
//! What is too old goes at compactions, on each replica for itself. What counts must go on all replicas alike, or a delete
//! of a newer version would show an older one on some of them: so the leader looks for rows with dead cells and proposes
//! `Collect` for them, and apply judges again, by what is there then. Readers see nothing of it (`rows`).

use std::sync::Arc;
use std::time::Duration;

use ebla_model::codec::{self, ColumnKey};
use ebla_model::command::CommandKind;
use ebla_model::error::Error;
use ebla_model::gc::Judge;
use ebla_model::key::{KeyRange, RowKey};
use ebla_model::time::Micros;
use ebla_storage::tablet::{ScanPlan, StoreError, View};

use crate::tablet::Tablet;
use crate::tablet::failure::Failure;
use crate::tablet::machine::Machine;
use crate::tablet::read::pool_failure;
use crate::tablet::rows::Families;

/// A stretch ends behind the row in which it has so many cells: what one entry makes every replica read.
const CELLS_MAX: u64 = 4_096;
/// A stretch is not worth an entry when fewer than one cell in so many is dead.
const DEAD_PART: u64 = 32;
/// How long an entry may take.
const ENTRY: Duration = Duration::from_secs(30);
/// After each stretch the pass rests so many times as long as that took: reads and writes come first.
const RESTS: u32 = 9;
/// And at least so long.
const REST_MIN: Duration = Duration::from_millis(5);

/// What a pass has removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// Cells that were looked at.
    pub cells: u64,
    /// Those that were dead, in stretches for which an entry was proposed.
    pub removed: u64,
}

/// Rows one after the other, and how many of their cells are dead.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stretch {
    range: KeyRange,
    /// The time by which they were judged.
    time: Micros,
    cells: u64,
    dead: u64,
}

impl Stretch {
    const fn is_worth_it(&self) -> bool {
        self.dead > 0 && self.dead >= self.cells / DEAD_PART
    }
}

impl Tablet {
    /// Whether versions beyond a count can lie in this tablet.
    pub(crate) fn counts_versions(&self) -> bool {
        self.machine.published().shape.families.count_versions()
    }

    /// Goes through the tablet once and removes, on all replicas, versions that are beyond a count. Takes its time.
    ///
    /// # Errors
    /// `NotLeader` when another replica leads; what proposing fails with; errors of the store. What was removed until then
    /// is removed.
    pub async fn collect(&self) -> Result<Collected, Failure> {
        let mut collected = Collected::default();
        let mut start = self.descriptor().range.start().clone();
        loop {
            self.leading()?;
            let begun = self.runtime.clock.monotonic();
            let machine = Arc::clone(&self.machine);
            let look = move || stretch(&machine, &start);
            let Some(stretch) = self.maintenance.run(look).await.map_err(pool_failure)?? else { return Ok(collected) };
            collected.cells += stretch.cells;
            let end = stretch.range.end().cloned();
            if stretch.is_worth_it() {
                collected.removed += stretch.dead;
                self.order(CommandKind::Collect { range: stretch.range, time: stretch.time }, ENTRY).await?;
            }
            let Some(end) = end else { return Ok(collected) };
            start = end;
            tokio::time::sleep((self.since(begun) * RESTS).max(REST_MIN)).await;
        }
    }
}

/// The next stretch of the tablet's rows, from `start` on; none behind the last row. Blocking.
fn stretch(machine: &Machine, start: &RowKey) -> Result<Option<Stretch>, Error> {
    let look = |view: &View<'_>| {
        // After the view is pinned, as readers do.
        let published = machine.published();
        let whole = &published.shape.descriptor.range;
        let rest = KeyRange::new(start.clone(), whole.end().cloned()).and_then(|rest| rest.intersect(whole));
        rest.map_or(Ok(Ok(None)), |rest| survey(view, &published.shape.families, published.gc_time, rest))
    };
    machine.store().with_view(look)?
}

/// Looks at rows of `range` from its start on. The error inside is that of keys that are not what the store writes.
fn survey(
    view: &View<'_>,
    families: &Families,
    time: Micros,
    range: KeyRange,
) -> Result<Result<Option<Stretch>, Error>, StoreError> {
    let (lower, upper) = codec::range_bounds(&range);
    // A pass goes through the whole tablet: it would drive out of the cache what is read again and again.
    let mut scan = view.scan(&ScanPlan::new(&lower, upper.as_deref()).once())?;
    let mut survey = Survey { families, time, row: Vec::new(), column: Vec::new(), judge: None, cells: 0, dead: 0 };
    while let Some((key, _value)) = scan.entry() {
        match survey.take(key) {
            Ok(Taken::Counted) => scan.step()?,
            Ok(Taken::Full(next)) => {
                let Some((range, _rest)) = range.split_at(&next) else { break };
                return Ok(Ok(Some(survey.stretch(range))));
            }
            Err(damaged) => return Ok(Err(damaged)),
        }
    }
    Ok(Ok(Some(survey.stretch(range))))
}

/// Counts the dead among the cells of rows that come in the store's order.
struct Survey<'a> {
    families: &'a Families,
    time: Micros,
    /// The escaped key of the row that is being counted.
    row: Vec<u8>,
    /// The key of the column that is being counted, without a timestamp.
    column: Vec<u8>,
    /// Absent where nothing of the column is removed by count.
    judge: Option<Judge<'a>>,
    cells: u64,
    dead: u64,
}

enum Taken {
    Counted,
    /// Enough cells, and here begins a row.
    Full(RowKey),
}

impl Survey<'_> {
    fn take(&mut self, key: &[u8]) -> Result<Taken, Error> {
        if self.row.is_empty() || !key.starts_with(&self.row) {
            if self.cells >= CELLS_MAX {
                return Ok(Taken::Full(RowKey::new(codec::unescape(key)?.0)));
            }
            let length = codec::escaped_len(key)?;
            self.row = key.get(..length).unwrap_or_default().to_vec();
        }
        let cell = ColumnKey::decode(key.get(self.row.len()..).unwrap_or_default())?;
        let column = codec::without_timestamp(key);
        if self.column != column {
            self.column = column.to_vec();
            self.judge = self.families.counting_rule(cell.family).map(|rule| Judge::new(Some(rule), self.time));
        }
        self.cells += 1;
        if self.judge.as_mut().is_some_and(|judge| !judge.keeps(cell.timestamp)) {
            self.dead += 1;
        }
        Ok(Taken::Counted)
    }

    fn stretch(&self, range: KeyRange) -> Stretch {
        Stretch { range, time: self.time, cells: self.cells, dead: self.dead }
    }
}

#[cfg(test)]
mod tests;
