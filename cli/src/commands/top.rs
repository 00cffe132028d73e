//! `ebla top`: the busiest servers, tables and tablets of a cluster, live.

use std::cmp::Reverse;
use std::time::Duration;

use ebla_client::QuotaMeasurement;
use ebla_model::Micros;
use ebla_model::capacity::readable_bytes;
use ebla_model::error::Reason;
use ebla_proto::convert;
use ebla_proto::operate::{LoadedTablet, LoadsReply, TableLoad};
use ebla_runtime::Runtime;
use serde_json::{Value, json};

use super::server::or_dash;
use super::{ClusterArguments, server, status, within_seconds};
use crate::output::{self, Columns, Failure, Format, Layout, Table};
use crate::watch;
use ebla_client::encoding;
use ebla_client::snapshot::{ClusterSnapshot, ServerSnapshot};
use ebla_client::verdict::evaluate;

/// Between two outputs.
const PERIOD: Duration = Duration::from_secs(2);

/// Show the busiest tablet servers, tables and tablets, every 2 seconds
///
/// READS/S are rows that are read by their keys, and batches of scans; WRITES/S are rows that are written; both over about a minute, at the
/// leaders of the tablets. On a terminal each output replaces the former one, until Ctrl-C. -o json, csv and raw show one output, as does --once;
/// -o ndjson shows a line every 2 seconds. -o csv and raw need a WHAT. With access control it needs the token of an administrator.
///
/// Examples:
///   ebla top
///   ebla top tablets --by writes -n 30
///   ebla top --once -o json
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Top {
    /// Which cluster
    #[command(flatten)]
    pub cluster: ClusterArguments,
    /// Only these
    #[arg(value_enum)]
    pub what: Option<What>,
    /// What comes first
    #[arg(long, value_enum, default_value_t = By::Load)]
    pub by: By,
    /// How many tables, and how many tablets
    #[arg(short = 'n', long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub number: u32,
    /// Show one output and end
    #[arg(long)]
    pub once: bool,
}

/// What is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum What {
    /// Tablet servers.
    Servers,
    /// Tables.
    Tables,
    /// Tablets.
    Tablets,
}

/// The order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum By {
    /// Reads and writes.
    Load,
    /// Reads.
    Reads,
    /// Writes.
    Writes,
    /// Bytes.
    Size,
}

impl By {
    fn of(self, reads: u64, writes: u64, bytes: u64) -> u64 {
        match self {
            Self::Load => reads.saturating_add(writes),
            Self::Reads => reads,
            Self::Writes => writes,
            Self::Size => bytes,
        }
    }
}

impl Top {
    /// Whether the command goes on until Ctrl-C.
    pub fn is_repeated(&self) -> bool {
        !self.once && matches!(output::layout(), Layout::Table | Layout::Wide | Layout::Ndjson)
    }
}

/// Shows the loads.
///
/// # Errors
/// When no cluster answers, no master is active, or the active one runs a release that reports no loads; usage with `-o csv` or `raw` without
/// a choice.
pub async fn run(top: Top, runtime: Runtime) -> Result<(), Failure> {
    if top.what.is_none() && matches!(output::layout(), Layout::Csv | Layout::Raw) {
        return Err(Failure::usage("-o csv and -o raw show one table: add servers, tables or tablets"));
    }
    let period = top.is_repeated().then_some(PERIOD);
    watch::repeat(period, async || show(&top, &runtime).await).await
}

async fn show(top: &Top, runtime: &Runtime) -> Result<(), Failure> {
    let snapshot = status::snapshot(&top.cluster, runtime).await?;
    let addresses = top.cluster.addresses()?;
    let address = super::connectivity::first_reachable(&addresses, runtime).await?;
    let admin = within_seconds(top.cluster.admin_at(&address, runtime)?);
    // In another order the first ones are among all.
    let number = if top.by == By::Load { top.number } else { 1_000 };
    let loads = admin.loads(number, QuotaMeasurement::Skipped).await.map_err(|error| match error.reason {
        Reason::Unimplemented => Failure::other(
            "the active master runs a release that reports no loads: upgrade it (docs/operate/upgrade.md)",
        ),
        _ => error.into(),
    })?;
    let view = View::new(snapshot, loads, top.by, usize::try_from(top.number).unwrap_or(usize::MAX));
    match top.cluster.output {
        Format::Json => output::print_json(&view.to_json(top.what)),
        Format::Table => output::print(&view.render(top.what, output::columns(), runtime.clock.wall())),
    }
    Ok(())
}

/// What one output shows.
struct View {
    snapshot: ClusterSnapshot,
    loads: LoadsReply,
}

fn of_tablet(tablet: &LoadedTablet) -> (u64, u64) {
    tablet.load.as_ref().map_or((0, 0), |load| (load.reads_per_second, load.writes_per_second))
}

impl View {
    /// In this order; at most `number` tables and tablets.
    fn new(mut snapshot: ClusterSnapshot, mut loads: LoadsReply, by: By, number: usize) -> Self {
        let of_server = |one: &ServerSnapshot| {
            by.of(
                one.reads_per_second.unwrap_or_default(),
                one.writes_per_second.unwrap_or_default(),
                one.size_bytes.unwrap_or_default(),
            )
        };
        snapshot.servers.sort_by_key(|one| (Reverse(of_server(one)), one.id));
        let of_table = |one: &TableLoad| by.of(one.reads_per_second, one.writes_per_second, one.size_bytes);
        loads.tables.sort_by_key(|one| Reverse(of_table(one)));
        loads.tables.truncate(number);
        let of_tablet = |one: &LoadedTablet| {
            let (reads, writes) = of_tablet(one);
            by.of(reads, writes, one.size_bytes)
        };
        loads.tablets.sort_by_key(|one| Reverse(of_tablet(one)));
        loads.tablets.truncate(number);
        Self { snapshot, loads }
    }

    fn sums(&self) -> (u64, u64) {
        let servers = self.snapshot.servers.iter();
        let sum =
            |of: &dyn Fn(&ServerSnapshot) -> Option<u64>| servers.clone().filter_map(of).fold(0, u64::saturating_add);
        (sum(&|one| one.reads_per_second), sum(&|one| one.writes_per_second))
    }

    fn render(&self, what: Option<What>, columns: Columns, now: Micros) -> String {
        match what {
            Some(What::Servers) => self.servers(columns).render(),
            Some(What::Tables) => self.tables().render(),
            Some(What::Tablets) => self.tablets(columns).render(),
            None => {
                let (reads, writes) = self.sums();
                let verdict = evaluate(&self.snapshot).to_string();
                let head = format!(
                    "{}   reads {reads}/s   writes {writes}/s   tables {}   tablets {}\n{verdict}\n",
                    output::time(now).get(..19).unwrap_or_default(),
                    self.loads.tables_total,
                    self.loads.tablets_total
                );
                let parts = [self.servers(columns), self.tables(), self.tablets(columns)].map(|table| table.render());
                format!("{head}\n{}", parts.join("\n"))
            }
        }
    }

    fn servers(&self, columns: Columns) -> Table {
        let mut heading = vec![
            "SERVER",
            "ADDRESS",
            "STATE",
            "READS/S",
            "WRITES/S",
            "LEADS",
            "REPLICAS",
            "SIZE",
            "MEMORY",
            "DISK FREE",
        ];
        if columns == Columns::Wide {
            heading.extend(["FILES", "CONNECTIONS", "SYNC", "LAG"]);
        }
        let mut table = Table::new(&heading);
        for one in &self.snapshot.servers {
            let mut row = vec![
                one.id.to_string(),
                or_dash(one.address.clone()),
                one.state().to_owned(),
                or_dash(one.reads_per_second),
                or_dash(one.writes_per_second),
                or_dash(one.leads),
                or_dash(one.replicas),
                or_dash(one.size_bytes.map(readable_bytes)),
                or_dash(one.resources.memory.map(|memory| readable_bytes(memory.used))),
                or_dash(one.resources.disk.map(|disk| readable_bytes(disk.free_bytes))),
            ];
            if columns == Columns::Wide {
                row.push(or_dash(one.resources.files.map(|files| format!("{}/{}", files.used, files.limit))));
                row.push(or_dash(one.resources.connections.map(|open| format!("{}/{}", open.used, open.limit))));
                row.push(or_dash(one.sync.delay.map(server::delay)));
                row.push(or_dash(one.lag.as_ref().map(server::lag)));
            }
            table.row(row);
        }
        table
    }

    fn tables(&self) -> Table {
        let mut table = Table::new(&["TABLE", "READS/S", "WRITES/S", "TABLETS", "SIZE"]);
        for one in &self.loads.tables {
            table.row(vec![
                one.table.clone(),
                one.reads_per_second.to_string(),
                one.writes_per_second.to_string(),
                one.tablets.to_string(),
                readable_bytes(one.size_bytes),
            ]);
        }
        table
    }

    fn tablets(&self, columns: Columns) -> Table {
        let mut heading = vec!["TABLET", "TABLE", "SERVER", "READS/S", "WRITES/S", "SIZE", "START"];
        if columns == Columns::Wide {
            heading.extend(["END", "GROUP", "HOT ROW"]);
        }
        let mut table = Table::new(&heading);
        for one in &self.loads.tablets {
            let (reads, writes) = of_tablet(one);
            let (start, end) = range(one);
            let mut row = vec![
                one.tablet.as_ref().map_or(0, |tablet| tablet.tablet).to_string(),
                one.table.clone(),
                one.leader.to_string(),
                reads.to_string(),
                writes.to_string(),
                readable_bytes(one.size_bytes),
                if start.is_empty() { "(start)".to_owned() } else { encoding::escape(&start) },
            ];
            if columns == Columns::Wide {
                row.push(end.map_or("(end)".to_owned(), |end| encoding::escape(&end)));
                row.push(one.group.to_string());
                row.push(hot_row(one).map(|row| encoding::escape(row.as_ref())).unwrap_or_default());
            }
            table.row(row);
        }
        table
    }

    fn to_json(&self, what: Option<What>) -> Value {
        let servers = || json!(self.snapshot.servers.iter().map(server::to_json).collect::<Vec<_>>());
        let tables = || json!(self.loads.tables.iter().map(table_json).collect::<Vec<_>>());
        let tablets = || json!(self.loads.tablets.iter().map(tablet_json).collect::<Vec<_>>());
        match what {
            Some(What::Servers) => servers(),
            Some(What::Tables) => tables(),
            Some(What::Tablets) => tablets(),
            None => {
                let (reads, writes) = self.sums();
                json!({
                    "verdict": evaluate(&self.snapshot).level.name(),
                    "time_micros": self.snapshot.time.map(Micros::get),
                    "reads_per_second": reads,
                    "writes_per_second": writes,
                    "tables_total": self.loads.tables_total,
                    "tablets_total": self.loads.tablets_total,
                    "servers": servers(),
                    "tables": tables(),
                    "tablets": tablets(),
                })
            }
        }
    }
}

/// The document of one output in which everything is shown.
#[cfg(test)]
pub(super) fn document(snapshot: ClusterSnapshot, loads: LoadsReply) -> Value {
    View::new(snapshot, loads, By::Load, 10).to_json(None)
}

/// The rows of a tablet: the first key, and the end without one for the last tablet.
fn range(tablet: &LoadedTablet) -> (Vec<u8>, Option<Vec<u8>>) {
    let range = tablet.tablet.as_ref().and_then(|tablet| tablet.range.as_ref());
    let Some(Ok(range)) = range.map(convert::key_range_from_proto) else { return (Vec::new(), None) };
    (range.start().as_bytes().to_vec(), range.end().map(|end| end.as_bytes().to_vec()))
}

fn hot_row(tablet: &LoadedTablet) -> Option<&bytes::Bytes> {
    tablet.load.as_ref()?.hot_row.as_ref()
}

pub(super) fn table_json(one: &TableLoad) -> Value {
    json!({
        "table": one.table,
        "tablets": one.tablets,
        "size_bytes": one.size_bytes,
        "reads_per_second": one.reads_per_second,
        "writes_per_second": one.writes_per_second,
    })
}

pub(super) fn tablet_json(one: &LoadedTablet) -> Value {
    let ((reads, writes), (start, end)) = (of_tablet(one), range(one));
    json!({
        "tablet": one.tablet.as_ref().map(|tablet| tablet.tablet),
        "table": one.table,
        "group": one.group,
        "leader": one.leader,
        "start": encoding::to_base64(&start),
        "end": end.map(|end| encoding::to_base64(&end)),
        "size_bytes": one.size_bytes,
        "reads_per_second": reads,
        "writes_per_second": writes,
        "hot_row": hot_row(one).map(|row| encoding::to_base64(row)),
    })
}

#[cfg(test)]
mod tests {
    use ebla_model::capacity::{DiskSpace, Resources, Usage};
    use ebla_model::id::{ServerId, TableId, TabletId};
    use ebla_model::key::{KeyRange, RowKey};
    use ebla_model::metadata::TabletDescriptor;
    use ebla_proto::record;

    use super::*;
    use ebla_client::snapshot::ReplicaLag;

    fn server(id: u64, reads: u64, bytes: u64) -> ServerSnapshot {
        let usage = Some(Usage { used: 64 << 20, limit: 1 << 30 });
        let connections = Some(Usage { used: 7, limit: 10_000 });
        let disk = Some(DiskSpace { free_bytes: 9 << 30, total_bytes: 50 << 30, reserve_bytes: 2 << 30 });
        ServerSnapshot {
            id,
            address: Some(format!("host-{id}:1")),
            is_registered: true,
            is_reachable: true,
            reads_per_second: Some(reads),
            writes_per_second: Some(1),
            size_bytes: Some(bytes),
            leads: Some(2),
            replicas: Some(4),
            resources: Resources { disk, memory: usage, connections, ..Resources::default() },
            lag: Some(ReplicaLag { replicas: 1, time_max: Duration::from_secs(41), ..ReplicaLag::default() }),
            ..ServerSnapshot::default()
        }
    }

    fn tablet(id: u64, range: KeyRange, reads: u64, bytes: u64) -> LoadedTablet {
        let descriptor = TabletDescriptor::initial(TableId::new(5), TabletId::new(id), range, &[ServerId::new(1)]);
        let hot_row = (reads > 100).then(|| "k\x01".into());
        LoadedTablet {
            table: "web".to_owned(),
            tablet: Some(convert::tablet_record_to_proto(&descriptor)),
            group: 4,
            leader: 1,
            size_bytes: bytes,
            load: Some(record::TabletLoad { reads_per_second: reads, hot_row, ..record::TabletLoad::default() }),
        }
    }

    fn view(by: By, number: usize) -> View {
        let (left, right) = KeyRange::all().split_at(&RowKey::new("m")).unwrap();
        let table = |name: &str, reads, size_bytes| TableLoad {
            table: name.to_owned(),
            tablets: 1,
            reads_per_second: reads,
            size_bytes,
            ..TableLoad::default()
        };
        let loads = LoadsReply {
            tables: vec![table("logs", 10, 9 << 20), table("web", 510, 1 << 20)],
            tablets: vec![tablet(7, left, 10, 2 << 20), tablet(8, right, 500, 1 << 20)],
            tables_total: 2,
            tablets_total: 2,
            ..LoadsReply::default()
        };
        let servers = vec![server(1, 10, 2 << 20), server(2, 500, 1 << 20)];
        View::new(ClusterSnapshot { servers, ..ClusterSnapshot::default() }, loads, by, number)
    }

    #[test]
    fn the_busiest_are_shown_first() {
        let expected = "\
1970-01-01T00:00:00   reads 510/s   writes 2/s   tables 2   tablets 2
healthy

SERVER  ADDRESS   STATE  READS/S  WRITES/S  LEADS  REPLICAS  SIZE     MEMORY    DISK FREE
2       host-2:1  up     500      1         2      4         1.0 MiB  64.0 MiB  9.0 GiB
1       host-1:1  up     10       1         2      4         2.0 MiB  64.0 MiB  9.0 GiB

TABLE  READS/S  WRITES/S  TABLETS  SIZE
web    510      0         1        1.0 MiB
logs   10       0         1        9.0 MiB

TABLET  TABLE  SERVER  READS/S  WRITES/S  SIZE     START
8       web    1       500      0         1.0 MiB  m
7       web    1       10       0         2.0 MiB  (start)
";
        assert_eq!(view(By::Load, 10).render(None, Columns::Standard, Micros::ZERO), expected);
    }

    #[test]
    fn another_order_and_more_columns() {
        let tablets = view(By::Size, 1).render(Some(What::Tablets), Columns::Wide, Micros::ZERO);
        let expected = "TABLET  TABLE  SERVER  READS/S  WRITES/S  SIZE     START    END  GROUP  HOT ROW\n\
                        7       web    1       10       0         2.0 MiB  (start)  m    4\n";
        assert_eq!(tablets, expected);
        let hot = view(By::Reads, 1).render(Some(What::Tablets), Columns::Wide, Micros::ZERO);
        assert!(hot.ends_with("(end)  4      k\\x01\n"), "{hot}");
        let servers = view(By::Writes, 1).render(Some(What::Servers), Columns::Wide, Micros::ZERO);
        assert!(
            servers.lines().nth(1).is_some_and(|line| line.ends_with("7/10000      -     1 by up to 41 s")),
            "{servers}"
        );
    }
}
