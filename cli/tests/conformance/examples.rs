//! Golden scripts through a real connection: what each call answers, to the message.
//!
//! A case may begin with `table FAMILY... [splits KEY...]`, a table of its own, whose families may be aggregates: `NAME:intsum`,
//! `intmin`, `intmax`, `inthll`, `hll` (no input type), `stringhll`. Then each line is a call:
//!
//! | line | call |
//! |---|---|
//! | `write ROW MUTATIONS` | MutateRow; mutations stand between `;`: `set f:q@1=v` (or `@now`), `add f:q@1=5` (or `=bytes(v)`, `=string(v)`), `merge f:q@1=STATE` (or `=null`), `delete f:q [1, 3)`, `delete-family f`, `delete-row`, `unset` |
//! | `bulk ROW MUTATIONS / ROW MUTATIONS` | MutateRows |
//! | `check ROW FILTER then MUTATIONS else MUTATIONS` | CheckAndMutateRow; `-` where there is nothing |
//! | `modify ROW RULES` | ReadModifyWriteRow; `append f:q=v`, `add f:q=1`, `unset` |
//! | `read [ROW or RANGE]... [limit=N] [reversed] [stats] [as=python] [ \| FILTER]` | ReadRows |
//! | `encoded BYTES` | ReadRows with this encoded filter |
//! | `sample [RANGE]`, `ping NAME`, `drop` | SampleRowKeys, PingAndWarm, DeleteTable |
//!
//! `[x*9]` in a line is nine `x`, and mutations after `times=9` are repeated nine times. Filters, ranges and values are written
//! as in the model's scripts. A time that the server chose is shown as `now`.

use std::ops::Bound;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use ebla_model::filter::Filter;
use ebla_proto::admin;
use ebla_proto::convert::filter_to_bytes;
use ebla_proto::data::{self, read_rows_request::RequestStatsView, row_range};
use ebla_proto::services::bigtable_client::BigtableClient;
use ebla_proto::services::bigtable_table_admin_client::BigtableTableAdminClient;
use ebla_runtime::Net;
use prost::Message;
use tonic::transport::Channel;
use tonic::{Request, Status};

use crate::conformance::requests::{family, mutations, parts, rule};
use crate::conformance::{notation, rows, runner, tree};
use crate::support::Up;

const INSTANCE: &str = "projects/examples/instances/examples";
/// Times above are no script's: September 2001, in microseconds.
const NOW_MIN: i64 = 1_000_000_000_000_000;
/// Maximum length of a line of output.
const SHOWN_MAX: usize = 300;

#[test]
fn examples_answer_as_written() {
    let folder = tempfile::tempdir().unwrap();
    let up = Up::start(&folder.path().join("data"), &[]);
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let channels: Vec<_> = tokio.block_on(async { up.addresses.iter().map(|at| Net::tcp().channel(at)).collect() });
    let tables = AtomicUsize::new(0);
    let calls = AtomicUsize::new(0);
    runner::run("conformance", |input| {
        let mut out = Vec::new();
        for line in input {
            let line = repeated(line);
            let (word, rest) = line.split_once(' ').unwrap_or((&line, ""));
            if word == "table" {
                tables.fetch_add(1, Ordering::Relaxed);
            }
            let call = calls.fetch_add(1, Ordering::Relaxed);
            let examples = Examples {
                channel: channels[call % channels.len()].clone(),
                table: format!("t{}", tables.load(Ordering::Relaxed)),
            };
            let said = tokio.block_on(Box::pin(examples.call(word, rest)));
            out.extend(said.unwrap_or_else(|status| vec![refusal(&status, &examples.table)]));
        }
        out
    });
}

/// One call, through one server.
struct Examples {
    channel: Channel,
    table: String,
}

impl Examples {
    async fn call(&self, word: &str, rest: &str) -> Result<Vec<String>, Status> {
        match word {
            "table" => self.make(rest).await.map(|()| Vec::new()),
            "drop" => {
                let request = admin::DeleteTableRequest { name: self.name() };
                BigtableTableAdminClient::new(self.channel.clone()).delete_table(request).await.map(|_| done())
            }
            "write" => self.write(rest).await,
            "bulk" => self.bulk(rest).await,
            "check" => self.check(rest).await,
            "modify" => self.modify(rest).await,
            "read" => self.read(rest).await,
            "encoded" => {
                let filter = Some(notation::bytes(rest));
                self.rows(
                    data::ReadRowsRequest { table_name: self.name(), filter, ..Default::default() },
                    rows::FEATURES,
                )
                .await
            }
            "sample" => self.sample(rest).await,
            "ping" => {
                let request = data::PingAndWarmRequest { name: rest.to_owned(), ..Default::default() };
                self.client().ping_and_warm(request).await.map(|_| done())
            }
            _ => panic!("not a call: {word}"),
        }
    }

    fn client(&self) -> BigtableClient<Channel> {
        BigtableClient::new(self.channel.clone()).max_decoding_message_size(64 << 20)
    }

    fn name(&self) -> String {
        format!("{INSTANCE}/tables/{}", self.table)
    }

    async fn make(&self, line: &str) -> Result<(), Status> {
        let (families, splits) = line.split_once(" splits ").unwrap_or((line, ""));
        let split = |key| admin::create_table_request::Split { key: notation::bytes(key) };
        let request = admin::CreateTableRequest {
            parent: INSTANCE.to_owned(),
            table_id: self.table.clone(),
            table: Some(admin::Table {
                column_families: families.split_whitespace().map(family).collect(),
                ..Default::default()
            }),
            initial_splits: splits.split_whitespace().map(split).collect(),
        };
        BigtableTableAdminClient::new(self.channel.clone()).create_table(request).await.map(drop)
    }

    async fn write(&self, line: &str) -> Result<Vec<String>, Status> {
        let (row, changes) = row_and_rest(line);
        let mutations = mutations(changes);
        let request = data::MutateRowRequest { table_name: self.name(), row_key: row, mutations, ..Default::default() };
        self.client().mutate_row(request).await.map(|_| done())
    }

    async fn bulk(&self, line: &str) -> Result<Vec<String>, Status> {
        let entry = |text: &str| {
            let (row_key, changes) = row_and_rest(text.trim());
            data::mutate_rows_request::Entry { row_key, mutations: mutations(changes), idempotency: None }
        };
        let entries = line.split(" / ").filter(|text| !text.is_empty()).map(entry).collect();
        let request = data::MutateRowsRequest { table_name: self.name(), entries, ..Default::default() };
        let mut answers = self.client().mutate_rows(request).await?.into_inner();
        let mut out = Vec::new();
        while let Some(message) = answers.message().await? {
            for entry in message.entries {
                let status = entry.status.unwrap_or_default();
                let said = match status.code {
                    0 => "done".to_owned(),
                    code => refusal(&Status::new(tonic::Code::from_i32(code), status.message), &self.table),
                };
                out.push(format!("{}: {said}", entry.index));
            }
        }
        Ok(out)
    }

    async fn check(&self, line: &str) -> Result<Vec<String>, Status> {
        let (row_key, rest) = row_and_rest(line);
        let (predicate, ways) = rest.split_once(" then ").unwrap();
        let (then, otherwise) = ways.split_once(" else ").unwrap();
        let request = data::CheckAndMutateRowRequest {
            table_name: self.name(),
            row_key,
            predicate_filter: filter(predicate),
            true_mutations: mutations(then),
            false_mutations: mutations(otherwise),
            ..Default::default()
        };
        let answer = self.client().check_and_mutate_row(request).await?.into_inner();
        Ok(vec![if answer.predicate_matched { "matched" } else { "not matched" }.to_owned()])
    }

    async fn modify(&self, line: &str) -> Result<Vec<String>, Status> {
        let (row_key, rules) = row_and_rest(line);
        let rules = parts(rules).map(rule).collect();
        let request = data::ReadModifyWriteRowRequest { table_name: self.name(), row_key, rules, ..Default::default() };
        let row = self.client().read_modify_write_row(request).await?.into_inner().row.unwrap_or_default();
        let mut cells = Vec::new();
        for family in &row.families {
            for column in &family.columns {
                cells.extend(column.cells.iter().map(|cell| {
                    shown(&family.name, &column.qualifier, cell.timestamp_micros, &cell.value, &cell.labels)
                }));
            }
        }
        Ok(vec![line_of(&row.key, &cells)])
    }

    async fn read(&self, line: &str) -> Result<Vec<String>, Status> {
        let (words, predicate) = line.split_once("| ").unwrap_or((line, "-"));
        let mut request =
            data::ReadRowsRequest { table_name: self.name(), filter: filter(predicate), ..Default::default() };
        let mut features = rows::FEATURES;
        let mut set = data::RowSet::default();
        for word in asked(words) {
            match word.split_once('=') {
                Some(("limit", limit)) => request.rows_limit = limit.parse().unwrap(),
                Some(("as", "python")) => features = "",
                _ if word == "reversed" => request.reversed = true,
                _ if word == "stats" => request.request_stats_view = RequestStatsView::RequestStatsFull.into(),
                _ if word.starts_with(['[', '(']) => set.row_ranges.push(range(&word)),
                _ => set.row_keys.push(notation::bytes(&word)),
            }
        }
        request.rows = Some(set);
        self.rows(request, features).await
    }

    async fn rows(&self, request: data::ReadRowsRequest, features: &str) -> Result<Vec<String>, Status> {
        let mut request = Request::new(request);
        if !features.is_empty() {
            request.metadata_mut().insert("bigtable-features", features.parse().unwrap());
        }
        let answer = self.client().read_rows(request).await?;
        let timing = answer.metadata().get("server-timing").map(|timing| timing.to_str().unwrap().to_owned());
        let timing = timing.expect("an answer says how long it took");
        timing.strip_prefix("gfet4t7; dur=").expect("clients look for this").parse::<u64>().unwrap();
        let place = answer.metadata().get_bin("x-goog-ext-425905942-bin").expect("an answer says where it was served");
        let place = data::ResponseParams::decode(place.to_bytes().unwrap()).unwrap();
        assert_eq!((place.cluster_id.as_deref(), place.zone_id.as_deref()), (Some("ebla"), Some("local")));
        let read = rows::collect(answer.into_inner()).await?;
        let mut out: Vec<_> =
            read.rows.iter().map(|(key, cells)| line_of(key, &cells.iter().map(cell).collect::<Vec<_>>())).collect();
        if let Some(full) = read.stats {
            let counts = full.read_iteration_stats.unwrap_or_default();
            out.push(format!(
                "rows {} of {}, cells {} of {}, latency {}",
                counts.rows_returned_count,
                counts.rows_seen_count,
                counts.cells_returned_count,
                counts.cells_seen_count,
                if full.request_latency_stats.is_some_and(|stats| stats.frontend_server_latency.is_some()) {
                    "present"
                } else {
                    "missing"
                },
            ));
        }
        if out.is_empty() {
            out.push("nothing".to_owned());
        }
        Ok(out)
    }

    async fn sample(&self, line: &str) -> Result<Vec<String>, Status> {
        let row_range = (!line.is_empty()).then(|| range(line));
        let request = data::SampleRowKeysRequest { table_name: self.name(), row_range, ..Default::default() };
        let mut answers = self.client().sample_row_keys(request).await?.into_inner();
        let (mut keys, mut offset) = (Vec::new(), 0);
        while let Some(sample) = answers.message().await? {
            assert!(sample.offset_bytes >= offset, "offsets go back");
            offset = sample.offset_bytes;
            keys.push(format!("{:?}", notation::text(&sample.row_key)));
        }
        Ok(vec![keys.join(" ")])
    }
}

fn done() -> Vec<String> {
    vec!["done".to_owned()]
}

/// Code and message, with the table called TABLE.
fn refusal(status: &Status, table: &str) -> String {
    let message = status.message().replace(&format!("{INSTANCE}/tables/{table}"), "TABLE");
    cut(format!("{:?}: {message}", status.code()))
}

fn cut(text: String) -> String {
    match text.char_indices().nth(SHOWN_MAX) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text,
    }
}

fn line_of(key: &[u8], cells: &[String]) -> String {
    cut(format!("{}: {}", notation::text(key), cells.join(" ")))
}

fn cell(cell: &rows::Cell) -> String {
    shown(&cell.family, &cell.qualifier, cell.timestamp_micros, &cell.value, &cell.labels)
}

fn shown(family: &str, qualifier: &[u8], micros: i64, value: &[u8], labels: &[String]) -> String {
    let time =
        if micros >= NOW_MIN { "now".to_owned() } else { notation::millis_text(ebla_model::Micros::new(micros)) };
    let labels: String = labels.iter().map(|label| format!("#{label}")).collect();
    format!("{family}:{}@{time}={}{labels}", notation::text(qualifier), notation::text(value))
}

/// Writes `[x*9]` out.
fn repeated(line: &str) -> String {
    let mut out = String::new();
    let mut rest = line;
    while let Some((before, after)) = rest.split_once('[') {
        out.push_str(before);
        let inside = after.split_once(']').and_then(|(inside, tail)| {
            let (what, count) = inside.split_once('*')?;
            Some((what.repeat(count.parse().ok()?), tail))
        });
        match inside {
            Some((text, tail)) => {
                out.push_str(&text);
                rest = tail;
            }
            None => {
                out.push('[');
                rest = after;
            }
        }
    }
    out + rest
}

fn row_and_rest(line: &str) -> (Bytes, &str) {
    let (row, rest) = line.split_once(' ').unwrap_or((line, ""));
    (notation::bytes(row), rest)
}

fn filter(text: &str) -> Option<Bytes> {
    (text.trim() != "-").then(|| filter_to_bytes(&tree::parse(text.trim())))
}

/// Words, of which ranges are one each.
fn asked(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut rest = line.trim();
    while !rest.is_empty() {
        let end = match rest.starts_with(['[', '(']) {
            true => rest.find([']', ')']).unwrap() + 1,
            false => rest.find(' ').unwrap_or(rest.len()),
        };
        words.push(rest[..end].to_owned());
        rest = rest[end..].trim_start();
    }
    words
}

fn range(text: &str) -> data::RowRange {
    use row_range::{EndKey, StartKey};
    let Filter::ValueRange { start, end } = tree::parse(&format!("values({text})")) else {
        panic!("not a range: {text}")
    };
    let start_key = match start {
        Bound::Unbounded => None,
        Bound::Included(key) => Some(StartKey::StartKeyClosed(key)),
        Bound::Excluded(key) => Some(StartKey::StartKeyOpen(key)),
    };
    let end_key = match end {
        Bound::Unbounded => None,
        Bound::Included(key) => Some(EndKey::EndKeyClosed(key)),
        Bound::Excluded(key) => Some(EndKey::EndKeyOpen(key)),
    };
    data::RowRange { start_key, end_key }
}
