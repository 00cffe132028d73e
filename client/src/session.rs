//! Sessions: sequence numbers that let a group recognize a retried write (exactly-once writes).
//!
//! A handle has one session for each group that it writes to. A write takes the next sequence of its group's session when it is
//! first sent, and keeps session and sequence over all its retries, also when its tablet moves to another group. So a group
//! that has applied the write responds with success and does not apply it twice. Each write carries the lowest outstanding
//! sequence of its session: the group drops the records of all sequences below it.
//!
//! A write that cannot finish holds back the lowest outstanding sequence of its session, and with it the records of all later
//! writes. Therefore a group without a quorum has a session of its own, as every group has. If a few tablets of a group cannot
//! be written for long, for instance while they move, they get sessions of their own, and the other tablets of the group a
//! new one ([`GroupSessions`]). If very many writes end while an earlier one has no response, whatever the reason, the next ones get a new
//! session too: a group remembers a limited number of writes of each.
//!
//! A write whose caller went away ends like any other. If it reaches the group later, its sequence is below the lowest
//! outstanding one and the group rejects it: it is applied once or not at all.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ebla_model::id::{GroupId, SessionId, TabletId};
use ebla_model::session::IDLE_MAX;
use ebla_proto::tablet;
use ebla_runtime::{Clock, Failpoint, Rng};
use parking_lot::Mutex;

/// A write that is outstanding for this long is late.
const LATE: Duration = Duration::from_secs(5);

/// Late writes are looked for at most once in this time.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// A late write is left in its session until the session has this many later ones.
const HELD_BACK_MAX: u64 = 4_096;

/// A session with this many writes from its lowest outstanding one gets no more. The group writes all that it remembers of a session, 6 bytes for
/// each write without a stored response, with each batch that contains a write of it: 48 KiB. It refuses a session of which it remembers 65,536
/// writes: even when the session has acknowledged them, because it learns that from a write that it applies.
const SESSION_WRITES_MAX: u64 = 8_192;

/// How many sessions of a group are replaced because of [`SESSION_WRITES_MAX`] while the group remembers them.
const FULL_SESSIONS_MAX: usize = 32;

/// Maximum number of tablets of a group with sessions of their own. If more have late writes, the whole group is slow. As many
/// tablets can move from a group to other groups at the same time.
const SEPARATE_MAX: usize = 16;

/// Number of groups above which sessions without outstanding writes are dropped.
const GROUPS_MAX: usize = 10_000;

/// An outstanding write.
#[derive(Clone, Copy, Debug)]
struct Outstanding {
    tablet: TabletId,
    /// When it was first sent, by the monotonic clock.
    started: Duration,
}

impl Outstanding {
    fn is_late(&self, now: Duration) -> bool {
        now.saturating_sub(self.started) >= LATE
    }
}

/// The sequences of one session: the next one and the outstanding ones.
#[derive(Debug)]
struct Sequences {
    next: u64,
    outstanding: BTreeMap<u64, Outstanding>,
}

impl Sequences {
    /// The lowest sequence that may still be sent; the next one if none is outstanding.
    fn lowest_outstanding(&self) -> u64 {
        self.outstanding.first_key_value().map_or(self.next, |(lowest, _write)| *lowest)
    }

    /// How many writes the group may have to remember.
    fn held_back(&self) -> u64 {
        self.next - self.lowest_outstanding()
    }

    /// The tablets whose late writes hold back many later ones; empty if none are.
    fn late_tablets(&self, now: Duration) -> BTreeSet<TabletId> {
        if self.held_back() < HELD_BACK_MAX {
            return BTreeSet::new();
        }
        let late = self.outstanding.values().take_while(|write| write.is_late(now));
        late.map(|write| write.tablet).collect()
    }

    fn has_late_write(&self, now: Duration) -> bool {
        self.outstanding.first_key_value().is_some_and(|(_sequence, write)| write.is_late(now))
    }
}

/// Writes that share one sequence. Cheap to clone; clones share the sequences.
#[derive(Clone, Debug)]
struct Session {
    id: Bytes,
    /// Guards the counter and the map; held for a few instructions.
    sequences: Arc<Mutex<Sequences>>,
}

impl Session {
    fn new(id: SessionId) -> Self {
        let sequences = Sequences { next: 1, outstanding: BTreeMap::new() };
        Self { id: Bytes::copy_from_slice(&id.to_bytes()), sequences: Arc::new(Mutex::new(sequences)) }
    }

    /// Begins a write: it holds the next sequence until the ticket is dropped.
    fn begin(&self, tablet: TabletId, now: Duration) -> Ticket {
        let mut sequences = self.sequences.lock();
        let sequence = sequences.next;
        sequences.next = sequences.next.saturating_add(1);
        sequences.outstanding.insert(sequence, Outstanding { tablet, started: now });
        drop(sequences);
        Ticket { session: self.clone(), sequence }
    }

    /// Takes a sequence without a write.
    fn skip(&self) -> u64 {
        let mut sequences = self.sequences.lock();
        sequences.next = sequences.next.saturating_add(1);
        sequences.next - 1
    }

    fn is_idle(&self) -> bool {
        self.sequences.lock().outstanding.is_empty()
    }
}

/// The session of a tablet that has its own.
#[derive(Debug)]
struct SeparateSession {
    session: Session,
    /// When the tablet got it, by the monotonic clock.
    since: Duration,
}

/// The sessions for the writes to one group.
#[derive(Debug)]
struct GroupSessions {
    shared: Session,
    separate: HashMap<TabletId, SeparateSession>,
    /// When full sessions were replaced, by the monotonic clock, the oldest first; the group remembers them.
    replaced: VecDeque<Duration>,
    /// When late writes were last looked for, by the monotonic clock.
    checked: Duration,
}

impl GroupSessions {
    fn new(id: SessionId) -> Self {
        Self { shared: Session::new(id), separate: HashMap::new(), replaced: VecDeque::new(), checked: Duration::ZERO }
    }

    /// Begins a write to a tablet of the group.
    fn begin(&mut self, tablet: TabletId, now: Duration, new_id: impl Fn() -> SessionId) -> Ticket {
        if now.saturating_sub(self.checked) >= CHECK_INTERVAL {
            self.checked = now;
            let late = self.shared.sequences.lock().late_tablets(now);
            if !late.is_empty() {
                self.separate(&late, now, &new_id);
            }
        }
        let separate = self.separate.get_mut(&tablet).map(|separate| &mut separate.session);
        let session = separate.unwrap_or(&mut self.shared);
        if session.sequences.lock().held_back() >= SESSION_WRITES_MAX && may_replace(&mut self.replaced, now) {
            *session = Session::new(new_id());
        }
        session.begin(tablet, now)
    }

    /// Gives these tablets sessions of their own and the others a new one, unless they are too many.
    fn separate(&mut self, late: &BTreeSet<TabletId>, now: Duration, new_id: impl Fn() -> SessionId) {
        self.separate.retain(|_tablet, separate| {
            // A group remembers the old session for this long: it must not get many of them.
            let is_new = now.saturating_sub(separate.since) < IDLE_MAX;
            is_new || separate.session.sequences.lock().has_late_write(now)
        });
        let new: Vec<TabletId> = late.iter().filter(|tablet| !self.separate.contains_key(tablet)).copied().collect();
        if self.separate.len() + new.len() > SEPARATE_MAX {
            return;
        }
        for tablet in new {
            self.separate.insert(tablet, SeparateSession { session: Session::new(new_id()), since: now });
        }
        // Their late writes keep the old one.
        self.shared = Session::new(new_id());
    }

    fn is_idle(&self) -> bool {
        self.shared.is_idle() && self.separate.values().all(|separate| separate.session.is_idle())
    }
}

/// Whether a further full session of a group may be replaced at `now`. Then it is counted in `replaced`.
fn may_replace(replaced: &mut VecDeque<Duration>, now: Duration) -> bool {
    while replaced.front().is_some_and(|at| now.saturating_sub(*at) >= IDLE_MAX) {
        replaced.pop_front();
    }
    let may_replace = replaced.len() < FULL_SESSIONS_MAX;
    replaced.extend(may_replace.then_some(now));
    may_replace
}

/// The sessions of one incarnation of a client or front.
#[derive(Debug)]
pub(crate) struct Sessions {
    rng: Rng,
    clock: Clock,
    /// Guards the map; held for a few instructions.
    groups: Mutex<HashMap<GroupId, GroupSessions>>,
}

impl Sessions {
    /// Without a session; each gets a random id when it is first used.
    pub(crate) fn new(rng: Rng, clock: Clock) -> Self {
        Self { rng, clock, groups: Mutex::default() }
    }

    /// Begins a write to a tablet that is in this group, as far as is known: it holds a sequence until the ticket is dropped.
    pub(crate) fn begin(&self, group: GroupId, tablet: TabletId) -> Ticket {
        let new_id = || SessionId::new(self.rng.u128());
        let now = self.clock.monotonic();
        let mut groups = self.groups.lock();
        if groups.len() >= GROUPS_MAX && !groups.contains_key(&group) {
            groups.retain(|_group, sessions| !sessions.is_idle());
        }
        let sessions = match groups.entry(group) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(unknown) => unknown.insert(GroupSessions::new(new_id())),
        };
        sessions.begin(tablet, now, new_id)
    }
}

/// A write in progress. Dropping the ticket means that the write is not sent again.
#[derive(Debug)]
pub(crate) struct Ticket {
    session: Session,
    sequence: u64,
}

impl Ticket {
    /// The id of this write on the wire, with the current lowest outstanding sequence.
    pub(crate) fn write_id(&self) -> tablet::WriteId {
        tablet::WriteId {
            session: self.session.id.clone(),
            sequence: if Failpoint::RetryUnderNewNumber.is_enabled() { self.session.skip() } else { self.sequence },
            lowest_outstanding: self.session.sequences.lock().lowest_outstanding(),
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.session.sequences.lock().outstanding.remove(&self.sequence);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STUCK: TabletId = TabletId::new(1);
    const HEALTHY: TabletId = TabletId::new(2);

    fn new_id() -> SessionId {
        SessionId::new(8)
    }

    fn group() -> GroupSessions {
        GroupSessions::new(SessionId::new(7))
    }

    /// The number of writes of its session that a group must remember when this one is applied.
    fn held_back(ticket: &Ticket) -> u64 {
        let id = ticket.write_id();
        id.sequence - id.lowest_outstanding
    }

    #[test]
    fn the_lowest_outstanding_sequence_waits_for_the_oldest_write() {
        let mut group = group();
        let [first, second, third] = [STUCK, HEALTHY, HEALTHY].map(|tablet| group.begin(tablet, LATE, new_id));
        assert_eq!(third.write_id().lowest_outstanding, first.sequence);
        drop(second);
        assert_eq!(third.write_id().lowest_outstanding, first.sequence);
        drop(first);
        assert_eq!(held_back(&third), 0);
    }

    #[test]
    fn a_write_keeps_its_sequence_over_retries() {
        let mut group = group();
        let ticket = group.begin(HEALTHY, LATE, new_id);
        let first = ticket.write_id();
        let later = group.begin(HEALTHY, LATE, new_id);
        assert_eq!(ticket.write_id().sequence, first.sequence);
        assert_eq!(later.write_id().lowest_outstanding, first.sequence);
    }

    #[test]
    fn a_write_that_is_stuck_holds_back_no_write_to_another_group() {
        let sessions = Sessions::new(Rng::seeded(1), Clock::manual());
        let _stuck = sessions.begin(GroupId::new(1), STUCK);
        for _write in 0..100_000 {
            assert_eq!(held_back(&sessions.begin(GroupId::new(2), HEALTHY)), 0);
        }
    }

    #[test]
    fn a_tablet_that_is_stuck_gets_a_session_of_its_own() {
        let mut group = group();
        let stuck = group.begin(STUCK, Duration::ZERO, new_id);
        for _write in 0..HELD_BACK_MAX * 3 / 2 {
            drop(group.begin(HEALTHY, LATE / 2, new_id));
        }
        assert!(held_back(&group.begin(HEALTHY, LATE / 2, new_id)) > HELD_BACK_MAX, "it may end soon");
        let healthy = group.begin(HEALTHY, LATE, new_id);
        assert_eq!(held_back(&healthy), 0);
        let second = group.begin(STUCK, LATE, new_id);
        assert_ne!(stuck.write_id().session, healthy.write_id().session);
        drop(healthy);
        for _write in 0..3 * HELD_BACK_MAX {
            assert_eq!(held_back(&group.begin(HEALTHY, 10 * LATE, new_id)), 0, "the second one is separate");
        }
        drop((stuck, second));
        group.separate(&BTreeSet::from([HEALTHY]), 2 * LATE, new_id);
        assert_eq!(group.separate.len(), 2, "it stays separate for a time");
        group.separate(&BTreeSet::from([HEALTHY]), 2 * LATE + IDLE_MAX, new_id);
        assert_eq!(group.separate.keys().copied().collect::<Vec<_>>(), [HEALTHY]);
    }

    #[test]
    fn a_slow_group_keeps_its_session() {
        let mut group = group();
        let count = u64::try_from(SEPARATE_MAX).unwrap() + 1;
        let _slow: Vec<Ticket> =
            (0..count).map(|tablet| group.begin(TabletId::new(10 + tablet), Duration::ZERO, new_id)).collect();
        for _write in 0..HELD_BACK_MAX * 3 / 2 {
            drop(group.begin(HEALTHY, LATE, new_id));
        }
        assert!(group.separate.is_empty());
        assert!(held_back(&group.begin(HEALTHY, LATE, new_id)) > HELD_BACK_MAX);
    }

    #[test]
    fn a_full_session_gets_no_more_writes() {
        let mut group = group();
        // How many writes the group remembers at most while one has no response, and after the last one.
        let mut remembered = |now: Duration| {
            let _stuck = group.begin(STUCK, now, new_id);
            let counts: Vec<u64> =
                (0..=SESSION_WRITES_MAX).map(|_| held_back(&group.begin(HEALTHY, now, new_id))).collect();
            (counts.iter().copied().max().unwrap(), counts.last().copied().unwrap())
        };
        let full = SESSION_WRITES_MAX - 1;
        for _ in 0..FULL_SESSIONS_MAX {
            assert_eq!(remembered(Duration::ZERO), (full, 0), "the last one is in a new session");
        }
        assert_eq!(remembered(Duration::ZERO), (full + 2, full + 2), "the group remembers enough sessions");
        assert_eq!(remembered(IDLE_MAX), (full, 0), "it has forgotten them");
    }

    #[test]
    fn sessions_of_groups_that_are_not_written_any_more_are_dropped() {
        let sessions = Sessions::new(Rng::seeded(1), Clock::manual());
        let outstanding = sessions.begin(GroupId::new(0), HEALTHY);
        for group in 1..=u64::try_from(GROUPS_MAX).unwrap() {
            drop(sessions.begin(GroupId::new(group), HEALTHY));
        }
        assert_eq!(sessions.groups.lock().len(), 2);
        let second = sessions.begin(GroupId::new(0), HEALTHY);
        assert_eq!(second.write_id().session, outstanding.write_id().session);
    }
}
