//! Events of tablets in the order of their times: of one tablet, of one key, or the last ones. Pure.

use ebla_model::id::{TableId, TabletId};
use ebla_model::key::RowKey;

use crate::metadata::{TabletEvent, TabletEvents};

/// An event with the table of its tablet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableEvent {
    /// The table.
    pub table: TableId,
    /// The event.
    pub event: TabletEvent,
}

/// The events of the rows that list the tablet, or have listed it.
pub fn of_tablet(rows: Vec<TabletEvents>, tablet: TabletId) -> Vec<TableEvent> {
    let is_of =
        |row: &TabletEvents| row.descriptor.tablet == tablet || row.events.iter().any(|event| event.tablet == tablet);
    in_order(rows.into_iter().filter(is_of))
}

/// The events of the row that lists the tablet with the key: the newest one, while a merge has left an old row behind.
pub fn of_key(rows: Vec<TabletEvents>, key: &RowKey) -> Vec<TableEvent> {
    let with_key = rows.into_iter().filter(|row| row.descriptor.range.contains(key.as_bytes()));
    in_order(with_key.max_by_key(|row| row.descriptor.generation).into_iter())
}

/// The last `number` events of these rows.
pub fn last(rows: Vec<TabletEvents>, number: usize) -> Vec<TableEvent> {
    let mut events = in_order(rows.into_iter());
    events.drain(..events.len().saturating_sub(number));
    events
}

/// Collects the last events of rows that arrive in parts. Holds at most twice their number, and those of one part.
#[derive(Clone, Debug)]
pub struct LastEvents {
    number: usize,
    events: Vec<TableEvent>,
}

impl LastEvents {
    /// Of the last `number` events.
    #[must_use]
    pub const fn new(number: usize) -> Self {
        Self { number, events: Vec::new() }
    }

    /// Adds the accepted events of further rows.
    pub fn add(&mut self, rows: Vec<TabletEvents>, accepts: impl Fn(&TabletEvent) -> bool) {
        self.events.extend(in_order(rows.into_iter()).into_iter().filter(|TableEvent { event, .. }| accepts(event)));
        if self.events.len() > self.number.saturating_mul(2) {
            self.forget_earlier();
        }
    }

    /// The last events, ascending by time.
    #[must_use]
    pub fn into_events(mut self) -> Vec<TableEvent> {
        self.forget_earlier();
        self.events
    }

    fn forget_earlier(&mut self) {
        sort(&mut self.events);
        self.events.drain(..self.events.len().saturating_sub(self.number));
    }
}

/// The events of these rows, ascending by time.
pub fn in_order(rows: impl Iterator<Item = TabletEvents>) -> Vec<TableEvent> {
    let events = rows.flat_map(|TabletEvents { descriptor, events }| {
        events.into_iter().map(move |event| TableEvent { table: descriptor.table, event })
    });
    let mut events: Vec<TableEvent> = events.collect();
    sort(&mut events);
    events
}

fn sort(events: &mut [TableEvent]) {
    events.sort_by_key(|TableEvent { event, .. }| (event.time, event.generation, event.tablet));
}

#[cfg(test)]
mod tests {
    use ebla_model::Micros;
    use ebla_model::id::{Generation, GroupId, ServerId};
    use ebla_model::key::KeyRange;
    use ebla_model::metadata::GroupDescriptor;

    use super::*;

    fn row(tablet: u64, times: impl IntoIterator<Item = i64>) -> TabletEvents {
        let group = GroupDescriptor::initial(GroupId::new(7), &[1].map(ServerId::new));
        let descriptor = group.new_tablet(TableId::new(5), TabletId::new(tablet), KeyRange::all());
        let event = |time| TabletEvent {
            time: Micros::new(time),
            what: if time % 2 == 0 { "split" } else { "moved" }.to_owned(),
            cause: String::new(),
            detail: String::new(),
            server: None,
            tablet: TabletId::new(tablet),
            generation: Generation::new(1),
        };
        TabletEvents { descriptor, events: times.into_iter().map(event).collect() }
    }

    #[test]
    fn the_last_events_of_parts_are_those_of_all_rows() {
        let parts: Vec<Vec<TabletEvents>> = (0..20)
            .map(|part| {
                (0..5)
                    .map(|row_of| row(part * 5 + row_of, (0..64).map(|at| at * 37 % 64 * 100 + part as i64)))
                    .collect()
            })
            .collect();
        let all = || parts.iter().flatten().cloned().collect::<Vec<_>>();
        for number in [0, 1, 10, 1_000, 100_000] {
            let mut last_events = LastEvents::new(number);
            for part in &parts {
                last_events.add(part.clone(), |_| true);
                assert!(last_events.events.len() <= 2 * number, "at most {number} twice");
            }
            assert_eq!(last_events.into_events(), last(all(), number), "{number}");
        }
        let mut splits = LastEvents::new(3);
        splits.add(all(), |event| event.what == "split");
        let times: Vec<Micros> = splits.into_events().iter().map(|found| found.event.time).collect();
        assert_eq!(times, [6_318; 3].map(Micros::new));
    }
}
