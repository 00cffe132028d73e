//! Leases of etcd, kept alive by ourselves.
//!
//! ```text
//!   grant, at `sent` --> alive until sent + TTL
//!   every TTL/3: renew, one attempt after another, from member to member
//!      renewed                --> alive until that attempt's `sent` + TTL
//!      unknown                --> lost: etcd has no such lease
//!      no answer until then   --> lost, whatever etcd still believes; it is told so, if it can be reached
//! ```
//!
//! Time counts from when a renewal was *sent*, because etcd's own count begins no earlier: a holder that believes in its
//! lease is right, or a little late, never early. etcd may count longer (it begins anew when its leader changes), so a
//! lease that is lost here may live on there for a while; who needs certainty fences.
//!
//! A holder that was paused finds its time over before it does anything else, because the clock counts through pauses.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::sync::watch;
use tonic::Status;
use tracing::{debug, warn};

use super::member::Member;
use super::members::{Members, Repeat};
use super::{BOUND, signed, unsigned};
use crate::{Error, LeaseId, Session};

/// Renewals in the time of a lease.
const RENEWALS: u32 = 3;
/// The pause before a renewal that was refused is tried again.
const PAUSE: Duration = Duration::from_millis(500);
/// How long a lease that is given up may take to be revoked; after that it ends by itself.
const REVOKE: Duration = Duration::from_secs(2);
/// What etcd says of a number that is taken.
const TAKEN: &str = "lease already exists";

/// What is known of a lease.
#[derive(Debug)]
struct Lease {
    id: LeaseId,
    members: Arc<Members>,
    /// Time since boot at which it ends unless it is renewed, in microseconds.
    deadline: AtomicU64,
    /// True once it is lost or closed.
    ended: watch::Sender<bool>,
}

impl Lease {
    fn deadline(&self) -> Duration {
        Duration::from_micros(self.deadline.load(Ordering::Acquire))
    }

    /// It lasts for `ttl` from `sent` on.
    fn extend(&self, sent: Duration, ttl: Duration) {
        let deadline = u64::try_from(sent.saturating_add(ttl).as_micros()).unwrap_or(u64::MAX);
        self.deadline.store(deadline, Ordering::Release);
    }

    /// How long it lasts if nothing more is heard.
    fn remaining(&self) -> Duration {
        self.deadline().saturating_sub(self.members.now())
    }

    fn is_alive(&self) -> bool {
        !*self.ended.borrow() && !self.remaining().is_zero()
    }

    fn end(&self) {
        self.ended.send_replace(true);
    }

    /// Returns when it is lost or closed. Cancel-safe.
    async fn ended(&self) {
        // The sender is ours: it cannot be gone.
        drop(self.ended.subscribe().wait_for(|ended| *ended).await);
    }

    /// Sends one renewal, for the time that was granted; when it was sent.
    async fn renew(&self) -> Result<Duration, Error> {
        let id = signed(self.id.get());
        let call = |member: Member| async move {
            let sent = self.members.now();
            member.renew(id).await.map(|()| sent)
        };
        self.members.ask(Repeat::Freely, self.remaining(), call).await
    }

    async fn revoke(&self) {
        let id = signed(self.id.get());
        match self.members.ask(Repeat::Freely, REVOKE, |member: Member| member.revoke(id)).await {
            Ok(()) | Err(Error::LeaseLost) => {}
            Err(error) => debug!(lease = self.id.get(), %error, "lease not revoked: it ends by itself"),
        }
    }
}

/// Renews until the lease ends or nobody holds it any more.
async fn keep(lease: Arc<Lease>, holder: Weak<()>, ttl: Duration) {
    let mut pause = ttl / RENEWALS;
    loop {
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = lease.ended() => return,
        }
        if holder.strong_count() == 0 {
            // As after a crash: its time runs out at etcd.
            return;
        }
        pause = match lease.renew().await {
            Ok(sent) => {
                lease.extend(sent, ttl);
                (ttl / RENEWALS).saturating_sub(lease.members.now().saturating_sub(sent))
            }
            Err(Error::LeaseLost) => {
                warn!(lease = lease.id.get(), "etcd knows this lease no more");
                return lease.end();
            }
            Err(error) if lease.remaining().is_zero() => {
                warn!(lease = lease.id.get(), %error, "lease not renewed in time");
                lease.end();
                return lease.revoke().await;
            }
            Err(error) => {
                debug!(lease = lease.id.get(), %error, "lease not renewed yet");
                PAUSE.min(lease.remaining())
            }
        };
    }
}

/// A lease and the proof that someone still wants it.
#[derive(Debug)]
struct EtcdSession {
    lease: Arc<Lease>,
    /// The keeper holds it weakly and renews while it can be found.
    _holder: Arc<()>,
}

/// A new lease of `ttl` (rounded up to whole seconds; etcd may give more), kept by a task of the members' runtime.
pub(super) async fn open(members: &Arc<Members>, ttl: Duration) -> Result<Arc<dyn Session>, Error> {
    let (id, wanted) = (members.new_lease(), ttl.as_secs().saturating_add(u64::from(ttl.subsec_nanos() > 0)).max(1));
    let first_sent = members.now();
    let call = |member: Member| async move {
        let sent = members.now();
        match member.grant(signed(id.get()), signed(wanted)).await {
            Ok(given) => Ok((sent, Duration::from_secs(unsigned(given)))),
            // The number is random, so an attempt of ours whose answer was lost has made it.
            Err(status) if status.message().contains(TAKEN) => Ok((first_sent, Duration::from_secs(wanted))),
            Err(status) => Err::<_, Status>(status),
        }
    };
    let (sent, given) = members.ask(Repeat::Freely, BOUND, call).await?;
    let lease =
        Lease { id, members: Arc::clone(members), deadline: AtomicU64::new(0), ended: watch::Sender::new(false) };
    lease.extend(sent, given);
    let (lease, holder) = (Arc::new(lease), Arc::new(()));
    members.tasks().spawn_until_stopped("etcd lease", keep(Arc::clone(&lease), Arc::downgrade(&holder), given));
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
        Box::pin(self.lease.ended())
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.lease.revoke().await;
            self.lease.end();
        })
    }
}
