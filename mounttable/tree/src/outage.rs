//! Outages: periods in which no server of a table could write, so that no mount could be refreshed. They extend
//! deadlines, so that an outage longer than every time to live does not empty the table although every mounted server
//! is alive.
//!
//! Each server of the table records a heartbeat every [`HEARTBEAT_INTERVAL`]. When the last heartbeat of all servers is
//! older than [`OUTAGE_THRESHOLD`], the time since then is an outage: it is recorded by the first server that can write
//! again, or it is still in progress. The deadline of a mount that overlaps an outage is extended by the outage's
//! length and the mount's own time to live (at least [`REFRESH_TIME_MIN`]): a publisher refreshes more often than that,
//! whatever its period. The extension is at most [`CREDIT_MAX`], or the time to live if that is longer.
//!
//! A publisher that stops while the storage is available loses its mounts in time: no outage overlaps them.
//!
//! | counter | value, in microseconds since the epoch |
//! |---|---|
//! | `beat:<server>` | the last heartbeat of this server |
//! | `outage:<begin>` | the end of the outage that began then |

use std::time::Duration;

use ebla_model::Micros;

use crate::mount::{Deadline, MountedServer};

/// The interval of heartbeats.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(5);

/// The time without a heartbeat after which there is an outage.
pub const OUTAGE_THRESHOLD: Duration = Duration::from_secs(15);

/// The shortest time for a refresh after an outage, whose end the servers of a table do not notice at the same moment.
pub const REFRESH_TIME_MIN: Duration = OUTAGE_THRESHOLD;

/// The largest extension of a deadline, unless the mount's time to live is longer: a server that stopped during an
/// outage may be listed for this long.
pub const CREDIT_MAX: Duration = Duration::from_secs(600);

/// Records older than this are deleted.
const RETENTION: Duration = Duration::from_secs(24 * 60 * 60);

/// The prefix of heartbeat counters.
pub const HEARTBEAT_PREFIX: &str = "beat:";

/// The prefix of outage counters.
pub const OUTAGE_PREFIX: &str = "outage:";

/// The counter of a server's heartbeats.
pub fn heartbeat_counter(server: u64) -> String {
    format!("{HEARTBEAT_PREFIX}{server:016x}")
}

/// An outage: `[begin, end)`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Outage {
    /// The last heartbeat before it.
    pub begin: Micros,
    /// The first heartbeat after it.
    pub end: Micros,
}

impl Outage {
    /// The counter that holds its end. Servers that record the same outage write the same counter.
    pub fn counter(self) -> String {
        format!("{OUTAGE_PREFIX}{:020}", self.begin.get())
    }

    /// The outage since the last heartbeat, if it is one.
    fn since(latest: Micros, now: Micros) -> Option<Self> {
        (now.since(latest) > OUTAGE_THRESHOLD).then_some(Self { begin: latest, end: now })
    }
}

/// Whether outages extend deadlines.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Credit {
    /// They do not.
    #[default]
    Off,
    /// They do.
    On,
}

/// The known outages. Before the first heartbeat records are read, all of the past counts as an outage.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct OutageRecord {
    /// In the order of their beginnings.
    outages: Vec<Outage>,
    /// The last known heartbeat.
    latest: Micros,
}

impl OutageRecord {
    /// Extends the deadline of a server.
    pub fn extend_deadline(&self, server: &mut MountedServer, now: Micros) {
        server.deadline = self.deadline(server, now);
    }

    /// The deadline of a server, extended by the outages that overlap its mount.
    pub fn deadline(&self, server: &MountedServer, now: Micros) -> Deadline {
        if server.deadline == Deadline::FOREVER || server.ttl.is_zero() {
            return server.deadline;
        }
        let (deadline, mut added) = (server.deadline.as_micros(), Duration::ZERO);
        let mounted = deadline.minus(server.ttl);
        // Two servers may have recorded overlapping outages.
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
        let credit = added.saturating_add(server.ttl.max(REFRESH_TIME_MIN));
        Deadline::at(deadline.plus(credit.min(CREDIT_MAX.max(server.ttl))))
    }
}

/// The actions of a heartbeat, after reading the records.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct HeartbeatRound {
    /// An outage that ends with this heartbeat: it must be recorded before anything else is written.
    pub ended: Option<Outage>,
    /// Counters to delete.
    pub obsolete: Vec<String>,
    /// The known outages.
    pub record: OutageRecord,
}

/// Evaluates the records, counters with the prefixes [`HEARTBEAT_PREFIX`] and [`OUTAGE_PREFIX`], at `now`.
pub fn evaluate(records: &[(String, i64)], now: Micros) -> HeartbeatRound {
    let old = now.minus(RETENTION);
    let mut round = HeartbeatRound::default();
    let mut latest = None;
    for (name, value) in records {
        let value = Micros::new(*value);
        if value < old {
            round.obsolete.push(name.clone());
        } else if name.starts_with(HEARTBEAT_PREFIX) {
            // A heartbeat far in the future, from a wrong clock, would hide every outage until then; one slightly ahead
            // counts as now.
            latest = latest.max(Some(value.min(now)).filter(|_| value.since(now) <= OUTAGE_THRESHOLD));
        } else if let Some(begin) = name.strip_prefix(OUTAGE_PREFIX).and_then(|begin| begin.parse().ok()) {
            round.record.outages.push(Outage { begin: Micros::new(begin), end: value.min(now) });
        }
    }
    // Without any record no server has ever written, so there was no outage.
    round.ended = latest.and_then(|latest| Outage::since(latest, now));
    if let Some(ended) = round.ended {
        round.record.outages.retain(|known| known.begin != ended.begin);
        round.record.outages.push(ended);
    }
    round.record.outages.sort_unstable();
    round.record.latest = now;
    round
}
