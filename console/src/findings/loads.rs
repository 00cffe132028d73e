//! Checks of loads and quotas.

use ebla_client::snapshot::{ClusterSnapshot, ServerSnapshot};
use ebla_model::capacity::{Usage, readable_bytes};
use ebla_model::id::TableId;
use ebla_model::schema::TableName;
use ebla_model::tablet_load::{ClusterLoad, HOT_PER_SECOND, Hotspot, TabletLoad};
use ebla_proto::convert::tablet_load_from_proto;
use ebla_proto::operate::{LoadedTablet, LoadsReply, ProblemKind, QuotaUse, TableLoad};
use ebla_proto::record::QuotaMeasure;

use super::{Finding, Severity};
use crate::context::short_name;
use crate::html::Path;

/// From this use of a quota on, it is nearly used up.
const QUOTA_PERCENT: u64 = 90;
/// The most findings of one check: the busiest tablets.
const LISTED_MAX: usize = 5;

pub(super) fn findings(snapshot: &ClusterSnapshot, loads: &LoadsReply) -> Vec<Finding> {
    let sum = |table: &TableLoad| table.reads_per_second.saturating_add(table.writes_per_second);
    let per_second = loads.tables.iter().map(sum).fold(0, u64::saturating_add);
    let cluster = ClusterLoad { per_second, servers: snapshot.servers.len() };
    let busy = || loads.tablets.iter().map(BusyTablet::of);
    let of_row = |tablet: BusyTablet<'_>| match tablet.load.hotspot(tablet.table, cluster)? {
        Hotspot::Row => Some(tablet.hot_row(snapshot)),
        Hotspot::Tablet { .. } => None,
    };
    let of_tablet = |tablet: BusyTablet<'_>| match tablet.load.hotspot(tablet.table, cluster)? {
        Hotspot::Row => None,
        Hotspot::Tablet { percent } => Some(tablet.hot_tablet(snapshot, percent, per_second)),
    };
    let mut found: Vec<Finding> = busy().filter_map(of_row).take(LISTED_MAX).collect();
    found.extend(busy().filter_map(of_tablet));
    let uses = loads.tables.iter().flat_map(|table| table.quotas.iter().map(|used| (table.table.as_str(), used)));
    found.extend(uses.filter_map(|(table, used)| quota(table, used)));
    found
}

/// The load of a server is the sum of the tablets that it leads, so none of a quiet server is hot. The load of a server that responds may be
/// unknown: without a master, or to one of an earlier release.
pub(super) fn may_be_hot(snapshot: &ClusterSnapshot) -> bool {
    let is_quiet = |server: &ServerSnapshot| match (server.reads_per_second, server.writes_per_second) {
        (Some(reads), Some(writes)) => reads.saturating_add(writes) < HOT_PER_SECOND,
        _ => !server.is_reachable,
    };
    !snapshot.servers.iter().all(is_quiet)
}

/// The last part of the name of a table, for commands.
fn short(table: &str) -> &str {
    table.rsplit('/').next().unwrap_or(table)
}

/// A page about a table; METADATA has none.
fn page(table: &str, of_table: &[&str]) -> Option<Path> {
    let name: TableName = table.parse().ok()?;
    Some(Path::of(&[&["tables", short_name(&name)][..], of_table].concat()))
}

/// A tablet with its load.
struct BusyTablet<'a> {
    of: &'a LoadedTablet,
    /// Its number.
    tablet: u64,
    table: TableId,
    load: TabletLoad,
}

impl<'a> BusyTablet<'a> {
    fn of(of: &'a LoadedTablet) -> Self {
        let (tablet, table) = of.tablet.as_ref().map_or((0, 0), |record| (record.tablet, record.table));
        let load = of.load.as_ref().map(tablet_load_from_proto).unwrap_or_default();
        Self { of, tablet, table: TableId::new(table), load }
    }

    /// A finding about it. `check`: with the kind of problem by which the master knows its time.
    fn finding(
        &self,
        snapshot: &ClusterSnapshot,
        (check, kind): (&'static str, ProblemKind),
        (problem, next_step): (String, String),
    ) -> Finding {
        let place = format!("tablet {} of {} on tablet server {}", self.tablet, self.of.table, self.of.leader);
        let since = snapshot.since_of_tablet(kind, self.tablet);
        let page = page(&self.of.table, &["tablets"]);
        Finding { check, page, severity: Severity::Warning, place, since, problem, next_step }
    }

    fn hot_row(&self, snapshot: &ClusterSnapshot) -> Finding {
        let busy = self.load.per_second();
        let problem =
            format!("one row has most of its {busy} requests per second, and a row cannot be divided between servers");
        let table = short(&self.of.table);
        let next_step = format!(
            "ebla tablet list {table} --load shows the row; spread its cells over several rows, or cache what is read of it"
        );
        self.finding(snapshot, ("hot-row", ProblemKind::HotRow), (problem, next_step))
    }

    /// `percent`: its part of `all` requests per second.
    fn hot_tablet(&self, snapshot: &ClusterSnapshot, percent: u64, all: u64) -> Finding {
        let problem = format!("it has {percent} % of the {all} requests per second of the cluster, on one server");
        let splits = "it splits by itself when it is above --split-load for some seconds";
        let next_step = if self.table == TableId::METADATA {
            format!(
                "{splits}; clients that remember locations read it seldom: look for those that connect for each request"
            )
        } else {
            format!("{splits}; ebla tablet split --tablet {} splits it now", self.tablet)
        };
        self.finding(snapshot, ("hot-tablet", ProblemKind::HotTablet), (problem, next_step))
    }
}

fn quota(table: &str, used: &QuotaUse) -> Option<Finding> {
    let part = Usage { used: used.used, limit: used.limit }.percent()?;
    if part < QUOTA_PERCENT && !used.exceeded {
        return None;
    }
    let show = |amount: u64| match used.measure() {
        QuotaMeasure::Cells => format!("{amount} cells"),
        QuotaMeasure::StoredBytes | QuotaMeasure::None => readable_bytes(amount),
    };
    let consequence = if used.exceeded { "further cells are refused" } else { "beyond it further cells are refused" };
    let subject = if used.family.is_empty() { table.to_owned() } else { format!("family {} of {table}", used.family) };
    Some(Finding {
        check: "quota",
        page: page(table, &[]),
        severity: Severity::Warning,
        place: subject,
        since: None,
        problem: format!("{part} % of its quota are used, {} of {}: {consequence}", show(used.used), show(used.limit)),
        next_step: format!("delete cells, or change the quota: ebla table quota set {}", short(table)),
    })
}

#[cfg(test)]
mod tests {
    use ebla_proto::record::{TabletLoad as TabletLoadRecord, TabletRecord};

    use super::*;

    /// Reads and writes per second of servers that respond, and of one that does not.
    fn cluster(servers: &[Option<(u64, u64)>]) -> ClusterSnapshot {
        let server = |load: &Option<(u64, u64)>| ServerSnapshot {
            is_reachable: true,
            reads_per_second: load.map(|(reads, _writes)| reads),
            writes_per_second: load.map(|(_reads, writes)| writes),
            ..ServerSnapshot::default()
        };
        let servers = servers.iter().map(server).chain([ServerSnapshot::default()]).collect();
        ClusterSnapshot { servers, ..ClusterSnapshot::default() }
    }

    #[test]
    fn only_a_busy_server_or_one_of_unknown_load_may_lead_a_hot_tablet() {
        let may = |servers: &[Option<(u64, u64)>]| may_be_hot(&cluster(servers));
        assert!(!may(&[]) && !may(&[Some((0, 0)), Some((HOT_PER_SECOND - 2, 1))]));
        assert!(may(&[Some((0, 0)), Some((HOT_PER_SECOND - 1, 1))]) && may(&[Some((0, u64::MAX))]));
        assert!(may(&[Some((0, 0)), None]), "nothing is known of it");
    }

    /// The loads are not requested while no server is busy enough: nothing may be found in them then.
    #[test]
    fn no_tablet_of_a_quiet_server_is_hot() {
        for (reads, expected) in [(HOT_PER_SECOND - 1, 0), (HOT_PER_SECOND, 1)] {
            for has_hot_row in [false, true] {
                let snapshot = cluster(&[Some((reads, 0)), Some((0, 0))]);
                let hot_row = has_hot_row.then(|| "row".into());
                let load = TabletLoadRecord { reads_per_second: reads, hot_row, ..TabletLoadRecord::default() };
                let tablet = Some(TabletRecord { table: 5, tablet: 7, ..TabletRecord::default() });
                let busy = LoadedTablet { tablet, load: Some(load), ..LoadedTablet::default() };
                let table = TableLoad { reads_per_second: reads, ..TableLoad::default() };
                let loads = LoadsReply { tables: vec![table], tablets: vec![busy], ..LoadsReply::default() };
                assert_eq!(findings(&snapshot, &loads).len(), expected, "{reads} {has_hot_row}");
                assert_eq!(may_be_hot(&snapshot), expected > 0, "{reads} {has_hot_row}");
            }
        }
    }
}
