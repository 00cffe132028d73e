//! The list of components that `deploy/sbom.py` writes has exactly the crates that cargo builds into the program.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;

use super::{read, report, root};

/// The list.
fn components() -> Vec<Value> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ebla.cdx.json");
    let mut script = Command::new("python3");
    let output = script.arg(root().join("deploy/sbom.py")).arg(&file).env("CARGO", env!("CARGO")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let document: Value = serde_json::from_str(&read(&file)).unwrap();
    assert_eq!(
        (&document["bomFormat"], &document["metadata"]["component"]["name"]),
        (&"CycloneDX".into(), &"ebla".into())
    );
    document["components"].as_array().unwrap().clone()
}

/// `name version` of the crates of the program, as `cargo tree` lists them.
fn crates() -> BTreeSet<String> {
    let tree =
        ["tree", "--offline", "--package", "ebla-cli", "--edges", "normal", "--prefix", "none", "--format", "{p}"];
    let output = Command::new(env!("CARGO")).args(tree).current_dir(root()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = text.lines().filter_map(|line| line.split_once(" v"));
    let named = lines.map(|(name, rest)| format!("{name} {}", rest.split(' ').next().unwrap()));
    named.filter(|one| !one.starts_with("ebla-cli ")).collect()
}

#[test]
fn the_list_of_components_has_the_crates_of_the_program() {
    let components = components();
    let text = |component: &Value, field: &str| component[field].as_str().unwrap_or_default().to_owned();
    let is_crate = |component: &&Value| text(component, "purl").starts_with("pkg:cargo/");
    let listed: Vec<_> = components
        .iter()
        .filter(is_crate)
        .map(|one| format!("{} {}", text(one, "name"), text(one, "version")))
        .collect();
    let wanted = crates();
    assert!(wanted.len() > 100, "only {} crates were found: the search for them is broken", wanted.len());
    let set: BTreeSet<_> = listed.iter().cloned().collect();
    assert_eq!(listed.len(), set.len(), "a crate is listed twice");
    let mut wrong: Vec<_> = wanted.difference(&set).map(|one| format!("{one} is not listed")).collect();
    wrong.extend(set.difference(&wanted).map(|one| format!("{one} is not in the program")));
    for component in &components {
        let name = text(component, "name");
        let is_ours = name.starts_with("ebla-") || ["workspace-hack", "base2histogram"].contains(&name.as_str());
        let checksum = component["hashes"][0]["content"].as_str().unwrap_or_default().len();
        if is_crate(&component) && !is_ours && checksum != 64 {
            wrong.push(format!("{name} has no checksum"));
        }
        if component["licenses"].as_array().is_none_or(Vec::is_empty) {
            wrong.push(format!("{name} has no licence"));
        }
    }
    report("deploy/sbom.py must list exactly the crates of the program", wrong);
    let storage = components.iter().find(|one| one["name"] == "librocksdb-sys").unwrap();
    let rocksdb = components.iter().find(|one| one["name"] == "rocksdb" && !is_crate(one)).unwrap();
    let version = text(rocksdb, "version");
    assert!(version.contains('.') && text(storage, "version").ends_with(&format!("+{version}")), "{rocksdb}");
}
