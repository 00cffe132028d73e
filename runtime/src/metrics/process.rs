//! Metrics of the process itself: its age, memory, processor time, files, threads and release.

use std::fs;
use std::path::Path;
use std::time::Duration;

use futures::future::BoxFuture;

use super::{Family, Sample, Source};
use crate::clock::Clock;
use crate::resources::{ResourceProbe, SystemResources};
use crate::tls::Tls;

static BUILD: Family = Family::gauge(
    "ebla_build",
    &["version", "role"],
    "1, with the release and the role of the process (tablet-server, master, mounttable, up) as labels",
);
static UPTIME: Family = Family::gauge("ebla_process_uptime_seconds", &[], "Time since the process started");
static START: Family =
    Family::gauge("ebla_process_start_time_seconds", &[], "When the process started, in seconds since the Unix epoch");
static CPU: Family =
    Family::counter("ebla_process_cpu_seconds_total", &[], "Processor time of the process, user and system");
static MEMORY: Family = Family::gauge("ebla_process_resident_memory_bytes", &[], "Resident memory of the process");
static MEMORY_LIMIT: Family = Family::gauge(
    "ebla_process_memory_limit_bytes",
    &[],
    "Memory limit of the control group, or the memory of the machine if that is less",
);
static FILES: Family = Family::gauge("ebla_process_open_files", &[], "Open files and connections of the process");
static FILES_LIMIT: Family =
    Family::gauge("ebla_process_open_files_limit", &[], "Limit of open files and connections of the process");
static THREADS: Family = Family::gauge("ebla_process_threads", &[], "Threads of the process");
static CERTIFICATE: Family = Family::gauge(
    "ebla_tls_certificate_expiring",
    &[],
    "Whether the certificate of the process expires within 7 days; only with TLS",
);

/// The metrics of every process.
pub static FAMILIES: &[&Family] =
    &[&BUILD, &UPTIME, &START, &CPU, &MEMORY, &MEMORY_LIMIT, &FILES, &FILES_LIMIT, &THREADS, &CERTIFICATE];

/// The kernel counts processor time in hundredths of a second, whatever its own clock (`USER_HZ`, a constant of its interface).
const TICKS_PER_SECOND: f64 = 100.0;

/// The metrics of the process. Reading them takes some system calls, none of which waits for a disk.
#[derive(Debug)]
pub struct ProcessSource {
    role: &'static str,
    version: &'static str,
    clock: Clock,
    started: Duration,
    tls: Option<Tls>,
}

impl ProcessSource {
    /// The metrics of a process that starts now. `role`: what it is; `version`: its release; `tls`: its certificate, if it has one.
    #[must_use]
    pub fn new(role: &'static str, version: &'static str, clock: Clock, tls: Option<Tls>) -> Self {
        let started = clock.monotonic();
        Self { role, version, clock, started, tls }
    }

    /// Time since the process started.
    #[must_use]
    pub fn uptime(&self) -> Duration {
        self.clock.monotonic().saturating_sub(self.started)
    }

    /// The role of the process.
    #[must_use]
    pub const fn role(&self) -> &'static str {
        self.role
    }

    /// The release of the process.
    #[must_use]
    pub const fn version(&self) -> &'static str {
        self.version
    }

    /// The number of threads; `None` when it cannot be read.
    #[must_use]
    pub fn threads(&self) -> Option<u64> {
        Some(stat("/proc/self/stat")?.threads)
    }

    fn read(&self) -> Vec<Sample> {
        let uptime = self.uptime();
        let now = Duration::from_micros(u64::try_from(self.clock.wall().get()).unwrap_or_default());
        let mut samples = vec![
            BUILD.sample([self.version.into(), self.role.into()], 1_u64),
            UPTIME.sample([], uptime.as_secs_f64()),
            START.sample([], now.saturating_sub(uptime).as_secs_f64()),
        ];
        if let Some(Stat { cpu_seconds, threads }) = stat("/proc/self/stat") {
            samples.extend([CPU.sample([], cpu_seconds), THREADS.sample([], threads)]);
        }
        let resources = SystemResources::new(Path::new("/"), None);
        if let Some(memory) = resources.memory() {
            samples.extend([MEMORY.sample([], memory.used), MEMORY_LIMIT.sample([], memory.limit)]);
        }
        if let Some(files) = resources.files() {
            samples.extend([FILES.sample([], files.used), FILES_LIMIT.sample([], files.limit)]);
        }
        if let Some(tls) = &self.tls {
            samples.push(CERTIFICATE.sample([], tls.is_expiring()));
        }
        samples
    }
}

impl Source for ProcessSource {
    fn samples(&self) -> BoxFuture<'_, Vec<Sample>> {
        Box::pin(async { self.read() })
    }
}

/// What is used of `/proc/self/stat`.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Stat {
    cpu_seconds: f64,
    threads: u64,
}

fn stat(file: &str) -> Option<Stat> {
    parse_stat(&fs::read_to_string(file).ok()?)
}

/// The fields are described in proc(5). The second one is the name of the program in parentheses, which may contain anything.
fn parse_stat(text: &str) -> Option<Stat> {
    let (_name, rest) = text.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let field = |number: usize| fields.get(number.checked_sub(3)?)?.parse::<u32>().ok();
    let ticks = f64::from(field(14)?) + f64::from(field(15)?);
    Some(Stat { cpu_seconds: ticks / TICKS_PER_SECOND, threads: field(20)?.into() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{SampleValue, table_faults};

    #[test]
    fn the_table_is_well_formed() {
        assert_eq!(table_faults(FAMILIES), Vec::<String>::new());
    }

    #[tokio::test]
    async fn the_figures_of_this_process_are_plausible() {
        let source = ProcessSource::new("test", "1.2.3", Clock::system(), None);
        let samples = source.samples().await;
        let value = |family: &'static Family| {
            let sample = samples.iter().find(|sample| sample.family == family).unwrap();
            match sample.value {
                SampleValue::Integer(value) => value,
                // Large ones are times since 1970.
                SampleValue::Float(value) => Duration::from_secs_f64(value).as_secs(),
                SampleValue::Histogram(_) => unreachable!(),
            }
        };
        assert!(value(&MEMORY) > 1 << 18 && value(&MEMORY) < value(&MEMORY_LIMIT));
        assert!(value(&FILES) > 2 && value(&THREADS) >= 1);
        assert!(value(&START) > 1_600_000_000, "{}", value(&START));
        assert!(samples.iter().all(|sample| sample.labels.len() == sample.family.labels.len()));
        assert!(source.threads().unwrap() >= 1);
    }

    #[test]
    fn the_name_of_the_program_may_contain_spaces_and_parentheses() {
        let text = "12 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 150 50 13 14 15 16 9 18 19";
        assert_eq!(parse_stat(text), Some(Stat { cpu_seconds: 2.0, threads: 9 }));
        assert_eq!(parse_stat("12 (a) S"), None);
    }
}
