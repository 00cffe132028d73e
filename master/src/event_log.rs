//! The event log of the cluster: what operators should know about later, such as drains, repairs and lost servers, as files in Chubby.
//!
//! ```text
//!   record(event)  ->  pending, in memory   ->  events/<number>, written within about a second
//! ```
//!
//! [`KEPT_MAX`] events are kept; older ones are deleted with the writes of newer ones. Clients of the admin API make events of tables at
//! will, so these have only [`KEPT_OF_TABLES_MAX`] of the places once all are taken. While Chubby is unavailable [`PENDING_MAX`] events
//! wait, and then the oldest of them are dropped: nothing depends on them. Events that wait when a master ends its term are lost.
//! Events of single tablets are in METADATA, beside the tablets.
//!
//! A master that stops, or begins a new term, writes as its last event that it gives its lease back, and then releases the lock. If the last
//! event about a term is its beginning, the next master records that the lease was lost.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use ebla_chubby::{Write, paths};
use ebla_model::cluster_event::{ClusterEventKind, NewClusterEvent};
use ebla_model::error::Error;
use ebla_model::id::{ServerId, TableId};
use ebla_model::time::Micros;
use ebla_proto::{convert, operate, record};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tracing::{debug, warn};

use crate::active::ActiveMaster;
use crate::event_limit::EventLimit;

/// How many events are kept in Chubby, with at most about 450 bytes each.
const KEPT_MAX: usize = 500;
/// How many of them are of tables when the log is full.
const KEPT_OF_TABLES_MAX: usize = 200;
/// How many wait in memory for Chubby.
const PENDING_MAX: usize = 256;
/// How many are written in one transaction.
const BATCH_MAX: usize = 16;
/// How many one transaction deletes, below the limit of transactions together with a batch.
const EVICTED_MAX: usize = 32;
/// The delay before a failed write is repeated. Many events may follow each other, so it is also that between two writes.
const WRITE_DELAY: Duration = Duration::from_millis(500);
/// How long the end of a term waits until its last events are written: no other master can be elected meanwhile.
const LAST_WRITE_TIMEOUT: Duration = Duration::from_secs(1);

/// The events of this master that are not in Chubby yet.
#[derive(Debug, Default)]
pub(crate) struct EventLog {
    /// Guards a short queue.
    pending: Mutex<Pending>,
    recorded: Notify,
    /// Guards a map of limited size.
    limit: Mutex<EventLimit>,
}

#[derive(Debug, Default)]
struct Pending {
    /// Encoded events, the oldest first; at most [`PENDING_MAX`].
    events: VecDeque<Bytes>,
    /// How many were dropped since the last write.
    dropped: u64,
}

impl Pending {
    fn push(&mut self, event: Bytes) {
        if self.events.len() >= PENDING_MAX {
            self.events.pop_front();
            self.dropped += 1;
        }
        self.events.push_back(event);
    }

    /// Removes events that are written now. Those that were dropped meanwhile are not in the queue any more.
    fn remove(&mut self, written: &[Bytes]) {
        while self.events.front().is_some_and(|event| written.contains(event)) {
            self.events.pop_front();
        }
    }
}

impl EventLog {
    /// Records an event that has happened now.
    pub(crate) fn record(&self, event: &NewClusterEvent, now: Micros) {
        self.pending.lock().push(encode(event, now));
        self.recorded.notify_one();
    }

    /// Whether an event that clients can cause at will must be recorded at the time `now`, the time since boot.
    pub(crate) fn permits(&self, event: &NewClusterEvent, now: Duration) -> bool {
        self.limit.lock().permits(event, now)
    }

    /// The oldest events that are not written.
    fn batch(&self) -> Vec<Bytes> {
        self.pending.lock().events.iter().take(BATCH_MAX).cloned().collect()
    }

    /// The oldest events that are not written, at least one. Cancel-safe.
    async fn next_batch(&self) -> Vec<Bytes> {
        loop {
            let batch = self.batch();
            if !batch.is_empty() {
                return batch;
            }
            self.recorded.notified().await;
        }
    }

    fn written(&self, batch: &[Bytes]) {
        let mut pending = self.pending.lock();
        pending.remove(batch);
        let dropped = std::mem::take(&mut pending.dropped);
        if dropped > 0 {
            warn!(dropped, "events of the cluster were dropped while Chubby was unavailable");
        }
    }
}

fn encode(event: &NewClusterEvent, now: Micros) -> Bytes {
    convert::encode_record(record::ClusterEvent {
        time_micros: now.get(),
        what: event.kind.name().to_owned(),
        cause: event.kind.cause().name().to_owned(),
        server: event.server.map_or(0, ServerId::get),
        table: event.table.map_or(0, TableId::get),
        detail: event.detail().to_owned(),
        ..Default::default()
    })
}

/// Writes the events of this master to Chubby until it is no longer active.
pub(crate) async fn write_events(master: ActiveMaster) {
    let log = master.event_log();
    loop {
        let batch = log.next_batch().await;
        match write(&master, &batch).await {
            Ok(()) => log.written(&batch),
            Err(error) => debug!(%error, "events of the cluster not written; will retry"),
        }
        tokio::time::sleep(master.runtime().rng.jitter(WRITE_DELAY)).await;
    }
}

/// Records that the lease of this master is released, and writes all events that wait, as far as Chubby takes them in time. The caller has
/// ended [`write_events`] and releases the lock afterwards.
pub(crate) async fn end_term(master: &ActiveMaster, detail: &str) {
    master.record_event(&NewClusterEvent::new(ClusterEventKind::MasterLeaseReleased, detail));
    let log = master.event_log();
    let writing = async {
        loop {
            let batch = log.batch();
            if batch.is_empty() {
                return Ok::<(), Error>(());
            }
            write(master, &batch).await?;
            log.written(&batch);
        }
    };
    match tokio::time::timeout(LAST_WRITE_TIMEOUT, writing).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => debug!(%error, "the last events of this master are lost"),
        Err(_elapsed) => debug!("the last events of this master are lost: Chubby does not answer in time"),
    }
}

/// Records that a master has lost its lease, if the stored events say so. For the next master, before it records that it is elected.
///
/// # Errors
/// When Chubby cannot be read; nothing is recorded then.
pub(crate) async fn record_lost_lease(master: &ActiveMaster) -> Result<(), Error> {
    if let Some(lost) = lost_lease(&stored(master).await?) {
        master.record_event(&lost);
    }
    Ok(())
}

/// The loss of the lease of the last elected master; `None` when its end is recorded, or when no election is.
fn lost_lease(stored: &BTreeMap<u64, Bytes>) -> Option<NewClusterEvent> {
    let of_lease =
        [ClusterEventKind::MasterElected, ClusterEventKind::MasterLeaseReleased, ClusterEventKind::MasterLeaseLost]
            .map(ClusterEventKind::name);
    let decoded = stored.values().rev().filter_map(|event| convert::decode_record(event.clone()).ok());
    let last = decoded.into_iter().find(|event: &record::ClusterEvent| of_lease.contains(&event.what.as_str()))?;
    let is_open = last.what == ClusterEventKind::MasterElected.name();
    is_open.then(|| NewClusterEvent::new(ClusterEventKind::MasterLeaseLost, last.detail))
}

async fn write(master: &ActiveMaster, batch: &[Bytes]) -> Result<(), Error> {
    let writes = writes(&stored(master).await?, batch);
    if writes.is_empty() { Ok(()) } else { master.transact(Vec::new(), writes).await.map(drop) }
}

/// The stored events, encoded, by number.
async fn stored(master: &ActiveMaster) -> Result<BTreeMap<u64, Bytes>, Error> {
    let (files, _revision) = master.chubby().list(paths::EVENTS).await?;
    Ok(files.into_iter().filter_map(|file| Some((paths::parse_event(&file.path)?, file.value))).collect())
}

/// The writes that store a batch after the stored events, and delete the oldest ones. An event that is stored already is left out: the
/// answer to an earlier write was lost.
fn writes(stored: &BTreeMap<u64, Bytes>, batch: &[Bytes]) -> Vec<Write> {
    let next = stored.last_key_value().map_or(1, |(number, _event)| number + 1);
    let latest: Vec<&Bytes> = stored.values().rev().take(BATCH_MAX).collect();
    let new: Vec<&Bytes> = batch.iter().filter(|event| !latest.contains(event)).collect();
    let deleted = evicted(stored, &new).into_iter().map(|number| Write::delete(paths::event(number)));
    let put = (next..).zip(new).map(|(number, event)| Write::put(paths::event(number), event.clone()));
    put.chain(deleted).collect()
}

/// The numbers of the events that make room for new ones: the oldest of tables while these have more than their places, then the oldest
/// others.
fn evicted(stored: &BTreeMap<u64, Bytes>, new: &[&Bytes]) -> Vec<u64> {
    let excess = (stored.len() + new.len()).saturating_sub(KEPT_MAX).min(EVICTED_MAX);
    if excess == 0 {
        return Vec::new();
    }
    let (of_tables, others): (Vec<_>, Vec<_>) = stored.iter().partition(|(_number, event)| is_of_table(event));
    let new_of_tables = new.iter().filter(|event| is_of_table(event)).count();
    let of_tables_first = (of_tables.len() + new_of_tables).saturating_sub(KEPT_OF_TABLES_MAX);
    let of_tables = of_tables.into_iter().take(of_tables_first).map(|(number, _event)| *number);
    of_tables.chain(others.into_iter().map(|(number, _event)| *number)).take(excess).collect()
}

/// Whether an event is about a table. One that cannot be decoded is not.
fn is_of_table(event: &Bytes) -> bool {
    convert::decode_record::<record::ClusterEvent>(event.clone()).is_ok_and(|event| event.table != 0)
}

/// The events with a number greater than `after`, ascending. One that cannot be decoded is left out.
///
/// # Errors
/// When Chubby cannot be read.
pub(crate) async fn events_after(master: &ActiveMaster, after: u64) -> Result<operate::EventsReply, Error> {
    let stored = stored(master).await?.into_iter().filter(|(number, _event)| *number > after);
    let decoded = stored.filter_map(|(number, event)| {
        let event = convert::decode_record::<record::ClusterEvent>(event);
        let event = event.inspect_err(|error| warn!(number, %error, "an event of the cluster cannot be read")).ok()?;
        Some(operate::NumberedEvent { number, event: Some(event) })
    });
    Ok(operate::EventsReply { events: decoded.collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(number: u64) -> Bytes {
        Bytes::from(format!("event {number}"))
    }

    fn stored(numbers: std::ops::RangeInclusive<u64>) -> BTreeMap<u64, Bytes> {
        numbers.map(|number| (number, event(number))).collect()
    }

    #[test]
    fn events_follow_the_stored_ones() {
        let none = BTreeMap::new();
        assert_eq!(
            writes(&none, &[event(1), event(2)]),
            [Write::put(paths::event(1), event(1)), Write::put(paths::event(2), event(2)),]
        );
        assert_eq!(writes(&stored(7..=9), &[event(10)]), [Write::put(paths::event(10), event(10))]);
        assert_eq!(paths::parse_event(&paths::event(10)), Some(10));
        assert!(paths::event(9) < paths::event(10), "paths are sorted by number");
    }

    #[test]
    fn an_event_whose_write_was_not_confirmed_is_not_stored_twice() {
        assert_eq!(writes(&stored(7..=9), &[event(8), event(9)]), []);
        assert_eq!(writes(&stored(7..=9), &[event(9), event(10)]), [Write::put(paths::event(10), event(10))]);
    }

    #[test]
    fn the_oldest_are_deleted() {
        let kept = KEPT_MAX as u64;
        let full = stored(1..=kept);
        assert_eq!(
            writes(&full, &[event(kept + 1)]),
            [Write::put(paths::event(kept + 1), event(kept + 1)), Write::delete(paths::event(1)),]
        );
        let more = stored(1..=kept + 1_000);
        assert_eq!(writes(&more, &[event(0)]).len(), 1 + EVICTED_MAX, "the rest with later events");
    }

    #[test]
    fn events_of_tables_do_not_replace_the_others() {
        let of_table = |number: u64| {
            let new = NewClusterEvent::new(ClusterEventKind::SchemaChanged, format!("version {number}"));
            encode(&new.of_table(TableId::new(7)), Micros::new(17))
        };
        let (kept, of_tables) = (KEPT_MAX as u64, KEPT_OF_TABLES_MAX as u64);
        let others = kept - of_tables;
        let full: BTreeMap<u64, Bytes> = (1..=kept)
            .map(|number| (number, if number <= others { event(number) } else { of_table(number) }))
            .collect();
        let next = of_table(kept + 1);
        assert_eq!(evicted(&full, &[&next]), [others + 1], "the oldest of a table");
        assert_eq!(evicted(&full, &[&event(0)]), [1], "of the others");
        assert_eq!(evicted(&stored(1..=kept), &[&next]), [1], "events of tables have places too");
        let only_of_tables: BTreeMap<u64, Bytes> = (1..=kept).map(|number| (number, of_table(number))).collect();
        assert_eq!(evicted(&only_of_tables, &[&event(0)]), [1]);
    }

    #[test]
    fn a_limited_number_waits() {
        let mut pending = Pending::default();
        (0..PENDING_MAX as u64 + 3).for_each(|number| pending.push(event(number)));
        assert_eq!((pending.events.len(), pending.dropped), (PENDING_MAX, 3));
        assert_eq!(pending.events.front(), Some(&event(3)), "the oldest are dropped");
        let batch: Vec<_> = pending.events.iter().take(BATCH_MAX).cloned().collect();
        // Two of the batch are dropped while it is written.
        pending.push(event(1_000));
        pending.push(event(1_001));
        pending.remove(&batch);
        assert_eq!(pending.events.front(), Some(&event(3 + BATCH_MAX as u64)));
    }

    #[test]
    fn the_next_master_sees_whether_a_lease_was_released() {
        use ClusterEventKind as Kind;
        let log = |events: &[(Kind, &str)]| -> BTreeMap<u64, Bytes> {
            let encoded =
                |(kind, detail): &(Kind, &str)| encode(&NewClusterEvent::new(*kind, *detail), Micros::new(17));
            (1..).zip(events.iter().map(encoded)).collect()
        };
        let (elected, released) =
            ((Kind::MasterElected, "at a:1, epoch 5"), (Kind::MasterLeaseReleased, "at a:1, epoch 5"));
        let (lost, other) = ((Kind::MasterLeaseLost, "at a:1, epoch 5"), (Kind::ServerJoined, "b:1"));
        assert_eq!(lost_lease(&log(&[])), None);
        assert_eq!(lost_lease(&log(&[other])), None, "the election was deleted with the oldest events");
        let expected = NewClusterEvent::new(Kind::MasterLeaseLost, "at a:1, epoch 5");
        assert_eq!(lost_lease(&log(&[released, elected, other])), Some(expected.clone()));
        assert_eq!(lost_lease(&log(&[elected, other, released, other])), None);
        assert_eq!(lost_lease(&log(&[elected, lost, other])), None, "recorded already");
        let mut unreadable = log(&[elected]);
        unreadable.insert(2, event(0));
        assert_eq!(lost_lease(&unreadable), Some(expected), "an event that cannot be decoded says nothing");
    }

    #[test]
    fn an_event_is_encoded_with_its_cause() {
        let new = NewClusterEvent::new(ClusterEventKind::DrainRequested, "4 replicas").of_server(ServerId::new(3));
        let decoded: record::ClusterEvent = convert::decode_record(encode(&new, Micros::new(17))).unwrap();
        assert_eq!((decoded.what.as_str(), decoded.cause.as_str()), ("drain-requested", "operator"));
        assert_eq!((decoded.server, decoded.table, decoded.time_micros), (3, 0, 17));
        assert_eq!(decoded.detail, "4 replicas");
    }
}
