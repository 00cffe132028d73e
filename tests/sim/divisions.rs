//! Divisions of groups.

use std::time::Duration;

use ebla_client::Admin;
use ebla_model::error::{Error, Reason};
use ebla_model::id::GroupId;
use ebla_runtime::Runtime;

use crate::cluster::{SimCluster, SimHost};
use crate::load::{any_admin, outcome_name};
use crate::{lost_answers, time};

/// Timeout of a division.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Divides the group with the most tablets.
pub(crate) async fn request_division(cluster: &SimCluster, runtime: &Runtime) {
    let admin = any_admin(cluster, runtime);
    let divided = async {
        let groups = admin.groups().await?;
        let of_tables = groups.into_iter().filter(|one| one.group.group != GroupId::METADATA);
        let largest = of_tables.max_by_key(|one| one.tablets).map(|one| one.group.group);
        let largest = largest.ok_or_else(|| Error::new(Reason::Unavailable, "no group responds"))?;
        if !cluster.loses_answers {
            return admin.divide_group(largest).await;
        }
        let divide = async |other: &SimHost| Admin::connect(&other.address(), runtime).divide_group(largest).await;
        lost_answers::during(cluster, largest, divide).await
    };
    let outcome = tokio::time::timeout(TIMEOUT, divided).await;
    let kind = if matches!(outcome, Ok(Ok(_))) { "divided" } else { "not-divided" };
    cluster.trace.lock().count(time::elapsed(), "overseer", kind, outcome_name(&outcome));
}
