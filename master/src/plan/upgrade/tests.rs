//! The golden script `testdata/upgrade/next.txt`: the processes of a cluster, then what follows the active version.
//!
//! ```text
//! active 1 [held]
//! master host:1 0.2.0 1..2            its address, its release, and what it supports
//! server 3 host:2 0.1.0               a release that registers no versions
//! server 4 gone                       not registered
//! ---
//! ready 2
//! ```

use std::path::Path;

use super::*;

fn versions(text: Option<&&str>) -> SupportedVersions {
    let Some((oldest, newest)) = text.and_then(|text| text.split_once("..")) else {
        return SupportedVersions::UNREGISTERED;
    };
    let version = |text: &str| ClusterVersion::new(text.parse().unwrap());
    SupportedVersions { oldest: version(oldest), newest: version(newest) }
}

fn participant(process: Process, words: &[&str]) -> Participant {
    match words {
        ["gone"] => Participant { process, address: String::new(), release: String::new(), versions: None },
        [address, release, rest @ ..] => Participant {
            process,
            address: (*address).to_owned(),
            release: (*release).to_owned(),
            versions: Some(versions(rest.first())),
        },
        _ => panic!("{words:?}"),
    }
}

fn run(case: &str) -> String {
    let (input, _expected) = case.split_once("---").unwrap_or((case, ""));
    let mut upgrade = Upgrade::default();
    for line in input.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["active", version, rest @ ..] => {
                upgrade.active = ClusterVersion::new(version.parse().unwrap());
                upgrade.hold = if rest == ["held"] { Hold::Held } else { Hold::Released };
            }
            ["master", rest @ ..] => upgrade.participants.push(participant(Process::Master, rest)),
            ["server", id, rest @ ..] => {
                let process = Process::TabletServer(ServerId::new(id.parse().unwrap()));
                upgrade.participants.push(participant(process, rest));
            }
            _ => panic!("{line}"),
        }
    }
    let next = match upgrade.next() {
        Next::Newest => "newest\n".to_owned(),
        Next::Ready(version) => format!("ready {version}\n"),
        Next::Blocked { version, obstacles } => format!("blocked {version}\n{}\n", obstacles.join("\n")),
    };
    format!("{input}---\n{next}")
}

#[test]
fn the_next_version_is_the_newest_that_all_support() {
    crate::golden::check_cases(&Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/upgrade/next.txt"), run);
}

#[test]
fn a_version_becomes_active_only_after_it_was_possible_for_a_while() {
    let (mut readiness, delay) = (Readiness::default(), Duration::from_secs(60));
    let at = Duration::from_secs;
    let (two, three) = (ClusterVersion::new(2), ClusterVersion::new(3));
    assert_eq!(readiness.remaining(at(0), delay), None);
    readiness.observe(&Next::Ready(two), at(10));
    readiness.observe(&Next::Ready(two), at(40));
    assert_eq!(readiness.remaining(at(40), delay), Some((two, at(30))));
    assert_eq!(readiness.remaining(at(90), delay), Some((two, Duration::ZERO)));
    // A server is restarted with the previous release: the time begins again.
    readiness.observe(&Next::Blocked { version: two, obstacles: Vec::new() }, at(50));
    assert_eq!(readiness.remaining(at(50), delay), None);
    readiness.observe(&Next::Ready(two), at(55));
    assert_eq!(readiness.remaining(at(70), delay), Some((two, at(45))));
    readiness.observe(&Next::Ready(three), at(80));
    assert_eq!(readiness.remaining(at(80), delay), Some((three, at(60))), "another version");
    readiness.observe(&Next::Newest, at(90));
    assert_eq!(readiness.remaining(at(200), delay), None);
}
