//! Carries out changes of replicas in the background: each copies a tablet, and the reconciler must not wait for it.
//!
//! What is under way is known to this master alone. One that takes over finds what was left in the tablets themselves, a
//! learner or two sets of voters, and goes on from there; a replica that was made and never became a member is superfluous
//! to its plan.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ebla_chubby::{Counter, next_ids};
use ebla_model::error::{Error, Reason};
use ebla_model::id::{ReplicaId, ServerId, TabletId};
use ebla_model::metadata::{Replica, TabletDescriptor};
use ebla_model::schema::TableSchema;
use tracing::{info, warn};

use crate::office::Office;
use crate::orders::Beginning;
use crate::plan::repair::{Addition, Change};

/// A leader that is none any more says who is, so many times.
const LEADERS_MAX: usize = 3;

/// The changes that are under way in a term of office.
#[derive(Clone, Debug, Default)]
pub(crate) struct Repairs {
    /// The tablets, and the servers that get a replica. Held for a look-up; at most as many as a plan begins.
    under_way: Arc<Mutex<BTreeMap<TabletId, Option<ServerId>>>>,
}

impl Repairs {
    /// The tablets whose replicas are being changed, and the servers that get one.
    pub(crate) fn under_way(&self) -> BTreeMap<TabletId, Option<ServerId>> {
        self.held().clone()
    }

    /// Begins a change; its end, good or bad, calls for a new round.
    pub(crate) fn start(&self, office: &Office, change: Change, schema: TableSchema) {
        let tablet = change.tablet.tablet;
        self.held().insert(tablet, change.add.map(Addition::server));
        info!(%change, "begun");
        let turn = Turn { repairs: self.clone(), office: office.clone(), tablet };
        let office = office.clone();
        office.runtime().tasks.clone().spawn_until_stopped("repair", async move {
            let shown = change.to_string();
            match carry_out(&office, change, &schema).await {
                Ok(tablet) => info!(change = shown, membership = ?tablet.membership, "replicas changed"),
                Err(error) => warn!(change = shown, %error, "replicas not changed"),
            }
            drop(turn);
        });
    }

    fn held(&self) -> MutexGuard<'_, BTreeMap<TabletId, Option<ServerId>>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A change under way, until it is dropped.
struct Turn {
    repairs: Repairs,
    office: Office,
    tablet: TabletId,
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.repairs.held().remove(&self.tablet);
        self.office.leave_unfinished();
    }
}

async fn carry_out(office: &Office, change: Change, schema: &TableSchema) -> Result<TabletDescriptor, Error> {
    let add = match change.add {
        Some(Addition::On(server)) => Some(make(office, &change.tablet, schema, server).await?),
        Some(Addition::Learner(learner)) => Some(learner),
        None => None,
    };
    let mut leader = change.leader;
    let mut asked = 0;
    loop {
        asked += 1;
        let outcome = office.orders().change_replicas(leader, &change.tablet, add, change.remove).await;
        let refused = match outcome {
            Ok(changed) => return Ok(changed),
            Err(refused) => refused,
        };
        match refused.detail.leader.map(|hint| ServerId::new(hint.server)) {
            Some(other) if other != leader && asked < LEADERS_MAX => leader = other,
            _ => return Err(refused.error),
        }
    }
}

/// A new, empty replica under an id that was never given before: it must be there before the leader speaks to it.
async fn make(
    office: &Office,
    tablet: &TabletDescriptor,
    schema: &TableSchema,
    server: ServerId,
) -> Result<Replica, Error> {
    let replica = ReplicaId::new(next_ids(office.chubby(), Counter::Replicas, 1).await?.start);
    let made = office.orders().create_replica(server, tablet, schema, replica, Beginning::Empty).await;
    match made.map_err(|refused| refused.error)?.as_str() {
        "removed" => Err(Error::new(Reason::Conflict, format!("replica {replica} was removed from server {server}"))),
        _ => Ok(Replica { replica, server }),
    }
}
