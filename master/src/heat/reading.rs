//! Heat maps and hot tablets from the table of key heat.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ebla_client::Deadline;
use ebla_model::InstanceName;
use ebla_model::error::{Error, Reason};
use ebla_model::heat::{HeatMetric, HeatStep, HeatWindow, HotTablet, HotTablets, diagnose, fold, heat_map};
use ebla_model::id::{TableId, TabletId};
use ebla_model::key::{KeyRange, RowKey};
use ebla_model::schema::{TableName, TableState};
use ebla_model::time::Micros;
use ebla_proto::convert::instance::timestamp;
use ebla_proto::{admin, operate};
use ebla_routing::HeatTable;

use super::readable;
use crate::active::ActiveMaster;
use crate::jobs::update_schema::find_active;

/// The timeout of a request: waiting for other requests, and all reads.
const READ_TIMEOUT: Duration = Duration::from_secs(20);
/// The most steps of time of a map.
const COLUMNS_MAX: u64 = 720;
/// Buckets of keys of a map: if the request does not say, and at most.
const BUCKETS: usize = 40;
const BUCKETS_MAX: usize = 200;
/// The time that a map shows if the request does not say.
const MAP_TIME: Duration = Duration::from_secs(3_600);
/// The time of which hot tablets are listed if the request does not say, and at most.
const HOT_TIME: Duration = Duration::from_secs(24 * 3_600);
const HOT_TIME_MAX: Duration = Duration::from_secs(48 * 3_600);

/// The heat map of a table.
///
/// # Errors
/// `InvalidArgument` for a time or a metric that is not legal; `NotFoundTable`; `FailedPrecondition` when key heat is off; errors of reads.
pub(crate) async fn key_heat(
    master: &ActiveMaster,
    request: operate::GetKeyHeatRequest,
) -> Result<operate::GetKeyHeatReply, Error> {
    let name: TableName = request.table.parse()?;
    let metric = if request.metric.is_empty() { HeatMetric::default() } else { request.metric.parse()? };
    let range = KeyRange::new(RowKey::new(request.start), request.end.map(RowKey::new))
        .ok_or_else(|| Error::invalid("the end of the keys must be after their start"))?;
    let buckets = match usize::try_from(request.buckets).unwrap_or(usize::MAX) {
        0 => BUCKETS,
        wanted => wanted.min(BUCKETS_MAX),
    };
    let table = find_active(master.chubby(), &name).await?.value.table;
    let (heat_table, window) = readable(master)?;
    let now = master.runtime().clock.wall();
    let to = if request.to_micros == 0 { now } else { Micros::new(request.to_micros) };
    let from = if request.from_micros == 0 { to.minus(MAP_TIME) } else { Micros::new(request.from_micros) };
    let step = step_for((from, to), now, window)?;
    let deadline = master.deadline(READ_TIMEOUT);
    let _permit = master.heat_permit(deadline).await?;
    let windows = read(master, &heat_table, table, (step, window), (from, to), deadline).await?;
    let tablets = tablets_of(master, table);
    let make = move || (diagnose(&windows, tablets), heat_map(&windows, &range, buckets, metric));
    let made = master.heat_threads().run_if_awaited(make).await;
    let (findings, map) = made.map_err(|error| Error::new(Reason::Unavailable, format!("heat map: {error}")))?;
    let starts = map.starts().zip(&map.tablets);
    let bucket = |(start, tablet): (&RowKey, &Option<TabletId>)| operate::KeyBucket {
        start: start.bytes().clone(),
        tablet: tablet.map_or(0, TabletId::get),
    };
    Ok(operate::GetKeyHeatReply {
        buckets: starts.map(bucket).collect(),
        columns: map
            .columns
            .iter()
            .map(|column| operate::HeatColumn {
                start_micros: column.start.get(),
                values: column.cells.iter().map(|cell| metric.of(cell)).collect(),
                other: metric.of(&column.other),
            })
            .collect(),
        step_micros: u64::try_from(step.length(window).as_micros()).unwrap_or(u64::MAX),
        findings: findings.iter().map(ToString::to_string).collect(),
    })
}

/// The hottest tablets of an instance's tables, hottest first.
///
/// # Errors
/// As [`key_heat`].
pub(crate) async fn list_hot_tablets(
    master: &ActiveMaster,
    instance: &InstanceName,
    request: &admin::ListHotTabletsRequest,
) -> Result<Vec<admin::HotTablet>, Error> {
    let now = master.runtime().clock.wall();
    let time = |time: &prost_types::Timestamp| {
        let micros =
            time.seconds.checked_mul(1_000_000).map(|micros| micros.saturating_add(i64::from(time.nanos) / 1_000));
        micros.filter(|micros| *micros >= 0).map(Micros::new).ok_or_else(|| Error::invalid("a time is not legal"))
    };
    let to = request.end_time.as_ref().map(time).transpose()?.unwrap_or(now);
    let from = request.start_time.as_ref().map(time).transpose()?;
    if from.is_some_and(|from| from >= to || to.since(from) > HOT_TIME_MAX) {
        return Err(Error::invalid("start_time must be before end_time, by at most 48 hours"));
    }
    let (heat_table, window) = readable(master)?;
    let from = from.unwrap_or_else(|| to.minus(hot_time(window)));
    let step = step_for((from, to), now, window)?;
    let deadline = master.deadline(READ_TIMEOUT);
    let _permit = master.heat_permit(deadline).await?;
    let schemas = master.directory().schemas();
    let listed = schemas.iter().filter(|schema| schema.state == TableState::Active && schema.name.is_in(instance));
    let mut hot = HotTablets::default();
    for schema in listed {
        for (start, counted) in read(master, &heat_table, schema.table, (step, window), (from, to), deadline).await? {
            hot.add(&schema.name, start, passed((step, start), now, window), &counted);
        }
    }
    let list = hot.into_list();
    let ranges = ranges_of(master, list.iter().map(|hot| hot.tablet).collect());
    Ok(list.iter().map(|hot| hot_tablet(&request.parent, hot, ranges.get(&hot.tablet))).collect())
}

/// The time of which hot tablets are listed if the request does not say: with short windows as much as a list may have.
fn hot_time(window: Duration) -> Duration {
    let steps = u32::try_from(COLUMNS_MAX).unwrap_or(u32::MAX);
    HOT_TIME.min(HeatStep::Hour.length(window).saturating_mul(steps))
}

/// The length of a step, or the part of it that has passed: what was counted in the present step is of that time. At least a window.
fn passed((step, start): (HeatStep, Micros), now: Micros, window: Duration) -> Duration {
    step.length(window).min(now.since(start)).max(window)
}

/// The keys of these tablets, as METADATA was last read.
fn ranges_of(master: &ActiveMaster, wanted: BTreeSet<TabletId>) -> BTreeMap<TabletId, KeyRange> {
    let Some(cached) = master.cached_metadata() else { return BTreeMap::new() };
    let found = cached.metadata.values().filter(|tablet| wanted.contains(&tablet.tablet));
    found.map(|tablet| (tablet.tablet, tablet.range.clone())).collect()
}

/// A hot tablet as the public API describes it. Keys are text there: other bytes than printable ones are escaped. `range`: the keys of the
/// tablet, not those that were counted, which are keys of rows; `None`, shown as no keys, if METADATA does not have the tablet any more.
fn hot_tablet(cluster: &str, hot: &HotTablet, range: Option<&KeyRange>) -> admin::HotTablet {
    let hundredths = u16::try_from(hot.milli_percent / 10).unwrap_or(u16::MAX);
    admin::HotTablet {
        name: format!("{cluster}/hotTablets/{}-{}", hot.tablet, hot.start.get() / 1_000_000),
        table_name: hot.table.to_string(),
        start_time: Some(timestamp(hot.start)),
        end_time: Some(timestamp(hot.start.plus(hot.length))),
        start_key: range.map(|range| range.start().to_string()).unwrap_or_default(),
        end_key: range.and_then(KeyRange::end).map(ToString::to_string).unwrap_or_default(),
        node_cpu_usage_percent: f32::from(hundredths) / 100.0,
    }
}

/// The shortest step of time that still has the whole time and is not too short for it.
fn step_for((from, to): (Micros, Micros), now: Micros, window: Duration) -> Result<HeatStep, Error> {
    if from >= to || from.get() < 0 {
        return Err(Error::invalid("the beginning of the time must be before its end"));
    }
    let columns = |step: HeatStep| to.since(from).as_micros().div_ceil(step.length(window).as_micros().max(1));
    let long_enough =
        |step: &HeatStep| *step >= HeatStep::covering(from, now) && columns(*step) <= u128::from(COLUMNS_MAX);
    HeatStep::ALL.into_iter().find(long_enough).ok_or_else(|| {
        Error::invalid(format!("the time is too long: a map has at most {COLUMNS_MAX} steps of the longest length"))
    })
}

/// What was counted, by step of time. The part that was not folded yet comes from minutes.
async fn read(
    master: &ActiveMaster,
    heat_table: &HeatTable,
    table: TableId,
    (step, window): (HeatStep, Duration),
    (from, to): (Micros, Micros),
    deadline: Deadline,
) -> Result<Vec<(Micros, HeatWindow)>, Error> {
    let from = step.start_of(from, window);
    if step == HeatStep::Minute {
        return heat_table.read(table, step, (from, to), deadline).await;
    }
    let now = master.runtime().clock.wall();
    let folded = heat_table.folded(step, now, deadline).await?.until.unwrap_or(from).clamp(from, to.max(from));
    let mut steps = heat_table.read(table, step, (from, folded), deadline).await?;
    let fresh_from = folded.max(now.minus(HeatStep::Minute.retention()));
    let mut fresh: BTreeMap<Micros, Vec<HeatWindow>> = BTreeMap::new();
    for (start, counted) in heat_table.read(table, HeatStep::Minute, (fresh_from, to), deadline).await? {
        let part = fresh.entry(step.start_of(start, window)).or_default();
        part.push(counted);
        // What is in memory stays bounded: a step has at most this number of windows.
        if part.len() >= usize::try_from(step.windows()).unwrap_or(usize::MAX) {
            *part = vec![fold(part)];
        }
    }
    steps.extend(fresh.into_iter().map(|(start, windows)| (start, fold(&windows))));
    Ok(steps)
}

/// The number of tablets of a table, as METADATA was last read; 0: unknown.
fn tablets_of(master: &ActiveMaster, table: TableId) -> usize {
    let cached = master.cached_metadata();
    cached.map_or(0, |cached| cached.metadata.values().filter(|tablet| tablet.table == table).count())
}

#[cfg(test)]
mod tests {
    use ebla_model::heat::{HeatOption, WINDOW};

    use super::*;

    #[test]
    fn old_times_and_long_times_have_long_steps() {
        let now = Micros::from_millis(1_700_000_000_000);
        let hours = |from: u64, to: u64| {
            let ago = |hours: u64| now.minus(Duration::from_secs(hours * 3_600));
            step_for((ago(from), ago(to)), now, WINDOW)
        };
        assert_eq!(hours(1, 0), Ok(HeatStep::Minute));
        assert_eq!(hours(6, 0), Ok(HeatStep::Minute));
        assert_eq!(hours(24, 23), Ok(HeatStep::TenMinutes), "minutes are no longer kept");
        assert_eq!(hours(24 * 28, 0), Ok(HeatStep::Hour));
        assert!(hours(24 * 40, 0).is_err() && hours(0, 1).is_err());
        // The client has said six hours, and some time has passed since.
        let earlier = now.minus(Duration::from_secs(3));
        assert_eq!(step_for((earlier.minus(6 * MAP_TIME), earlier), now, WINDOW), Ok(HeatStep::Minute));
        // Short windows, as in tests.
        let second = Duration::from_secs(1);
        assert_eq!(step_for((now.minus(MAP_TIME), now), now, second), Ok(HeatStep::TenMinutes));
    }

    #[test]
    fn hot_tablets_of_the_usual_time_can_be_listed_with_windows_of_any_length() {
        let now = Micros::from_millis(1_700_000_000_000);
        for window in [WINDOW, Duration::from_secs(1), HeatOption::WINDOW_MIN] {
            let time = (now.minus(hot_time(window)), now);
            assert!(step_for(time, now, window).is_ok(), "{window:?}");
        }
        assert_eq!(hot_time(WINDOW), HOT_TIME);
    }

    #[test]
    fn the_present_step_is_as_long_as_it_has_lasted() {
        let start = Micros::from_millis(1_700_000_000_000);
        let after =
            |seconds| passed((HeatStep::TenMinutes, start), start.plus(Duration::from_secs(seconds)), WINDOW).as_secs();
        assert_eq!([0, 59, 60, 300, 600, 6_000].map(after), [60, 60, 60, 300, 600, 600]);
    }

    #[test]
    fn a_hot_tablet_is_described_as_in_the_public_api() {
        let hot = HotTablet {
            table: TableName::from_parts("p", "i", "t").unwrap(),
            tablet: TabletId::new(7),
            start: Micros::from_millis(60_000),
            length: WINDOW,
            milli_percent: 12_345,
        };
        let range = KeyRange::new(RowKey::new("a"), Some(RowKey::new(vec![b'b', 0xff]))).unwrap();
        let cluster = "projects/p/instances/i/clusters/c";
        let shown = hot_tablet(cluster, &hot, Some(&range));
        assert_eq!(shown.name, "projects/p/instances/i/clusters/c/hotTablets/7-60");
        assert_eq!((shown.start_key.as_str(), shown.end_key.as_str()), ("a", "b\\xff"));
        assert_eq!((shown.end_time.unwrap().seconds, shown.node_cpu_usage_percent), (120, 12.34));
        let without = hot_tablet(cluster, &hot, None);
        assert_eq!((without.start_key.as_str(), without.end_key.as_str()), ("", ""), "it was merged since");
    }
}
