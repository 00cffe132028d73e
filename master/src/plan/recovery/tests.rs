//! Recoveries of a Chubby with some tables, from the evidence of three servers with one group.

use ebla_model::id::{Generation, LogIndex, SchemaVersion, Term};
use ebla_model::key::KeyRange;

use super::*;
use crate::cluster::{GroupPlan, GroupProgress, Operation, OperationKind};

const CLUSTER: ClusterId = ClusterId::new(7);
const GROUP: GroupId = GroupId::new(3);

fn name(table: &str) -> TableName {
    TableName::from_parts("p", "i", table).unwrap()
}

fn schema(table: u64, named: &str, version: u64) -> TableSchema {
    let schema = TableSchema::new(TableId::new(table), name(named), Vec::new()).unwrap();
    TableSchema { version: SchemaVersion::new(version), state: TableState::Active, ..schema }
}

fn at(index: u64) -> LogId {
    LogId { term: Term::new(1), index: LogIndex::new(index) }
}

/// Group 3 on servers 1 to 3, as replica `replica` has applied it, with a tablet of each of these tables.
fn group(replica: u64, applied: u64, schemas: &[TableSchema]) -> GroupEvidence {
    let group = GroupDescriptor::initial(GROUP, &[1, 2, 3].map(ServerId::new));
    let tablet =
        |schema: &TableSchema| group.new_tablet(schema.table, TabletId::new(schema.table.get()), KeyRange::all());
    GroupEvidence {
        replica: ReplicaId::new(replica),
        applied: at(applied),
        tablets: schemas.iter().map(tablet).collect(),
        schemas: schemas.to_vec(),
        dropped: BTreeSet::new(),
        group,
    }
}

fn server(group: GroupEvidence) -> ServerEvidence {
    ServerEvidence {
        cluster: Some(CLUSTER),
        epoch: MasterEpoch::new(40),
        highest: HighestIds { table: TableId::new(5), ..HighestIds::default() },
        groups: BTreeMap::from([(group.group.group, group)]),
        schemas: Vec::new(),
        registered: [1, 2, 3].map(ServerId::new).into(),
        active_version: ClusterVersion::RECORDED,
        access: BTreeMap::new(),
    }
}

/// Servers 1 to 3, which all have applied the same.
fn servers(schemas: &[TableSchema]) -> BTreeMap<ServerId, ServerEvidence> {
    (1..=3).map(|number| (ServerId::new(number), server(group(number, 9, schemas)))).collect()
}

/// A Chubby with these tables and their names, that gives every id above 1,000.
fn chubby(tables: &[TableSchema]) -> ChubbyContent {
    let names = tables.iter().map(|schema| (paths::name(&schema.name), schema.table));
    ChubbyContent {
        cluster: Some((CLUSTER, 0)),
        lock: Revision::new(50),
        names: names.collect(),
        access: BTreeSet::new(),
        files: ClusterSnapshot {
            tables: tables.iter().map(|schema| (schema.table, schema.clone())).collect(),
            counters: Some(Counter::ALL.map(|counter| (counter, 2_000)).into()),
            ..ClusterSnapshot::default()
        },
    }
}

fn steps(chubby: &ChubbyContent, evidence: &BTreeMap<ServerId, ServerEvidence>) -> Vec<String> {
    recovery(chubby, evidence, &BTreeSet::new()).unwrap().steps.iter().map(Step::to_string).collect()
}

fn refusal(chubby: &ChubbyContent, evidence: &BTreeMap<ServerId, ServerEvidence>) -> String {
    recovery(chubby, evidence, &BTreeSet::new()).unwrap_err().message
}

#[test]
fn a_complete_chubby_needs_nothing() {
    let tables = [schema(5, "t", 2)];
    let recovery = recovery(&chubby(&tables), &servers(&tables), &BTreeSet::new()).unwrap();
    assert_eq!(recovery, Recovery::default());
}

#[test]
fn a_table_that_is_missing_or_has_an_older_schema_is_written() {
    let evidence = servers(&[schema(5, "t", 2), schema(6, "u", 4)]);
    assert_eq!(
        steps(&chubby(&[schema(6, "u", 3)]), &evidence),
        [
            "write table 6 (projects/p/instances/i/tables/u), schema version 4",
            "write table 5 (projects/p/instances/i/tables/t), schema version 2",
            "write the name projects/p/instances/i/tables/t of table 5",
        ]
    );
    assert_eq!(steps(&chubby(&[schema(5, "t", 2), schema(6, "u", 9)]), &evidence), Vec::<String>::new());
}

#[test]
fn the_replica_that_has_applied_the_most_counts() {
    let (old, new) = (schema(5, "t", 2), schema(6, "u", 1));
    let mut evidence = servers(std::slice::from_ref(&new));
    // This one lags behind: it has a table that was dropped.
    evidence.insert(ServerId::new(1), server(group(1, 4, &[old])));
    assert_eq!(steps(&chubby(&[new]), &evidence), Vec::<String>::new());
}

#[test]
fn a_name_that_another_table_has_is_not_taken_away() {
    let evidence = servers(&[schema(5, "t", 2), schema(6, "t", 1)]);
    let recovered = recovery(&chubby(&[]), &evidence, &BTreeSet::new()).unwrap();
    let shown: Vec<String> = recovered.steps.iter().map(Step::to_string).collect();
    assert_eq!(
        shown,
        [
            "write table 6 (projects/p/instances/i/tables/t), schema version 1",
            "write the name projects/p/instances/i/tables/t of table 6",
            "write table 5 (projects/p/instances/i/tables/t-recovered-5), schema version 2",
            "write the name projects/p/instances/i/tables/t-recovered-5 of table 5",
        ]
    );
    assert!(recovered.findings.iter().any(|finding| finding.contains("t-recovered-5")), "{:?}", recovered.findings);
    let long = "n".repeat(TABLE_ID_BYTES_MAX);
    let evidence = servers(&[schema(5, &long, 2), schema(6, &long, 1)]);
    let renamed = format!("{}-recovered-5", "n".repeat(TABLE_ID_BYTES_MAX - 12));
    assert!(steps(&chubby(&[]), &evidence)[2].contains(&renamed));
}

#[test]
fn a_table_that_a_group_has_dropped_is_deleted_again() {
    let table = schema(5, "t", 2);
    let mut evidence = servers(&[]);
    evidence.values_mut().flat_map(|server| server.groups.values_mut()).for_each(|group| {
        group.dropped.insert(table.table);
    });
    assert_eq!(
        steps(&chubby(std::slice::from_ref(&table)), &evidence),
        ["delete table 5 (projects/p/instances/i/tables/t) again"]
    );
    let mut deleting = chubby(&[TableSchema { state: TableState::Deleting, ..table }]);
    deleting.names.clear();
    assert_eq!(steps(&deleting, &evidence), Vec::<String>::new(), "its deletion is in progress");
}

#[test]
fn a_table_without_tablets_is_reported_and_kept() {
    let recovered = recovery(&chubby(&[schema(5, "t", 2)]), &servers(&[]), &BTreeSet::new()).unwrap();
    assert_eq!(recovered.steps, []);
    assert!(recovered.findings[0].starts_with("table 5 (projects/p/instances/i/tables/t) has no tablet on any server"));
}

#[test]
fn changes_that_chubby_has_again_are_not_repeated() {
    let table = schema(5, "t", 2);
    let mut content = chubby(std::slice::from_ref(&table));
    content.files.behind = Some(vec!["why".to_owned()]);
    let operation = Operation { table: table.table, kind: OperationKind::DropRange(KeyRange::all()) };
    content.files.operations.insert(OperationId::new(8), operation);
    for id in [GROUP, GroupId::new(4)] {
        let group = GroupDescriptor::initial(id, &[ServerId::new(1)]);
        content.files.new_groups.insert(id, GroupPlan { group, progress: GroupProgress::Creating });
    }
    assert_eq!(
        steps(&content, &servers(&[table])),
        [
            "remove the plan of group 3, which exists",
            "remove operation 8, which may have been applied since",
            "allow changes again",
        ]
    );
}

#[test]
fn counters_and_epochs_are_raised_above_everything_in_use() {
    let table = schema(5, "t", 2);
    let mut content = chubby(std::slice::from_ref(&table));
    content.files.counters = Some(Counter::ALL.map(|counter| (counter, 5)).into());
    content.lock = Revision::new(39);
    assert_eq!(
        steps(&content, &servers(std::slice::from_ref(&table))),
        [
            "raise the counter tables to 6",
            "raise the counter tablets to 6",
            "write the record of cluster 00000000000000000000000000000007, with master epochs above 40",
        ]
    );
    content.files.counters = chubby(&[]).files.counters;
    content.cluster = Some((CLUSTER, 2));
    assert_eq!(steps(&content, &servers(&[table])), Vec::<String>::new(), "epoch 41");
}

#[test]
fn an_empty_chubby_gets_everything() {
    let root = GroupDescriptor::initial(GroupId::METADATA, &[1, 2, 3].map(ServerId::new));
    let mut evidence = servers(&[schema(5, "t", 2)]);
    for (number, server) in &mut evidence {
        let tablet = root.tablet(TableId::METADATA, TabletId::ROOT, KeyRange::all(), Generation::new(4));
        let group = GroupEvidence {
            group: root.clone(),
            tablets: vec![tablet],
            schemas: Vec::new(),
            ..group(number.get(), 20, &[])
        };
        server.groups.insert(GroupId::METADATA, group);
    }
    let empty = ChubbyContent { lock: Revision::new(2), ..ChubbyContent::default() };
    assert_eq!(
        steps(&empty, &evidence),
        [
            "raise the counter servers to 4",
            "raise the counter tables to 6",
            "raise the counter groups to 4",
            "raise the counter tablets to 6",
            "write table 5 (projects/p/instances/i/tables/t), schema version 2",
            "write the name projects/p/instances/i/tables/t of table 5",
            "write the root tablet, generation 4",
            "write the record of cluster 00000000000000000000000000000007, with master epochs above 40",
        ]
    );
}

#[test]
fn incomplete_evidence_is_refused() {
    let tables = [schema(5, "t", 2)];
    let content = chubby(&tables);
    assert!(refusal(&content, &BTreeMap::new()).starts_with("no tablet server of a cluster has answered"));
    let mut evidence = servers(&tables);
    evidence.remove(&ServerId::new(2));
    assert!(refusal(&content, &evidence).contains("--without 2"));
    let without = BTreeSet::from([ServerId::new(2)]);
    assert!(recovery(&content, &evidence, &without).is_ok(), "two of three are a majority");
    evidence.get_mut(&ServerId::new(3)).unwrap().groups.clear();
    let refused = recovery(&content, &evidence, &without).unwrap_err();
    assert!(refused.message.starts_with("no majority of the replicas of group 3 runs"), "{refused}");
}

#[test]
fn servers_of_another_cluster_are_refused() {
    let mut evidence = servers(&[]);
    let content = ChubbyContent { cluster: Some((ClusterId::new(8), 0)), ..chubby(&[]) };
    assert!(
        refusal(&content, &evidence).contains("start the master and the servers with the etcd of their own cluster")
    );
    evidence.get_mut(&ServerId::new(2)).unwrap().cluster = Some(ClusterId::new(8));
    assert!(refusal(&content, &evidence).starts_with("the tablet servers belong to different clusters"));
}

#[test]
fn a_server_with_an_id_from_an_empty_chubby_must_stop_first() {
    let mut evidence = servers(&[]);
    let empty = ChubbyContent { lock: Revision::new(2), ..ChubbyContent::default() };
    // Its answer has taken the place of that of the server whose id it has.
    evidence.insert(ServerId::new(1), ServerEvidence::default());
    let refused = refusal(&empty, &evidence);
    assert!(refused.contains("which other servers may have: 1; stop them"), "{refused}");
}

/// Servers with these copies of policies: the text for the path.
fn servers_with_policies(
    schemas: &[TableSchema],
    copies: &[(u64, &str, &'static [u8])],
) -> BTreeMap<ServerId, ServerEvidence> {
    let mut evidence = servers(schemas);
    for (server, path, content) in copies {
        let server = evidence.get_mut(&ServerId::new(*server)).unwrap();
        server.access.insert((*path).to_owned(), Bytes::from_static(content));
    }
    evidence
}

fn policy_findings(recovery: &Recovery) -> Vec<&String> {
    recovery.findings.iter().filter(|finding| finding.contains("policies")).collect()
}

#[test]
fn policies_that_an_emptied_chubby_lacks_are_written_before_the_tables() {
    let table = paths::table_access(TableId::new(5));
    let instance = paths::instance_access("p", "i");
    let gone = paths::table_access(TableId::new(4));
    let copies = [(1, &*table, &b"t"[..]), (2, &table, b"t"), (1, &instance, b"i"), (2, &gone, b"deleted")];
    let evidence = servers_with_policies(&[schema(5, "t", 2)], &copies);
    let empty = ChubbyContent { lock: Revision::new(50), ..ChubbyContent::default() };
    let found = recovery(&empty, &evidence, &BTreeSet::new()).unwrap();
    assert_eq!(
        found.steps[..2],
        [
            Step::WriteAccess(instance.clone(), Bytes::from_static(b"i")),
            Step::WriteAccess(table, Bytes::from_static(b"t"))
        ]
    );
    assert_eq!(found.steps[0].to_string(), "write the policies of instance p/i");
    assert_eq!(found.steps[1].to_string(), "write the policies of table 5");
    let others = found.steps.iter().skip(2).filter(|step| matches!(step, Step::WriteAccess(..)));
    assert_eq!(others.count(), 0, "a table that does not exist gets no policies");
    assert_eq!(policy_findings(&found), Vec::<&String>::new());
}

#[test]
fn authorized_views_that_an_emptied_chubby_lacks_are_written_with_their_policies() {
    let view = paths::view(TableId::new(5), "german");
    let gone = paths::view(TableId::new(4), "old");
    let copies = [(1, &*view, &b"before"[..]), (2, &view, b"now"), (3, &view, b"now"), (2, &gone, b"deleted")];
    let evidence = servers_with_policies(&[schema(5, "t", 2)], &copies);
    let mut chubby = ChubbyContent { lock: Revision::new(50), ..ChubbyContent::default() };
    let found = recovery(&chubby, &evidence, &BTreeSet::new()).unwrap();
    assert_eq!(found.steps[0], Step::WriteAccess(view.clone(), Bytes::from_static(b"now")));
    assert_eq!(found.steps[0].to_string(), "write authorized view german of table 5");
    let views = found.steps.iter().filter(|step| matches!(step, Step::WriteAccess(..))).count();
    assert_eq!(views, 1, "a table that does not exist gets no views");
    let is_table = |step: &Step| matches!(step, Step::WriteTable(_));
    assert!(found.steps.iter().position(is_table) > Some(0), "a table is not without its views for a moment");
    assert!(found.findings.iter().any(|finding| finding.contains("different copies of authorized view german")));
    chubby.access.insert(view);
    let found = recovery(&chubby, &evidence, &BTreeSet::new()).unwrap();
    assert!(!found.steps.iter().any(|step| matches!(step, Step::WriteAccess(..))), "that of Chubby stays");
}

/// Five servers that know table 5, of which the first `with` have this file.
fn five_servers(path: &str, with: u64) -> BTreeMap<ServerId, ServerEvidence> {
    let schema = schema(5, "t", 2);
    let mut evidence = servers(std::slice::from_ref(&schema));
    for number in 1..=5 {
        let known = evidence
            .entry(ServerId::new(number))
            .or_insert_with(|| ServerEvidence { groups: BTreeMap::new(), ..server(group(1, 9, &[])) });
        known.schemas = vec![schema.clone()];
        if number <= with {
            known.access.insert(path.to_owned(), Bytes::from_static(b"content"));
        }
    }
    evidence
}

#[test]
fn a_view_that_most_servers_do_not_have_stays_deleted() {
    let view = paths::view(TableId::new(5), "german");
    let empty = ChubbyContent { lock: Revision::new(50), ..ChubbyContent::default() };
    let recovered = |path: &str, with| {
        let found = recovery(&empty, &five_servers(path, with), &BTreeSet::new()).unwrap();
        let is_written = found.steps.iter().any(|step| matches!(step, Step::WriteAccess(..)));
        let findings: Vec<_> = found.findings.into_iter().filter(|finding| finding.contains("servers")).collect();
        (is_written, findings.join("\n"))
    };
    for with in [1, 2] {
        let (is_written, findings) = recovered(&view, with);
        assert!(!is_written && findings.contains("authorized view german of table 5 is not written"), "{findings}");
        assert!(findings.contains("`ebla view create`"), "{findings}");
    }
    for with in [3, 4] {
        let (is_written, findings) = recovered(&view, with);
        assert!(is_written && findings.contains("have no copies of authorized view german of table 5"), "{findings}");
    }
    let (is_written, findings) = recovered(&view, 5);
    assert!(is_written && !findings.contains("german"), "{findings}");
    // Without policies the lists of families are gone.
    let (is_written, findings) = recovered(&paths::table_access(TableId::new(5)), 1);
    assert!(is_written && findings.contains("4 of the servers that know the table have no policies"), "{findings}");
}

#[test]
fn policies_of_chubby_stay_and_a_complete_chubby_gets_none() {
    let tables = [schema(5, "t", 2)];
    let path = paths::table_access(TableId::new(5));
    let evidence = servers_with_policies(&tables, &[(1, &path, b"old"), (2, &path, b"old")]);
    assert_eq!(recovery(&chubby(&tables), &evidence, &BTreeSet::new()).unwrap(), Recovery::default(), "not behind");
    let mut behind = chubby(&tables);
    behind.files.behind = Some(vec!["restored".to_owned()]);
    behind.access.insert(path);
    let found = recovery(&behind, &evidence, &BTreeSet::new()).unwrap();
    assert!(!found.steps.iter().any(|step| matches!(step, Step::WriteAccess(..))), "{:?}", found.steps);
    assert!(policy_findings(&found)[0].contains("since the backup"), "{:?}", found.findings);
}

#[test]
fn different_and_unknown_policies_are_reported() {
    let path = paths::table_access(TableId::new(5));
    let copies = [(1, &*path, &b"old"[..]), (2, &path, b"new"), (3, &path, b"new")];
    let evidence = servers_with_policies(&[schema(5, "t", 2), schema(6, "u", 1)], &copies);
    let empty = ChubbyContent { lock: Revision::new(50), ..ChubbyContent::default() };
    let found = recovery(&empty, &evidence, &BTreeSet::new()).unwrap();
    assert_eq!(found.steps[0], Step::WriteAccess(path, Bytes::from_static(b"new")));
    let findings = policy_findings(&found);
    assert!(findings[0].starts_with("the servers have different policies of table 5"), "{findings:?}");
    assert!(findings[1].starts_with("no server knows policies of table 6"), "{findings:?}");
    assert_eq!(findings.len(), 2);
}
