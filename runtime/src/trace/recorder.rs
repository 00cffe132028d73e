//! The recorder of a server: which operations are kept, and for how long.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ebla_model::id::ServerId;
use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::budget::RateBudget;
use super::context::{Sampling, SpanId, TraceContext, TraceId};
use super::operation::{Operation, Origin, Outcome};
use super::outliers::Outliers;
use super::record::{Kept, Record};
use crate::Clock;
use crate::metrics::Counter;

/// The slow operations that are kept.
pub const SLOW_MAX: usize = 1_000;
/// The failed operations that are kept. They have a ring of their own: many failures leave the slow operations where they are.
pub const FAILED_MAX: usize = 1_000;
/// The sampled operations that are kept.
pub const SAMPLED_MAX: usize = 250;
/// The operations that are kept because they were slower than the 99th percentile. In a ring of their own too.
pub const OUTLIERS_MAX: usize = 250;
/// The memory of each ring, in bytes.
pub const RING_BYTES_MAX: usize = 2 << 20;
/// The traces per second that one server samples because clients ask for it. Beyond that the server decides as for other calls.
pub const SAMPLED_BY_CLIENTS_PER_SECOND: u32 = 100;

/// The records per second of failed operations that were not slow. More are only counted: a client whose calls all fail costs no more than one whose
/// calls succeed.
pub const FAILED_PER_SECOND: u32 = 100;
/// The records per second of operations that are kept because they were slower than the 99th percentile. More are only counted.
pub const OUTLIERS_PER_SECOND: u32 = 5;

/// The default of [`TraceOptions::slow`].
const SLOW: Duration = Duration::from_millis(100);

/// The fraction of traces that are sampled, from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampleRate(f64);

impl SampleRate {
    /// One trace of a thousand.
    pub const DEFAULT: Self = Self(0.001);
    /// No trace.
    pub const NEVER: Self = Self(0.0);
    /// Every trace.
    pub const ALWAYS: Self = Self(1.0);

    /// Whether a trace with this id is sampled: all servers decide alike.
    fn includes(self, trace: TraceId) -> bool {
        /// The numbers of 52 bits, which a float represents exactly.
        const BITS: u32 = 52;
        let low = u64::try_from(trace.get() & ((1 << BITS) - 1)).unwrap_or(u64::MAX);
        let position = low as f64 / (1u64 << BITS) as f64;
        position < self.0
    }
}

impl FromStr for SampleRate {
    type Err = InvalidSampleRate;

    fn from_str(text: &str) -> Result<Self, InvalidSampleRate> {
        match text.parse::<f64>() {
            Ok(rate) if (0.0..=1.0).contains(&rate) => Ok(Self(rate)),
            _ => Err(InvalidSampleRate(text.to_owned())),
        }
    }
}

impl fmt::Display for SampleRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A text that is no fraction.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is not a fraction of traces: give a number from 0 (none) to 1 (all), such as 0.001")]
pub struct InvalidSampleRate(String);

/// What a recorder keeps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TraceOptions {
    /// An operation that takes at least this long is slow; the time in which a client does not read its response does not count.
    pub slow: Duration,
    /// The fraction of traces that are sampled, of calls whose client does not decide.
    pub sample: SampleRate,
    /// Whether an operation counts as slow also when it is slower than 99 of 100 recent ones of its method.
    pub percentile: SlowPercentile,
}

/// Whether operations are compared with recent ones of their method.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SlowPercentile {
    /// Only [`TraceOptions::slow`] decides.
    #[default]
    Off,
    /// An operation above the recent 99th percentile of its method counts as slow, up to [`OUTLIERS_PER_SECOND`].
    P99,
}

impl Default for TraceOptions {
    /// Slow from 100 ms on; one trace of a thousand; no comparison with other operations.
    fn default() -> Self {
        Self { slow: SLOW, sample: SampleRate::DEFAULT, percentile: SlowPercentile::Off }
    }
}

/// How many records were made, for metrics.
#[derive(Clone, Debug, Default)]
pub struct TraceCounts {
    /// Kept because they were slow.
    pub slow: Counter,
    /// Kept because they failed.
    pub failed: Counter,
    /// Kept because their traces are sampled.
    pub sampled: Counter,
    /// Kept because they were slower than the 99th percentile.
    pub outliers: Counter,
    /// Failed, and not kept: more than [`FAILED_PER_SECOND`].
    pub failed_skipped: Counter,
    /// Slower than the 99th percentile, and not kept: more than [`OUTLIERS_PER_SECOND`].
    pub outliers_skipped: Counter,
    /// Sent to a collector.
    pub exported: Counter,
    /// Not sent: the queue was full, or the collector did not take them.
    pub dropped: Counter,
}

/// The records that wait for their export.
pub type RecordQueue = mpsc::Receiver<Arc<Record>>;

/// The last records, in bounded memory.
#[derive(Debug)]
struct Ring {
    records: VecDeque<Arc<Record>>,
    bytes: usize,
    records_max: usize,
}

impl Ring {
    const fn new(records_max: usize) -> Self {
        Self { records: VecDeque::new(), bytes: 0, records_max }
    }

    /// Adds a record, and removes the oldest ones that do not fit any more.
    fn push(&mut self, record: Arc<Record>) {
        self.bytes += record.size_bytes();
        self.records.push_back(record);
        while self.records.len() > self.records_max || self.bytes > RING_BYTES_MAX {
            let Some(oldest) = self.records.pop_front() else { return };
            self.bytes = self.bytes.saturating_sub(oldest.size_bytes());
        }
    }
}

#[derive(Debug)]
struct Rings {
    sequence: u64,
    slow: Ring,
    failed: Ring,
    sampled: Ring,
    outliers: Ring,
}

/// See the module. One for each server; the operations of the server hold it.
pub struct Recorder {
    server: ServerId,
    options: TraceOptions,
    clock: Clock,
    /// The source of ids: they differ between servers and between starts, and are not secret.
    seed: u64,
    drawn: AtomicU64,
    /// For traces that are sampled because clients ask for it. Each budget is locked for a few instructions.
    client_budget: Mutex<RateBudget>,
    failed_budget: Mutex<RateBudget>,
    outlier_budget: Mutex<RateBudget>,
    /// With [`SlowPercentile::P99`].
    outliers: Option<Box<Outliers>>,
    /// Locked to add a record or to copy references to all.
    rings: Mutex<Rings>,
    counts: TraceCounts,
    export: OnceLock<mpsc::Sender<Arc<Record>>>,
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").field("server", &self.server).field("options", &self.options).finish_non_exhaustive()
    }
}

impl Recorder {
    /// A recorder of this server without records.
    #[must_use]
    pub fn new(server: ServerId, options: TraceOptions, clock: Clock) -> Arc<Self> {
        let started = u64::try_from(clock.wall().get()).unwrap_or_default();
        let rings = Rings {
            sequence: 0,
            slow: Ring::new(SLOW_MAX),
            failed: Ring::new(FAILED_MAX),
            sampled: Ring::new(SAMPLED_MAX),
            outliers: Ring::new(OUTLIERS_MAX),
        };
        let now = clock.monotonic();
        let budget = |per_second| Mutex::new(RateBudget::new(per_second, now));
        Arc::new(Self {
            server,
            options,
            // Not from the runtime's random numbers: a simulation would draw others for everything else.
            seed: mixed(started ^ mixed(server.get())),
            clock,
            drawn: AtomicU64::new(0),
            client_budget: budget(SAMPLED_BY_CLIENTS_PER_SECOND),
            failed_budget: budget(FAILED_PER_SECOND),
            outlier_budget: budget(OUTLIERS_PER_SECOND),
            outliers: (options.percentile == SlowPercentile::P99).then(|| Box::new(Outliers::new(now))),
            rings: Mutex::new(rings),
            counts: TraceCounts::default(),
            export: OnceLock::new(),
        })
    }

    /// An operation that begins now. `received`: what its caller says about the trace; without it a new trace begins.
    pub fn begin(
        self: &Arc<Self>,
        method: impl Into<Cow<'static, str>>,
        origin: Origin,
        received: Option<TraceContext>,
    ) -> Arc<Operation> {
        let span = self.span();
        let (context, asked) = match (received, origin) {
            // Another server has decided.
            (Some(received), Origin::Server) => (TraceContext { span, ..received }, Sampling::NotSampled),
            (Some(received), Origin::Data | Origin::Admin) => {
                let sampling = match received.sampling {
                    Sampling::NotSampled => Sampling::NotSampled,
                    // By an id of this server: the client chooses the id of its trace.
                    Sampling::Sampled => self.head_sampling(self.trace()),
                };
                (TraceContext { span, sampling, ..received }, received.sampling)
            }
            (None, _) | (_, Origin::Master) => {
                let trace = self.trace();
                (TraceContext { trace, span, sampling: self.head_sampling(trace) }, Sampling::NotSampled)
            }
        };
        let ids = (context, received.map(|received| received.span));
        Operation::new(Arc::clone(self), method.into(), origin, ids, asked)
    }

    /// Whether one more trace may be sampled now because a client asks for it.
    pub(super) fn takes_sampled(&self) -> bool {
        self.client_budget.lock().take(self.clock.monotonic())
    }

    fn head_sampling(&self, trace: TraceId) -> Sampling {
        if self.options.sample.includes(trace) { Sampling::Sampled } else { Sampling::NotSampled }
    }

    fn draw(&self) -> u64 {
        mixed(self.seed.wrapping_add(self.drawn.fetch_add(1, Ordering::Relaxed).wrapping_mul(GOLDEN)))
    }

    fn span(&self) -> SpanId {
        loop {
            if let Some(span) = SpanId::new(self.draw()) {
                return span;
            }
        }
    }

    fn trace(&self) -> TraceId {
        loop {
            let number = (u128::from(self.draw()) << 64) | u128::from(self.draw());
            if let Some(trace) = TraceId::new(number) {
                return trace;
            }
        }
    }

    /// Why an operation is kept that has ended now; `None`: it is not.
    pub(super) fn judge(&self, ended: &Ended<'_>) -> Option<Kept> {
        let is_outlier = self.outliers.as_ref().is_some_and(|all| all.count(ended.method, ended.took, ended.now));
        if ended.took >= self.options.slow {
            return Some(Kept::Slow);
        }
        if is_outlier && take(&self.outlier_budget, ended.now, &self.counts.outliers_skipped) {
            return Some(Kept::Outlier);
        }
        // Between servers, errors are a part of finding the leader; what a client sees is recorded at its front.
        let is_failure = ended.outcome != Outcome::OK && ended.origin != Origin::Server;
        if is_failure && take(&self.failed_budget, ended.now, &self.counts.failed_skipped) {
            return Some(Kept::Failed);
        }
        (ended.sampling == Sampling::Sampled).then_some(Kept::Sampled)
    }

    /// Whether an operation that takes this time may be kept as slow.
    pub(super) fn may_be_slow(&self, took: Duration) -> bool {
        took >= self.options.slow || self.outliers.is_some()
    }

    /// Keeps a record.
    pub(super) fn keep(&self, record: Record) {
        let kept = record.kept;
        let is_exported = kept != Kept::Failed || record.sampling == Sampling::Sampled;
        let mut rings = self.rings.lock();
        rings.sequence += 1;
        let record = Arc::new(Record { sequence: rings.sequence, ..record });
        let (ring, count) = match kept {
            Kept::Slow => (&mut rings.slow, &self.counts.slow),
            Kept::Failed => (&mut rings.failed, &self.counts.failed),
            Kept::Sampled => (&mut rings.sampled, &self.counts.sampled),
            Kept::Outlier => (&mut rings.outliers, &self.counts.outliers),
        };
        count.increment();
        ring.push(Arc::clone(&record));
        drop(rings);
        if let (true, Some(queue)) = (is_exported, self.export.get())
            && queue.try_send(record).is_err()
        {
            self.counts.dropped.increment();
        }
    }

    /// The queue of the records to export, at most `records_max` of them. Only the first call has a queue.
    pub fn export_queue(&self, records_max: usize) -> Option<RecordQueue> {
        let (sender, receiver) = mpsc::channel(records_max);
        self.export.set(sender).is_ok().then_some(receiver)
    }

    /// All records that are kept, the oldest first.
    #[must_use]
    pub fn records(&self) -> Vec<Arc<Record>> {
        let rings = self.rings.lock();
        let all = [&rings.slow, &rings.outliers, &rings.failed, &rings.sampled];
        let mut records: Vec<_> = all.iter().flat_map(|ring| ring.records.iter().cloned()).collect();
        drop(rings);
        records.sort_by_key(|record| record.sequence);
        records
    }

    /// What was counted.
    #[must_use]
    pub const fn counts(&self) -> &TraceCounts {
        &self.counts
    }

    /// The server whose operations it records.
    #[must_use]
    pub const fn server(&self) -> ServerId {
        self.server
    }

    pub(super) const fn clock(&self) -> &Clock {
        &self.clock
    }
}

/// What decides whether an operation that has ended is kept.
#[derive(Debug)]
pub(super) struct Ended<'a> {
    pub(super) method: &'a str,
    /// How long it took, without the time in which its client did not read.
    pub(super) took: Duration,
    pub(super) outcome: Outcome,
    pub(super) origin: Origin,
    pub(super) sampling: Sampling,
    /// The time now, on the monotonic clock.
    pub(super) now: Duration,
}

/// Takes one from a budget; counts it as skipped if there is none.
fn take(budget: &Mutex<RateBudget>, now: Duration, skipped: &Counter) -> bool {
    let is_taken = budget.lock().take(now);
    if !is_taken {
        skipped.increment();
    }
    is_taken
}

/// An odd number whose multiples are spread evenly over all numbers: 2^64 divided by the golden ratio.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// A permutation of the numbers in which each bit of the result depends on all bits of the argument (the finalizer of SplitMix64).
const fn mixed(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn recorder(sample: SampleRate) -> (Clock, Arc<Recorder>) {
        let clock = Clock::manual();
        let options = TraceOptions { sample, ..TraceOptions::default() };
        (clock.clone(), Recorder::new(ServerId::new(7), options, clock))
    }

    fn run(clock: &Clock, recorder: &Arc<Recorder>, millis: u64, outcome: Outcome) {
        let operation = recorder.begin("MutateRow", Origin::Data, None);
        clock.advance(Duration::from_millis(millis));
        operation.end(outcome);
        operation.end(Outcome::UNKNOWN);
    }

    #[test]
    fn slow_failed_and_sampled_operations_are_kept() {
        let (clock, recorder) = recorder(SampleRate::NEVER);
        run(&clock, &recorder, 99, Outcome::OK);
        run(&clock, &recorder, 100, Outcome::OK);
        run(&clock, &recorder, 1, Outcome::of_code(14));
        run(&clock, &recorder, 200, Outcome::of_code(4));
        recorder.begin("Write", Origin::Server, None).end(Outcome::of_code(9));
        let kept: Vec<_> = recorder.records().iter().map(|record| (record.kept, record.outcome.code())).collect();
        assert_eq!(kept, [(Kept::Slow, 0), (Kept::Failed, 14), (Kept::Slow, 4)]);
        let (clock, recorder) = self::recorder(SampleRate::ALWAYS);
        run(&clock, &recorder, 1, Outcome::OK);
        assert_eq!(recorder.records().first().map(|record| record.kept), Some(Kept::Sampled));
        assert_eq!((recorder.counts().sampled.get(), recorder.counts().slow.get()), (1, 0));
    }

    #[test]
    fn rings_are_bounded_and_failures_do_not_displace_slow_operations() {
        let (clock, recorder) = recorder(SampleRate::NEVER);
        run(&clock, &recorder, 500, Outcome::OK);
        for _ in 0..3 * FAILED_MAX {
            run(&clock, &recorder, 20, Outcome::UNKNOWN);
        }
        let records = recorder.records();
        assert_eq!(records.len(), FAILED_MAX + 1);
        assert_eq!((records[0].kept, records[0].sequence), (Kept::Slow, 1));
        assert_eq!(records[1].sequence, u64::try_from(2 * FAILED_MAX + 2).unwrap(), "the oldest ones are gone");
        for _ in 0..2 * SLOW_MAX {
            let operation = recorder.begin("x".repeat(64 << 10), Origin::Admin, None);
            clock.advance(Duration::from_secs(1));
            operation.end(Outcome::OK);
        }
        let bytes: usize = recorder.rings.lock().slow.records.iter().map(|record| record.size_bytes()).sum();
        assert!(bytes <= RING_BYTES_MAX && bytes > RING_BYTES_MAX / 2, "{bytes}");
        assert_eq!(recorder.rings.lock().slow.bytes, bytes);
    }

    #[test]
    fn of_many_failures_some_are_recorded_and_the_others_counted() {
        let (clock, recorder) = recorder(SampleRate::NEVER);
        (0..1_000).for_each(|_call| run(&clock, &recorder, 0, Outcome::UNKNOWN));
        let counts = |recorder: &Recorder| (recorder.counts().failed.get(), recorder.counts().failed_skipped.get());
        assert_eq!(counts(&recorder), (100, 900));
        assert_eq!(recorder.records().len(), 100);
        clock.advance(Duration::from_secs(1));
        run(&clock, &recorder, 0, Outcome::UNKNOWN);
        assert_eq!(counts(&recorder), (101, 900));
        run(&clock, &recorder, 100, Outcome::UNKNOWN);
        assert_eq!(recorder.counts().slow.get(), 1, "slow ones are not bounded");
        let (clock, recorder) = self::recorder(SampleRate::ALWAYS);
        (0..150).for_each(|_call| run(&clock, &recorder, 0, Outcome::UNKNOWN));
        assert_eq!(recorder.counts().sampled.get(), 50, "a sampled one is recorded as such");
    }

    #[test]
    fn operations_above_the_percentile_are_kept_up_to_a_rate() {
        let clock = Clock::manual();
        let options =
            TraceOptions { sample: SampleRate::NEVER, percentile: SlowPercentile::P99, ..TraceOptions::default() };
        let recorder = Recorder::new(ServerId::new(7), options, clock.clone());
        (0..20_000).for_each(|_call| run(&clock, &recorder, 1, Outcome::OK));
        assert!(recorder.records().is_empty());
        (0..20).for_each(|_call| run(&clock, &recorder, 40, Outcome::OK));
        run(&clock, &recorder, 400, Outcome::OK);
        let counts = recorder.counts();
        assert_eq!(counts.outliers.get() + counts.outliers_skipped.get(), 20);
        // A full budget, and what it grows in 0.8 s.
        assert!((5..=9).contains(&counts.outliers.get()), "{}", counts.outliers.get());
        assert_eq!(counts.slow.get(), 1);
        assert!(recorder.records().iter().all(|record| matches!(record.kept, Kept::Outlier | Kept::Slow)));
    }

    #[test]
    fn the_flag_of_a_client_is_respected_up_to_a_rate() {
        let (clock, recorder) = recorder(SampleRate::NEVER);
        let asked =
            |sampling| TraceContext { trace: TraceId::new(1).unwrap(), span: SpanId::new(2).unwrap(), sampling };
        let sampled = |sampling| {
            let begin = |_number| recorder.begin("ReadRows", Origin::Data, Some(asked(sampling)));
            let all: Vec<_> = (0..500).map(begin).collect();
            assert!(all.iter().all(|one| one.context().sampling == Sampling::NotSampled), "not authenticated yet");
            all.iter().for_each(|one| one.accept_sampling());
            assert!(all.iter().all(|one| one.trace().get() == 1));
            all.iter().filter(|one| one.context().sampling == Sampling::Sampled).count()
        };
        assert_eq!(sampled(Sampling::NotSampled), 0);
        assert_eq!(sampled(Sampling::Sampled), 100);
        clock.advance(Duration::from_millis(500));
        assert_eq!(sampled(Sampling::Sampled), 50);
        let from_server = recorder.begin("Write", Origin::Server, Some(asked(Sampling::Sampled)));
        assert_eq!(from_server.context().sampling, Sampling::Sampled, "another server has decided");
    }

    #[test]
    fn beyond_the_rate_the_id_that_a_client_chooses_does_not_decide() {
        let (_clock, recorder) = recorder("0.25".parse().unwrap());
        // Its low bits are 0: by this id the trace would always be sampled.
        let trace = TraceId::new(1 << 64).unwrap();
        let asked = TraceContext { trace, span: SpanId::new(2).unwrap(), sampling: Sampling::Sampled };
        let begun: Vec<_> = (0..1_000).map(|_| recorder.begin("ReadRows", Origin::Data, Some(asked))).collect();
        let sampled = begun.iter().filter(|one| one.context().sampling == Sampling::Sampled).count();
        assert!((150..350).contains(&sampled), "{sampled}");
    }

    #[test]
    fn failed_operations_are_exported_if_their_trace_is_sampled() {
        let (_clock, recorder) = recorder(SampleRate::NEVER);
        let mut queue = recorder.export_queue(10).unwrap();
        for sampling in [Sampling::Sampled, Sampling::NotSampled] {
            let asked = TraceContext { trace: TraceId::new(1).unwrap(), span: SpanId::new(2).unwrap(), sampling };
            let operation = recorder.begin("ReadRows", Origin::Data, Some(asked));
            operation.accept_sampling();
            operation.end(Outcome::of_code(14));
        }
        let exported = queue.try_recv().unwrap();
        assert_eq!((exported.kept, exported.sampling), (Kept::Failed, Sampling::Sampled));
        assert!(queue.try_recv().is_err());
        assert_eq!(recorder.records().len(), 2);
    }

    #[test]
    fn about_the_given_fraction_is_sampled_and_ids_differ() {
        let (_clock, recorder) = recorder("0.25".parse().unwrap());
        let begun: Vec<_> = (0..10_000).map(|_number| recorder.begin("ReadRows", Origin::Data, None)).collect();
        let sampled = begun.iter().filter(|one| one.context().sampling == Sampling::Sampled).count();
        assert!((2_200..2_800).contains(&sampled), "{sampled}");
        assert_eq!(begun.iter().map(|one| one.trace()).collect::<BTreeSet<_>>().len(), begun.len());
        assert_eq!(begun.iter().map(|one| one.context().span).collect::<BTreeSet<_>>().len(), begun.len());
    }

    #[test]
    fn rates_are_fractions() {
        for text in ["", "-0.1", "1.1", "NaN", "1%", "inf"] {
            assert!(text.parse::<SampleRate>().is_err(), "{text}");
        }
        assert_eq!("0.001".parse(), Ok(SampleRate::DEFAULT));
        assert_eq!(SampleRate::DEFAULT.to_string(), "0.001");
    }

    #[test]
    fn a_full_queue_drops_and_counts() {
        let (clock, recorder) = recorder(SampleRate::ALWAYS);
        let mut queue = recorder.export_queue(2).unwrap();
        assert!(recorder.export_queue(2).is_none());
        (0..5).for_each(|_number| run(&clock, &recorder, 1, Outcome::OK));
        assert_eq!(recorder.counts().dropped.get(), 3);
        assert!(queue.try_recv().is_ok() && queue.try_recv().is_ok() && queue.try_recv().is_err());
    }
}
