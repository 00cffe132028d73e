//! JSON documents of `ebla mt`, for their reference, with every type of every field.

use std::time::Duration;

use ebla_mounttable_namespace::operate::{AllLimits, Finding, WriteMode};
use ebla_mounttable_namespace::{Allowed, Etag, GlobEntry, Hop, MountEntry, Node, Source, Trace, Who};
use ebla_mounttable_tree::file::Stickiness;
use ebla_mounttable_tree::store::caching::{LookupCounts, RequestCounts};
use ebla_mounttable_tree::table::{Correction, Limits, NodeChange, Swept, Tally, Usage};
use ebla_mounttable_tree::{Deadline, Error, Permissions, Privilege, Reason};
use ebla_workload::bench::closed_loop::LoopResult;
use ebla_workload::bench::names::report::{Cost, Measurement, Memory, Requests};
use serde_json::{Value, json};

use super::tests::{NOW, entry};
use super::{bench, show, trace};
use crate::output::Format;

/// The command, what its document is, and documents that together have every type of every field.
pub(in crate::commands) fn documents() -> Vec<(&'static str, &'static str, Vec<Value>)> {
    [names(), permissions(), administration()].concat()
}

fn names() -> Vec<(&'static str, &'static str, Vec<Value>)> {
    vec![
        ("ebla mt mount", "A mount; `deadline_micros` is null for one that stays.", mounts()),
        (
            "ebla mt unmount",
            "How many servers were mounted under the name, or under it at the given address.",
            vec![show::unmounted("a", 1)],
        ),
        (
            "ebla mt resolve",
            "The servers of a name; `deadline_micros` is null for a mount that stays.",
            both_entries().iter().map(|entry| parsed(&show::resolved(Format::Json, NOW, entry))).collect(),
        ),
        (
            "ebla mt resolve --trace",
            "The steps of a resolution, and its result. `reason` is null unless the step has failed.",
            traces(),
        ),
        (
            "ebla mt watch",
            "A document on one line for each result, as of `ebla mt resolve`. While there is no server, `servers` is null and `suffix` is \
             absent.",
            watched(),
        ),
        ("ebla mt ls, ebla mt glob, ebla mt tree", "A list of names.", vec![found()]),
        ("ebla mt stat", "A node.", vec![parsed(&show::node(Format::Json, &node()))]),
        ("ebla mt rm", "How many nodes were deleted.", vec![show::deleted("a", 1)]),
        ("ebla mt bench", "A list of results, an element for each part of the load. `bar` is its limit.", measured()),
    ]
}

fn permissions() -> Vec<(&'static str, &'static str, Vec<Value>)> {
    vec![
        (
            "ebla mt perms get",
            "Permissions by tag, here `Admin`, and their version. A tag without members is absent, and so is an empty list.",
            vec![show::permissions(&some_permissions(), &Etag::new("7"))],
        ),
        (
            "ebla mt perms set, ebla mt perms add, ebla mt perms remove",
            "The node that was changed.",
            vec![show::permissions_changed("a")],
        ),
        (
            "ebla mt perms test",
            "A list of the tags that the caller has. `pattern` is empty for a superuser, and for a caller who may not read the permissions.",
            vec![parsed(&show::allowed(Format::Json, &[allowed()]))],
        ),
        ("ebla mt whoami", "The caller; `limit` is null where there is none.", callers()),
    ]
}

fn administration() -> Vec<(&'static str, &'static str, Vec<Value>)> {
    let tally = show::tally(Tally { rows: 1, counters: 1 });
    vec![
        (
            "ebla mt admin setup",
            "What the permissions file changes, and how many nodes were changed. Permissions are texts; `before` is null for a node that does \
             not exist.",
            vec![parsed(&show::setup(Format::Json, 1, &changes()))],
        ),
        ("ebla mt admin check", "A list of what is wrong.", vec![parsed(&show::findings(Format::Json, &[finding()]))]),
        (
            "ebla mt admin dump, ebla mt admin restore, ebla mt admin destroy",
            "How many rows and counters were written or deleted. A dump to stdout has lines of JSON of its own, for `restore`.",
            vec![tally],
        ),
        ("ebla mt admin sweep", "What was deleted; damaged rows are skipped.", vec![show::swept(Swept::default())]),
        (
            "ebla mt admin recount",
            "A list of counters that were wrong.",
            vec![parsed(&show::corrections(Format::Json, &[correction()]))],
        ),
        ("ebla mt admin limit", "The user whose limits were changed.", vec![show::limits_changed("u")]),
        (
            "ebla mt admin limits",
            "A list of limits; the first element has the default ones and no user. `default` and `unlimited` are texts.",
            vec![parsed(&show::limits(Format::Json, &limits()))],
        ),
        (
            "ebla mt admin readonly",
            "Whether the server refuses changes, now and before.",
            vec![show::write_mode(WriteMode::ReadOnly, WriteMode::ReadWrite)],
        ),
        (
            "ebla mt admin counters",
            "Lookups by what has answered them, and requests to the storage, since the server started.",
            vec![show::counters(LookupCounts::default(), RequestCounts::default())],
        ),
    ]
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

/// One whose mount stays, and one whose mount expires.
fn both_entries() -> [MountEntry; 2] {
    [entry("-", "table", &["10.0.0.1:80"]), entry("a", "leaf", &["10.0.0.1:80@60"])]
}

fn mounts() -> Vec<Value> {
    let server = "10.0.0.1:80".parse().unwrap();
    [Deadline::FOREVER, Deadline::at(NOW)].map(|deadline| show::mounted("a", &server, deadline)).to_vec()
}

fn watched() -> Vec<Value> {
    let [lasting, expiring] = both_entries();
    let states = [None, Some(&lasting), Some(&expiring)];
    states.map(|state| parsed(&show::watched(Format::Json, NOW, state))).to_vec()
}

fn traces() -> Vec<Value> {
    let [lasting, _] = both_entries();
    let outcomes = [Ok(lasting), Err(Error::new(Reason::NoSuchName, "why"))];
    let document = |outcome: Result<MountEntry, Error>| {
        let took = Duration::from_micros(1);
        let hop = Hop { asked: vec!["/h:1/a".to_owned()], source: Source::Table, took, answer: outcome.clone() };
        parsed(&trace::document(&Trace { hops: vec![hop], outcome }))
    };
    outcomes.map(document).to_vec()
}

fn found() -> Value {
    let found = both_entries().map(|MountEntry { servers, target, .. }| {
        show::found("a", &GlobEntry { name: String::new(), servers, target, has_children: true })
    });
    json!(found)
}

fn node() -> Node {
    Node {
        creator: "u".to_owned(),
        created: NOW,
        stickiness: Stickiness::Sticky,
        version: "7".to_owned(),
        etag: Etag::new("7"),
        servers: 1,
        children: 1,
    }
}

/// A part of the load of which everything was measured, one without an operation, and one without a limit.
fn measured() -> Vec<Value> {
    let mut latencies = LoopResult::none().latencies;
    latencies.record(1).unwrap();
    let done = LoopResult {
        operations: 1,
        errors: 1,
        first_error: Some("why".to_owned()),
        took: Duration::from_secs(1),
        latencies,
    };
    let requests = Some(Requests::default());
    let full = Measurement {
        name: "resolve",
        outcome: done,
        cost: Cost { cpu_micros: Some(1), generator_micros: Some(1), requests },
        memory: Some(Memory { before: 1, peak: 1, after: 1 }),
        limit: None,
    };
    let empty = Measurement { outcome: LoopResult::none(), cost: Cost::default(), memory: None, ..full.clone() };
    let limited = |part: &Measurement| part.clone().with_limit("CPU", 1.0, Measurement::cpu_seconds_per_million);
    vec![bench::to_json(&[limited(&full), limited(&empty), full])]
}

fn some_permissions() -> Permissions {
    Permissions::from_json(r#"{"Admin":{"In":["alice"],"NotIn":["bob"]}}"#).unwrap()
}

fn allowed() -> Allowed {
    Allowed { tag: "Read".to_owned(), granted_by: "Admin".to_owned(), pattern: "alice:...".to_owned() }
}

/// One with limits, and one without.
fn callers() -> Vec<Value> {
    let caller = |limit| {
        let usage = Usage { used: 1, limit };
        let (names, user) = (vec!["alice".to_owned()], "alice".to_owned());
        Who { names, user, privilege: Privilege::Ordinary, nodes: usage, servers: usage }
    };
    [Some(1), None].map(|limit| parsed(&show::caller(Format::Json, &caller(limit)))).to_vec()
}

fn changes() -> [NodeChange; 2] {
    let change = |before| NodeChange { name: "a".parse().unwrap(), before, after: some_permissions() };
    [change(None), change(Some(Permissions::default()))]
}

fn finding() -> Finding {
    Finding { kind: "k".to_owned(), place: "a".to_owned(), message: "why".to_owned(), is_fixed: true }
}

fn correction() -> Correction {
    Correction { counter: "n:alice".to_owned(), was: 1, is: 2 }
}

fn limits() -> AllLimits {
    let limited = Limits { nodes: Some(1), servers: None };
    AllLimits { everybody: Limits { nodes: Some(0), servers: Some(1) }, own: vec![("u".to_owned(), limited)] }
}
