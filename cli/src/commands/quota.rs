//! `ebla table quota`: how much a table and its families may store; and what they cost, for `ebla table describe`.

use ebla_client::Client;
use ebla_client::encoding;
use ebla_model::capacity::readable_bytes;
use ebla_model::error::Reason;
use ebla_model::quota::{FamilyUsage, Quota, QuotaLimits};
use ebla_model::schema::TableName;
use ebla_proto::{convert, operate, record};
use ebla_runtime::Runtime;
use ebla_runtime::units::ByteSize;
use serde_json::{Map, Value, json};

use super::TableArguments;
use crate::output::{self, Failure};
use crate::size;

/// Limit how much a table or a family may store
#[derive(Debug, clap::Subcommand)]
pub enum QuotaCommand {
    /// Set the quota of a table, or of one of its families
    ///
    /// It counts one replica of each tablet: bytes in files, compressed, with those that are not flushed yet; or cells, those that garbage
    /// collection has not removed yet included. It is compared with the table every 5 seconds. While it is exceeded, writes that store cells are
    /// refused with RESOURCE_EXHAUSTED, and deletions are accepted. Limits that are not named are removed.
    ///
    /// Examples:
    ///   ebla table quota set web --bytes 10GiB
    ///   ebla table quota set web --family contents --bytes 8GiB --cells 1000000
    #[command(verbatim_doc_comment)]
    Set {
        /// Which table
        #[command(flatten)]
        of: TableArguments,
        /// Name of the family; without it the table as a whole
        #[arg(long)]
        family: Option<String>,
        /// Largest number of bytes that are stored, such as 10GiB
        #[arg(long, value_name = "SIZE", value_parser = size::parse_or_zero, required_unless_present = "cells")]
        bytes: Option<ByteSize>,
        /// Largest number of cells that are stored
        #[arg(long, value_name = "COUNT")]
        cells: Option<u64>,
    },
    /// Remove the quota of a table, or of one of its families
    ///
    /// Example:
    ///   ebla table quota remove web --family contents
    #[command(verbatim_doc_comment)]
    Remove {
        /// Which table
        #[command(flatten)]
        of: TableArguments,
        /// Name of the family; without it the table as a whole
        #[arg(long)]
        family: Option<String>,
    },
}

/// Carries out the command.
///
/// # Errors
/// What the cluster answers.
pub async fn run(command: QuotaCommand, runtime: Runtime) -> Result<(), Failure> {
    let (of, family, limits) = match command {
        QuotaCommand::Set { of, family, bytes, cells } => {
            (of, family, QuotaLimits { stored_bytes: bytes.map(ByteSize::bytes), cells })
        }
        QuotaCommand::Remove { of, family } => (of, family, QuotaLimits::default()),
    };
    let name = of.name()?;
    let TableArguments { cluster, table } = of;
    let client = cluster.client(&runtime).await?;
    client.admin().set_quota(&name, family.as_deref(), limits).await?;
    let subject = family.map_or_else(|| table.clone(), |family| format!("{family} of {table}"));
    let done = match limits == QuotaLimits::default() {
        true => format!("{subject} has no quota"),
        false => format!("the quota of {subject} is {}", Quota { limits, exceeded: None }),
    };
    super::table::changed(&cluster, &client, &name, &done).await
}

/// What a table costs; `None` if the server is no Ebla.
///
/// # Errors
/// What the cluster answers.
pub(super) async fn usage(client: &Client, table: &TableName) -> Result<Option<operate::TableUsageReply>, Failure> {
    match client.admin().table_usage(table).await {
        Err(error) if error.reason == Reason::Unimplemented => Ok(None),
        usage => Ok(Some(usage?)),
    }
}

/// What one family costs, and its quota.
pub(super) fn of_family(cost: &operate::FamilyCost) -> (FamilyUsage, Quota) {
    let usage = cost.usage.as_ref().map(convert::family_usage_from_proto).unwrap_or_default();
    (usage, quota(cost.quota.as_ref()))
}

fn quota(quota: Option<&record::Quota>) -> Quota {
    // An unknown measure is one that a newer release counts.
    quota.and_then(|quota| convert::quota_from_proto(quota).ok()).unwrap_or_default()
}

/// The quota of the table as a whole.
pub(super) fn of_table(usage: &operate::TableUsageReply) -> Quota {
    quota(usage.quota.as_ref())
}

/// What a family costs, as JSON.
pub(super) fn usage_json(usage: &FamilyUsage) -> Value {
    json!({
        "files_bytes": usage.files_bytes,
        "memory_bytes": usage.memory_bytes(),
        "stored_bytes": usage.stored_bytes(),
        "cells": usage.cells,
        "cells_read": usage.cells_read,
        "cells_written": usage.cells_written,
    })
}

/// A quota as JSON; null without limits.
pub(super) fn quota_json(quota: &Quota) -> Value {
    match quota.limits {
        QuotaLimits { stored_bytes: None, cells: None } => Value::Null,
        QuotaLimits { stored_bytes, cells } => json!({
            "stored_bytes": stored_bytes,
            "cells": cells,
            "exceeded": quota.exceeded.is_some(),
        }),
    }
}

/// The tablets of a table with what their families cost, as JSON.
pub(super) fn tablets_json(usage: &operate::TableUsageReply) -> Value {
    let tablet = |cost: &operate::TabletCost| {
        let (tablet, range) = tablet_of(cost);
        let families = cost.families.iter().map(|family| (family.family.clone(), usage_json(&of_family(family).0)));
        json!({
            "tablet": tablet,
            "start": encoding::to_base64(&range.start),
            "end": range.end.as_deref().map(encoding::to_base64),
            "families": families.collect::<Map<_, _>>(),
        })
    };
    usage.tablets.iter().map(tablet).collect()
}

/// The same for people.
pub(super) fn tablets_text(usage: &operate::TableUsageReply) -> String {
    let mut shown = output::Table::new(&["TABLET", "RANGE", "FAMILY", "FILES", "MEMORY", "CELLS", "READ", "WRITTEN"]);
    for cost in &usage.tablets {
        let (tablet, range) = tablet_of(cost);
        let bound = |key: &[u8]| if key.is_empty() { "-".to_owned() } else { encoding::escape(key) };
        let (start, end) = (bound(&range.start), bound(range.end.as_deref().unwrap_or_default()));
        for family in &cost.families {
            let (usage, _quota) = of_family(family);
            let mut cells = vec![tablet.to_string(), format!("{start} to {end}"), family.family.clone()];
            cells.extend(columns(&usage));
            shown.row(cells);
        }
    }
    shown.render()
}

/// Files, memory, cells, cells read, cells written.
pub(super) fn columns(usage: &FamilyUsage) -> [String; 5] {
    [
        readable_bytes(usage.files_bytes),
        readable_bytes(usage.memory_bytes()),
        usage.cells.to_string(),
        usage.cells_read.to_string(),
        usage.cells_written.to_string(),
    ]
}

/// The tablet's id, and its rows.
fn tablet_of(cost: &operate::TabletCost) -> (u64, record::KeyRange) {
    let tablet = cost.tablet.clone().unwrap_or_default();
    (tablet.tablet, tablet.range.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use ebla_model::id::FamilyId;

    use super::*;

    fn cost(family: &str, limit: Option<u64>) -> operate::FamilyCost {
        let usage =
            FamilyUsage { files_bytes: 2_048, unflushed_bytes: 100, cells: 5, cells_read: 7, ..Default::default() };
        let limits = QuotaLimits { stored_bytes: limit, cells: None };
        operate::FamilyCost {
            family: family.to_owned(),
            usage: Some(convert::family_usage_to_proto(FamilyId::new(1), &usage)),
            quota: Some(convert::quota_to_proto(&Quota { limits, exceeded: None })),
        }
    }

    #[test]
    fn costs_are_shown_by_tablet_and_family() {
        let tablet = record::TabletRecord {
            tablet: 12,
            range: Some(record::KeyRange { start: "m".into(), end: None }),
            ..Default::default()
        };
        let usage = operate::TableUsageReply {
            tablets: vec![operate::TabletCost {
                tablet: Some(tablet),
                families: vec![cost("a", None), cost("b", None)],
            }],
            ..Default::default()
        };
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        let shown = tablets_text(&usage);
        let mut lines = shown.lines().skip(1);
        assert_eq!(lines.next().map(words).unwrap(), "12 m to - a 2.0 KiB 100 B 5 7 0");
        assert_eq!(lines.next().map(words).unwrap(), "12 m to - b 2.0 KiB 100 B 5 7 0");
        let json = tablets_json(&usage);
        assert_eq!((&json[0]["start"], &json[0]["end"]), (&json!("bQ=="), &Value::Null));
        assert_eq!(json[0]["families"]["b"]["stored_bytes"], json!(2_148));
    }

    #[test]
    fn a_quota_is_null_without_limits() {
        assert_eq!(quota_json(&of_family(&cost("a", None)).1), Value::Null);
        let expected = json!({ "stored_bytes": 9, "cells": null, "exceeded": false });
        assert_eq!(quota_json(&of_family(&cost("a", Some(9))).1), expected);
    }
}
