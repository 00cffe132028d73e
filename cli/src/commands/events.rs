//! `ebla events`: what happens in a cluster. Events of tablets come from METADATA, those of the cluster as a whole from the active master,
//! which keeps them in Chubby.
//!
//! When the master does not answer, or is of an earlier release, the events of tablets are shown alone, with a note that says why.

use std::collections::BTreeSet;
use std::time::Duration;

use ebla_client::Client;
use ebla_client::cluster_events::ClusterEvent;
use ebla_client::history::{TableEvent, in_order};
use ebla_model::Micros;
use ebla_model::error::{Error, Reason};
use ebla_model::id::TableId;
use ebla_model::schema::TableName;
use ebla_runtime::Runtime;
use serde_json::{Value, json};

use super::ClusterArguments;
use super::tablet::events;
use super::within_seconds;
use crate::output::{self, Failure, Format, Table};

/// Show what happens in a cluster: splits, moves, elections, repairs, drains, changes of tables
///
/// With --follow it goes on to show new ones, about a second after they have happened, until Ctrl-C. METADATA keeps 64 events for each
/// tablet, Chubby the last 500 of the cluster as a whole; `ebla tablet history` shows those of one tablet.
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
    /// Name of a table: only what happens to it and its tablets
    pub table: Option<String>,
    /// How many past events
    #[arg(short = 'n', long, value_name = "N", default_value_t = 50)]
    pub number: usize,
    /// Show new events too, until Ctrl-C
    #[arg(short, long)]
    pub follow: bool,
}

/// Time between two readings.
const PERIOD: Duration = Duration::from_secs(1);

/// Shows them.
///
/// # Errors
/// An error from the cluster; while it follows, only one that lasts longer than the timeout of a call.
pub async fn run(Events { cluster, table, number, follow }: Events, runtime: Runtime) -> Result<(), Failure> {
    let name = table.map(|table| cluster.table(&table)).transpose()?;
    let mut source = Source::of(cluster.client(&runtime).await?, name).await?;
    let mut shown = source.read().await?;
    let mut new = New::default();
    if follow {
        shown = new.among(shown);
    }
    shown.drain(..shown.len().saturating_sub(number));
    match (cluster.output, follow) {
        (Format::Json, false) => output::print_json(&json!(shown.iter().map(Entry::to_json).collect::<Vec<_>>())),
        (Format::Table, false) if shown.is_empty() => output::note("no events"),
        (Format::Table, false) => output::print(&render(&shown)),
        (format, true) => {
            if format == Format::Table {
                output::print(&events::heading().render());
            }
            while !output::is_closed() {
                shown.iter().for_each(|entry| print_line(entry, format));
                tokio::time::sleep(PERIOD).await;
                shown = new.among(source.read().await?);
            }
        }
    }
    Ok(())
}

fn render(shown: &[Entry]) -> String {
    let mut table = events::heading();
    shown.iter().for_each(|entry| table.row(entry.cells()));
    table.render()
}

fn print_line(entry: &Entry, format: Format) {
    match format {
        Format::Json => output::print_json(&entry.to_json()),
        Format::Table => {
            let mut line = Table::default();
            line.row(entry.cells());
            output::print(&line.render());
        }
    }
}

/// Where events come from.
struct Source {
    client: Client,
    table: Option<(TableName, TableId)>,
    /// The number of the last event of the cluster that was read; 0: none.
    last: u64,
    /// The note about events of the cluster that are missing, so that it is written once.
    noted: Option<String>,
}

impl Source {
    async fn of(client: Client, table: Option<TableName>) -> Result<Self, Failure> {
        let table = match table {
            Some(name) => {
                let id = client.low_level()?.table_id(&name).await?;
                Some((name, id))
            }
            None => None,
        };
        Ok(Self { client, table, last: 0, noted: None })
    }

    /// The events of tablets that are kept, and those of the cluster that were not read before, ascending by time.
    async fn read(&mut self) -> Result<Vec<Entry>, Failure> {
        let rows = self.client.tablet_events(self.table.as_ref().map(|(name, _id)| name)).await?;
        let of_cluster = match within_seconds(self.client.admin()).cluster_events(self.last).await {
            Ok(events) => {
                self.noted = None;
                self.last = events.iter().map(|event| event.number).fold(self.last, u64::max);
                events
            }
            Err(error) => {
                let note = missing(&error);
                if self.noted.as_ref() != Some(&note) {
                    output::note(&note);
                }
                self.noted = Some(note);
                Vec::new()
            }
        };
        Ok(merged(in_order(rows.into_iter()), of_cluster, self.table.as_ref().map(|(_name, id)| *id)))
    }
}

/// Why events of the cluster are missing.
fn missing(error: &Error) -> String {
    let why = match error.reason {
        Reason::Unimplemented => "the active master runs an earlier release, which does not keep them",
        Reason::PermissionDenied | Reason::Unauthenticated => "they are for administrators of the cluster",
        _ => error.message.as_str(),
    };
    format!("events of tablets only, without those of servers, repairs and tables: {why}")
}

/// The events of both sources, ascending by time. With a table: only those about it.
fn merged(of_tablets: Vec<TableEvent>, of_cluster: Vec<ClusterEvent>, table: Option<TableId>) -> Vec<Entry> {
    let of_cluster = of_cluster.into_iter().filter(|event| table.is_none() || event.table == table);
    let mut entries: Vec<Entry> =
        of_cluster.map(Entry::OfCluster).chain(of_tablets.into_iter().map(Entry::OfTablet)).collect();
    // Stable: each source is in its own order.
    entries.sort_by_key(Entry::time);
    entries
}

/// An event of either source.
#[derive(Clone, Debug)]
pub(super) enum Entry {
    OfTablet(TableEvent),
    OfCluster(ClusterEvent),
}

/// What distinguishes an event of a tablet from all others.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct EntryId {
    time: Micros,
    tablet: u64,
    generation: u64,
    what: String,
}

impl Entry {
    fn time(&self) -> Micros {
        match self {
            Self::OfTablet(shown) => shown.event.time,
            Self::OfCluster(event) => event.time,
        }
    }

    /// `None` for an event of the cluster.
    fn id(&self) -> Option<EntryId> {
        match self {
            Self::OfTablet(TableEvent { event, .. }) => Some(EntryId {
                time: event.time,
                tablet: event.tablet.get(),
                generation: event.generation.get(),
                what: event.what.clone(),
            }),
            Self::OfCluster(_event) => None,
        }
    }

    fn cells(&self) -> Vec<String> {
        let event = match self {
            Self::OfTablet(shown) => return events::cells(shown),
            Self::OfCluster(event) => event,
        };
        let server = event.server.map(|server| format!("server {server}"));
        let detail = Some(event.detail.clone()).filter(|detail| !detail.is_empty());
        vec![
            output::time(event.time),
            event.table.map_or("-".to_owned(), |table| table.to_string()),
            "-".to_owned(),
            "-".to_owned(),
            event.what.clone(),
            event.cause.clone(),
            "master".to_owned(),
            server.into_iter().chain(detail).collect::<Vec<_>>().join(": "),
        ]
    }

    pub(super) fn to_json(&self) -> Value {
        match self {
            Self::OfTablet(shown) => {
                let mut json = events::to_json(shown);
                if let Some(fields) = json.as_object_mut() {
                    fields.insert("scope".to_owned(), "tablet".into());
                    fields.insert("about_server".to_owned(), Value::Null);
                }
                json
            }
            Self::OfCluster(event) => json!({
                "scope": "cluster",
                "time_micros": event.time.get(),
                "table": event.table.map(TableId::get),
                "tablet": null,
                "generation": null,
                "event": event.what,
                "cause": event.cause,
                "server": null,
                "about_server": event.server.map(|server| server.get()),
                "detail": event.detail,
            }),
        }
    }
}

/// Finds the events that were not there before.
#[derive(Debug, Default)]
struct New {
    seen: BTreeSet<EntryId>,
}

impl New {
    /// Those of `entries` that are not in the earlier list; events of the cluster are read once, so all of them are new. What METADATA has
    /// forgotten is forgotten here too, so the memory is bounded by what it keeps.
    fn among(&mut self, entries: Vec<Entry>) -> Vec<Entry> {
        let now: BTreeSet<EntryId> = entries.iter().filter_map(Entry::id).collect();
        let before = std::mem::replace(&mut self.seen, now);
        entries.into_iter().filter(|entry| entry.id().is_none_or(|id| !before.contains(&id))).collect()
    }
}

#[cfg(test)]
mod tests {
    use ebla_client::metadata::TabletEvent;
    use ebla_model::id::{Generation, ServerId, TabletId};

    use super::*;

    fn of_tablet(time: i64, tablet: u64, what: &str) -> TableEvent {
        let event = TabletEvent {
            time: Micros::new(time),
            what: what.to_owned(),
            cause: "size".to_owned(),
            detail: String::new(),
            server: Some(ServerId::new(2)),
            tablet: TabletId::new(tablet),
            generation: Generation::new(1),
        };
        TableEvent { table: TableId::new(5), event }
    }

    fn of_cluster(time: i64, number: u64, what: &str, table: Option<u64>) -> ClusterEvent {
        ClusterEvent {
            number,
            time: Micros::new(time),
            what: what.to_owned(),
            cause: "operator".to_owned(),
            server: table.is_none().then(|| ServerId::new(3)),
            table: table.map(TableId::new),
            detail: "4 replicas to move".to_owned(),
        }
    }

    fn both() -> (Vec<TableEvent>, Vec<ClusterEvent>) {
        let of_cluster = vec![
            of_cluster(1_000_000, 1, "table-created", Some(5)),
            of_cluster(3_000_000, 2, "drain-requested", None),
            of_cluster(3_000_000, 3, "table-created", Some(6)),
        ];
        (vec![of_tablet(2_000_000, 8, "split"), of_tablet(4_000_000, 9, "moved")], of_cluster)
    }

    fn words(entries: &[Entry]) -> Vec<String> {
        entries.iter().map(|entry| entry.cells().swap_remove(4)).collect()
    }

    #[test]
    fn events_of_both_sources_are_in_the_order_of_their_times() {
        let (tablets, cluster) = both();
        let all = merged(tablets.clone(), cluster.clone(), None);
        assert_eq!(words(&all), ["table-created", "split", "drain-requested", "table-created", "moved"]);
        let of_table = merged(tablets, cluster, Some(TableId::new(5)));
        assert_eq!(words(&of_table), ["table-created", "split", "moved"]);
    }

    #[test]
    fn an_event_of_the_cluster_says_what_it_is_about() {
        let (tablets, cluster) = both();
        let all = merged(tablets, cluster, None);
        let expected = "\
TIME                  TABLE  TABLET  GENERATION  EVENT            CAUSE     RECORDED BY  DETAIL
1970-01-01T00:00:01Z  5      -       -           table-created    operator  master       4 replicas to move
1970-01-01T00:00:02Z  5      8       1           split            size      server 2
1970-01-01T00:00:03Z  -      -       -           drain-requested  operator  master       server 3: 4 replicas to move
1970-01-01T00:00:03Z  6      -       -           table-created    operator  master       4 replicas to move
1970-01-01T00:00:04Z  5      9       1           moved            size      server 2
";
        assert_eq!(render(&all), expected);
        let json: Vec<Value> = all.iter().map(Entry::to_json).collect();
        let fields = |value: &Value| value.as_object().map(|object| object.keys().cloned().collect::<BTreeSet<_>>());
        assert!(json.iter().all(|value| fields(value) == fields(&json[0])), "the same fields in each: {json:?}");
        assert_eq!(
            (&json[2]["scope"], &json[2]["about_server"], &json[2]["table"]),
            (&json!("cluster"), &json!(3), &json!(null))
        );
        assert_eq!(
            (&json[1]["scope"], &json[1]["tablet"], &json[1]["server"]),
            (&json!("tablet"), &json!(8), &json!(2))
        );
    }

    #[test]
    fn only_new_events_follow() {
        let (tablets, cluster) = both();
        let mut new = New::default();
        assert_eq!(new.among(merged(tablets.clone(), cluster, None)).len(), 5);
        assert_eq!(new.among(merged(tablets.clone(), Vec::new(), None)).len(), 0);
        let later = vec![of_cluster(5_000_000, 4, "drain-finished", None)];
        assert_eq!(words(&new.among(merged(tablets.clone(), later, None))), ["drain-finished"]);
        let moved = [tablets, vec![of_tablet(6_000_000, 8, "elected")]].concat();
        assert_eq!(words(&new.among(merged(moved, Vec::new(), None))), ["elected"]);
    }

    #[test]
    fn missing_events_are_explained() {
        let note = |reason| missing(&Error::new(reason, "no master"));
        assert!(note(Reason::Unimplemented).contains("earlier release"));
        assert!(note(Reason::PermissionDenied).contains("administrators"));
        assert!(note(Reason::Unavailable).ends_with("no master"));
    }
}
