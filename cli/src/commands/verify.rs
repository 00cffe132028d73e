//! `ebla verify`: a load that notes every answer, and reads everything back.

use std::path::PathBuf;
use std::time::Duration;

use ebla_model::error::Error;
use ebla_model::schema::TableName;
use ebla_runtime::Runtime;

use super::Place;
use super::reach;
use crate::output::{self, Failure, Format};
use crate::process::Signals;
use crate::verify::{Load, Plan, Report, create_table, log, through};

/// Where the load writes when nothing else is said.
const DEFAULT_TABLE: &str = "verify";
/// The longest load.
const SECONDS_MAX: f64 = 30.0 * 24.0 * 3_600.0;

/// Write under load, read everything back, and report what is lost, stale, duplicated or torn
///
/// Examples:
///   ebla verify --for 60
///   ebla verify --addr a:8086,b:8086,c:8086 --for 600 --log verify.log
///   ebla verify --addr a:8086 --check verify.log
///
/// It speaks the public API, so it checks any Bigtable. --addr takes several addresses, separated by commas. Ctrl-C and
/// SIGTERM end the writing early; then it reads back.
#[derive(Clone, Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Verify {
    /// Which cluster; --addr takes several addresses, separated by commas
    #[command(flatten)]
    pub place: Place,
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
    /// Seconds that a call may take; after that its outcome counts as unknown
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    pub deadline: f64,
    /// Fail when a writer waits longer than this for its next success
    #[arg(long, value_name = "SECONDS")]
    pub stall_max: Option<f64>,
    /// Write every answer to this file as it comes
    #[arg(long, value_name = "FILE", conflicts_with = "check")]
    pub log: Option<PathBuf>,
    /// Write nothing; read back what an earlier --log recorded
    #[arg(long, value_name = "FILE")]
    pub check: Option<PathBuf>,
}

/// Loads (or reads a log), reads back, shows the report.
///
/// # Errors
/// 1 when anything is wrong, 6 when no address answers.
pub async fn run(verify: Verify, runtime: Runtime) -> Result<(), Failure> {
    let addresses = verify.place.addresses()?;
    reach::any(&addresses, &runtime).await?;
    let plan = Plan {
        writers: verify.writers,
        readers: verify.readers,
        slots: verify.tablets,
        deadline: seconds("--deadline", verify.deadline)?,
        ..Plan::default()
    };
    let mut report = match &verify.check {
        Some(file) => {
            let logged = log::read(file)?;
            let table = verify.table.as_deref().map_or(Ok(logged.table.clone()), |table| verify.place.table(table))?;
            Load::logged(logged, plan, &runtime).check(&through(&addresses, &table, &runtime)).await?
        }
        None => Box::pin(load(&verify, plan, &addresses, &runtime)).await?,
    };
    report.stall_max = verify.stall_max.map(|most| seconds("--stall-max", most)).transpose()?;
    match verify.place.output {
        Format::Json => output::print_json(&report.json()),
        Format::Table => output::print(&report.text()),
    }
    if report.is_good() { Ok(()) } else { Err(Failure::other(report.verdict())) }
}

async fn load(verify: &Verify, plan: Plan, addresses: &[String], runtime: &Runtime) -> Result<Report, Failure> {
    let table = verify.place.table(verify.table.as_deref().unwrap_or(DEFAULT_TABLE))?;
    let time = seconds("--for", verify.seconds)?;
    create(&table, &plan, addresses, runtime).await?;
    let mut load = Load::new(plan, runtime);
    if let Some(file) = &verify.log {
        load.log_to(file, &table)?;
    }
    let through = through(addresses, &table, runtime);
    let running = load.start(&through).await?;
    output::note(&format!(
        "writing to {} with {} writers for {:.0} s",
        table.table(),
        verify.writers,
        time.as_secs_f64()
    ));
    Signals::watch()?.unless_told(tokio::time::sleep(time)).await;
    let tally = load.finish(running).await;
    load.end_log().await?;
    if tally.acknowledged == 0 {
        let errors: Vec<_> = tally.errors.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
        return Err(Failure::other(format!("nothing was written, so nothing was verified: {}", errors.join(", "))));
    }
    output::note("reading back");
    Ok(load.check(&through).await?)
}

/// Makes the table through the first address that can, in the plan's patience.
async fn create(name: &TableName, plan: &Plan, addresses: &[String], runtime: &Runtime) -> Result<(), Error> {
    let deadline = runtime.clock.monotonic() + plan.patience;
    let mut failed = Error::invalid("--addr names no address");
    for address in addresses.iter().cycle() {
        match create_table(address, name, plan.slots, runtime).await {
            Ok(()) => return Ok(()),
            Err(error) if error.kind == ebla_model::error::ErrorKind::FixRequest => return Err(error),
            Err(error) => failed = error.context(&format!("make the table through {address}")),
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
        return Err(Failure::usage(format!("{flag} must lie between 0.001 and {SECONDS_MAX:.0} seconds")));
    }
    Ok(Duration::from_secs_f64(value))
}
