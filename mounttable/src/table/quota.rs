//! What users are charged: a node to who made it, a server to who mounted it.
//!
//! A charge belongs to what is stored: a row, or a server's cell in one. It is made before that is written, and given
//! back by whoever removes it: every removal is conditional on what was read, so one removal gives back once. A process
//! that dies in between, and storage that does not say what became of a change, leave a counter wrong until
//! [`Table::recount`]. The root is charged to nobody.

use std::collections::BTreeMap;

use crate::error::{Error, Reason};
use crate::identity::UserId;
use crate::mount::MountedServer;
use crate::node::Node;
use crate::store::{Store, Surroundings};
use crate::table::Table;

/// What there are limits of.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Charge {
    /// Nodes that a user has made.
    Nodes,
    /// Servers that a user has mounted, expired ones that nobody has removed yet included.
    Servers,
}

impl Charge {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Nodes, Self::Servers];

    /// The counter of what a user has.
    pub fn counter(self, user: &UserId) -> String {
        format!("{}{user}", self.counter_prefix())
    }

    /// What the names of such counters begin with.
    pub const fn counter_prefix(self) -> &'static str {
        match self {
            Self::Nodes => "num-nodes-per-user:",
            Self::Servers => "num-servers-per-user:",
        }
    }

    /// The counter that holds a user's own limit, if he has one.
    pub fn limit(self, user: &UserId) -> String {
        format!("{}{user}", self.limit_prefix())
    }

    /// What the names of such counters begin with.
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

/// What a user has of one kind, and may have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Usage {
    /// What he is charged for.
    pub used: i64,
    /// How much he may have; `None` is without a limit.
    pub limit: Option<i64>,
}

/// Limits of one user: of his own, or those of everybody. 0 is without a limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Limits {
    /// Of nodes.
    pub nodes: Option<i64>,
    /// Of servers.
    pub servers: Option<i64>,
}

/// What a call has been charged for and has not written yet.
#[derive(Debug)]
pub(super) struct Purse {
    pub(super) user: UserId,
    pub(super) nodes: i64,
    pub(super) servers: i64,
}

impl Purse {
    /// Nothing yet.
    pub(super) const fn of(user: UserId) -> Self {
        Self { user, nodes: 0, servers: 0 }
    }
}

impl<S: Store + Surroundings> Table<S> {
    /// What a user has of one kind, and may have.
    ///
    /// # Errors
    /// `UNAVAILABLE`.
    pub async fn usage(&self, user: &UserId, of: Charge) -> Result<Usage, Error> {
        let used = self.store.counter(&of.counter(user)).await?.unwrap_or_default();
        Ok(Usage { used, limit: self.limit(user, of).await? })
    }

    /// Gives a user a limit of his own (0: none at all), or that of everybody.
    ///
    /// # Errors
    /// `UNAVAILABLE`.
    pub async fn set_limit(&self, user: &UserId, of: Charge, to: Option<i64>) -> Result<(), Error> {
        self.store.set_counter(&of.limit(user), to).await
    }

    /// The limits of everybody, and those of users with limits of their own.
    ///
    /// # Errors
    /// `UNAVAILABLE`.
    pub async fn limits(&self) -> Result<(Limits, BTreeMap<UserId, Limits>), Error> {
        let (nodes, servers) = (self.options.nodes_per_user, self.options.servers_per_user);
        let mut limits: BTreeMap<UserId, Limits> = BTreeMap::new();
        for charge in Charge::ALL {
            let prefix = charge.limit_prefix();
            for (name, limit) in self.counters_of(prefix).await? {
                let user = limits.entry(UserId::stored(name.strip_prefix(prefix).unwrap_or_default())).or_default();
                match charge {
                    Charge::Nodes => user.nodes = Some(limit),
                    Charge::Servers => user.servers = Some(limit),
                }
            }
        }
        Ok((Limits { nodes: Some(nodes), servers: Some(servers) }, limits))
    }

    /// Nodes made by the table itself are without a limit.
    async fn limit(&self, user: &UserId, of: Charge) -> Result<Option<i64>, Error> {
        if *user == UserId::server() {
            return Ok(None);
        }
        let everybodys = match of {
            Charge::Nodes => self.options.nodes_per_user,
            Charge::Servers => self.options.servers_per_user,
        };
        let own = self.store.counter(&of.limit(user)).await?;
        Ok(Some(own.unwrap_or(everybodys)).filter(|limit| *limit > 0))
    }

    /// Charges what is missing in the purse, all of one kind or nothing of it.
    pub(super) async fn fill(&self, purse: &mut Purse, nodes: i64, servers: i64) -> Result<(), Error> {
        let missing = nodes.saturating_sub(purse.nodes);
        if missing > 0 {
            self.charge(&purse.user, Charge::Nodes, missing).await?;
            purse.nodes = nodes;
        }
        let missing = servers.saturating_sub(purse.servers);
        if missing > 0 {
            self.charge(&purse.user, Charge::Servers, missing).await?;
            purse.servers = servers;
        }
        Ok(())
    }

    /// Gives back what was not used, unless nobody knows what was.
    pub(super) async fn empty<T>(&self, purse: Purse, outcome: &Result<T, Error>) {
        if !matches!(outcome, Err(error) if error.reason == Reason::Unavailable) {
            self.give_back(&purse.user, Charge::Nodes, purse.nodes).await;
            self.give_back(&purse.user, Charge::Servers, purse.servers).await;
        }
    }

    async fn charge(&self, user: &UserId, of: Charge, count: i64) -> Result<(), Error> {
        let limit = self.limit(user, of).await?;
        let used = self.store.add(&of.counter(user), count).await?;
        match limit.filter(|limit| used > *limit) {
            None => Ok(()),
            Some(limit) => {
                self.give_back(user, of, count).await;
                let had = used.saturating_sub(count);
                Err(Error::new(
                    of.refusal(),
                    format!("{user} has {had} of at most {limit} {of:?}, and wants {count} more"),
                ))
            }
        }
    }

    /// A call that has done what it was asked for does not fail because this does: a recount will find it.
    pub(super) async fn give_back(&self, user: &UserId, of: Charge, count: i64) {
        if count != 0 {
            let _ = self.store.add(&of.counter(user), count.saturating_neg()).await;
        }
    }

    /// Gives back what a row was charged for that this call has just removed.
    pub(super) async fn give_back_row(&self, node: &Node) {
        self.give_back(&node.creator, Charge::Nodes, 1).await;
        self.give_back_servers(&node.servers).await;
    }

    /// Gives back what servers were charged for that this call has just removed.
    pub(super) async fn give_back_servers<'a>(&self, servers: impl IntoIterator<Item = &'a MountedServer>) {
        let mut by_user: BTreeMap<&UserId, i64> = BTreeMap::new();
        for server in servers {
            let count = by_user.entry(&server.mounter).or_default();
            *count = count.saturating_add(1);
        }
        for (user, count) in by_user {
            self.give_back(user, Charge::Servers, count).await;
        }
    }
}
