//! `ebla tablet history` and `ebla tablet events`: what METADATA has recorded of tablets. `ebla events` shows that too.

use ebla_client::history::{TableEvent, last, of_key, of_tablet};
use ebla_client::metadata::TabletEvents;
use ebla_model::id::TabletId;
use ebla_model::key::RowKey;
use ebla_runtime::Runtime;
use serde_json::{Value, json};

use crate::commands::ClusterArguments;
use crate::output::{self, Failure, Format, Table};

/// Whose history is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Selection {
    /// That of a tablet.
    Tablet(TabletId),
    /// That of the tablet with a key of a table.
    Key(String, RowKey),
}

impl Selection {
    /// The arguments `TABLET`, or `TABLE KEY`.
    ///
    /// # Errors
    /// When the only argument is no number of a tablet.
    pub(super) fn of(first: &str, key: Option<RowKey>) -> Result<Self, Failure> {
        match (key, first.parse::<u64>()) {
            (Some(key), _) => Ok(Self::Key(first.to_owned(), key)),
            (None, Ok(tablet)) if tablet > 0 => Ok(Self::Tablet(TabletId::new(tablet))),
            (None, _) => Err(Failure::usage(format!(
                "{first} is not the number of a tablet; give the number, as ebla tablet list shows it, or a table and a key"
            ))),
        }
    }
}

/// Shows the history of a tablet, the oldest event first.
pub(super) async fn history(
    cluster: &ClusterArguments,
    selection: Selection,
    runtime: &Runtime,
) -> Result<(), Failure> {
    let client = cluster.client(runtime).await?;
    let shown = match selection {
        Selection::Tablet(tablet) => of_tablet(client.tablet_events(None).await?, tablet),
        Selection::Key(table, key) => of_key(client.tablet_events(Some(&cluster.table(&table)?)).await?, &key),
    };
    print(&shown, cluster.output);
    Ok(())
}

/// Shows the last events of all tablets, or of those of a table, the oldest one first.
pub(super) async fn events(
    cluster: &ClusterArguments,
    table: Option<&str>,
    number: usize,
    runtime: &Runtime,
) -> Result<(), Failure> {
    let name = table.map(|table| cluster.table(table)).transpose()?;
    let client = cluster.client(runtime).await?;
    print(&last(client.tablet_events(name.as_ref()).await?, number), cluster.output);
    Ok(())
}

/// The last events as JSON.
pub(in crate::commands) fn document(rows: Vec<TabletEvents>, number: usize) -> Value {
    json!(last(rows, number).iter().map(to_json).collect::<Vec<_>>())
}

fn print(events: &[TableEvent], format: Format) {
    match format {
        Format::Json => output::print_json(&json!(events.iter().map(to_json).collect::<Vec<_>>())),
        Format::Table if events.is_empty() => output::note("no events"),
        Format::Table => output::print(&render(events)),
    }
}

fn render(events: &[TableEvent]) -> String {
    let mut table = heading();
    events.iter().for_each(|one| table.row(cells(one)));
    table.render()
}

pub(in crate::commands) fn heading() -> Table {
    Table::new(&["TIME", "TABLE", "TABLET", "GENERATION", "EVENT", "CAUSE", "RECORDED BY", "DETAIL"])
}

/// One event, as a row below [`heading`].
pub(in crate::commands) fn cells(TableEvent { table, event }: &TableEvent) -> Vec<String> {
    vec![
        output::time(event.time),
        table.to_string(),
        event.tablet.to_string(),
        event.generation.to_string(),
        event.what.clone(),
        event.cause.clone(),
        event.server.map_or("master".to_owned(), |server| format!("server {server}")),
        event.detail.clone(),
    ]
}

/// One event as JSON.
pub(in crate::commands) fn to_json(TableEvent { table, event }: &TableEvent) -> Value {
    json!({
        "time_micros": event.time.get(),
        "table": table.get(),
        "tablet": event.tablet.get(),
        "generation": event.generation.get(),
        "event": event.what,
        "cause": event.cause,
        "server": event.server.map(|server| server.get()),
        "detail": event.detail,
    })
}

#[cfg(test)]
mod tests {
    use ebla_client::metadata::TabletEvent;
    use ebla_model::Micros;
    use ebla_model::id::{Generation, ServerId, TableId};
    use ebla_model::key::KeyRange;
    use ebla_model::metadata::TabletDescriptor;

    use super::*;

    fn row(tablet: u64, start: &'static str, end: &'static str, events: &[(i64, u64, &str)]) -> TabletEvents {
        let end = (!end.is_empty()).then(|| RowKey::new(end));
        let range = KeyRange::new(RowKey::new(start), end).unwrap();
        let server = ServerId::new(1);
        let descriptor = TabletDescriptor::initial(TableId::new(5), TabletId::new(tablet), range, &[server]);
        let event = |(time, tablet, what): &(i64, u64, &str)| TabletEvent {
            time: Micros::new(*time),
            what: (*what).to_owned(),
            cause: "size".to_owned(),
            detail: String::new(),
            server: (*time > 1).then_some(server),
            tablet: TabletId::new(*tablet),
            generation: Generation::new(1),
        };
        TabletEvents { descriptor, events: events.iter().map(event).collect() }
    }

    fn rows() -> Vec<TabletEvents> {
        vec![
            row(7, "", "m", &[(3, 7, "split")]),
            row(8, "m", "", &[(1, 7, "created"), (3, 8, "split"), (5, 8, "moved")]),
        ]
    }

    fn words(events: &[TableEvent]) -> Vec<(i64, u64, &str)> {
        events.iter().map(|one| (one.event.time.get(), one.event.tablet.get(), one.event.what.as_str())).collect()
    }

    #[test]
    fn the_history_of_a_tablet_is_that_of_all_rows_that_have_listed_it() {
        let all = [(1, 7, "created"), (3, 7, "split"), (3, 8, "split"), (5, 8, "moved")];
        assert_eq!(words(&of_tablet(rows(), TabletId::new(7))), all, "its row was given to the other half");
        assert_eq!(words(&of_tablet(rows(), TabletId::new(8))), [all[0], all[2], all[3]]);
        assert_eq!(words(&of_tablet(rows(), TabletId::new(9))), []);
        assert_eq!(words(&of_key(rows(), &RowKey::new("c"))), [all[1]]);
        assert_eq!(words(&of_key(rows(), &RowKey::new("m"))), [all[0], all[2], all[3]]);
        assert_eq!(words(&last(rows(), usize::MAX)), all);
    }

    #[test]
    fn events_are_shown_with_who_recorded_them() {
        let text = render(&last(rows(), usize::MAX));
        assert!(text.contains("master") && text.contains("server 1"), "{text}");
        assert_eq!(text.lines().count(), 5);
    }

    #[test]
    fn one_argument_is_a_tablet_and_two_are_a_key() {
        assert_eq!(Selection::of("12", None).unwrap(), Selection::Tablet(TabletId::new(12)));
        assert_eq!(
            Selection::of("12", Some(RowKey::new("k"))).unwrap(),
            Selection::Key("12".to_owned(), RowKey::new("k"))
        );
        for wrong in ["web", "0", "-1"] {
            assert!(Selection::of(wrong, None).is_err(), "{wrong}");
        }
    }
}
