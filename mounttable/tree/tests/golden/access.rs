//! Scripts on patterns, access lists, permissions and users: one command per line.

use ebla_mounttable_tree::{BlessingName, BlessingPattern, Caller, Permissions, Tag};

use crate::notation::{caller, line, names, refusal, word, words};
use crate::runner;

#[test]
fn callers_are_matched() {
    runner::run("identity", |input| input.iter().flat_map(|line| identity(line)).collect());
}

fn identity(step: &str) -> Vec<String> {
    let words = words(step);
    match step.split(' ').next().unwrap() {
        // `pattern P NAME...` matches each name alone; `nobody P` matches a caller without names.
        "pattern" => {
            let pattern = BlessingPattern::new(words[0].clone());
            let is_match = |name: &String| name.parse::<BlessingName>().is_ok_and(|name| pattern.matches(&name));
            let (yes, no): (Vec<_>, Vec<_>) = words[1..].iter().cloned().partition(is_match);
            line("yes", &yes).into_iter().chain(line("no", &no)).collect()
        }
        "nobody" => words.iter().map(|word| BlessingPattern::new(word.clone()).matches_any([]).to_string()).collect(),
        "valid" => {
            let (yes, no): (Vec<_>, Vec<_>) =
                words.into_iter().partition(|word| BlessingPattern::new(word.clone()).is_valid());
            line("valid", &yes).into_iter().chain(line("invalid", &no)).collect()
        }
        "user" => vec![caller(&words.join(" ")).user_id().to_string()],
        "name" => words
            .iter()
            .map(|word| word.parse::<BlessingName>().map_or_else(|e| refusal(&e), |n| n.to_string()))
            .collect(),
        other => panic!("{other} is no word of this script"),
    }
}

/// `perms JSON`, then changes and queries.
#[test]
fn permissions_grant() {
    runner::run("access", |input| {
        let mut permissions = Permissions::default();
        let mut out = vec![];
        for step in input {
            let (head, rest) = step.split_once(' ').unwrap_or((step, ""));
            match head {
                "perms" => match Permissions::from_json(rest) {
                    Ok(read) => permissions = read,
                    Err(error) => return vec![refusal(&error)],
                },
                "show" => out.push(permissions.to_json()),
                "child" => out.push(permissions.template().unwrap().for_child(&word(rest)).to_json()),
                "add" | "keep_out" | "clear" => change(&mut permissions, head, rest),
                tag => {
                    let list = permissions.list(tag.parse::<Tag>().unwrap()).cloned().unwrap_or_default();
                    let answer = if list.grants(&names(rest)) { "yes" } else { "no" };
                    out.push(format!("{answer} {rest}").trim_end().to_string());
                }
            }
        }
        out
    });
}

fn change(permissions: &mut Permissions, head: &str, rest: &str) {
    let mut words = rest.split(' ');
    let pattern = BlessingPattern::new(word(words.next().unwrap()));
    let tags: Vec<Tag> = words.map(|tag| tag.parse().unwrap()).collect();
    match head {
        "add" => permissions.add(&pattern, &tags),
        "keep_out" => permissions.deny(&pattern, &tags),
        _ => permissions.clear(&pattern, &tags),
    }
}

#[test]
fn superusers_always_pass() {
    let root = Caller::new(names("root:x"), &[BlessingPattern::new("root")]);
    assert!(Permissions::default().allow(&root, &[]));
    assert!(!Permissions::default().allow(&caller("bob"), &Tag::ALL));
    assert!(Permissions::open().allow(&caller(""), &Tag::ALL));
}
