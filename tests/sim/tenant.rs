//! A client that creates, fills, changes and deletes tables, one call after the other, and checks what it reads.
//!
//! It knows what a table must contain after each call that succeeded. A call that failed may still be carried out at any later
//! time, so after the first failed call of a round nothing is checked until the next round, which uses a new table name. Otherwise
//! the same name is used again: the new table must contain nothing of the old one.
//!
//! It also changes the locality groups of the other clients' table: no result may depend on them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ebla_client::admin::FamilyChange;
use ebla_client::{Admin, Client, ReadOptions, Table};
use ebla_model::error::{Error, Reason};
use ebla_model::gc::GcRule;
use ebla_model::key::{RowKey, RowSet};
use ebla_model::locality::LocalityGroupChange;
use ebla_model::mutation::{Mutation, WriteTime};
use ebla_model::schema::TableName;
use ebla_runtime::Runtime;

use crate::cluster::{Phase, SimCluster};
use crate::load;
use crate::time::{self, HostTime};
use crate::versions;

/// The timeout of a call.
const CALL: Duration = Duration::from_secs(5);
/// Between two calls, about.
const PAUSE: Duration = Duration::from_millis(50);
/// Rows with the prefix that is dropped, and as many others.
const ROWS: usize = 4;

/// The tenant's host.
pub(crate) async fn run(cluster: Arc<SimCluster>) -> turmoil::Result {
    let runtime = cluster.runtime("tenant", &HostTime::default(), 0);
    while cluster.phase() == Phase::Boot {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let mut names = 0;
    while cluster.phase() == Phase::Load {
        let name = TableName::from_parts("sim", "sim", &format!("tenant-{names}")).unwrap();
        regroup(&cluster, &runtime).await;
        let mut round = Round { cluster: &cluster, runtime: &runtime, name, is_certain: true };
        round.run().await;
        if !round.is_certain {
            names += 1;
        }
        let kind = if round.is_certain { "table-deleted" } else { "table-uncertain" };
        cluster.trace.lock().count(time::elapsed(), "tenant", kind, &names.to_string());
    }
    Ok(())
}

/// Moves a random family of the clients' table to a random locality group, or changes the options of one. Whether the call succeeds does not
/// matter: no result may depend on it.
async fn regroup(cluster: &SimCluster, runtime: &Runtime) {
    let any = |texts: &[&'static str]| texts[usize::try_from(runtime.rng.below(texts.len() as u64)).unwrap()];
    let group = any(&["default", "first", "second"]);
    let options = any(&[
        "",
        "compression=none",
        "compression=zstd:1;block=4k",
        "bloom=none",
        "bloom=columns",
        "in-memory=yes",
        "in-memory=no;bloom=rows",
    ]);
    let changes = [set_group(group, options), move_family(any(&["l", "v", "w"]), group)];
    let servers = &cluster.servers;
    let server = &servers[usize::try_from(runtime.rng.below(servers.len() as u64)).unwrap()];
    let admin = Admin::connect(&server.address(), runtime).with_timeout(CALL);
    let changed = tokio::time::timeout(CALL, admin.change_locality_groups(&load::table_name(), &changes)).await;
    let outcome = match &changed {
        Ok(Ok(_groups)) => "ok",
        Ok(Err(error)) => error.reason.name(),
        Err(_elapsed) => "elapsed",
    };
    cluster.note("tenant", "regroup", outcome);
}

fn set_group(name: &str, options: &str) -> LocalityGroupChange {
    LocalityGroupChange::Set { name: name.to_owned(), options: options.to_owned() }
}

fn move_family(family: &str, group: &str) -> LocalityGroupChange {
    LocalityGroupChange::Move { family: family.to_owned(), group: group.to_owned() }
}

/// The life of one table.
struct Round<'a> {
    cluster: &'a SimCluster,
    runtime: &'a Runtime,
    name: TableName,
    /// Whether every call has succeeded so far.
    is_certain: bool,
}

impl Round<'_> {
    async fn run(&mut self) {
        let split = [key("b")];
        self.change(async |admin, name| admin.create_table(name, &[family("f")], &split).await).await;
        self.expect("is new", &[]).await;
        for key in keys("a").chain(keys("b")) {
            self.write(&key, "f").await;
        }
        self.expect("is filled", &[("a", "f"), ("b", "f")]).await;
        let group = [set_group("g", "compression=none"), move_family("f", "g")];
        self.change(async |admin, name| admin.change_locality_groups(name, &group).await.map(drop)).await;
        self.expect("has a family in another group", &[("a", "f"), ("b", "f")]).await;
        self.change(async |admin, name| admin.drop_row_range(name, &key("a")).await).await;
        self.expect("has lost a prefix", &[("b", "f")]).await;
        let create = [FamilyChange::Create(family("g"))];
        self.change(async |admin, name| admin.modify_families(name, &create).await.map(drop)).await;
        for key in keys("a") {
            self.write(&key, "g").await;
        }
        let drop_f = [FamilyChange::Drop("f".to_owned())];
        self.change(async |admin, name| admin.modify_families(name, &drop_f).await.map(drop)).await;
        self.expect("has lost a family", &[("a", "g")]).await;
        let again = [FamilyChange::Create(family("f"))];
        self.change(async |admin, name| admin.modify_families(name, &again).await.map(drop)).await;
        self.expect("has a family of the same name", &[("a", "g")]).await;
        self.delete().await;
    }

    /// Changes the table or its schema once.
    async fn change(&mut self, call: impl AsyncFn(Admin, &TableName) -> Result<(), Error>) {
        if !self.is_certain {
            return;
        }
        let admin = Admin::connect(&self.address(), self.runtime).with_timeout(CALL);
        let answer = tokio::time::timeout(CALL, call(admin, &self.name)).await;
        self.finish("change", &answer.unwrap_or_else(|_elapsed| Err(silence()))).await;
    }

    /// Writes one cell.
    async fn write(&mut self, key: &RowKey, family: &str) {
        if !self.is_certain {
            return;
        }
        let cell = Mutation::SetCell {
            family: family.to_owned(),
            qualifier: Bytes::from_static(b"q"),
            timestamp: WriteTime::Server,
            value: Bytes::from_static(b"v"),
        };
        let answer = self.table().mutate_row(key, &[cell]).await;
        self.finish("write", &answer).await;
    }

    /// Checks that the table contains the rows of these prefixes, each with one cell in its family, and nothing else. A failed
    /// read is repeated: it changes nothing.
    async fn expect(&mut self, when: &str, prefixes: &[(&str, &str)]) {
        let expected: BTreeSet<String> = prefixes
            .iter()
            .flat_map(|(prefix, family)| keys(prefix).map(move |key| format!("{key} {family}")))
            .collect();
        while self.is_certain && self.cluster.phase() == Phase::Load {
            let Ok(rows) = self.table().read_rows(RowSet::all(), ReadOptions::default()).await else {
                tokio::time::sleep(self.runtime.rng.jitter(PAUSE)).await;
                continue;
            };
            let cells = rows.iter().flat_map(|row| row.cells.iter().map(move |cell| (row, cell)));
            let found: BTreeSet<String> =
                cells.map(|(row, cell)| format!("{} {}", row.key, cell.family.as_str())).collect();
            if found != expected {
                let (name, at) = (self.name.table(), time::elapsed());
                let wrong = format!("schema: {name} {when} at {at:?} and has {found:?} instead of {expected:?}");
                self.cluster.history.lock().wrong.push(wrong);
                self.is_certain = false;
            }
            return;
        }
    }

    /// Deletes the table. A failed call is repeated, so that tables do not accumulate.
    async fn delete(&mut self) {
        while self.cluster.phase() == Phase::Load {
            let admin = Admin::connect(&self.address(), self.runtime).with_timeout(CALL);
            match tokio::time::timeout(CALL, admin.delete_table(&self.name)).await {
                Ok(Ok(())) => return,
                Ok(Err(error)) if error.reason == Reason::NotFoundTable => return,
                _failed => self.is_certain = false,
            }
            tokio::time::sleep(self.runtime.rng.jitter(PAUSE)).await;
        }
    }

    async fn finish(&mut self, kind: &str, answer: &Result<(), Error>) {
        let outcome = answer.as_ref().err().map_or("ok", |error| error.reason.name());
        self.cluster.note("tenant", kind, &format!("{} {outcome}", self.name.table()));
        self.is_certain = match answer {
            Ok(()) => true,
            // Refused before anything was done: nothing has changed.
            Err(error) => versions::is_refusal(error),
        };
        tokio::time::sleep(self.runtime.rng.jitter(PAUSE)).await;
    }

    fn table(&self) -> Table {
        Client::endpoint(&self.address(), self.runtime.clone()).table(&self.name).with_timeout(CALL)
    }

    fn address(&self) -> String {
        let servers = &self.cluster.servers;
        servers[usize::try_from(self.runtime.rng.below(servers.len() as u64)).unwrap()].address()
    }
}

fn keys(prefix: &str) -> impl Iterator<Item = RowKey> {
    (0..ROWS).map(move |number| key(&format!("{prefix}/{number}")))
}

fn key(text: &str) -> RowKey {
    RowKey::copy_from_slice(text.as_bytes())
}

fn family(name: &str) -> (String, Option<GcRule>) {
    (name.to_owned(), Some(GcRule::MaxVersions(1)))
}

fn silence() -> Error {
    Error::new(Reason::Deadline, "no answer")
}
