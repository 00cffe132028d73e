//! `ebla table list`.

use std::collections::BTreeMap;

use ebla_client::{Client, QuotaMeasurement};
use ebla_model::capacity::readable_bytes;
use ebla_model::schema::TableName;
use ebla_proto::operate::TableLoad;
use ebla_runtime::Runtime;
use serde_json::{Value, json};

use crate::commands::{ClusterArguments, within_seconds};
use crate::output::{self, Columns, Failure, Format, Table};

/// Lists the tables of the instance.
///
/// # Errors
/// What the cluster answers.
pub(super) async fn list(cluster: &ClusterArguments, runtime: &Runtime) -> Result<(), Failure> {
    let client = cluster.client(runtime).await?;
    let names = client.admin().list_tables(&cluster.project, &cluster.instance).await?;
    let short: Vec<_> = names.iter().map(TableName::table).collect();
    match (cluster.output, output::columns()) {
        (Format::Json, _) => output::print_json(&to_json(&names)),
        (Format::Table, _) if short.is_empty() => output::note(&format!(
            "no tables in project {}, instance {}: create one with `ebla table create`",
            cluster.project, cluster.instance
        )),
        (Format::Table, Columns::Standard) => {
            output::print(&short.iter().map(|name| format!("{name}\n")).collect::<String>());
        }
        (Format::Table, Columns::Wide) => output::print(&render(&names, &loads(&client).await)),
    }
    Ok(())
}

/// The names without project and instance.
pub(in crate::commands) fn to_json(names: &[TableName]) -> Value {
    json!(names.iter().map(TableName::table).collect::<Vec<_>>())
}

/// The loads of tables by their names; none, with a note, when they are not known.
async fn loads(client: &Client) -> BTreeMap<String, TableLoad> {
    match within_seconds(client.admin()).loads(0, QuotaMeasurement::Skipped).await {
        Ok(loads) => loads.tables.into_iter().map(|load| (load.table.clone(), load)).collect(),
        Err(error) => {
            output::note(&format!("sizes and loads are unknown: {error}"));
            BTreeMap::new()
        }
    }
}

fn render(names: &[TableName], loads: &BTreeMap<String, TableLoad>) -> String {
    let mut table = Table::new(&["TABLE", "TABLETS", "SIZE", "READS/S", "WRITES/S"]);
    for name in names {
        let load = loads.get(name.as_str());
        let shown = |value: &dyn Fn(&TableLoad) -> String| load.map_or_else(|| "?".to_owned(), value);
        table.row(vec![
            name.table().to_owned(),
            shown(&|load| load.tablets.to_string()),
            shown(&|load| readable_bytes(load.size_bytes)),
            shown(&|load| load.reads_per_second.to_string()),
            shown(&|load| load.writes_per_second.to_string()),
        ]);
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_loads_are_shown_as_question_marks() {
        let name = |table| TableName::from_parts("p", "i", table).unwrap();
        let load = TableLoad { tablets: 3, size_bytes: 64 << 20, reads_per_second: 5, ..TableLoad::default() };
        let loads = [(name("web").to_string(), load)].into();
        let expected = "TABLE  TABLETS  SIZE      READS/S  WRITES/S\nlogs   ?        ?         ?        ?\n\
                        web    3        64.0 MiB  5        0\n";
        assert_eq!(render(&[name("logs"), name("web")], &loads), expected);
    }
}
