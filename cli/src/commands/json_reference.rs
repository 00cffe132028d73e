//! The reference of JSON documents, `docs/reference/json.md`, as a function of what commands write. The test fails when a field is renamed, removed, or
//! gets another type, until the page says so too; with `UPDATE=1` it writes the page.

mod changes;
mod measurements;
mod operations;
mod tablets;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use clap::{Command, CommandFactory as _};
use ebla_client::admin::GroupStatus;
use ebla_client::cluster_events::ClusterEvent;
use ebla_client::locate::LeaderHint;
use ebla_client::metadata::{TabletEvent, TabletEvents};
use ebla_model::Micros;
use ebla_model::capacity::{DiskSpace, Resources, Usage, WriteState};
use ebla_model::cell::{Cell, FamilyName, Row};
use ebla_model::clock_offset::ClockState;
use ebla_model::id::{Generation, GroupId, ServerId, TableId, TabletId, Term};
use ebla_model::key::{KeyRange, RowKey};
use ebla_model::memory_groups::MemoryGroups;
use ebla_model::metadata::{GroupDescriptor, TabletDescriptor};
use ebla_model::scan_cache::ScanCacheState;
use ebla_model::schema::TableName;
use ebla_model::scrub::ScrubState;
use ebla_model::sync_delay::SyncState;
use ebla_model::tablet_load::TabletLoad;
use ebla_proto::operate::{
    Health, LoadedTablet, LoadsReply, ObservedProblem, ProblemKind, Remembered, Shortage, TableLoad, UpgradeProcess,
    UpgradeStatusReply,
};
use ebla_proto::{convert, record};
use serde_json::{Value, json};

use super::{Arguments, documents, row, server, table, tablet, top};
use crate::bundle::Bundle;
use crate::doctor::{self, Diagnosis, Finding, Severity};
use crate::process::ClusterSecurity;
use ebla_client::snapshot::{ClusterSnapshot, ReplicaLag, ServerSnapshot};

const HEAD: &str = "\
# JSON documents

What commands write with `-o json`. With `-o ndjson` a list is written as one line for each element. Fields keep their names, types and meanings; new ones may
be added, so a program must ignore those that it does not know. A value that is not known is `null`, never zero. Keys, qualifiers and values are base64 (RFC 4648), times are
microseconds since 1970 in UTC, sizes are bytes.

The page is generated from the program: `UPDATE=1 cargo test --release -p ebla-cli --lib json_reference` regenerates it. In a path `[]` is each element of a
list.
";

/// The types of a document's fields, by path.
type Fields = BTreeMap<String, BTreeSet<&'static str>>;

fn add(fields: &mut Fields, path: &str, value: &Value) {
    let name = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "list",
        Value::Object(_) => "object",
    };
    fields.entry(path.to_owned()).or_default().insert(name);
    match value {
        Value::Array(elements) => elements.iter().for_each(|element| add(fields, &format!("{path}[]"), element)),
        Value::Object(members) => {
            let dot = if path.is_empty() { "" } else { "." };
            members.iter().for_each(|(name, value)| add(fields, &format!("{path}{dot}{name}"), value));
        }
        _ => {}
    }
}

/// A section: the command, and its fields in these documents, which together have every type of every field.
fn section(command: &str, what: &str, documents: &[Value]) -> String {
    let mut fields = Fields::new();
    documents.iter().for_each(|document| add(&mut fields, "", document));
    let mut text = format!("\n## {command}\n\n{what}\n\n| field | type |\n|---|---|\n");
    for (path, types) in fields {
        let shown = if path.is_empty() { "(the document)".to_owned() } else { format!("`{path}`") };
        // "null" comes last: it is the exception.
        let mut types: Vec<_> = types.into_iter().collect();
        types.sort_by_key(|name| (*name == "null", *name));
        text.push_str(&format!("| {shown} | {} |\n", types.join(" or ")));
    }
    text
}

fn page() -> String {
    let sections = [
        section("ebla status", "The health of the cluster.", &[status(&full_snapshot()), status(&empty_snapshot())]),
        section("ebla server list", "A list of tablet servers, as in `ebla status`.", &servers()),
        section("ebla table list, ebla ls", "A list of names of tables.", &tables()),
        section("ebla tablet list", "A list of tablets; `end` of the last one is null.", &tablets()),
        section("ebla tablet list --load", "A list of tablets with sizes and loads.", &loads_of_tablets()),
        section(
            "ebla tablet events, ebla tablet history",
            "A list of events; `server` is null for the master.",
            &[events_of_tablets()],
        ),
        section(
            "ebla events",
            "A list of events of tablets and of the cluster (`scope`). `server` has recorded it, null for the master; `about_server` is the server of which an event of the cluster tells.",
            &[all_events()],
        ),
        section("ebla group list", "A list of groups.", &groups()),
        section("ebla top", "Servers, tables and tablets, the busiest first. With WHAT only that list.", &tops()),
        section("ebla doctor", "What the checks have found.", &doctors()),
        section("ebla doctor --list", "A list of the checks, with what each compares.", &[doctor::list_json()]),
        section("ebla debug zip", "The parts of the file.", &[bundles()]),
        section("ebla cluster upgrade status", "The cluster version.", &upgrades()),
        section(
            "ebla get, ebla scan, ebla row get, ebla row scan, ebla lookup, ebla read",
            "A list of rows; with `-o ndjson` a line for each row.",
            &[rows()],
        ),
        section("ebla count, ebla row count", "The number of rows.", &[row::count_json(7)]),
        section("ebla version", "The program.", &[documents::version()]),
    ];
    let others = [
        operations::documents(),
        tablets::documents(),
        changes::documents(),
        measurements::documents(),
        super::mt::documents(),
    ];
    let others: String =
        others.into_iter().flatten().map(|(command, what, documents)| section(command, what, &documents)).collect();
    format!("{HEAD}{}{others}", sections.concat())
}

fn full_server() -> ServerSnapshot {
    let usage = Some(Usage { used: 1, limit: 2 });
    ServerSnapshot {
        id: 1,
        address: Some("host:1".to_owned()),
        is_registered: true,
        is_reachable: true,
        zone: Some("a".to_owned()),
        incarnation: Some(7),
        release: Some("0.1.0".to_owned()),
        replicas: Some(1),
        assigned: Some(1),
        leads: Some(1),
        size_bytes: Some(1),
        log_bytes: Some(1),
        resources: Resources {
            disk: Some(DiskSpace { free_bytes: 1, total_bytes: 2, reserve_bytes: 1 }),
            files: usage,
            memory: usage,
            connections: usage,
            sharers: 1,
        },
        writes: WriteState::Refuses,
        clock: ClockState { offset_micros: Some(1), is_off: true },
        scrub: ScrubState { finished_ago: Some(Duration::from_secs(1)), ..ScrubState::default() },
        sync: SyncState { delay: Some(Duration::from_millis(1)), is_slow: true },
        scan_cache: Some(ScanCacheState::default()),
        memory_groups: Some(MemoryGroups::default()),
        reads_per_second: Some(1),
        writes_per_second: Some(1),
        lag: Some(ReplicaLag::default()),
        ..ServerSnapshot::default()
    }
}

fn full_snapshot() -> ClusterSnapshot {
    let problem =
        |server, tablet| ObservedProblem { kind: ProblemKind::SlowDisk.into(), server, tablet, since_micros: 1 };
    ClusterSnapshot {
        cluster: Some("00".to_owned()),
        master: Some("host:0".to_owned()),
        master_epoch: Some(1),
        master_lost: Some(Duration::from_secs(1)),
        tables: Some(1),
        tablets: Some(1),
        tablets_led: Some(1),
        health: Some(Health {
            shortages: vec![Shortage::default()],
            without_leader_first: vec![7],
            behind: vec!["why".to_owned()],
            ..Health::default()
        }),
        remembered: Some(Remembered::default()),
        servers: vec![full_server(), ServerSnapshot::default()],
        time: Some(Micros::new(1)),
        problems: vec![problem(0, 1), problem(1, 0)],
        ..ClusterSnapshot::default()
    }
}

fn empty_snapshot() -> ClusterSnapshot {
    let error = "METADATA cannot be read".to_owned();
    ClusterSnapshot { metadata_error: Some(error), master_error: Some("none".to_owned()), ..ClusterSnapshot::default() }
}

fn status(snapshot: &ClusterSnapshot) -> Value {
    let mut status = documents::status(snapshot, ClusterSecurity::Loopback);
    // A cluster with problems has reasons.
    if let Some(reasons) = status.get_mut("reasons").and_then(Value::as_array_mut) {
        reasons.push(json!("why"));
    }
    status
}

fn tables() -> [Value; 1] {
    [table::names_json(&[TableName::from_parts("p", "i", "web").unwrap()])]
}

fn servers() -> [Value; 1] {
    [json!([server::to_json(&full_server()), server::to_json(&ServerSnapshot::default())])]
}

fn descriptors() -> [TabletDescriptor; 2] {
    let (left, right) = KeyRange::all().split_at(&RowKey::new("m")).unwrap();
    [left, right].map(|range| TabletDescriptor::initial(TableId::new(5), TabletId::new(7), range, &[ServerId::new(1)]))
}

fn tablets() -> [Value; 1] {
    let leader = LeaderHint { server: ServerId::new(1), term: Term::new(1) };
    let [left, right] = descriptors();
    [json!([tablet::to_json(&left, Some(leader)), tablet::to_json(&right, None)])]
}

fn loads_of_tablets() -> [Value; 1] {
    let load = TabletLoad { hot_row: Some(RowKey::new("k")), ..TabletLoad::default() };
    let [left, right] = descriptors();
    [json!([tablet::load_json(&left, Some(&(1, load))), tablet::load_json(&right, None)])]
}

fn tablet_events() -> Vec<TabletEvents> {
    let [descriptor, _] = descriptors();
    let event = |server| TabletEvent {
        time: Micros::new(1),
        what: "split".to_owned(),
        cause: "size".to_owned(),
        detail: String::new(),
        server,
        tablet: TabletId::new(7),
        generation: Generation::new(1),
    };
    let events = vec![event(None), event(Some(ServerId::new(1)))];
    vec![TabletEvents { descriptor, events }]
}

fn events_of_tablets() -> Value {
    documents::events(tablet_events(), 9)
}

fn all_events() -> Value {
    let of_cluster = |server, table| ClusterEvent {
        number: 1,
        time: Micros::new(1),
        what: "drain-requested".to_owned(),
        cause: "operator".to_owned(),
        server,
        table,
        detail: String::new(),
    };
    let of_cluster = vec![of_cluster(Some(ServerId::new(1)), None), of_cluster(None, Some(TableId::new(5)))];
    documents::all_events(tablet_events(), of_cluster)
}

fn groups() -> [Value; 1] {
    let group = |leader| GroupStatus {
        group: GroupDescriptor::initial(GroupId::new(4), &[ServerId::new(1)]),
        leader,
        tablets: 1,
        size_bytes: 1,
    };
    [json!([documents::group(&group(None)), documents::group(&group(Some(ServerId::new(1))))])]
}

fn tops() -> [Value; 2] {
    let load = |hot_row: Option<&'static str>| {
        let load = record::TabletLoad { hot_row: hot_row.map(Into::into), ..record::TabletLoad::default() };
        Some(load)
    };
    let [left, right] = descriptors().map(|tablet| Some(convert::tablet_record_to_proto(&tablet)));
    let loads = LoadsReply {
        tables: vec![TableLoad::default()],
        tablets: vec![
            LoadedTablet { tablet: left, load: load(Some("k")), ..LoadedTablet::default() },
            LoadedTablet { tablet: right, load: load(None), ..LoadedTablet::default() },
        ],
        ..LoadsReply::default()
    };
    [top::document(full_snapshot(), loads.clone()), top::document(ClusterSnapshot::default(), loads)]
}

fn doctors() -> [Value; 1] {
    let finding = |since| Finding {
        check: "lag",
        page: None,
        severity: Severity::Warning,
        place: String::new(),
        since,
        problem: String::new(),
        next_step: String::new(),
    };
    let findings = vec![finding(None), finding(Some(Micros::new(1)))];
    [Diagnosis { findings, not_checked: vec![("quota", "why".to_owned())] }.to_json()]
}

fn bundles() -> Value {
    let mut bundle = Bundle::default();
    bundle.add("a", Ok(Vec::new()));
    bundle.add("b", Err("why".to_owned()));
    bundle.to_json()
}

fn upgrades() -> [Value; 2] {
    let process = |server, registered| UpgradeProcess {
        server,
        address: if registered { "host:1".to_owned() } else { String::new() },
        release: if registered { "0.1.0".to_owned() } else { String::new() },
        registered,
        ..UpgradeProcess::default()
    };
    let reply = UpgradeStatusReply {
        next_version: 2,
        obstacles: vec!["why".to_owned()],
        activates_in_millis: Some(1),
        processes: vec![process(0, true), process(1, false)],
        ..UpgradeStatusReply::default()
    };
    let done = UpgradeStatusReply { next_version: 0, activates_in_millis: None, ..reply.clone() };
    [documents::versions(&reply), documents::versions(&done)]
}

fn rows() -> Value {
    let cell = Cell {
        family: FamilyName::new("f").unwrap(),
        qualifier: "q".into(),
        timestamp: Micros::new(1),
        value: "v".into(),
        labels: Vec::new(),
    };
    json!([row::row_json(&Row { key: RowKey::new("k"), cells: vec![cell] })])
}

#[test]
fn the_page_matches_the_documents() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/json.md");
    let expected = page();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &expected).unwrap();
    }
    let actual = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = || expected.lines().zip(actual.lines()).find(|(wanted, is)| wanted != is);
    assert!(
        actual == expected,
        "docs/reference/json.md does not match what commands write; first difference: {:?}\n\
         UPDATE=1 cargo test --release -p ebla-cli --lib json_reference    regenerates it",
        differs()
    );
}

/// Commands that have `-o` by an option of all commands of `ebla mt`, and write no data.
const WITHOUT_DATA: [&str; 1] = ["ebla mt publish"];

/// The commands with `-o`, without those that only have subcommands.
fn commands_with_output() -> BTreeSet<String> {
    fn add(command: &Command, found: &mut BTreeSet<String>) {
        if command.get_arguments().any(|arg| arg.get_id() == "output") && !command.is_subcommand_required_set() {
            found.extend(command.get_bin_name().map(ToOwned::to_owned));
        }
        let subcommands = command.get_subcommands().filter(|one| one.get_name() != "help" && !one.is_hide_set());
        subcommands.for_each(|one| add(one, found));
    }
    let mut program = Arguments::command();
    program.build();
    let mut found = BTreeSet::new();
    add(&program, &mut found);
    found
}

#[test]
fn the_sections_are_of_all_commands_with_output() {
    let page = page();
    let titles = page.lines().filter_map(|line| line.strip_prefix("## ")).flat_map(|title| title.split(", "));
    let name = |title: &str| title.split(" --").next().and_then(|text| text.split(" (").next()).map(str::to_owned);
    let described: BTreeSet<String> = titles.filter_map(name).collect();
    let expected: BTreeSet<String> =
        commands_with_output().into_iter().filter(|command| !WITHOUT_DATA.contains(&command.as_str())).collect();
    let unknown: Vec<_> = described.difference(&expected).collect();
    let missing: Vec<_> = expected.difference(&described).collect();
    assert!(unknown.is_empty(), "no commands with -o: {unknown:?}");
    assert!(missing.is_empty(), "without a section: {missing:?}");
}

#[test]
fn the_types_of_several_documents_are_joined() {
    let text = section("x", "y", &[json!({"a": [{"b": 1}, {"b": null}]}), json!({"a": []})]);
    let rows: Vec<&str> = text.lines().filter(|line| line.starts_with("| ") && !line.contains("field")).collect();
    assert_eq!(
        rows,
        ["| (the document) | object |", "| `a` | list |", "| `a[]` | object |", "| `a[].b` | number or null |"]
    );
}
