//! The metrics of a mounttable: how names are looked up, what that costs the storage, and whether the storage can be read.

use ebla_mounttable_tree::store::caching::CacheHandle;
use ebla_runtime::metrics::{Family, Sample, Source};
use futures::future::BoxFuture;

use crate::health::{Health, HealthView};

static HEALTHY: Family = Family::gauge(
    "ebla_mounttable_healthy",
    &[],
    "Whether the mounttable can read its table; one that cannot still answers what it has cached",
);
static LOOKUPS: Family = Family::counter(
    "ebla_mounttable_lookups_total",
    &["result"],
    "Lookups of nodes: hit (in the cache), miss (read from the storage), joined (another caller was reading it), stale (the storage \
     could not be read, and an old entry was used)",
);
static STORAGE: Family = Family::counter(
    "ebla_mounttable_storage_requests_total",
    &["kind"],
    "Requests to the storage: reads of nodes, changes of nodes (mounts, renewals, unmounts, expiries), counters (quotas, heartbeats)",
);

/// All metrics of a mounttable.
pub static FAMILIES: &[&Family] = &[&HEALTHY, &LOOKUPS, &STORAGE];

/// The samples of a mounttable.
pub(crate) struct MounttableSource {
    pub(crate) cache: CacheHandle,
    pub(crate) health: HealthView,
}

impl Source for MounttableSource {
    fn samples(&self) -> BoxFuture<'_, Vec<Sample>> {
        Box::pin(async {
            let (lookups, requests) = (self.cache.counts(), self.cache.requests());
            let found =
                [("hit", lookups.hits), ("miss", lookups.misses), ("joined", lookups.joined), ("stale", lookups.stale)];
            let sent = [("reads", requests.reads), ("changes", requests.changes), ("counters", requests.counters)];
            let mut samples = vec![HEALTHY.sample([], self.health.now() == Health::Serving)];
            samples.extend(found.map(|(result, count)| LOOKUPS.sample([result.into()], count)));
            samples.extend(sent.map(|(kind, count)| STORAGE.sample([kind.into()], count)));
            samples
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_well_formed() {
        assert_eq!(ebla_runtime::metrics::table_faults(FAMILIES), Vec::<String>::new());
    }
}
