//! Collects the parts of a bundle from a cluster, from the HTTP ports of its processes, and from this machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ebla_client::{Client, QuotaMeasurement};
use ebla_model::error::Error;
use ebla_model::key::KeyRange;
use ebla_model::schema::TableName;
use ebla_runtime::{Net, Runtime};
use futures::FutureExt as _;
use futures::future::{LocalBoxFuture, join_all, ready};
use futures::stream::{self, StreamExt as _};
use serde_json::{Value, json};

use super::Bundle;
use super::pages::{self, PAGES};
use super::redact::{Keys, configuration, without_keys};
use super::slow;
use crate::commands::documents;
use crate::config::ConfigFile;
use crate::doctor::{Facts, diagnose};

/// The most tablets of the list of tablets and of the list of loads.
const TABLETS_MAX: usize = 10_000;
/// The same for a request for loads.
const LOADS_MAX: u32 = 1_000;
/// The most events: the last ones.
const EVENTS_MAX: usize = 10_000;
/// The most tables that are described.
const TABLES_MAX: usize = 100;
/// The most processes whose pages are read at once.
const CONCURRENT_PROCESSES: usize = 8;
/// Timeout of each part of the cluster.
const PART_TIMEOUT: Duration = Duration::from_secs(30);

/// What is collected.
#[derive(Debug)]
pub struct Collection<'a> {
    /// What the checks know: the status, loads, versions.
    pub facts: &'a Facts,
    /// A client of the cluster, or why there is none.
    pub client: Result<Client, String>,
    /// HTTP ports of processes.
    pub http: Vec<String>,
    /// Configuration files.
    pub configurations: Vec<PathBuf>,
    /// Whether keys of rows are included.
    pub keys: Keys,
}

/// Collects all parts. What cannot be collected is in the bundle with its error.
pub async fn collect(collection: Collection<'_>, runtime: &Runtime) -> Bundle {
    let mut bundle = Bundle::default();
    let Collection { facts, client, http, configurations, keys } = collection;
    let facts = &without_keys_in_errors(facts, keys);
    let mut add = |name: &str, document: Result<Value, String>| {
        bundle.add_json(name, document.map(|document| without_keys(document, keys)));
    };
    add("cluster/status.json", answered(facts).map(|()| documents::status(&facts.snapshot, facts.security)));
    add("cluster/doctor.json", Ok(diagnose(facts).to_json()));
    let versions = facts.versions.as_ref().map(documents::versions);
    add("cluster/versions.json", versions.ok_or_else(|| skipped(facts, "cluster-version")));
    match &client {
        Err(error) => {
            for name in ["groups", "loads", "tables", "tablets", "events", "cluster-events", "registration", "slow"] {
                add(&format!("cluster/{name}.json"), Err(error.clone()));
            }
        }
        Ok(client) => {
            let within = |part| within(part, keys);
            add("cluster/groups.json", within(groups(client).boxed_local()).await);
            add("cluster/loads.json", within(loads(client).boxed_local()).await);
            add("cluster/tables.json", within(tables(client, keys).boxed_local()).await);
            add("cluster/tablets.json", within(tablets(client).boxed_local()).await);
            add("cluster/events.json", within(events(client).boxed_local()).await);
            add("cluster/cluster-events.json", within(cluster_events(client).boxed_local()).await);
            add("cluster/registration.json", within(registration(client).boxed_local()).await);
            let servers: Vec<u64> = facts.snapshot.servers.iter().map(|server| server.id).collect();
            add("cluster/slow.json", within(slow::operations(client, &servers).boxed_local()).await);
        }
    }
    add("local.json", Ok(local()));
    // A page is added, and cut, as soon as it is there: the pages of few processes are in memory beside the bundle.
    let processes = stream::iter(&http).map(|address| process(&runtime.net, address)).buffered(CONCURRENT_PROCESSES);
    processes
        .for_each(|parts| {
            parts.into_iter().for_each(|(name, content)| bundle.add(&name, content));
            ready(())
        })
        .await;
    for path in &configurations {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let file = ConfigFile::open(path).map_err(|error| error.to_string());
        bundle.add(&format!("configuration/{name}"), file.map(|file| configuration(&file).into_bytes()));
    }
    bundle
}

fn answered(facts: &Facts) -> Result<(), String> {
    facts.unreachable.clone().map_or(Ok(()), Err)
}

/// Why a check was not made.
fn skipped(facts: &Facts, check: &str) -> String {
    let reason = facts.not_checked.iter().find(|(name, _reason)| *name == check).map(|(_name, reason)| reason.clone());
    reason.unwrap_or_else(|| "not known".to_owned())
}

/// The facts in which an error of METADATA, whose message may name a row, says only that it cannot be read.
fn without_keys_in_errors(facts: &Facts, keys: Keys) -> Facts {
    let mut facts = facts.clone();
    if let (Keys::Removed, Some(error)) = (keys, &mut facts.snapshot.metadata_error) {
        *error = "METADATA cannot be read (--with-keys includes the reason)".to_owned();
    }
    facts
}

/// An error without its message, which may name a row.
fn described(error: Error, keys: Keys) -> String {
    match keys {
        Keys::Included => error.message,
        Keys::Removed => format!("{} (--with-keys includes the message)", error.reason),
    }
}

async fn within(part: LocalBoxFuture<'_, Result<Value, Error>>, keys: Keys) -> Result<Value, String> {
    match tokio::time::timeout(PART_TIMEOUT, part).await {
        Ok(document) => document.map_err(|error| described(error, keys)),
        Err(_elapsed) => Err(format!("no answer within {} s", PART_TIMEOUT.as_secs())),
    }
}

async fn groups(client: &Client) -> Result<Value, Error> {
    Ok(json!(client.admin().groups().await?.iter().map(documents::group).collect::<Vec<_>>()))
}

async fn loads(client: &Client) -> Result<Value, Error> {
    let loads = client.admin().loads(LOADS_MAX, QuotaMeasurement::Skipped).await?;
    Ok(json!({
        "tables_total": loads.tables_total,
        "tablets_total": loads.tablets_total,
        "tables": loads.tables.iter().map(documents::table_load).collect::<Vec<_>>(),
        "tablets": loads.tablets.iter().map(documents::loaded_tablet).collect::<Vec<_>>(),
    }))
}

/// The descriptions of the busiest tables.
async fn tables(client: &Client, keys: Keys) -> Result<Value, Error> {
    let loads = client.admin().loads(0, QuotaMeasurement::Skipped).await?;
    let names = loads.tables.iter().filter_map(|table| table.table.parse::<TableName>().ok());
    let mut described = Vec::new();
    for name in names.take(TABLES_MAX) {
        described.push(match documents::table(client, &name).await {
            Ok(description) => description,
            Err(failure) => match keys {
                Keys::Included => json!({"name": name.as_str(), "error": failure.message}),
                Keys::Removed => json!({"name": name.as_str(), "error": format!("code {}", failure.code)}),
            },
        });
    }
    Ok(json!({"tables_total": loads.tables_total, "tables": described}))
}

async fn tablets(client: &Client) -> Result<Value, Error> {
    let cluster = client.low_level()?;
    let entries = cluster.read_metadata(KeyRange::all(), cluster.deadline(PART_TIMEOUT)).await?;
    let tablet = |entry: &ebla_client::MetadataRow| documents::tablet(&entry.descriptor);
    let listed = entries.iter().take(TABLETS_MAX).map(tablet).collect::<Vec<_>>();
    Ok(json!({"tablets_total": entries.len(), "tablets": listed}))
}

async fn events(client: &Client) -> Result<Value, Error> {
    Ok(documents::events(client.tablet_events(None).await?, EVENTS_MAX))
}

async fn cluster_events(client: &Client) -> Result<Value, Error> {
    Ok(documents::cluster_events(client.admin().cluster_events(0).await?))
}

async fn registration(client: &Client) -> Result<Value, Error> {
    Ok(documents::registration(&client.admin().describe_cluster().await?))
}

/// The pages of a process.
async fn process(net: &Net, address: &str) -> Vec<(String, Result<Vec<u8>, String>)> {
    let page = |(path, name): (&'static str, &'static str)| async move {
        (format!("processes/{address}/{name}"), pages::get(net, address, path).await)
    };
    join_all(PAGES.map(page)).await
}

/// This program and this machine.
fn local() -> Value {
    let first_line = |path: &str| {
        let text = fs::read_to_string(path).ok()?;
        Some(text.lines().next()?.chars().take(200).collect::<String>())
    };
    let memory = first_line("/proc/meminfo").map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    json!({
        "version": documents::version(),
        "kernel": first_line("/proc/sys/kernel/osrelease"),
        "processors": std::thread::available_parallelism().ok().map(usize::from),
        "memory": memory,
        "load": first_line("/proc/loadavg"),
        "open_files_limit": files,
        "huge_pages": first_line("/sys/kernel/mm/transparent_hugepage/enabled"),
    })
}

/// Whether a path can be a bundle: its folder exists.
///
/// # Errors
/// What is wrong with it.
pub fn check_folder(file: &Path) -> Result<PathBuf, String> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
    match fs::metadata(folder) {
        Ok(metadata) if metadata.is_dir() => Ok(folder.to_owned()),
        Ok(_other) => Err(format!("{} is not a folder", folder.display())),
        Err(error) => Err(format!("{}: {error}", folder.display())),
    }
}

#[cfg(test)]
mod tests {
    use ebla_model::error::Reason;

    use super::*;

    #[test]
    fn this_machine_is_described() {
        let local = local();
        assert!(local["version"]["version"].is_string(), "{local}");
        assert!(local["processors"].as_u64().is_some_and(|processors| processors > 0), "{local}");
    }

    #[test]
    fn errors_without_keys_have_no_message() {
        let error = || Error::new(Reason::NotFound, "no tablet at row secret");
        assert_eq!(described(error(), Keys::Included), "no tablet at row secret");
        let shown = described(error(), Keys::Removed);
        assert!(shown.starts_with(Reason::NotFound.name()) && !shown.contains("secret"), "{shown}");
    }

    #[test]
    fn the_folder_of_a_bundle_must_exist() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(check_folder(&folder.path().join("x.zip")).unwrap(), folder.path());
        assert_eq!(check_folder(Path::new("x.zip")).unwrap(), Path::new("."));
        assert!(check_folder(&folder.path().join("absent/x.zip")).is_err());
    }
}
