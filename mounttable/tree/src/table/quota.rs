//! Quotas: a node is charged to its creator, a server to the user who mounted it.
//!
//! A charge belongs to a stored row, or to a server's cell in one. The charge is made before the write, and refunded by
//! the call that removes the row or cell: every removal is conditional on what was read, so it refunds exactly once.
//! When a process dies in between, or the outcome of a write is unknown, a counter stays wrong until
//! [`Table::recount`]. The root is not charged.

use std::collections::BTreeMap;

use crate::error::{Error, Reason};
use crate::identity::UserId;
use crate::mount::MountedServer;
use crate::node::Node;
use crate::store::{Environment, Store};
use crate::table::Table;

/// The resources with quotas.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum QuotaKind {
    /// Nodes that a user has created.
    Nodes,
    /// Servers that a user has mounted, including expired ones that are not removed yet.
    Servers,
}

impl QuotaKind {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Nodes, Self::Servers];

    /// The counter of a user's usage.
    pub fn counter(self, user: &UserId) -> String {
        format!("{}{user}", self.counter_prefix())
    }

    /// The prefix of such counters.
    pub const fn counter_prefix(self) -> &'static str {
        match self {
            Self::Nodes => "num-nodes-per-user:",
            Self::Servers => "num-servers-per-user:",
        }
    }

    /// The counter that holds a user's own limit.
    pub fn limit(self, user: &UserId) -> String {
        format!("{}{user}", self.limit_prefix())
    }

    /// The prefix of such counters.
    pub const fn limit_prefix(self) -> &'static str {
        match self {
            Self::Nodes => "max-nodes-per-user:",
            Self::Servers => "max-servers-per-user:",
        }
    }

    const fn refusal(self) -> Reason {
        match self {
            Self::Nodes => Reason::NodeQuota,
            Self::Servers => Reason::ServerQuota,
        }
    }
}

/// A user's usage of one resource, and the limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Usage {
    /// The usage.
    pub used: i64,
    /// The limit; `None`: no limit.
    pub limit: Option<i64>,
}

/// Limits of one user, or the defaults. 0: no limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Limits {
    /// The limit of nodes.
    pub nodes: Option<i64>,
    /// The limit of servers.
    pub servers: Option<i64>,
}

/// Charges of a call that it has not written yet.
#[derive(Debug)]
pub(super) struct QuotaReservation {
    pub(super) user: UserId,
    pub(super) nodes: i64,
    pub(super) servers: i64,
}

impl QuotaReservation {
    /// An empty reservation.
    pub(super) const fn of(user: UserId) -> Self {
        Self { user, nodes: 0, servers: 0 }
    }
}

impl<S: Store + Environment> Table<S> {
    /// A user's usage of one resource, and the limit.
    ///
    /// # Errors
    /// `UNAVAILABLE`.
    pub async fn usage(&self, user: &UserId, of: QuotaKind) -> Result<Usage, Error> {
        let used = self.store.counter(&of.counter(user)).await?.unwrap_or_default();
        Ok(Usage { used, limit: self.limit(user, of).await? })
    }

    /// Sets a user's own limit (0: no limit), or returns to the default.
    ///
    /// # Errors
    /// `UNAVAILABLE`.
    pub async fn set_limit(&self, user: &UserId, of: QuotaKind, to: Option<i64>) -> Result<(), Error> {
        self.store.set_counter(&of.limit(user), to).await
    }

    /// The default limits, and the users' own limits.
    ///
    /// # Errors
    /// `UNAVAILABLE`.
    pub async fn limits(&self) -> Result<(Limits, BTreeMap<UserId, Limits>), Error> {
        let (nodes, servers) = (self.options.nodes_per_user, self.options.servers_per_user);
        let mut limits: BTreeMap<UserId, Limits> = BTreeMap::new();
        for quota in QuotaKind::ALL {
            let prefix = quota.limit_prefix();
            for (name, limit) in self.counters_of(prefix).await? {
                let user = limits.entry(UserId::stored(name.strip_prefix(prefix).unwrap_or_default())).or_default();
                match quota {
                    QuotaKind::Nodes => user.nodes = Some(limit),
                    QuotaKind::Servers => user.servers = Some(limit),
                }
            }
        }
        Ok((Limits { nodes: Some(nodes), servers: Some(servers) }, limits))
    }

    /// The table's own nodes have no limit.
    async fn limit(&self, user: &UserId, of: QuotaKind) -> Result<Option<i64>, Error> {
        if *user == UserId::server() {
            return Ok(None);
        }
        let default = match of {
            QuotaKind::Nodes => self.options.nodes_per_user,
            QuotaKind::Servers => self.options.servers_per_user,
        };
        let own = self.store.counter(&of.limit(user)).await?;
        Ok(Some(own.unwrap_or(default)).filter(|limit| *limit > 0))
    }

    /// Charges what the reservation lacks: all of one resource, or nothing of it.
    pub(super) async fn reserve(
        &self,
        reservation: &mut QuotaReservation,
        nodes: i64,
        servers: i64,
    ) -> Result<(), Error> {
        let missing = nodes.saturating_sub(reservation.nodes);
        if missing > 0 {
            self.charge(&reservation.user, QuotaKind::Nodes, missing).await?;
            reservation.nodes = nodes;
        }
        let missing = servers.saturating_sub(reservation.servers);
        if missing > 0 {
            self.charge(&reservation.user, QuotaKind::Servers, missing).await?;
            reservation.servers = servers;
        }
        Ok(())
    }

    /// Refunds what was not used, unless the outcome is unknown.
    pub(super) async fn release<T>(&self, reservation: QuotaReservation, outcome: &Result<T, Error>) {
        if !matches!(outcome, Err(error) if error.reason == Reason::Unavailable) {
            self.refund(&reservation.user, QuotaKind::Nodes, reservation.nodes).await;
            self.refund(&reservation.user, QuotaKind::Servers, reservation.servers).await;
        }
    }

    async fn charge(&self, user: &UserId, of: QuotaKind, count: i64) -> Result<(), Error> {
        let limit = self.limit(user, of).await?;
        let used = self.store.add(&of.counter(user), count).await?;
        match limit.filter(|limit| used > *limit) {
            None => Ok(()),
            Some(limit) => {
                self.refund(user, of, count).await;
                let had = used.saturating_sub(count);
                Err(Error::new(
                    of.refusal(),
                    format!("quota exceeded: {user} has {had} of {limit} {of:?} and requests {count} more"),
                ))
            }
        }
    }

    /// An error here does not fail a call that has done its work: a recount will correct the counter.
    pub(super) async fn refund(&self, user: &UserId, of: QuotaKind, count: i64) {
        if count != 0 {
            let _ = self.store.add(&of.counter(user), count.saturating_neg()).await;
        }
    }

    /// Refunds the charges of a row that this call has removed.
    pub(super) async fn refund_row(&self, node: &Node) {
        self.refund(&node.creator, QuotaKind::Nodes, 1).await;
        self.refund_servers(&node.servers).await;
    }

    /// Refunds the charges of servers that this call has removed.
    pub(super) async fn refund_servers<'a>(&self, servers: impl IntoIterator<Item = &'a MountedServer>) {
        let mut by_user: BTreeMap<&UserId, i64> = BTreeMap::new();
        for server in servers {
            let count = by_user.entry(&server.mounter).or_default();
            *count = count.saturating_add(1);
        }
        for (user, count) in by_user {
            self.refund(user, QuotaKind::Servers, count).await;
        }
    }
}
