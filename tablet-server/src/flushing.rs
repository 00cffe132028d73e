//! When memory goes to disk, how far the log may be forgotten, and which tablets have grown too large.
//!
//! One task looks at all replicas a few times a second, asks `storage::flush` which of them to flush, has that done on
//! threads that may block, and tells Raft how far each store then is on disk: the log is not needed below. It also keeps
//! writes waiting while memtables are far above their budget, has tablets divided that are larger than they should be, and tells
//! `collecting` how large they are.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ebla_model::id::TabletId;
use ebla_runtime::Runtime;
use ebla_storage::flush::{Budgets, FlushScheduler, IdleTablets, LogPin, Picture, Pressure, TabletLoad};
use tracing::{debug, error, info, warn};

use crate::collecting::Collector;
use crate::tablet::Tablet;
use crate::tablet::admission::Gate;
use crate::tablet::hosted::Hosted;

/// How often the picture is taken.
const LOOK: Duration = Duration::from_millis(250);
/// Sizes, and how far stores are on disk by the engine's own flushes, are looked at once for so many looks.
const LOOKS_PER_ROUND: u64 = 8;
/// Entries below what is on disk are left in the log until there are so many: purging is a record too.
const PURGE_ENTRIES: u64 = 1024;
/// The log keeps what the stores have on disk until it has this part of its budget: a follower that was away for a moment
/// catches up from it instead of being sent a whole tablet.
const LOG_KEPT: u64 = 4;
/// How long a division may take.
const SPLIT: Duration = Duration::from_secs(30);
/// A tablet that could not be divided is not tried again for so long.
const SPLIT_AGAIN: Duration = Duration::from_secs(10);

/// What the task keeps within.
#[derive(Clone, Copy, Debug)]
pub struct FlushBudgets {
    /// Memory of memtables, all tablets together, in bytes.
    pub memtable_bytes: u64,
    /// The commit log on disk, in bytes.
    pub log_bytes: u64,
    /// A tablet larger than this is divided, in bytes.
    pub split_bytes: u64,
}

/// Starts the task; it ends with `runtime.tasks`.
pub fn start(hosted: &Arc<Hosted>, budgets: FlushBudgets, runtime: &Runtime) {
    let scheduler =
        FlushScheduler::new(Budgets { memtable_bytes: budgets.memtable_bytes, log_bytes: budgets.log_bytes });
    let keeper = Keeper {
        hosted: Arc::clone(hosted),
        scheduler: Arc::new(scheduler),
        split_bytes: budgets.split_bytes,
        log_kept_bytes: budgets.log_bytes / LOG_KEPT,
        runtime: runtime.clone(),
        collector: Collector::new(runtime),
        idle: IdleTablets::default(),
        purged: BTreeMap::new(),
        tried: BTreeMap::new(),
    };
    runtime.tasks.spawn_until_stopped("flushing", keeper.run());
}

struct Keeper {
    hosted: Arc<Hosted>,
    scheduler: Arc<FlushScheduler>,
    split_bytes: u64,
    log_kept_bytes: u64,
    runtime: Runtime,
    collector: Collector,
    idle: IdleTablets,
    /// Up to which index each tablet's log was last asked to be purged.
    purged: BTreeMap<TabletId, u64>,
    /// When each tablet was last to be divided.
    tried: BTreeMap<TabletId, Duration>,
}

/// How much a look asks of the stores: sizes are read from indexes of files, and change slowly.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Depth {
    Loads,
    Sizes,
}

/// What a look at a tablet tells; sizes and positions only when they were asked for.
struct Looked {
    load: TabletLoad,
    size_bytes: u64,
    persisted: u64,
}

impl Keeper {
    async fn run(mut self) {
        let mut looks = 0_u64;
        loop {
            tokio::time::sleep(LOOK).await;
            looks += 1;
            let depth = if looks.is_multiple_of(LOOKS_PER_ROUND) { Depth::Sizes } else { Depth::Loads };
            let tablets = self.hosted.tablets();
            let Some(looked) = self.look(&tablets, depth).await else { continue };
            self.flush(&tablets, looked.iter().map(|one| one.load).collect());
            if depth == Depth::Sizes {
                self.purge(&tablets, &looked);
                self.divide(&tablets, &looked);
                self.collector.look(tablets.iter().zip(looked.iter().map(|one| one.size_bytes)));
            }
        }
    }

    /// Asks all stores, on a thread that may block. Absent when the pool is busy: the next look will do.
    async fn look(&self, tablets: &[Arc<Tablet>], depth: Depth) -> Option<Vec<Looked>> {
        let tablets = tablets.to_vec();
        let look = move || tablets.iter().map(|tablet| look_at(tablet, depth)).collect();
        self.hosted.maintenance().run(look).await.ok()
    }

    fn flush(&mut self, tablets: &[Arc<Tablet>], loads: Vec<TabletLoad>) {
        let memtable_bytes = self.hosted.shared().usage().memtable_bytes as u64;
        let gate = match self.scheduler.pressure(memtable_bytes) {
            Pressure::None => Gate::Open,
            Pressure::Wait => Gate::Shut,
        };
        self.hosted.admission().set_gate(gate);
        let picture = Picture {
            memtable_bytes,
            idle: self.idle.look(self.runtime.clock.monotonic(), &loads),
            tablets: loads,
            log_bytes: self.hosted.log().bytes(),
            log_pins: self.pins(),
            ..Picture::default()
        };
        for id in self.scheduler.begin(picture) {
            match tablets.iter().find(|tablet| tablet.id() == id) {
                Some(tablet) => self.flush_one(Arc::clone(tablet)),
                None => self.scheduler.finished(id),
            }
        }
    }

    /// Who pins the oldest segment. Only when all of them are flushed is it released, and then the next ones show.
    fn pins(&self) -> Vec<LogPin> {
        let mut before = 0;
        let pins = self.hosted.log().oldest_pins().into_iter().map(|(group, bytes)| {
            before += bytes;
            LogPin { tablet: group.tablet, bytes: before }
        });
        pins.collect()
    }

    fn flush_one(&self, tablet: Arc<Tablet>) {
        let (scheduler, maintenance) = (Arc::clone(&self.scheduler), self.hosted.maintenance().clone());
        let is_log_long = self.is_log_long();
        self.runtime.tasks.spawn_until_stopped("flush", async move {
            let machine = Arc::clone(tablet.machine());
            let flushed = maintenance.run(move || machine.flush().and_then(|()| machine.persisted_id())).await;
            match flushed {
                Ok(Ok(Some(persisted))) if is_log_long => tablet.group().purge(persisted.index).await,
                Ok(Ok(_)) => {}
                // The engine refuses all writes from here on; apply will meet the same and stop the replica.
                Ok(Err(error)) => error!(tablet = %tablet.id(), %error, "flush failed"),
                Err(error) => warn!(tablet = %tablet.id(), %error, "flush put off"),
            }
            scheduler.finished(tablet.id());
        });
    }

    /// Lets the log forget what the engine has flushed by itself.
    fn purge(&mut self, tablets: &[Arc<Tablet>], looked: &[Looked]) {
        if !self.is_log_long() {
            return;
        }
        for (tablet, one) in tablets.iter().zip(looked) {
            let last = self.purged.entry(tablet.id()).or_default();
            if one.persisted < last.saturating_add(PURGE_ENTRIES) {
                continue;
            }
            *last = one.persisted;
            let (group, upto) = (Arc::clone(tablet.group()), one.persisted);
            self.runtime.tasks.spawn_until_stopped("purge", async move { group.purge(upto).await });
        }
        self.purged.retain(|id, _| tablets.iter().any(|tablet| tablet.id() == *id));
    }

    fn is_log_long(&self) -> bool {
        self.hosted.log().bytes() > self.log_kept_bytes
    }

    fn divide(&mut self, tablets: &[Arc<Tablet>], looked: &[Looked]) {
        if self.hosted.is_leaving() {
            return;
        }
        let now = self.runtime.clock.monotonic();
        self.tried.retain(|_, at| now.saturating_sub(*at) < SPLIT_AGAIN);
        for (tablet, one) in tablets.iter().zip(looked) {
            debug!(tablet = %tablet.id(), size_bytes = one.size_bytes, persisted = one.persisted, "looked at");
            let is_due = one.size_bytes > self.split_bytes && tablet.id() != TabletId::ROOT && tablet.leads();
            if !is_due || self.tried.contains_key(&tablet.id()) {
                continue;
            }
            self.tried.insert(tablet.id(), now);
            let tablet = Arc::clone(tablet);
            self.runtime.tasks.spawn_until_stopped("divide", async move {
                match tablet.split(None, SPLIT).await {
                    Ok((left, right)) => info!(tablet = %left.tablet, child = %right.tablet, "divided by size"),
                    Err(failure) => warn!(tablet = %tablet.id(), error = %failure.error, "not divided"),
                }
            });
        }
    }
}

fn look_at(tablet: &Tablet, depth: Depth) -> Looked {
    let machine = tablet.machine();
    let store = machine.store();
    let load = TabletLoad {
        tablet: tablet.id(),
        unflushed_bytes: store.unflushed_bytes().unwrap_or_default(),
        range_tombstones: store.unflushed_range_tombstones(),
    };
    if depth == Depth::Loads {
        return Looked { load, size_bytes: 0, persisted: 0 };
    }
    let persisted = machine.persisted_id().ok().flatten().map_or(0, |id| id.index);
    Looked { load, size_bytes: machine.size_bytes(), persisted }
}
