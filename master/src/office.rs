//! A master in office: the lock, the cluster's identity, the way to servers and to METADATA. All that acts takes it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ebla_chubby::{Chubby, Compare, Outcome, Write};
use ebla_client::{ChubbyDirectory, Cluster, Deadline, Directory, GrpcTransport, Metadata, Options};
use ebla_model::error::{Error, Reason};
use ebla_model::id::{ClusterId, MasterEpoch};
use ebla_model::key::RowKey;
use ebla_model::metadata::TabletDescriptor;
use ebla_proto::status::is_unavailable;
use ebla_runtime::Runtime;
use tokio::sync::Notify;

use crate::election::Seat;
use crate::orders::Orders;
use crate::repair::Repairs;

/// What the master in office acts with; clones are the same one.
#[derive(Clone, Debug)]
pub(crate) struct Office(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    seat: Seat,
    cluster: ClusterId,
    replicas: usize,
    orders: Orders,
    data: Cluster,
    directory: ChubbyDirectory,
    repairs: Repairs,
    /// What METADATA said last. Guards a pointer.
    last: Mutex<Option<Remembered>>,
    runtime: Runtime,
    /// Wakes the reconciler before its time.
    unfinished: Notify,
}

/// What METADATA said, for when it cannot be read any more.
#[derive(Clone, Debug)]
pub(crate) struct Remembered {
    pub(crate) metadata: Arc<BTreeMap<RowKey, TabletDescriptor>>,
    /// When it was taken, as time since boot.
    pub(crate) at: Duration,
}

impl Office {
    /// `runtime`: its tasks end with the term. `replicas`: how many a new tablet gets.
    pub(crate) fn new(
        seat: Seat,
        cluster: ClusterId,
        directory: &ChubbyDirectory,
        replicas: usize,
        runtime: Runtime,
    ) -> Self {
        let way: Arc<dyn Directory> = Arc::new(directory.clone());
        let orders = Orders::new(runtime.net.clone(), Arc::clone(&way), cluster, seat.epoch());
        let transport = Arc::new(GrpcTransport::new(runtime.net.clone(), Arc::clone(&way)));
        let data = Cluster::new(Options { directory: way, transport, runtime: runtime.clone(), home: None });
        Self(Arc::new(Inner {
            seat,
            cluster,
            replicas,
            orders,
            data,
            directory: directory.clone(),
            repairs: Repairs::default(),
            last: Mutex::default(),
            runtime,
            unfinished: Notify::new(),
        }))
    }

    pub(crate) fn chubby(&self) -> &dyn Chubby {
        &**self.0.seat.chubby()
    }

    pub(crate) fn epoch(&self) -> MasterEpoch {
        self.0.seat.epoch()
    }

    pub(crate) fn cluster(&self) -> ClusterId {
        self.0.cluster
    }

    pub(crate) fn replicas(&self) -> usize {
        self.0.replicas
    }

    pub(crate) fn orders(&self) -> &Orders {
        &self.0.orders
    }

    pub(crate) fn metadata(&self) -> Metadata {
        self.0.data.metadata()
    }

    /// The copy of Chubby's files, for what is asked often or while Chubby is away.
    pub(crate) fn directory(&self) -> &ChubbyDirectory {
        &self.0.directory
    }

    /// The changes of replicas that are under way.
    pub(crate) fn repairs(&self) -> &Repairs {
        &self.0.repairs
    }

    /// Remembers what METADATA says until the next time, or the end of the term.
    pub(crate) fn remember(&self, metadata: &BTreeMap<RowKey, TabletDescriptor>) {
        let remembered = Remembered { metadata: Arc::new(metadata.clone()), at: self.runtime().clock.monotonic() };
        *self.0.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(remembered);
    }

    /// What METADATA said when it was last read in this term.
    pub(crate) fn remembered(&self) -> Option<Remembered> {
        self.0.last.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn runtime(&self) -> &Runtime {
        &self.0.runtime
    }

    pub(crate) fn deadline(&self, limit: Duration) -> Deadline {
        self.0.data.deadline(limit)
    }

    /// As [`Seat::transact`].
    pub(crate) async fn transact(&self, compares: Vec<Compare>, writes: Vec<Write>) -> Result<Outcome, Error> {
        self.0.seat.transact(compares, writes).await
    }

    /// As [`Self::transact`], for the step with which a change begins. When the answer is lost the caller hears that nobody
    /// knows: "unavailable" would promise that nothing was done, and the change would be asked for again.
    pub(crate) async fn begin(&self, compares: Vec<Compare>, writes: Vec<Write>) -> Result<Outcome, Error> {
        self.transact(compares, writes).await.map_err(|error| match error.reason {
            Reason::Unavailable => {
                self.leave_unfinished();
                Error::new(Reason::OutcomeUnknown, error.message)
            }
            _ => error,
        })
    }

    /// A change that has begun is left for the reconciler; what its caller is told then. Never "unavailable": see
    /// [`Self::begin`].
    pub(crate) fn leave(&self, error: Error) -> Error {
        self.leave_unfinished();
        if is_unavailable(error.reason) {
            return Error::new(Reason::OutcomeUnknown, format!("it has begun and will be finished later: {error}"));
        }
        error
    }

    /// Something was left for the reconciler.
    pub(crate) fn leave_unfinished(&self) {
        self.0.unfinished.notify_one();
    }

    /// Returns when something has been left. Cancel-safe.
    pub(crate) async fn unfinished(&self) {
        self.0.unfinished.notified().await;
    }
}
