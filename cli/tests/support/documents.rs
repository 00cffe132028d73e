//! JSON of commands, compared with the page that describes it: `docs/reference/json.md`.
//!
//! A test of the library makes that page from examples of documents. The comparison here is with what the program writes on a running cluster.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test may fail, and then says where")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::{Value, json};

/// The types of the fields of a document, by path; the path of the document itself is empty.
type Fields = BTreeMap<String, BTreeSet<String>>;

/// Checks that a document is as described for this command: each field has a described type, and each object has all fields that are described for
/// it. Not for documents with fields that are absent at times, or that have names of users.
pub(crate) fn check(command: &str, document: &Value) {
    let differences = differences(&described(command), "", document);
    assert!(differences.is_empty(), "{command}: {differences:#?} in {document:#}");
}

/// As [`check`], for the output of `-o ndjson`: a line for each element of a list, or for each document. Returns what the lines have.
pub(crate) fn check_lines(command: &str, output: &str) -> Vec<Value> {
    let (lines, fields) = (lines(output), described(command));
    let is_list = fields.get("").is_some_and(|types| types.contains("list"));
    let documents = if is_list { vec![Value::Array(lines.clone())] } else { lines.clone() };
    documents.iter().for_each(|document| check(command, document));
    lines
}

/// The documents of an output that has one on each line.
pub(crate) fn lines(output: &str) -> Vec<Value> {
    assert!(output.is_empty() || output.ends_with('\n'), "the last line is not complete: {output}");
    let parsed = |line: &str| serde_json::from_str::<Value>(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    output.lines().map(parsed).collect()
}

/// The fields that the page has for a command.
fn described(command: &str) -> Fields {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/json.md");
    let page = std::fs::read_to_string(page).unwrap();
    let names_it = |title: &str| title.split(", ").any(|one| one == command);
    let is_title = |line: &str| line.strip_prefix("## ").is_some_and(names_it);
    let section = page.lines().skip_while(|line| !is_title(line)).skip(1).take_while(|line| !line.starts_with("## "));
    let fields: Fields = section.filter_map(field).collect();
    assert!(fields.contains_key(""), "docs/reference/json.md does not describe {command}");
    fields
}

/// A line of a table: the path of a field, and its types.
fn field(line: &str) -> Option<(String, BTreeSet<String>)> {
    let (path, types) = line.strip_prefix("| ")?.strip_suffix(" |")?.split_once(" | ")?;
    let path = match path {
        "field" => return None,
        "(the document)" => "",
        path => path.trim_matches('`'),
    };
    Some((path.to_owned(), types.split(" or ").map(str::to_owned).collect()))
}

/// What is not as described in the value at this path.
fn differences(fields: &Fields, path: &str, value: &Value) -> Vec<String> {
    let is = type_name(value);
    let mut found = match fields.get(path) {
        None => vec![format!("`{path}` is not described")],
        Some(types) if !types.contains(is) => vec![format!("`{path}` is {is}, not one of {types:?}")],
        Some(_types) => Vec::new(),
    };
    match value {
        Value::Array(elements) => {
            let element = format!("{path}[]");
            found.extend(elements.iter().flat_map(|value| differences(fields, &element, value)));
        }
        Value::Object(members) => {
            let inside = if path.is_empty() { String::new() } else { format!("{path}.") };
            let own = fields.keys().filter_map(|field| field.strip_prefix(&inside));
            let own = own.filter(|name| !name.is_empty() && !name.contains(['.', '[']));
            let missing = own.filter(|name| !members.contains_key(*name));
            found.extend(missing.map(|name| format!("`{inside}{name}` is missing")));
            let of_member = |(name, value): (&String, &Value)| differences(fields, &format!("{inside}{name}"), value);
            found.extend(members.iter().flat_map(of_member));
        }
        _ => {}
    }
    found
}

/// The type of a value, as the page names it.
const fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "list",
        Value::Object(_) => "object",
    }
}

#[test]
fn a_document_that_differs_from_its_description_is_found() {
    let of = |command: &str, document: Value| differences(&described(command), "", &document);
    let checks = "ebla doctor --list";
    assert!(of(checks, json!([])).is_empty() && of(checks, json!([{"check": "a", "what": "b"}])).is_empty());
    assert_eq!(of(checks, json!([{"check": "a"}])), ["`[].what` is missing"]);
    assert_eq!(of(checks, json!([{"check": 1, "what": "b", "c": 2}])).len(), 2, "another type, and an unknown field");
    assert_eq!(of(checks, json!({})).len(), 1, "no list");
    // A field of two types, and fields of an object in a list of an object.
    let server =
        |deadline: Value| json!({"address": "h:1", "deadline_micros": deadline, "leaf": true, "mount_table": false});
    let resolved = |deadline| json!({"suffix": "", "servers": [server(deadline)]});
    assert!([json!(7), Value::Null].into_iter().all(|deadline| of("ebla mt resolve", resolved(deadline)).is_empty()));
    assert_eq!(of("ebla mt resolve", resolved(json!("7"))).len(), 1);
    assert_eq!(of("ebla mt resolve", json!({"suffix": "", "servers": [{}]})).len(), 4);
}
