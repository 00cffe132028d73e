//! Audit: a record of every admin call and of every refusal, and of data calls if the configuration says so.
//!
//! A record is one line of JSON: time, identity, peer, method, resource, families, decision, id of the request. It contains no keys, no
//! values and no part of a token. Records wait in a bounded queue for the task that writes them. When the queue is full, records are
//! dropped and counted, and the next record that is written says how many: a call never waits for the log. Callers without an identity can send
//! as many calls as they like, so their refusals fill at most half of the queue: the other half is for what callers with an identity do.
//!
//! The file is replaced when it has reached its size, if the configuration says so (`audit_file.rs`).
//!
//! Without a file the records go to the process's own log, with the target `ebla::audit`.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ebla_model::{Error, Reason};
use ebla_runtime::{Blocking, Clock, Runtime};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::KnownCaller;
use super::audit_file::{AuditFile, AuditRotation};

/// Records that wait to be written.
const QUEUE_MAX: usize = 8_192;
/// The part of the queue that stays free of records of callers without an identity.
const IDENTIFIED_ONLY: usize = QUEUE_MAX / 2;
/// The longest text of a record, in bytes; longer ones are cut.
const TEXT_BYTES_MAX: usize = 512;
/// The most families of a record.
const FAMILIES_MAX: usize = 32;
/// Records that are written together.
const BATCH_MAX: usize = 256;

/// Which data calls are recorded; refused ones always are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AuditedData {
    /// Refused calls only.
    #[default]
    Refusals,
    /// All calls.
    All,
}

/// Where records go, and which.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AuditOptions {
    /// The file to which lines are appended; `None`: the process's own log.
    pub file: Option<PathBuf>,
    /// When the file is replaced; `None`: it grows without a limit.
    pub rotation: Option<AuditRotation>,
    /// Which data calls are recorded.
    pub data: AuditedData,
}

/// What was decided about a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Decision {
    /// It is permitted; whether it succeeds is another matter.
    Permitted,
    /// It is refused for this reason.
    Refused(Reason),
}

impl Decision {
    pub(super) fn of<T>(decided: &Result<T, Error>) -> Self {
        decided.as_ref().err().map_or(Self::Permitted, |error| Self::Refused(error.reason))
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Permitted => "permitted",
            Self::Refused(reason) => reason.name(),
        }
    }
}

/// The log. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct AuditLog {
    clock: Clock,
    data: AuditedData,
    queue: mpsc::Sender<Value>,
    /// Records that were dropped since the last one that was written.
    dropped: Arc<AtomicU64>,
}

impl AuditLog {
    /// Starts the task that writes the records, until `runtime` stops.
    ///
    /// # Errors
    /// `InvalidArgument` when the file cannot be opened.
    pub(super) fn start(options: AuditOptions, runtime: &Runtime) -> Result<Self, Error> {
        let destination = match options.file {
            None => Destination::Log,
            Some(path) => {
                let file = AuditFile::open(path, options.rotation)?;
                let thread = Blocking::pool("audit", 1, 1);
                let thread = thread.map_err(|error| Error::internal(format!("start a thread: {error}")))?;
                Destination::File(Arc::new(Mutex::new(file)), thread)
            }
        };
        let (log, records) = Self::with_queue(options.data, runtime.clock.clone());
        let dropped = Arc::clone(&log.dropped);
        runtime.tasks.spawn("audit", write(records, destination, dropped, runtime.tasks.token()));
        Ok(log)
    }

    fn with_queue(data: AuditedData, clock: Clock) -> (Self, mpsc::Receiver<Value>) {
        let (queue, records) = mpsc::channel(QUEUE_MAX);
        (Self { clock, data, queue, dropped: Arc::default() }, records)
    }

    /// Records a call of the admin API.
    pub(super) fn record_admin(&self, caller: &KnownCaller, method: &str, resource: &str, decision: Decision) {
        self.record(Some(caller), (&caller.peer, &caller.request), method, resource, &[], decision);
    }

    /// Records a call of the data API, if it is refused or such calls are recorded.
    pub(super) fn record_data(
        &self,
        caller: &KnownCaller,
        method: &str,
        resource: &str,
        families: &[String],
        decision: Decision,
    ) {
        if self.data == AuditedData::All || decision != Decision::Permitted {
            self.record(Some(caller), (&caller.peer, &caller.request), method, resource, families, decision);
        }
    }

    /// Records a call without a valid identity.
    pub(super) fn record_unauthenticated(&self, peer: &str, request: &str, method: &str, decision: Decision) {
        if self.queue.capacity() <= IDENTIFIED_ONLY {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.record(None, (peer, request), method, "", &[], decision);
    }

    /// Records a call that a limit of its caller refuses, while half of the queue is empty: a caller beyond its limits, which costs nothing to
    /// send, must not displace other records.
    pub(super) fn record_exceeded(&self, caller: &KnownCaller, method: &str, decision: Decision) {
        if self.queue.capacity() <= QUEUE_MAX / 2 {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.record(Some(caller), (&caller.peer, &caller.request), method, "", &[], decision);
    }

    fn record(
        &self,
        caller: Option<&KnownCaller>,
        (peer, request): (&str, &str),
        method: &str,
        resource: &str,
        families: &[String],
        decision: Decision,
    ) {
        let record = json!({
            "time_micros": self.clock.wall().get(),
            "identity": caller.map(|caller| caller.identity.name().to_string()),
            "peer": peer,
            "method": shortened(method),
            "resource": shortened(resource),
            "families": families.iter().take(FAMILIES_MAX).map(|family| shortened(family)).collect::<Vec<_>>(),
            "decision": decision.name(),
            "request": request,
        });
        if self.queue.try_send(record).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The beginning of a text that a caller has sent: records wait in memory.
fn shortened(text: &str) -> &str {
    text.get(..text.floor_char_boundary(TEXT_BYTES_MAX)).unwrap_or_default()
}

/// Where records are written.
enum Destination {
    /// The process's own log.
    Log,
    /// A file, and the thread that waits for its disk, which alone locks it.
    File(Arc<Mutex<AuditFile>>, Blocking),
}

impl Destination {
    /// Writes lines, each with its end.
    async fn write(&self, lines: String) -> std::io::Result<()> {
        match self {
            Self::Log => {
                lines.lines().for_each(|line| info!(target: "ebla::audit", "{line}"));
                Ok(())
            }
            Self::File(file, thread) => {
                let file = Arc::clone(file);
                let written = thread.run(move || file.lock().write(lines.as_bytes())).await;
                written.map_err(std::io::Error::other)?
            }
        }
    }
}

/// Writes records as they come, until `stopped`; then those that are there.
async fn write(
    mut records: mpsc::Receiver<Value>,
    destination: Destination,
    dropped: Arc<AtomicU64>,
    stopped: CancellationToken,
) {
    let mut is_failing = false;
    let mut batch = Vec::new();
    loop {
        let received = tokio::select! {
            biased;
            received = records.recv_many(&mut batch, BATCH_MAX) => received,
            () = stopped.cancelled() => 0,
        };
        if received == 0 {
            return;
        }
        if let Some(first) = batch.first_mut() {
            add_dropped(first, &dropped);
        }
        let lines: String = batch.drain(..).map(|record| format!("{record}\n")).collect();
        let written = destination.write(lines).await;
        if let Err(error) = &written {
            dropped.fetch_add(received as u64, Ordering::Relaxed);
            if !is_failing {
                warn!(%error, "cannot write the audit log; records are dropped and counted");
            }
        }
        is_failing = written.is_err();
    }
}

/// Adds the number of dropped records to a record, if there are some.
fn add_dropped(record: &mut Value, dropped: &AtomicU64) {
    let dropped = dropped.swap(0, Ordering::Relaxed);
    if let (true, Some(record)) = (dropped > 0, record.as_object_mut()) {
        record.insert("dropped_before".to_owned(), dropped.into());
    }
}

#[cfg(test)]
mod tests {
    use ebla_model::access::{Identity, Member};

    use super::*;

    fn caller() -> KnownCaller {
        let identity = Identity::new(Member::TokenSubject("alice".to_owned()), []).into();
        KnownCaller { identity, expiry: None, peer: "10.0.0.1:9".to_owned(), request: "r-7".to_owned() }
    }

    #[test]
    fn a_record_says_who_did_what() {
        let (log, mut records) = AuditLog::with_queue(AuditedData::Refusals, Clock::manual());
        let families = ["f".to_owned()];
        log.record_data(&caller(), "MutateRow", "projects/p", &families, Decision::Permitted);
        assert!(records.try_recv().is_err(), "a data call that is permitted");
        log.record_data(&caller(), "MutateRow", "projects/p", &families, Decision::Refused(Reason::PermissionDenied));
        let record = records.try_recv().unwrap();
        assert_eq!(
            record,
            json!({
                "time_micros": log.clock.wall().get(), "identity": "subject:alice", "peer": "10.0.0.1:9",
                "method": "MutateRow", "resource": "projects/p", "families": ["f"], "decision": "PERMISSION_DENIED",
                "request": "r-7",
            })
        );
        log.record_admin(&caller(), "GetTable", "projects/p", Decision::Permitted);
        log.record_unauthenticated("10.0.0.1:9", "", "/ReadRows", Decision::Refused(Reason::Unauthenticated));
        assert_eq!(records.try_recv().unwrap()["decision"], "permitted");
        assert_eq!(records.try_recv().unwrap()["identity"], Value::Null);
    }

    #[test]
    fn refusals_by_a_limit_fill_half_of_the_queue() {
        let (log, mut records) = AuditLog::with_queue(AuditedData::Refusals, Clock::manual());
        for _ in 0..QUEUE_MAX {
            log.record_exceeded(&caller(), "/ReadRows", Decision::Refused(Reason::ResourceExhausted));
        }
        log.record_admin(&caller(), "GetTable", "projects/p", Decision::Permitted);
        let mut count = 0;
        let mut last = Value::Null;
        while let Ok(record) = records.try_recv() {
            count += 1;
            last = record;
        }
        assert_eq!((count, last["method"].as_str()), (QUEUE_MAX / 2 + 1, Some("GetTable")));
    }

    #[test]
    fn a_full_queue_drops_records_and_counts_them() {
        let (log, mut records) = AuditLog::with_queue(AuditedData::All, Clock::manual());
        for _ in 0..QUEUE_MAX + 5 {
            log.record_data(&caller(), "ReadRows", "projects/p", &[], Decision::Permitted);
        }
        let mut first = records.try_recv().unwrap();
        add_dropped(&mut first, &log.dropped);
        assert_eq!(first["dropped_before"], 5);
        let mut second = records.try_recv().unwrap();
        add_dropped(&mut second, &log.dropped);
        assert_eq!(second.get("dropped_before"), None);
    }
    #[test]
    fn calls_without_an_identity_leave_half_of_the_queue_to_others() {
        let (log, mut records) = AuditLog::with_queue(AuditedData::Refusals, Clock::manual());
        let refused = Decision::Refused(Reason::Unauthenticated);
        for _ in 0..QUEUE_MAX {
            log.record_unauthenticated("10.0.0.1:9", "", "/ReadRows", refused);
        }
        assert_eq!(log.dropped.load(Ordering::Relaxed), (QUEUE_MAX / 2) as u64);
        log.record_admin(&caller(), "DeleteTable", "projects/p", Decision::Permitted);
        let mut received = Vec::new();
        while let Ok(record) = records.try_recv() {
            received.push(record);
        }
        assert_eq!(received.len(), QUEUE_MAX / 2 + 1);
        assert_eq!(received.last().unwrap()["method"], "DeleteTable");
    }
}
