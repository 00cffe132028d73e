//! `ebla demo webtable`: a cluster as `up` starts it, loaded with a real data set, some example queries, and gentle traffic until it
//! stops. The cluster has a mounttable with the names of its tablet servers.
//!
//! The first start loads the data. A later start on the same folder finds the rows and loads nothing, unless the first load
//! was interrupted.

mod traffic;

use std::convert::Infallible;

use ebla_client::Client;
use ebla_client::table::ReadOptions;
use ebla_model::capacity::readable_bytes;
use ebla_model::cell::Row;
use ebla_model::error::Reason;
use ebla_model::filter::Filter;
use ebla_model::key::{KeyRange, RowKey, RowSet};
use ebla_model::schema::TableName;
use ebla_mounttable_namespace::publisher::PERIOD;
use ebla_mounttable_namespace::{Namespace, Publisher, Roots};
use ebla_mounttable_tree::Target;
use ebla_runtime::Runtime;
use futures::StreamExt as _;

use super::{load, locality_group, mt, tablet, up};
use crate::output::{self, Failure, Table};
use crate::process::Signals;
use ebla_client::encoding;

/// Run a cluster like `up`, load a real data set into it, and keep gentle traffic on it
///
/// A mounttable is served too, at 127.0.0.1:8101 or the next free port, with the tablet servers below demo/.
///
/// Examples:
///   ebla demo
///   ebla demo webtable --exit-after-load
///   ebla demo webtable --traffic 100
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Demo {
    /// Which data set
    #[arg(value_enum, default_value = "webtable")]
    pub dataset: Dataset,
    /// Stop after the load and the example queries
    #[arg(long)]
    pub exit_after_load: bool,
    /// Reads and writes per second after the load: reads and scans of the data set, writes of a small time series in the table
    /// `weather`; 0: none
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u16).range(0..=1000))]
    pub traffic: u16,
    /// What the pages contain
    #[command(flatten)]
    pub contents: load::Contents,
    /// Options of `up`
    #[command(flatten)]
    pub up: up::Up,
}

/// Data sets that ship with the program.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum Dataset {
    /// Pages with several versions, and the home pages in this machine's Debian package index
    Webtable,
}

/// Rows shown of one prefix.
const SHOWN: u64 = 5;
/// The identity that mounts the tablet servers.
const PUBLISHED_AS: &str = "demo";
/// The default address of the mounttable.
const DEFAULT_MOUNTTABLE: &str = "127.0.0.1:8101";
/// The table with the data set.
const TABLE: &str = "webtable";

/// Starts the cluster, loads the data, runs the queries, and keeps serving until Ctrl-C.
///
/// # Errors
/// When the cluster cannot be started or the data not be loaded.
pub async fn run(mut demo: Demo, runtime: Runtime) -> Result<(), Failure> {
    let mut signals = Signals::watch()?;
    if demo.up.mounttable.is_none() {
        demo.up.mounttable = Some(up::first_free(DEFAULT_MOUNTTABLE).await);
    }
    let runtime = demo.up.connections.limit(runtime);
    let Some(running) = up::start(&demo.up, &mut signals, &runtime).await? else { return Ok(()) };
    let outcome = match up::announce(&demo.up, &running, &runtime) {
        Ok(()) => signals.unless_signalled(load_and_query(&demo, &running, &runtime)).await,
        Err(failure) => Some(Err(failure)),
    };
    if let Some(Ok(())) = outcome
        && !demo.exit_after_load
    {
        eprintln!("\nserving at {}, {}; Ctrl-C stops", running.first_address(), described(demo.traffic));
        tokio::select! {
            () = signals.next() => {}
            never = keep_busy(&demo, &running, &runtime) => match never {},
        }
    }
    eprintln!("\nstopping: draining, flushing");
    signals.stop(running.stop()).await;
    outcome.unwrap_or(Ok(()))
}

fn described(traffic: u16) -> String {
    match traffic {
        0 => "without traffic".to_owned(),
        per_second => format!("with about {per_second} requests per second of its own (--traffic)"),
    }
}

/// Keeps the tablet servers in the mounttable and traffic on the cluster, until it is cancelled. What fails is noted: the cluster serves
/// without it.
async fn keep_busy(demo: &Demo, running: &up::Running, runtime: &Runtime) -> Infallible {
    let publishers = match publish(running, runtime).await {
        Ok(publishers) => publishers,
        Err(failure) => {
            output::note(&format!("the tablet servers have no names in the mounttable: {}", failure.message));
            Vec::new()
        }
    };
    if demo.traffic > 0
        && let Err(failure) = send_traffic(demo.traffic, running, runtime).await
    {
        output::note(&format!("no traffic: {}", failure.message));
    }
    // The publishers keep the names until they are dropped.
    let never = std::future::pending().await;
    drop(publishers);
    never
}

async fn send_traffic(per_second: u16, running: &up::Running, runtime: &Runtime) -> Result<(), Failure> {
    let client = Client::connect_cluster(running.first_address(), runtime.clone()).await?;
    Ok(traffic::run(&client, &TableName::from_parts("dev", "dev", TABLE)?, per_second, runtime).await?)
}

/// Mounts each tablet server below `demo/tablet-servers`.
async fn publish(running: &up::Running, runtime: &Runtime) -> Result<Vec<Publisher>, Failure> {
    let Some(root) = running.mounttable() else { return Ok(Vec::new()) };
    let root = mt::rooted(root);
    let mut publishers = Vec::new();
    for server in &running.cluster.servers {
        let roots = Roots::new([root.as_str()]).map_err(mt::to_failure)?;
        let names = mt::namespace(Namespace::builder(runtime.clone()).roots(roots), None, Some(PUBLISHED_AS))?;
        let publisher = Publisher::start(&names, PERIOD);
        publisher.add_server(server.address().parse().map_err(mt::to_failure)?).await;
        publisher.add_name(&format!("demo/tablet-servers/{}", server.id()), Target::Leaf).await;
        publishers.push(publisher);
    }
    Ok(publishers)
}

/// Loads the data if it is incomplete, and runs the queries.
async fn load_and_query(demo: &Demo, running: &up::Running, runtime: &Runtime) -> Result<(), Failure> {
    let Dataset::Webtable = demo.dataset;
    let client = Client::connect_cluster(running.first_address(), runtime.clone()).await?;
    let name = TableName::from_parts("dev", "dev", TABLE)?;
    let webtable = load::Webtable::find(&demo.contents)?;
    let page = webtable.most_linked_page();
    let (found, wanted) = (count(&client, &name).await?, webtable.rows());
    // More rows than expected are fine: the index may have become shorter since the first load.
    if found >= wanted {
        output::print(&format!("found the {found} rows of an earlier start in table webtable\n"));
    } else {
        if found > 0 {
            output::print(&format!("found {found} of {wanted} rows: an earlier load was interrupted, loading again\n"));
        }
        output::print(&load::describe(&load::webtable(&client, &name, webtable, runtime).await?));
    }
    run_queries(&client, &name).await?;
    if let Some(page) = page {
        show_versions(&client, &name, &page).await?;
    }
    let groups = locality_group::to_text(&load::groups(&client, &name).await?);
    output::print(&format!(
        "\nWhat each locality group costs, on one replica    ebla table locality-group describe webtable --flush\n{groups}"
    ));
    Ok(())
}

/// The versions of one page, without their contents.
async fn show_versions(client: &Client, name: &TableName, page: &RowKey) -> Result<(), Failure> {
    let Some(row) = client.table(name).read_row(page, None).await? else { return Ok(()) };
    let of = |family: &'static str| row.cells.iter().filter(move |cell| cell.family.as_str() == family);
    let language = of("language").next().map_or_else(String::new, |cell| encoding::escape(&cell.value));
    let text = format!("\nThe versions of a page, language {language}    ebla row get webtable {page}\n");
    output::print(&text);
    for (contents, checksum) in of("contents").zip(of("checksum")) {
        let (at, bytes) = (output::time(contents.timestamp), readable_bytes(contents.value.len() as u64));
        output::print(&format!("  {at}  {bytes:>10}  checksum {}\n", encoding::escape(&checksum.value)));
    }
    Ok(())
}

/// Number of rows in the table; 0 when the table does not exist.
async fn count(client: &Client, name: &TableName) -> Result<usize, Failure> {
    let one_empty_cell = Filter::Chain(vec![Filter::CellsPerRowLimit(1), Filter::StripValue]);
    let options = ReadOptions { filter: Some(one_empty_cell), ..ReadOptions::default() };
    let mut rows = client.table(name).stream_rows(RowSet::all(), options);
    let mut count = 0;
    while let Some(row) = rows.next().await {
        match row {
            Ok(_) => count += 1,
            Err(error) if error.reason == Reason::NotFoundTable => return Ok(0),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(count)
}

/// Runs example queries of the paper's Webtable; each is printed with its command.
async fn run_queries(client: &Client, name: &TableName) -> Result<(), Failure> {
    let git = RowKey::copy_from_slice(b"com.git-scm/");
    if let Some(page) = client.table(name).read_row(&git, None).await? {
        output::print("\nA page and the pages that link to it    ebla row get webtable com.git-scm/\n");
        output::print(&show_page(&page));
    }
    output::print("\nThe pages of one domain are adjacent    ebla row scan webtable --prefix org.kernel\n");
    let kernel = RowSet::from_ranges([KeyRange::prefix(b"org.kernel")]);
    let options = ReadOptions { limit: SHOWN, ..ReadOptions::default() };
    for page in client.table(name).read_rows(kernel, options).await? {
        output::print(&format!("  {:<48} {}\n", page.key.to_string(), first_value(&page, "description")));
    }
    output::print("\nThe most linked pages, from one scan of the anchors without their text\n");
    for (links, key) in most_linked(client, name).await? {
        output::print(&format!("  {links:>6}  {key}\n"));
    }
    output::print("\nThe tablets of the table and their servers    ebla tablet list webtable\n");
    output::print(&tablet::render(&client.tablets(name).await?));
    let mut sizes = Table::new(&["SERVER", "ADDRESS", "REPLICAS", "LEADS", "SIZE"]);
    for one in client.admin().status().await?.servers {
        let server = one.server.unwrap_or_default();
        let (replicas, leads) = (one.replicas.to_string(), one.leads.to_string());
        sizes.row(vec![server.server.to_string(), server.address, replicas, leads, readable_bytes(one.size_bytes)]);
    }
    output::print(&format!("\nTablet servers    ebla status\n{}", sizes.render()));
    Ok(())
}

fn show_page(page: &Row) -> String {
    let of = |family: &str| page.cells.iter().filter(|cell| cell.family.as_str() == family).collect::<Vec<_>>();
    let mut text = String::new();
    for cell in of("description").iter().chain(&of("section")) {
        let column = format!("{}:{}", cell.family.as_str(), encoding::escape(&cell.qualifier));
        text.push_str(&format!("  {column:<32} {}\n", encoding::escape(&cell.value)));
    }
    let anchors = of("anchor");
    for cell in anchors.iter().take(3) {
        let column = format!("anchor:{}", encoding::escape(&cell.qualifier));
        text.push_str(&format!("  {column:<32} {}\n", encoding::escape(&cell.value)));
    }
    if anchors.len() > 3 {
        text.push_str(&format!("  … and {} more anchors\n", anchors.len() - 3));
    }
    text
}

fn first_value(page: &Row, family: &str) -> String {
    let cell = page.cells.iter().find(|cell| cell.family.as_str() == family);
    cell.map_or_else(String::new, |cell| encoding::escape(&cell.value))
}

/// The five pages with the most anchors.
async fn most_linked(client: &Client, name: &TableName) -> Result<Vec<(usize, String)>, Failure> {
    let family = Filter::FamilyNameRegex(bytes::Bytes::from_static(b"anchor"));
    let anchors = Filter::Chain(vec![family, Filter::StripValue]);
    let options = ReadOptions { filter: Some(anchors), ..ReadOptions::default() };
    let mut rows = client.table(name).stream_rows(RowSet::all(), options);
    let mut most: Vec<(usize, String)> = Vec::new();
    while let Some(row) = rows.next().await {
        let row = row?;
        most.push((row.cells.len(), row.key.to_string()));
        most.sort_by(|a, b| b.cmp(a));
        most.truncate(5);
    }
    Ok(most)
}
