//! `ebla table hot`: which keys of a table are used, and which tablets of an instance are busy.

use std::time::Duration;

use ebla_client::encoding;
use ebla_client::heat::{HeatQuery, HotTablet, KeyHeat, KeyHeatColumn};
use ebla_model::Micros;
use ebla_model::heat::HeatMetric;
use ebla_model::id::TabletId;
use ebla_model::key::{KeyRange, RowKey};
use ebla_runtime::Runtime;
use ebla_runtime::units::HumanDuration;
use serde_json::{Value, json};

use super::ClusterArguments;
use crate::output::{self, Failure, Format, Table};

/// From little to much.
const SHADES: [char; 10] = [' ', '.', ':', '-', '=', '+', '*', '#', '%', '@'];
/// The most characters of time in a line.
const WIDTH: usize = 60;

/// What is shown.
#[derive(Clone, Debug, clap::Args)]
pub struct Hot {
    /// Which cluster
    #[command(flatten)]
    pub cluster: ClusterArguments,
    /// Name of the table; without it, the hot tablets of the instance
    pub table: Option<String>,
    /// How far back to look; hot tablets at most 48h [default: 1h]
    #[arg(long, value_name = "DURATION", default_value = "1h")]
    pub since: HumanDuration,
    /// What is counted: requests, reads, writes, read-bytes, written-bytes or latency
    #[arg(long, value_name = "METRIC", default_value = "requests", requires = "table")]
    pub metric: HeatMetric,
    /// Only keys with this prefix; bytes as \xHH
    #[arg(long, value_name = "KEY", value_parser = encoding::parse_key, allow_hyphen_values = true, requires = "table")]
    pub prefix: Option<RowKey>,
    /// About the most lines of keys
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=200), requires = "table")]
    pub buckets: u32,
}

/// Carries out the command.
///
/// # Errors
/// What the cluster answers.
pub async fn run(hot: &Hot, runtime: &Runtime) -> Result<(), Failure> {
    let client = hot.cluster.client(runtime).await?;
    let from = Some(runtime.clock.wall().minus(hot.since.get()));
    let Some(table) = &hot.table else {
        let listed = client.admin().hot_tablets(&hot.cluster.project, &hot.cluster.instance, (from, None)).await?;
        match hot.cluster.output {
            Format::Json => output::print_json(&json!(listed.iter().map(tablet_json).collect::<Vec<_>>())),
            Format::Table if listed.is_empty() => output::note("no tablet was busy in this time"),
            Format::Table => output::print(&tablets(&listed)),
        }
        return Ok(());
    };
    let range = hot.prefix.as_ref().map_or_else(KeyRange::all, |prefix| KeyRange::prefix(prefix.as_bytes()));
    let query = HeatQuery { from, to: None, range, buckets: hot.buckets, metric: hot.metric };
    let heat = client.admin().key_heat(&hot.cluster.table(table)?, &query).await?;
    match hot.cluster.output {
        Format::Json => output::print_json(&to_json(&heat, hot.metric)),
        Format::Table if heat.columns.is_empty() => {
            output::note(&format!("nothing was counted of {table} in this time"))
        }
        Format::Table => {
            output::print(&render(&heat, hot.metric));
            heat.findings.iter().for_each(|finding| output::note(finding));
        }
    }
    Ok(())
}

fn tablets(listed: &[HotTablet]) -> String {
    let mut table = Table::new(&["TABLE", "TABLET", "START", "END", "TIME", "CPU %"]);
    for hot in listed {
        table.row(vec![
            hot.table.table().to_owned(),
            tablet_of(&hot.name).to_owned(),
            if hot.start_key.is_empty() { "(start)".to_owned() } else { hot.start_key.clone() },
            if hot.end_key.is_empty() { "(end)".to_owned() } else { hot.end_key.clone() },
            output::time(hot.start),
            format!("{:.2}", hot.cpu_percent),
        ]);
    }
    table.render()
}

/// The number of the tablet in a resource name that ends with `TABLET-TIME`.
fn tablet_of(name: &str) -> &str {
    let last = name.rsplit('/').next().unwrap_or_default();
    last.split('-').next().unwrap_or_default()
}

pub(super) fn tablet_json(hot: &HotTablet) -> Value {
    json!({
        "name": hot.name,
        "table": hot.table.as_str(),
        "tablet": tablet_of(&hot.name).parse::<u64>().ok(),
        "start_key": hot.start_key,
        "end_key": hot.end_key,
        "start_micros": hot.start.get(),
        "end_micros": hot.end.get(),
        "cpu_percent": hot.cpu_percent,
    })
}

/// A line for each bucket of keys: the time from left to right, darker where more was counted.
fn render(heat: &KeyHeat, metric: HeatMetric) -> String {
    let joined = heat.columns.len().div_ceil(WIDTH).max(1);
    let times: Vec<Vec<u64>> =
        heat.columns.chunks(joined).map(|columns| join(columns, heat.buckets.len(), metric)).collect();
    let max = times.iter().flatten().copied().max().unwrap_or(0);
    let total: u64 =
        heat.columns.iter().flat_map(|column| &column.values).fold(0, |sum: u64, value| sum.saturating_add(*value));
    let mut table = Table::new(&["START", "TABLET", "SHARE", "TIME"]);
    for (at, (start, tablet)) in heat.buckets.iter().enumerate() {
        let value = |values: &Vec<u64>| values.get(at).copied().unwrap_or(0);
        let own: u64 = heat.columns.iter().fold(0, |sum: u64, column| sum.saturating_add(value(&column.values)));
        let line: String = times.iter().map(|values| shade(value(values), max)).collect();
        table.row(vec![
            super::tablet::short(start),
            tablet.map_or_else(|| "-".to_owned(), |tablet| tablet.to_string()),
            if metric == HeatMetric::Latency { "-".to_owned() } else { format!("{} %", percent(own, total)) },
            format!("|{line}|"),
        ]);
    }
    let first = heat.columns.first().map_or(Micros::new(0), |column| column.start);
    let last = heat.columns.last().map_or(Micros::new(0), |column| column.start);
    let unit = if metric == HeatMetric::Latency { "microseconds" } else { "in a step" };
    let step = heat.step.saturating_mul(u32::try_from(joined).unwrap_or(u32::MAX));
    format!(
        "{metric} from {} to {}, in steps of {}; darkest: {max} {unit}\n{}",
        output::time(first),
        output::time(last.plus(heat.step)),
        shown_length(step),
        table.render()
    )
}

/// Successive columns as one: the sum, or of latencies the highest.
fn join(columns: &[KeyHeatColumn], buckets: usize, metric: HeatMetric) -> Vec<u64> {
    let value = |at: usize| {
        let values = columns.iter().filter_map(|column| column.values.get(at).copied());
        match metric {
            HeatMetric::Latency => values.max().unwrap_or(0),
            _ => values.fold(0, u64::saturating_add),
        }
    };
    (0..buckets).map(value).collect()
}

fn shade(value: u64, max: u64) -> char {
    let darkest = SHADES.len() as u64 - 1;
    let level = if value == 0 { 0 } else { ratio(value, darkest, max).max(1) };
    usize::try_from(level).ok().and_then(|level| SHADES.get(level)).copied().unwrap_or('@')
}

fn percent(value: u64, total: u64) -> u64 {
    ratio(value, 100, total)
}

/// `value * of / total`, rounded up.
fn ratio(value: u64, of: u64, total: u64) -> u64 {
    if total == 0 {
        return 0;
    }
    u64::try_from((u128::from(value) * u128::from(of)).div_ceil(u128::from(total))).unwrap_or(u64::MAX)
}

fn shown_length(length: Duration) -> String {
    let seconds = length.as_secs();
    match seconds {
        0 => format!("{} ms", length.as_millis()),
        1..=119 => format!("{seconds} s"),
        _ => format!("{} min", seconds / 60),
    }
}

pub(super) fn to_json(heat: &KeyHeat, metric: HeatMetric) -> Value {
    let bucket = |(start, tablet): &(RowKey, Option<TabletId>)| {
        json!({
            "start": encoding::to_base64(start.as_bytes()),
            "tablet": tablet.map(TabletId::get),
        })
    };
    let column = |column: &KeyHeatColumn| json!({"start_micros": column.start.get(), "values": column.values, "other": column.other});
    json!({
        "metric": metric.name(),
        "step_micros": u64::try_from(heat.step.as_micros()).unwrap_or(u64::MAX),
        "buckets": heat.buckets.iter().map(bucket).collect::<Vec<_>>(),
        "columns": heat.columns.iter().map(column).collect::<Vec<_>>(),
        "findings": heat.findings,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heat(values: &[&[u64]]) -> KeyHeat {
        let column = |(at, values): (usize, &&[u64])| KeyHeatColumn {
            start: Micros::from_millis(i64::try_from(at).unwrap() * 60_000),
            values: values.to_vec(),
            other: 0,
        };
        KeyHeat {
            buckets: vec![(RowKey::EMPTY, None), (RowKey::new("k"), Some(TabletId::new(7)))],
            columns: values.iter().enumerate().map(column).collect(),
            step: Duration::from_secs(60),
            findings: Vec::new(),
        }
    }

    #[test]
    fn a_map_has_a_line_for_each_bucket_and_darker_characters_for_more() {
        let shown = render(&heat(&[&[0, 90], &[1, 45], &[0, 9]]), HeatMetric::Writes);
        let lines: Vec<&str> = shown.lines().collect();
        assert!(lines[0].starts_with("writes from 1970-01-01T00:00:00"), "{shown}");
        assert!(lines[0].ends_with("in steps of 60 s; darkest: 90 in a step"), "{shown}");
        assert!(lines[2].ends_with("| . |") && lines[2].starts_with("(start)"), "{shown}");
        assert!(lines[3].ends_with("|@+.|") && lines[3].contains("100 %"), "{shown}");
    }

    #[test]
    fn many_steps_are_joined() {
        let values: Vec<&[u64]> = vec![&[1, 2]; 150];
        let shown = render(&heat(&values), HeatMetric::Reads);
        let line = shown.lines().last().unwrap();
        assert!(line.split('|').nth(1).unwrap().chars().count() <= WIDTH, "{line}");
        assert!(shown.contains("in steps of 3 min; darkest: 6"), "{shown}");
    }

    #[test]
    fn the_number_of_a_hot_tablet_is_in_its_name() {
        assert_eq!(tablet_of("projects/p/instances/i/clusters/c/hotTablets/12-1700000000"), "12");
    }
}
