//! The findings of a check: gaps, overlaps, replicas that differ, actions.

use ebla_model::id::{GroupId, LogIndex, Term};
use ebla_model::key::KeyRange;
use ebla_model::metadata::GroupDescriptor;
use ebla_model::time::Micros;

use super::*;
use crate::cluster::{GroupPlan, GroupProgress, ReplicaReport, Role, Server, ServerReport};

fn tablet(id: u64, start: &'static str, end: Option<&'static str>) -> TabletDescriptor {
    let range = KeyRange::new(RowKey::new(start), end.map(RowKey::new)).unwrap();
    TabletDescriptor::initial(TableId::new(7), TabletId::new(id), range, &[ServerId::new(1)])
}

fn problems(findings: &[Finding]) -> Vec<&str> {
    findings.iter().map(|finding| finding.problem.as_str()).collect()
}

fn gaps_of(tablets: &[TabletDescriptor]) -> Vec<String> {
    gaps(TableId::new(7), tablets.iter().collect()).into_iter().map(|finding| finding.problem).collect()
}

#[test]
fn tablets_cover_all_keys_once() {
    assert_eq!(gaps_of(&[tablet(2, "m", None), tablet(1, "", Some("m"))]), [""; 0]);
    let without = |rows: &str| format!("table 7: no replica has reported the tablets of the rows {rows}");
    assert_eq!(gaps_of(&[]), [without(&format!("{} to the end", RowKey::default()))]);
    let key = |key: &'static str| RowKey::new(key).to_string();
    assert_eq!(
        gaps_of(&[tablet(1, "", Some("c")), tablet(2, "f", Some("m"))]),
        [without(&format!("{} to {}", key("c"), key("f"))), without(&format!("{} to the end", key("m")))]
    );
    let overlap = gaps_of(&[tablet(1, "", Some("m")), tablet(2, "c", Some("f")), tablet(3, "m", None)]);
    assert_eq!(overlap.len(), 1, "{overlap:?}");
    assert!(overlap.concat().contains("tablet 2 has rows of the tablet before it"), "{overlap:?}");
    assert_eq!(gaps_of(&[tablet(1, "", None), tablet(2, "c", None)]).len(), 1);
}

fn content(server: u64, index: u64, digest: u32) -> ReplicaContent {
    ReplicaContent {
        server: ServerId::new(server),
        replica: ReplicaId::new(server),
        applied: LogId { term: Term::new(1), index: LogIndex::new(index) },
        digest: (5, digest, 0),
    }
}

#[test]
fn the_replica_with_other_content_than_most_is_found() {
    let different = |contents: &[ReplicaContent]| different(TabletId::new(9), contents);
    assert_eq!(different(&[content(1, 4, 7), content(2, 4, 7), content(3, 4, 7)]), []);
    let found = different(&[content(1, 4, 8), content(2, 4, 7), content(3, 4, 7)]);
    assert_eq!(found.len(), 1);
    assert!(problems(&found)[0].starts_with("tablet 9: replica 1 on tablet server 1 has 5 cells"), "{found:?}");
    assert_eq!(different(&[content(1, 3, 8), content(2, 4, 7), content(3, 4, 7)]), [], "it is behind");
    assert_eq!(different(&[content(1, 4, 8), content(2, 4, 7)]).len(), 1, "one of two");
    assert_eq!(different(&[]), []);
}

#[test]
fn replicas_at_different_entries_are_not_comparable() {
    let replicas = BTreeMap::from([
        (TabletId::new(1), vec![content(1, 4, 7), content(2, 4, 7)]),
        (TabletId::new(2), vec![content(1, 4, 7), content(2, 5, 7)]),
    ]);
    let contents = Contents { replicas, ..Contents::default() };
    assert_eq!(not_comparable(&contents), BTreeSet::from([TabletId::new(2)]));
}

#[test]
fn a_replica_that_cannot_be_read_is_a_finding() {
    let (server, tablet) = (ServerId::new(2), TabletId::new(7));
    let unreadable = BTreeMap::from([
        ((server, None), "it did not respond".to_owned()),
        ((server, Some(tablet)), "block checksum mismatch".to_owned()),
    ]);
    let contents = Contents { unreadable, ..Contents::default() };
    let found = findings(&ClusterSnapshot::default(), &[], &contents);
    assert_eq!(
        // METADATA is missing, too.
        problems(&found)[1..],
        [
            "the replicas on tablet server 2 were not compared: it did not respond",
            "tablet 7: its replica on tablet server 2 cannot be read: block checksum mismatch",
        ]
    );
}

#[test]
fn actions_that_repair_are_findings_and_others_are_not() {
    let cluster = ClusterSnapshot::default();
    let row = tablet(1, "", None);
    let (membership, membership_log_id) = (row.membership.clone(), row.membership_log_id);
    let group = GroupDescriptor { group: row.group, membership, membership_log_id };
    let transfer = Action::TransferLeader { group, from: ServerId::new(1), to: ServerId::new(2) };
    let actions = [Action::WriteRow(row), transfer, Action::ReportUnknownTable { table: TableId::new(4), tablets: 2 }];
    let found = findings(&cluster, &actions, &Contents::default());
    let expected = [
        // The cluster has no server.
        "table 0: no replica has reported",
        "METADATA lacks tablet 1 of table 7",
        "2 tablets belong to table 4",
    ];
    assert_eq!(found.len(), expected.len(), "{found:?}");
    for (problem, expected) in problems(&found).into_iter().zip(expected) {
        assert!(problem.starts_with(expected), "{problem}");
    }
    let remedies: Vec<bool> = found.iter().map(|finding| finding.remedy == Remedy::Master).collect();
    assert_eq!(remedies, [false, true, false]);
}

#[test]
fn a_new_group_whose_replicas_all_run_is_complete() {
    let server = ServerId::new(1);
    let group = GroupDescriptor::initial(GroupId::new(5), &[server]);
    let plan = GroupPlan { group: group.clone(), progress: GroupProgress::HasMajority };
    let mut cluster = ClusterSnapshot { new_groups: [(group.group, plan)].into(), ..ClusterSnapshot::default() };
    let finish = Action::FinishGroup(group.group);
    assert!(!is_only_recorded(&cluster, &finish), "its server is not there");
    let replica = ReplicaReport {
        replica: ReplicaId::new(1),
        role: Role::Follower,
        term: Term::new(1),
        tablets: Vec::new(),
        applied: LogId::default(),
        last: LogId::default(),
        time: Micros::ZERO,
        settled: false,
        heard: BTreeSet::new(),
        division: None,
        group,
    };
    let server_entry = Server::registered(Some(ServerReport { replicas: vec![replica], ..ServerReport::default() }));
    cluster.servers.insert(server, server_entry);
    assert!(is_only_recorded(&cluster, &finish));
}
