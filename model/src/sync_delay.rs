//! Whether the disk below a commit log is slow, from the durations of the log's last syncs.
//!
//! ```text
//!              the median is >= 500 ms for 5 s, or one sync lasts 5 s
//!     sound ────────────────────────────────────────────────────────────► slow
//!       ▲                                                                   │
//!       └───────────────────────────────────────────────────────────────────┘
//!              the median is < 100 ms for 30 s, and no sync lasts longer than 500 ms
//! ```
//!
//! A sync that is older than a minute says nothing about the disk of today, and fewer than four say too little. So a slow server
//! that syncs nothing any more counts as sound after a while.

use std::time::Duration;

/// How many of the last syncs count.
pub const SYNCS_MAX: usize = 32;

/// A median of at least this makes a disk slow, and so does ...
const SLOW_DELAY: Duration = Duration::from_millis(500);
/// ... a median that stays so for this time, or a single sync that lasts so long.
const SLOW_TIME: Duration = Duration::from_secs(5);
/// A slow disk is sound again when the median is below this ...
const SOUND_DELAY: Duration = Duration::from_millis(100);
/// ... for this time.
const SOUND_TIME: Duration = Duration::from_secs(30);
/// How long a sync counts after its end.
const AGE_MAX: Duration = Duration::from_secs(60);
/// The fewest syncs that have a median.
const SYNCS_MIN: usize = 4;

/// The last syncs of a log. All times are monotonic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Syncs {
    /// The last ones that have ended: when they ended, and how long they lasted.
    pub ended: Vec<(Duration, Duration)>,
    /// When the sync in progress began.
    pub running_since: Option<Duration>,
}

impl Syncs {
    fn median(&self, now: Duration) -> Option<Duration> {
        let recent = self.ended.iter().filter(|(at, _delay)| now.saturating_sub(*at) <= AGE_MAX);
        let mut delays: Vec<Duration> = recent.map(|(_at, delay)| *delay).collect();
        delays.sort_unstable();
        let middle = delays.len().checked_sub(1)? / 2;
        delays.get(middle).copied().filter(|_median| delays.len() >= SYNCS_MIN)
    }

    fn running(&self, now: Duration) -> Duration {
        self.running_since.map_or(Duration::ZERO, |since| now.saturating_sub(since))
    }
}

/// The syncs of a server's commit log, as it reports them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SyncState {
    /// How long a sync takes: the median of the last ones, or the time since the beginning of the present one if that is long.
    /// `None`: too few were seen.
    pub delay: Option<Duration>,
    /// Whether the disk is slow: then the server should lead nothing.
    pub is_slow: bool,
}

/// The decision whether the disk is slow. It is asked about once a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SyncDelay {
    is_slow: bool,
    /// Since when the delays have been contradicting `is_slow`.
    contradicted_since: Option<Duration>,
}

impl SyncDelay {
    /// The state at `now`, after these syncs.
    pub fn evaluate(&mut self, now: Duration, syncs: &Syncs) -> SyncState {
        let (median, running) = (syncs.median(now), syncs.running(now));
        let (contradicts, time) = if self.is_slow {
            (median.is_none_or(|median| median < SOUND_DELAY) && running < SLOW_DELAY, SOUND_TIME)
        } else {
            (median.is_some_and(|median| median >= SLOW_DELAY), SLOW_TIME)
        };
        let since = contradicts.then(|| self.contradicted_since.unwrap_or(now));
        let hangs = !self.is_slow && running >= SLOW_TIME;
        if hangs || since.is_some_and(|since| now.saturating_sub(since) >= time) {
            *self = Self { is_slow: !self.is_slow, contradicted_since: None };
        } else {
            self.contradicted_since = since;
        }
        let long = (running >= SLOW_DELAY).then_some(running);
        SyncState { delay: median.max(long), is_slow: self.is_slow }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// Syncs of this duration, one after another, until `now`.
    fn constant(now: Duration, delay: Duration) -> Syncs {
        let ended = (0..32).map(|back| (now.saturating_sub(delay * back), delay));
        Syncs { ended: ended.collect(), running_since: None }
    }

    /// Evaluates each second from `from` on, and returns the first second at which the state is `slow`.
    fn first(delay: &mut SyncDelay, from: u64, slow: bool, syncs: impl Fn(Duration) -> Syncs) -> Option<u64> {
        (from..from + 100).find(|second| {
            let now = Duration::from_secs(*second);
            delay.evaluate(now, &syncs(now)).is_slow == slow
        })
    }

    #[test]
    fn a_disk_is_slow_after_five_seconds_and_sound_after_thirty() {
        let mut delay = SyncDelay::default();
        assert_eq!(first(&mut delay, 100, true, |now| constant(now, millis(499))), None);
        assert_eq!(first(&mut delay, 200, true, |now| constant(now, millis(500))), Some(205));
        assert_eq!(first(&mut delay, 206, false, |now| constant(now, millis(100))), None, "neither slow nor fast");
        assert_eq!(first(&mut delay, 306, false, |now| constant(now, millis(99))), Some(336));
    }

    #[test]
    fn a_fast_second_in_between_begins_the_time_again() {
        let mut delay = SyncDelay::default();
        let unsteady = |now: Duration| constant(now, millis(if now.as_secs().is_multiple_of(4) { 3 } else { 700 }));
        assert_eq!(first(&mut delay, 100, true, unsteady), None);
    }

    #[test]
    fn few_slow_syncs_among_fast_ones_do_not_count() {
        let mut delay = SyncDelay::default();
        let mixed = |now: Duration| {
            let delay = |nth: u32| if nth.is_multiple_of(3) { millis(900) } else { millis(5) };
            Syncs { ended: (0..32).map(|nth| (now, delay(nth))).collect(), running_since: None }
        };
        assert_eq!(first(&mut delay, 100, true, mixed), None);
    }

    #[test]
    fn one_sync_of_five_seconds_makes_a_disk_slow_until_it_is_fast_for_a_while() {
        let mut delay = SyncDelay::default();
        let began = Duration::from_secs(100);
        let hangs = Syncs { running_since: Some(began), ..constant(began, millis(2)) };
        assert_eq!(first(&mut delay, 100, true, |_now| hangs.clone()), Some(105));
        let state = delay.evaluate(Duration::from_secs(110), &hangs);
        assert_eq!(state, SyncState { delay: Some(Duration::from_secs(10)), is_slow: true });
        assert_eq!(first(&mut delay, 111, false, |now| constant(now, millis(2))), Some(141));
    }

    #[test]
    fn old_syncs_and_few_syncs_say_nothing() {
        let mut delay = SyncDelay::default();
        let few = |now: Duration| {
            let mut syncs = constant(now, millis(900));
            syncs.ended.truncate(3);
            syncs
        };
        assert_eq!(first(&mut delay, 100, true, few), None);
        let ended = Duration::from_secs(200);
        assert_eq!(first(&mut delay, 200, true, |_now| constant(ended, millis(900))), Some(205));
        assert_eq!(first(&mut delay, 206, false, |_now| constant(ended, millis(900))), Some(200 + 58 + 30));
    }
}
