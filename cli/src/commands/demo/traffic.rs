//! Gentle traffic of `ebla demo`, so that metrics and the console have something to show: reads and scans of the data set, and writes of
//! a small time series.
//!
//! What happens next is decided by [`Schedule`], which is pure. The traffic is bounded: one request at a time, at most as many per
//! second as the user wants, and the time series has [`STATIONS`] times [`MINUTES`] rows of one version, which are overwritten every day. It ends with
//! the process.

use std::time::Duration;

use bytes::Bytes;
use ebla_client::Client;
use ebla_client::table::ReadOptions;
use ebla_model::error::{Error, Reason};
use ebla_model::filter::Filter;
use ebla_model::gc::GcRule;
use ebla_model::key::{KeyRange, RowKey, RowSet};
use ebla_model::mutation::{Mutation, WriteTime};
use ebla_model::schema::TableName;
use ebla_model::time::Micros;
use ebla_runtime::Runtime;

use crate::output;

/// The table of the time series.
const WEATHER: &str = "weather";
/// Its family, which keeps one version.
const FAMILY: &str = "reading";
/// Stations of the time series.
const STATIONS: u64 = 5;
/// Rows of each station: one for each minute of a day.
const MINUTES: u64 = 24 * 60;
/// Pages that are read.
const PAGES_MAX: u64 = 200;
/// Rows of a scan.
const SCANNED: u64 = 20;
/// The timeout of one request.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The pause after a failure: the cluster may be restarting.
const FAILURE_PAUSE: Duration = Duration::from_secs(1);

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    /// Reads a page.
    Read(RowKey),
    /// Scans some pages from this one on.
    Scan(RowKey),
    /// Writes a row of the time series.
    Write { row: String, temperature: String },
}

/// Decides which request is next.
#[derive(Clone, Debug)]
struct Schedule {
    /// Pages of the data set, in order of their keys.
    pages: Vec<RowKey>,
    steps: u64,
}

impl Schedule {
    const fn new(pages: Vec<RowKey>) -> Self {
        Self { pages, steps: 0 }
    }

    /// The next request: of ten, six are reads, one is a scan, three are writes. `random`: any number; `now`: the time of the readings.
    /// Low pages are read more often than high ones, as popular pages are.
    fn next(&mut self, random: u64, now: Micros) -> Step {
        let step = self.steps;
        self.steps = self.steps.wrapping_add(1);
        let count = self.pages.len() as u64;
        let page = || {
            // The smaller of two even choices.
            let place = (random % count.max(1)).min((random >> 32) % count.max(1));
            usize::try_from(place).ok().and_then(|place| self.pages.get(place)).cloned()
        };
        match (step % 10, page()) {
            (0, Some(page)) => Step::Scan(page),
            (1..=6, Some(page)) => Step::Read(page),
            _ => {
                let minute = u64::try_from(now.get() / 60_000_000).unwrap_or_default() % MINUTES;
                let station = random % STATIONS;
                Step::Write {
                    row: format!("station-{station}#{:02}:{:02}", minute / 60, minute % 60),
                    temperature: temperature(station, minute),
                }
            }
        }
    }
}

/// Degrees with one decimal: cold in the night, warm after noon, a little different at each station.
fn temperature(station: u64, minute: u64) -> String {
    let from_coldest = minute.abs_diff(5 * 60).min(MINUTES - minute.abs_diff(5 * 60));
    let tenths = 80 + 10 * station + from_coldest / 6;
    format!("{}.{}", tenths / 10, tenths % 10)
}

/// Sends `per_second` requests a second, until it is cancelled. `pages`: the table with the data set.
///
/// # Errors
/// When the table of the time series cannot be created.
pub(super) async fn run(client: &Client, pages: &TableName, per_second: u16, runtime: &Runtime) -> Result<(), Error> {
    let weather = TableName::from_parts(pages.project(), pages.instance(), WEATHER)?;
    let family = (FAMILY.to_owned(), Some(GcRule::MaxVersions(1)));
    match client.admin().create_table(&weather, &[family], &[]).await {
        Err(error) if error.reason != Reason::AlreadyExists => return Err(error),
        Ok(_) | Err(_) => {}
    }
    let mut schedule = Schedule::new(some_pages(client, pages).await?);
    let period = Duration::from_secs(1) / u32::from(per_second.max(1));
    let mut has_failed = false;
    loop {
        let step = schedule.next(runtime.rng.u64(), runtime.clock.wall());
        let pause = match carry_out(client, pages, &weather, step).await {
            Ok(()) => {
                has_failed = false;
                period
            }
            Err(error) => {
                // The first failure in a row is enough to know.
                if !std::mem::replace(&mut has_failed, true) {
                    output::note(&format!("a request of the demo failed, it tries again: {}", error.message));
                }
                FAILURE_PAUSE
            }
        };
        tokio::time::sleep(runtime.rng.jitter(pause)).await;
    }
}

/// Keys of the first pages.
async fn some_pages(client: &Client, pages: &TableName) -> Result<Vec<RowKey>, Error> {
    let filter = Some(Filter::Chain(vec![Filter::CellsPerRowLimit(1), Filter::StripValue]));
    let options = ReadOptions { filter, limit: PAGES_MAX, ..ReadOptions::default() };
    let rows = client.table(pages).with_timeout(TIMEOUT).read_rows(RowSet::all(), options).await?;
    Ok(rows.into_iter().map(|row| row.key).collect())
}

async fn carry_out(client: &Client, pages: &TableName, weather: &TableName, step: Step) -> Result<(), Error> {
    match step {
        Step::Read(page) => client.table(pages).with_timeout(TIMEOUT).read_row(&page, None).await.map(drop),
        Step::Scan(page) => {
            let rows = KeyRange::new(page, None).map_or_else(RowSet::all, |range| RowSet::from_ranges([range]));
            let options = ReadOptions { limit: SCANNED, ..ReadOptions::default() };
            client.table(pages).with_timeout(TIMEOUT).read_rows(rows, options).await.map(drop)
        }
        Step::Write { row, temperature } => {
            let cell = Mutation::SetCell {
                family: FAMILY.to_owned(),
                qualifier: Bytes::from_static(b"temperature"),
                timestamp: WriteTime::Server,
                value: Bytes::from(temperature),
            };
            let row = RowKey::copy_from_slice(row.as_bytes());
            client.table(weather).with_timeout(TIMEOUT).mutate_row(&row, &[cell]).await
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn pages(count: u64) -> Vec<RowKey> {
        (0..count).map(|page| RowKey::copy_from_slice(format!("page-{page:03}").as_bytes())).collect()
    }

    #[test]
    fn most_requests_are_reads() {
        let mut schedule = Schedule::new(pages(100));
        let rng = ebla_runtime::Rng::seeded(7);
        let steps: Vec<Step> = (0..1_000).map(|_| schedule.next(rng.u64(), Micros::ZERO)).collect();
        let count = |is: fn(&Step) -> bool| steps.iter().filter(|step| is(step)).count();
        assert_eq!(count(|step| matches!(step, Step::Read(_))), 600);
        assert_eq!(count(|step| matches!(step, Step::Scan(_))), 100);
        assert_eq!(count(|step| matches!(step, Step::Write { .. })), 300);
        let low = |step: &&Step| matches!(step, Step::Read(page) if page.as_bytes() < b"page-050".as_slice());
        assert!(steps.iter().filter(low).count() > 400, "low pages are popular");
    }

    #[test]
    fn the_time_series_is_bounded() {
        let mut schedule = Schedule::new(Vec::new());
        let rng = ebla_runtime::Rng::seeded(7);
        // Four days, a reading every 13 s: each minute has some.
        let times = (0..4 * 86_400 / 13).map(|step| Micros::new(step * 13_000_000));
        let rows: BTreeSet<String> = times
            .map(|now| match schedule.next(rng.u64(), now) {
                Step::Write { row, .. } => row,
                other => panic!("{other:?} without pages"),
            })
            .collect();
        assert!(rows.len() as u64 <= STATIONS * MINUTES && rows.len() as u64 > STATIONS * MINUTES * 9 / 10);
        let ends_with = |minute: &str| rows.iter().any(|row| row.ends_with(minute));
        assert!(ends_with("#00:00") && ends_with("#23:59"), "{:?}", rows.first());
    }

    #[test]
    fn nights_are_cold() {
        assert_eq!((temperature(0, 5 * 60), temperature(0, 17 * 60)), ("8.0".to_owned(), "20.0".to_owned()));
        assert_eq!(temperature(3, 0), "16.0");
        // No jump at midnight.
        assert_eq!(temperature(1, MINUTES - 1), temperature(1, 0));
    }
}
