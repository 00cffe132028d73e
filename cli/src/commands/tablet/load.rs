//! `ebla tablet list --load`: sizes and loads of the tablets of a table.

use std::collections::BTreeMap;

use ebla_client::Client;
use ebla_client::locate::LeaderHint;
use ebla_model::capacity::readable_bytes;
use ebla_model::id::TabletId;
use ebla_model::metadata::TabletDescriptor;
use ebla_model::schema::TableName;
use ebla_model::tablet_load::TabletLoad;
use ebla_runtime::Runtime;
use serde_json::{Value, json};

use super::{mark_leader, servers, short};
use crate::commands::{ClusterArguments, within_seconds};
use crate::output::{self, Failure, Format, Table};
use ebla_client::encoding;

/// Sizes in bytes and loads, by tablet.
pub(super) type Loads = BTreeMap<TabletId, (u64, TabletLoad)>;

/// Lists the tablets of a table with their loads.
pub(super) async fn list(cluster: &ClusterArguments, table: &str, runtime: &Runtime) -> Result<(), Failure> {
    let name = cluster.table(table)?;
    let client = cluster.client(runtime).await?;
    let tablets: Vec<TabletDescriptor> = client.tablets(&name).await?.into_iter().map(|(tablet, _)| tablet).collect();
    let loads = client.admin().tablet_loads(&name).await?;
    match cluster.output {
        Format::Json => {
            let one = |tablet: &TabletDescriptor| to_json(tablet, loads.get(&tablet.tablet));
            output::print_json(&json!(tablets.iter().map(one).collect::<Vec<_>>()));
        }
        Format::Table if tablets.is_empty() => output::note(&format!("no tablets of {table}")),
        Format::Table => output::print(&render(&tablets, &loads)),
    }
    Ok(())
}

fn render(tablets: &[TabletDescriptor], loads: &Loads) -> String {
    let mut table = Table::new(&["TABLET", "GROUP", "START", "END", "SIZE", "READS/S", "WRITES/S", "HOT ROW"]);
    for tablet in tablets {
        let mut row = vec![
            tablet.tablet.to_string(),
            tablet.group.to_string(),
            short(tablet.range.start()),
            tablet.range.end().map_or("(end)".to_owned(), short),
        ];
        row.extend(load_cells(loads.get(&tablet.tablet)));
        table.row(row);
    }
    table.render()
}

/// The loads of a table's tablets; none, with a note, when they are not known.
pub(super) async fn known(client: &Client, name: &TableName) -> Loads {
    within_seconds(client.admin()).tablet_loads(name).await.unwrap_or_else(|error| {
        output::note(&format!("sizes and loads are unknown: {error}"));
        Loads::new()
    })
}

/// Tablets with their servers and their loads.
pub(super) fn render_wide(tablets: &[(TabletDescriptor, Option<LeaderHint>)], loads: &Loads) -> String {
    let mut table = Table::new(&[
        "TABLET",
        "GROUP",
        "GENERATION",
        "START",
        "END",
        "SERVERS (* LEADS)",
        "SIZE",
        "READS/S",
        "WRITES/S",
        "HOT ROW",
    ]);
    for (tablet, leader) in tablets {
        let mut row = vec![
            tablet.tablet.to_string(),
            tablet.group.to_string(),
            tablet.generation.to_string(),
            short(tablet.range.start()),
            tablet.range.end().map_or("(end)".to_owned(), short),
            mark_leader(&servers(tablet), leader.map(|leader| leader.server.get())),
        ];
        row.extend(load_cells(loads.get(&tablet.tablet)));
        table.row(row);
    }
    table.render()
}

/// Size, reads, writes and hot row.
fn load_cells(known: Option<&(u64, TabletLoad)>) -> [String; 4] {
    let shown = |value: &dyn Fn(&(u64, TabletLoad)) -> String| known.map_or_else(|| "?".to_owned(), value);
    [
        shown(&|(bytes, _load)| readable_bytes(*bytes)),
        shown(&|(_bytes, load)| load.reads_per_second.to_string()),
        shown(&|(_bytes, load)| load.writes_per_second.to_string()),
        shown(&|(_bytes, load)| load.hot_row.as_ref().map(short).unwrap_or_default()),
    ]
}

pub(in crate::commands) fn to_json(tablet: &TabletDescriptor, known: Option<&(u64, TabletLoad)>) -> Value {
    let load = known.map(|(_bytes, load)| load);
    json!({
        "tablet": tablet.tablet.get(),
        "group": tablet.group.get(),
        "start": encoding::to_base64(tablet.range.start().as_bytes()),
        "end": tablet.range.end().map(|end| encoding::to_base64(end.as_bytes())),
        "size_bytes": known.map(|(bytes, _load)| *bytes),
        "reads_per_second": load.map(|load| load.reads_per_second),
        "writes_per_second": load.map(|load| load.writes_per_second),
        "hot_row": load.and_then(|load| load.hot_row.as_ref()).map(|row| encoding::to_base64(row.as_bytes())),
    })
}

#[cfg(test)]
mod tests {
    use ebla_model::id::{ServerId, TableId};
    use ebla_model::key::{KeyRange, RowKey};

    use super::*;

    #[test]
    fn unknown_loads_are_no_zeros() {
        let tablet =
            |id, range| TabletDescriptor::initial(TableId::new(5), TabletId::new(id), range, &[ServerId::new(1)]);
        let middle = RowKey::new("m");
        let low = KeyRange::new(RowKey::EMPTY, Some(middle.clone())).unwrap();
        let tablets = [tablet(7, low), tablet(8, KeyRange::new(middle, None).unwrap())];
        let load = TabletLoad {
            reads_per_second: 1_200,
            writes_per_second: 30,
            hot_row: Some(RowKey::new("k")),
            ..TabletLoad::default()
        };
        let loads = [(TabletId::new(7), (64 << 20, load))].into();
        let text = render(&tablets, &loads);
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1][2..4], ["(start)", "m"]);
        assert_eq!(lines[1][lines[1].len() - 3..], ["1200", "30", "k"]);
        assert_eq!(lines[2][4..], ["?", "?", "?", "?"]);
        let wide = render_wide(&tablets.clone().map(|tablet| (tablet, None)), &loads);
        let lines: Vec<Vec<&str>> = wide.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1], ["7", "7", "1", "(start)", "m", "1", "64.0", "MiB", "1200", "30", "k"]);
        assert_eq!(lines[2][5..], ["1", "?", "?", "?", "?"]);
        assert_eq!(to_json(&tablets[1], None)["reads_per_second"], Value::Null);
        assert_eq!(to_json(&tablets[0], loads.get(&TabletId::new(7)))["hot_row"], "aw==");
    }
}
