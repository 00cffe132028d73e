//! What tables cost, and the enforcement of quotas: the tablet servers measure, the master adds and compares (`ebla_model::quota`).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ebla_model::cluster_event::{ClusterEventKind, NewClusterEvent};
use ebla_model::error::Error;
use ebla_model::id::{TableId, TabletId};
use ebla_model::metadata::TabletDescriptor;
use ebla_model::quota::{Coverage, FamilyUsage, TableUsage};
use ebla_model::schema::{TableSchema, TableState};
use ebla_proto::{convert, operate};
use futures::FutureExt as _;
use futures::future::join_all;
use tracing::{debug, info, warn};

use crate::active::ActiveMaster;
use crate::cluster::ClusterSnapshot;
use crate::{jobs, observation};

/// Between two comparisons of quotas: a table may exceed its quota by what it receives in this time, and until the servers have measured.
const QUOTA_PERIOD: Duration = Duration::from_secs(5);
/// The timeout of the change of a schema whose quotas are exceeded, or hold again.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(30);

/// What the tablets of a table cost.
#[derive(Debug)]
pub(crate) struct MeasuredTable {
    /// By row range, with what their families cost; `None`: no leader has answered.
    tablets: Vec<(TabletDescriptor, Option<TableUsage>)>,
}

impl MeasuredTable {
    /// The sum of all tablets that were measured.
    pub(crate) fn sum(&self) -> (TableUsage, Coverage) {
        let mut sum = TableUsage::new();
        for (family, usage) in self.measured().flat_map(|(_tablet, usage)| usage) {
            sum.entry(*family).or_default().add(*usage);
        }
        let is_whole = !self.tablets.is_empty() && self.measured().count() == self.tablets.len();
        (sum, if is_whole { Coverage::Whole } else { Coverage::Partial })
    }

    fn measured(&self) -> impl Iterator<Item = (&TabletDescriptor, &TableUsage)> {
        self.tablets.iter().filter_map(|(tablet, usage)| Some((tablet, usage.as_ref()?)))
    }

    /// As the operator API returns it.
    pub(crate) fn to_reply(&self, schema: &TableSchema) -> operate::TableUsageReply {
        let (sum, _coverage) = self.sum();
        let tablet = |(tablet, usage): (&TabletDescriptor, &TableUsage)| operate::TabletCost {
            tablet: Some(convert::tablet_record_to_proto(tablet)),
            families: families(schema, usage),
        };
        operate::TableUsageReply {
            quota: Some(convert::quota_to_proto(&schema.quotas.table)),
            families: families(schema, &sum),
            tablets: self.measured().map(tablet).collect(),
            unknown_tablets: (self.tablets.len() - self.measured().count()) as u64,
        }
    }
}

/// All families of the schema, with what they cost.
fn families(schema: &TableSchema, usage: &TableUsage) -> Vec<operate::FamilyCost> {
    let families = schema.families.iter().map(|family| {
        let of_family = usage.get(&family.id).copied().unwrap_or_else(FamilyUsage::default);
        let quota = schema.quotas.families.get(&family.id).copied().unwrap_or_default();
        operate::FamilyCost {
            family: family.name.to_string(),
            usage: Some(convert::family_usage_to_proto(family.id, &of_family)),
            quota: Some(convert::quota_to_proto(&quota)),
        }
    });
    families.collect()
}

/// Measures the tablets of a table at their leaders. Needs the servers' reports.
pub(crate) async fn measure(master: &ActiveMaster, snapshot: &ClusterSnapshot, table: TableId) -> MeasuredTable {
    let servers = snapshot.servers.iter().filter(|(_id, server)| server.report.is_some()).map(|(id, _server)| *id);
    let requests = servers.map(|server| master.servers().table_usage(server, table).boxed());
    let replies = join_all(requests).await.into_iter();
    let replies =
        replies.filter_map(|reply| reply.inspect_err(|failed| debug!(error = %failed.error, "usage not read")).ok());
    let measured: BTreeMap<TabletId, TableUsage> = replies
        .flat_map(|reply| reply.tablets)
        .map(|tablet| (TabletId::new(tablet.tablet), convert::usage_from_proto(&tablet.families)))
        .collect();
    let tablets = snapshot.tablets().into_values().filter(|tablet| tablet.table == table).cloned();
    let mut tablets: Vec<_> = tablets.map(|tablet| (tablet.clone(), measured.get(&tablet.tablet).cloned())).collect();
    tablets.sort_by(|(one, _), (other, _)| one.range.start().cmp(other.range.start()));
    MeasuredTable { tablets }
}

/// Compares the tables that have quotas with them, every few seconds, until this master is no longer active.
pub(crate) async fn enforce_quotas(master: ActiveMaster) {
    loop {
        tokio::time::sleep(master.runtime().rng.jitter(QUOTA_PERIOD)).await;
        let mut limited = master.directory().schemas();
        limited.retain(|schema| schema.state == TableState::Active && !schema.quotas.is_empty());
        if limited.is_empty() {
            continue;
        }
        let snapshot = match observation::observe_reports(&master).await {
            Ok(snapshot) => snapshot,
            Err(error) => {
                warn!(tables = limited.len(), %error, "quotas not compared; retrying");
                continue;
            }
        };
        for schema in limited {
            if let Err(error) = compare(&master, &snapshot, &schema).await {
                warn!(table = %schema.name, %error, "quotas not compared; retrying");
            }
        }
    }
}

async fn compare(master: &ActiveMaster, snapshot: &ClusterSnapshot, schema: &TableSchema) -> Result<(), Error> {
    let (usage, coverage) = measure(master, snapshot, schema.table).await.sum();
    if schema.quotas.next(&usage, coverage) == schema.quotas {
        return Ok(());
    }
    master.check_not_behind().await?;
    let change = |schema: &TableSchema| Ok(schema.with_compared_quotas(&usage, coverage));
    let changed =
        jobs::update_schema::update_schema(master, &schema.name, change, master.deadline(CHANGE_TIMEOUT)).await?;
    let families: Vec<&str> = changed.exceeded_families().collect();
    let is_table_exceeded = changed.quotas.table.exceeded.is_some();
    info!(table = %schema.name, is_table_exceeded, ?families, "the exceeded quotas of a table have changed");
    if let Some(event) = quota_event(schema, &changed) {
        master.record_limited_event(&event);
    }
    Ok(())
}

/// The event of a comparison: which quotas are exceeded that were not before, or, if there are none, that fewer are.
fn quota_event(before: &TableSchema, now: &TableSchema) -> Option<NewClusterEvent> {
    let (exceeded_before, exceeded) = (exceeded_quotas(before), exceeded_quotas(now));
    let new: Vec<&str> = exceeded.difference(&exceeded_before).map(String::as_str).collect();
    let event = if !new.is_empty() {
        NewClusterEvent::new(ClusterEventKind::QuotaExceeded, format!("{}: quota of {}", now.name, new.join(", ")))
    } else if exceeded.len() < exceeded_before.len() {
        let left =
            if exceeded.is_empty() { "none is exceeded".to_owned() } else { format!("{} exceeded", exceeded.len()) };
        NewClusterEvent::new(ClusterEventKind::QuotaKept, format!("{}: {left}", now.name))
    } else {
        return None;
    };
    Some(event.of_table(now.table))
}

/// What exceeds its quota: the table, families.
fn exceeded_quotas(schema: &TableSchema) -> BTreeSet<String> {
    let table = schema.quotas.table.exceeded.map(|_measure| "the table".to_owned());
    table.into_iter().chain(schema.exceeded_families().map(|family| format!("family {family}"))).collect()
}

#[cfg(test)]
mod tests {
    use ebla_model::cell::FamilyName;
    use ebla_model::id::{FamilyId, ServerId};
    use ebla_model::key::{KeyRange, RowKey};
    use ebla_model::schema::TableName;

    use super::*;

    fn tablet(id: u64, range: KeyRange) -> TabletDescriptor {
        TabletDescriptor::initial(TableId::new(7), TabletId::new(id), range, &[ServerId::new(1)])
    }

    #[test]
    fn the_event_of_a_quota_names_what_is_exceeded_now() {
        use ebla_model::quota::QuotaLimits;

        let name = TableName::from_parts("p", "i", "t").unwrap();
        let families = ["a", "b"].map(|family| (FamilyName::new(family).unwrap(), None));
        let schema = TableSchema::new(TableId::new(7), name.clone(), families).unwrap();
        let cells = |cells| QuotaLimits { stored_bytes: None, cells: Some(cells) };
        let set = |schema: &TableSchema, family, limit| schema.with_quota(family, cells(limit)).unwrap();
        let schema = set(&set(&set(&schema, None, 100), Some("a"), 50), Some("b"), 50);
        let id = |family: &str| schema.families.iter().find(|one| one.name.as_str() == family).unwrap().id.get();
        let compared = |before: &TableSchema, [a, b]: [u64; 2]| {
            before.with_compared_quotas(&usage(&[(id("a"), a), (id("b"), b)]), Coverage::Whole)
        };
        let event = |before: &TableSchema, now: &TableSchema| {
            quota_event(before, now).map(|event| {
                assert_eq!((event.table, event.server), (Some(TableId::new(7)), None));
                (event.kind, event.detail().to_owned())
            })
        };
        let (one, all) = (compared(&schema, [60, 10]), compared(&schema, [60, 60]));
        let exceeded = |what: &str| Some((ClusterEventKind::QuotaExceeded, format!("{name}: quota of {what}")));
        assert_eq!(event(&schema, &one), exceeded("family a"));
        assert_eq!(event(&one, &all), exceeded("family b, the table"));
        assert_eq!(event(&one, &compared(&one, [10, 60])), exceeded("family b"), "another one");
        assert_eq!(event(&all, &one), Some((ClusterEventKind::QuotaKept, format!("{name}: 1 exceeded"))));
        assert_eq!(event(&one, &schema), Some((ClusterEventKind::QuotaKept, format!("{name}: none is exceeded"))));
        assert_eq!(event(&all, &all), None);
    }

    fn usage(of: &[(u32, u64)]) -> TableUsage {
        let one = |(family, cells): &(u32, u64)| {
            (FamilyId::new(*family), FamilyUsage { cells: *cells, ..FamilyUsage::default() })
        };
        of.iter().map(one).collect()
    }

    #[test]
    fn the_tablets_of_a_table_are_added_and_missing_ones_are_said() {
        let (left, right) = KeyRange::all().split_at(&RowKey::new("m")).unwrap();
        let name = TableName::from_parts("p", "i", "t").unwrap();
        let families = ["a", "b"].map(|family| (FamilyName::new(family).unwrap(), None));
        let schema = TableSchema::new(TableId::new(7), name, families).unwrap();
        let mut measured = MeasuredTable {
            tablets: vec![
                (tablet(10, left), Some(usage(&[(1, 5), (2, 1)]))),
                (tablet(11, right), Some(usage(&[(1, 2)]))),
            ],
        };
        assert_eq!(measured.sum(), (usage(&[(1, 7), (2, 1)]), Coverage::Whole));
        let reply = measured.to_reply(&schema);
        let cells = |families: &[operate::FamilyCost]| {
            families.iter().map(|family| family.usage.as_ref().unwrap().cells).collect::<Vec<_>>()
        };
        assert_eq!((cells(&reply.families), reply.unknown_tablets), (vec![7, 1], 0));
        assert_eq!(reply.tablets.iter().map(|tablet| cells(&tablet.families)).collect::<Vec<_>>(), [[5, 1], [2, 0]]);
        measured.tablets[1].1 = None;
        assert_eq!(measured.sum(), (usage(&[(1, 5), (2, 1)]), Coverage::Partial));
        assert_eq!(measured.to_reply(&schema).unknown_tablets, 1);
        let nothing = MeasuredTable { tablets: Vec::new() };
        assert_eq!(nothing.sum().1, Coverage::Partial, "its tablets are not reported yet");
    }
}
