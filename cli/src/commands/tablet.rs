//! `ebla tablet`: list, split, merge, move, history, events, recover.

pub(super) mod events;
mod load;
#[cfg(test)]
pub(super) use self::load::to_json as load_json;
pub(super) mod preview;
pub(super) mod recover;

use ebla_client::locate::LeaderHint;
use ebla_model::id::{GroupId, ServerId, TabletId};
use ebla_model::key::RowKey;
use ebla_model::metadata::TabletDescriptor;
use ebla_runtime::Runtime;
use serde_json::{Value, json};

use super::ClusterArguments;
use crate::output::{self, Columns, Failure, Format, Table};
use crate::watch::{WatchArguments, repeat};
use ebla_client::encoding;

/// List, split, merge, move and recover tablets, and show what has happened to them
///
/// Examples:
///   ebla tablet list web
///   ebla tablet split web --at org.
///   ebla tablet merge 12 --next
///   ebla tablet move 12 --group 5
///   ebla tablet history 12
///   ebla tablet recover --from 1 --dry-run
#[derive(Debug, clap::Subcommand)]
#[command(verbatim_doc_comment)]
pub enum Tablet {
    /// List the tablets of a table and the servers that hold their replicas
    ///
    /// Examples:
    ///   ebla tablet list web
    ///   ebla tablet list web -o json
    ///   ebla tablet list web --load
    ///   ebla tablet list web -o wide --watch
    ///
    /// START is inclusive, END is exclusive. With -o json both are base64, and the end of the last tablet is null.
    ///
    /// With --load, the sizes and loads at the leaders of the tablets, which need a master: reads (rows by their keys, and batches of
    /// scans) and written rows per second over about a minute; HOT ROW is a row that has most of them. What is unknown is shown as ?.
    /// -o wide shows servers and loads.
    #[command(verbatim_doc_comment)]
    List {
        /// Which cluster
        #[command(flatten)]
        cluster: ClusterArguments,
        /// Name of the table
        table: String,
        /// Show sizes and loads instead of servers
        #[arg(long)]
        load: bool,
        /// How often
        #[command(flatten)]
        watch: WatchArguments,
    },
    /// Split a tablet in two
    ///
    /// Examples:
    ///   ebla tablet split web --at org.
    ///   ebla tablet split web --within com.cnn.www
    ///   ebla tablet split --tablet 12
    ///
    /// Tablets of METADATA are split by their numbers, which ebla meta list shows; the root tablet, number 1, is never split.
    #[command(verbatim_doc_comment)]
    Split {
        /// Which cluster
        #[command(flatten)]
        cluster: ClusterArguments,
        /// Name of the table
        #[arg(required_unless_present = "tablet")]
        table: Option<String>,
        /// Number of the tablet to split; the server picks where
        #[arg(long, value_name = "TABLET", value_parser = clap::value_parser!(u64).range(1..),
            conflicts_with_all = ["table", "at", "within"])]
        tablet: Option<u64>,
        /// First key of the right half; bytes as \xHH
        #[arg(long, value_name = "KEY", value_parser = encoding::parse_split_key, allow_hyphen_values = true,
            required_unless_present_any = ["within", "tablet"])]
        at: Option<RowKey>,
        /// A key in the tablet to split; the server picks where
        #[arg(long, value_name = "KEY", value_parser = encoding::parse_key, allow_hyphen_values = true, conflicts_with = "at")]
        within: Option<RowKey>,
    },
    /// Merge two adjacent tablets
    ///
    /// Examples:
    ///   ebla tablet merge 12 --next --dry-run
    ///   ebla tablet merge 12 --next
    ///   ebla tablet merge 12 13
    ///
    /// The tablet with the higher rows gets the rows of the other one and keeps its number. In one group no data moves, and reads
    /// and writes go on. If the tablets are in different groups, the smaller one is moved first, as by ebla tablet move; ebla
    /// tablet list shows the group of each. A tablet that is larger than the split size afterwards splits again.
    #[command(verbatim_doc_comment)]
    Merge {
        /// Which cluster
        #[command(flatten)]
        cluster: ClusterArguments,
        /// Number of a tablet
        #[arg(value_parser = clap::value_parser!(u64).range(1..))]
        tablet: u64,
        /// Number of the tablet before or after it
        #[arg(value_parser = clap::value_parser!(u64).range(1..), required_unless_present = "next")]
        with: Option<u64>,
        /// Merge it with the tablet after it
        #[arg(long, conflicts_with = "with")]
        next: bool,
        /// Only show what would be merged, and moved before
        #[arg(long)]
        dry_run: bool,
    },
    /// Move a tablet to another existing group
    ///
    /// Examples:
    ///   ebla tablet move 12 --group 5 --dry-run
    ///   ebla tablet move 12 --group 5
    ///
    /// Reads and writes of the tablet wait while its data is copied, about two seconds for 64 MiB. Requests that wait longer than their
    /// deadline fail. A move that has begun continues after a timeout; the same command waits for it again. ebla group list shows the
    /// groups. Group 1 holds METADATA and takes no part in moves.
    #[command(verbatim_doc_comment)]
    Move {
        /// Which cluster
        #[command(flatten)]
        cluster: ClusterArguments,
        /// Number of the tablet
        #[arg(value_parser = clap::value_parser!(u64).range(1..))]
        tablet: u64,
        /// Number of the group to move it to
        #[arg(long, value_name = "GROUP", value_parser = clap::value_parser!(u64).range(1..))]
        group: u64,
        /// Only show what would move, and where to
        #[arg(long)]
        dry_run: bool,
    },
    /// Show what has happened to a tablet, and why
    ///
    /// Examples:
    ///   ebla tablet history 12
    ///   ebla tablet history web com.cnn.www
    ///
    /// METADATA keeps the last 64 events of the row that lists a tablet: its creation, splits, merges, moves, changes of replicas,
    /// elections. After a split the tablet with the higher rows continues the row. So the events of tablets that had the same rows before, or
    /// have them since, are shown too. CAUSE is operator, size, load, small (merged because it was), master or election.
    #[command(verbatim_doc_comment)]
    History {
        /// Which cluster
        #[command(flatten)]
        cluster: ClusterArguments,
        /// Number of the tablet, or name of a table
        tablet: String,
        /// A key of the table: the tablet with it
        #[arg(value_parser = encoding::parse_key, allow_hyphen_values = true)]
        key: Option<RowKey>,
    },
    /// Show the last events of all tablets, in the order of their times
    ///
    /// Examples:
    ///   ebla tablet events
    ///   ebla tablet events web -n 20 -o json
    ///
    /// METADATA keeps 64 events for each tablet, as ebla tablet history shows them. The root tablet has none.
    #[command(verbatim_doc_comment)]
    Events {
        /// Which cluster
        #[command(flatten)]
        cluster: ClusterArguments,
        /// Name of a table: only its tablets
        table: Option<String>,
        /// How many events
        #[arg(short = 'n', long, value_name = "N", default_value_t = 50)]
        number: usize,
    },
    /// Recover tablets whose majority of replicas is lost permanently, from one server; data may be lost
    ///
    /// Examples:
    ///   ebla tablet recover --from 1 --dry-run
    ///   ebla tablet recover --from 1 --accept-data-loss
    ///   ebla tablet recover 12 --from 1 --accept-data-loss
    ///
    /// The last resort. If one of the lost servers can come back, start it instead: nothing is lost then. The replicas on the server
    /// become the only ones of their groups, and the master creates new ones on other servers. Each has all acknowledged writes up to its
    /// last one; later writes, which only the lost replicas had, are lost. Begin with --dry-run: it shows the time of the last write.
    ///
    /// Without TABLET all groups of the server are recovered that have lost their majorities. It is refused while a majority may exist.
    /// The lost servers are recorded: none of them can join again with its data folder.
    #[command(verbatim_doc_comment)]
    Recover {
        /// Which cluster
        #[command(flatten)]
        cluster: ClusterArguments,
        /// Number of a tablet: recover its group only
        #[arg(value_parser = clap::value_parser!(u64).range(1..))]
        tablet: Option<u64>,
        /// Number of the tablet server whose replicas remain
        #[arg(long, value_name = "SERVER", value_parser = clap::value_parser!(u64).range(1..))]
        from: u64,
        /// Only show what would be done
        #[arg(long)]
        dry_run: bool,
        /// Accept that writes may be lost
        #[arg(long, conflicts_with = "dry_run", required_unless_present = "dry_run")]
        accept_data_loss: bool,
    },
}

/// Carries out the command.
///
/// # Errors
/// What the cluster answers.
pub async fn run(command: Tablet, runtime: Runtime) -> Result<(), Failure> {
    match command {
        Tablet::List { cluster, table, load, watch } => {
            let once = async || match load {
                true => load::list(&cluster, &table, &runtime).await,
                false => list(&cluster, &table, &runtime).await,
            };
            repeat(watch.period(), once).await
        }
        Tablet::Split { cluster, table, tablet, at, within } => {
            let name = table.map(|table| cluster.table(&table)).transpose()?;
            let client = cluster.client(&runtime).await?;
            let (left, right) = match (name, tablet) {
                (Some(name), _) => {
                    let within = within.unwrap_or(RowKey::EMPTY);
                    client.admin().split(&name, at.as_ref(), &within).await?
                }
                // Without a table, clap has required `--tablet`.
                (None, tablet) => client.admin().split_tablet(TabletId::new(tablet.unwrap_or_default())).await?,
            };
            match cluster.output {
                Format::Json => output::print_json(&split_json(&left, &right)),
                Format::Table => output::print(&render(&[(left, None), (right, None)])),
            }
            Ok(())
        }
        // Without a second tablet, clap has required `--next`.
        Tablet::Merge { cluster, tablet, with, next: _, dry_run: true } => {
            preview::merge(&cluster, TabletId::new(tablet), with.map(TabletId::new), &runtime).await
        }
        Tablet::Merge { cluster, tablet, with, next: _, dry_run: false } => {
            let client = cluster.client(&runtime).await?;
            let merged = client.admin().merge_tablets(TabletId::new(tablet), with.map(TabletId::new)).await;
            let (merged, removed) = merged?;
            match cluster.output {
                Format::Json => output::print_json(&merge_json(&merged, removed)),
                Format::Table => output::print(&render(&[(merged, None)])),
            }
            Ok(())
        }
        Tablet::Move { cluster, tablet, group, dry_run: true } => {
            preview::movement(&cluster, TabletId::new(tablet), GroupId::new(group), &runtime).await
        }
        Tablet::Move { cluster, tablet, group, dry_run: false } => {
            let client = cluster.client(&runtime).await?;
            let (moved, source) = client.admin().move_tablet(TabletId::new(tablet), GroupId::new(group)).await?;
            match cluster.output {
                Format::Json => output::print_json(&move_json(&moved, source)),
                Format::Table => {
                    output::print(&format!("tablet {tablet} moved from group {source} to group {}\n", moved.group));
                }
            }
            Ok(())
        }
        Tablet::History { cluster, tablet, key } => {
            events::history(&cluster, events::Selection::of(&tablet, key)?, &runtime).await
        }
        Tablet::Events { cluster, table, number } => events::events(&cluster, table.as_deref(), number, &runtime).await,
        // Without `--dry-run`, clap has required `--accept-data-loss`.
        Tablet::Recover { cluster, tablet, from, dry_run, accept_data_loss: _ } => {
            recover::run(&cluster, tablet.map(TabletId::new), ServerId::new(from), dry_run, &runtime).await
        }
    }
}

async fn list(cluster: &ClusterArguments, table: &str, runtime: &Runtime) -> Result<(), Failure> {
    let name = cluster.table(table)?;
    let client = cluster.client(runtime).await?;
    let tablets = client.tablets(&name).await?;
    let one = |(tablet, leader): &(TabletDescriptor, Option<LeaderHint>)| to_json(tablet, *leader);
    match (cluster.output, output::columns()) {
        (Format::Json, _) => output::print_json(&json!(tablets.iter().map(one).collect::<Vec<_>>())),
        (Format::Table, _) if tablets.is_empty() => output::note(&format!("no tablets of {table}")),
        (Format::Table, Columns::Standard) => output::print(&render(&tablets)),
        (Format::Table, Columns::Wide) => {
            output::print(&load::render_wide(&tablets, &load::known(&client, &name).await))
        }
    }
    Ok(())
}

/// Tablets as a table: group, generation, range, servers; the leader is marked.
pub fn render(tablets: &[(TabletDescriptor, Option<LeaderHint>)]) -> String {
    let mut table = Table::new(&["TABLET", "GROUP", "GENERATION", "START", "END", "SERVERS (* LEADS)"]);
    for (tablet, leader) in tablets {
        table.row(vec![
            tablet.tablet.to_string(),
            tablet.group.to_string(),
            tablet.generation.to_string(),
            short(tablet.range.start()),
            tablet.range.end().map_or("(end)".to_owned(), short),
            mark_leader(&servers(tablet), leader.map(|leader| leader.server.get())),
        ]);
    }
    table.render()
}

/// Servers separated by spaces, with a star after the one that leads.
pub(super) fn mark_leader(servers: &[u64], leader: Option<u64>) -> String {
    let shown = servers.iter().map(|id| if leader == Some(*id) { format!("{id}*") } else { id.to_string() });
    shown.collect::<Vec<_>>().join(" ")
}

pub(super) fn short(key: &RowKey) -> String {
    if key.is_empty() { "(start)".to_owned() } else { encoding::escape(key.as_bytes()) }
}

/// The servers of its replicas.
pub(super) fn servers(tablet: &TabletDescriptor) -> Vec<u64> {
    tablet.membership.replicas().map(|replica| replica.server.get()).collect()
}

pub(super) fn to_json(tablet: &TabletDescriptor, leader: Option<LeaderHint>) -> Value {
    json!({
        "tablet": tablet.tablet.get(),
        "group": tablet.group.get(),
        "generation": tablet.generation.get(),
        "start": encoding::to_base64(tablet.range.start().as_bytes()),
        "end": tablet.range.end().map(|end| encoding::to_base64(end.as_bytes())),
        "servers": servers(tablet),
        "leader": leader.map(|leader| leader.server.get()),
    })
}

/// The halves of a tablet that was split.
pub(super) fn split_json(left: &TabletDescriptor, right: &TabletDescriptor) -> Value {
    json!([to_json(left, None), to_json(right, None)])
}

/// The tablet that two were merged into, and the one that is gone.
pub(super) fn merge_json(merged: &TabletDescriptor, removed: TabletId) -> Value {
    json!({"merged": to_json(merged, None), "removed": removed.get()})
}

/// A tablet in its new group, and the group that it has left.
pub(super) fn move_json(moved: &TabletDescriptor, source: GroupId) -> Value {
    json!({"moved": to_json(moved, None), "from_group": source.get()})
}
