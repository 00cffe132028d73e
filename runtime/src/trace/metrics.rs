//! The metrics of a recorder.

use std::borrow::Cow;
use std::sync::Arc;

use futures::future::BoxFuture;

use super::record::Kept;
use super::recorder::Recorder;
use crate::metrics::{Family, Sample, Source};

static RECORDS: Family = Family::counter(
    "ebla_trace_records_total",
    &["server", "kept"],
    "Operations that were recorded, by the reason: slow (from --slow-ms on), outlier (--slow-p99), failed, sampled; `ebla slow` shows the last",
);
static SKIPPED: Family = Family::counter(
    "ebla_trace_records_skipped_total",
    &["server", "kept"],
    "Operations that were not recorded, because more of their sort ended in that second than a server records: failed (100), outlier (5)",
);
static EXPORTED: Family = Family::counter(
    "ebla_trace_exports_total",
    &["server", "result"],
    "Records for the collector (--otlp): sent, or dropped because the queue was full or the collector did not take them",
);

/// The metrics of traces.
pub static FAMILIES: &[&Family] = &[&RECORDS, &SKIPPED, &EXPORTED];

/// Reads the counts of a recorder.
#[derive(Debug)]
pub struct TraceSource(Arc<Recorder>);

impl TraceSource {
    /// The counts of this recorder.
    #[must_use]
    pub const fn new(recorder: Arc<Recorder>) -> Self {
        Self(recorder)
    }
}

impl Source for TraceSource {
    fn samples(&self) -> BoxFuture<'_, Vec<Sample>> {
        Box::pin(async {
            let server = || Cow::Owned(self.0.server().to_string());
            let counts = self.0.counts();
            let kept = [
                (Kept::Slow, &counts.slow),
                (Kept::Outlier, &counts.outliers),
                (Kept::Failed, &counts.failed),
                (Kept::Sampled, &counts.sampled),
            ];
            let skipped = [(Kept::Failed, &counts.failed_skipped), (Kept::Outlier, &counts.outliers_skipped)];
            let skipped = skipped.map(|(kept, count)| SKIPPED.sample([server(), kept.name().into()], count.get()));
            let records = kept.map(|(kept, count)| RECORDS.sample([server(), kept.name().into()], count.get()));
            let exports = [("sent", &counts.exported), ("dropped", &counts.dropped)];
            let exports = exports.map(|(result, count)| EXPORTED.sample([server(), result.into()], count.get()));
            records.into_iter().chain(skipped).chain(exports).collect()
        })
    }
}
