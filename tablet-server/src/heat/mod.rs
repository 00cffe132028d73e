//! The collection of key heat (`ebla_model::heat`): what the tablets that are led here have counted goes into the table of key heat, once a
//! window.
//!
//! The decisions are in `collect`; this is the task around them. While the cluster has no such table, no tablet counts anything.
//! What was counted is lost if the table cannot be written for a while, and when a tablet is split, moves or gets another leader, for the
//! rest of that window: the map has a gap then, and nothing else depends on it.

mod collect;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ebla_client::{Cluster, Deadline};
use ebla_model::heat::{HeatOption, HeatStep, HeatWindow};
use ebla_model::id::{Incarnation, TableId};
use ebla_model::time::Micros;
use ebla_routing::{ChubbyDirectory, HeatTable};
use ebla_runtime::Runtime;
use tracing::{debug, warn};

use self::collect::{Collected, CountedTablet, TABLES_MAX, busiest, windows};
use crate::tablet::core::applied_state::TabletMetadata;
use crate::tablet::heat::HeatDetail;
use crate::tablet::lifecycle::manager::TabletManager;

/// Between two decisions which tablets count ranges.
const TICK: Duration = Duration::from_secs(2);
/// Timeout of the writes of a window.
const WRITE_TIMEOUT: Duration = Duration::from_secs(15);

/// Starts the collection, if it is on; it ends with `runtime.tasks`.
pub(crate) fn start(
    option: HeatOption,
    manager: &Arc<TabletManager>,
    (directory, cluster): (&ChubbyDirectory, &Cluster),
    incarnation: Incarnation,
    runtime: &Runtime,
) {
    let Some(window) = option.window() else { return };
    let id = [manager.server().get().to_be_bytes(), incarnation.get().to_be_bytes()].concat();
    let collector = Collector {
        manager: Arc::clone(manager),
        directory: directory.clone(),
        cluster: cluster.clone(),
        source: id.into(),
        window: window.max(HeatOption::WINDOW_MIN),
        runtime: runtime.clone(),
    };
    runtime.tasks.spawn_until_stopped("heat", collector.run());
}

struct Collector {
    manager: Arc<TabletManager>,
    directory: ChubbyDirectory,
    cluster: Cluster,
    /// The column of this server since its start: a server that restarts within a window replaces nothing.
    source: Bytes,
    window: Duration,
    runtime: Runtime,
}

impl Collector {
    async fn run(self) {
        let mut current = self.window_start();
        loop {
            tokio::time::sleep(TICK.min(self.window / 4)).await;
            let Some(table) = HeatTable::find(&self.directory, &self.cluster) else {
                self.switch_off();
                current = self.window_start();
                continue;
            };
            self.set_details(&table);
            let start = self.window_start();
            if start != current {
                let counted = self.take(&table);
                self.write(&table, current, counted).await;
                current = start;
            }
        }
    }

    fn window_start(&self) -> Micros {
        HeatStep::Minute.start_of(self.runtime.clock.wall(), self.window)
    }

    /// The tablets of users' tables on this server, and whether they are led here.
    fn tablets(&self, table: Option<&HeatTable>) -> Vec<(Arc<TabletMetadata>, Role)> {
        let mut tablets = Vec::new();
        for group in self.manager.groups() {
            let role = if group.is_leader() { Role::Leader } else { Role::Other };
            let state = group.state_machine().applied_state();
            let is_counted = |of: TableId| of != TableId::METADATA && table.map(HeatTable::id) != Some(of);
            let users = state.metadata.tablets.values().filter(|tablet| is_counted(tablet.descriptor.table));
            tablets.extend(users.map(|tablet| (Arc::clone(tablet), role)));
        }
        tablets
    }

    /// Switches ranges on for the busiest tablets that are led here.
    fn set_details(&self, table: &HeatTable) {
        let now = self.runtime.clock.monotonic();
        let tablets = self.tablets(Some(table));
        let led = tablets.iter().filter(|(_tablet, role)| *role == Role::Leader);
        let loads = led.map(|(tablet, _role)| (tablet.descriptor.tablet, tablet.load.load(now).per_second()));
        let busiest = busiest(loads.collect());
        for (tablet, role) in &tablets {
            let detail = match role {
                Role::Leader if busiest.contains(&tablet.descriptor.tablet) => HeatDetail::Ranges,
                Role::Leader => HeatDetail::Tablet,
                Role::Other => HeatDetail::Off,
            };
            reset_if_off(tablet, detail);
            tablet.load.heat().set_detail(detail);
        }
    }

    fn switch_off(&self) {
        for (tablet, _role) in self.tablets(None) {
            reset_if_off(&tablet, HeatDetail::Off);
            tablet.load.heat().set_detail(HeatDetail::Off);
        }
    }

    /// What was counted in the window that has ended, by table.
    fn take(&self, table: &HeatTable) -> BTreeMap<TableId, HeatWindow> {
        let tablets = self.tablets(Some(table));
        let led = tablets.iter().filter(|(_tablet, role)| *role == Role::Leader);
        let counted = led.map(|(tablet, _role)| {
            let descriptor = &tablet.descriptor;
            let window = tablet.load.heat().take(descriptor.tablet, &descriptor.range);
            CountedTablet { table: descriptor.table, window }
        });
        let Collected { windows, dropped } = windows(counted.collect());
        if dropped > 0 {
            warn!(
                tablets = dropped,
                "key heat of tables beyond {TABLES_MAX} is not counted: the quietest ones are left out"
            );
        }
        windows
    }

    async fn write(&self, table: &HeatTable, start: Micros, counted: BTreeMap<TableId, HeatWindow>) {
        if counted.is_empty() {
            return;
        }
        let deadline = Deadline::after(&self.runtime.clock, WRITE_TIMEOUT);
        let tables = counted.len();
        match table.write((HeatStep::Minute, start), &self.source, &counted, deadline).await {
            Ok(()) => debug!(tables, "key heat written"),
            Err(error) => warn!(tables, %error, "key heat not written: heat maps have a gap"),
        }
    }
}

/// Forgets what a tablet has counted that is about to be switched off.
fn reset_if_off(tablet: &TabletMetadata, detail: HeatDetail) {
    let meter = tablet.load.heat();
    if detail == HeatDetail::Off && meter.detail() != HeatDetail::Off {
        drop(meter.take(tablet.descriptor.tablet, &tablet.descriptor.range));
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Leader,
    Other,
}
