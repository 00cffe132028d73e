//! A client of the load: its operation, its names, and their order.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ebla_mounttable_tree::Error;
use ebla_runtime::Rng;
use tonic::transport::Channel;

use super::session::Session;
use super::shape::Names;
use crate::bench::closed_loop::Client;

/// Time to live of the load's mounts: the load unmounts at its end, and the mounts of a killed load expire.
pub const TTL: Duration = Duration::from_secs(6 * 3_600);

/// Names of one BatchResolve.
pub const BATCH: u64 = 100;

/// An operation of the load.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Resolve a name to at most this number of servers, 0 for all.
    Resolve(u32),
    /// Resolve [`BATCH`] names in one call.
    ResolveMany,
    /// Mount a server, or mount it again.
    Mount,
}

/// The order of the names.
#[derive(Clone, Debug)]
pub enum NameOrder {
    /// Random names.
    Random(Rng),
    /// The names from `next` to `end`, each once, shared by all clients.
    Once {
        /// The next name, shared by all clients.
        next: Arc<AtomicU64>,
        /// After the last name.
        end: u64,
    },
    /// Every `step`th name, cyclically.
    Own {
        /// The next name.
        next: u64,
        /// The first name.
        first: u64,
        /// The distance between names, above 0.
        step: u64,
    },
}

impl NameOrder {
    /// `first` and every `step`th name after it, cyclically: the own names of a client when there are `step` clients.
    #[must_use]
    pub const fn own(first: u64, step: u64) -> Self {
        Self::Own { next: first, first, step }
    }

    /// The names of `[start, end)`, each once.
    #[must_use]
    pub fn once(start: u64, end: u64) -> Self {
        Self::Once { next: Arc::new(AtomicU64::new(start)), end }
    }

    /// The next name of `count`; `None` at the end.
    #[must_use]
    pub fn next(&mut self, count: u64) -> Option<u64> {
        match self {
            Self::Random(rng) => Some(rng.below(count)),
            Self::Once { next, end } => Some(next.fetch_add(1, Ordering::Relaxed)).filter(|number| number < end),
            Self::Own { next, first, step } => {
                let number = if *next < count { *next } else { *first };
                *next = number.saturating_add(*step);
                Some(number).filter(|number| *number < count)
            }
        }
    }
}

/// Calls a mounttable as several users, because nodes and mounts of one user are limited.
pub struct LoadClient {
    channel: Channel,
    /// Prefix of the names of users; a number follows.
    user_prefix: String,
    users: BTreeMap<u64, Session>,
    operation: Operation,
    names: Names,
    order: NameOrder,
}

impl LoadClient {
    /// Does `operation` on `names` in `order`, through one channel.
    #[must_use]
    pub fn new(channel: Channel, user_prefix: &str, operation: Operation, names: Names, order: NameOrder) -> Self {
        Self { channel, user_prefix: user_prefix.to_owned(), users: BTreeMap::new(), operation, names, order }
    }

    fn user(&mut self, number: u64) -> Result<&mut Session, Error> {
        use std::collections::btree_map::Entry;
        match self.users.entry(number) {
            Entry::Occupied(known) => Ok(known.into_mut()),
            Entry::Vacant(new) => {
                Ok(new.insert(Session::new(&self.channel, &format!("{}-{number}", self.user_prefix))?))
            }
        }
    }

    async fn ask(&mut self, number: u64) -> Result<u64, Error> {
        match self.operation {
            Operation::Resolve(servers_max) => {
                let name = self.names.name(number);
                self.user(0)?.resolve(&name, servers_max).await?;
                Ok(1)
            }
            Operation::ResolveMany => {
                let more = (1..BATCH).filter_map(|_| self.order.next(self.names.count()));
                let names: Vec<_> = [number].into_iter().chain(more).map(|number| self.names.name(number)).collect();
                let found = self.user(0)?.resolve_all(names).await?;
                found.into_iter().try_fold(0, |found, one| one.map(|_entry| found + 1))
            }
            Operation::Mount => {
                let item = self.names.item(number);
                self.user(item.user)?.mount(&item.name, &item.server, TTL).await?;
                Ok(1)
            }
        }
    }
}

impl Client for LoadClient {
    async fn request(&mut self) -> Result<Option<u64>, String> {
        let Some(number) = self.order.next(self.names.count()) else { return Ok(None) };
        let asked = self.ask(number).await;
        asked.map(Some).map_err(|error| format!("{} ({})", error.message, error.reason))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_is_used_once_by_several_clients() {
        let mut order = NameOrder::once(3, 6);
        let mut other = order.clone();
        let came = [order.next(9), other.next(9), order.next(9), other.next(9), order.next(9)];
        assert_eq!(came, [Some(3), Some(4), Some(5), None, None]);
    }

    #[test]
    fn a_client_cycles_through_its_own_names() {
        let mut second = NameOrder::own(1, 2);
        assert_eq!([(); 4].map(|()| second.next(5)), [Some(1), Some(3), Some(1), Some(3)]);
        assert_eq!(NameOrder::own(5, 6).next(5), None, "there are more clients than names");
    }

    #[test]
    fn random_names_are_in_range() {
        let mut order = NameOrder::Random(Rng::seeded(1));
        assert!((0..100).all(|_| order.next(7).is_some_and(|number| number < 7)));
    }
}
