//! Arbitrary text, and valid text with some bytes changed: refused, or read back as it was read.

use std::fmt::{Debug, Display};
use std::str::FromStr;

use ebla_mounttable_tree::name::DEPTH_MAX;
use ebla_mounttable_tree::node::Node;
use ebla_mounttable_tree::store::{Cell, Family, Row};
use ebla_mounttable_tree::{BlessingName, Error, Micros, NodeName, Pattern, Permissions, Reason, ServerAddress, file};
use proptest::prelude::{ProptestConfig, proptest};
use proptest::sample::select;

use crate::inputs::inputs;

/// Valid examples as bytes.
fn examples(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

const PERMISSIONS: [&str; 2] = [
    r#"{"Admin":{"In":["root"]},"Create":{"In":["..."],"NotIn":["mallory"]}}"#,
    r#"{"Read":{"In":["a:$"]},"%%/Admin":{"In":["%%"]},"%%/%%/Resolve":{"In":["..."]}}"#,
];

const FILES: [&str; 2] = [
    r#"{"":{"Read":{"In":["..."]}},"users":{"Create":{"In":["..."]}},"users/%%":{"Admin":{"In":["%%"]}}}"#,
    r#"{"a/b/c":{},"a/%%/%%":{"%%/Admin":{"In":["x"]}}}"#,
];

/// A parsed text is printed as a text that means the same.
fn survives_printing<T: FromStr<Err = Error> + Display + PartialEq + Debug>(text: &str) {
    if let Ok(value) = text.parse::<T>() {
        assert_eq!(value.to_string().parse::<T>(), Ok(value));
    }
}

#[test]
fn templates_in_a_file_are_nested_as_deep_as_they_can_be_stored() {
    let parsed = |levels: usize, template: &str| {
        let json = format!(r#"{{"a{}":{template}}}"#, "/%%".repeat(levels));
        file::parse(&json, &Permissions::open()).map_err(|error| error.reason)
    };
    assert!(parsed(DEPTH_MAX, "{}").is_ok());
    assert!(parsed(DEPTH_MAX - 1, r#"{"%%/Admin":{}}"#).is_ok());
    assert_eq!(parsed(DEPTH_MAX + 1, "{}"), Err(Reason::BadPermissions));
    assert_eq!(parsed(DEPTH_MAX, r#"{"%%/Admin":{}}"#), Err(Reason::BadPermissions), "it could not be read back");
    assert_eq!(parsed(100_000, "{}"), Err(Reason::BadPermissions));
}

#[test]
fn a_template_without_lists_is_none_as_it_is_stored() {
    for template in [r#""a/%%":{}"#, r#""a/%%/%%":{}"#, r#""a/%%":{},"a/%%/%%/%%":{}"#] {
        let json = format!(r#"{{"a":{{"Read":{{"In":["x"]}}}},{template}}}"#);
        let nodes = file::parse(&json, &Permissions::open()).unwrap();
        let permissions = &nodes.last().unwrap().permissions;
        assert_eq!(permissions.template(), None, "{json}");
        assert_eq!(Permissions::from_json(&permissions.to_json()).as_ref(), Ok(permissions));
    }
}

fn row() -> Row {
    let meta = [
        ("i", "0000000000000007"),
        ("q", "0000000000000001"),
        ("c", "idp:u:alice"),
        ("p", PERMISSIONS[1]),
        ("e", "0000000000000007.4"),
        ("v", "000000000000000a"),
    ];
    let meta = meta.map(|(column, value)| ((Family::Meta, column), value));
    let server = ((Family::Servers, "host:80"), r#"{"target":"leaf","mounter":"idp:u:bob","ttl_millis":5}"#);
    let child = ((Family::Children, "child"), "C0000000000000009");
    let cell = |((family, column), value): ((Family, &str), &str)| {
        ((family, column.to_owned()), Cell { timestamp: Micros::new(9), value: value.to_owned() })
    };
    meta.into_iter().chain([server, child]).map(cell).collect()
}

fn changed_values() -> Vec<Vec<u8>> {
    row().into_values().map(|cell| cell.value.into_bytes()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(5_000))]

    #[test]
    fn permissions_are_refused_or_read_back(bytes in inputs(examples(&PERMISSIONS))) {
        let text = text(&bytes);
        if let Ok(permissions) = Permissions::from_json(&text) {
            assert_eq!(Permissions::from_stored(&permissions.to_json()).as_ref(), Ok(&permissions));
            assert_eq!(permissions.clone().checked(), Ok(permissions));
        }
    }

    #[test]
    fn a_permissions_file_is_refused_or_has_nodes_that_can_be_stored(bytes in inputs(examples(&FILES))) {
        let Ok(nodes) = file::parse(&text(&bytes), &Permissions::open()) else { return Ok(()) };
        assert!(nodes[0].name.is_root());
        for node in &nodes {
            assert_eq!(Permissions::from_json(&node.permissions.to_json()).as_ref(), Ok(&node.permissions));
            let parent = node.name.split_last().map(|(parent, _)| parent);
            assert!(parent.is_none_or(|parent| nodes.iter().any(|other| other.name == parent)));
        }
    }

    #[test]
    fn names_addresses_and_patterns_are_refused_or_read_back(
        bytes in inputs(examples(&["a/b c", "(b)@[::1]:80", "/h:80/x", "unix:/run/s", "a/*/.../b[a-c]?", "idp:u:alice"])),
    ) {
        let text = text(&bytes);
        survives_printing::<NodeName>(&text);
        survives_printing::<Pattern>(&text);
        survives_printing::<BlessingName>(&text);
        if let Ok(address) = text.parse::<ServerAddress>() {
            assert_eq!(address.as_str().parse::<ServerAddress>(), Ok(address.clone()));
        }
    }

    #[test]
    fn a_row_with_a_changed_cell_is_damaged_or_a_node_that_is_written_back(
        place in select(row().into_keys().collect::<Vec<_>>()),
        bytes in inputs(changed_values()),
    ) {
        let mut row = row();
        row.get_mut(&place).unwrap().value = text(&bytes);
        let name: NodeName = "a/b".parse().unwrap();
        match Node::decode(&name, &row) {
            Ok(node) => assert!(!node.write().is_empty()),
            Err(error) => assert_eq!(error.reason, Reason::Damaged),
        }
    }
}
