//! What `ebla check` finds: a pure function of the snapshot, of the actions that the planner would take, and of the digests of replicas.
//!
//! ```text
//!   coverage      the tablets of each table, as their groups know them, cover all keys once
//!   METADATA      each tablet has its row, no row describes a tablet that is gone, and each can be decoded
//!   replicas      their content can be read, and those of a tablet that have applied the same entry have the same
//!   leftovers     replicas that are no members, folders that a server has set aside
//! ```

use std::collections::{BTreeMap, BTreeSet};

use ebla_model::id::{LogId, ReplicaId, ServerId, TableId, TabletId};
use ebla_model::key::RowKey;
use ebla_model::metadata::{Replica, TabletDescriptor};
use ebla_model::schema::TableState;

use super::Action;
use crate::cluster::ClusterSnapshot;

/// Something that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What is wrong, with the numbers that identify it.
    pub problem: String,
    /// Who can repair it.
    pub remedy: Remedy,
}

/// Who can repair what was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// The master, by an action that it also takes in its next round.
    Master,
    /// An operator, who should take this step next.
    Operator(&'static str),
}

/// The content of a replica of a tablet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaContent {
    /// Its server.
    pub server: ServerId,
    /// Its id.
    pub replica: ReplicaId,
    /// The last entry that it has applied.
    pub applied: LogId,
    /// Number and checksum of cells, and checksum of the group's state.
    pub digest: (u64, u32, u32),
}

/// The contents of replicas.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// Those that could be read, by tablet.
    pub replicas: BTreeMap<TabletId, Vec<ReplicaContent>>,
    /// Why others could not, by server: all of it, or its replica of this tablet.
    pub unreadable: BTreeMap<(ServerId, Option<TabletId>), String>,
}

/// The tablets whose replicas have not all applied the same entry, so that they cannot be compared.
#[must_use]
pub fn not_comparable(contents: &Contents) -> BTreeSet<TabletId> {
    let differ = |replicas: &[ReplicaContent]| {
        replicas.iter().any(|replica| replicas.first().is_some_and(|first| first.applied != replica.applied))
    };
    let replicas = contents.replicas.iter();
    replicas.filter(|(_tablet, replicas)| differ(replicas)).map(|(tablet, _replicas)| *tablet).collect()
}

/// What is not as it should be. `actions`: those that the planner would take now. Needs servers, tables and METADATA of the snapshot.
#[must_use]
pub fn findings(cluster: &ClusterSnapshot, actions: &[Action], contents: &Contents) -> Vec<Finding> {
    let mut findings = uncovered(cluster);
    findings.extend(actions.iter().filter(|action| !is_only_recorded(cluster, action)).filter_map(of_action));
    let removed: BTreeSet<&RowKey> = actions.iter().filter_map(removed_as_damaged).collect();
    let kept = cluster.damaged_rows.iter().filter(|row| !removed.contains(row));
    findings.extend(kept.map(|row| Finding {
        problem: format!(
            "METADATA has a row that cannot be decoded, and no server reports the tablet that it lists ({row})"
        ),
        remedy: Remedy::Operator("start the tablet servers that are down; ebla status lists them"),
    }));
    findings.extend(contents.replicas.iter().flat_map(|(tablet, replicas)| different(*tablet, replicas)));
    findings.extend(contents.unreadable.iter().map(|((server, tablet), error)| unreadable(*server, *tablet, error)));
    findings.extend(cluster.servers.iter().filter_map(|(server, known)| {
        let folders = known.report.as_ref().map_or(0, |report| report.set_aside);
        (folders > 0).then(|| Finding {
            problem: format!("tablet server {server} has set {folders} folders aside that belong to no replica"),
            remedy: Remedy::Operator(
                "look into the folder set-aside of its data folder, and delete what is not needed",
            ),
        })
    }));
    findings
}

const fn removed_as_damaged(action: &Action) -> Option<&RowKey> {
    match action {
        Action::RemoveDamagedRow(row) => Some(row),
        _ => None,
    }
}

/// Gaps and overlaps between the tablets of each table, as the newest reports describe them.
fn uncovered(cluster: &ClusterSnapshot) -> Vec<Finding> {
    let mut tables: BTreeMap<TableId, Vec<&TabletDescriptor>> = BTreeMap::new();
    tables.insert(TableId::METADATA, Vec::new());
    let active = cluster.tables.values().filter(|schema| schema.state == TableState::Active);
    tables.extend(active.map(|schema| (schema.table, Vec::new())));
    for tablet in cluster.tablets().into_values() {
        if let Some(tablets) = tables.get_mut(&tablet.table) {
            tablets.push(tablet);
        }
    }
    tables.into_iter().flat_map(|(table, tablets)| gaps(table, tablets)).collect()
}

fn gaps(table: TableId, mut tablets: Vec<&TabletDescriptor>) -> Vec<Finding> {
    tablets.sort_by_key(|tablet| tablet.range.start());
    let mut findings = Vec::new();
    // The end of what is covered; `None`: everything is.
    let mut covered = Some(RowKey::default());
    for tablet in tablets {
        match &covered {
            Some(end) if *end < *tablet.range.start() => {
                findings.push(gap(table, &format!("{end} to {}", tablet.range.start())));
            }
            Some(end) if *end == *tablet.range.start() => {}
            _ => findings.push(Finding {
                problem: format!(
                    "table {table}: tablet {} has rows of the tablet before it ({})",
                    tablet.tablet, tablet.range
                ),
                remedy: Remedy::Operator("run the check again: a split or a merge may have been reported in part"),
            }),
        }
        covered = match (covered, tablet.range.end()) {
            (Some(before), Some(end)) => Some(before.max(end.clone())),
            _ => None,
        };
    }
    if let Some(end) = covered {
        findings.push(gap(table, &format!("{end} to the end")));
    }
    findings
}

fn gap(table: TableId, rows: &str) -> Finding {
    Finding {
        problem: format!("table {table}: no replica has reported the tablets of the rows {rows}"),
        remedy: Remedy::Operator("start the tablet servers that are down; ebla status lists them"),
    }
}

/// Whether all that is left of a change is its record in Chubby: the replicas of a new group all run.
fn is_only_recorded(cluster: &ClusterSnapshot, action: &Action) -> bool {
    let Action::FinishGroup(group) = action else { return false };
    let Some(plan) = cluster.new_groups.get(group) else { return false };
    let runs = |member: Replica| {
        let mut reports = cluster.reports();
        reports.any(|(server, report)| {
            server == member.server && report.group.group == *group && report.replica == member.replica
        })
    };
    plan.group.membership.replicas().all(runs)
}

/// An action that repairs something, as a finding. Actions that change what is right are none.
fn of_action(action: &Action) -> Option<Finding> {
    let by_master = |problem: String| Some(Finding { problem, remedy: Remedy::Master });
    match action {
        Action::WriteRoot(_) => {
            by_master("the location of the root tablet in the lock service is missing or old".to_owned())
        }
        Action::RemoveDamagedRow(row) => by_master(format!("METADATA has a row that cannot be decoded ({row})")),
        Action::ReplaceFalseRow { present, .. } => by_master(format!(
            "METADATA describes tablet {} of table {} in generation {}, which no replica has",
            present.tablet, present.table, present.generation
        )),
        Action::WriteRow(tablet) => by_master(format!(
            "METADATA lacks tablet {} of table {}, or describes an earlier state of it",
            tablet.tablet, tablet.table
        )),
        Action::RemoveRow { row, tablet } => {
            by_master(format!("METADATA has a row of tablet {tablet}, whose table was deleted ({row})"))
        }
        Action::RemoveObsoleteRow(old) => by_master(format!(
            "METADATA has a row of tablet {} of table {}, which was merged into another one",
            old.tablet, old.table
        )),
        Action::ApplySchema(table) => by_master(format!("tablets of table {table} have an old schema")),
        Action::FinishCreate(table) => by_master(format!("the creation of table {table} is not complete")),
        Action::FinishDelete(table) => by_master(format!("the deletion of table {table} is not complete")),
        Action::FinishGroup(group) => by_master(format!("the creation of group {group} is not complete")),
        Action::FinishOperation(operation) => by_master(format!("operation {operation} is not complete")),
        Action::DropReplica { server, group, replica, .. } => by_master(format!(
            "tablet server {server} has replica {replica} of group {group}, which is no member of it any more"
        )),
        Action::CreateReplica { group, replica } => by_master(format!(
            "tablet server {} lacks replica {} of group {}",
            replica.server, replica.replica, group.group
        )),
        Action::RaiseCounter { counter, .. } => {
            by_master(format!("the counter {} of the lock service would give an id again", counter.name()))
        }
        Action::RecordBehind(reasons) => Some(Finding {
            problem: format!("the lock service lacks changes that servers have: {}", reasons.join("; ")),
            remedy: Remedy::Operator("ebla recover --dry-run shows what is missing"),
        }),
        Action::ReportUnknownTable { table, tablets } => Some(Finding {
            problem: format!("{tablets} tablets belong to table {table}, which the lock service does not know"),
            remedy: Remedy::Operator("ebla recover --dry-run shows what is missing"),
        }),
        Action::ReportQuorumLoss { group, dead, of, .. } => Some(Finding {
            problem: format!("group {group} has lost {dead} of {of} replicas, a majority"),
            remedy: Remedy::Operator(
                "start their servers; if they are lost permanently: ebla tablet recover --dry-run",
            ),
        }),
        _ => None,
    }
}

/// Content that was not compared because it could not be read.
fn unreadable(server: ServerId, tablet: Option<TabletId>, error: &str) -> Finding {
    match tablet {
        Some(tablet) => Finding {
            problem: format!("tablet {tablet}: its replica on tablet server {server} cannot be read: {error}"),
            remedy: Remedy::Operator("repeat ebla check in a minute: a damaged replica is replaced by itself"),
        },
        None => Finding {
            problem: format!("the replicas on tablet server {server} were not compared: {error}"),
            remedy: Remedy::Operator("repeat ebla check; --quick does not compare replicas"),
        },
    }
}

/// Replicas of a tablet that have applied the same entry and do not have the content of most others.
fn different(tablet: TabletId, replicas: &[ReplicaContent]) -> Vec<Finding> {
    let Some(newest) = replicas.iter().map(|replica| replica.applied).max() else { return Vec::new() };
    let same: Vec<&ReplicaContent> = replicas.iter().filter(|replica| replica.applied == newest).collect();
    let votes = |digest: (u64, u32, u32)| same.iter().filter(|replica| replica.digest == digest).count();
    // Of equally many the one of the lowest replica; which one is right cannot be known then.
    let Some(best) = same.iter().map(|replica| votes(replica.digest)).max() else { return Vec::new() };
    let usual = same.iter().find(|replica| votes(replica.digest) == best).map(|replica| replica.digest);
    let wrong = same.iter().filter(|replica| Some(replica.digest) != usual);
    let finding = |replica: &&ReplicaContent| Finding {
        problem: format!(
            "tablet {tablet}: replica {} on tablet server {} has {} cells and other content than most replicas, after entry {newest}",
            replica.replica, replica.server, replica.digest.0
        ),
        remedy: Remedy::Operator(
            "replace that server: ebla server drain, then start a new one with an empty data folder",
        ),
    };
    wrong.map(finding).collect()
}

#[cfg(test)]
mod tests;
