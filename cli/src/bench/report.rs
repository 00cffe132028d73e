//! From slices to figures: medians, and the ratio to the peer with its spread.

use serde_json::{Value, json};

use super::Workload;
use super::slice::Slice;

/// The slices of one workload at one number of clients, ours and the peer's in pairs.
pub struct Measured {
    /// The workload.
    pub workload: Workload,
    /// Clients at a time.
    pub clients: usize,
    /// By target: its name and its slices, in order. The second one is the peer.
    pub targets: Vec<(String, Vec<Slice>)>,
}

impl Measured {
    /// A line for each target, and the ratio where there are two.
    pub fn lines(&self) -> Vec<Vec<String>> {
        let ratio = self.ratio();
        let mut lines = Vec::new();
        for (number, (name, slices)) in self.targets.iter().enumerate() {
            let quantile = |q: f64| median(slices.iter().map(|s| micros(s.latencies.value_at_quantile(q))).collect());
            lines.push(vec![
                self.workload.name().to_owned(),
                self.clients.to_string(),
                name.clone(),
                format!("{:.0}", median(rates(slices))),
                format!("{:.2}", quantile(0.5) / 1000.0),
                format!("{:.2}", quantile(0.99) / 1000.0),
                match (number, &ratio) {
                    (0, Some((middle, low, high))) => format!("{middle:.2} [{low:.2}, {high:.2}]"),
                    _ => String::new(),
                },
            ]);
        }
        lines
    }

    /// The same for programs.
    pub fn json(&self) -> Value {
        let target = |(name, slices): &(String, Vec<Slice>)| {
            json!({
                "name": name,
                "rows_per_second": median(rates(slices)),
                "p50_micros": median(slices.iter().map(|s| micros(s.latencies.value_at_quantile(0.5))).collect()),
                "p99_micros": median(slices.iter().map(|s| micros(s.latencies.value_at_quantile(0.99))).collect()),
            })
        };
        json!({
            "workload": self.workload.name(),
            "clients": self.clients,
            "targets": self.targets.iter().map(target).collect::<Vec<_>>(),
            "ratio": self.ratio().map(|(median, low, high)| json!({"median": median, "min": low, "max": high})),
        })
    }

    /// Median, smallest and greatest ratio of the pairs.
    fn ratio(&self) -> Option<(f64, f64, f64)> {
        let [(_, ours), (_, theirs)] = self.targets.as_slice() else { return None };
        let mut ratios: Vec<f64> = rates(ours).iter().zip(rates(theirs)).map(|(a, b)| a / b.max(1e-9)).collect();
        ratios.sort_by(f64::total_cmp);
        Some((median(ratios.clone()), *ratios.first()?, *ratios.last()?))
    }
}

fn rates(slices: &[Slice]) -> Vec<f64> {
    slices.iter().map(|slice| slice.rows_per_second).collect()
}

#[expect(clippy::cast_precision_loss, reason = "latencies are far below 2^52 microseconds")]
fn micros(value: u64) -> f64 {
    value as f64
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
