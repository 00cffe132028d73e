//! The JSON documents of commands as functions of their values, for the bundle of `ebla debug zip`, and those that several commands share.

use std::fmt::Display;

use ebla_client::Client;
use ebla_client::admin::GroupStatus;
use ebla_client::cluster_events::ClusterEvent;
use ebla_client::metadata::TabletEvents;
use ebla_model::metadata::TabletDescriptor;
use ebla_model::schema::TableName;
use ebla_proto::operate::{DescribeClusterReply, LoadedTablet, TableLoad, UpgradeStatusReply};
use ebla_proto::trace::Record;
use serde_json::{Value, json};

use super::events::Entry;
use super::{cluster, group, slow, status, table, tablet, top, version};
use crate::output::Failure;
use crate::process::ClusterSecurity;
use ebla_client::snapshot::ClusterSnapshot;
use ebla_client::verdict::evaluate;

/// `ebla status`.
pub(crate) fn status(snapshot: &ClusterSnapshot, security: ClusterSecurity) -> Value {
    status::to_json(snapshot, &evaluate(snapshot), security)
}

/// `ebla cluster upgrade status`.
pub(crate) fn versions(reply: &UpgradeStatusReply) -> Value {
    cluster::to_json(reply)
}

/// An element of `ebla group list`.
pub(crate) fn group(group: &GroupStatus) -> Value {
    group::to_json(group)
}

/// An element of `ebla top tables`.
pub(crate) fn table_load(load: &TableLoad) -> Value {
    top::table_json(load)
}

/// An element of `ebla top tablets`.
pub(crate) fn loaded_tablet(tablet: &LoadedTablet) -> Value {
    top::tablet_json(tablet)
}

/// `ebla table describe`.
///
/// # Errors
/// What the cluster answers.
pub(crate) async fn table(client: &Client, name: &TableName) -> Result<Value, Failure> {
    Ok(table::Description::of(client, name).await?.json())
}

/// An element of `ebla tablet list`, without a leader.
pub(crate) fn tablet(tablet: &TabletDescriptor) -> Value {
    tablet::to_json(tablet, None)
}

/// The last events, as `ebla tablet events` shows them.
pub(crate) fn events(rows: Vec<TabletEvents>, number: usize) -> Value {
    tablet::events::document(rows, number)
}

/// The events of the cluster, as `ebla events` shows them.
pub(crate) fn cluster_events(events: Vec<ClusterEvent>) -> Value {
    json!(events.into_iter().map(|event| Entry::OfCluster(event).to_json()).collect::<Vec<_>>())
}

/// `ebla events`.
#[cfg(test)]
pub(crate) fn all_events(rows: Vec<TabletEvents>, of_cluster: Vec<ClusterEvent>) -> Value {
    let of_tablets = ebla_client::history::in_order(rows.into_iter()).into_iter().map(Entry::OfTablet);
    let all = of_tablets.chain(of_cluster.into_iter().map(Entry::OfCluster));
    json!(all.map(|entry| entry.to_json()).collect::<Vec<_>>())
}

/// `ebla cluster describe`.
pub(crate) fn registration(reply: &DescribeClusterReply) -> Value {
    cluster::registration_json(reply)
}

/// An element of `ebla slow`.
pub(crate) fn slow_operation(record: &Record) -> Value {
    slow::to_json(record)
}

/// `ebla version`.
pub(crate) fn version() -> Value {
    version::document()
}

/// A table or a view that was deleted, by its full name.
pub(super) fn deleted(name: &impl Display) -> Value {
    json!({ "name": name.to_string(), "deleted": true })
}
