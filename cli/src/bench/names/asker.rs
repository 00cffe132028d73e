//! A client of the load: what it asks of which names, in which order.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ebla_mounttable::Error;
use ebla_runtime::Rng;
use tonic::transport::Channel;

use super::caller::Caller;
use super::shape::Names;
use crate::bench::closed::Client;

/// For how long the load mounts: it takes away what it has mounted, and if it is killed the names end by themselves.
pub const TTL: Duration = Duration::from_secs(6 * 3_600);

/// Names of one BatchResolve.
pub const BATCH: u64 = 100;

/// What is asked of a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Deed {
    /// Where it leads: so many servers, 0 for all.
    Resolve(u32),
    /// Where it and others lead, [`BATCH`] in one call.
    ResolveMany,
    /// To mount a server on it, anew or again.
    Mount,
}

/// Which name is next.
#[derive(Clone, Debug)]
pub enum Order {
    /// Any.
    Random(Rng),
    /// Those from `next` to `end`, each once, by whichever client comes first.
    Once {
        /// The next one, shared by all clients.
        next: Arc<AtomicU64>,
        /// Behind the last one.
        end: u64,
    },
    /// One, and then every so many, round and round.
    Own {
        /// The next one.
        next: u64,
        /// The first one.
        first: u64,
        /// How far apart they are, above 0.
        step: u64,
    },
}

impl Order {
    /// `first` and every `step`th behind it, again and again: a client's own, when there are `step` clients.
    #[must_use]
    pub const fn own(first: u64, step: u64) -> Self {
        Self::Own { next: first, first, step }
    }

    /// Those of `[start, end)`, each once.
    #[must_use]
    pub fn once(start: u64, end: u64) -> Self {
        Self::Once { next: Arc::new(AtomicU64::new(start)), end }
    }

    /// The next one of `count`; `None` when there is none.
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

/// Calls a mounttable as several users: what one user may make and mount is limited.
pub struct Asker {
    channel: Channel,
    /// What users are called, with a number behind.
    called: String,
    users: BTreeMap<u64, Caller>,
    deed: Deed,
    names: Names,
    order: Order,
}

impl Asker {
    /// Does `deed` to `names` in `order`, through one channel.
    #[must_use]
    pub fn new(channel: Channel, called: &str, deed: Deed, names: Names, order: Order) -> Self {
        Self { channel, called: called.to_owned(), users: BTreeMap::new(), deed, names, order }
    }

    fn user(&mut self, number: u64) -> Result<&mut Caller, Error> {
        use std::collections::btree_map::Entry;
        match self.users.entry(number) {
            Entry::Occupied(known) => Ok(known.into_mut()),
            Entry::Vacant(new) => Ok(new.insert(Caller::new(&self.channel, &format!("{}-{number}", self.called))?)),
        }
    }

    async fn ask(&mut self, number: u64) -> Result<u64, Error> {
        match self.deed {
            Deed::Resolve(servers_max) => {
                let name = self.names.name(number);
                self.user(0)?.resolve(&name, servers_max).await?;
                Ok(1)
            }
            Deed::ResolveMany => {
                let more = (1..BATCH).filter_map(|_| self.order.next(self.names.count()));
                let names: Vec<_> = [number].into_iter().chain(more).map(|number| self.names.name(number)).collect();
                let found = self.user(0)?.resolve_all(names).await?;
                found.into_iter().try_fold(0, |found, one| one.map(|_entry| found + 1))
            }
            Deed::Mount => {
                let item = self.names.item(number);
                self.user(item.user)?.mount(&item.name, &item.server, TTL).await?;
                Ok(1)
            }
        }
    }
}

impl Client for Asker {
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
    fn each_name_comes_once_however_many_ask() {
        let mut order = Order::once(3, 6);
        let mut other = order.clone();
        let came = [order.next(9), other.next(9), order.next(9), other.next(9), order.next(9)];
        assert_eq!(came, [Some(3), Some(4), Some(5), None, None]);
    }

    #[test]
    fn a_client_goes_round_its_own_names() {
        let mut second = Order::own(1, 2);
        assert_eq!([(); 4].map(|()| second.next(5)), [Some(1), Some(3), Some(1), Some(3)]);
        assert_eq!(Order::own(5, 6).next(5), None, "there are more clients than names");
    }

    #[test]
    fn random_names_are_among_those_there_are() {
        let mut order = Order::Random(Rng::seeded(1));
        assert!((0..100).all(|_| order.next(7).is_some_and(|number| number < 7)));
    }
}
