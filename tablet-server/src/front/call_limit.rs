//! How many calls a front works on at once, which calls wait, and which are refused: a pure controller.
//!
//! A queue in front of a busy server is useful while it empties between bursts. A queue that stands makes each call cost its full time, and its caller may
//! have given up before it is answered. So while more than half of the calls take long, the controller lowers the limit of concurrent calls to the number
//! of those that are answered soon at the present rate (Little's law: the number of calls in progress is the rate times the time of each). It raises the limit
//! again when calls are fast and the limit holds some back. The shortest time, by which CoDel recognises a standing queue of packets (RFC 8289, section 4),
//! does not show one here: calls are not carried out in the order of their arrival, and a few are always fast.
//!
//! A call beyond the limit waits for a place. As many calls may wait as will probably begin soon; any other is refused at once, which costs little
//! (`CallAdmission::load_shed`), and its client learns it while it has time left.
//!
//! Connections share the limit: once half of it is in use, none gets more than its equal share. So do the calls that wait. Tables do too: a call counts for
//! its table once its request is read, so that the many connections of one table's clients leave room for another table.
//! A place that becomes free goes to the connection with the fewest calls in progress, and of its waiting calls to the oldest.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

/// The limit at the start, and the highest one.
pub(super) const LIMIT_MAX: usize = 8_192;
/// The lowest limit: with fewer concurrent calls, writes are no longer gathered into few log entries.
const LIMIT_MIN: usize = 128;
/// The largest number of calls that wait, whatever the rate of answers.
pub(super) const WAITING_MAX: usize = 8_192;
/// The least number of calls that may wait.
const WAITING_MIN: usize = 64;
/// The time in which a call in progress should be answered, and for which another one waits at most.
pub(super) const SOON: Duration = Duration::from_millis(250);
/// The least duration of a window.
const WINDOW: Duration = Duration::from_millis(100);
/// The least number of calls in a window.
const WINDOW_CALLS: usize = 20;
/// Slow windows in a row before the limit is lowered: one may be a failover.
const SLOW_WINDOWS: u32 = 2;

/// A connection, by a number that no other one has at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ConnectionId(pub(super) usize);

/// A call that waits, numbered in the order of their arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct CallId(u64);

/// What becomes of a call that arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// It begins.
    Begins,
    /// It waits until [`CallLimit::begin_next`] returns it, and [leaves](CallLimit::leave) after [`SOON`].
    Waits(CallId),
    /// It is refused: as many calls wait as will begin soon.
    Refused,
}

/// The calls of a connection.
#[derive(Debug, Default)]
struct ConnectionCalls {
    in_progress: usize,
    waiting: BTreeSet<CallId>,
}

/// The order in which connections get places: fewest calls in progress, then the oldest call.
type Rank = (usize, CallId, ConnectionId);

impl ConnectionCalls {
    /// `None`: no call waits.
    fn rank(&self, connection: ConnectionId) -> Option<Rank> {
        self.waiting.first().map(|oldest| (self.in_progress, *oldest, connection))
    }
}

/// The limit of concurrent calls, and what it is computed from.
#[derive(Debug)]
pub(super) struct CallLimit {
    limit: usize,
    in_progress: usize,
    /// Connections with a call in progress or waiting.
    connections: HashMap<ConnectionId, ConnectionCalls>,
    /// The number of connections with a call in progress.
    active: usize,
    /// All calls that wait, the oldest first.
    waiting: BTreeMap<CallId, ConnectionId>,
    /// The connections with waiting calls, the next one first.
    order: BTreeSet<Rank>,
    next_call: u64,
    /// Tables with a call in progress whose request is read.
    tables: usize,
    /// The largest number of calls that wait: those that probably begin in [`SOON`].
    waiting_max: usize,
    window: Window,
    /// Slow windows in a row up to now.
    slow_windows: u32,
}

/// What happened since the current window began.
#[derive(Debug)]
struct Window {
    began: Duration,
    /// Calls that ended, and those of them that were answered in time.
    calls: usize,
    answered: usize,
    /// Calls that took longer than [`SOON`].
    slow: usize,
    /// Whether a call found no place.
    is_limited: bool,
}

impl Window {
    const fn new(began: Duration) -> Self {
        Self { began, calls: 0, answered: 0, slow: 0, is_limited: false }
    }

    /// How many calls are answered in [`SOON`], at the rate of the window until now.
    fn soon(&self, now: Duration) -> usize {
        let length = now.saturating_sub(self.began).as_micros().max(1);
        usize::try_from(self.answered as u128 * SOON.as_micros() / length).unwrap_or(LIMIT_MAX)
    }
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It was answered after this time, from its beginning.
    Answered(Duration),
    /// Its deadline passed, or its caller gave up.
    TooLate,
    /// Its time says nothing about the load, such as that of a large batch.
    Ignored,
}

impl CallLimit {
    /// The highest limit, at `now` of the monotonic clock.
    pub(super) fn new(now: Duration) -> Self {
        Self {
            limit: LIMIT_MAX,
            in_progress: 0,
            connections: HashMap::new(),
            active: 0,
            waiting: BTreeMap::new(),
            order: BTreeSet::new(),
            next_call: 0,
            tables: 0,
            waiting_max: WAITING_MAX,
            window: Window::new(now),
            slow_windows: 0,
        }
    }

    /// The current limit.
    pub(super) const fn limit(&self) -> usize {
        self.limit
    }

    /// Whether a connection with `own` calls in progress gets another place.
    fn has_place(&self, own: usize) -> bool {
        if self.in_progress < self.limit / 2 {
            return true;
        }
        let connections = self.active + usize::from(own == 0);
        self.in_progress < self.limit && own < self.limit.div_ceil(connections)
    }

    /// A call arrives on this connection.
    pub(super) fn arrive(&mut self, connection: ConnectionId) -> Arrival {
        let own = self.connections.get(&connection).map_or(0, |calls| calls.in_progress);
        if self.has_place(own) {
            self.begin(connection);
            return Arrival::Begins;
        }
        self.window.is_limited = true;
        if !self.may_wait(connection) {
            return Arrival::Refused;
        }
        let call = CallId(self.next_call);
        self.next_call += 1;
        self.waiting.insert(call, connection);
        self.change(connection, |calls| {
            calls.waiting.insert(call);
        });
        Arrival::Waits(call)
    }

    /// Whether a call of this connection would be refused if it arrived now.
    pub(super) fn refuses(&self, connection: ConnectionId) -> bool {
        let own = self.connections.get(&connection).map_or(0, |calls| calls.in_progress);
        !self.has_place(own) && !self.may_wait(connection)
    }

    /// Whether a further call of this connection may wait: connections share the places of waiting calls as they share those of calls in progress.
    fn may_wait(&self, connection: ConnectionId) -> bool {
        if self.waiting.len() < self.waiting_max / 2 {
            return true;
        }
        let own = self.connections.get(&connection).map_or(0, |calls| calls.waiting.len());
        own < self.waiting_max.div_ceil(self.connections.len().max(1))
    }

    /// The next waiting call that begins; `None`: none does now. To be called until then after each [`Self::end`].
    pub(super) fn begin_next(&mut self) -> Option<CallId> {
        let &(own, call, connection) = self.order.first()?;
        if !self.has_place(own) {
            return None;
        }
        self.leave(call);
        self.begin(connection);
        Some(call)
    }

    /// A call waits no more. No effect if it does not wait.
    pub(super) fn leave(&mut self, call: CallId) {
        if let Some(connection) = self.waiting.remove(&call) {
            self.change(connection, |calls| {
                calls.waiting.remove(&call);
            });
        }
    }

    fn begin(&mut self, connection: ConnectionId) {
        let own = self.change(connection, |calls| calls.in_progress += 1);
        self.active += usize::from(own == 1);
        self.in_progress += 1;
    }

    /// Changes the calls of a connection. Returns how many are in progress then.
    fn change(&mut self, connection: ConnectionId, change: impl FnOnce(&mut ConnectionCalls)) -> usize {
        let calls = self.connections.entry(connection).or_default();
        let before = calls.rank(connection);
        change(calls);
        let (after, own) = (calls.rank(connection), calls.in_progress);
        if before != after {
            if let Some(before) = before {
                self.order.remove(&before);
            }
            self.order.extend(after);
        }
        if own == 0 && after.is_none() {
            self.connections.remove(&connection);
        }
        own
    }

    /// A call that has begun turns out to be one of a table with `own` other calls in progress; `false`: it is refused.
    pub(super) fn try_begin_table(&mut self, own: usize) -> bool {
        let tables = self.tables + usize::from(own == 0);
        // This call is one of those in progress.
        let is_admitted = self.in_progress <= self.limit / 2 || own < self.limit.div_ceil(tables);
        if is_admitted {
            self.tables = tables;
        } else {
            self.window.is_limited = true;
        }
        is_admitted
    }

    /// A call that [`Self::try_begin_table`] has admitted ends; `own`: the calls of its table that are still in progress.
    pub(super) fn end_table(&mut self, own: usize) {
        self.tables -= usize::from(own == 0);
    }

    /// Ends a call of this connection at `now`. Waiting calls may [begin](Self::begin_next) then.
    pub(super) fn end(&mut self, connection: ConnectionId, outcome: Outcome, now: Duration) {
        self.in_progress -= 1;
        let own = self.change(connection, |calls| calls.in_progress -= 1);
        self.active -= usize::from(own == 0);
        let (answered, is_slow) = match outcome {
            Outcome::Answered(taken) => (1, taken > SOON),
            Outcome::TooLate => (0, true),
            Outcome::Ignored => return,
        };
        self.window.calls += 1;
        self.window.answered += answered;
        self.window.slow += usize::from(is_slow);
        if self.window.calls >= WINDOW_CALLS && now.saturating_sub(self.window.began) >= WINDOW {
            self.adjust(now);
            self.window = Window::new(now);
        }
    }

    fn adjust(&mut self, now: Duration) {
        let soon = self.window.soon(now);
        self.waiting_max = soon.clamp(WAITING_MIN, WAITING_MAX);
        if self.window.slow > self.window.calls / 2 {
            self.slow_windows += 1;
            if self.slow_windows >= SLOW_WINDOWS {
                self.limit = soon.clamp(LIMIT_MIN, self.limit.max(LIMIT_MIN));
            }
        } else {
            self.slow_windows = 0;
            if self.window.is_limited || !self.waiting.is_empty() {
                self.limit = (self.limit + self.limit / 8).min(LIMIT_MAX);
            }
        }
    }
}

#[cfg(test)]
mod tests;
