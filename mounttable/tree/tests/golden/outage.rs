//! Scripts: `beat SERVER AT` and `outage BEGIN END` are records, `now AT` evaluates them; `mount AT TTL NOW` prints the
//! deadline of a server. Times in seconds.

use std::time::Duration;

use ebla_model::Micros;
use ebla_mounttable_tree::outage::{HEARTBEAT_PREFIX, Outage, OutageRecord, evaluate};
use ebla_mounttable_tree::{Deadline, MountedServer, Target, UserId};

use crate::notation::line;
use crate::runner;

fn at(seconds: &str) -> Micros {
    Micros::from_millis(seconds.parse::<i64>().unwrap() * 1_000)
}

fn seconds(at: Micros) -> i64 {
    at.get() / 1_000_000
}

#[test]
fn outages_put_deadlines_off() {
    runner::run("outage", |input| {
        let (mut records, mut record, mut out) = (vec![], OutageRecord::default(), vec![]);
        for step in input {
            let words: Vec<_> = step.split(' ').collect();
            match words.as_slice() {
                ["beat", server, time] => records.push((format!("{HEARTBEAT_PREFIX}{server}"), at(time).get())),
                ["outage", begin, end] => {
                    let outage = Outage { begin: at(begin), end: at(end) };
                    records.push((outage.counter(), outage.end.get()));
                }
                ["now", now] => {
                    let found = evaluate(&records, at(now));
                    let ended = found.ended.map(|it| format!("over {}-{}", seconds(it.begin), seconds(it.end)));
                    let lines: Vec<_> = ended.into_iter().chain(line("useless", &found.obsolete)).collect();
                    out.push(if lines.is_empty() { "nothing".to_owned() } else { lines.join(", ") });
                    record = found.record;
                }
                ["mount", time, ttl, now] => {
                    let ttl = Duration::from_secs(ttl.parse().unwrap());
                    let mut server = MountedServer {
                        address: "h:1".parse().unwrap(),
                        target: Target::Object,
                        deadline: Deadline::after(at(time), ttl),
                        ttl,
                        mounter: UserId::server(),
                    };
                    record.extend_deadline(&mut server, at(now));
                    let is_forever = server.deadline == Deadline::FOREVER;
                    let until = format!("until {}", seconds(server.deadline.as_micros()));
                    out.push(if is_forever { "for ever".to_owned() } else { until });
                }
                other => panic!("{other:?} is no line of this script"),
            }
        }
        out
    });
}
