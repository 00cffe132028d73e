//! The memory budget for responses of reads: what is prepared but not sent.
//!
//! A client may open thousands of reads and read none of the responses. For each the server then holds the messages that HTTP/2 does not let it
//! send, and the rest of a batch of rows, which may be one row of 256 MiB. These bytes are counted, in total and for each connection:
//!
//! ```text
//!   a batch of rows    from its read until its last message is encoded        Memory, in tablet::read; in total only
//!   a message          from its encoding until the transport has written it   body::Chunk
//!   what is left of a batch, as the tablet's replies report it                Stream::hold; for the connection only
//! ```
//!
//! - A tablet reads no batch while the total is used up: `Busy`, and the caller repeats the read.
//! - A connection has a share of the total (`policy::share`). Beyond it, its new reads are refused with `Busy`, and those in progress prepare
//!   one message at a time.
//! - A read whose client has taken nothing for [`ResponseBytes::stall_timeout`] is ended: the rest of its batch is dropped, and the client receives an
//!   error after the messages that the transport holds already. Nothing but the end of the connection can take those back.
//! - When memory is short, the connection that holds most of it and takes nothing is closed (`policy::connection_to_close`).
//!
//! A read costs one allocation and two short locks, a message two atomic additions for each count, a row nothing.

mod body;
mod policy;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use ebla_model::Reason;
use ebla_model::error::Error;
use ebla_runtime::{Clock, ConnectionInfo, Reservation, ResourceCounter, Runtime};
use parking_lot::Mutex;
use tracing::warn;

use self::body::ResponseStream;
pub(crate) use self::body::{ReadBudget, ReadService};
use self::policy::ConnectionUse;

/// Between two passes over the reads in progress.
const SWEEP_PERIOD: Duration = Duration::from_millis(250);
/// A client that takes nothing for this time is not reading at all, so its connection may be closed when memory is short.
const STALLED: Duration = Duration::from_secs(1);
/// The charge of a read until the size of its first message is known: a bound for the number of reads that wait for one.
const FIRST_MESSAGE_BYTES: usize = 16 << 10;

/// The limits of a server's memory for responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseBytes {
    /// All connections together, in bytes. A batch that is read just before the limit is reached may exceed it, one for each thread that reads.
    pub total: usize,
    /// A read is ended when its client takes nothing for this time. A large message counts in pieces of 256 KiB.
    pub stall_timeout: Duration,
}

impl Default for ResponseBytes {
    /// 512 MiB, which is two rows of the largest size, and a minute.
    fn default() -> Self {
        Self { total: 512 << 20, stall_timeout: Duration::from_secs(60) }
    }
}

/// The bytes of all responses, as the tablets see them: a batch is read while there is room. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Memory {
    in_use: ResourceCounter,
    max: usize,
}

impl Default for Memory {
    /// Without a limit.
    fn default() -> Self {
        Self { in_use: ResourceCounter::default(), max: usize::MAX }
    }
}

impl Memory {
    /// Whether another batch may be read.
    pub(crate) fn has_room(&self) -> bool {
        self.in_use.in_use() < self.max
    }

    /// Counts bytes that are in memory already.
    pub(crate) fn charge(&self, bytes: usize) -> Option<Reservation> {
        self.in_use.try_reserve(bytes, usize::MAX)
    }
}

/// The budget of one server. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ResponseBudget(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    limits: ResponseBytes,
    clock: Clock,
    memory: Memory,
    /// The bytes that one connection may hold, from the last sweep.
    share: AtomicUsize,
    next: AtomicU64,
    /// Guards the reads in progress, by number; held for one map operation, or to list them.
    streams: Mutex<BTreeMap<u64, Weak<ResponseStream>>>,
}

/// A read in progress, in the extensions of its request. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct ReadAccount(Arc<ResponseStream>);

impl ReadAccount {
    /// Counts what the reply of a tablet reports to be left of its batch.
    pub(crate) fn hold(&self, bytes: u64) {
        self.0.hold(usize::try_from(bytes).unwrap_or(usize::MAX));
    }

    /// Counts the first message of a read, with what is left of its batch.
    ///
    /// # Errors
    /// `Busy` when the connection is beyond its share: many reads may have begun before the size of one was known.
    pub(crate) fn begin(&self, bytes: usize, left: u64) -> Result<(), Error> {
        self.0.hold(0);
        if !self.0.connection_has_room() {
            return Err(connection_is_full());
        }
        self.0.hold(bytes.saturating_add(usize::try_from(left).unwrap_or(usize::MAX)));
        Ok(())
    }
}

fn connection_is_full() -> Error {
    let message =
        "responses on this connection are not read: they leave no room for another one; read them, or retry later";
    Error::new(Reason::Busy, message)
}

impl ResponseBudget {
    /// An unused budget.
    #[must_use]
    pub fn new(limits: ResponseBytes, clock: Clock) -> Self {
        let memory = Memory { in_use: ResourceCounter::default(), max: limits.total };
        let share = AtomicUsize::new(policy::share(limits.total, 0));
        Self(Arc::new(Shared { limits, clock, memory, share, next: AtomicU64::new(0), streams: Mutex::default() }))
    }

    /// The budget as the tablets see it.
    #[must_use]
    pub fn memory(&self) -> Memory {
        self.0.memory.clone()
    }

    /// The bytes that are prepared and not sent.
    #[must_use]
    pub fn in_use(&self) -> usize {
        self.0.memory.in_use.in_use()
    }

    /// Ends reads and closes connections, as time passes, until `runtime` stops.
    pub(crate) fn start(&self, runtime: &Runtime) {
        let budget = self.clone();
        runtime.tasks.spawn_until_stopped("responses", async move {
            loop {
                tokio::time::sleep(SWEEP_PERIOD).await;
                budget.sweep();
            }
        });
    }

    /// A new read on a connection.
    ///
    /// # Errors
    /// `Busy` when the connection holds more than its share.
    fn open(&self, connection: &ConnectionInfo, service: ReadService) -> Result<Arc<ResponseStream>, Error> {
        if connection.unsent.in_use() >= self.share() {
            return Err(connection_is_full());
        }
        let number = self.0.next.fetch_add(1, Ordering::Relaxed);
        let stream = Arc::new(ResponseStream::new(number, self.clone(), connection.clone(), service));
        stream.hold(FIRST_MESSAGE_BYTES);
        self.0.streams.lock().insert(number, Arc::downgrade(&stream));
        Ok(stream)
    }

    fn share(&self) -> usize {
        self.0.share.load(Ordering::Relaxed)
    }

    /// One pass over the reads in progress: ends those that are stalled for too long, and closes a connection when memory is short.
    pub(crate) fn sweep(&self) {
        // Dropped outside the lock: the last reference to a read removes it from the map.
        let streams: Vec<_> = self.0.streams.lock().values().filter_map(Weak::upgrade).collect();
        let now = self.0.clock.monotonic();
        let (mut usages, mut connections) = (Vec::new(), Vec::new());
        let mut positions = HashMap::new();
        for stream in &streams {
            let stalled = stream.stalled(now);
            if stalled >= self.0.limits.stall_timeout {
                stream.end();
            }
            let connection = stream.connection();
            let at = *positions.entry(connection.unsent.identity()).or_insert_with(|| {
                usages.push(ConnectionUse { bytes: connection.unsent.in_use(), is_stalled: false });
                connections.push(connection);
                connections.len() - 1
            });
            if let Some(usage) = usages.get_mut(at).filter(|_usage| stalled >= STALLED) {
                usage.is_stalled = true;
            }
        }
        let holding = usages.iter().filter(|usage| usage.bytes >= policy::SIGNIFICANT_BYTES).count();
        let (in_use, total) = (self.in_use(), self.0.limits.total);
        let share = policy::share(total, holding);
        self.0.share.store(share, Ordering::Relaxed);
        let closed = policy::connection_to_close(in_use, total, share, &usages);
        if let Some(connection) = closed.and_then(|at| connections.get(at)) {
            let (peer, bytes) = (connection.peer.map(|peer| peer.to_string()), connection.unsent.in_use());
            warn!(
                peer,
                bytes, in_use, "memory for responses is short; closing a connection whose client does not read"
            );
            connection.close.cancel();
        }
    }
}

#[cfg(test)]
mod tests;
