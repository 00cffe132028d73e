//! `ebla server`: the tablet servers of a cluster, one by one.

use ebla_proto::operate::ServerStatus;
use ebla_runtime::Runtime;
use serde_json::{Value, json};

use super::Place;
use crate::output::{self, Failure, Format, Table};

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
/// When no cluster answers, or no master is in office.
pub async fn run(command: Server, runtime: Runtime) -> Result<(), Failure> {
    let Server::List { place } = command;
    let client = place.client(&runtime).await?;
    let reply = client.admin().status().await?;
    if !reply.trouble.is_empty() {
        eprintln!("servers without a lease are not known: {}", reply.trouble);
    }
    let servers = reply.servers;
    match place.output {
        Format::Json => output::print_json(&servers.iter().map(to_json).collect()),
        Format::Table => output::print(&render(&servers)),
    }
    Ok(())
}

fn render(servers: &[ServerStatus]) -> String {
    let mut table =
        Table::new(&["SERVER", "ADDRESS", "STATE", "INCARNATION", "RELEASE", "REPLICAS", "LEADS", "SIZE", "LOG"]);
    for one in servers {
        let server = one.server.clone().unwrap_or_default();
        table.row(vec![
            server.server.to_string(),
            or_dash(server.address),
            state(one).to_owned(),
            if one.registered { incarnation(server.incarnation) } else { or_dash(String::new()) },
            or_dash(server.release),
            format!("{}/{}", one.replicas, one.assigned),
            one.leads.to_string(),
            output::size(one.size_bytes),
            output::size(one.log_bytes),
        ]);
    }
    table.render()
}

/// How a server is, in a word: `up`; `unreachable`, holding its lease without answering the master; `gone`, without a lease.
pub fn state(server: &ServerStatus) -> &'static str {
    match (server.registered, server.reachable) {
        (_, true) => "up",
        (true, false) => "unreachable",
        (false, false) => "gone",
    }
}

/// A server as programs read it.
pub fn to_json(one: &ServerStatus) -> Value {
    let server = one.server.clone().unwrap_or_default();
    json!({
        "id": server.server,
        "bigtable": server.address,
        "state": state(one),
        "registered": one.registered,
        "reachable": one.reachable,
        "incarnation": incarnation(server.incarnation),
        "release": server.release,
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

fn or_dash(text: String) -> String {
    if text.is_empty() { "-".to_owned() } else { text }
}
