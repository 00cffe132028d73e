//! Events that were read a few seconds ago, for all viewers who may see them.
//!
//! METADATA has 64 events for each tablet, and every open page with events asks once a second. So one reading at a time is made for all pages,
//! the others wait for it, and what it found is used for [`AGE`].

use std::sync::Arc;
use std::time::Duration;

use ebla_client::history::TableEvent;
use ebla_client::metadata::TabletEvent;
use ebla_model::error::{Error, Reason};
use ebla_model::schema::TableName;
use ebla_runtime::Clock;
use parking_lot::Mutex;
use tokio::sync::Semaphore;

/// How long events are not read again.
const AGE: Duration = Duration::from_secs(3);
/// The most events of a selection that are held, and that a page can show.
pub(crate) const EVENTS_MAX: usize = 1_000;
/// The most selections that are held; the oldest one is dropped for a further one.
const SELECTIONS_MAX: usize = 8;

/// Which events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Selection {
    /// Those of this table; `None`: of all.
    pub(crate) table: Option<TableName>,
    /// Those whose kind, cause or detail contains this text; `None`: all.
    pub(crate) word: Option<String>,
}

impl Selection {
    /// Whether an event of the table has the word.
    pub(crate) fn accepts(&self, event: &TabletEvent) -> bool {
        let has = |word: &String| [&event.what, &event.cause, &event.detail].iter().any(|text| text.contains(word));
        self.word.as_ref().is_none_or(has)
    }
}

/// What a reading found.
#[derive(Debug)]
struct Known {
    selection: Selection,
    read_at: Duration,
    events: Arc<[TableEvent]>,
}

/// The events that were read last. Cheap to clone; clones share them.
#[derive(Clone, Debug)]
pub(crate) struct RecentEvents(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// One permit: one reading at a time.
    turn: Semaphore,
    /// The oldest reading is first. Locked to look something up or to add a reading.
    readings: Mutex<Vec<Known>>,
}

impl Default for RecentEvents {
    fn default() -> Self {
        Self(Arc::new(Shared { turn: Semaphore::new(1), readings: Mutex::default() }))
    }
}

impl RecentEvents {
    /// The events of a selection, ascending by time: those of the last [`AGE`], or those that `read` finds, which starts only then. The caller
    /// has checked the rights of the viewer.
    ///
    /// # Errors
    /// Those of `read`; they are not kept.
    pub(crate) async fn get(
        &self,
        selection: &Selection,
        clock: &Clock,
        read: impl Future<Output = Result<Vec<TableEvent>, Error>> + Send,
    ) -> Result<Arc<[TableEvent]>, Error> {
        let closed = |_closed| Error::new(Reason::Busy, "the console is closed");
        let _turn = self.0.turn.acquire().await.map_err(closed)?;
        let now = clock.monotonic();
        if let Some(events) = self.known(selection, now) {
            return Ok(events);
        }
        let events: Arc<[TableEvent]> = read.await?.into();
        let known = Known { selection: selection.clone(), read_at: now, events: Arc::clone(&events) };
        let mut readings = self.0.readings.lock();
        if readings.len() >= SELECTIONS_MAX {
            readings.remove(0);
        }
        readings.push(known);
        Ok(events)
    }

    /// The events of a selection that were read less than [`AGE`] before `now`. Drops older ones of all selections.
    fn known(&self, selection: &Selection, now: Duration) -> Option<Arc<[TableEvent]>> {
        let mut readings = self.0.readings.lock();
        readings.retain(|known| now.saturating_sub(known.read_at) < AGE);
        readings.iter().find(|known| known.selection == *selection).map(|known| Arc::clone(&known.events))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::future::join_all;

    use super::*;
    use crate::pages::golden::events;

    fn of(word: &str) -> Selection {
        Selection { table: None, word: Some(word.to_owned()) }
    }

    #[tokio::test]
    async fn one_reading_serves_all_pages_and_errors_are_not_kept() {
        let (recent, clock, readings) = (RecentEvents::default(), Clock::system(), AtomicUsize::new(0));
        let read = || async {
            tokio::task::yield_now().await;
            readings.fetch_add(1, Ordering::Relaxed);
            Ok(events())
        };
        let failed = async { Err(Error::new(Reason::Busy, "later")) };
        assert_eq!(recent.get(&of("a"), &clock, failed).await.unwrap_err().reason, Reason::Busy);
        for found in join_all((0..30).map(|_| async { recent.get(&of("a"), &clock, read()).await })).await {
            assert_eq!(found.unwrap().to_vec(), events());
        }
        assert_eq!(readings.load(Ordering::Relaxed), 1);
        for number in 0..2 * SELECTIONS_MAX {
            recent.get(&of(&number.to_string()), &clock, read()).await.unwrap();
        }
        assert_eq!(recent.0.readings.lock().len(), SELECTIONS_MAX);
        assert_eq!(readings.load(Ordering::Relaxed), 1 + 2 * SELECTIONS_MAX);
    }

    #[test]
    fn a_word_is_in_the_kind_the_cause_or_the_detail() {
        let accepted = |word: &str| events().iter().filter(|found| of(word).accepts(&found.event)).count();
        assert_eq!([accepted("created"), accepted("size"), accepted("<m>"), accepted("absent")], [1, 2, 2, 0]);
        assert!(events().iter().all(|found| Selection::default().accepts(&found.event)));
    }
}
