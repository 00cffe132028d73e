//! `ebla status`: whether a cluster is well, who is there, and how much they hold.

use ebla_model::error::Reason;
use ebla_runtime::Runtime;
use serde_json::{Value, json};

use super::{Place, given_timeout, server, unreachable};
use crate::output::{self, Failure, Format, Table};
use crate::picture::{Picture, look};
use crate::verdict::{Level, Verdict, judge};

/// Show whether the cluster is healthy, its servers, and how much they hold
///
/// The first line is the verdict: `healthy`; `degraded` when all is served and something is missing; `unavailable` when some
/// tablets cannot be read or written, or no master answers. Without a master it shows what servers and METADATA tell, and what
/// is unknown as such (null in JSON).
///
/// Examples:
///   ebla status
///   ebla status --exit-code --addr 127.0.0.1:8086,127.0.0.1:8087
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Status {
    /// Which cluster
    #[command(flatten)]
    pub place: Place,
    /// Exit with 0 when healthy, 5 when degraded, 6 when unavailable
    #[arg(long)]
    pub exit_code: bool,
}

/// Shows what is known, within five seconds.
///
/// # Errors
/// When nothing answers at the addresses; with `--exit-code` also the verdict's exit code, which needs no words.
pub async fn run(status: Status, runtime: Runtime) -> Result<(), Failure> {
    let picture = picture(&status.place, &runtime).await?;
    let verdict = judge(&picture);
    match status.place.output {
        Format::Json => output::print_json(&to_json(&picture, &verdict)),
        Format::Table => output::print(&render(&picture, &verdict)),
    }
    if status.exit_code && verdict.level != Level::Healthy {
        return Err(Failure { message: String::new(), code: verdict.level.exit_code() });
    }
    Ok(())
}

/// What is known of the cluster.
///
/// # Errors
/// When nothing answers at the addresses, with what to do.
pub async fn picture(place: &Place, runtime: &Runtime) -> Result<Picture, Failure> {
    let addresses = place.addresses()?;
    match look(&addresses, given_timeout(), runtime).await {
        Ok(picture) => Ok(picture),
        Err(error) if error.reason == Reason::Unavailable => Err(unreachable(&addresses, error, runtime).await),
        Err(error) if error.reason == Reason::Unimplemented => Err(Failure::usage(error.message)),
        Err(error) => Err(error.into()),
    }
}

fn render(picture: &Picture, verdict: &Verdict) -> String {
    let mut facts = vec![format!("cluster {}", picture.cluster.as_deref().unwrap_or("unknown")), master(picture)];
    facts.push(format!("tables {}", or_unknown(picture.tables)));
    facts.push(tablets(picture));
    if let Some(health) = &picture.health {
        facts.push(format!("replicas {}/{} live", health.replicas_live, health.replicas_wanted));
    }
    let mut table = Table::new(&["SERVER", "ADDRESS", "STATE", "REPLICAS", "LEADS", "SIZE", "LOG"]);
    for one in &picture.servers {
        table.row(vec![
            one.id.to_string(),
            server::or_dash(one.address.clone()),
            one.state().to_owned(),
            server::or_dash(one.replicas),
            server::or_dash(one.leads),
            server::or_dash(one.size_bytes.map(output::size)),
            server::or_dash(one.log_bytes.map(output::size)),
        ]);
    }
    format!("{verdict}\n\n{}\n\n{}", facts.join("   "), table.render())
}

fn master(picture: &Picture) -> String {
    match (&picture.master, &picture.master_error, picture.master_epoch) {
        (Some(address), None, Some(epoch)) => format!("master {address} (epoch {epoch})"),
        (Some(address), None, None) => format!("master {address}"),
        (Some(address), Some(error), _) => {
            let ago = picture.master_lost.map(|lost| format!(", lost {} s ago", lost.as_secs())).unwrap_or_default();
            format!("master unknown (last at {address}{ago}: {error})")
        }
        (None, Some(error), _) => format!("master unknown ({error})"),
        (None, None, _) => "master unknown".to_owned(),
    }
}

fn tablets(picture: &Picture) -> String {
    match (picture.tablets, picture.tablets_led, &picture.remembered) {
        (Some(tablets), Some(led), _) => format!("tablets {led}/{tablets} led"),
        (Some(tablets), None, _) => format!("tablets {tablets}, leaders unknown"),
        (None, _, Some(last)) => {
            format!("tablets unknown ({} were known {} s ago)", last.tablets, last.age_millis / 1000)
        }
        (None, _, None) => "tablets unknown".to_owned(),
    }
}

fn or_unknown(count: Option<u64>) -> String {
    count.map_or_else(|| "unknown".to_owned(), |count| count.to_string())
}

fn to_json(picture: &Picture, verdict: &Verdict) -> Value {
    let health = picture.health.as_ref();
    let shortages = health.map(|health| {
        let one = |short: &ebla_proto::operate::Shortage| {
            json!({"live": short.live, "wanted": short.wanted, "tablets": short.tablets})
        };
        health.shortages.iter().map(one).collect::<Vec<_>>()
    });
    let remembered = picture.remembered.as_ref();
    let trouble: Vec<&str> =
        [&picture.master_error, &picture.metadata_error].into_iter().flatten().map(String::as_str).collect();
    // Without a master nobody has counted the leaders.
    let unled = health.filter(|_| picture.master_error.is_none()).map(|health| health.without_leader);
    json!({
        "verdict": verdict.level.name(),
        "reasons": verdict.reasons,
        "cluster": picture.cluster,
        "master": picture.master,
        "master_epoch": picture.master_epoch,
        "master_answers": picture.master_error.is_none(),
        "master_lost_seconds": picture.master_lost.map(|lost| lost.as_secs()),
        "trouble": trouble.join("; "),
        "tables": picture.tables,
        "tablets": picture.tablets,
        "tablets_led": picture.tablets_led,
        "tablets_without_quorum": health.map(|health| health.without_quorum),
        "tablets_without_leader": unled,
        "under_replicated": shortages,
        "replicas_live": health.map(|health| health.replicas_live),
        "replicas_wanted": health.map(|health| health.replicas_wanted),
        "repairs": health.map(|health| health.repairs),
        "last_known": remembered.map(|last| json!({"age_seconds": last.age_millis / 1000, "tablets": last.tablets})),
        "servers": picture.servers.iter().map(server::to_json).collect::<Vec<_>>(),
    })
}
