//! What is wrong with the tablet servers and the loads of a cluster, as pure functions of what the master knows.
//!
//! `ebla doctor` and the console have the same rules and words. The doctor has more: checks of the cluster as a whole and of the machine where
//! it runs. A value that is not known gives no finding.

mod loads;
mod servers;

use std::time::Duration;

use ebla_client::snapshot::ClusterSnapshot;
use ebla_client::verdict::Level;
use ebla_model::Micros;
use ebla_proto::operate::LoadsReply;

use crate::html::Path;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Good to know; nothing is wrong.
    Note,
    /// Something is wrong, or will be soon; all tablets are served.
    Warning,
    /// Some tablets are not served, or nothing can be repaired or changed.
    Critical,
}

impl Severity {
    /// Its name in output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Critical => "critical",
        }
    }

    /// The verdict about a cluster whose worst finding this is.
    pub const fn level(self) -> Level {
        match self {
            Self::Note => Level::Healthy,
            Self::Warning => Level::Degraded,
            Self::Critical => Level::Unavailable,
        }
    }
}

/// Something that a check has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The name of the check, as `ebla doctor --list` shows it.
    pub check: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// What has it, such as `tablet server 3 at host:8086`.
    pub place: String,
    /// The page of the console about that place, if there is one.
    pub page: Option<Path>,
    /// Since when it has been observed; `None`: not known.
    pub since: Option<Micros>,
    /// What is wrong.
    pub problem: String,
    /// What to do.
    pub next_step: String,
}

/// Each tablet server: whether it is up, its clock, its disk, its replicas, its resources.
pub fn of_servers(snapshot: &ClusterSnapshot) -> Vec<Finding> {
    servers::findings(snapshot)
}

/// Hot rows, hot tablets and quotas.
pub fn of_loads(snapshot: &ClusterSnapshot, loads: &LoadsReply) -> Vec<Finding> {
    loads::findings(snapshot, loads)
}

/// Whether a tablet or a row may be hot, as far as the loads of the servers say; otherwise [`of_loads`] finds none.
pub(crate) fn may_be_hot(snapshot: &ClusterSnapshot) -> bool {
    loads::may_be_hot(snapshot)
}

/// The time between two moments, in its largest whole unit.
pub fn span(now: Micros, since: Micros) -> String {
    let micros = u64::try_from(now.get().saturating_sub(since.get())).unwrap_or_default();
    match Duration::from_micros(micros).as_secs() {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7_200 => format!("{} min", seconds / 60),
        seconds @ 7_200..172_800 => format!("{} h", seconds / 3_600),
        seconds => format!("{} d", seconds / 86_400),
    }
}

/// A number of things, with the noun in the right form.
pub fn counted(count: u64, one: &str, several: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{count} {several}") }
}

/// The first of `count` numbers.
pub fn first_of(count: u64, first: &[u64]) -> String {
    let mut shown: Vec<String> = first.iter().map(u64::to_string).collect();
    if count > shown.len() as u64 {
        shown.push("…".to_owned());
    }
    shown.join(", ")
}
