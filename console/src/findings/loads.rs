//! Checks of loads and quotas.

use ebla_client::snapshot::ClusterSnapshot;
use ebla_model::capacity::readable_bytes;
use ebla_proto::operate::{LoadedTablet, LoadsReply, QuotaUse};
use ebla_proto::record::QuotaMeasure;

use super::{Finding, Severity, percent};

/// The name of METADATA in loads. It is the cluster's own, and splits and merges by itself.
const METADATA: &str = "METADATA";
/// A tablet with fewer requests per second is never hot, and neither is a row of it. It is the default of `--split-load`.
const HOT_PER_SECOND: u64 = 2_000;
/// A hot tablet has at least this part of the requests of the cluster.
const HOT_PERCENT: u64 = 50;
/// From this use of a quota on, it is nearly used up.
const QUOTA_PERCENT: u64 = 90;
/// The most findings of one check: the busiest tablets.
const LISTED_MAX: usize = 5;

pub(super) fn findings(snapshot: &ClusterSnapshot, loads: &LoadsReply) -> Vec<Finding> {
    let mut found: Vec<Finding> = loads.tablets.iter().filter_map(hot_row).take(LISTED_MAX).collect();
    if snapshot.servers.len() > 1 {
        found.extend(loads.tablets.iter().filter_map(|tablet| hot_tablet(loads, tablet)));
    }
    let uses = loads.tables.iter().flat_map(|table| table.quotas.iter().map(|used| (table.table.as_str(), used)));
    found.extend(uses.filter_map(|(table, used)| quota(table, used)));
    found
}

fn place(tablet: &LoadedTablet) -> String {
    let id = tablet.tablet.as_ref().map_or(0, |tablet| tablet.tablet);
    format!("tablet {id} of {} on tablet server {}", tablet.table, tablet.leader)
}

fn per_second(tablet: &LoadedTablet) -> u64 {
    tablet.load.as_ref().map_or(0, |load| load.reads_per_second.saturating_add(load.writes_per_second))
}

/// The last part of the name of a table, for commands.
fn short(table: &str) -> &str {
    table.rsplit('/').next().unwrap_or(table)
}

fn hot_row(tablet: &LoadedTablet) -> Option<Finding> {
    tablet.load.as_ref()?.hot_row.as_ref()?;
    if tablet.table == METADATA || per_second(tablet) < HOT_PER_SECOND {
        return None;
    }
    Some(Finding {
        check: "hot-row",
        severity: Severity::Warning,
        place: place(tablet),
        since: None,
        problem: format!(
            "one row has most of its {} requests per second, and a row cannot be divided between servers",
            per_second(tablet)
        ),
        next_step: format!(
            "ebla tablet list {} --load shows the row; spread its cells over several rows, or cache what is read of it",
            short(&tablet.table)
        ),
    })
}

fn hot_tablet(loads: &LoadsReply, tablet: &LoadedTablet) -> Option<Finding> {
    let sum = |table: &ebla_proto::operate::TableLoad| table.reads_per_second.saturating_add(table.writes_per_second);
    let all: u64 = loads.tables.iter().map(sum).fold(0, u64::saturating_add);
    let busy = per_second(tablet);
    let part = percent(busy, all).filter(|part| *part >= HOT_PERCENT && busy >= HOT_PER_SECOND)?;
    let has_hot_row = tablet.load.as_ref().is_some_and(|load| load.hot_row.is_some());
    (!has_hot_row).then(|| Finding {
        check: "hot-tablet",
        severity: Severity::Warning,
        place: place(tablet),
        since: None,
        problem: format!("it has {part} % of the {all} requests per second of the cluster, on one server"),
        next_step: if tablet.table == METADATA {
            "it splits by itself when it is above --split-load for some seconds; clients that remember locations read it \
             seldom: look for those that connect for each request"
                .to_owned()
        } else {
            format!(
                "it splits by itself when it is above --split-load for some seconds; ebla tablet split {} splits it now",
                split_argument(tablet)
            )
        },
    })
}

fn split_argument(tablet: &LoadedTablet) -> String {
    format!("--tablet {}", tablet.tablet.as_ref().map_or(0, |tablet| tablet.tablet))
}

fn quota(table: &str, used: &QuotaUse) -> Option<Finding> {
    let part = percent(used.used, used.limit)?;
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
        severity: Severity::Warning,
        place: subject,
        since: None,
        problem: format!("{part} % of its quota are used, {} of {}: {consequence}", show(used.used), show(used.limit)),
        next_step: format!("delete cells, or change the quota: ebla table quota set {}", short(table)),
    })
}
