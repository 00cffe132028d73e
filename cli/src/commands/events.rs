//! `ebla events`: what happens to the tablets of a cluster, as METADATA records it.

use std::time::Duration;

use ebla_runtime::Runtime;

use super::ClusterArguments;
use super::tablet::events;
use crate::output::Failure;

/// Show what happens to tablets: splits, merges, moves, changes of replicas, elections
///
/// With --follow it goes on to show new ones, about a second after they have happened, until Ctrl-C. METADATA keeps 64 events for each
/// tablet; `ebla tablet history` shows those of one.
///
/// Examples:
///   ebla events
///   ebla events web --follow
///   ebla events --follow -o ndjson
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Events {
    /// Which cluster
    #[command(flatten)]
    pub cluster: ClusterArguments,
    /// Name of a table: only its tablets
    pub table: Option<String>,
    /// How many past events
    #[arg(short = 'n', long, value_name = "N", default_value_t = 50)]
    pub number: usize,
    /// Show new events too, until Ctrl-C
    #[arg(short, long)]
    pub follow: bool,
}

/// Time between two readings of METADATA.
const PERIOD: Duration = Duration::from_secs(1);

/// Shows them.
///
/// # Errors
/// An error from the cluster; while it follows, only one that lasts longer than the timeout of a call.
pub async fn run(Events { cluster, table, number, follow }: Events, runtime: Runtime) -> Result<(), Failure> {
    if follow {
        events::follow(&cluster, table.as_deref(), number, PERIOD, &runtime).await
    } else {
        events::events(&cluster, table.as_deref(), number, &runtime).await
    }
}
