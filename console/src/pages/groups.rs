//! The page `/groups/{id}`: a group of tablets, and how far each of its replicas is in their common log.

use ebla_client::groups::GroupReplicas;
use ebla_model::capacity::readable_bytes;
use ebla_model::error::Error;
use ebla_model::id::{GroupId, ServerId};
use ebla_proto::operate::ReplicaStatus;
use ebla_proto::record::LogId;

use super::{Page, note, or_dash, section, server_link, state};
use crate::Context;
use crate::html::{Html, element, facts, row, table, text};

/// The page.
///
/// # Errors
/// `InvalidArgument` for no number; `NotFound` when no server reports the group; otherwise as calls of the operators' API.
pub async fn page(context: &Context, given: &str) -> Result<Page, Error> {
    let id: u64 = given.parse().map_err(|_| Error::invalid(format!("{given} is no number of a group")))?;
    context.require_administrator().await?;
    Ok(render(&context.admin().group_replicas(GroupId::new(id)).await?))
}

fn render(group: &GroupReplicas) -> Page {
    let GroupReplicas { status, replicas } = group;
    let values = facts(
        "group",
        [
            ("leader", or_dash(status.leader.map(ServerId::get))),
            ("tablets", status.tablets.to_string()),
            ("size", readable_bytes(status.size_bytes)),
        ],
    );
    let shown = if replicas.is_empty() {
        note("the master runs an earlier release and does not report the replicas of a group").into()
    } else {
        list(replicas)
    };
    let meaning =
        "Servers report at slightly different moments, so replicas that are a few entries behind are up to date.";
    Page::new(format!("Group {}", status.group.group), "ebla group list").live(
        "group",
        Html::join([Html::from(values), section("Replicas and their logs", [shown]).into(), note(meaning).into()]),
    )
}

fn list(replicas: &[ReplicaStatus]) -> Html {
    let line = |replica: &ReplicaStatus| {
        let role = match (replica.runs, replica.leads) {
            (true, true) => state("ok", "leads"),
            (true, false) => state("ok", "follows"),
            (false, _) => state("bad", "not reported"),
        };
        let named = |name: &str, shown: String| -> Html {
            element("span").test_id(format!("replica-{}-{name}", replica.server)).text(shown).into()
        };
        let at = |position: Option<&LogId>| or_dash(position.map(|at| at.index));
        row([
            Html::from(server_link(replica.server)),
            text(replica.replica),
            role.into(),
            text(or_dash(replica.runs.then_some(replica.term))),
            named("last", at(replica.last.as_ref())),
            named("committed", at(replica.committed.as_ref())),
            named("applied", at(replica.applied.as_ref())),
            named("snapshot", at(replica.snapshot.as_ref())),
            named("missing", or_dash(behind(replicas, replica, |one| one.last.as_ref()))),
            named("lag", or_dash(behind(replicas, replica, |one| one.applied.as_ref()))),
        ])
    };
    let heading = [
        "Server",
        "Replica",
        "Role",
        "Term",
        "Last",
        "Committed",
        "Applied",
        "Snapshot",
        "Entries missing",
        "Entries to apply",
    ];
    element("div").class("scroll").child(table(&heading, replicas.iter().map(line))).into()
}

/// By how many entries a replica is behind its leader, or while none is known behind the replica that has the most; `None`: not known.
fn behind(
    replicas: &[ReplicaStatus],
    replica: &ReplicaStatus,
    position: fn(&ReplicaStatus) -> Option<&LogId>,
) -> Option<u64> {
    let index = |one: &ReplicaStatus| position(one).map(|at| at.index);
    // After a change of leaders two replicas may say that they lead: the later term is right.
    let leader = replicas.iter().filter(|one| one.leads).max_by_key(|one| one.term);
    let target = leader.and_then(index).or_else(|| replicas.iter().filter_map(index).max())?;
    Some(target.saturating_sub(index(replica)?))
}

#[cfg(test)]
mod tests {
    use ebla_client::admin::GroupStatus;
    use ebla_model::metadata::GroupDescriptor;

    use super::*;
    use crate::pages::golden::check;

    fn replica(server: u64, leads: bool, [last, committed, applied]: [u64; 3]) -> ReplicaStatus {
        let at = |index| Some(LogId { term: 3, index });
        let (last, committed, applied) = (at(last), at(committed), at(applied));
        ReplicaStatus { replica: server, server, runs: true, leads, term: 3, last, applied, committed, snapshot: None }
    }

    fn group(replicas: Vec<ReplicaStatus>) -> GroupReplicas {
        let group = GroupDescriptor::initial(GroupId::new(7), &[1, 2, 3].map(ServerId::new));
        let status = GroupStatus { group, leader: Some(ServerId::new(1)), tablets: 24, size_bytes: 5 << 20 };
        GroupReplicas { status, replicas }
    }

    fn three() -> Vec<ReplicaStatus> {
        let silent = ReplicaStatus { replica: 3, server: 3, ..ReplicaStatus::default() };
        let leader =
            ReplicaStatus { snapshot: Some(LogId { term: 2, index: 900 }), ..replica(1, true, [1_000, 998, 998]) };
        vec![leader, replica(2, false, [940, 930, 900]), silent]
    }

    #[test]
    fn a_group_is_shown_as_before() {
        check("group", &render(&group(three())));
        let old = render(&group(Vec::new()));
        assert!(old.parts[0].html.as_str().contains("earlier release"));
    }

    #[test]
    fn a_lag_is_the_distance_from_the_leader() {
        let lag = |replicas: &[ReplicaStatus]| {
            let of = |one: &ReplicaStatus| {
                [behind(replicas, one, |one| one.last.as_ref()), behind(replicas, one, |one| one.applied.as_ref())]
            };
            replicas.iter().map(of).collect::<Vec<_>>()
        };
        assert_eq!(lag(&three()), [[Some(0), Some(0)], [Some(60), Some(98)], [None, None]]);
        // A former leader has entries that no other replica has.
        let former = ReplicaStatus { term: 2, ..replica(1, true, [1_005, 990, 990]) };
        let replicas = [former, replica(2, true, [1_000, 1_000, 1_000]), replica(3, false, [1_000, 990, 990])];
        assert_eq!(lag(&replicas), [[Some(0), Some(10)], [Some(0), Some(0)], [Some(0), Some(10)]]);
        let without = [replica(1, false, [10, 9, 8]), replica(2, false, [12, 9, 9])];
        assert_eq!(lag(&without), [[Some(2), Some(1)], [Some(0), Some(0)]]);
        assert_eq!(lag(&[]), Vec::<[Option<u64>; 2]>::new());
    }
}
