//! How many calls a front works on at once, and which calls wait: a pure controller.
//!
//! A queue in front of a busy server is useful while it empties between bursts. If even the fastest call of a while has
//! waited long, the queue stands: each call then costs its full time, and its caller may have given up before it is answered.
//! The controller therefore watches the *shortest* time of the calls that end in a window, as CoDel does for packets
//! (RFC 8289, section 4), and lowers the limit of concurrent calls while that is long. It raises the limit again when calls
//! are fast and the limit holds some back.
//!
//! A call beyond the limit waits for a place, and is refused when it has waited long. A refusal costs the server as much as a cheap call, and
//! makes the client send the next one. A call that waits costs nothing: it occupies a stream of its connection, and HTTP/2 keeps in the
//! client what exceeds the streams. So the rate of refusals is at most the number of waiting calls, divided by the time for which they wait
//! ([`waiting_timeout`]).
//!
//! Connections share the limit: once half of it is in use, none gets more than its equal share. Tables do too: a call counts for
//! its table once its request is read, so that the many connections of one table's clients leave room for another table.
//! A place that becomes free goes to the connection with the fewest calls in progress, and of its waiting calls to the newest. During an overload
//! most waiting calls are never carried out, and the newest has the most time left until its caller gives up. (Maurer, *Fail at Scale*, ACM
//! Queue 13(8), 2015, "Adaptive LIFO".) In the order of arrival each call would begin when its time is nearly over.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

/// The limit at the start, and the highest one.
pub(super) const LIMIT_MAX: usize = 8_192;
/// The lowest limit: with fewer concurrent calls, writes are no longer gathered into few log entries.
const LIMIT_MIN: usize = 128;
/// The largest number of calls that wait. One more, and the oldest of them is refused.
pub(super) const WAITING_MAX: usize = 8_192;
/// A window is slow if its fastest call took longer.
pub(super) const SLOW: Duration = Duration::from_millis(250);
/// The time between two refusals that the server can afford: 4,000 a second take about a sixth of a processor.
const REFUSAL_INTERVAL: Duration = Duration::from_micros(250);
/// The least duration of a window.
const WINDOW: Duration = Duration::from_millis(100);
/// The least number of calls in a window.
const WINDOW_CALLS: usize = 20;
/// Slow windows in a row before the limit is lowered: one may be a failover.
const SLOW_WINDOWS: u32 = 2;

/// How long a call waits for a place while `waiting` calls do, itself included: 250 ms, and longer if the refusals would be too many.
pub(super) fn waiting_timeout(waiting: usize) -> Duration {
    SLOW.max(REFUSAL_INTERVAL.saturating_mul(u32::try_from(waiting).unwrap_or(u32::MAX)))
}

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
    /// It waits until [`CallLimit::begin_next`] returns it, and [leaves](CallLimit::leave) after `timeout`.
    Waits {
        /// Its number.
        call: CallId,
        /// How long it waits at most.
        timeout: Duration,
        /// A call that waits no more, because too many do, and is refused.
        displaced: Option<CallId>,
    },
}

/// The calls of a connection.
#[derive(Debug, Default)]
struct ConnectionCalls {
    in_progress: usize,
    waiting: BTreeSet<CallId>,
}

/// The order in which connections get places: fewest calls in progress, then the newest call.
type Rank = (usize, Reverse<CallId>, ConnectionId);

impl ConnectionCalls {
    /// `None`: no call waits.
    fn rank(&self, connection: ConnectionId) -> Option<Rank> {
        self.waiting.last().map(|newest| (self.in_progress, Reverse(*newest), connection))
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
    window: Window,
    /// Slow windows in a row up to now.
    slow_windows: u32,
}

/// What happened since the current window began.
#[derive(Debug)]
struct Window {
    began: Duration,
    calls: usize,
    fastest: Duration,
    /// The highest number of concurrent calls.
    peak: usize,
    /// Whether a call found no place.
    is_limited: bool,
}

impl Window {
    const fn new(began: Duration, in_progress: usize) -> Self {
        Self { began, calls: 0, fastest: Duration::MAX, peak: in_progress, is_limited: false }
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
            window: Window::new(now, 0),
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
        let oldest = self.waiting.first_key_value().map(|(call, _)| *call);
        let displaced = oldest.filter(|_call| self.waiting.len() >= WAITING_MAX);
        if let Some(displaced) = displaced {
            self.leave(displaced);
        }
        let call = CallId(self.next_call);
        self.next_call += 1;
        self.waiting.insert(call, connection);
        self.change(connection, |calls| {
            calls.waiting.insert(call);
        });
        Arrival::Waits { call, timeout: waiting_timeout(self.waiting.len()), displaced }
    }

    /// The next waiting call that begins; `None`: none does now. To be called until then after each [`Self::end`].
    pub(super) fn begin_next(&mut self) -> Option<CallId> {
        let &(own, Reverse(call), connection) = self.order.first()?;
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
        self.window.peak = self.window.peak.max(self.in_progress);
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
        let taken = match outcome {
            Outcome::Answered(taken) => taken,
            Outcome::TooLate => Duration::MAX,
            Outcome::Ignored => return,
        };
        self.window.calls += 1;
        self.window.fastest = self.window.fastest.min(taken);
        if self.window.calls >= WINDOW_CALLS && now.saturating_sub(self.window.began) >= WINDOW {
            self.adjust();
            self.window = Window::new(now, self.in_progress);
        }
    }

    fn adjust(&mut self) {
        if self.window.fastest > SLOW {
            self.slow_windows += 1;
            if self.slow_windows >= SLOW_WINDOWS {
                self.limit = (self.window.peak.min(self.limit) * 4 / 5).max(LIMIT_MIN);
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
