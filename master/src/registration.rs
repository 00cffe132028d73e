//! The registration of the cluster in Chubby: its name, size, versions and traffic, for people and tools. The active master replaces it
//! every [`PERIOD`]; nothing is decided by it. [`describe`] is pure.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use ebla_chubby::{Write, paths};
use ebla_model::cluster_name::ClusterName;
use ebla_model::cluster_version::ClusterVersion;
use ebla_model::error::Error;
use ebla_model::schema::TableState;
use ebla_model::time::Micros;
use ebla_proto::{convert, operate, record};
use tracing::debug;

use crate::active::ActiveMaster;
use crate::cluster::{ClusterSnapshot, Registration};
use crate::{observation, schema_store};

/// Between two registrations.
const PERIOD: Duration = Duration::from_secs(30);
/// The same while the cluster cannot be observed, or has just started.
const RETRY_PERIOD: Duration = Duration::from_secs(5);
/// How many releases are named: more than two run at once only by mistake.
const RELEASES_MAX: usize = 8;

/// Registers the cluster until this master is no longer active. `own_address`: where this master listens.
pub(crate) async fn register(master: ActiveMaster, name: &ClusterName, own_address: &str) {
    let mut period = RETRY_PERIOD;
    loop {
        period = match write(&master, name, own_address).await {
            // The first one may be of a cluster whose groups have no leaders yet.
            Ok(()) if period < PERIOD => PERIOD.min(period.saturating_mul(3)),
            Ok(()) => PERIOD,
            Err(error) => {
                debug!(%error, "the cluster is not registered in Chubby; will retry");
                RETRY_PERIOD
            }
        };
        tokio::time::sleep(master.runtime().rng.jitter(period)).await;
    }
}

async fn write(master: &ActiveMaster, name: &ClusterName, own_address: &str) -> Result<(), Error> {
    let masters = schema_store::list_candidates(master.chubby()).await?;
    let servers = observation::observe_servers(master).await?;
    let tables = schema_store::list_tables(master.chubby()).await?;
    let snapshot = ClusterSnapshot { servers, tables, ..ClusterSnapshot::default() };
    let about =
        About { name, own_address, active: master.directory().active_version(), now: master.runtime().clock.wall() };
    let registration = convert::encode_record(describe(&about, &masters, &snapshot));
    master.transact(Vec::new(), vec![Write::put(paths::REGISTRATION, registration)]).await.map(drop)
}

/// What the reports of servers do not contain.
struct About<'a> {
    name: &'a ClusterName,
    own_address: &'a str,
    active: ClusterVersion,
    now: Micros,
}

/// What the cluster registers. `snapshot`: the servers with their reports, and the tables.
fn describe(about: &About<'_>, masters: &[record::Master], snapshot: &ClusterSnapshot) -> record::ClusterRegistration {
    let registered = || snapshot.servers.values().filter(|server| server.registration == Registration::Registered);
    let responding = registered().filter(|server| server.report.is_some()).count();
    let releases: BTreeSet<&str> = masters
        .iter()
        .map(|master| &master.release)
        .chain(registered().map(|server| &server.release))
        .map(String::as_str)
        .collect();
    let releases = releases.into_iter().filter(|release| !release.is_empty()).take(RELEASES_MAX);
    let leaders = snapshot.leader_reports();
    let led = || leaders.values().flat_map(|(_server, report)| &report.tablets);
    let sum = |figures: &mut dyn Iterator<Item = u64>| figures.fold(0, u64::saturating_add);
    record::ClusterRegistration {
        name: about.name.to_string(),
        time_micros: about.now.get(),
        master: about.own_address.to_owned(),
        masters: masters.len() as u64,
        servers: registered().count() as u64,
        servers_responding: responding as u64,
        releases: releases.map(ToOwned::to_owned).collect(),
        active_version: about.active.get(),
        tables: snapshot
            .tables
            .values()
            .filter(|table| table.state == TableState::Active && !table.name.is_system())
            .count() as u64,
        tablets: snapshot.tablets().len() as u64,
        groups: snapshot.groups().len() as u64,
        tablet_bytes: sum(&mut led().map(|tablet| tablet.size_bytes)),
        stored_bytes: sum(&mut snapshot.reports().map(|(_server, report)| report.size_bytes())),
        reads_per_second: sum(&mut led().map(|tablet| tablet.load.reads_per_second)),
        writes_per_second: sum(&mut led().map(|tablet| tablet.load.writes_per_second)),
        ..Default::default()
    }
}

/// What the cluster has registered.
///
/// # Errors
/// When Chubby cannot be read, or the record is damaged.
pub(crate) async fn read(master: &ActiveMaster) -> Result<operate::DescribeClusterReply, Error> {
    let file = master.chubby().read(paths::REGISTRATION).await?;
    let registration: Option<record::ClusterRegistration> =
        file.map(|file| convert::decode_record(file.value)).transpose()?;
    let written = registration.as_ref().map_or(0, |registration| registration.time_micros);
    let age_micros = master.runtime().clock.wall().get().saturating_sub(written);
    Ok(operate::DescribeClusterReply {
        cluster: Bytes::copy_from_slice(&master.cluster().to_bytes()),
        age_millis: if registration.is_some() { u64::try_from(age_micros / 1_000).unwrap_or_default() } else { 0 },
        registration,
    })
}

#[cfg(test)]
mod tests {
    use ebla_model::cell::FamilyName;
    use ebla_model::id::{GroupId, Incarnation, LogId, ReplicaId, SchemaVersion, ServerId, TableId, TabletId, Term};
    use ebla_model::key::KeyRange;
    use ebla_model::metadata::GroupDescriptor;
    use ebla_model::schema::TableSchema;
    use ebla_model::tablet_load::TabletLoad;

    use super::*;
    use crate::cluster::{ReplicaReport, Role, Server, ServerReport, TabletReport};

    /// A server that leads, or follows in, a group of one tablet.
    fn server(number: u64, release: &str, role: Role) -> (ServerId, Server) {
        let group = GroupDescriptor::initial(GroupId::new(7), &[ServerId::new(1), ServerId::new(2)]);
        let load = TabletLoad { reads_per_second: 40, writes_per_second: 2, ..TabletLoad::default() };
        let tablet = TabletReport {
            descriptor: group.new_tablet(TableId::new(5), TabletId::new(9), KeyRange::all()),
            size_bytes: 1_000,
            schema_version: SchemaVersion::default(),
            load,
        };
        let replica = ReplicaReport {
            group,
            replica: ReplicaId::new(number),
            role,
            term: Term::new(1),
            tablets: vec![tablet],
            applied: LogId::default(),
            last: LogId::default(),
            time: Micros::ZERO,
            settled: true,
            heard: BTreeSet::new(),
            division: None,
        };
        let server = Server {
            address: format!("host:{number}"),
            incarnation: Incarnation::new(number),
            release: release.to_owned(),
            ..Server::registered(Some(ServerReport { replicas: vec![replica], ..ServerReport::default() }))
        };
        (ServerId::new(number), server)
    }

    #[test]
    fn the_registration_has_the_figures_of_the_servers() {
        let name = "web-1".parse().unwrap();
        let about = About { name: &name, own_address: "m:1", active: ClusterVersion::FIRST, now: Micros::new(5) };
        let silent = Server { report: None, ..server(3, "0.1.0", Role::Follower).1 };
        let table = TableSchema::new(
            TableId::new(5),
            "projects/p/instances/i/tables/t".parse().unwrap(),
            [(FamilyName::new("f").unwrap(), None)],
        );
        let table = TableSchema { state: TableState::Active, ..table.unwrap() };
        let creating = TableSchema { state: TableState::Creating, ..table.clone() };
        let snapshot = ClusterSnapshot {
            servers: [server(1, "0.2.0", Role::Leader), server(2, "0.1.0", Role::Follower), (ServerId::new(3), silent)]
                .into(),
            tables: [(TableId::new(5), table), (TableId::new(6), creating)].into(),
            ..ClusterSnapshot::default()
        };
        let master = record::Master { release: "0.2.0".to_owned(), ..Default::default() };
        let described = describe(&about, &[master.clone(), master], &snapshot);
        assert_eq!((described.name.as_str(), described.time_micros, described.master.as_str()), ("web-1", 5, "m:1"));
        assert_eq!((described.masters, described.servers, described.servers_responding), (2, 3, 2));
        assert_eq!(described.releases, ["0.1.0", "0.2.0"]);
        assert_eq!((described.tables, described.tablets, described.groups), (1, 1, 1));
        assert_eq!((described.tablet_bytes, described.stored_bytes), (1_000, 2_000));
        assert_eq!(
            (described.reads_per_second, described.writes_per_second),
            (40, 2),
            "followers have no load of their own"
        );
    }

    #[test]
    fn a_cluster_without_servers_is_described() {
        let name = ClusterName::default();
        let about = About { name: &name, own_address: "", active: ClusterVersion::FIRST, now: Micros::ZERO };
        let described = describe(&about, &[], &ClusterSnapshot::default());
        assert_eq!((described.name.as_str(), described.servers, described.tablets), ("ebla", 0, 0));
        assert_eq!(described.releases, Vec::<String>::new());
    }
}
