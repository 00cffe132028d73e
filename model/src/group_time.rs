//! The times of a group: replicated state, advanced by the commands of its log only.
//!
//! A command carries a timestamp, the leader's wall clock if that is behind the timestamp, and the time since the leader's previous command
//! by its monotonic clock, which no administrator and no broken battery can set. The log's time follows the wall clock, wherever it goes:
//! later cells get later timestamps. What *ages* follows the monotonic clock: sessions, idempotency tokens, and cells of families with a
//! maximum age. So a clock that is far ahead ages nothing by more than a minute at once. When it is right again, or another server leads,
//! cells are not aged further until the time has come to which they were aged.

use std::time::Duration;

use crate::time::Micros;

/// By how much a time may advance with a command that does not carry the time since the previous one: the first of a new leader. More than
/// that has passed only when the group had no leader for longer.
const STEP_MAX: Duration = Duration::from_secs(60);

/// How much faster than time the GC time advances while it is behind the leader's clock, because the group had no leader for long.
const GC_CATCH_UP: u32 = 2;

/// Why a tablet does not move between two groups if its cells, or those of the other group, would become older than they are.
pub const AGES_DIFFER: &str = "the times of the two groups differ by more than a minute, because the clock of a server is or was wrong; correct the \
    clocks (ebla doctor names the servers), and move the tablet later, or to another group";

/// The times of a group. Neither goes back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GroupTimes {
    /// The log's time: the latest timestamp of a command. It jumps when a leader's clock does.
    pub log: Micros,
    /// The session time, for the expiry of sessions and idempotency tokens. It advances as time does or slower, and is never later than
    /// the log's time.
    pub session: Micros,
    /// The GC time, at which ages of cells are evaluated. It advances at most twice as fast as time, and never beyond the log's time or the
    /// leader's clock.
    pub gc: Micros,
}

impl GroupTimes {
    /// The times after a command.
    ///
    /// `time`: the command's timestamp. `elapsed`: the time since the leader's previous command; `None` for its first one. `clock`: the
    /// leader's clock, if it is behind `time`.
    #[must_use]
    pub fn advance(self, time: Micros, elapsed: Option<Duration>, clock: Option<Micros>) -> Self {
        let log = self.log.max(time);
        if self.log <= Micros::ZERO {
            // A new group: nothing has an age yet.
            return Self { log, session: log, gc: log };
        }
        let (session, gc) = match elapsed {
            Some(elapsed) => (elapsed, elapsed.saturating_mul(GC_CATCH_UP)),
            None => {
                let step = log.since(self.log).min(STEP_MAX);
                (step, step)
            }
        };
        let gc_max = clock.unwrap_or(log).min(log);
        Self { log, session: self.session.plus(session).min(log), gc: self.gc.plus(gc).min(gc_max).max(self.gc) }
    }

    /// The times of a group without any cells that takes over cells from a group with the log's time `log` and the GC time `gc`. Its own GC
    /// time may come from the first command of a leader whose clock was ahead: by that time the cells would be older than they are.
    #[must_use]
    pub fn adopt(self, log: Micros, gc: Micros) -> Self {
        let log = self.log.max(log);
        Self { log, gc: gc.min(log), ..self }
    }

    /// Whether the GC time is later than `now`, a time by another clock, by more than clocks may differ and commands are apart.
    #[must_use]
    pub fn is_gc_ahead_of(self, now: Micros) -> bool {
        self.gc.since(now) > STEP_MAX
    }

    /// The times of a group that takes over cells from a group with the log's time `log` and the GC time `gc`: timestamps that were given
    /// there are not given again, and no cell that was dead there comes back.
    #[must_use]
    pub fn raise(self, log: Micros, gc: Micros) -> Self {
        let log = self.log.max(log);
        Self { log, gc: self.gc.max(gc).min(log), ..self }
    }
}

/// Whether cells must not move between groups with these GC times: those of one group would become older than they are, by more than clocks may
/// differ and commands are apart.
///
/// `present`: the earlier one of two clocks, those of the leaders of both groups. If the later GC time is later than that, a clock was ahead when
/// its group was new. Otherwise the other one is too early, because its group had no leader for long, and its cells are as old as the
/// later GC time says. The log's times do not show this: they follow a clock that is ahead, too.
#[must_use]
pub fn ages_differ(one: Micros, other: Micros, present: Micros) -> bool {
    let later = one.max(other);
    later.since(one.min(other)) > STEP_MAX && later.since(present) > STEP_MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    const YEAR: i64 = 365 * 24 * 3600;

    fn at(seconds: i64) -> Micros {
        Micros::from_millis(seconds * 1000)
    }

    fn seconds(seconds: u64) -> Option<Duration> {
        Some(Duration::from_secs(seconds))
    }

    /// A group that is in use at 1000 s.
    fn group() -> GroupTimes {
        GroupTimes::default().advance(at(1000), None, None)
    }

    #[test]
    fn without_jumps_all_times_are_the_same() {
        let all = |time| GroupTimes { log: at(time), session: at(time), gc: at(time) };
        assert_eq!(group(), all(1000));
        let later = group().advance(at(1010), seconds(10), None).advance(at(5000), seconds(3990), None);
        assert_eq!(later, all(5000));
        assert_eq!(later.advance(at(5060), None, None), all(5060), "another leader a minute later");
        assert_eq!(later.advance(at(4000), None, None), all(5000), "another leader whose clock is behind");
    }

    #[test]
    fn a_clock_that_jumps_ages_nothing() {
        for elapsed in [seconds(1), None] {
            let jumped = group().advance(at(1000 + YEAR), elapsed, None);
            assert_eq!(jumped.log, at(1000 + YEAR));
            assert!(jumped.session <= at(1060) && jumped.gc <= at(1060), "{jumped:?}");
            // It stays there, with a thousand commands in each second.
            let step = Some(Duration::from_millis(1));
            let later = (0..10_000).fold(jumped, |times, _command| times.advance(at(1000 + YEAR), step, None));
            assert_eq!(later.session.since(jumped.session), Duration::from_secs(10));
            assert_eq!(later.gc.since(jumped.gc), Duration::from_secs(20));
        }
    }

    #[test]
    fn after_a_jump_the_gc_time_stays_at_the_right_clock() {
        let mut times = group().advance(at(1000 + YEAR), seconds(3), None);
        assert_eq!(times.gc, at(1006), "twice the time until the clock is right again");
        for second in 4..=3_600 {
            times = times.advance(times.log, seconds(1), Some(at(1000 + second)));
            assert_eq!(times.gc, at((1000 + second).max(1006)));
        }
        assert_eq!(times.session, at(4600));
        // Another leader, whose clock is behind that of the last one.
        assert_eq!(times.advance(times.log, None, Some(at(4000))).gc, at(4600), "no time goes back");
        // The group had no leader for an hour.
        let first = times.advance(times.log, None, Some(at(8200)));
        let later = first.advance(times.log, seconds(3_600), Some(at(11_800)));
        assert_eq!((first.gc, later.gc), (at(4600), at(11_800)));
    }

    #[test]
    fn timestamps_of_whole_milliseconds_do_not_slow_the_times_down() {
        let (mut times, step) = (group(), Duration::from_micros(300));
        for command in 1..=100_000 {
            let time = at(1000).plus(step * command).truncate_to_millis();
            times = times.advance(time, Some(step), None);
        }
        assert!(times.log.since(times.session) <= Duration::from_millis(1), "{times:?}");
    }

    #[test]
    fn after_a_pause_the_gc_time_catches_up() {
        let mut times = group().advance(at(4600), None, None);
        assert_eq!(times.gc, at(1060));
        for minute in 1..=60 {
            times = times.advance(at(4600 + 60 * minute), seconds(60), None);
        }
        assert_eq!(times, GroupTimes { log: at(8200), session: at(4660), gc: at(8200) });
    }

    #[test]
    fn a_new_group_takes_the_gc_time_over_with_the_cells() {
        // Its first leader's clock was an hour ahead.
        let new = GroupTimes::default().advance(at(4600), None, None);
        assert!(new.is_gc_ahead_of(at(1000)));
        let adopted = new.adopt(at(1000), at(990));
        assert_eq!(adopted, GroupTimes { log: at(4600), session: at(4600), gc: at(990) });
        assert!(!adopted.is_gc_ahead_of(at(930)) && adopted.is_gc_ahead_of(at(929)));
        // From there it advances as after a pause.
        assert_eq!(adopted.advance(at(4600), seconds(10), None).gc, at(1010));
    }

    #[test]
    fn cells_do_not_move_when_a_gc_time_is_ahead_of_both_the_other_one_and_the_present() {
        let differ = |one, other, present| {
            let differ = ages_differ(at(one), at(other), at(present));
            assert_eq!(differ, ages_differ(at(other), at(one), at(present)));
            differ
        };
        assert!(differ(4600, 1000, 1000), "one group was new while a clock was an hour ahead");
        assert!(!differ(4600, 1000, 4600), "the other one had no leader for an hour");
        assert!(!differ(1060, 1000, 1000) && differ(1061, 1000, 1000));
        assert!(!differ(4600, 4590, 1000), "both are ahead: cells become ten seconds older");
    }

    #[test]
    fn a_group_that_takes_over_cells_is_not_behind() {
        let raised = group().raise(at(9000), at(3000));
        assert_eq!(raised, GroupTimes { log: at(9000), session: at(1000), gc: at(3000) });
        assert_eq!(group().raise(at(10), at(10)), group());
    }
}
