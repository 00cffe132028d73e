//! The final checks of the mounttable, after all faults and changes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use ebla_mounttable_namespace::operate::{DumpRecord, Fix, Operator};
use ebla_mounttable_namespace::{Namespace, Publisher, Roots};
use ebla_mounttable_tree::Reason;
use ebla_runtime::Runtime;
use ebla_workload::bench::names::session::Session;
use futures::TryStreamExt;

use crate::mounttables::expectations::Expectations;
use crate::mounttables::users::{Server, found};

/// The superuser.
const SUPERUSER: &str = "server";
/// Names that are mounted at the beginning and end while servers are killed.
const EXPIRING: usize = 20;
/// For how long.
const EXPIRING_TTL: Duration = Duration::from_secs(20);
/// Names of one BatchResolve.
const BATCH: usize = 500;

/// Names that end by themselves.
pub(crate) struct Expiring {
    names: Vec<String>,
    /// When the last of them ends, in microseconds since the epoch.
    deadline: i64,
}

fn sessions(runtime: &Runtime, addresses: &[String]) -> Vec<Session> {
    addresses.iter().map(|address| Session::new(&runtime.net.channel(address), SUPERUSER).unwrap()).collect()
}

fn operator(runtime: &Runtime, addresses: &[String]) -> Operator {
    let root = format!("/{}", addresses[0]);
    let roots = Roots::new([root.as_str()]).unwrap();
    Namespace::builder(runtime.clone()).roots(roots).identity(SUPERUSER).build().unwrap().operator().unwrap()
}

/// Mounts on deep names, through all mounttables in turn.
pub(crate) async fn mount_for_a_while(runtime: &Runtime, addresses: &[String]) -> Expiring {
    let sessions = sessions(runtime, addresses);
    let names: Vec<_> = (0..EXPIRING).map(|at| format!("expires/{at}/3/4/5/6/7/8/9/10/11/12/13/14")).collect();
    let mounts = names.iter().zip(sessions.iter().cycle().cloned()).map(|(name, mut way)| async move {
        way.mount(name, "expires:1", EXPIRING_TTL).await.unwrap().deadline_micros.unwrap()
    });
    let deadlines = futures::future::join_all(mounts).await;
    Expiring { names, deadline: deadlines.into_iter().max().unwrap() }
}

/// A check finds nothing damaged; other findings are repaired, and then there are none.
pub(crate) async fn is_clean(runtime: &Runtime, addresses: &[String]) {
    let operator = operator(runtime, addresses);
    let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
    for finding in operator.check(Fix::Report).await.unwrap() {
        assert_ne!(finding.kind, "DAMAGED", "{}: {}", finding.place, finding.message);
        *kinds.entry(finding.kind).or_default() += 1;
    }
    println!("found by a check before the repair: {kinds:?}");
    wait_for!(runtime.clock, "a check still finds something", {
        operator.check(Fix::Repair).await.unwrap();
        operator.check(Fix::Report).await.unwrap().is_empty()
    });
}

/// What was promised is there, nothing else is, and lookups say the same as listings, through each mounttable.
pub(crate) async fn keeps(
    runtime: &Runtime,
    addresses: &[String],
    expectations: &Expectations,
    servers: &[Arc<Server>],
) {
    let names: Vec<String> = expectations.names().map(str::to_owned).collect();
    for mut way in sessions(runtime, addresses) {
        let listed: BTreeMap<_, _> = way.list("...").await.unwrap().into_iter().collect();
        assert_eq!(expectations.violations(&listed), []);
        for server in servers {
            let there = listed.get(&server.name).is_some_and(|servers| servers.contains(&server.address));
            assert!(there, "{} is not on {}", server.address, server.name);
        }
        // What it remembers is a second old at most.
        wait_for!(runtime.clock, "lookups and listings differ", {
            let mut is_same = true;
            for batch in names.chunks(BATCH) {
                for (name, entry) in batch.iter().zip(way.resolve_all(batch.to_vec()).await.unwrap()) {
                    let resolved: BTreeSet<_> = match entry {
                        Ok(entry) => entry.servers.into_iter().map(|server| server.address).collect(),
                        Err(error) if error.reason == Reason::NoSuchName => BTreeSet::new(),
                        Err(error) => panic!("resolve {name}: {error}"),
                    };
                    is_same &= resolved == listed.get(name).cloned().unwrap_or_default();
                }
            }
            is_same
        });
    }
}

/// Expired names are not resolved, also by concurrent lookups.
pub(crate) async fn has_expired(runtime: &Runtime, addresses: &[String], expiring: &Expiring) {
    // Servers count in milliseconds.
    wait_for!(runtime.clock, "the time does not go by", { runtime.clock.wall().get() > expiring.deadline + 1_000 });
    let sessions = sessions(runtime, addresses);
    for name in &expiring.names {
        let two = sessions
            .iter()
            .chain(&sessions)
            .cloned()
            .map(|mut way| async move { found(&mut way, name).await.unwrap().0 });
        for servers in futures::future::join_all(two).await {
            assert_eq!(servers, BTreeSet::new(), "{name}");
        }
    }
}

/// What the library keeps mounted exists until its shutdown.
pub(crate) async fn is_published(runtime: &Runtime, addresses: &[String], name: &str, publisher: Publisher) {
    let mut sessions = sessions(runtime, addresses);
    for way in &mut sessions {
        wait_for!(runtime.clock, "the publisher's name is not there", {
            found(way, name).await.unwrap().0.contains("library:1")
        });
    }
    publisher.shutdown().await;
    for way in &mut sessions {
        wait_for!(runtime.clock, "the publisher's name stays", found(way, name).await.unwrap().0.is_empty());
    }
}

/// Everything is deleted; then there is one row, the root's.
pub(crate) async fn leaves_nothing(runtime: &Runtime, addresses: &[String]) {
    let mut sessions = sessions(runtime, addresses);
    for (number, (name, _)) in sessions[0].clone().list("*").await.unwrap().into_iter().enumerate() {
        let at = number % sessions.len();
        sessions[at].delete(&name).await.unwrap();
    }
    for way in &mut sessions {
        assert_eq!(way.list("*").await.unwrap(), []);
    }
    is_clean(runtime, addresses).await;
    let left: Vec<_> = operator(runtime, addresses).dump().await.unwrap().try_collect().await.unwrap();
    let rows: Vec<_> = left.iter().filter(|part| matches!(part, DumpRecord::Row(..))).collect();
    assert_eq!(rows.len(), 1, "{rows:?}");
}
