//! The golden script of `testdata/mt`: responses of a mounttable, and their output.
//!
//! ```text
//!   resolved SUFFIX KIND SERVER...        KIND: object, table or leaf; SERVER@SECONDS expires then, since the epoch; `-`: none
//!   found NAME KIND SERVER...             an entry of a listing; `+` after the name: it has children
//!   finding KIND PLACE left|fixed MESSAGE...   a finding of a check
//!   setup NAME BEFORE AFTER               a node that a permissions file changes; `-`: it does not exist, or is the root
//!   limits USER NODES SERVERS             limits of a user, after the default ones; `-`: the default
//!   allowed TAG BY PATTERN                a permission; correction COUNTER WAS IS: a corrected counter
//!   hop ASKED SOURCE MICROS SUFFIX SERVER...   a step of a resolution, or `! REASON` instead of its result
//! ```
//!
//! The time is ten seconds after the epoch. For each line the table output is followed by the JSON output. `UPDATE=1` rewrites
//! the file; the change is reviewed as code.

use std::path::Path;
use std::time::Duration;

use ebla_model::Micros;
use ebla_mounttable_namespace::operate::{AllLimits, Finding};
use ebla_mounttable_namespace::{Allowed, GlobEntry, Hop, MountEntry, Server, Source, Trace};
use ebla_mounttable_tree::table::{Correction, Limits, NodeChange};
use ebla_mounttable_tree::{Deadline, Error, Permissions, Reason, Target};

use super::show;
use crate::output::{Format, document};

pub(super) const NOW: Micros = Micros::from_millis(10_000);

const BOTH: [Format; 2] = [Format::Table, Format::Json];

/// T111: lines and JSON documents are stable, and a deadline is a number in JSON.
#[test]
fn output_matches_the_golden_script() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/mt/answers.txt");
    let expected = std::fs::read_to_string(&path).unwrap();
    let cases = expected.trim_end().split("\n\n").map(shown);
    let actual = format!("{}\n", cases.collect::<Vec<_>>().join("\n\n"));
    if actual != expected && std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &actual).unwrap();
    }
    assert_eq!(actual, expected, "UPDATE=1 rewrites the golden file");
}

/// The case followed by its current output.
fn shown(case: &str) -> String {
    let input = case.split("\n---").next().unwrap();
    let mut out = format!("{input}\n---\n");
    for line in input.lines().filter(|line| !line.starts_with('#')) {
        let words: Vec<_> = line.split_whitespace().collect();
        match words.as_slice() {
            ["resolved", suffix, sort, servers @ ..] => {
                let entry = entry(suffix, sort, servers);
                for format in BOTH {
                    out.push_str(&show::resolved(format, NOW, &entry));
                }
                out.push_str(&show::watched(Format::Json, NOW, Some(&entry)));
            }
            ["found", name, sort, addresses @ ..] => {
                let (name, has_children) = name.strip_suffix('+').map_or((*name, false), |name| (name, true));
                let target = target(sort);
                let entry = GlobEntry { name: name.to_owned(), servers: servers(addresses), target, has_children };
                out.push_str(&show::line(name, &entry));
                out.push_str(&show::long(name, &entry, NOW));
                out.push_str(&document(&show::found(name, &entry)));
            }
            ["finding", kind, place, state, message @ ..] => {
                let is_fixed = *state == "fixed";
                let (kind, place, message) = ((*kind).to_owned(), (*place).to_owned(), message.join(" "));
                let findings = [Finding { kind, place, message, is_fixed }];
                out.extend(BOTH.map(|format| show::findings(format, &findings)));
            }
            ["setup", name, before, after] => {
                let name = if *name == "-" { "" } else { name };
                let before = (*before != "-").then(|| Permissions::from_json(before).unwrap());
                let after = Permissions::from_json(after).unwrap();
                let changes = [NodeChange { name: name.parse().unwrap(), before, after }];
                out.push_str(&show::node_changes(&changes));
                out.extend(BOTH.map(|format| show::setup(format, 1, &changes)));
            }
            ["limits", user, nodes, servers] => {
                let everybody = Limits { nodes: Some(10_000), servers: Some(0) };
                let own = Limits { nodes: nodes.parse().ok(), servers: servers.parse().ok() };
                let limits = AllLimits { everybody, own: vec![((*user).to_owned(), own)] };
                out.extend(BOTH.map(|format| show::limits(format, &limits)));
            }
            ["allowed", tag, by, pattern] => {
                let [tag, granted_by, pattern] = [tag, by, pattern].map(|it| (*it).to_owned());
                let allowed = [Allowed { tag, granted_by, pattern }];
                out.extend(BOTH.map(|format| show::allowed(format, &allowed)));
            }
            ["correction", counter, was, is] => {
                let (was, is) = (was.parse().unwrap(), is.parse().unwrap());
                let corrections = [Correction { counter: (*counter).to_owned(), was, is }];
                out.extend(BOTH.map(|format| show::corrections(format, &corrections)));
            }
            ["hop", asked, source, micros, answer @ ..] => {
                let answer = match answer {
                    ["!", reason] => Err(Error::new(Reason::from_name(reason).unwrap(), "the message of the error")),
                    [suffix, addresses @ ..] => Ok(entry(suffix, "table", addresses)),
                    [] => panic!("{line:?} has no response"),
                };
                let source = match *source {
                    "table" => Source::Table,
                    "cache" => Source::Cache,
                    _ => Source::Stale,
                };
                let took = Duration::from_micros(micros.parse().unwrap());
                let hop = Hop { asked: vec![(*asked).to_owned()], source, took, answer: answer.clone() };
                let trace = Trace { hops: vec![hop], outcome: answer };
                out.push_str(&super::trace::lines(&trace));
                out.push_str(&super::trace::document(&trace));
            }
            _ => panic!("cannot read {line:?}"),
        }
    }
    out.trim_end().to_owned()
}

pub(super) fn entry(suffix: &str, sort: &str, addresses: &[&str]) -> MountEntry {
    let suffix = if suffix == "-" { "" } else { suffix };
    MountEntry { servers: servers(addresses), suffix: suffix.to_owned(), target: target(sort) }
}

fn target(sort: &str) -> Target {
    match sort {
        "table" => Target::MountTable,
        "leaf" => Target::Leaf,
        _ => Target::Object,
    }
}

fn servers(addresses: &[&str]) -> Vec<Server> {
    let server = |text: &&str| match text.split_once('@') {
        None => Server::lasting(text.parse().unwrap()),
        Some((address, seconds)) => {
            let deadline = Deadline::at(Micros::from_millis(seconds.parse::<i64>().unwrap() * 1_000));
            Server { address: address.parse().unwrap(), deadline }
        }
    };
    addresses.iter().map(server).collect()
}
