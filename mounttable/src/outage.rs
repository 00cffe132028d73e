//! Outages: times in which no server of a table could write, so that no mount could be refreshed; and what they add to
//! deadlines, so that an outage longer than every time to live does not empty the table although every server lives.
//!
//! Each server of the table notes every [`BEAT`] that it can write. When the last note of all of them is older than
//! [`SILENCE`], the time from then to now is an outage: one that is recorded by whoever can write again, or one that still
//! goes on, as far as anybody here knows. A mount that an outage meets has its deadline put off by the outage's length and
//! one [`PERIOD`], in which its publisher has time to come back, but never by more than [`CREDIT_MAX`].
//!
//! A publisher that dies while the storage is up is missed on time: no outage meets its mounts.
//!
//! | counter | what it holds, in microseconds since the epoch |
//! |---|---|
//! | `beat:<server>` | when this server last could write |
//! | `outage:<begin>` | when the outage that began then was over |

use std::time::Duration;

use ebla_model::Micros;

use crate::mount::{Deadline, MountedServer};

/// How often a server notes that it can write.
pub const BEAT: Duration = Duration::from_secs(5);

/// A longer silence of all servers is an outage.
pub const SILENCE: Duration = Duration::from_secs(15);

/// How often publishers refresh their mounts.
pub const PERIOD: Duration = Duration::from_secs(60);

/// A deadline is never put off by more: for so long after an outage a server that has died in it may be shown.
pub const CREDIT_MAX: Duration = Duration::from_secs(600);

/// Notes that are older are of no use any more.
const KEPT: Duration = Duration::from_secs(24 * 60 * 60);

/// What the names of servers' notes begin with.
pub const BEATS: &str = "beat:";

/// What the names of outages begin with.
pub const OUTAGES: &str = "outage:";

/// The counter in which a server notes that it can write.
pub fn beat_counter(server: u64) -> String {
    format!("{BEATS}{server:016x}")
}

/// A time in which nobody could write: `[begin, end)`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Outage {
    /// When somebody last could.
    pub begin: Micros,
    /// When somebody could again.
    pub end: Micros,
}

impl Outage {
    /// The counter that holds its end. Who records the same outage writes the same counter.
    pub fn counter(self) -> String {
        format!("{OUTAGES}{:020}", self.begin.get())
    }

    /// The outage since somebody last could write, if it is one.
    fn since(latest: Micros, now: Micros) -> Option<Self> {
        (now.since(latest) > SILENCE).then_some(Self { begin: latest, end: now })
    }
}

/// Whether outages put deadlines off.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Credit {
    /// They do not.
    #[default]
    Off,
    /// They do.
    On,
}

/// What is known of outages. Nothing at all, until the first notes are read: then there may have been one all the time.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Record {
    /// In the order in which they began.
    outages: Vec<Outage>,
    /// When somebody last could write, as far as is known.
    latest: Micros,
}

impl Record {
    /// Puts off the deadline of a server that outages have met.
    pub fn put_off(&self, server: &mut MountedServer, now: Micros) {
        server.deadline = self.deadline(server, now);
    }

    /// The deadline that holds for a server, with what outages add to it.
    pub fn deadline(&self, server: &MountedServer, now: Micros) -> Deadline {
        if server.deadline == Deadline::FOREVER || server.ttl.is_zero() {
            return server.deadline;
        }
        let (deadline, mut added) = (server.deadline.as_micros(), Duration::ZERO);
        let mounted = deadline.minus(server.ttl);
        // Two servers may have recorded the same time under two beginnings.
        let mut counted = Micros::ZERO;
        for outage in self.outages.iter().copied().chain(Outage::since(self.latest, now)) {
            if mounted < outage.end && outage.begin < deadline.plus(added) {
                added = added.saturating_add(outage.end.since(outage.begin.max(counted)));
                counted = counted.max(outage.end);
            }
        }
        if added.is_zero() {
            return server.deadline;
        }
        Deadline::at(deadline.plus(added.saturating_add(PERIOD).min(CREDIT_MAX)))
    }
}

/// What a server is to do that can read the notes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Round {
    /// An outage that is over if the server can also write: to be recorded before anything else is written.
    pub over: Option<Outage>,
    /// Counters that are of no use any more.
    pub useless: Vec<String>,
    /// What is known then.
    pub record: Record,
}

/// Reads the notes, counters whose names begin with [`BEATS`] or [`OUTAGES`], as they are `now`.
pub fn round(notes: &[(String, i64)], now: Micros) -> Round {
    let old = now.minus(KEPT);
    let mut round = Round::default();
    let mut latest = None;
    for (name, value) in notes {
        let value = Micros::new(*value);
        if value < old {
            round.useless.push(name.clone());
        } else if name.starts_with(BEATS) {
            // A clock that is far ahead would hide every outage until then; one that is a little ahead is of now.
            latest = latest.max(Some(value.min(now)).filter(|_| value.since(now) <= SILENCE));
        } else if let Some(begin) = name.strip_prefix(OUTAGES).and_then(|begin| begin.parse().ok()) {
            round.record.outages.push(Outage { begin: Micros::new(begin), end: value.min(now) });
        }
    }
    // Without any note nobody has ever written, so nothing was missed.
    round.over = latest.and_then(|latest| Outage::since(latest, now));
    if let Some(over) = round.over {
        round.record.outages.retain(|known| known.begin != over.begin);
        round.record.outages.push(over);
    }
    round.record.outages.sort_unstable();
    round.record.latest = now;
    round
}
