//! The documents of commands of operators and of schemas, for the reference.

use std::time::Duration;

use ebla_client::StoredView;
use ebla_client::admin::ExecutionMode;
use ebla_client::heat::{HotTablet, KeyHeat, KeyHeatColumn};
use ebla_client::locate::{Hop, LeaderHint, Level, Source};
use ebla_client::metadata::MetadataTablet;
use ebla_model::Micros;
use ebla_model::access::{AuthorizedView, Policy};
use ebla_model::gc::GcRule;
use ebla_model::heat::HeatMetric;
use ebla_model::id::{GroupId, ServerId, TableId, TabletId, Term};
use ebla_model::key::{KeyRange, RowKey};
use ebla_model::metadata::TabletDescriptor;
use ebla_model::schema::{Protection, TableName};
use ebla_proto::operate::{
    CheckFinding, CheckReply, DescribeClusterReply, DrainServerReply, DrainedReplica, FamilyCost, LocalityGroup,
    RecoverReply, RecoverTabletsReply, RecoveredGroup, TableUsageReply, TabletCost,
};
use ebla_proto::record::{self, ClusterRegistration};
use ebla_proto::trace::{Batch, Follower, Record, StageTime};
use serde_json::{Value, json};

use crate::commands::table::{Description, families_json};
use crate::commands::{
    check, config, documents, hot, iam, locality_group as groups, meta, quota, recover, server, tablet, view,
};
use crate::config::{Described, Origin};

/// The command, what its document is, and documents that together have every type of every field.
pub(super) fn documents() -> Vec<(&'static str, &'static str, Vec<Value>)> {
    vec![
        (
            "ebla slow, ebla trace tail",
            "A list of operations; `trace tail` writes a document for each. `server` is null for the master.",
            vec![slow()],
        ),
        (
            "ebla cluster describe, ebla cluster list",
            "A cluster, or a list of such documents. All but `id` and `registered` are null without a registration.",
            registrations(),
        ),
        ("ebla check", "What was compared, and what is wrong.", vec![check::to_json(&check_reply())]),
        ("ebla recover", "What was restored in etcd.", vec![recover::to_json(&recover_reply(), ExecutionMode::DryRun)]),
        ("ebla tablet recover", "The groups that were recovered from one replica each.", vec![tablets_recovered()]),
        ("ebla server drain", "What the drain moves; `to` is null where that is not known.", drains()),
        (
            "ebla table describe, ebla table create, ebla table update, ebla table quota set, ebla table quota remove, ebla createtable",
            "A table. Families are by name, here `FAMILY`; so are locality groups. `tablet_usage` only with `ebla table describe --tablets`.",
            tables(),
        ),
        (
            "ebla family list, ebla ls (of a table)",
            "Families by name, here `FAMILY`; `gc` is null without a rule.",
            vec![families_json(&families()), families_json(&without_rule())],
        ),
        (
            "ebla table locality-group describe, ebla table locality-group set, ebla table locality-group move, ebla table locality-group remove",
            "Groups by name, here `GROUP`, with options by name; the sizes are absent while they are not known.",
            vec![locality_groups()],
        ),
        ("ebla table hot", "A heat map: buckets of keys, and the value of each bucket by time.", vec![heat()]),
        (
            "ebla table hot (without a table)",
            "A list of tablets in times in which they were busy; `tablet` is null if the name has no number.",
            hot_tablets(),
        ),
        ("ebla meta list", "A list of the tablets of METADATA.", metadata_tablets()),
        ("ebla meta lookup", "The tablet of a key, and the way to it; a document for each lookup.", located()),
        ("ebla iam get, ebla iam set", "A policy, as Google's tools show it.", vec![iam::to_json(&policy())]),
        (
            "ebla view get, ebla view create, ebla view update",
            "An authorized view. Families are by name, here `f` and `g`; keys and qualifiers are escaped, not base64.",
            vec![view::to_json(&stored_view())],
        ),
        ("ebla config show", "The options of a process, with their origins.", configurations()),
    ]
}

fn slow() -> Value {
    let follower =
        |is_measured| Follower { server: 2, sent_micros: 1, answered_micros: 2, is_measured, ..Follower::default() };
    let full = Record {
        server: 1,
        kept: "slow".to_owned(),
        origin: "data".to_owned(),
        method: "MutateRow".to_owned(),
        trace_low: 1,
        span: 2,
        parent: 1,
        table: "web".to_owned(),
        table_id: 3,
        tablet: 4,
        group: 5,
        leader: 1,
        batch: Some(Batch { term: 1, index: 2, writes: 3 }),
        stages: vec![StageTime { stage: "sync".to_owned(), ..StageTime::default() }],
        followers: vec![follower(true), follower(false)],
        ..Record::default()
    };
    json!([documents::slow_operation(&full), documents::slow_operation(&Record::default())])
}

fn registrations() -> Vec<Value> {
    let registration = ClusterRegistration { releases: vec!["0.1.0".to_owned()], ..ClusterRegistration::default() };
    let known = DescribeClusterReply { cluster: vec![0; 16].into(), age_millis: 1, registration: Some(registration) };
    let unknown = DescribeClusterReply { registration: None, ..known.clone() };
    vec![documents::registration(&known), documents::registration(&unknown)]
}

fn check_reply() -> CheckReply {
    CheckReply {
        silent_servers: vec![1],
        repaired: vec!["what".to_owned()],
        findings: vec![CheckFinding { problem: "what".to_owned(), next_step: "how".to_owned(), repairable: true }],
        ..CheckReply::default()
    }
}

fn recover_reply() -> RecoverReply {
    RecoverReply { servers: vec![1], steps: vec!["what".to_owned()], findings: vec!["why".to_owned()] }
}

fn tablets_recovered() -> Value {
    let group = RecoveredGroup {
        lost: vec![record::Replica::default()],
        tablets: vec![record::TabletRecord::default()],
        ..RecoveredGroup::default()
    };
    let reply = RecoverTabletsReply { groups: vec![group], given_up_groups: vec![1], lost_servers: vec![1] };
    tablet::recover::to_json(&reply, ExecutionMode::Execute)
}

fn drains() -> Vec<Value> {
    let replica = |to| DrainedReplica { group: 1, replica: 1, to, ..DrainedReplica::default() };
    let replies = [
        DrainServerReply { replicas: vec![replica(2), replica(0)], ..DrainServerReply::default() },
        DrainServerReply { obstacle: "why".to_owned(), ..DrainServerReply::default() },
    ];
    replies.iter().map(|reply| server::drain::to_json(ServerId::new(1), reply)).collect()
}

fn families() -> Vec<(String, Option<GcRule>)> {
    vec![("FAMILY".to_owned(), Some(GcRule::MaxVersions(1)))]
}

fn without_rule() -> Vec<(String, Option<GcRule>)> {
    vec![("FAMILY".to_owned(), None)]
}

fn tables() -> Vec<Value> {
    let quota = |stored_bytes, cells| record::Quota {
        limits: Some(record::QuotaLimits { stored_bytes, cells }),
        ..record::Quota::default()
    };
    let cost = |quota| FamilyCost { family: "FAMILY".to_owned(), usage: None, quota };
    let tablet = |end: Option<&'static [u8]>| {
        let range = record::KeyRange { end: end.map(Into::into), ..record::KeyRange::default() };
        let tablet = record::TabletRecord { range: Some(range), ..record::TabletRecord::default() };
        TabletCost { tablet: Some(tablet), families: vec![cost(None)] }
    };
    let usage = |quota: Option<record::Quota>| TableUsageReply {
        quota,
        families: vec![cost(quota)],
        tablets: vec![tablet(Some(b"k")), tablet(None)],
        unknown_tablets: 0,
    };
    vec![
        Description::example(families(), Some(usage(Some(quota(Some(1), None))))).json(),
        Description::example(families(), Some(usage(Some(quota(None, Some(1)))))).json(),
        Description::example(without_rule(), Some(usage(None))).json(),
        json!({"tablet_usage": quota::tablets_json(&usage(None))}),
    ]
}

fn locality_groups() -> Value {
    let bytes = Some(record::StoredBytes { data: 1, files: 1 });
    let group = LocalityGroup {
        name: "GROUP".to_owned(),
        families: vec!["f".to_owned()],
        options: "compression=zstd".to_owned(),
        bytes,
    };
    groups::to_json(&[group])
}

fn heat() -> Value {
    let heat = KeyHeat {
        buckets: vec![(RowKey::EMPTY, None), (RowKey::new("k"), Some(TabletId::new(7)))],
        columns: vec![KeyHeatColumn { start: Micros::new(1), values: vec![1, 2], other: 0 }],
        step: Duration::from_secs(60),
        findings: vec!["what".to_owned()],
    };
    hot::to_json(&heat, HeatMetric::Writes)
}

fn hot_tablets() -> Vec<Value> {
    let tablet = |name: &str| HotTablet {
        table: TableName::from_parts("p", "i", "t").unwrap(),
        name: name.to_owned(),
        start_key: String::new(),
        end_key: String::new(),
        start: Micros::new(1),
        end: Micros::new(2),
        cpu_percent: 1.0,
    };
    vec![json!([hot::tablet_json(&tablet("hotTablets/7-1")), hot::tablet_json(&tablet("x"))])]
}

fn descriptor(range: KeyRange) -> TabletDescriptor {
    TabletDescriptor::initial(TableId::new(1), TabletId::new(2), range, &[ServerId::new(1)])
}

fn metadata_tablets() -> Vec<Value> {
    let leader = Some(LeaderHint { server: ServerId::new(1), term: Term::new(1) });
    let bounded = KeyRange::new(RowKey::EMPTY, Some(RowKey::new("k"))).unwrap();
    let tablet =
        |range, leader, size_bytes| MetadataTablet { descriptor: descriptor(range), leader, rows: 1, size_bytes };
    let listed = [tablet(bounded, leader, Some(1)), tablet(KeyRange::all(), None, None)];
    vec![json!(listed.iter().map(meta::tablet_json).collect::<Vec<_>>())]
}

fn located() -> Vec<Value> {
    let hop = Hop {
        level: Level::Root,
        source: Source::Cache,
        tablet: TabletId::ROOT,
        group: GroupId::new(1),
        round_trips: 1,
        took: Duration::from_micros(1),
    };
    let bounded = KeyRange::new(RowKey::EMPTY, Some(RowKey::new("k"))).unwrap();
    vec![
        meta::located_json(&descriptor(bounded), Some(1), &[hop]),
        meta::located_json(&descriptor(KeyRange::all()), None, &[]),
    ]
}

fn policy() -> Policy {
    Policy::new(["roles/bigtable.user=subject:bob"].map(|text| iam::parse_binding(text).unwrap())).unwrap()
}

fn stored_view() -> StoredView {
    StoredView {
        name: "projects/p/instances/i/tables/t/authorizedViews/v".parse().unwrap(),
        view: AuthorizedView { subset: view::example_subset(), protection: Protection::On, policy: Policy::default() },
        etag: "7".to_owned(),
    }
}

fn configurations() -> Vec<Value> {
    let option = |variable: Option<&str>| Described {
        key: "http".to_owned(),
        values: vec!["127.0.0.1:8080".to_owned()],
        origin: Origin::File,
        variable: variable.map(str::to_owned),
        is_reloadable: false,
    };
    let file = crate::config::ConfigFile::parse(std::path::Path::new("x.toml"), "http = \"127.0.0.1:8080\"").unwrap();
    let options = [option(Some("EBLA_HTTP")), option(None)];
    vec![config::document(&options, Some(&file)), config::document(&options, None)]
}
