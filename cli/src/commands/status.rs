//! `ebla status`: who is there and how much they hold.

use ebla_proto::operate;
use ebla_runtime::Runtime;
use serde_json::{Value, json};

use super::{Place, server};
use crate::output::{self, Failure, Format, Table};

/// Who is there and how much they hold.
#[derive(Debug, clap::Args)]
pub struct Status {
    /// Which cluster
    #[command(flatten)]
    pub place: Place,
}

/// Asks the master and shows its answer.
///
/// # Errors
/// When no cluster answers.
pub async fn run(status: Status, runtime: Runtime) -> Result<(), Failure> {
    let client = status.place.client(&runtime).await?;
    let reply = client.admin().status().await?;
    match status.place.output {
        Format::Json => output::print_json(&to_json(&reply)),
        Format::Table => output::print(&render(&reply)),
    }
    Ok(())
}

fn render(reply: &operate::StatusReply) -> String {
    let master = reply.master.as_ref().map_or("none", |master| master.address.as_str());
    let mut table = Table::new(&["SERVER", "ADDRESS", "STATE", "REPLICAS", "LEADS", "SIZE", "LOG"]);
    for one in &reply.servers {
        let known = one.server.clone().unwrap_or_default();
        table.row(vec![
            known.server.to_string(),
            known.address,
            server::state(one).to_owned(),
            one.replicas.to_string(),
            one.leads.to_string(),
            output::size(one.size_bytes),
            output::size(one.log_bytes),
        ]);
    }
    let tablets = if reply.trouble.is_empty() {
        format!("tables {}   tablets {}/{} led", reply.tables, reply.tablets_led, reply.tablets)
    } else {
        format!("tables and tablets unknown: {}", reply.trouble)
    };
    format!(
        "cluster {}   master {master} (epoch {})   {tablets}\n\n{}",
        hex(&reply.cluster),
        reply.master_epoch,
        table.render()
    )
}

fn to_json(reply: &operate::StatusReply) -> Value {
    json!({
        "cluster": hex(&reply.cluster),
        "master": reply.master.as_ref().map(|master| &master.address),
        "master_epoch": reply.master_epoch,
        "trouble": reply.trouble,
        "tables": reply.tables,
        "tablets": reply.tablets,
        "tablets_led": reply.tablets_led,
        "servers": reply.servers.iter().map(server::to_json).collect::<Vec<_>>(),
    })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
