//! Scripts: `pattern P` and names to match; `split P`; `tree NAMES`, `mounted NAMES` and patterns.

use std::collections::{BTreeSet, VecDeque};

use ebla_mounttable_tree::{NodeName, Pattern};

use crate::notation::{line, refusal, shown, word, words};
use crate::runner;

/// `pattern P` alone is parsed; with `heads NAMES` it prints the matching children; with `names NAMES` the matching
/// names.
#[test]
fn patterns_match_elements() {
    runner::run("glob", |input| {
        let pattern = match pattern(input[0]) {
            Ok(pattern) => pattern,
            Err(refusal) => return vec![refusal],
        };
        if input[0].starts_with("split") {
            let (fixed, rest) = pattern.split_fixed();
            let rest = format!("rest {}", shown(&rest.to_string()));
            return line("fixed", &fixed).into_iter().chain([rest]).collect();
        }
        let mut out = vec![];
        for names in &input[1..] {
            let is_head = names.starts_with("heads");
            let is_match = |name: &String| {
                if is_head {
                    pattern.head_matches(name)
                } else {
                    pattern.matches(ebla_mounttable_tree::naming::elements(name))
                }
            };
            let (yes, no): (Vec<_>, Vec<_>) = words(names).into_iter().partition(is_match);
            out.extend(line("yes", &yes));
            out.extend(line("no", &no));
        }
        if input.len() == 1 {
            out.push(format!(
                "{} depth {} recursion {:?}",
                shown(&pattern.to_string()),
                pattern.depth(),
                pattern.recursion()
            ));
        }
        out
    });
}

fn pattern(line: &str) -> Result<Pattern, String> {
    let text = line.split_once(' ').unwrap().1;
    let text = if text == "\"\"" { "" } else { text };
    text.parse().map_err(|error| refusal(&error))
}

/// A walk like a server's, over a tree of names: a mounted name is printed and not entered.
#[test]
fn patterns_walk_trees() {
    runner::run("walk", |input| {
        let (mut nodes, mut mounted, mut out) = (BTreeSet::new(), BTreeSet::new(), vec![]);
        for step in input {
            match step.split(' ').next().unwrap() {
                "mounted" => {
                    let names: Vec<NodeName> = words(step).iter().map(|name| name.parse().unwrap()).collect();
                    nodes.extend(names.iter().flat_map(NodeName::path));
                    mounted.extend(names);
                }
                "glob" => {
                    let mut words = step.split_whitespace().skip(1);
                    let pattern: Pattern = word(words.next().unwrap()).parse().unwrap();
                    let receiver: NodeName = words.next().unwrap_or_default().parse().unwrap();
                    let found = walk(&nodes, &mounted, receiver, pattern);
                    out.push(line("found", &found).unwrap_or_else(|| "nothing".to_string()));
                }
                other => panic!("{other} is no word of this script"),
            }
        }
        out
    });
}

fn walk(nodes: &BTreeSet<NodeName>, mounted: &BTreeSet<NodeName>, receiver: NodeName, pattern: Pattern) -> Vec<String> {
    if let Some(above) = receiver.path().iter().find(|node| mounted.contains(*node)) {
        return vec![format!("\"\"+{}", shown(receiver.suffix_below(above).unwrap()))];
    }
    let mut found = vec![];
    let mut queue = VecDeque::from([(receiver.clone(), pattern)]);
    while let Some((node, pattern)) = queue.pop_front().filter(|(node, _)| nodes.contains(node)) {
        let name = node.suffix_below(&receiver).unwrap().to_string();
        if mounted.contains(&node) {
            found.push(name);
            continue;
        }
        if pattern.depth() == 0 {
            found.push(name);
        }
        let children = nodes.iter().filter_map(|child| Some((child, child.split_last()?)));
        for (child, (_, element)) in children.filter(|(_, (parent, _))| *parent == node) {
            if pattern.head_matches(element) {
                queue.push_back((child.clone(), pattern.tail()));
            }
        }
    }
    found.sort();
    found
}
