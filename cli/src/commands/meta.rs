//! `ebla meta lookup`: the three-level lookup of a row key, step by step, with the cost of each step. `ebla meta list`: METADATA's own tablets.

use ebla_client::locate::Hop;
use ebla_client::metadata::MetadataTablet;
use ebla_model::id::TabletId;
use ebla_model::key::RowKey;
use ebla_model::metadata::TabletDescriptor;
use ebla_runtime::Runtime;
use serde_json::{Value, json};

use super::{ClusterArguments, tablet};
use crate::output::{self, Failure, Format, Table};
use ebla_client::encoding;

/// Look up which tablet holds a row, and list the tablets of METADATA
///
/// Examples:
///   ebla meta lookup web com.cnn.www
///   ebla meta list
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
    /// List the tablets of METADATA: the root tablet, then those of the second level, with the ranges of their rows
    ///
    /// Examples:
    ///   ebla meta list
    ///   ebla meta list -o json
    ///
    /// ROWS is how many tablets a tablet of METADATA lists, BYTES its approximate size. START is inclusive, END is exclusive; a key of METADATA is
    /// the number of a table and the end of a tablet. With -o json both keys are base64, and the end of the last tablet is null.
    #[command(verbatim_doc_comment)]
    List {
        /// Which cluster
        #[command(flatten)]
        cluster: ClusterArguments,
    },
}

/// Carries out the command.
///
/// # Errors
/// What the cluster answers.
pub async fn run(command: Meta, runtime: Runtime) -> Result<(), Failure> {
    let (cluster, table, key, times) = match command {
        Meta::List { cluster } => return list(&cluster, &runtime).await,
        Meta::Lookup { cluster, table, key, times } => (cluster, table, key, times),
    };
    let name = cluster.table(&table)?;
    let client = cluster.client(&runtime).await?;
    for _ in 0..times.max(1) {
        let found = client.locate(&name, &key).await?;
        let held_by = &found.tablet.descriptor;
        let leader = found.tablet.leader.map(|leader| leader.server.get());
        if cluster.output == Format::Json {
            output::print_json(&located_json(held_by, leader, &found.trace));
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

/// A tablet that was located, with the way to it.
pub(super) fn located_json(held_by: &TabletDescriptor, leader: Option<u64>, trace: &[Hop]) -> Value {
    json!({
        "tablet": held_by.tablet.get(),
        "group": held_by.group.get(),
        "servers": tablet::servers(held_by),
        "start": encoding::to_base64(held_by.range.start().as_bytes()),
        "end": held_by.range.end().map(|end| encoding::to_base64(end.as_bytes())),
        "leader": leader,
        "hops": trace.iter().map(hop_json).collect::<Vec<_>>(),
    })
}

async fn list(cluster: &ClusterArguments, runtime: &Runtime) -> Result<(), Failure> {
    let tablets = cluster.client(runtime).await?.metadata_tablets().await?;
    match cluster.output {
        Format::Json => output::print_json(&json!(tablets.iter().map(tablet_json).collect::<Vec<_>>())),
        Format::Table => output::print(&render_list(&tablets)),
    }
    Ok(())
}

fn render_list(tablets: &[MetadataTablet]) -> String {
    let mut table =
        Table::new(&["LEVEL", "TABLET", "GENERATION", "START", "END", "ROWS", "BYTES", "SERVERS (* LEADS)"]);
    for MetadataTablet { descriptor, leader, rows, size_bytes } in tablets {
        let leader = leader.map(|leader| leader.server.get());
        table.row(vec![
            if descriptor.tablet == TabletId::ROOT { "root" } else { "second" }.to_owned(),
            descriptor.tablet.to_string(),
            descriptor.generation.to_string(),
            tablet::short(descriptor.range.start()),
            descriptor.range.end().map_or("(end)".to_owned(), tablet::short),
            rows.to_string(),
            size_bytes.map_or("?".to_owned(), |bytes| bytes.to_string()),
            tablet::mark_leader(&tablet::servers(descriptor), leader),
        ]);
    }
    table.render()
}

pub(super) fn tablet_json(of: &MetadataTablet) -> Value {
    let MetadataTablet { descriptor, leader, rows, size_bytes } = of;
    json!({
        "tablet": descriptor.tablet.get(),
        "root": descriptor.tablet == TabletId::ROOT,
        "generation": descriptor.generation.get(),
        "start": encoding::to_base64(descriptor.range.start().as_bytes()),
        "end": descriptor.range.end().map(|end| encoding::to_base64(end.as_bytes())),
        "rows": rows,
        "bytes": size_bytes,
        "servers": tablet::servers(descriptor),
        "leader": leader.map(|leader| leader.server.get()),
    })
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
