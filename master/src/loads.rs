//! The loads of all tables and of the busiest tablets, and how full quotas are.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use ebla_model::error::Error;
use ebla_model::id::{ServerId, TableId};
use ebla_model::quota::{Coverage, FamilyUsage, Quota, TableUsage};
use ebla_model::schema::{TableSchema, TableState};
use ebla_proto::{convert, operate, record};

use crate::active::ActiveMaster;
use crate::cluster::{ClusterSnapshot, TabletReport};
use crate::{observation, usage};

/// The most tablets, and the most tables, of a reply.
const LISTED_MAX: usize = 1_000;
/// The most tables whose quotas are measured for one request.
const MEASURED_MAX: usize = 100;
/// The name of METADATA, which has no schema.
const METADATA: &str = "METADATA";

/// Answers a request.
///
/// # Errors
/// When Chubby cannot be read.
pub(crate) async fn loads(master: &ActiveMaster, request: operate::LoadsRequest) -> Result<operate::LoadsReply, Error> {
    let snapshot = observation::observe_reports(master).await?;
    let schemas = master.directory().schemas();
    let names = schemas.iter().map(|schema| (schema.table, schema.name.to_string())).collect();
    let tablets_max = usize::try_from(request.tablets_max).unwrap_or(LISTED_MAX).min(LISTED_MAX);
    let mut reply = summarize(&snapshot, &names, tablets_max);
    if request.quotas {
        let mut limited: Vec<_> = schemas.into_iter().filter(|schema| has_quota(schema)).collect();
        reply.quotas_unknown = limited.len().saturating_sub(MEASURED_MAX) as u64;
        limited.truncate(MEASURED_MAX);
        for schema in limited {
            let (usage, coverage) = usage::measure(master, &snapshot, schema.table).await.sum();
            reply.quotas_unknown += u64::from(coverage == Coverage::Partial);
            let name = schema.name.to_string();
            if let Some(table) = reply.tables.iter_mut().find(|table| table.table == name) {
                table.quotas = quotas(&schema, &usage);
            }
        }
    }
    Ok(reply)
}

fn has_quota(schema: &TableSchema) -> bool {
    schema.state == TableState::Active && !schema.quotas.is_empty()
}

/// The loads at the leaders, the busiest first; of two that are equally busy the larger one. Pure.
fn summarize(snapshot: &ClusterSnapshot, names: &BTreeMap<TableId, String>, tablets_max: usize) -> operate::LoadsReply {
    let leaders = snapshot.leader_reports();
    let mut led: Vec<(ServerId, &TabletReport)> =
        leaders.values().flat_map(|(server, report)| report.tablets.iter().map(|tablet| (*server, tablet))).collect();
    let name = |table: TableId| match table {
        TableId::METADATA => METADATA.to_owned(),
        other => names.get(&other).cloned().unwrap_or_else(|| other.to_string()),
    };
    let mut tables: BTreeMap<TableId, operate::TableLoad> = BTreeMap::new();
    for (_server, tablet) in &led {
        let table = tablet.descriptor.table;
        let sum =
            tables.entry(table).or_insert_with(|| operate::TableLoad { table: name(table), ..Default::default() });
        sum.tablets += 1;
        sum.size_bytes = sum.size_bytes.saturating_add(tablet.size_bytes);
        sum.reads_per_second = sum.reads_per_second.saturating_add(tablet.load.reads_per_second);
        sum.writes_per_second = sum.writes_per_second.saturating_add(tablet.load.writes_per_second);
    }
    let (tables_total, tablets_total) = (tables.len() as u64, led.len() as u64);
    let mut tables: Vec<_> = tables.into_values().collect();
    tables.sort_by_key(|table| {
        (Reverse(table.reads_per_second.saturating_add(table.writes_per_second)), Reverse(table.size_bytes))
    });
    tables.truncate(LISTED_MAX);
    led.sort_by_key(|(_server, tablet)| {
        (Reverse(tablet.load.per_second()), Reverse(tablet.size_bytes), tablet.descriptor.tablet)
    });
    let tablet = |(server, report): &(ServerId, &TabletReport)| operate::LoadedTablet {
        table: name(report.descriptor.table),
        tablet: Some(convert::tablet_record_to_proto(&report.descriptor)),
        group: report.descriptor.group.get(),
        leader: server.get(),
        size_bytes: report.size_bytes,
        load: Some(convert::tablet_load_to_proto(&report.load)),
    };
    let tablets = led.iter().take(tablets_max).map(tablet).collect();
    operate::LoadsReply { tables, tablets, tables_total, tablets_total, quotas_unknown: 0 }
}

/// How much of each quota of a table is used. Pure.
fn quotas(schema: &TableSchema, usage: &TableUsage) -> Vec<operate::QuotaUse> {
    let mut sum = FamilyUsage::default();
    usage.values().for_each(|family| sum.add(*family));
    let mut found = quota_uses("", &schema.quotas.table, &sum);
    for (id, quota) in &schema.quotas.families {
        let name = schema.family_by_id(*id).map(|family| family.name.to_string()).unwrap_or_default();
        found.extend(quota_uses(&name, quota, &usage.get(id).copied().unwrap_or_default()));
    }
    found
}

fn quota_uses(family: &str, quota: &Quota, usage: &FamilyUsage) -> Vec<operate::QuotaUse> {
    use record::QuotaMeasure::{Cells, StoredBytes};
    let measures =
        [(StoredBytes, quota.limits.stored_bytes, usage.stored_bytes()), (Cells, quota.limits.cells, usage.cells)];
    let uses = measures.into_iter().filter_map(|(measure, limit, used)| {
        let (family, exceeded) = (family.to_owned(), used > limit?);
        Some(operate::QuotaUse { family, measure: measure.into(), used, limit: limit?, exceeded })
    });
    uses.collect()
}

#[cfg(test)]
mod tests {
    use ebla_model::cell::FamilyName;
    use ebla_model::id::{LogId, ReplicaId, SchemaVersion, TabletId, Term};
    use ebla_model::key::KeyRange;
    use ebla_model::metadata::TabletDescriptor;
    use ebla_model::quota::QuotaLimits;
    use ebla_model::schema::TableName;
    use ebla_model::tablet_load::TabletLoad;
    use ebla_model::time::Micros;

    use super::*;
    use crate::cluster::{ReplicaReport, Role, Server, ServerReport};

    /// One server that leads tablets: table, tablet, reads per second, bytes.
    fn cluster(tablets: &[(u64, u64, u64, u64)]) -> ClusterSnapshot {
        let id = ServerId::new(4);
        let report = |(table, tablet, reads, size_bytes): &(u64, u64, u64, u64)| TabletReport {
            descriptor: TabletDescriptor::initial(TableId::new(*table), TabletId::new(*tablet), KeyRange::all(), &[id]),
            size_bytes: *size_bytes,
            schema_version: SchemaVersion::new(1),
            load: TabletLoad { reads_per_second: *reads, writes_per_second: 1, ..TabletLoad::default() },
        };
        let replica = |tablet: &(u64, u64, u64, u64)| ReplicaReport {
            group: report(tablet).descriptor.group_descriptor(),
            replica: ReplicaId::new(1),
            role: Role::Leader,
            term: Term::new(1),
            tablets: vec![report(tablet)],
            applied: LogId::SEED,
            last: LogId::SEED,
            time: Micros::ZERO,
            settled: true,
            heard: [].into(),
            division: None,
        };
        let report = ServerReport { replicas: tablets.iter().map(replica).collect(), ..ServerReport::default() };
        let server = Server::registered(Some(report));
        ClusterSnapshot { servers: [(id, server)].into(), ..ClusterSnapshot::default() }
    }

    #[test]
    fn the_busiest_come_first() {
        let names = [(TableId::new(20), "web".to_owned())].into();
        let snapshot = cluster(&[(20, 7, 5, 10), (20, 8, 50, 10), (21, 9, 5, 900), (0, 1, 0, 1)]);
        let reply = summarize(&snapshot, &names, 3);
        let tables: Vec<_> = reply.tables.iter().map(|one| (one.table.as_str(), one.tablets, one.size_bytes)).collect();
        assert_eq!(tables, [("web", 2, 20), ("21", 1, 900), (METADATA, 1, 1)]);
        assert_eq!((reply.tables[0].reads_per_second, reply.tables[0].writes_per_second), (55, 2));
        let tablets: Vec<_> =
            reply.tablets.iter().map(|one| (one.tablet.as_ref().unwrap().tablet, one.leader)).collect();
        assert_eq!(tablets, [(8, 4), (9, 4), (7, 4)]);
        assert_eq!((reply.tables_total, reply.tablets_total), (3, 4));
    }

    #[test]
    fn quotas_of_tables_and_families_are_compared_with_what_is_used() {
        let name = TableName::from_parts("p", "i", "t").unwrap();
        let families = ["a", "b"].map(|family| (FamilyName::new(family).unwrap(), None));
        let schema = TableSchema::new(TableId::new(7), name, families).unwrap();
        let limits = |stored_bytes, cells| QuotaLimits { stored_bytes, cells };
        let schema = schema.with_quota(None, limits(Some(100), Some(10))).unwrap();
        let schema = schema.with_quota(Some("b"), limits(None, Some(3))).unwrap();
        let id = |name: &str| schema.family_by_name(name).unwrap().id;
        let of = |files_bytes, cells| FamilyUsage { files_bytes, cells, ..FamilyUsage::default() };
        let usage: TableUsage = [(id("a"), of(60, 4)), (id("b"), of(45, 4))].into();
        let uses: Vec<_> = quotas(&schema, &usage)
            .into_iter()
            .map(|one| (one.family.clone(), one.measure(), one.used, one.limit, one.exceeded))
            .collect();
        use record::QuotaMeasure::{Cells, StoredBytes};
        let expected = [
            (String::new(), StoredBytes, 105, 100, true),
            (String::new(), Cells, 8, 10, false),
            ("b".to_owned(), Cells, 4, 3, true),
        ];
        assert_eq!(uses, expected);
        assert!(quotas(&schema, &TableUsage::new()).iter().all(|one| one.used == 0));
    }
}
