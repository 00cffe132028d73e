//! What `ebla up` reports when the cluster is ready: a block for people on stderr, and an object for programs in the ready file and on
//! stdout. Both are pure functions of [`Ready`].

use std::path::{Path, PathBuf};
use std::time::Duration;

use ebla_master::Contents;
use ebla_master::health::Health;
use ebla_model::capacity::readable_bytes;
use ebla_runtime::Net;
use ebla_tablet_server::TabletServer;
use serde_json::{Value, json};

use super::{Running, Up};

/// Replicas of a tablet when there are enough servers.
const REPLICAS_MAX: usize = 3;

/// Whether a start found data of an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    /// There was no cluster in the folder.
    New,
    /// There was one, and its data is served again.
    Again,
}

impl Start {
    /// That of a cluster in this folder, before anything is started.
    pub(super) fn of(folder: &Path) -> Self {
        if folder.join("server-1").exists() { Self::Again } else { Self::New }
    }
}

/// How clients connect.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Connections {
    Plain {
        is_insecure: bool,
    },
    /// With the file of the CA.
    Tls(PathBuf),
}

/// A tablet server: its id and its address.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Address {
    id: u64,
    address: String,
}

/// A cluster that is ready.
#[derive(Clone, Debug)]
pub(super) struct Ready {
    name: String,
    folder: String,
    is_ephemeral: bool,
    start: Start,
    took: Duration,
    servers: Vec<Address>,
    contents: Option<Contents>,
    /// The HTTP port, with the console and the metrics.
    http: Option<String>,
    mounttable: Option<String>,
    mounttable_http: Option<String>,
    connections: Connections,
    pid: u32,
}

impl Ready {
    pub(super) fn of(up: &Up, running: &Running, net: &Net) -> Self {
        let server = |one: &TabletServer| Address { id: one.id().get(), address: one.address().to_owned() };
        let folder = running.cluster.folder();
        let names = running.names.as_ref();
        Self {
            name: up.cluster_name.to_string(),
            folder: folder.path().display().to_string(),
            is_ephemeral: folder.is_ephemeral(),
            start: running.start,
            took: running.took,
            servers: running.cluster.servers.iter().map(server).collect(),
            contents: running.contents.clone(),
            http: running.monitoring.address().map(ToOwned::to_owned),
            mounttable: names.map(|names| names.address().to_owned()),
            mounttable_http: names.and_then(|names| names.http_address()).map(ToOwned::to_owned),
            connections: match net.tls() {
                Some(tls) => Connections::Tls(tls.files().ca.clone()),
                None => Connections::Plain { is_insecure: up.insecure },
            },
            pid: std::process::id(),
        }
    }

    fn scheme(&self) -> &'static str {
        if matches!(self.connections, Connections::Tls(_)) { "https" } else { "http" }
    }

    fn console(&self) -> Option<String> {
        Some(format!("{}://{}/", self.scheme(), self.http.as_ref()?))
    }

    /// The contents of the ready file. Its keys are part of the interface.
    pub(super) fn object(&self) -> Value {
        let server = |one: &Address| json!({"id": one.id, "bigtable": one.address});
        let mut ready = json!({
            "event": "ready",
            "cluster": self.name,
            "bigtable": self.servers.first().map(|first| &first.address),
            "pid": self.pid,
            "servers": self.servers.iter().map(server).collect::<Vec<_>>(),
        });
        let optional = [
            ("console", self.console()),
            ("metrics", self.http.clone()),
            ("mounttable", self.mounttable.clone()),
            ("mounttable_http", self.mounttable_http.clone()),
        ];
        if let Some(ready) = ready.as_object_mut() {
            let given = optional.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?.into())));
            ready.extend(given);
        }
        ready
    }

    /// The block for people.
    pub(super) fn block(&self) -> String {
        let kept = match (self.is_ephemeral, self.start) {
            (true, _) => "removed at the end".to_owned(),
            (false, Start::New) => "kept; --ephemeral uses a temporary folder".to_owned(),
            (false, Start::Again) => match &self.contents {
                Some(Contents { tables, tablet_bytes, .. }) => {
                    let plural = if *tables == 1 { "table" } else { "tables" };
                    format!("found: {tables} {plural}, {}", readable_bytes(*tablet_bytes))
                }
                None => "found".to_owned(),
            },
        };
        let mut block = format!(
            "ebla {}   cluster \"{}\"   data {} ({kept})\n\n  ready in {:.1} s    master 1    tablet servers {count}/{count}",
            env!("CARGO_PKG_VERSION"),
            self.name,
            self.folder,
            self.took.as_secs_f64(),
            count = self.servers.len(),
        );
        if let Some(Contents { health, .. }) = &self.contents {
            let unserved = health.without_quorum.len() + health.without_leader.len();
            block.push_str(&format!(
                "    tablets {}/{} served",
                health.tablets.saturating_sub(unserved),
                health.tablets
            ));
        }
        block.push_str(if self.mounttable.is_some() { "    mounttable up\n\n" } else { "\n\n" });
        self.addresses().iter().for_each(|(name, text)| block.push_str(&format!("  {name:<15}{text}\n")));
        block.push_str(
            "\n  Try   ebla table create web --family anchor --family contents:maxversions=3\n        \
             ebla set web com.cnn.www anchor:cnnsi.com=CNN\n        ebla scan web --prefix com.\n        \
             ebla meta lookup web com.cnn.www\n\n",
        );
        let health = self.contents.as_ref().map(|contents| &contents.health);
        block.push_str(&writes(self.servers.len().min(REPLICAS_MAX), health));
        block.push_str(match self.connections {
            Connections::Tls(_) => " TLS, no authentication of users.\n",
            Connections::Plain { is_insecure: true } => " No TLS, no authentication (--insecure).\n",
            Connections::Plain { is_insecure: false } => " No TLS, no authentication: use it on loopback only.\n",
        });
        block.push_str("  Ctrl-C drains and stops. Help: ebla help\n");
        block
    }

    /// Where everything listens, and how to use it.
    fn addresses(&self) -> Vec<(&'static str, String)> {
        let first = self.servers.first().map_or("", |first| first.address.as_str());
        let scheme = self.scheme();
        let clients = match &self.connections {
            // The variable of the emulator means a connection without TLS.
            Connections::Tls(ca) => format!("export EBLA_TLS_CA={}", ca.display()),
            Connections::Plain { .. } => format!("export BIGTABLE_EMULATOR_HOST={first}"),
        };
        let mut lines = vec![("Bigtable API", format!("{first}     {clients}"))];
        let others: Vec<_> = self.servers.iter().skip(1).map(|one| one.address.as_str()).collect();
        if !others.is_empty() {
            lines.push(("Other servers", others.join("  ")));
        }
        if let Some(address) = &self.mounttable {
            lines.push(("Mounttable", format!("{address}     export MT_ROOT={address}")));
        }
        if let Some(address) = &self.mounttable_http {
            lines.push(("Names (HTTP)", format!("{address}     curl {scheme}://{address}/v1/openapi.json")));
        }
        if let Some(address) = &self.http {
            lines.push(("Console", format!("{scheme}://{address}/")));
            lines.push(("Metrics", format!("{scheme}://{address}/metrics")));
        }
        lines
    }
}

/// On how many disks writes are stored before they are acknowledged. A cluster that ran with fewer servers before still copies
/// its tablets after it is ready. `wanted`: replicas that a tablet should have.
fn writes(wanted: usize, health: Option<&Health>) -> String {
    let disks = health.and_then(|health| health.voters_min).unwrap_or(wanted);
    let majority = disks / 2 + 1;
    let plural = if disks == 1 { "disk" } else { "disks" };
    match health.map_or(0, |health| health.missing_voters) {
        0 => format!("  Writes are on {majority} of {disks} {plural} before they are acknowledged."),
        missing_voters => {
            let tablets =
                if missing_voters == 1 { "1 tablet is".to_owned() } else { format!("{missing_voters} tablets are") };
            format!(
                "  Writes are on {majority} of {disks} {plural} now; {tablets} being copied to {wanted} servers: see ebla status."
            )
        }
    }
}

#[cfg(test)]
pub(in crate::commands) use tests::documents;

#[cfg(test)]
mod tests {
    use super::*;

    /// Documents of the ready file, for the reference: with every port, and with none.
    pub(in crate::commands) fn documents() -> Vec<Value> {
        let small = Ready { http: None, mounttable: None, mounttable_http: None, ..ready() };
        [ready(), small].iter().map(Ready::object).collect()
    }

    fn ready() -> Ready {
        let server = |id, port: u16| Address { id, address: format!("127.0.0.1:{port}") };
        let health = Health { tablets: 5, voters_min: Some(3), ..Health::default() };
        Ready {
            name: "local".to_owned(),
            folder: "./ebla-data".to_owned(),
            is_ephemeral: false,
            start: Start::New,
            took: Duration::from_millis(1_234),
            servers: vec![server(1, 8086), server(2, 40_001), server(3, 40_002)],
            contents: Some(Contents { health, tables: 2, tablet_bytes: 3 << 20 }),
            http: Some("127.0.0.1:8080".to_owned()),
            mounttable: Some("127.0.0.1:8101".to_owned()),
            mounttable_http: Some("127.0.0.1:8180".to_owned()),
            connections: Connections::Plain { is_insecure: false },
            pid: 17,
        }
    }

    #[test]
    fn the_block_shows_every_address_and_how_to_use_it() {
        let expected = format!(
            "\
ebla {}   cluster \"local\"   data ./ebla-data (kept; --ephemeral uses a temporary folder)

  ready in 1.2 s    master 1    tablet servers 3/3    tablets 5/5 served    mounttable up

  Bigtable API   127.0.0.1:8086     export BIGTABLE_EMULATOR_HOST=127.0.0.1:8086
  Other servers  127.0.0.1:40001  127.0.0.1:40002
  Mounttable     127.0.0.1:8101     export MT_ROOT=127.0.0.1:8101
  Names (HTTP)   127.0.0.1:8180     curl http://127.0.0.1:8180/v1/openapi.json
  Console        http://127.0.0.1:8080/
  Metrics        http://127.0.0.1:8080/metrics

  Try   ebla table create web --family anchor --family contents:maxversions=3
        ebla set web com.cnn.www anchor:cnnsi.com=CNN
        ebla scan web --prefix com.
        ebla meta lookup web com.cnn.www

  Writes are on 2 of 3 disks before they are acknowledged. No TLS, no authentication: use it on loopback only.
  Ctrl-C drains and stops. Help: ebla help
",
            env!("CARGO_PKG_VERSION")
        );
        assert_eq!(ready().block(), expected);
    }

    #[test]
    fn a_second_start_says_what_it_found() {
        let first = |ready: &Ready| ready.block().lines().next().unwrap_or_default().to_owned();
        let again = Ready { start: Start::Again, ..ready() };
        assert!(first(&again).ends_with("(found: 2 tables, 3.0 MiB)"), "{}", first(&again));
        let unknown = Ready { contents: None, ..again.clone() };
        assert!(first(&unknown).ends_with("(found)"), "{}", first(&unknown));
        let ephemeral = Ready { is_ephemeral: true, ..again };
        assert!(first(&ephemeral).ends_with("(removed at the end)"), "{}", first(&ephemeral));
    }

    #[test]
    fn tls_changes_the_addresses() {
        let tls = Ready { connections: Connections::Tls("ca.crt".into()), mounttable: None, ..ready() };
        let block = tls.block();
        assert!(block.contains("export EBLA_TLS_CA=ca.crt") && !block.contains("EMULATOR"), "{block}");
        assert!(
            block.contains("  Console        https://127.0.0.1:8080/\n") && !block.contains("mounttable up"),
            "{block}"
        );
        let without_http = Ready { http: None, ..ready() };
        assert!(!without_http.block().contains("Console"), "{}", without_http.block());
    }

    #[test]
    fn the_object_has_the_addresses_for_programs() {
        let expected = json!({
            "event": "ready",
            "cluster": "local",
            "bigtable": "127.0.0.1:8086",
            "pid": 17,
            "servers": [
                {"id": 1, "bigtable": "127.0.0.1:8086"},
                {"id": 2, "bigtable": "127.0.0.1:40001"},
                {"id": 3, "bigtable": "127.0.0.1:40002"},
            ],
            "console": "http://127.0.0.1:8080/",
            "metrics": "127.0.0.1:8080",
            "mounttable": "127.0.0.1:8101",
            "mounttable_http": "127.0.0.1:8180",
        });
        assert_eq!(ready().object(), expected);
        let small = Ready { http: None, mounttable: None, mounttable_http: None, ..ready() }.object();
        let keys: Vec<_> = small.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(keys.len(), 5, "{keys:?}");
    }

    #[test]
    fn the_block_says_on_how_many_disks_writes_are_stored() {
        let health = |voters, missing_voters| Health { voters_min: Some(voters), missing_voters, ..Health::default() };
        assert_eq!(writes(3, Some(&health(3, 0))), "  Writes are on 2 of 3 disks before they are acknowledged.");
        assert_eq!(writes(1, Some(&health(1, 0))), "  Writes are on 1 of 1 disk before they are acknowledged.");
        assert_eq!(
            writes(3, Some(&health(1, 24))),
            "  Writes are on 1 of 1 disk now; 24 tablets are being copied to 3 servers: see ebla status."
        );
        assert!(writes(3, Some(&health(1, 1))).contains("1 tablet is being copied"));
    }
}
