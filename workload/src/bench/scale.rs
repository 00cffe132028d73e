//! What a number of tablets costs: the figures of one number, and the table of several.

use std::time::Duration;

use serde_json::{Value, json};

/// Replicas of each tablet.
pub const REPLICAS: u64 = 3;

/// The figures of a cluster with one table of this number of tablets; `None` where the measurement failed or was not reached.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scale {
    /// Tablets of the table; 0: a cluster without the table.
    pub tablets: u64,
    /// Time until the request that creates the table was answered.
    pub create: Option<Duration>,
    /// Processor time at rest, as a fraction of a core.
    pub rest: Option<f64>,
    /// Resident memory.
    pub resident_bytes: Option<u64>,
    /// Open files.
    pub open_files: Option<u64>,
    /// Time from the start of the process until every tablet has accepted a write.
    pub restart: Option<Duration>,
    /// Time from the kill of one of three servers until every tablet has accepted a write.
    pub failover: Option<Duration>,
    /// What failed.
    pub failures: Vec<String>,
}

impl Scale {
    /// What each replica adds to `empty`, the same figure of a cluster without the table.
    #[expect(clippy::cast_precision_loss, reason = "bytes and files of one machine are far below 2^52")]
    fn per_replica(&self, figure: Option<u64>, empty: Option<u64>) -> Option<f64> {
        let replicas = self.tablets.checked_mul(REPLICAS).filter(|replicas| *replicas > 0)?;
        Some((figure? as f64 - empty? as f64) / replicas as f64)
    }
}

/// The figures as a Markdown table. `all`: in order; the one with 0 tablets is subtracted from the others for figures per replica.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "no machine has 2^52 bytes")]
pub fn markdown(all: &[Scale]) -> String {
    let heading = "| tablets | create s | rest, % of a core | memory MiB | KiB per replica | open files | files per replica | \
                   restart s | failover s | failed |\n|---|---|---|---|---|---|---|---|---|---|\n";
    let row = |scale: &Scale| {
        let (memory, files) = per_replica(scale, all);
        let cells = [
            scale.tablets.to_string(),
            seconds(scale.create),
            scale.rest.map(|rest| format!("{:.1}", rest * 100.0)).unwrap_or_default(),
            scale.resident_bytes.map(|bytes| format!("{:.0}", bytes as f64 / 1_048_576.0)).unwrap_or_default(),
            memory.map(|bytes| format!("{:.0}", bytes / 1024.0)).unwrap_or_default(),
            scale.open_files.map(|files| files.to_string()).unwrap_or_default(),
            files.map(|files| format!("{files:.1}")).unwrap_or_default(),
            seconds(scale.restart),
            seconds(scale.failover),
            scale.failures.iter().map(|failure| failure.replace('|', "/")).collect::<Vec<_>>().join("; "),
        ];
        format!("| {} |\n", cells.join(" | "))
    };
    all.iter().fold(heading.to_owned(), |text, scale| text + &row(scale))
}

/// The figures as JSON.
#[must_use]
pub fn json(all: &[Scale]) -> Value {
    let one = |scale: &Scale| {
        let (memory, files) = per_replica(scale, all);
        json!({
            "tablets": scale.tablets,
            "create_seconds": scale.create.map(|time| time.as_secs_f64()),
            "rest_cores": scale.rest,
            "resident_bytes": scale.resident_bytes,
            "resident_bytes_per_replica": memory,
            "open_files": scale.open_files,
            "open_files_per_replica": files,
            "restart_seconds": scale.restart.map(|time| time.as_secs_f64()),
            "failover_seconds": scale.failover.map(|time| time.as_secs_f64()),
            "failures": scale.failures,
        })
    };
    all.iter().map(one).collect()
}

/// Memory and open files that each replica adds.
fn per_replica(scale: &Scale, all: &[Scale]) -> (Option<f64>, Option<f64>) {
    let Some(empty) = all.iter().find(|other| other.tablets == 0) else { return (None, None) };
    let memory = scale.per_replica(scale.resident_bytes, empty.resident_bytes);
    (memory, scale.per_replica(scale.open_files, empty.open_files))
}

fn seconds(time: Option<Duration>) -> String {
    time.map(|time| format!("{:.1}", time.as_secs_f64())).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured() -> [Scale; 3] {
        let empty = Scale {
            rest: Some(0.012),
            resident_bytes: Some(100 << 20),
            open_files: Some(120),
            restart: Some(Duration::from_millis(1_240)),
            ..Scale::default()
        };
        let hundred = Scale {
            tablets: 100,
            create: Some(Duration::from_millis(5_310)),
            rest: Some(0.17),
            resident_bytes: Some(250 << 20),
            open_files: Some(2_220),
            restart: Some(Duration::from_secs(9)),
            failover: Some(Duration::from_millis(2_500)),
            ..Scale::default()
        };
        let failed = Scale { tablets: 1_000, failures: vec!["create: a | b".to_owned()], ..Scale::default() };
        [empty, hundred, failed]
    }

    #[test]
    fn the_table_has_figures_per_replica_and_what_failed() {
        let text = markdown(&measured());
        let rows: Vec<_> = text.lines().skip(2).collect();
        assert_eq!(
            rows,
            [
                "| 0 |  | 1.2 | 100 |  | 120 |  | 1.2 |  |  |",
                "| 100 | 5.3 | 17.0 | 250 | 512 | 2220 | 7.0 | 9.0 | 2.5 |  |",
                "| 1000 |  |  |  |  |  |  |  |  | create: a / b |",
            ]
        );
    }

    #[test]
    fn json_has_the_same_figures() {
        let json = json(&measured());
        assert_eq!(json[1]["open_files_per_replica"], 7.0);
        assert_eq!(json[1]["resident_bytes_per_replica"], f64::from(512 << 10));
        assert_eq!(json[0]["open_files_per_replica"], Value::Null);
        assert_eq!(json[2]["failures"][0], "create: a | b");
    }
}
