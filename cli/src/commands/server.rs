//! `ebla server`: the tablet servers of a cluster, one by one.

use std::fmt;

use ebla_runtime::Runtime;
use serde_json::{Value, json};

use super::{Place, status};
use crate::output::{self, Failure, Format, Table};
use crate::picture;

/// What is asked about servers.
#[derive(Debug, clap::Subcommand)]
pub enum Server {
    /// List the tablet servers: those that live, and those that METADATA has replicas on
    List {
        /// Which cluster
        #[command(flatten)]
        place: Place,
    },
}

/// Carries out the command.
///
/// # Errors
/// When no cluster answers.
pub async fn run(command: Server, runtime: Runtime) -> Result<(), Failure> {
    let Server::List { place } = command;
    let picture = status::picture(&place, &runtime).await?;
    if let Some(error) = &picture.master_error {
        eprintln!("no master answers, so replicas and sizes are unknown: {error}");
    }
    if let Some(error) = &picture.metadata_error {
        eprintln!("some servers without a lease may be missing: {error}");
    }
    match place.output {
        Format::Json => output::print_json(&picture.servers.iter().map(to_json).collect()),
        Format::Table => output::print(&render(&picture.servers)),
    }
    Ok(())
}

fn render(servers: &[picture::Server]) -> String {
    let mut table =
        Table::new(&["SERVER", "ADDRESS", "STATE", "INCARNATION", "RELEASE", "REPLICAS", "LEADS", "SIZE", "LOG"]);
    for one in servers {
        let replicas = match (one.replicas, one.assigned) {
            (None, None) => "-".to_owned(),
            (replicas, assigned) => format!("{}/{}", or_dash(replicas), or_dash(assigned)),
        };
        table.row(vec![
            one.id.to_string(),
            or_dash(one.address.clone()),
            one.state().to_owned(),
            or_dash(one.incarnation.map(incarnation)),
            or_dash(one.release.clone()),
            replicas,
            or_dash(one.leads),
            or_dash(one.size_bytes.map(output::size)),
            or_dash(one.log_bytes.map(output::size)),
        ]);
    }
    table.render()
}

/// A server as programs read it; what is unknown is null.
pub fn to_json(one: &picture::Server) -> Value {
    json!({
        "id": one.id,
        "bigtable": one.address,
        "state": one.state(),
        "registered": one.is_registered,
        "reachable": one.is_reachable,
        "incarnation": one.incarnation.map(incarnation),
        "release": one.release,
        "replicas": one.replicas,
        "assigned": one.assigned,
        "leads": one.leads,
        "size_bytes": one.size_bytes,
        "log_bytes": one.log_bytes,
    })
}

/// As text: not every program reads numbers of 64 bits.
fn incarnation(number: u64) -> String {
    format!("{number:016x}")
}

/// What is known, or a dash.
pub(super) fn or_dash(known: Option<impl fmt::Display>) -> String {
    known.map_or_else(|| "-".to_owned(), |known| known.to_string())
}
