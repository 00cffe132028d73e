//! `openapi.json` describes exactly the served operations; every response conforms to it.

use std::collections::BTreeSet;

use axum::routing::MethodFilter;
use ebla_mounttable_server::gateway::{BODY_BYTES_MAX, ENTRIES, ENTRIES_MAX, OPENAPI, Operation};
use ebla_mounttable_tree::Reason;
use http::{Method, StatusCode, header};
use serde_json::Value;

use crate::gateway::client::{Answer, ask};
use crate::world::World;

/// The content type of events.
pub(super) const EVENTS: &str = "text/event-stream";

fn description() -> Value {
    serde_json::from_str(OPENAPI).unwrap()
}

/// The violations of `schema` in a value. Undescribed fields are violations too.
fn fault(description: &Value, schema: &Value, value: &Value) -> Option<String> {
    if let Some(place) = schema["$ref"].as_str() {
        let named = description.pointer(place.strip_prefix('#').unwrap()).expect("a schema that is referred to");
        return fault(description, named, value).map(|wrong| format!("{place}: {wrong}"));
    }
    let is_right = match schema["type"].as_str().expect("a schema has a type") {
        "object" => {
            let Some(fields) = value.as_object() else { return Some(format!("no object: {value}")) };
            let required = schema["required"].as_array().into_iter().flatten().map(|name| name.as_str().unwrap());
            if let Some(missing) = required.into_iter().find(|name| !fields.contains_key(*name)) {
                return Some(format!("{missing} is missing in {value}"));
            }
            let of = |name: &str| schema["properties"].get(name).or(schema.get("additionalProperties"));
            return fields.iter().find_map(|(name, field)| match of(name) {
                Some(Value::Bool(true)) => None,
                Some(schema) => fault(description, schema, field),
                None => Some(format!("{name} is not described")),
            });
        }
        "array" => {
            let Some(items) = value.as_array() else { return Some(format!("no array: {value}")) };
            return items.iter().find_map(|item| fault(description, &schema["items"], item));
        }
        "string" => value.is_string() && schema["enum"].as_array().is_none_or(|known| known.contains(value)),
        "integer" => value.is_i64() || value.is_u64(),
        "boolean" => value.is_boolean(),
        other => panic!("no type: {other}"),
    };
    (!is_right).then(|| format!("{value} is not {schema}"))
}

#[track_caller]
fn assert_is(schema: &Value, value: &Value) {
    assert_eq!(fault(&description(), schema, value), None);
}

/// The path of `openapi.json` that matches a request's path.
fn template(path: &str) -> String {
    let prefix = ["/v1/names/", "/v1/perms/"].into_iter().find(|prefix| path.starts_with(prefix));
    prefix.map_or_else(|| path.to_owned(), |prefix| format!("{prefix}{{path}}"))
}

/// Validates a response.
#[track_caller]
pub(super) fn check(method: &str, path: &str, answer: &Answer) {
    let description = description();
    let responses = &description["paths"][template(path)][method]["responses"];
    let response = responses.get(answer.status.as_str()).or(responses.get("default"));
    let elsewhere =
        serde_json::json!({"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Refusal"}}}});
    let response = response.unwrap_or(&elsewhere);
    let Some(content) = response.get("content") else {
        assert_eq!(answer.body, "", "an answer without content");
        return;
    };
    let kind = answer.headers[header::CONTENT_TYPE].to_str().unwrap();
    let schema = &content.get(kind).unwrap_or_else(|| panic!("{kind} is not described for {method} {path}"))["schema"];
    let values = if kind.ends_with("jsonl") { answer.body.lines().collect() } else { vec![answer.body.as_str()] };
    values.into_iter().for_each(|value| assert_is(schema, &serde_json::from_str(value).unwrap()));
}

/// Validates an event.
#[track_caller]
pub(super) fn check_event(name: &str, data: &Value) {
    let description = description();
    let content = &description["paths"]["/v1/names/{path}"]["get"]["responses"]["200"]["content"][EVENTS];
    assert_is(content["x-events"].get(name).expect("an event that is described"), data);
}

#[test]
fn every_operation_is_described_and_nothing_else() {
    let mut described = Vec::new();
    for (path, operations) in description()["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap().iter().filter(|(name, _)| *name != "parameters") {
            let method = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
            let id = operation["operationId"].as_str().unwrap().to_owned();
            described.push((id, MethodFilter::try_from(method).unwrap(), path.clone()));
        }
    }
    let mut served: Vec<_> = Operation::ALL
        .iter()
        .map(|operation| (format!("{operation:?}"), operation.place().0, operation.place().1.to_owned()))
        .collect();
    described.sort_by(|a, b| a.0.cmp(&b.0));
    served.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(described, served);
}

#[test]
fn every_reason_and_every_bound_is_described() {
    let description = description();
    let reasons = description["components"]["schemas"]["Reason"]["enum"].as_array().unwrap();
    let described: BTreeSet<_> = reasons.iter().map(|reason| reason.as_str().unwrap()).collect();
    assert_eq!(described, Reason::ALL.iter().map(|reason| reason.name()).collect());
    let parameters = description["paths"]["/v1/names/{path}"]["get"]["parameters"].as_array().unwrap();
    let limit = parameters.iter().find(|parameter| parameter["name"] == "limit").unwrap();
    assert_eq!((&limit["schema"]["maximum"], &limit["schema"]["default"]), (&ENTRIES_MAX.into(), &ENTRIES.into()));
    assert!(description["info"]["description"].as_str().unwrap().contains(&BODY_BYTES_MAX.to_string()));
}

#[test]
fn schemas_find_what_is_wrong() {
    let wrong = |schema: &str, json: &str| {
        let schema = serde_json::json!({"$ref": format!("#/components/schemas/{schema}")});
        fault(&description(), &schema, &serde_json::from_str(json).unwrap()).is_some()
    };
    assert!(!wrong("Gone", r#"{"removed":1}"#));
    assert!(wrong("Gone", r#"{"removed":"1"}"#) && wrong("Gone", r#"{"lost":1}"#) && wrong("Gone", "1"));
    assert!(wrong("Refusal", r#"{"reason":"NO_ACCESS","message":"no"}"#), "a field is missing");
    assert!(wrong("Refusal", r#"{"reason":"NO","message":"no","next_step":"none"}"#), "no reason of ours");
}

#[tokio::test]
async fn the_gateway_describes_itself() {
    let world = World::start().await;
    let answer = ask(&world, "", "GET", "/v1/openapi.json", "").await;
    assert_eq!((answer.status, answer.body.as_str()), (StatusCode::OK, OPENAPI));
}
