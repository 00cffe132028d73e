//! Golden cases of folding, maps and diagnoses, and their bounds.

use std::path::Path;
use std::time::Duration;

use super::*;
use crate::schema::TableName;
use crate::time::Micros;

/// A window of a script: `START-END:READS/WRITES@TABLET`, `row KEY:READS/WRITES`, `other READS/WRITES`.
fn window(line: &str) -> HeatWindow {
    let mut window = HeatWindow::default();
    let mut words = line.split_whitespace().skip(1);
    while let Some(word) = words.next() {
        match word {
            "row" => {
                let (row, counts) = words.next().unwrap().split_once(':').unwrap();
                let HeatCounts { reads, writes, .. } = counts_of(counts);
                window.rows.push(RowHeat { row: RowKey::new(row.to_owned()), reads, writes });
            }
            "other" => window.other = counts_of(words.next().unwrap()),
            range => {
                let (keys, counts) = range.split_once(':').unwrap();
                let (start, end) = keys.split_once('-').unwrap();
                let (counts, tablet) = counts.split_once('@').unwrap();
                let end = Some(end).filter(|end| !end.is_empty()).map(|end| RowKey::new(end.to_owned()));
                window.ranges.push(RangeHeat {
                    range: KeyRange::new(RowKey::new(start.to_owned()), end).unwrap(),
                    tablet: TabletId::new(tablet.parse().unwrap()),
                    counts: counts_of(counts),
                });
            }
        }
    }
    window
}

fn counts_of(text: &str) -> HeatCounts {
    let (reads, writes) = text.split_once('/').unwrap();
    HeatCounts { reads: reads.parse().unwrap(), writes: writes.parse().unwrap(), ..HeatCounts::default() }
}

fn shown(window: &HeatWindow) -> String {
    let range = |one: &RangeHeat| {
        let end = one.range.end().map(RowKey::to_string).unwrap_or_default();
        format!("{}-{end}:{}/{}@{}", one.range.start(), one.counts.reads, one.counts.writes, one.tablet.get())
    };
    let rows = window.rows.iter().map(|row| format!("row {}:{}/{}", row.row, row.reads, row.writes));
    let other = (!window.other.is_zero()).then(|| format!("other {}/{}", window.other.reads, window.other.writes));
    window.ranges.iter().map(range).chain(rows).chain(other).collect::<Vec<_>>().join(" ")
}

fn run(case: &str) -> String {
    let lines: Vec<&str> = case.lines().take_while(|line| *line != "---").collect();
    let windows: Vec<HeatWindow> =
        lines.iter().filter(|line| line.starts_with("window")).map(|line| window(line)).collect();
    let timed: Vec<(Micros, HeatWindow)> =
        (1_i64..).map(|minute| Micros::from_millis(minute * 60_000)).zip(windows.iter().cloned()).collect();
    let command: Vec<&str> = lines.last().unwrap().split_whitespace().collect();
    let outcome = match command.as_slice() {
        ["fold"] => vec![Some(shown(&fold(&windows))).filter(|said| !said.is_empty()).unwrap_or("nothing".to_owned())],
        ["diagnose", tablets] => {
            let found = diagnose(&timed, tablets.parse().unwrap());
            let texts = found.iter().map(ToString::to_string).collect::<Vec<_>>();
            if texts.is_empty() { vec!["nothing".to_owned()] } else { texts }
        }
        ["map", buckets, metric] => {
            let metric: HeatMetric = metric.parse().unwrap();
            let map = heat_map(&timed, &KeyRange::all(), buckets.parse().unwrap(), metric);
            let head = map.buckets.iter().zip(&map.tablets);
            let head = head.map(|(bucket, tablet)| format!("{bucket} {}", tablet.map_or(0, TabletId::get)));
            let columns = map.columns.iter().map(|column| {
                let cells: Vec<_> = column.cells.iter().map(|cell| metric.of(cell).to_string()).collect();
                format!("{}: {}", column.start.get() / 60_000_000, cells.join(" "))
            });
            std::iter::once(head.collect::<Vec<_>>().join(", ")).chain(columns).collect()
        }
        other => panic!("{other:?}"),
    };
    format!("{}\n---\n{}\n", lines.join("\n"), outcome.join("\n"))
}

#[test]
fn windows_are_folded_shown_and_diagnosed() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/heat");
    for file in ["fold", "map", "diagnosis"] {
        crate::golden::check_cases(&folder.join(file), run);
    }
}

#[test]
fn a_fold_is_bounded_and_loses_nothing() {
    let key = |number: u32| RowKey::new(format!("{number:06}"));
    let range = |number: u32, counts| RangeHeat {
        range: KeyRange::new(key(number), Some(key(number + 1))).unwrap(),
        tablet: TabletId::new(u64::from(number % 7) + 1),
        counts,
    };
    let windows: Vec<HeatWindow> = (0..10)
        .map(|at: u32| HeatWindow {
            ranges: (0..1_000)
                .map(|number| {
                    let writes = if number == 500 { 10_000 } else { u64::from(number % 5) };
                    range(number * 3 + at, HeatCounts { reads: 1, writes, ..HeatCounts::default() })
                })
                .collect(),
            rows: (0..100).map(|number| RowHeat { row: key(number), reads: u64::from(number), writes: 1 }).collect(),
            ..HeatWindow::default()
        })
        .collect();
    let folded = fold(&windows);
    // Most of the weight is in one range, which cannot be divided further.
    assert!((32..=FOLDED_RANGES_MAX + 2).contains(&folded.ranges.len()), "{}", folded.ranges.len());
    let mut sum = HeatCounts::default();
    windows.iter().for_each(|window| sum.add(&window.total()));
    assert_eq!(folded.total(), sum);
    assert_eq!(folded.rows.len(), ROWS_MAX);
    assert_eq!(folded.rows[0].row, key(99), "the hottest are kept");
    let hottest = folded.ranges.iter().max_by_key(|range| range.counts.writes).unwrap();
    assert!(hottest.range.start() >= &key(1_500) && hottest.counts.writes >= 10_000, "{hottest:?}");
    assert_eq!(fold(&[]), HeatWindow::default());
}

#[test]
fn parts_of_counts_add_up() {
    let counts = HeatCounts { reads: 10, writes: 3, read_bytes: 1, call_micros: 7, calls: 2, written_bytes: 0 };
    let mut sum = HeatCounts::default();
    (0..4).for_each(|at| sum.add(&counts.part(at, 4)));
    assert_eq!(sum, counts);
    assert_eq!(counts.scaled(1, 0), HeatCounts::default());
    assert_eq!((counts.latency_micros(), HeatCounts::default().latency_micros()), (3, 0));
}

#[test]
fn steps_of_time_are_aligned_and_old_ones_are_long() {
    let now = Micros::from_millis(1_700_000_000_000);
    let age = |hours: u64| HeatStep::covering(now.minus(Duration::from_secs(hours * 3_600)), now);
    assert_eq!(
        [age(1), age(6), age(7), age(96), age(97), age(10_000)].map(HeatStep::family),
        ["minute", "minute", "ten_minutes", "ten_minutes", "hour", "hour"]
    );
    // The time of a reader's question, and a little more.
    let seconds = |seconds: u64| HeatStep::covering(now.minus(Duration::from_secs(seconds)), now).family();
    assert_eq!([6 * 3_600 + 3, 6 * 3_600 + 61].map(seconds), ["minute", "ten_minutes"]);
    assert_eq!([96 * 3_600 + 3, 96 * 3_600 + 601].map(seconds), ["ten_minutes", "hour"]);
    let start = HeatStep::TenMinutes.start_of(now, WINDOW);
    assert_eq!((start.get() % 600_000_000, now.since(start) < Duration::from_secs(600)), (0, true));
}

#[test]
fn hot_tablets_are_listed_once_in_a_quarter_of_an_hour() {
    let table = TableName::from_parts("p", "i", "t").unwrap();
    let mut hot = HotTablets::default();
    let minute = |number: i64| Micros::from_millis(number * 60_000);
    for (at, writes) in [(30, 6_000), (31, 600_000), (46, 60_000), (47, 200)] {
        let counts = HeatCounts { writes, ..HeatCounts::default() };
        let ranges = ["a", "c"].map(|start| RangeHeat {
            range: KeyRange::new(RowKey::new(start), Some(RowKey::new(format!("{start}z")))).unwrap(),
            tablet: TabletId::new(9),
            counts: counts.part(0, 2),
        });
        hot.add(&table, minute(at), WINDOW, &HeatWindow { ranges: ranges.to_vec(), ..HeatWindow::default() });
    }
    let list = hot.into_list();
    let found: Vec<_> = list.iter().map(|one| (one.start, one.milli_percent)).collect();
    assert_eq!(found, [(minute(31), 25_000), (minute(46), 2_500)], "25 us for each write");
    let mut quiet = HotTablets::default();
    let few = HeatWindow {
        ranges: vec![RangeHeat {
            range: KeyRange::all(),
            tablet: TabletId::new(9),
            counts: HeatCounts { reads: 10, ..HeatCounts::default() },
        }],
        ..HeatWindow::default()
    };
    quiet.add(&table, minute(1), WINDOW, &few);
    assert!(quiet.into_list().is_empty());
}
