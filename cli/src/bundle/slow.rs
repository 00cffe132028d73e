//! The slow and failed operations of each process in a bundle. Records have neither keys nor values of rows (`ebla.trace.Record`).

use std::collections::BTreeMap;

use ebla_client::Client;
use ebla_model::error::Error;
use ebla_proto::trace::{ListReply, ListRequest, Unreachable};
use serde_json::{Value, json};

use crate::commands::documents;

/// The most operations of one tablet server, the newest ones.
const OF_SERVER_MAX: u32 = 100;
/// The most operations of the newest of all processes, which have those of the master.
const OF_ALL_MAX: u32 = 1_000;
/// The most tablet servers that are asked for their own; of the others the newest of all are there.
const SERVERS_MAX: usize = 50;

/// The newest slow and failed operations of these tablet servers and of the master, by process.
///
/// One server is asked after another: the server that collects the replies refuses a third list at the same time. Those that did not respond
/// when all were asked are not asked again.
///
/// # Errors
/// When the operations of the whole cluster cannot be read. A process that does not answer is in the document with its error.
pub(super) async fn operations(client: &Client, servers: &[u64]) -> Result<Value, Error> {
    let admin = &client.admin();
    let all = admin.traces(ListRequest { failed: true, limit: OF_ALL_MAX, ..ListRequest::default() }).await?;
    let has_responded = |server: &&u64| !all.unreachable.iter().any(|missing| missing.server == **server);
    let mut each = Vec::new();
    for &server in servers.iter().filter(has_responded).take(SERVERS_MAX) {
        let request = ListRequest { server, failed: true, limit: OF_SERVER_MAX, ..ListRequest::default() };
        let missing = |error: Error| ListReply {
            unreachable: vec![Unreachable { server, message: error.message }],
            ..ListReply::default()
        };
        each.push(admin.traces(request).await.unwrap_or_else(missing));
    }
    Ok(document(std::iter::once(all).chain(each)))
}

/// The operations in these replies by process, each once. The error of a process is a text in which a key may be: `detail`.
fn document(replies: impl Iterator<Item = ListReply>) -> Value {
    let mut records = BTreeMap::new();
    let mut missing = BTreeMap::new();
    for reply in replies {
        records.extend(
            reply.records.into_iter().map(|record| ((record.server, record.began_micros, record.span), record)),
        );
        missing.extend(reply.unreachable.into_iter().map(|missing| (missing.server, missing.message)));
    }
    let number = |server: u64| (server > 0).then_some(server);
    let mut processes: BTreeMap<u64, Vec<Value>> = BTreeMap::new();
    for record in records.into_values() {
        processes.entry(record.server).or_default().push(documents::slow_operation(&record));
    }
    json!({
        "processes": processes
            .into_iter()
            .map(|(server, operations)| json!({"server": number(server), "operations": operations}))
            .collect::<Vec<_>>(),
        "missing": missing
            .into_iter()
            .map(|(server, message)| json!({"server": number(server), "detail": message}))
            .collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use ebla_proto::trace::Record;

    use super::*;
    use crate::bundle::redact::{Keys, without_keys};

    fn record(server: u64, began_micros: i64, span: u64) -> Record {
        Record { server, began_micros, span, method: "Mutate".to_owned(), ..Record::default() }
    }

    #[test]
    fn operations_are_listed_once_by_process_in_the_order_of_their_times() {
        let all = ListReply { records: vec![record(0, 5, 1), record(2, 9, 4)], unreachable: Vec::new() };
        let of_two = ListReply { records: vec![record(2, 3, 8), record(2, 9, 4)], unreachable: Vec::new() };
        let of_three = ListReply {
            records: Vec::new(),
            unreachable: vec![Unreachable { server: 3, message: "no route from row secret".to_owned() }],
        };
        let document = document([all, of_two, of_three].into_iter());
        let began = |at: usize| {
            let operations = document["processes"][at]["operations"].as_array().unwrap();
            operations.iter().map(|one| one["began_micros"].as_i64().unwrap()).collect::<Vec<_>>()
        };
        assert_eq!((&document["processes"][0]["server"], began(0)), (&Value::Null, vec![5]), "the master");
        assert_eq!((&document["processes"][1]["server"], began(1)), (&json!(2), vec![3, 9]));
        assert_eq!(document["missing"], json!([{"server": 3, "detail": "no route from row secret"}]));
        let shown = without_keys(document, Keys::Removed);
        assert_eq!(shown["missing"], json!([{"server": 3, "detail": null}]), "an error may name a row");
        assert_eq!(shown["processes"][1]["operations"][0]["method"], "Mutate");
    }

    #[test]
    fn a_record_has_no_field_of_keys() {
        // Every field of a record is written, so a new one is seen here before it is in a bundle.
        let shown = documents::slow_operation(&record(1, 2, 3));
        let fields: Vec<&str> = shown.as_object().unwrap().keys().map(String::as_str).collect();
        let expected = [
            "batch",
            "began_micros",
            "code",
            "elapsed_micros",
            "followers",
            "group",
            "kept",
            "leader",
            "method",
            "origin",
            "parent",
            "request_bytes",
            "response_bytes",
            "server",
            "span",
            "stages",
            "table",
            "table_id",
            "tablet",
            "trace",
        ];
        assert_eq!(fields, expected);
    }
}
