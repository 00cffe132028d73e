//! The master's part of key heat: it creates the table, folds what tablet servers write into longer steps of time, and reads heat maps.
//!
//! The state is in the table itself: the next master continues where its predecessor has stopped. Steps that are folded twice are the same.

mod folding;
mod reading;

use std::time::Duration;

use ebla_model::cluster_version::Feature;
use ebla_model::error::{Error, Reason};
use ebla_model::heat::{self, HeatOption};
use ebla_model::schema::{TableName, TableState};
use ebla_routing::HeatTable;
use tracing::{debug, info};

pub(crate) use self::reading::{key_heat, list_hot_tablets};
use crate::active::ActiveMaster;
use crate::jobs::create::{NewTable, create_table};

/// Timeout of the creation of the table.
const CREATE_TIMEOUT: Duration = Duration::from_secs(60);

/// Creates and folds, once a window, until this master is no longer active. Never ends if key heat is off.
pub(crate) async fn maintain(master: ActiveMaster) {
    let Some(window) = master.heat().window() else { return std::future::pending().await };
    loop {
        tokio::time::sleep(master.runtime().rng.jitter(window)).await;
        let done = match find(&master) {
            Some(table) => folding::fold_due(&master, &table, window).await,
            None => create(&master).await,
        };
        if let Err(error) = done {
            // Nothing depends on it but the map, and the next window is soon.
            debug!(%error, "key heat not folded, or its table not created; trying again");
        }
    }
}

/// The table, if there is one.
fn find(master: &ActiveMaster) -> Option<HeatTable> {
    HeatTable::find(master.directory(), master.client())
}

/// Creates the table, once a user has one, unless an earlier cluster version is active.
async fn create(master: &ActiveMaster) -> Result<(), Error> {
    let schemas = master.directory().schemas();
    let has_users = schemas.iter().any(|schema| !schema.name.is_system() && schema.state == TableState::Active);
    let is_begun = schemas.iter().any(|schema| schema.name == TableName::heat());
    if !has_users || is_begun || !Feature::KeyHeat.is_active(master.directory().active_version()) {
        return Ok(());
    }
    master.check_not_behind().await?;
    let new = NewTable {
        name: TableName::heat(),
        families: heat::families()?,
        splits: Vec::new(),
        deletion_protection: true,
    };
    let created = Box::pin(create_table(master, new, master.deadline(CREATE_TIMEOUT))).await?;
    info!(table = %created.table, "the table of key heat was created");
    Ok(())
}

/// The table and the length of a window, for a reader.
///
/// # Errors
/// `FailedPrecondition` when key heat is off, or nothing was collected yet.
fn readable(master: &ActiveMaster) -> Result<(HeatTable, Duration), Error> {
    let HeatOption::Every(window) = master.heat() else {
        let message = "key heat is not collected: start masters and tablet servers with --heat-map on";
        return Err(Error::new(Reason::FailedPrecondition, message));
    };
    Feature::KeyHeat.check(master.directory().active_version())?;
    let missing = || {
        let message = "nothing was collected yet: the first windows are written about two minutes after the first table was created";
        Error::new(Reason::FailedPrecondition, message)
    };
    Ok((find(master).ok_or_else(missing)?, window))
}
