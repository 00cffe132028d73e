//! `ebla tablet`: list, split.

use ebla_client::locate::LeaderHint;
use ebla_model::key::RowKey;
use ebla_model::metadata::TabletDescriptor;
use ebla_runtime::Runtime;
use serde_json::{Value, json};

use super::Place;
use crate::output::{self, Failure, Format, Table};

/// Tablets.
#[derive(Debug, clap::Subcommand)]
pub enum Tablet {
    /// The tablets of a table, and the servers they live on
    List {
        /// Which cluster
        #[command(flatten)]
        place: Place,
        /// The table's name
        table: String,
    },
    /// Cut a tablet in two
    ///
    /// Examples:
    ///   ebla tablet split web --at org.
    ///   ebla tablet split web --within com.cnn.www
    #[command(verbatim_doc_comment)]
    Split {
        /// Which cluster
        #[command(flatten)]
        place: Place,
        /// The table's name
        table: String,
        /// The first row of the right half
        #[arg(long, value_name = "KEY", required_unless_present = "within")]
        at: Option<String>,
        /// A row of the tablet to halve; the server picks the key
        #[arg(long, value_name = "KEY", conflicts_with = "at")]
        within: Option<String>,
    },
}

/// Carries out the command.
///
/// # Errors
/// What the cluster answers.
pub async fn run(command: Tablet, runtime: Runtime) -> Result<(), Failure> {
    match command {
        Tablet::List { place, table } => {
            let name = place.table(&table)?;
            let client = place.client(&runtime).await?;
            let tablets = client.tablets(&name).await?;
            if place.output == Format::Json {
                let one = |(tablet, leader): &(TabletDescriptor, Option<LeaderHint>)| to_json(tablet, *leader);
                output::print_json(&json!(tablets.iter().map(one).collect::<Vec<_>>()));
            } else {
                output::print(&render(&tablets));
            }
            Ok(())
        }
        Tablet::Split { place, table, at, within } => {
            let name = place.table(&table)?;
            let at = at.as_deref().map(RowKey::parse_escaped).transpose()?;
            let within = within.as_deref().map_or(Ok(RowKey::EMPTY), RowKey::parse_escaped)?;
            let client = place.client(&runtime).await?;
            let (left, right) = client.admin().split(&name, at.as_ref(), &within).await?;
            if place.output == Format::Json {
                output::print_json(&json!([to_json(&left, None), to_json(&right, None)]));
            } else {
                output::print(&render(&[(left, None), (right, None)]));
            }
            Ok(())
        }
    }
}

/// Tablets as a table: range, generation, servers; the one that leads is marked.
pub fn render(tablets: &[(TabletDescriptor, Option<LeaderHint>)]) -> String {
    let mut table = Table::new(&["TABLET", "GENERATION", "START", "END", "SERVERS (* LEADS)"]);
    for (tablet, leader) in tablets {
        let servers =
            servers(tablet).into_iter().map(|id| match leader.is_some_and(|leader| leader.server.get() == id) {
                true => format!("{id}*"),
                false => id.to_string(),
            });
        table.row(vec![
            tablet.tablet.to_string(),
            tablet.generation.to_string(),
            short(tablet.range.start()),
            tablet.range.end().map_or("(end)".to_owned(), short),
            servers.collect::<Vec<_>>().join(" "),
        ]);
    }
    table.render()
}

fn short(key: &RowKey) -> String {
    if key.is_empty() { "(start)".to_owned() } else { key.to_string() }
}

fn servers(tablet: &TabletDescriptor) -> Vec<u64> {
    tablet.membership.replicas().map(|replica| replica.server.get()).collect()
}

fn to_json(tablet: &TabletDescriptor, leader: Option<LeaderHint>) -> Value {
    json!({
        "tablet": tablet.tablet.get(),
        "generation": tablet.generation.get(),
        "start": tablet.range.start().to_string(),
        "end": tablet.range.end().map(ToString::to_string),
        "servers": servers(tablet),
        "leader": leader.map(|leader| leader.server.get()),
    })
}
