//! Leases in etcd, renewed by this process.
//!
//! ```text
//!   grant, at `sent` --> alive until sent + TTL
//!   every TTL/3: renew, retried from member to member
//!      renewed                      --> alive until that attempt's `sent` + TTL
//!      etcd has no such lease       --> lost
//!      no response before deadline  --> lost, whatever etcd still believes; revoked if etcd can be reached
//! ```
//!
//! The TTL counts from when a renewal was *sent*, because etcd starts its own count no earlier: a holder never
//! believes in its lease longer than etcd does. etcd may count longer (it starts again when its leader changes), so a
//! lease that is lost here may exist there for a while. Users that need certainty fence their writes.
//!
//! A holder that was paused finds its lease expired before it does anything else, because the clock counts through
//! pauses.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use ebla_model::time::whole_micros;
use futures::future::BoxFuture;
use tokio::sync::watch;
use tonic::Status;
use tracing::{debug, warn};

use super::member::Member;
use super::members::{Members, RetryPolicy};
use super::{CALL_TIMEOUT, signed, unsigned};
use crate::{Error, LeaseId, Session};

/// Renewals in one TTL.
const RENEWALS: u32 = 3;
/// The delay before a failed renewal is retried.
const RETRY_DELAY: Duration = Duration::from_millis(500);
/// How long revoking a lease may take; after that it expires by itself.
const REVOKE_TIMEOUT: Duration = Duration::from_secs(2);
/// etcd's error for a lease id that is in use.
const LEASE_EXISTS: &str = "lease already exists";

/// The state of a lease.
#[derive(Debug)]
struct Lease {
    id: LeaseId,
    members: Arc<Members>,
    /// Time since boot at which it expires unless it is renewed, in microseconds.
    deadline: AtomicU64,
    /// True once it is lost or closed.
    lost: watch::Sender<bool>,
}

impl Lease {
    fn deadline(&self) -> Duration {
        Duration::from_micros(self.deadline.load(Ordering::Acquire))
    }

    /// Extends it to `ttl` after `sent`.
    fn extend(&self, sent: Duration, ttl: Duration) {
        let deadline = whole_micros(sent.saturating_add(ttl));
        self.deadline.store(deadline, Ordering::Release);
    }

    /// The time until it expires, if it is not renewed.
    fn remaining(&self) -> Duration {
        self.deadline().saturating_sub(self.members.now())
    }

    fn is_alive(&self) -> bool {
        !*self.lost.borrow() && !self.remaining().is_zero()
    }

    fn mark_lost(&self) {
        self.lost.send_replace(true);
    }

    /// Returns when it is lost or closed. Cancel-safe.
    async fn lost(&self) {
        // The sender belongs to this struct: it cannot be closed.
        drop(self.lost.subscribe().wait_for(|lost| *lost).await);
    }

    /// Sends one renewal, for the granted TTL. Returns when it was sent.
    async fn renew(&self) -> Result<Duration, Error> {
        let id = signed(self.id.get());
        let call = |member: Member| async move {
            let sent = self.members.now();
            member.renew(id).await.map(|()| sent)
        };
        self.members.call(RetryPolicy::Always, self.remaining(), call).await
    }

    async fn revoke(&self) {
        let id = signed(self.id.get());
        match self.members.call(RetryPolicy::Always, REVOKE_TIMEOUT, |member: Member| member.revoke(id)).await {
            Ok(()) | Err(Error::LeaseLost) => {}
            Err(error) => debug!(lease = self.id.get(), %error, "lease not revoked; it expires after its TTL"),
        }
    }
}

/// Renews until the lease is lost or its session is dropped.
async fn renew_until_lost(lease: Arc<Lease>, holder: Weak<()>, ttl: Duration) {
    let mut pause = ttl / RENEWALS;
    loop {
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = lease.lost() => return,
        }
        if holder.strong_count() == 0 {
            // As after a crash: the lease expires at etcd.
            return;
        }
        pause = match lease.renew().await {
            Ok(sent) => {
                lease.extend(sent, ttl);
                (ttl / RENEWALS).saturating_sub(lease.members.now().saturating_sub(sent))
            }
            Err(Error::LeaseLost) => {
                warn!(lease = lease.id.get(), "etcd lease expired or revoked");
                return lease.mark_lost();
            }
            Err(error) if lease.remaining().is_zero() => {
                warn!(lease = lease.id.get(), %error, "etcd lease not renewed in time");
                lease.mark_lost();
                return lease.revoke().await;
            }
            Err(error) => {
                debug!(lease = lease.id.get(), %error, "etcd lease renewal failed; retrying");
                RETRY_DELAY.min(lease.remaining())
            }
        };
    }
}

/// A lease and the handle that keeps it alive.
#[derive(Debug)]
struct EtcdSession {
    lease: Arc<Lease>,
    /// The renewing task holds it weakly and renews while it exists.
    _holder: Arc<()>,
}

/// Opens a session with a lease of `ttl` (rounded up to whole seconds; etcd may grant more), renewed by a task of the
/// members' runtime.
pub(super) async fn open(members: &Arc<Members>, ttl: Duration) -> Result<Arc<dyn Session>, Error> {
    let (id, wanted) = (members.new_lease(), ttl.as_secs().saturating_add(u64::from(ttl.subsec_nanos() > 0)).max(1));
    let first_sent = members.now();
    let call = |member: Member| async move {
        let sent = members.now();
        match member.grant(signed(id.get()), signed(wanted)).await {
            Ok(given) => Ok((sent, Duration::from_secs(unsigned(given)))),
            // The id is random, so an earlier attempt of ours, whose response was lost, has created it.
            Err(status) if status.message().contains(LEASE_EXISTS) => Ok((first_sent, Duration::from_secs(wanted))),
            Err(status) => Err::<_, Status>(status),
        }
    };
    let (sent, given) = members.call(RetryPolicy::Always, CALL_TIMEOUT, call).await?;
    let lease =
        Lease { id, members: Arc::clone(members), deadline: AtomicU64::new(0), lost: watch::Sender::new(false) };
    lease.extend(sent, given);
    let (lease, holder) = (Arc::new(lease), Arc::new(()));
    members
        .tasks()
        .spawn_until_stopped("etcd lease", renew_until_lost(Arc::clone(&lease), Arc::downgrade(&holder), given));
    Ok(Arc::new(EtcdSession { lease, _holder: holder }))
}

impl Session for EtcdSession {
    fn lease(&self) -> LeaseId {
        self.lease.id
    }

    fn is_alive(&self) -> bool {
        self.lease.is_alive()
    }

    fn lost(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.lease.lost())
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.lease.revoke().await;
            self.lease.mark_lost();
        })
    }
}
