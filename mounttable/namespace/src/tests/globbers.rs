//! Listings over servers that list names below themselves, each given as a tree on one line.

use std::collections::BTreeMap;

use ebla_mounttable_tree::{Pattern, Target, naming};

use crate::entry::{MountEntry, Server};
use crate::glob::frontier::{DEPTH_MAX, Found, Frontier};

/// Names below a server; one with `=` is a server itself, with names below. `chain` is an endless server: it has a
/// server `x` below it, which has another.
const SERVERS: &[(&str, &str)] = &[
    ("root", "a=a b=b/inner plain plain/below loop=root chain=chain leaf=leaf"),
    ("a", "one one/deep=deep two .hidden"),
    ("deep", "bottom other"),
    ("b", "inner inner/x inner/y=deep inner/y2 outer"),
    ("leaf", ""),
];

/// The matches that a server reports: nothing below a server mounted there.
fn reported_by(server: &str, receiver: &str, pattern: &Pattern) -> Vec<(String, String)> {
    if let Some(link) = server.strip_prefix("chain") {
        let next = format!("chain{}", link.parse::<usize>().unwrap_or(0) + 1);
        let here = pattern.left().is_empty().then(|| (String::new(), String::new()));
        return here.into_iter().chain(pattern.head_matches("x").then(|| ("x".to_owned(), next))).collect();
    }
    let known: BTreeMap<_, _> = SERVERS.iter().copied().collect();
    let mut results = Vec::new();
    for node in known[server].split(' ').chain([""]) {
        let (name, mounted) = node.split_once('=').unwrap_or((node, ""));
        let below = match receiver {
            "" => Some(name),
            _ if name == receiver => Some(""),
            _ => name.strip_prefix(receiver).and_then(|rest| rest.strip_prefix('/')),
        };
        let Some(below) = below else { continue };
        let (mut rest, mut is_asked_for) = (pattern.clone(), true);
        for element in naming::elements(below) {
            is_asked_for &= rest.head_matches(element);
            rest = rest.tail();
        }
        if is_asked_for && (rest.left().is_empty() || !mounted.is_empty()) {
            results.push((below.to_owned(), mounted.to_owned()));
        }
    }
    results
}

fn entry(server: &str, target: Target) -> MountEntry {
    let (host, inner) = server.split_once('/').unwrap_or((server, ""));
    let address = naming::join_address(&format!("{host}:1"), inner);
    let servers = if server.is_empty() { vec![] } else { vec![Server::lasting(address.parse().unwrap())] };
    MountEntry { servers, suffix: String::new(), target }
}

/// The results, in order; errors as `name: REASON`.
fn list_servers(receiver: &str, pattern: &str) -> Vec<String> {
    let start = entry(receiver, Target::Object);
    let mut frontier = Frontier::begin(String::new(), start, pattern.parse().unwrap());
    while let Some(visit) = frontier.next_visit() {
        let (address, inner) = naming::split_address(&visit.entry.names().remove(0));
        for (name, mounted) in reported_by(address.trim_end_matches(":1"), &inner, &visit.rest) {
            let target = if mounted == "leaf" { Target::Leaf } else { Target::Object };
            frontier.found(&visit, Found { name, entry: entry(&mounted, target), has_children: false });
        }
    }
    let next_result = |item: Result<crate::GlobEntry, crate::GlobError>| {
        item.map_or_else(|it| format!("{}: {}", it.name, it.error.reason), |it| it.name)
    };
    let mut results: Vec<_> = std::iter::from_fn(|| frontier.next_result()).map(next_result).collect();
    results.sort();
    results
}

/// T109: a listing continues from server to server, each of which gets the rest of the pattern.
#[test]
fn servers_that_serve_names_below_themselves_are_listed_through() {
    for (receiver, pattern, expected) in [
        ("root", "", "()"),
        ("root", "*", "a b chain leaf loop plain"),
        ("root", "a", "a"),
        ("root", "[ab]", "a b"),
        ("root", "?", "a b"),
        ("root", "none", ""),
        ("root", "a/*", "a/.hidden a/one a/two"),
        ("root", "a/one", "a/one"),
        ("root", "a/o*", "a/one"),
        ("root", "a/none", ""),
        ("root", "a/none/none", ""),
        ("root", "a/one/*", "a/one/deep"),
        ("root", "a/one/deep/*", "a/one/deep/bottom a/one/deep/other"),
        ("root", "a/*/*/b*", "a/one/deep/bottom"),
        ("root", "*/one/deep/bottom", "a/one/deep/bottom"),
        ("root", "a/...", "a a/.hidden a/one a/one/deep a/one/deep/bottom a/one/deep/other a/two"),
        ("root", "a/one/...", "a/one a/one/deep a/one/deep/bottom a/one/deep/other"),
        ("root", "a/*/...", "a/.hidden a/one a/one/deep a/one/deep/bottom a/one/deep/other a/two"),
        ("root", "b", "b"),
        ("root", "b/*", "b/x b/y b/y2"),
        ("root", "b/y/*", "b/y/bottom b/y/other"),
        ("root", "b/y?", "b/y2"),
        ("root", "b/outer", ""),
        ("root", "b/...", "b b/x b/y b/y/bottom b/y/other b/y2"),
        ("root", "plain", "plain"),
        ("root", "plain/*", "plain/below"),
        ("root", "plain/below/*", ""),
        ("root", "plain/...", "plain plain/below"),
        ("root", "leaf", "leaf"),
        ("root", "leaf/*", ""),
        ("root", "leaf/...", "leaf"),
        ("root", "loop/a", "loop/a"),
        ("root", "loop/loop/loop/b/x", "loop/loop/loop/b/x"),
        ("root", "loop/*/two", "loop/a/two"),
        ("root", "*/y/bottom", "b/y/bottom"),
        ("a", "", "()"),
        ("a", "*", ".hidden one two"),
        ("a", "*/*/*", "one/deep/bottom one/deep/other"),
        ("a/one", "", "()"),
        ("a/one", "*", "deep"),
        ("a/one", "deep/bottom", "deep/bottom"),
        ("a/two", "...", "()"),
        ("a/none", "...", ""),
        ("b/inner", "...", "() x y y/bottom y/other y2"),
        ("b", "inner/y/...", "inner/y inner/y/bottom inner/y/other"),
        ("chain", "x", "x"),
        ("chain", "x/x/x/?", "x/x/x/x"),
        ("root", "chain/x/y", ""),
    ] {
        let results = list_servers(receiver, pattern);
        let results: Vec<_> = results.iter().map(|name| if name.is_empty() { "()" } else { name.as_str() }).collect();
        assert_eq!(results.join(" "), expected, "{receiver:?} asked for {pattern:?}");
    }
}

/// T109: an endless chain of servers is followed for ten levels, unless the pattern has a length.
#[test]
fn only_a_recursion_is_limited() {
    let chain = |length: usize| vec!["x"; length].join("/");
    for (pattern, elements) in [("...", 0), ("*/...", 1), ("x/*/...", 2)] {
        let results = list_servers("chain", pattern);
        let (errors, names): (Vec<_>, Vec<_>) =
            results.into_iter().partition(|name| name.ends_with(": DEPTH_EXCEEDED"));
        let last = elements + DEPTH_MAX + 1;
        assert_eq!(errors, [format!("{}: DEPTH_EXCEEDED", chain(last))], "{pattern}: one error");
        assert_eq!(names, (elements..=last).map(chain).collect::<Vec<_>>(), "{pattern}");
    }
    for length in [1, DEPTH_MAX, 12, 30] {
        assert_eq!(list_servers("chain", &vec!["*"; length].join("/")), [chain(length)]);
    }
}
