//! Attribution of a load's stalls to the faults that caused them, and the cost of each kind of fault as a table.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ebla_model::time::Micros;
use ebla_runtime::Clock;

use crate::cluster::Node;

/// The nodes that lead a load's tablets, by the tablet's number; more than one for a tablet that was split since.
pub type Leaders = BTreeMap<u32, BTreeSet<Node>>;

/// A fault that was injected; times are those of the machine's clock since boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultRecord {
    /// [`Fault::name`](crate::faults::fault::Fault::name).
    pub kind: String,
    /// Start of the fault.
    pub began: Duration,
    /// End of the fault.
    pub lifted: Duration,
    /// When the cluster was healthy again.
    pub whole: Duration,
    /// The load's tablets of which no target was the leader when the fault began, as far as leaders are known.
    pub unaffected: BTreeSet<u32>,
}

/// A time without responses for a tablet of the load; the same clock as that of the records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stall {
    /// The last response before it.
    pub from: Duration,
    /// The first response after it.
    pub until: Duration,
    /// The tablet, as numbered by the load.
    pub tablet: u32,
}

/// Converts stalls of a load to the machine's clock since boot. The load began at `began`; `stalls` has the start of each stall
/// relative to that, its duration, and its tablet.
#[must_use]
pub fn since_boot(
    clock: &Clock,
    began: Micros,
    stalls: impl IntoIterator<Item = (Duration, Duration, u32)>,
) -> Vec<Stall> {
    let began = clock.monotonic().saturating_sub(clock.wall().since(began));
    let stall = |(at, lasted, tablet)| Stall { from: began + at, until: began + at + lasted, tablet };
    stalls.into_iter().map(stall).collect()
}

/// The impact of a kind of fault.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// The longest duration.
    pub lasted: Duration,
    /// For each fault, the longest stall attributed to it; zero when there is none.
    pub stalls: Vec<Duration>,
    /// For each fault, the number of stalled tablets.
    pub tablets: Vec<usize>,
    /// For each fault with unaffected tablets, the longest stall of those.
    pub unaffected: Vec<Duration>,
    /// The longest time from its end until the cluster was healthy.
    pub recovery: Duration,
}

impl Cost {
    /// The longest stall.
    #[must_use]
    pub fn longest(&self) -> Duration {
        self.stalls.iter().copied().max().unwrap_or_default()
    }

    /// The median stall.
    #[must_use]
    pub fn median(&self) -> Duration {
        median(&self.stalls)
    }
}

fn median<T: Copy + Ord + Default>(values: &[T]) -> T {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}

/// Attributes each stall to the last fault that overlaps it, including its recovery. Unexplained stalls have the kind `none`.
#[must_use]
pub fn attribute_stalls(records: &[FaultRecord], stalls: &[Stall]) -> BTreeMap<String, Cost> {
    let mut each = vec![Attribution::default(); records.len()];
    let mut costs: BTreeMap<String, Cost> = BTreeMap::new();
    for stall in stalls {
        let lasted = stall.until.saturating_sub(stall.from);
        let cause = records.iter().zip(&mut each).rfind(|(one, _)| one.began <= stall.until && stall.from <= one.whole);
        match cause {
            Some((one, blame)) => {
                blame.longest = lasted.max(blame.longest);
                blame.tablets.insert(stall.tablet);
                if one.unaffected.contains(&stall.tablet) {
                    blame.unaffected_longest = lasted.max(blame.unaffected_longest);
                }
            }
            None => {
                let unexplained = costs.entry("none".to_owned()).or_default();
                unexplained.stalls.push(lasted);
                unexplained.tablets.push(1);
            }
        }
    }
    for (one, Attribution { longest, tablets, unaffected_longest }) in records.iter().zip(each) {
        let cost = costs.entry(one.kind.clone()).or_default();
        cost.stalls.push(longest);
        cost.tablets.push(tablets.len());
        if !one.unaffected.is_empty() {
            cost.unaffected.push(unaffected_longest);
        }
        cost.lasted = cost.lasted.max(one.lifted.saturating_sub(one.began));
        cost.recovery = cost.recovery.max(one.whole.saturating_sub(one.lifted));
    }
    costs
}

/// Stalls attributed to one fault.
#[derive(Clone, Debug, Default)]
struct Attribution {
    longest: Duration,
    tablets: BTreeSet<u32>,
    /// The longest stall of unaffected tablets.
    unaffected_longest: Duration,
}

/// The costs as a Markdown table.
#[must_use]
pub fn table(costs: &BTreeMap<String, Cost>) -> String {
    let mut text = String::from(
        "| fault | times | lasted, longest | writer's longest stall, median | of all | tablets that stalled, median \
         | stall of tablets led elsewhere, median | of all | healthy again after |\n\
         |---|---:|---:|---:|---:|---:|---:|---:|---:|\n",
    );
    let seconds = |time: Duration| format!("{:.1} s", time.as_secs_f64());
    for (kind, cost) in costs {
        let (times, tablets) = (cost.stalls.len(), median(&cost.tablets));
        let [lasted, median_stall, longest, recovery] =
            [cost.lasted, cost.median(), cost.longest(), cost.recovery].map(seconds);
        let elsewhere = match cost.unaffected.iter().max() {
            Some(longest) => format!("{} | {}", seconds(median(&cost.unaffected)), seconds(*longest)),
            None => "| ".to_owned(),
        };
        text.push_str(&format!(
            "| {kind} | {times} | {lasted} | {median_stall} | {longest} | {tablets} | {elsewhere} | {recovery} |\n"
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn a_stall_is_attributed_to_the_fault_it_overlaps() {
        let at = |kind: &str, began, lifted, whole| FaultRecord {
            kind: kind.to_owned(),
            began: seconds(began),
            lifted: seconds(lifted),
            whole: seconds(whole),
            unaffected: if kind == "kill" { BTreeSet::from([2, 3]) } else { BTreeSet::new() },
        };
        let records = [at("kill", 10, 11, 14), at("pause", 20, 35, 36), at("kill", 50, 52, 53)];
        let stall = |from, until, tablet| Stall { from: seconds(from), until: seconds(until), tablet };
        let costs =
            attribute_stalls(&records, &[stall(9, 12, 1), stall(13, 15, 2), stall(21, 23, 1), stall(40, 41, 1)]);
        assert_eq!((costs["kill"].longest(), costs["kill"].recovery), (seconds(3), seconds(3)));
        assert_eq!(costs["kill"].stalls, [seconds(3), Duration::ZERO]);
        assert_eq!(costs["kill"].tablets, [2, 0]);
        assert_eq!(costs["kill"].unaffected, [seconds(2), Duration::ZERO], "of tablet 2");
        assert_eq!(costs["pause"].longest(), seconds(2));
        assert_eq!(costs["none"], Cost { stalls: vec![seconds(1)], tablets: vec![1], ..Cost::default() });
        assert!(table(&costs).contains("| kill | 2 | 2.0 s | 3.0 s | 3.0 s | 2 | 2.0 s | 2.0 s | 3.0 s |"));
        assert!(table(&costs).contains("| pause | 1 | 15.0 s | 2.0 s | 2.0 s | 1 | |  | 1.0 s |"));
    }
}
