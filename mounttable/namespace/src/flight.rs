//! One question for all who ask the same at the same time.
//!
//! Those who wait for a flight are the ones who carry it: when nobody waits any more, it is given up.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ebla_mounttable::Error;
use futures::FutureExt;
use futures::future::{BoxFuture, Shared, WeakShared};

use crate::entry::{MountEntry, Place};

/// An answer that several wait for.
pub(crate) type Flight = Shared<BoxFuture<'static, Result<MountEntry, Error>>>;

type Waited = WeakShared<BoxFuture<'static, Result<MountEntry, Error>>>;

/// The questions that are being asked, by the least of the places that may answer. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Flights {
    /// Held for a look-up.
    under_way: Arc<Mutex<HashMap<Place, Waited>>>,
}

impl Flights {
    /// The flight of whoever asks for `key` already, or this one.
    pub(crate) fn join<F>(&self, key: Place, ask: F) -> Flight
    where
        F: Future<Output = Result<MountEntry, Error>> + Send + 'static,
    {
        let mut under_way = self.lock();
        if let Some(flight) = under_way.get(&key).and_then(WeakShared::upgrade) {
            return flight;
        }
        let landing = Landing { flights: self.clone(), key: key.clone() };
        let flight = async move {
            let _landing = landing;
            ask.await
        };
        let flight = flight.boxed().shared();
        if let Some(weak) = flight.downgrade() {
            under_way.insert(key, weak);
        }
        flight
    }

    /// Lets nobody join those that are under way: what they bring may be old for who asks from now on.
    pub(crate) fn close(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Place, Waited>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes a flight off the list when it has ended, or is given up.
struct Landing {
    flights: Flights,
    key: Place,
}

impl Drop for Landing {
    fn drop(&mut self) {
        // Since the list was closed another flight may stand there: then two ask for the same, which does no harm.
        self.flights.lock().remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use ebla_mounttable::Reason;
    use futures::future::{pending, ready};

    use super::*;

    fn key() -> Place {
        Place::new(&"h:1".parse().unwrap(), "a")
    }

    #[tokio::test]
    async fn who_asks_for_the_same_at_the_same_time_waits_for_one_question() {
        let flights = Flights::default();
        let refused = || ready(Err(Error::new(Reason::NoSuchName, "nothing")));
        let (first, second) = (flights.join(key(), refused()), flights.join(key(), pending()));
        assert!(first.ptr_eq(&second));
        assert_eq!((first.await, second.await), (refused().await, refused().await));
        assert!(flights.lock().is_empty());
    }

    #[test]
    fn a_question_that_nobody_waits_for_is_given_up() {
        let flights = Flights::default();
        drop((flights.join(key(), pending()), flights.join(key(), pending())));
        assert!(flights.lock().is_empty());
    }

    #[test]
    fn an_answer_from_before_a_change_is_not_for_who_asks_after_it() {
        let flights = Flights::default();
        let before = flights.join(key(), pending());
        flights.close();
        assert!(!before.ptr_eq(&flights.join(key(), pending())));
    }
}
