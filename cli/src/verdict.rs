//! Whether a cluster is well, and why not: a pure function of what is known of it.
//!
//! | verdict | when | exit code with `--exit-code` |
//! |---|---|---|
//! | `healthy` | each tablet has all its replicas, a leader, and a master answers | 0 |
//! | `degraded` | reads and writes go on; some tablet has fewer live replicas than it should have, or a server does not answer | 5 |
//! | `unavailable` | some tablet has no quorum or no leader, METADATA cannot be read, or no master answers | 6 |

use std::fmt;

use ebla_proto::operate;

use crate::picture::{Picture, Server};

/// How well a cluster is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Nothing is missing.
    Healthy,
    /// Something is missing and all is served.
    Degraded,
    /// Something is not served.
    Unavailable,
}

impl Level {
    /// Its name in output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Degraded => "degraded",
            Self::Unavailable => "unavailable",
        }
    }

    /// The exit code that tells it.
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Healthy => 0,
            Self::Degraded => 5,
            Self::Unavailable => 6,
        }
    }
}

/// How well a cluster is, and why not better, the worst first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The worst of all.
    pub level: Level,
    /// What is missing and what to do; empty when nothing is.
    pub reasons: Vec<String>,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.level.name())?;
        if !self.reasons.is_empty() {
            write!(f, ": {}", self.reasons.join("; "))?;
        }
        Ok(())
    }
}

/// Judges what is known of a cluster.
pub fn judge(picture: &Picture) -> Verdict {
    if let Some(awaited) = &picture.awaited {
        let more = awaited.wanted.saturating_sub(awaited.registered);
        let waits = format!(
            "waiting for tablet servers: {} of {}; {}",
            awaited.registered,
            awaited.wanted,
            start(awaited.registered, more)
        );
        return Verdict { level: Level::Unavailable, reasons: vec![waits] };
    }
    let mut found: Vec<(Level, String)> = Vec::new();
    let health = picture.health.clone().unwrap_or_default();
    if picture.master_error.is_some() {
        found.push((Level::Unavailable, no_master(picture, &health)));
    }
    found.extend(picture.metadata_error.clone().map(|error| (Level::Unavailable, error)));
    if health.without_quorum > 0 {
        found.push((Level::Unavailable, no_quorum(picture, &health)));
    }
    found.extend(no_leader(picture, &health).map(|reason| (Level::Unavailable, reason)));
    found.extend(shortages(picture, &health).map(|reason| (Level::Degraded, reason)));
    if health.shortages.is_empty() {
        let silent = picture.servers.iter().filter(|server| !server.is_reachable);
        found
            .extend(silent.map(|server| (Level::Degraded, format!("tablet server {} does not answer", named(server)))));
    }
    let level = found.iter().map(|(level, _reason)| *level).max().unwrap_or(Level::Healthy);
    Verdict { level, reasons: found.into_iter().map(|(_level, reason)| reason).collect() }
}

fn no_master(picture: &Picture, health: &operate::Health) -> String {
    let goes_on = picture.metadata_error.is_none() && health.without_quorum == 0;
    let rest = if goes_on { "; reads and writes go on" } else { "" };
    // What a tablet server says when it cannot ask who the master is: then there may be one that waits.
    let is_etcd = picture.master_error.as_ref().is_some_and(|error| error.contains("lock service is away"));
    let next = if is_etcd { "the lock service is away: start etcd" } else { "start a master" };
    format!("no master answers{rest}; {next}")
}

fn no_quorum(picture: &Picture, health: &operate::Health) -> String {
    let mut first: Vec<String> = health.without_quorum_first.iter().map(u64::to_string).collect();
    if health.without_quorum > first.len() as u64 {
        first.push("…".to_owned());
    }
    let lost: Vec<String> =
        picture.servers.iter().filter(|server| !server.is_reachable).map(|server| server.id.to_string()).collect();
    let next = match lost.as_slice() {
        [] => String::new(),
        [one] => format!("; start tablet server {one}"),
        several => format!("; start tablet servers {}", several.join(", ")),
    };
    let (lost, all) = (health.without_quorum, health.tablets);
    format!("{lost} of {} {} no quorum ({}){next}", tablets(all), have(lost), first.join(", "))
}

/// A master of an earlier release tells only how many are led.
fn no_leader(picture: &Picture, health: &operate::Health) -> Option<String> {
    let unled = match (&picture.health, picture.tablets, picture.tablets_led) {
        (None, Some(tablets), Some(led)) => tablets.saturating_sub(led),
        _ => health.without_leader,
    };
    let all = picture.tablets.unwrap_or(health.tablets);
    let reason = format!("{unled} of {} {} no leader; an election takes some seconds", tablets(all), have(unled));
    (unled > 0).then_some(reason)
}

/// How many tablets have how many replicas; what to do stands behind the last, unless servers that are lost were named before.
fn shortages(picture: &Picture, health: &operate::Health) -> Option<String> {
    let wanted = health.shortages.iter().map(|short| short.wanted).max()?;
    let each: Vec<String> = health
        .shortages
        .iter()
        .map(|short| {
            let operate::Shortage { live, wanted, tablets: count } = *short;
            format!("{} {} {live} of {wanted} replicas", tablets(count), have(count))
        })
        .collect();
    if health.without_quorum > 0 {
        return Some(each.join(", "));
    }
    let up = picture.servers.iter().filter(|server| server.is_reachable).count() as u64;
    let next = if up < wanted {
        start(up, wanted - up)
    } else if picture.master_error.is_some() {
        "a master would repair them".to_owned()
    } else if health.repairs > 0 {
        format!("{} {} being repaired now", tablets(health.repairs), if health.repairs == 1 { "is" } else { "are" })
    } else {
        "the master repairs them unless the servers return".to_owned()
    };
    Some(format!("{}; {next}", each.join(", ")))
}

/// What to do when there are so many servers and more are needed.
fn start(present: u64, more: u64) -> String {
    match (more, present) {
        (1, 0) => "start a tablet server".to_owned(),
        (1, 1) => "start a second tablet server".to_owned(),
        (1, 2) => "start a third tablet server".to_owned(),
        (1, _) => "start one more tablet server".to_owned(),
        _ => format!("start {more} more tablet servers"),
    }
}

fn tablets(count: u64) -> String {
    if count == 1 { "1 tablet".to_owned() } else { format!("{count} tablets") }
}

const fn have(count: u64) -> &'static str {
    if count == 1 { "has" } else { "have" }
}

fn named(server: &Server) -> String {
    match &server.address {
        Some(address) => format!("{} at {address}", server.id),
        None => server.id.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use ebla_proto::operate::{Awaited, Health, Remembered, Shortage};

    use super::*;

    /// So many servers, of which some answer, with 24 tablets that are all led.
    fn picture(answering: &[bool]) -> Picture {
        let server = |(place, answers): (usize, &bool)| Server {
            id: place as u64 + 1,
            is_registered: *answers,
            is_reachable: *answers,
            ..Server::default()
        };
        Picture {
            tablets: Some(24),
            tablets_led: Some(24),
            health: Some(Health { tablets: 24, ..Health::default() }),
            servers: answering.iter().enumerate().map(server).collect(),
            ..Picture::default()
        }
    }

    fn short(live: u64, tablets: u64) -> Shortage {
        Shortage { live, wanted: 3, tablets }
    }

    fn with(mut picture: Picture, change: impl FnOnce(&mut Health)) -> Picture {
        change(picture.health.get_or_insert_default());
        picture
    }

    #[test]
    fn a_verdict_names_what_is_missing_and_what_to_do() {
        let lost_one = [true, true, false];
        let cases = [
            (picture(&[true; 3]), "healthy"),
            (
                with(picture(&lost_one), |health| health.shortages = vec![short(2, 24)]),
                "degraded: 24 tablets have 2 of 3 replicas; start a third tablet server",
            ),
            (
                with(picture(&[true]), |health| health.shortages = vec![short(1, 1)]),
                "degraded: 1 tablet has 1 of 3 replicas; start 2 more tablet servers",
            ),
            (
                with(picture(&[true, true, true, false]), |health| {
                    health.shortages = vec![short(1, 2), short(2, 6)];
                }),
                "degraded: 2 tablets have 1 of 3 replicas, 6 tablets have 2 of 3 replicas; the master repairs them unless \
                 the servers return",
            ),
            (
                with(picture(&[true; 3]), |health| (health.shortages, health.repairs) = (vec![short(2, 6)], 1)),
                "degraded: 6 tablets have 2 of 3 replicas; 1 tablet is being repaired now",
            ),
            (picture(&lost_one), "degraded: tablet server 3 does not answer"),
            (
                with(picture(&[true, false, false, false]), |health| {
                    (health.without_quorum, health.without_quorum_first) = (24, vec![0, 1, 2]);
                    health.shortages = vec![short(1, 24)];
                }),
                "unavailable: 24 of 24 tablets have no quorum (0, 1, 2, …); start tablet servers 2, 3, 4; 24 tablets have 1 \
                 of 3 replicas",
            ),
            (
                with(picture(&[true; 3]), |health| health.without_leader = 1),
                "unavailable: 1 of 24 tablets has no leader; an election takes some seconds",
            ),
            (
                Picture { master_error: Some("refused".to_owned()), tablets_led: None, ..picture(&[true; 3]) },
                "unavailable: no master answers; reads and writes go on; start a master",
            ),
            (
                Picture { master_error: Some("the lock service is away".to_owned()), ..picture(&[true; 3]) },
                "unavailable: no master answers; reads and writes go on; the lock service is away: start etcd",
            ),
            (
                Picture {
                    metadata_error: Some("METADATA cannot be read: late".to_owned()),
                    master_error: Some("refused".to_owned()),
                    tablets: None,
                    health: None,
                    ..picture(&[true])
                },
                "unavailable: no master answers; start a master; METADATA cannot be read: late",
            ),
            (
                Picture {
                    metadata_error: Some("METADATA cannot be read: late".to_owned()),
                    remembered: Some(Remembered { age_millis: 1, tablets: 24 }),
                    tablets: None,
                    ..picture(&[true])
                },
                "unavailable: METADATA cannot be read: late",
            ),
            (
                Picture { awaited: Some(Awaited { registered: 1, wanted: 3 }), ..Picture::default() },
                "unavailable: waiting for tablet servers: 1 of 3; start 2 more tablet servers",
            ),
            (
                Picture { health: None, tablets_led: Some(20), ..picture(&[true; 3]) },
                "unavailable: 4 of 24 tablets have no leader; an election takes some seconds",
            ),
        ];
        for (picture, expected) in cases {
            assert_eq!(judge(&picture).to_string(), expected);
        }
    }

    #[test]
    fn exit_codes_follow_the_verdict() {
        let codes = [Level::Healthy, Level::Degraded, Level::Unavailable].map(Level::exit_code);
        assert_eq!(codes, [0, 5, 6]);
    }
}
