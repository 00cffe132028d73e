//! Folding of windows into longer steps of time: ten minutes from minutes, hours from ten minutes.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use ebla_model::error::Error;
use ebla_model::heat::{HeatStep, HeatWindow, fold};
use ebla_model::id::TableId;
use ebla_model::schema::TableState;
use ebla_model::time::Micros;
use ebla_routing::HeatTable;
use futures::{FutureExt as _, StreamExt as _, TryStreamExt as _, stream};
use tracing::{debug, warn};

use crate::active::ActiveMaster;

/// A step is folded when it has ended for this number of windows: tablet servers write after the end of a window.
const LATE_WINDOWS: u32 = 2;
/// The most steps that one round folds; the next round continues.
const STEPS_MAX: usize = 12;
/// Tables whose windows are in memory at once.
const TABLES_AT_ONCE: usize = 64;
/// Concurrent reads of tables.
const READS_AT_ONCE: usize = 8;
/// The timeout of reads and writes of one step.
const STEP_TIMEOUT: Duration = Duration::from_secs(60);

/// Folds the steps that have ended and were not folded yet.
pub(super) async fn fold_due(master: &ActiveMaster, table: &HeatTable, window: Duration) -> Result<(), Error> {
    for step in HeatStep::ALL {
        let Some(source) = step.source() else { continue };
        let now = master.runtime().clock.wall();
        let deadline = master.deadline(STEP_TIMEOUT);
        let complete = match source.source() {
            None => now.minus(window.saturating_mul(LATE_WINDOWS)),
            // Its source must be complete.
            Some(_) => table.folded(source, now, deadline).await?.until.unwrap_or_default(),
        };
        let folded = table.folded(step, now, deadline).await?;
        let done = match folded.until {
            _ if folded.is_ahead => {
                let done = continue_from(step, folded.until, now, window);
                warn!(
                    step = step.family(),
                    "key heat was folded by a master whose clock was ahead; continuing from now"
                );
                table.replace_folded(step, done, now, deadline).await?;
                done
            }
            Some(done) => done,
            None => {
                // The first time: there was no table before this step.
                table.set_folded(step, step.start_of(now, window), now, deadline).await?;
                continue;
            }
        };
        for start in due_steps(step, done, complete, now, window) {
            fold_step(master, table, (step, source), start, window).await?;
        }
    }
    Ok(())
}

/// Where to continue when a record is later than now: at the latest record that is not, or at the first step whose source is wholly kept.
/// Steps that were folded before are folded again, to the same.
fn continue_from(step: HeatStep, known: Option<Micros>, now: Micros, window: Duration) -> Micros {
    let kept = step.source().map_or(now, |source| now.minus(source.retention()));
    let first = step.start_of(kept, window);
    let whole = if first < kept { first.plus(step.length(window)) } else { first };
    known.unwrap_or_default().max(whole)
}

/// The starts of the steps to fold, at most [`STEPS_MAX`]: those that begin at `done` or later and have ended at `complete`, without those
/// whose source is no longer kept.
fn due_steps(step: HeatStep, done: Micros, complete: Micros, now: Micros, window: Duration) -> Vec<Micros> {
    let length = step.length(window);
    let kept = step.source().map_or(now, |source| now.minus(source.retention()));
    let first = step.start_of(done.max(kept), window);
    let starts = std::iter::successors(Some(first), |start| Some(start.plus(length)));
    starts.take_while(|start| start.plus(length) <= complete).take(STEPS_MAX).collect()
}

async fn fold_step(
    master: &ActiveMaster,
    table: &HeatTable,
    (step, source): (HeatStep, HeatStep),
    start: Micros,
    window: Duration,
) -> Result<(), Error> {
    let deadline = master.deadline(STEP_TIMEOUT);
    let end = start.plus(step.length(window));
    let schemas = master.directory().schemas();
    let users = schemas.iter().filter(|schema| !schema.name.is_system() && schema.state == TableState::Active);
    let users: Vec<TableId> = users.map(|schema| schema.table).collect();
    for tables in users.chunks(TABLES_AT_ONCE) {
        let reads = tables.iter().map(|user| {
            let (user, table) = (*user, table.clone());
            async move { Ok::<_, Error>((user, table.read(user, source, (start, end), deadline).await?)) }.boxed()
        });
        let reads: Vec<_> = reads.collect();
        let read: Vec<_> = stream::iter(reads).buffer_unordered(READS_AT_ONCE).try_collect().await?;
        let folded = |(user, steps): (TableId, Vec<(Micros, HeatWindow)>)| {
            let windows: Vec<HeatWindow> = steps.into_iter().map(|(_start, window)| window).collect();
            (!windows.is_empty()).then(|| (user, fold(&windows)))
        };
        let folded: BTreeMap<TableId, HeatWindow> = read.into_iter().filter_map(folded).collect();
        table.write((step, start), &Bytes::new(), &folded, deadline).await?;
    }
    debug!(step = step.family(), tables = users.len(), "key heat folded");
    table.set_folded(step, end, master.runtime().clock.wall(), deadline).await
}

#[cfg(test)]
mod tests {
    use ebla_model::heat::WINDOW;

    use super::*;

    fn minute(number: i64) -> Micros {
        Micros::from_millis(number * 60_000)
    }

    /// The due steps of ten minutes, in minutes.
    fn due(done: i64, complete: i64, now: i64) -> Vec<i64> {
        let steps = due_steps(HeatStep::TenMinutes, minute(done), minute(complete), minute(now), WINDOW);
        steps.into_iter().map(|start| start.get() / 60_000_000).collect()
    }

    #[test]
    fn steps_are_folded_once_they_have_ended() {
        assert_eq!(due(1_000, 1_009, 1_011), Vec::<i64>::new());
        assert_eq!(due(1_000, 1_010, 1_012), [1_000]);
        assert_eq!(due(1_000, 1_029, 1_031), [1_000, 1_010]);
        assert_eq!(due(1_010, 1_029, 1_031), [1_010]);
    }

    #[test]
    fn a_clock_that_was_ahead_does_not_end_folding() {
        let from = |known: Option<i64>, now| {
            let from = continue_from(HeatStep::TenMinutes, known.map(minute), minute(now), WINDOW);
            from.get() / 60_000_000
        };
        assert_eq!(from(None, 2_442), 2_090, "the minutes from 2,082 on are kept");
        assert_eq!(from(None, 2_440), 2_080);
        assert_eq!(from(Some(2_400), 2_442), 2_400);
        assert_eq!(from(Some(1_000), 2_442), 2_090);
        assert_eq!(due(from(None, 2_442), 2_440, 2_442)[..2], [2_090, 2_100]);
    }

    #[test]
    fn a_master_that_was_away_continues_with_what_is_kept() {
        let after_a_day = due(1_000, 2_440, 2_442);
        assert_eq!(after_a_day.len(), STEPS_MAX, "the next round goes on");
        assert_eq!(after_a_day[0], 2_080, "minutes are kept for six hours");
    }
}
