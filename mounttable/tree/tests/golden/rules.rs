//! Scripts: `node JSON` and `parent JSON` set permissions, followed by callers and actions.

use ebla_mounttable_tree::rules::{self, Action};
use ebla_mounttable_tree::{Error, Pattern, Permissions};

use crate::notation::{caller, refusal};
use crate::runner;

#[test]
fn callers_may_do_what_the_rules_say() {
    runner::run("rules", |input| {
        let (mut node, mut parent, mut out) = (Permissions::default(), Permissions::default(), vec![]);
        for step in input {
            let (head, rest) = step.split_once(' ').unwrap();
            match head {
                "node" => node = Permissions::from_json(rest).unwrap(),
                "parent" => parent = Permissions::from_json(rest).unwrap(),
                "may" => out.push(format!("{rest}: {}", allowed(rest, &node, &parent))),
                "list" => {
                    let (name, pattern) = rest.split_once(' ').unwrap();
                    let pattern: Pattern = pattern.parse().unwrap();
                    out.push(format!("{rest}: {}", rules::can_list(&caller(name), &node, &pattern)));
                }
                "create" => {
                    let (name, child) = rest.split_once(' ').unwrap();
                    out.push(shown(rules::create_child(&caller(name), &parent, child)));
                }
                "set" => {
                    let (name, new) = rest.split_once(' ').unwrap();
                    let new = Permissions::from_json(new).unwrap();
                    out.push(shown(rules::replacement(&caller(name), Some(&node), new)));
                }
                "set_new" => {
                    let (name, new) = rest.split_once(' ').unwrap();
                    out.push(shown(rules::replacement(&caller(name), None, Permissions::from_json(new).unwrap())));
                }
                other => panic!("{other} is no word of this script"),
            }
        }
        out
    });
}

/// The actions that the caller may perform on the node.
fn allowed(name: &str, node: &Permissions, parent: &Permissions) -> String {
    let caller = caller(name);
    let actions = [
        ("traverse", Action::Traverse),
        ("resolve", Action::Resolve),
        ("mount", Action::Mount),
        ("be_listed", Action::BeListed),
        ("get", Action::GetPermissions),
        ("set", Action::SetPermissions),
    ];
    let mut words: Vec<_> =
        actions.iter().filter(|(_, action)| rules::is_allowed(*action, &caller, node)).map(|a| a.0).collect();
    words.extend(rules::check_delete(&caller, node, parent).is_ok().then_some("delete"));
    if words.is_empty() { "nothing".to_string() } else { words.join(" ") }
}

fn shown(permissions: Result<Permissions, Error>) -> String {
    permissions.map_or_else(|error| refusal(&error), |permissions| permissions.to_json())
}

/// A permissions file on several lines, and its nodes.
#[test]
fn files_make_nodes() {
    runner::run("file", |input| match ebla_mounttable_tree::file::parse(&input.join("\n"), &Permissions::open()) {
        Ok(nodes) => {
            nodes.iter().map(|node| format!("/{} {:?} {}", node.name, node.stickiness, node.permissions)).collect()
        }
        Err(error) => vec![refusal(&error)],
    });
}
