//! `ebla meta lookup`: the three-level lookup of a row key, step by step, with the cost of each step.

use ebla_client::locate::Hop;
use ebla_model::key::RowKey;
use ebla_runtime::Runtime;
use serde_json::{Value, json};

use super::{ClusterArguments, tablet};
use crate::encoding;
use crate::output::{self, Failure, Format, Table};

/// Look up which tablet holds a row
///
/// Example:
///   ebla meta lookup web com.cnn.www
#[derive(Debug, clap::Subcommand)]
#[command(verbatim_doc_comment)]
pub enum Meta {
    /// Show each step of the lookup from the lock service to the tablet that holds KEY, with its source and its cost
    ///
    /// Examples:
    ///   ebla meta lookup web com.cnn.www
    ///   ebla meta lookup web com.cnn.www --times 2
    ///
    /// With -o json the keys `start` and `end` of the tablet are base64.
    #[command(verbatim_doc_comment)]
    Lookup {
        /// Which cluster
        #[command(flatten)]
        cluster: ClusterArguments,
        /// Name of the table
        table: String,
        /// Key of the row; bytes as \xHH
        #[arg(value_parser = encoding::parse_key)]
        key: RowKey,
        /// Number of lookups; from the second one on the cache answers
        #[arg(long, default_value_t = 1)]
        times: u8,
    },
}

/// Carries out the command.
///
/// # Errors
/// What the cluster answers.
pub async fn run(command: Meta, runtime: Runtime) -> Result<(), Failure> {
    let Meta::Lookup { cluster, table, key, times } = command;
    let name = cluster.table(&table)?;
    let client = cluster.client(&runtime).await?;
    for _ in 0..times.max(1) {
        let found = client.locate(&name, &key).await?;
        let held_by = &found.tablet.descriptor;
        let leader = found.tablet.leader.map(|leader| leader.server.get());
        if cluster.output == Format::Json {
            output::print_json(&json!({
                "tablet": held_by.tablet.get(),
                "group": held_by.group.get(),
                "servers": tablet::servers(held_by),
                "start": encoding::to_base64(held_by.range.start().as_bytes()),
                "end": held_by.range.end().map(|end| encoding::to_base64(end.as_bytes())),
                "leader": leader,
                "hops": found.trace.iter().map(hop_json).collect::<Vec<_>>(),
            }));
        } else {
            output::print(&render(&found.trace));
            let replicas = tablet::mark_leader(&tablet::servers(held_by), leader);
            let leader = leader.map_or("unknown".to_owned(), |server| format!("server {server}"));
            output::print(&format!(
                "tablet {} of group {} holds it; servers: {replicas}; leader: {leader}\n",
                held_by.tablet, held_by.group
            ));
        }
    }
    Ok(())
}

fn render(trace: &[Hop]) -> String {
    let mut table = Table::new(&["LEVEL", "TABLET", "GROUP", "FROM", "ROUND TRIPS", "MS"]);
    for hop in trace {
        table.row(vec![
            hop.level.to_string(),
            hop.tablet.to_string(),
            hop.group.to_string(),
            hop.source.to_string(),
            hop.round_trips.to_string(),
            format!("{:.3}", hop.took.as_secs_f64() * 1000.0),
        ]);
    }
    table.render()
}

fn hop_json(hop: &Hop) -> Value {
    json!({
        "level": hop.level.to_string(),
        "tablet": hop.tablet.get(),
        "group": hop.group.get(),
        "from": hop.source.to_string(),
        "round_trips": hop.round_trips,
        "micros": u64::try_from(hop.took.as_micros()).unwrap_or(u64::MAX),
    })
}
