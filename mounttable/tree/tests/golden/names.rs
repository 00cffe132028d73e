//! Scripts on names as text (`naming`), names of nodes (`name`) and addresses (`address`): one command per line.

use ebla_mounttable_tree::{NodeName, ServerAddress, naming};

use crate::notation::{refusal, shown, word, words};
use crate::runner;

#[test]
fn names_are_text() {
    runner::run("naming", |input| input.iter().flat_map(|line| text(line)).collect());
}

fn text(line: &str) -> Vec<String> {
    let words = words(line);
    let one = |f: &dyn Fn(&str) -> String| words.iter().map(|word| shown(&f(word))).collect();
    match line.split(' ').next().unwrap() {
        "clean" => one(&naming::clean),
        "depth" => one(&|word| naming::depth(word).to_string()),
        "encode" => one(&naming::encode_element),
        "decode" => one(&|word| naming::decode_element(word).unwrap_or_else(|| "none".to_string())),
        "split" => one(&|word| {
            let (address, name) = naming::split_address(word);
            format!("{} {}", shown(&address), shown(&name))
        }),
        "join" => vec![shown(&naming::join(&words.iter().map(String::as_str).collect::<Vec<_>>()))],
        "join_address" => vec![shown(&naming::join_address(&words[0], &words[1]))],
        "trim" => vec![shown(&naming::trim_suffix(&words[0], &words[1]))],
        other => panic!("{other} is no word of this script"),
    }
}

/// `name TEXT`: the parsed name, its length and depth.
#[test]
fn names_of_nodes_are_checked() {
    runner::run("name", |input| {
        let parse = |line: &&str| match word(line.split_once(' ').unwrap().1).parse::<NodeName>() {
            Ok(name) if name.as_str().len() > 80 => format!("{} bytes, {} elements", name.as_str().len(), name.depth()),
            Ok(name) => {
                let path: Vec<_> = name.path().iter().map(|name| shown(name.as_str())).collect();
                format!("{} path {}", shown(name.as_str()), path.join(" "))
            }
            Err(error) => refusal(&error),
        };
        input.iter().map(parse).collect()
    });
}

/// `server ADDRESS [SUFFIX]`: the address with the suffix.
#[test]
fn addresses_are_checked() {
    runner::run("address", |input| {
        let parse = |line: &&str| {
            let words = words(line);
            match words[0].parse::<ServerAddress>() {
                Ok(address) if address.as_str().len() > 200 => format!("{} bytes", address.as_str().len()),
                Ok(address) => address.with_suffix(words.get(1).map_or("", String::as_str)),
                Err(error) => refusal(&error),
            }
        };
        input.iter().map(parse).collect()
    });
}
