//! `ebla verify`: a load that records every response, reads all data back, and checks consistency.

use std::path::PathBuf;
use std::time::Duration;

use ebla_client::Client;
use ebla_model::error::Error;
use ebla_model::schema::TableName;
use ebla_runtime::Runtime;

use super::ClusterArguments;
use super::connectivity;
use crate::output::{self, Failure, Format, Table};
use crate::process::Signals;
use ebla_workload::verify::{Load, Plan, Report, create_table_of, endpoints_of, log};

/// The default table.
const DEFAULT_TABLE: &str = "verify";
/// The longest load.
const SECONDS_MAX: f64 = 30.0 * 24.0 * 3_600.0;

/// Write under load, read everything back, report lost, stale, duplicate, torn and phantom data
///
/// Examples:
///   ebla verify --for 60
///   ebla verify --addr a:8086,b:8086,c:8086 --for 600 --log verify.log
///   ebla verify --addr a:8086 --check verify.log
///   ebla verify --addr a:8086 --tls-ca ca.crt --token-file operator.token
///
/// It uses the public API, so it can check any Bigtable. With access control the caller needs the right to create a table, or
/// roles/bigtable.user for one that exists. --addr takes several addresses, separated by commas. Ctrl-C and
/// SIGTERM stop the writers early; then the data is read back.
#[derive(Clone, Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Verify {
    /// Which cluster
    #[command(flatten)]
    pub cluster: ClusterArguments,
    /// Name of the table, created when it does not exist; with --check the one that the log names
    #[arg(long)]
    pub table: Option<String>,
    /// Write for this many seconds
    #[arg(long = "for", value_name = "SECONDS", default_value_t = 30.0)]
    pub seconds: f64,
    /// Number of workers that write
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub writers: u32,
    /// Number of workers that read
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(0..=10_000))]
    pub readers: u32,
    /// Tablets that a new table starts with
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(2..=99))]
    pub tablets: u32,
    /// Timeout of a call in seconds; the outcome of a call that timed out is unknown
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    pub deadline: f64,
    /// Fail when a writer waits longer than this for its next success
    #[arg(long, value_name = "SECONDS")]
    pub stall_max: Option<f64>,
    /// Append every response to this file as it arrives
    #[arg(long, value_name = "FILE", conflicts_with = "check")]
    pub log: Option<PathBuf>,
    /// Write nothing; check the data that an earlier run recorded with --log
    #[arg(long, value_name = "FILE")]
    pub check: Option<PathBuf>,
}

/// Runs the load (or reads a log), reads the data back, and shows the report.
///
/// # Errors
/// 1 when an anomaly is found, 6 when no address answers.
pub async fn run(verify: Verify, runtime: Runtime) -> Result<(), Failure> {
    let addresses = verify.cluster.addresses()?;
    connectivity::require_any(&addresses, &runtime).await?;
    let plan = Plan {
        writers: verify.writers,
        readers: verify.readers,
        slots: verify.tablets,
        call_timeout: seconds("--deadline", verify.deadline)?,
        ..Plan::default()
    };
    let token = verify.cluster.token()?;
    let client = |address: &str| Client::endpoint(address, runtime.clone()).with_token(token.clone());
    let mut report = match &verify.check {
        Some(file) => {
            let logged = log::read(file)?;
            let table =
                verify.table.as_deref().map_or(Ok(logged.table.clone()), |table| verify.cluster.table(table))?;
            let endpoints = endpoints_of(&addresses, &table, client);
            Load::logged(logged, plan, &runtime).check(&endpoints).await?
        }
        None => Box::pin(load(&verify, plan, &addresses, &client, &runtime)).await?,
    };
    report.stall_max = verify.stall_max.map(|most| seconds("--stall-max", most)).transpose()?;
    match verify.cluster.output {
        Format::Json => output::print_json(&report.json()),
        Format::Table => {
            let (headings, counts): (Vec<_>, Vec<_>) = report.columns().into_iter().unzip();
            let mut table = Table::new(&headings);
            table.row(counts);
            output::print(&format!("{}{}", table.render(), report.details()));
        }
    }
    if report.is_good() { Ok(()) } else { Err(Failure::other(report.verdict())) }
}

async fn load(
    verify: &Verify,
    plan: Plan,
    addresses: &[String],
    client: &impl Fn(&str) -> Client,
    runtime: &Runtime,
) -> Result<Report, Failure> {
    let table = verify.cluster.table(verify.table.as_deref().unwrap_or(DEFAULT_TABLE))?;
    let time = seconds("--for", verify.seconds)?;
    create(&table, &plan, addresses, client, runtime).await?;
    let mut load = Load::new(plan, runtime);
    if let Some(file) = &verify.log {
        load.log_to(file, &table)?;
    }
    let endpoints = endpoints_of(addresses, &table, client);
    let running = load.start(&endpoints).await?;
    output::note(&format!(
        "writing to {} with {} writers for {:.0} s",
        table.table(),
        verify.writers,
        time.as_secs_f64()
    ));
    Signals::watch()?.unless_signalled(tokio::time::sleep(time)).await;
    let counts = load.finish(running).await;
    load.end_log().await?;
    if counts.acknowledged == 0 {
        let errors: Vec<_> = counts.errors.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
        return Err(Failure::other(format!(
            "no write was acknowledged, so nothing was verified: {}",
            errors.join(", ")
        )));
    }
    output::note("reading back");
    Ok(load.check(&endpoints).await?)
}

/// Creates the table through the first address that answers, with the retry timeout of the plan.
async fn create(
    name: &TableName,
    plan: &Plan,
    addresses: &[String],
    client: &impl Fn(&str) -> Client,
    runtime: &Runtime,
) -> Result<(), Error> {
    let deadline = runtime.clock.monotonic() + plan.retry_timeout;
    let mut failed = Error::invalid("--addr contains no address");
    for address in addresses.iter().cycle() {
        match create_table_of(&client(address).admin(), name, plan.slots).await {
            Ok(()) => return Ok(()),
            Err(error) if error.kind == ebla_model::error::ErrorKind::FixRequest => return Err(error),
            Err(error) => failed = error.context(&format!("create the table through {address}")),
        }
        if runtime.clock.monotonic() > deadline {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Err(failed)
}

fn seconds(flag: &str, value: f64) -> Result<Duration, Failure> {
    if !(0.001..=SECONDS_MAX).contains(&value) {
        return Err(Failure::usage(format!("{flag} must be between 0.001 and {SECONDS_MAX:.0} seconds")));
    }
    Ok(Duration::from_secs_f64(value))
}
