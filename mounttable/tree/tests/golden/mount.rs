//! Scripts: `now T`, `server ADDRESS TARGET DEADLINE` for a mounted server, then `mount ADDRESS TARGET TTL MODE`; times
//! in milliseconds.

use std::time::Duration;

use ebla_model::Micros;
use ebla_mounttable_tree::mount::{check_target, live};
use ebla_mounttable_tree::{Deadline, MountMode, MountedServer, Target, UserId};

use crate::notation::{line, refusal};
use crate::runner;

#[test]
fn servers_live_until_their_deadline() {
    runner::run("mount", |input| {
        let (mut now, mut servers, mut out) = (Micros::new(0), vec![], vec![]);
        for step in input {
            let words: Vec<_> = step.split(' ').collect();
            match words.as_slice() {
                ["now", at] => {
                    now = Micros::from_millis(at.parse().unwrap());
                    let alive: Vec<_> =
                        live(&servers, now).map(|server: &MountedServer| server.address.to_string()).collect();
                    out.push(line("live", &alive).unwrap_or_else(|| "nothing".to_string()));
                }
                ["server", address, target, deadline] => servers.push(MountedServer {
                    address: address.parse().unwrap(),
                    target: target_of(target),
                    deadline: Deadline::at(Micros::from_millis(deadline.parse().unwrap())),
                    ttl: Duration::ZERO,
                    mounter: UserId::unauthenticated(),
                }),
                ["mount", address, target, ttl, mode] => {
                    let mode = if *mode == "replace" { MountMode::Replace } else { MountMode::Add };
                    let checked = check_target(&servers, &address.parse().unwrap(), target_of(target), mode, now);
                    out.push(checked.map_or_else(|error| refusal(&error), |()| deadline(now, ttl)));
                }
                other => panic!("{other:?} is no line of this script"),
            }
        }
        out
    });
}

fn deadline(now: Micros, ttl: &str) -> String {
    let deadline = Deadline::after(now, Duration::from_micros(ttl.parse::<u64>().unwrap() * 1_000 + 999));
    let deadline = if ttl == "0" { Deadline::after(now, Duration::ZERO) } else { deadline };
    if deadline == Deadline::FOREVER {
        "for ever".to_string()
    } else {
        format!("until {}", deadline.as_micros().get() / 1_000)
    }
}

fn target_of(word: &str) -> Target {
    match word {
        "object" => Target::Object,
        "table" => Target::MountTable,
        "leaf" => Target::Leaf,
        other => panic!("{other} is no target"),
    }
}
