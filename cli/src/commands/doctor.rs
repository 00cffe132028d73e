//! `ebla doctor`: what is wrong with a cluster, and what to do.

use std::time::Duration;

use ebla_client::{Admin, QuotaMeasurement};
use ebla_model::Micros;
use ebla_model::error::{Error, Reason};
use ebla_proto::operate::{LoadsReply, UpgradeStatusReply};
use ebla_runtime::Runtime;

use super::{ClusterArguments, given_timeout};
use crate::doctor::{self, Diagnosis, Facts, LocalFacts, diagnose};
use crate::output::{self, Failure, Format, Layout};
use crate::process::ClusterSecurity;
use ebla_client::snapshot::{ClusterSnapshot, fetch};
use ebla_client::verdict::Level;

/// How many of the busiest tablets are examined.
const TABLETS: u32 = 100;
/// Timeout of each call but the status, unless `--timeout` is shorter.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Checks that need the loads.
const LOAD_CHECKS: [&str; 3] = ["hot-row", "hot-tablet", "quota"];
/// Checks of values that each server reports to the master.
const OF_SERVERS: [&str; 10] =
    ["writes", "clock", "slow-disk", "damage", "lag", "disk", "memory", "files", "connections", "memory-groups"];

/// Check a cluster and this machine: what is wrong, where, since when, and what to do
///
/// It reads the status, the loads and the versions, and changes nothing. A check that cannot be made is listed with its reason. With
/// access control it needs the token of an administrator. SINCE is when the active master has first observed the problem.
///
/// The exit code is 0 when nothing is wrong, 5 when there are warnings, 6 when some tablets are not served or no master is active.
///
/// Examples:
///   ebla doctor
///   ebla doctor --addr 10.0.0.1:8086 -o json
///   ebla doctor --list
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Doctor {
    /// Which cluster
    #[command(flatten)]
    pub cluster: ClusterArguments,
    /// Only list the checks
    #[arg(long)]
    pub list: bool,
}

/// Makes the checks and shows what they find.
///
/// # Errors
/// 5 or 6 without a message, by the worst finding; the failure of a status that is refused.
pub async fn run(Doctor { cluster, list }: Doctor, runtime: Runtime) -> Result<(), Failure> {
    if list {
        match cluster.output {
            Format::Json => output::print_json(&doctor::list_json()),
            Format::Table => output::print(&doctor::list().render()),
        }
        return Ok(());
    }
    let facts = Box::pin(facts(&cluster, &runtime)).await?;
    let diagnosis = diagnose(&facts);
    show(&diagnosis, cluster.output, facts.now);
    match diagnosis.level() {
        Level::Healthy => Ok(()),
        level => Err(Failure { message: String::new(), code: level.exit_code() }),
    }
}

fn show(diagnosis: &Diagnosis, format: Format, now: Micros) {
    match (format, output::layout()) {
        (Format::Json, _) => output::print_json(&diagnosis.to_json()),
        (Format::Table, Layout::Csv | Layout::Raw) => output::print(&diagnosis.table().render()),
        (Format::Table, _) => output::print(&diagnosis.to_text(now)),
    }
}

/// Collects what the checks compare.
///
/// # Errors
/// When the address is not that of a tablet server or of the active master, and when the caller is no administrator.
pub(super) async fn facts(cluster: &ClusterArguments, runtime: &Runtime) -> Result<Facts, Failure> {
    let addresses = cluster.addresses()?;
    let began = (runtime.clock.wall(), runtime.clock.monotonic());
    let fetched = fetch(&addresses, given_timeout(), cluster.token()?, runtime).await;
    let took = runtime.clock.monotonic().saturating_sub(began.1);
    let (snapshot, unreachable) = match fetched {
        Ok(snapshot) => (snapshot, None),
        Err(error) if error.reason == Reason::Unavailable => (ClusterSnapshot::default(), Some(error.message)),
        Err(error) if error.reason == Reason::Unimplemented => return Err(Failure::usage(error.message)),
        Err(error) => return Err(error.into()),
    };
    let local = LocalFacts {
        clock: snapshot.time.map(|master| clock_difference(began.0, took, master)),
        certificate_expires: runtime.net.tls().is_some_and(|tls| tls.is_expiring()),
        variables: variables(|name| std::env::var(name).ok()),
    };
    let mut not_checked = Vec::new();
    let (loads, versions) = match &unreachable {
        Some(_error) => {
            not_checked.push(("", "nothing answers".to_owned()));
            (None, None)
        }
        None => {
            not_checked.extend(unknown(&snapshot));
            fetch_more(cluster, &addresses, runtime, &mut not_checked).await?
        }
    };
    let seen = snapshot.servers.iter().filter_map(|one| one.address.as_deref()).chain(snapshot.master.as_deref());
    Ok(Facts {
        security: ClusterSecurity::of(&runtime.net, seen.chain(addresses.iter().map(String::as_str))),
        now: snapshot.time.unwrap_or_else(|| runtime.clock.wall()),
        release: env!("CARGO_PKG_VERSION").to_owned(),
        not_checked: doctor_checks(not_checked),
        addresses,
        unreachable,
        snapshot,
        loads,
        versions,
        local,
    })
}

/// An empty name of a check stands for all checks that need an answer.
fn doctor_checks(not_checked: Vec<(&'static str, String)>) -> Vec<(&'static str, String)> {
    let of_cluster = || {
        let names = doctor::CHECKS.iter().map(|(name, _what)| *name);
        names.filter(|name| *name != "cluster" && !name.starts_with("local-") || *name == "local-clock")
    };
    let expand = |(check, reason): (&'static str, String)| match check {
        "" => of_cluster().map(|name| (name, reason.clone())).collect(),
        name => vec![(name, reason)],
    };
    not_checked.into_iter().flat_map(expand).collect()
}

/// The checks whose values a snapshot lacks, and why.
fn unknown(snapshot: &ClusterSnapshot) -> Vec<(&'static str, String)> {
    let is_observed = snapshot.master_error.is_none() && snapshot.awaited.is_none();
    let answering = || snapshot.servers.iter().filter(|one| one.is_reachable);
    let mut missing: Vec<(&'static str, &str)> = Vec::new();
    let mut all = |checks: &[&'static str], why: &'static str| missing.extend(checks.iter().map(|check| (*check, why)));
    if !is_observed {
        let why = if snapshot.awaited.is_some() { "the cluster has not started" } else { "no master is available" };
        all(&["leader", "unknown-tables", "lock-service"], why);
        all(&OF_SERVERS, why);
    } else if answering().next().is_none() {
        all(&OF_SERVERS, "no tablet server answers");
    } else {
        if answering().all(|one| one.lag.is_none()) {
            all(&["lag"], "no tablet server reports it");
        }
        if answering().all(|one| one.resources.connections.is_none()) {
            all(&["connections"], "no tablet server reports it");
        }
    }
    if snapshot.health.is_none() {
        all(&["quorum", "replicas"], "the tablets are not known");
        if is_observed {
            all(&["leader", "unknown-tables", "lock-service"], "the tablets are not known");
        }
    }
    if snapshot.time.is_none() {
        all(&["local-clock"], "the time of the master is not known");
    }
    missing.into_iter().map(|(check, why)| (check, why.to_owned())).collect()
}

/// The loads and the versions, which only a master knows.
async fn fetch_more(
    cluster: &ClusterArguments,
    addresses: &[String],
    runtime: &Runtime,
    not_checked: &mut Vec<(&'static str, String)>,
) -> Result<(Option<LoadsReply>, Option<UpgradeStatusReply>), Failure> {
    let timeout = given_timeout().map_or(CALL_TIMEOUT, |timeout| timeout.min(CALL_TIMEOUT));
    let admin = super::connectivity::first_reachable(addresses, runtime).await?;
    let admin = cluster.admin_at(&admin, runtime)?.with_timeout(timeout);
    let (loads, versions) = futures::join!(loads(&admin, timeout), versions(&admin, timeout));
    let loads = known(loads, &LOAD_CHECKS, not_checked)?;
    let versions = known(versions, &["cluster-version"], not_checked)?;
    let unmeasured = loads.as_ref().map_or(0, |loads| loads.quotas_unknown);
    if unmeasured > 0 {
        not_checked.push(("quota", format!("{unmeasured} tables with quotas were not measured")));
    }
    Ok((loads, versions))
}

async fn loads(admin: &Admin, timeout: Duration) -> Result<LoadsReply, Error> {
    within(timeout, admin.loads(TABLETS, QuotaMeasurement::Measured)).await
}

async fn versions(admin: &Admin, timeout: Duration) -> Result<UpgradeStatusReply, Error> {
    within(timeout, admin.upgrade_status()).await
}

async fn within<T>(timeout: Duration, call: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let timed_out = |_elapsed| Error::new(Reason::Deadline, format!("no answer within {} s", timeout.as_secs()));
    tokio::time::timeout(timeout, call).await.map_err(timed_out)?
}

/// The answer; without one these checks are not made.
///
/// # Errors
/// When the caller may not ask.
fn known<T>(
    answer: Result<T, Error>,
    checks: &[&'static str],
    not_checked: &mut Vec<(&'static str, String)>,
) -> Result<Option<T>, Failure> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if matches!(error.reason, Reason::PermissionDenied | Reason::Unauthenticated) => Err(error.into()),
        Err(error) => {
            let reason = match error.reason {
                Reason::Unimplemented => "the active master runs a release that cannot say".to_owned(),
                _ => error.message,
            };
            not_checked.extend(checks.iter().map(|check| (*check, reason.clone())));
            Ok(None)
        }
    }
}

/// By how much this machine's clock, which showed `began` before a call of this length, is ahead of `master`'s; and how wrong that may be. In
/// microseconds.
fn clock_difference(began: Micros, took: Duration, master: Micros) -> (i64, u64) {
    let half = u64::try_from(took.as_micros() / 2).unwrap_or(u64::MAX);
    let middle = began.get().saturating_add(i64::try_from(half).unwrap_or(i64::MAX));
    (middle.saturating_sub(master.get()), half)
}

/// The addresses in the environment, if both are set and differ.
fn variables(value: impl Fn(&str) -> Option<String>) -> Option<(String, String)> {
    let set = |name: &str| value(name).filter(|value| !value.is_empty());
    let (own, emulator) = (set("EBLA_ADDR")?, set("BIGTABLE_EMULATOR_HOST")?);
    (!own.split(',').any(|one| one == emulator)).then_some((own, emulator))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use ebla_client::snapshot::{ReplicaLag, ServerSnapshot};
    use ebla_model::capacity::{Resources, Usage};
    use ebla_proto::operate::Health;

    use super::*;

    #[test]
    fn the_clocks_are_compared_in_the_middle_of_the_call() {
        let compared = clock_difference(Micros::new(100), Duration::from_micros(40), Micros::new(90));
        assert_eq!(compared, (30, 20));
        assert_eq!(clock_difference(Micros::new(0), Duration::ZERO, Micros::new(7)), (-7, 0));
    }

    #[test]
    fn variables_that_name_the_same_address_are_fine() {
        let of = |own: &'static str, emulator: &'static str| {
            variables(|name| Some(if name == "EBLA_ADDR" { own } else { emulator }.to_owned()))
        };
        assert_eq!(of("a:1,b:2", "b:2"), None);
        assert_eq!(of("", "b:2"), None);
        assert_eq!(of("a:1", "b:2"), Some(("a:1".to_owned(), "b:2".to_owned())));
    }

    #[test]
    fn without_an_answer_the_checks_of_the_cluster_are_not_made() {
        let skipped = doctor_checks(vec![("", "why".to_owned())]);
        assert!(skipped.iter().any(|(check, _)| *check == "leader"));
        assert!(skipped.iter().all(|(check, _)| !["cluster", "local-environment"].contains(check)));
        assert_eq!(doctor_checks(vec![("quota", "x".to_owned())]), [("quota", "x".to_owned())]);
    }

    #[test]
    fn checks_of_unknown_values_are_not_made() {
        let names = |snapshot: &ClusterSnapshot| unknown(snapshot).into_iter().map(|(check, _why)| check).collect();
        let of_server = ServerSnapshot {
            is_reachable: true,
            lag: Some(ReplicaLag::default()),
            resources: Resources { connections: Some(Usage::default()), ..Resources::default() },
            ..ServerSnapshot::default()
        };
        let known = ClusterSnapshot {
            health: Some(Health::default()),
            time: Some(Micros::new(1)),
            servers: vec![of_server.clone(), ServerSnapshot::default()],
            ..ClusterSnapshot::default()
        };
        let found: Vec<&str> = names(&known);
        assert_eq!(found, [""; 0]);
        let earlier = ServerSnapshot { lag: None, resources: Resources::default(), ..of_server };
        let found: Vec<&str> = names(&ClusterSnapshot { servers: vec![earlier], time: None, ..known.clone() });
        assert_eq!(found, ["lag", "connections", "local-clock"]);
        let without_master = ClusterSnapshot { master_error: Some("none".to_owned()), ..known.clone() };
        let found: Vec<&str> = names(&without_master);
        assert!(["leader", "lock-service", "disk", "slow-disk"].iter().all(|check| found.contains(check)), "{found:?}");
        assert!(!found.contains(&"quorum"), "METADATA and the servers say it: {found:?}");
        for snapshot in [ClusterSnapshot::default(), ClusterSnapshot { health: None, ..without_master }] {
            let found: BTreeSet<&str> = unknown(&snapshot).into_iter().map(|(check, _why)| check).collect();
            assert_eq!(found.len(), unknown(&snapshot).len(), "each check once");
            assert!(["quorum", "leader", "replicas"].iter().all(|check| found.contains(check)), "{found:?}");
            assert!(found.iter().all(|check| doctor::CHECKS.iter().any(|(name, _what)| name == check)), "{found:?}");
        }
    }

    #[test]
    fn a_caller_without_rights_gets_the_refusal() {
        let mut skipped = Vec::new();
        let refused = |reason| Err::<(), _>(Error::new(reason, "no"));
        assert_eq!(known(refused(Reason::PermissionDenied), &["quota"], &mut skipped).unwrap_err().code, 7);
        assert_eq!(known(refused(Reason::Unimplemented), &["quota"], &mut skipped).unwrap(), None);
        assert_eq!(skipped, [("quota", "the active master runs a release that cannot say".to_owned())]);
    }
}
