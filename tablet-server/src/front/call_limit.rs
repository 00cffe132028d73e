//! How many calls a front works on at once: a pure controller.
//!
//! A queue in front of a busy server is useful while it empties between bursts. If even the fastest call of a while has
//! waited long, the queue stands: each call then costs its full time, and its caller may have given up before it is answered.
//! The controller therefore watches the *shortest* time of the calls that end in a window, as CoDel does for packets
//! (RFC 8289, section 4), and lowers the limit of concurrent calls while that is long. It raises the limit again when calls
//! are fast and the limit refuses some.
//!
//! Connections share the limit: once half of it is in use, none gets more than its equal share. Tables do too: a call counts for
//! its table once its request is read, so that the many connections of one table's clients leave room for another table.

use std::time::Duration;

/// The limit at the start, and the highest one.
pub(super) const LIMIT_MAX: usize = 8_192;
/// The lowest limit: with fewer concurrent calls, writes are no longer gathered into few log entries.
const LIMIT_MIN: usize = 128;
/// A window is slow if its fastest call took longer.
pub(super) const SLOW: Duration = Duration::from_millis(250);
/// The least duration of a window.
const WINDOW: Duration = Duration::from_millis(100);
/// The least number of calls in a window.
const WINDOW_CALLS: usize = 20;
/// Slow windows in a row before the limit is lowered: one may be a failover.
const SLOW_WINDOWS: u32 = 2;

/// The limit of concurrent calls, and what it is computed from.
#[derive(Debug)]
pub(super) struct CallLimit {
    limit: usize,
    in_progress: usize,
    /// Connections with a call in progress.
    connections: usize,
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
    has_refused: bool,
}

impl Window {
    const fn new(began: Duration, in_progress: usize) -> Self {
        Self { began, calls: 0, fastest: Duration::MAX, peak: in_progress, has_refused: false }
    }
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It was answered after this time.
    Answered(Duration),
    /// Its deadline passed, or its caller gave up.
    TooLate,
    /// Its time says nothing about the load, such as that of a large batch.
    Ignored,
}

impl CallLimit {
    /// The highest limit, at `now` of the monotonic clock.
    pub(super) const fn new(now: Duration) -> Self {
        let window = Window::new(now, 0);
        Self { limit: LIMIT_MAX, in_progress: 0, connections: 0, tables: 0, window, slow_windows: 0 }
    }

    /// The current limit.
    pub(super) const fn limit(&self) -> usize {
        self.limit
    }

    /// Begins a call of a connection that has `own` other calls in progress; `false`: it is refused.
    pub(super) fn try_begin(&mut self, own: usize) -> bool {
        let connections = self.connections + usize::from(own == 0);
        let is_admitted = if self.in_progress < self.limit / 2 {
            true
        } else {
            self.in_progress < self.limit && own < self.limit.div_ceil(connections)
        };
        if is_admitted {
            self.connections = connections;
            self.in_progress += 1;
            self.window.peak = self.window.peak.max(self.in_progress);
        } else {
            self.window.has_refused = true;
        }
        is_admitted
    }

    /// A call that has begun turns out to be one of a table with `own` other calls in progress; `false`: it is refused.
    pub(super) fn try_begin_table(&mut self, own: usize) -> bool {
        let tables = self.tables + usize::from(own == 0);
        // This call is one of those in progress.
        let is_admitted = self.in_progress <= self.limit / 2 || own < self.limit.div_ceil(tables);
        if is_admitted {
            self.tables = tables;
        } else {
            self.window.has_refused = true;
        }
        is_admitted
    }

    /// A call that [`Self::try_begin_table`] has admitted ends; `own`: the calls of its table that are still in progress.
    pub(super) fn end_table(&mut self, own: usize) {
        self.tables -= usize::from(own == 0);
    }

    /// Ends a call at `now`; `own`: the calls of its connection that are still in progress.
    pub(super) fn end(&mut self, own: usize, outcome: Outcome, now: Duration) {
        self.in_progress -= 1;
        self.connections -= usize::from(own == 0);
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
            if self.window.has_refused {
                self.limit = (self.limit + self.limit / 8).min(LIMIT_MAX);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A limit in use by `in_progress` calls of one connection.
    fn used(in_progress: usize) -> CallLimit {
        let mut limit = CallLimit::new(Duration::ZERO);
        (0..in_progress).for_each(|own| assert!(limit.try_begin(own)));
        limit
    }

    /// Ends and begins as many calls as fill a window, each with this outcome.
    fn window(limit: &mut CallLimit, outcome: Outcome, now: &mut Duration) {
        *now += WINDOW;
        let own = limit.in_progress - 1;
        for _ in 0..WINDOW_CALLS {
            limit.end(own, outcome, *now);
            let _refused = limit.try_begin(own);
        }
    }

    #[test]
    fn a_standing_queue_lowers_the_limit_and_fast_calls_raise_it() {
        let (mut limit, mut now) = (used(1_000), Duration::ZERO);
        window(&mut limit, Outcome::Answered(SLOW * 2), &mut now);
        assert_eq!(limit.limit(), LIMIT_MAX, "one slow window may be a failover");
        window(&mut limit, Outcome::Answered(SLOW * 2), &mut now);
        assert_eq!(limit.limit(), 800);
        for _ in 0..100 {
            window(&mut limit, Outcome::TooLate, &mut now);
        }
        assert_eq!(limit.limit(), LIMIT_MIN);
        assert!(!limit.try_begin(usize::MAX - 1));
        window(&mut limit, Outcome::Answered(Duration::from_millis(5)), &mut now);
        assert_eq!(limit.limit(), LIMIT_MIN + LIMIT_MIN / 8);
        let refused = limit.limit();
        for _ in 0..4 {
            assert!(!limit.try_begin(usize::MAX - 1));
            window(&mut limit, Outcome::Answered(Duration::from_millis(5)), &mut now);
        }
        assert!(limit.limit() > refused * 3 / 2, "{}", limit.limit());
    }

    #[test]
    fn one_fast_call_proves_that_no_queue_stands() {
        let (mut limit, mut now) = (used(1_000), Duration::ZERO);
        for _ in 0..10 {
            limit.end(999, Outcome::Answered(Duration::from_millis(5)), now);
            assert!(limit.try_begin(999));
            window(&mut limit, Outcome::Answered(SLOW * 2), &mut now);
            window(&mut limit, Outcome::Ignored, &mut now);
        }
        assert_eq!(limit.limit(), LIMIT_MAX);
    }

    #[test]
    fn a_limit_that_refuses_nothing_stays() {
        let (mut limit, mut now) = (used(200), Duration::ZERO);
        (0..3).for_each(|_| window(&mut limit, Outcome::TooLate, &mut now));
        let lowered = limit.limit();
        (0..100).for_each(|_| limit.end(1, Outcome::Ignored, now));
        for _ in 0..10 {
            window(&mut limit, Outcome::Answered(Duration::ZERO), &mut now);
        }
        assert!((lowered..=lowered + lowered / 8).contains(&limit.limit()), "{} {lowered}", limit.limit());
    }

    #[test]
    fn a_connection_gets_its_share_when_another_uses_all() {
        let mut limit = CallLimit::new(Duration::ZERO);
        (0..LIMIT_MAX).for_each(|own| assert!(limit.try_begin(own), "one connection may use all of it"));
        assert!(!limit.try_begin(0), "the limit holds for all");
        limit.end(LIMIT_MAX - 1, Outcome::Ignored, Duration::ZERO);
        assert!(limit.try_begin(0), "the other connection is below its share");
        limit.end(LIMIT_MAX - 2, Outcome::Ignored, Duration::ZERO);
        assert!(!limit.try_begin(LIMIT_MAX - 2), "the first one is above its share");
        assert!(limit.try_begin(1));
    }

    #[test]
    fn a_table_gets_its_share_when_the_connections_of_another_use_all() {
        let mut limit = CallLimit::new(Duration::ZERO);
        // A connection for each call, so that their shares do not matter.
        let begin = |limit: &mut CallLimit, own| limit.try_begin(0) && limit.try_begin_table(own);
        (0..LIMIT_MAX - 1).for_each(|own| assert!(begin(&mut limit, own), "one table may use all of it"));
        assert!(begin(&mut limit, 0), "another one is below its share");
        limit.end(0, Outcome::Ignored, Duration::ZERO);
        limit.end_table(LIMIT_MAX - 2);
        assert!(!begin(&mut limit, LIMIT_MAX - 2), "the first one is beyond its share");
        limit.end(0, Outcome::Ignored, Duration::ZERO);
        assert!(begin(&mut limit, 1));
        while limit.in_progress > LIMIT_MAX / 2 - 1 {
            limit.end(0, Outcome::Ignored, Duration::ZERO);
        }
        assert!(begin(&mut limit, LIMIT_MAX / 2), "there is room for all");
    }
}
