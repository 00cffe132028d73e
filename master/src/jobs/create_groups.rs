//! The job that creates the first replicas of a new group. Its plan is in Chubby before the job begins, so any master can
//! repeat the steps.
//!
//! ```text
//!   1  groups/<id> is written with the table that needs the group (crate::jobs::create)
//!   2  replicas from the common seed, until there is a majority: it elects a leader
//!   3  groups/<id> says so: a replica that is still missing is created empty, and filled by the leader
//!   4  groups/<id> is deleted when every replica was created, or is no member any more
//! ```

use std::time::Duration;

use ebla_chubby::{Compare, Write, paths};
use ebla_client::Deadline;
use ebla_model::error::{Error, Reason};
use ebla_model::id::GroupId;
use ebla_model::metadata::{GroupDescriptor, Replica};
use futures::future::join_all;
use tracing::{info, warn};

use crate::active::ActiveMaster;
use crate::cluster::{GroupPlan, GroupProgress};
use crate::schema_store::Stored;
use crate::server_client::InitialState;
use crate::{observation, schema_store};

/// The delay before a failed request is retried.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// Executes the remaining steps of a creation, until the group has a majority. Safe to repeat, also when all replicas
/// exist.
///
/// # Errors
/// `Deadline` when there is no majority of replicas yet; errors of Chubby.
pub(crate) async fn finish(master: &ActiveMaster, id: GroupId, deadline: Deadline) -> Result<(), Error> {
    let Some(stored) = schema_store::read_group(master.chubby(), id).await? else { return Ok(()) };
    let GroupPlan { group, progress } = &stored.value;
    let missing = match progress {
        GroupProgress::Creating => create_majority(master, group, deadline).await?,
        GroupProgress::HasMajority => {
            let members = current_members(master, group).await?;
            try_create(master, group, members, InitialState::Empty).await
        }
    };
    if missing.is_empty() {
        info!(group = %id, "group created");
        return master.transact(Vec::new(), vec![Write::delete(paths::group(id))]).await.map(drop);
    }
    if *progress == GroupProgress::Creating {
        record_majority(master, &stored).await?;
    }
    Ok(())
}

/// Creates replicas until there is a majority. Returns those that are missing.
async fn create_majority(
    master: &ActiveMaster,
    group: &GroupDescriptor,
    deadline: Deadline,
) -> Result<Vec<Replica>, Error> {
    let all = group.membership.replicas.len();
    let mut missing: Vec<Replica> = group.membership.replicas().collect();
    loop {
        missing = try_create(master, group, missing, InitialState::Seed).await;
        if has_majority(all, missing.len()) {
            return Ok(missing);
        }
        if deadline.has_passed(&master.runtime().clock) {
            let message = format!("group {} is still being created: servers do not respond", group.group);
            return Err(Error::new(Reason::Deadline, message));
        }
        tokio::time::sleep(master.runtime().rng.jitter(RETRY_DELAY)).await;
    }
}

/// Whether more than half of `all` replicas exist.
const fn has_majority(all: usize, missing: usize) -> bool {
    2 * all.saturating_sub(missing) > all
}

/// The replicas of the plan that are still members: others were replaced meanwhile.
async fn current_members(master: &ActiveMaster, group: &GroupDescriptor) -> Result<Vec<Replica>, Error> {
    let reported = observation::observe_reports(master).await?.groups().remove(&group.group);
    let is_member = |replica: &Replica| {
        reported.as_ref().is_none_or(|now| now.membership.server_of(replica.replica) == Some(replica.server))
    };
    Ok(group.membership.replicas().filter(is_member).collect())
}

/// Attempts each creation once; returns the replicas whose creation failed.
async fn try_create(
    master: &ActiveMaster,
    group: &GroupDescriptor,
    replicas: Vec<Replica>,
    initial: InitialState,
) -> Vec<Replica> {
    let attempts = replicas.into_iter().map(|replica| async move {
        match master.servers().create_replica(replica.server, group, replica.replica, initial).await {
            Ok(_outcome) => None,
            Err(failed) => {
                let (group, error) = (group.group, failed.error);
                warn!(%group, server = %replica.server, %error, "replica not created; retrying");
                Some(replica)
            }
        }
    });
    join_all(attempts).await.into_iter().flatten().collect()
}

/// Records that a majority exists. A conflict means that another execution of this job has gone further.
async fn record_majority(master: &ActiveMaster, stored: &Stored<GroupPlan>) -> Result<(), Error> {
    let group = stored.value.group.clone();
    let path = paths::group(group.group);
    let plan = GroupPlan { group, progress: GroupProgress::HasMajority };
    let write = Write::put(path.clone(), schema_store::encode_group(&plan));
    master.transact(vec![Compare::Modified(path, stored.modified)], vec![write]).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_majority_is_more_than_half() {
        assert!(has_majority(3, 0) && has_majority(3, 1) && !has_majority(3, 2));
        assert!(has_majority(1, 0) && !has_majority(2, 1));
    }
}
