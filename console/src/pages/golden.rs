//! Fixed values for the tests of pages, and the comparison with golden files in `testdata`.

use std::path::Path;

use ebla_client::history::TableEvent;
use ebla_client::metadata::TabletEvent;
use ebla_client::snapshot::{ClusterSnapshot, ServerSnapshot};
use ebla_model::Micros;
use ebla_model::id::{Generation, GroupId, ServerId, TableId, TabletId};
use ebla_model::key::{KeyRange, RowKey};
use ebla_model::metadata::{GroupDescriptor, TabletDescriptor};
use ebla_proto::operate;

use super::Page;

/// Compares a page with `testdata/NAME.txt`, a line for each element. With `UPDATE=1` the file is rewritten first; the change is reviewed as
/// code.
pub(crate) fn check(name: &str, page: &Page) {
    let mut shown = format!("title {}\ncommand {}\n", page.title, page.command);
    for part in &page.parts {
        shown.push_str(&format!("\npart {}\n", part.live.unwrap_or("(fixed)")));
        shown.push_str(&part.html.as_str().replace("><", ">\n<"));
        shown.push('\n');
    }
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(name).with_extension("txt");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&file, &shown).unwrap();
    }
    let expected = std::fs::read_to_string(&file).unwrap_or_default();
    assert_eq!(shown, expected, "{}: UPDATE=1 rewrites it", file.display());
}

/// A cluster of three servers, one of which does not answer.
pub(crate) fn snapshot() -> ClusterSnapshot {
    let server = |id: u64| ServerSnapshot {
        id,
        address: Some(format!("10.0.0.{id}:8086")),
        is_registered: true,
        is_reachable: id != 3,
        replicas: (id != 3).then_some(24),
        assigned: Some(24),
        leads: (id != 3).then_some(12),
        size_bytes: (id != 3).then_some(5 << 20),
        ..ServerSnapshot::default()
    };
    ClusterSnapshot {
        cluster: Some("00ff".to_owned()),
        master: Some("10.0.0.9:8085".to_owned()),
        master_epoch: Some(7),
        tables: Some(2),
        tablets: Some(24),
        tablets_led: Some(24),
        health: Some(operate::Health {
            tablets: 24,
            replicas_live: 48,
            replicas_wanted: 72,
            shortages: vec![operate::Shortage { live: 2, wanted: 3, tablets: 24 }],
            ..operate::Health::default()
        }),
        servers: (1..=3).map(server).collect(),
        ..ClusterSnapshot::default()
    }
}

/// Two tablets of table 5 on servers 1 to 3, with a hostile key between them.
pub(crate) fn tablets() -> Vec<TabletDescriptor> {
    let group = GroupDescriptor::initial(GroupId::new(7), &[1, 2, 3].map(ServerId::new));
    let middle = RowKey::new("<m>\"&'\u{ff}");
    let low = KeyRange::new(RowKey::EMPTY, Some(middle.clone())).unwrap();
    let high = KeyRange::new(middle, None).unwrap();
    let tablet = |id, range| group.new_tablet(TableId::new(5), TabletId::new(id), range);
    vec![tablet(10, low), tablet(11, high)]
}

/// Two events of them.
pub(crate) fn events() -> Vec<TableEvent> {
    let event = |time: i64, what: &str, server: Option<u64>| TableEvent {
        table: TableId::new(5),
        event: TabletEvent {
            time: Micros::new(time),
            what: what.to_owned(),
            cause: "size".to_owned(),
            detail: "at <m>".to_owned(),
            server: server.map(ServerId::new),
            tablet: TabletId::new(10),
            generation: Generation::new(2),
        },
    };
    vec![event(1_763_879_499_123_456, "created", None), event(1_763_879_500_000_000, "split", Some(2))]
}
