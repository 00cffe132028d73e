//! The checks of names after all faults have ended.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ebla_mounttable_namespace::operate::{DumpRecord, Fix, Operator};
use ebla_mounttable_namespace::{Namespace, Roots};
use ebla_mounttable_tree::Error as TreeError;
use ebla_mounttable_tree::store::{Family, Row};
use ebla_mounttable_tree::table::QuotaKind;
use ebla_runtime::Runtime;
use ebla_workload::bench::names::session::Session;
use futures::TryStreamExt;

use super::{SUPERUSER, address, in_time, list, look_up, sessions};
use crate::cluster::SimCluster;
use crate::time;

/// Timeout of all checks.
const PROOF: Duration = Duration::from_secs(120);
/// Timeout of a call: most of them read the whole table.
const CALL: Duration = Duration::from_secs(10);
/// Between two attempts.
const PAUSE: Duration = Duration::from_secs(1);
/// Servers may complete changes for this long whose callers have gone: the timeout of a request to the storage, and a margin.
const SETTLED: Duration = Duration::from_secs(25);
/// The folder of servers that expire.
const EXPIRING: &str = "servers/";

/// All anomalies.
pub(crate) async fn prove(cluster: &SimCluster, runtime: &Runtime) -> Vec<String> {
    let begin = time::elapsed();
    let proof = Proof { cluster, runtime, sessions: sessions(cluster, runtime, SUPERUSER), end: begin + PROOF };
    match proof.run(begin).await {
        Ok(()) => Vec::new(),
        Err(wrong) => vec![format!("names: {wrong}")],
    }
}

struct Proof<'a> {
    cluster: &'a SimCluster,
    runtime: &'a Runtime,
    sessions: Vec<Session>,
    end: Duration,
}

impl Proof<'_> {
    async fn run(&self, begin: Duration) -> Result<(), String> {
        self.until("a name cannot be read", async || self.read_all().await.map(|_| true)).await?;
        tokio::time::sleep((begin + SETTLED).saturating_sub(time::elapsed())).await;
        self.until("a server without a publisher does not expire", async || self.has_expired().await).await?;
        self.until("lookups and listings differ", async || self.agree().await).await?;
        self.until("a check still finds something", async || self.is_clean().await).await?;
        self.until("counters differ from the rows", async || self.is_counted().await).await?;
        self.until("names or rows are left after the deletion of all", async || self.is_emptied().await).await
    }

    /// Repeats a check until it holds.
    async fn until(&self, otherwise: &str, holds: impl AsyncFn() -> Result<bool, TreeError>) -> Result<(), String> {
        loop {
            let outcome = holds().await;
            if matches!(outcome, Ok(true)) {
                return Ok(());
            }
            if time::elapsed() > self.end {
                let error = outcome.err().map(|error| format!(", {}", error.message)).unwrap_or_default();
                return Err(format!("{otherwise} {PROOF:?} after the end of all faults{error}"));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    fn names(&self) -> Vec<String> {
        self.cluster.names.lock().names().map(str::to_owned).collect()
    }

    /// Resolves and lists all names through each server; the responses are compared with the history.
    async fn read_all(&self) -> Result<Vec<(Servers, Servers)>, TreeError> {
        let mut read = Vec::new();
        for session in &self.sessions {
            let mut session = session.clone();
            let mut resolved = BTreeMap::new();
            for name in self.names() {
                let servers = look_up(self.cluster, &mut session, &name, CALL).await?;
                resolved.insert(name, servers);
            }
            let listed = list(self.cluster, &mut session, "", CALL).await?;
            resolved.retain(|_, servers| !servers.is_empty());
            read.push((resolved, listed.into_iter().filter(|(_, servers)| !servers.is_empty()).collect()));
        }
        Ok(read)
    }

    async fn has_expired(&self) -> Result<bool, TreeError> {
        let read = self.read_all().await?;
        let mut names = read.iter().flat_map(|(resolved, listed)| resolved.keys().chain(listed.keys()));
        Ok(!names.any(|name| name.starts_with(EXPIRING)))
    }

    async fn agree(&self) -> Result<bool, TreeError> {
        let read = self.read_all().await?;
        Ok(read.iter().all(|(resolved, listed)| resolved == listed && *listed == read[0].1))
    }

    /// No row is damaged; other findings are repaired, and then there are none.
    async fn is_clean(&self) -> Result<bool, TreeError> {
        let operator = self.operator();
        for finding in in_time(CALL, operator.check(Fix::Report)).await? {
            if finding.kind == "DAMAGED" {
                let wrong = format!("names: {} is damaged: {}", finding.place, finding.message);
                self.cluster.history.lock().wrong.push(wrong);
            }
        }
        in_time(CALL, operator.check(Fix::Repair)).await?;
        Ok(in_time(CALL, operator.check(Fix::Report)).await?.is_empty())
    }

    /// The counters of quotas are those that the rows of a dump add up to.
    async fn is_counted(&self) -> Result<bool, TreeError> {
        in_time(CALL, self.operator().recount()).await?;
        let mut counted: BTreeMap<String, i64> = BTreeMap::new();
        let mut stored: BTreeMap<String, i64> = BTreeMap::new();
        for record in self.dump().await? {
            match record {
                DumpRecord::Row(key, row) => count(&key, &row, &mut counted),
                DumpRecord::Counter(name, value) => {
                    if QuotaKind::ALL.iter().any(|kind| name.starts_with(kind.counter_prefix())) && value != 0 {
                        stored.insert(name, value);
                    }
                }
            }
        }
        let is_equal = stored == counted;
        self.cluster.note("overseer", "counters", &format!("{is_equal} {}", counted.len()));
        Ok(is_equal)
    }

    /// Deletes all names; then the root's row is the only one.
    async fn is_emptied(&self) -> Result<bool, TreeError> {
        let mut session = self.sessions[0].clone();
        for (name, _) in in_time(CALL, session.list("*")).await? {
            in_time(CALL, session.delete(&name)).await?;
        }
        let operator = self.operator();
        in_time(CALL, operator.check(Fix::Repair)).await?;
        let rows = self.dump().await?.into_iter().filter(|record| matches!(record, DumpRecord::Row(..))).count();
        Ok(rows == 1)
    }

    async fn dump(&self) -> Result<Vec<DumpRecord>, TreeError> {
        in_time(CALL, async { self.operator().dump().await?.try_collect().await }).await
    }

    /// An operator of the first server.
    fn operator(&self) -> Operator {
        let root = format!("/{}", address(&self.cluster.mounttables[0]));
        let roots = Roots::new([root.as_str()]).unwrap();
        let namespace = Namespace::builder(self.runtime.clone()).roots(roots).identity(SUPERUSER).build();
        namespace.unwrap().operator().unwrap()
    }
}

/// Names with their servers.
type Servers = BTreeMap<String, BTreeSet<String>>;

/// Adds what a row is charged for: the node to its creator, unless it is the root, and each server to the user who mounted it.
fn count(key: &str, row: &Row, counted: &mut BTreeMap<String, i64>) {
    for ((family, column), cell) in row {
        match family {
            Family::Meta if column == "c" && !is_root(key) => {
                *counted.entry(format!("{}{}", QuotaKind::Nodes.counter_prefix(), cell.value)).or_default() += 1;
            }
            Family::Servers => {
                let mounter = mounter(&cell.value);
                *counted.entry(format!("{}{mounter}", QuotaKind::Servers.counter_prefix())).or_default() += 1;
            }
            _ => {}
        }
    }
}

fn is_root(key: &str) -> bool {
    ebla_mounttable_tree::key::name_of(key).is_ok_and(|name| name.is_root())
}

/// The user who is charged for a server, in the cell of the server.
fn mounter(cell: &str) -> String {
    let cell: serde_json::Value = serde_json::from_str(cell).unwrap_or_default();
    cell["mounter"].as_str().unwrap_or_default().to_owned()
}
