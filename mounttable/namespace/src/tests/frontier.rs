//! A listing over tables whose replies come from a map.

use std::collections::BTreeMap;

use ebla_mounttable_tree::{Error, Reason, Target};

use crate::entry::{MountEntry, Server};
use crate::glob::frontier::{DEPTH_MAX, Found, Frontier};

/// The reply of each table to any request: a name, the server mounted there, and its kind.
type Tables<'a> = BTreeMap<&'a str, Vec<(&'a str, &'a str, Target)>>;

fn entry(server: &str, target: Target) -> MountEntry {
    let servers = if server.is_empty() { vec![] } else { vec![Server::lasting(server.parse().unwrap())] };
    MountEntry { servers, suffix: String::new(), target }
}

/// The results, errors as reasons, and the requests to servers.
fn list_servers(tables: &Tables<'_>, pattern: &str) -> (Vec<String>, Vec<String>) {
    let root = entry("/root:1", Target::MountTable);
    let mut frontier = Frontier::begin(String::new(), root, pattern.parse().unwrap());
    let mut streams = Vec::new();
    while let Some(visit) = frontier.next_visit() {
        let server = visit.entry.names().remove(0);
        streams.push(format!("{server} {}", visit.rest));
        match tables.get(server.as_str()) {
            Some(names) => names.iter().for_each(|(name, server, target)| {
                let found = Found { name: (*name).to_owned(), entry: entry(server, *target), has_children: false };
                frontier.found(&visit, found);
            }),
            None => frontier.failed(&visit, "", Error::new(Reason::NotAMountTable, "what?")),
        }
    }
    let mut results = Vec::new();
    while let Some(item) = frontier.next_result() {
        results.push(item.map_or_else(|it| format!("{}: {}", it.name, it.error.reason), |it| it.name));
    }
    results.sort();
    (results, streams)
}

#[test]
fn the_rest_of_a_pattern_is_sent_to_the_mounted_server() {
    let tables = Tables::from([
        ("/root:1", vec![("a/mt", "/mt:1", Target::MountTable)]),
        ("/mt:1", vec![("", "", Target::Object), ("b", "/h:1", Target::Object), ("c", "/h:2", Target::Leaf)]),
    ]);
    let (results, streams) = list_servers(&tables, "a/*/?");
    assert_eq!(
        (results, streams),
        (vec!["a/mt/b".into(), "a/mt/c".into()], vec!["/root:1 a/*/?".into(), "/mt:1 ?".into()])
    );
    let (results, streams) = list_servers(&tables, "a/...");
    assert_eq!(results, ["a/mt", "a/mt/b", "a/mt/c"], "a table's root is reported once");
    assert_eq!(streams, ["/root:1 a/...", "/mt:1 ...", "/h:1 ..."], "nothing is below a leaf");
    assert_eq!(list_servers(&tables, "a/***").1, ["/root:1 a/***", "/mt:1 ***"]);
    assert_eq!(list_servers(&tables, "a/mt").1, ["/root:1 a/mt"], "the root table reported it already");
}

/// T091
#[test]
fn tables_that_lead_to_each_other_are_asked_once_for_the_same_rest() {
    let to_itself = vec![("c2", "/c1:1", Target::MountTable), ("c3/c4", "/c1:1", Target::MountTable)];
    let tables = Tables::from([("/root:1", vec![("c1", "/c1:1", Target::MountTable)]), ("/c1:1", to_itself)]);
    let (results, streams) = list_servers(&tables, "c1/...");
    assert_eq!(results, ["c1", "c1/c2", "c1/c3/c4"]);
    assert_eq!(streams, ["/root:1 c1/...", "/c1:1 ..."]);
}

#[test]
fn a_chain_of_servers_ends_with_an_error() {
    let servers: Vec<_> = (1..20).map(|port| format!("/h:{port}")).collect();
    let mut tables = Tables::from([("/root:1", vec![("x", servers[0].as_str(), Target::MountTable)])]);
    for pair in servers.windows(2) {
        tables.insert(&pair[0], vec![("x", &pair[1], Target::MountTable)]);
    }
    let (results, streams) = list_servers(&tables, "...");
    assert_eq!(streams.len(), DEPTH_MAX + 1);
    assert_eq!(results.len(), DEPTH_MAX + 2);
    assert_eq!(results.iter().filter(|name| name.ends_with(": DEPTH_EXCEEDED")).count(), 1);
}

#[test]
fn a_server_that_is_no_mount_table_is_an_error_only_where_all_begins() {
    let none = Tables::new();
    assert_eq!(list_servers(&none, "*").0, [": NOT_A_MOUNT_TABLE"]);
    let tables = Tables::from([("/root:1", vec![("a", "/h:1", Target::Object)])]);
    assert_eq!(list_servers(&tables, "...").0, ["a"]);
}
