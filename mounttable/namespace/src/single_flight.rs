//! Single flight: concurrent callers of the same request share one call.
//!
//! The waiting callers poll the call; when all of them are gone, it is dropped.

use std::collections::HashMap;
use std::sync::Arc;

use ebla_mounttable_tree::Error;
use futures::FutureExt;
use futures::future::{BoxFuture, Shared, WeakShared};
use parking_lot::Mutex;

use crate::entry::{MountEntry, ObjectLocation};

/// A call that several callers wait for.
pub(crate) type SharedCall = Shared<BoxFuture<'static, Result<MountEntry, Error>>>;

type WeakCall = WeakShared<BoxFuture<'static, Result<MountEntry, Error>>>;

/// The calls in flight, by the smallest of their locations. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct SingleFlight {
    /// Held for one operation.
    in_flight: Arc<Mutex<HashMap<ObjectLocation, WeakCall>>>,
}

impl SingleFlight {
    /// The call in flight for `key`, or this one.
    pub(crate) fn join<F>(&self, key: ObjectLocation, ask: F) -> SharedCall
    where
        F: Future<Output = Result<MountEntry, Error>> + Send + 'static,
    {
        let mut in_flight = self.in_flight.lock();
        if let Some(call) = in_flight.get(&key).and_then(WeakShared::upgrade) {
            return call;
        }
        let remove_on_drop = RemoveOnDrop { single_flight: self.clone(), key: key.clone() };
        let call = async move {
            let _landing = remove_on_drop;
            ask.await
        };
        let call = call.boxed().shared();
        if let Some(weak) = call.downgrade() {
            in_flight.insert(key, weak);
        }
        call
    }

    /// Detaches all calls in flight: later callers start their own, because these may return outdated answers.
    pub(crate) fn detach_all(&self) {
        self.in_flight.lock().clear();
    }
}

/// Removes a call when it is done or dropped.
struct RemoveOnDrop {
    single_flight: SingleFlight,
    key: ObjectLocation,
}

impl Drop for RemoveOnDrop {
    fn drop(&mut self) {
        // After a detach this may remove a newer call; then two callers ask for the same, which is harmless.
        self.single_flight.in_flight.lock().remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use ebla_mounttable_tree::Reason;
    use futures::future::{pending, ready};

    use super::*;

    fn key() -> ObjectLocation {
        ObjectLocation::new(&"h:1".parse().unwrap(), "a")
    }

    #[tokio::test]
    async fn concurrent_callers_share_one_call() {
        let single_flight = SingleFlight::default();
        let refused = || ready(Err(Error::new(Reason::NoSuchName, "nothing")));
        let (first, second) = (single_flight.join(key(), refused()), single_flight.join(key(), pending()));
        assert!(first.ptr_eq(&second));
        assert_eq!((first.await, second.await), (refused().await, refused().await));
        assert!(single_flight.in_flight.lock().is_empty());
    }

    #[test]
    fn a_call_without_waiters_is_dropped() {
        let single_flight = SingleFlight::default();
        drop((single_flight.join(key(), pending()), single_flight.join(key(), pending())));
        assert!(single_flight.in_flight.lock().is_empty());
    }

    #[test]
    fn a_detached_call_is_not_joined() {
        let single_flight = SingleFlight::default();
        let before = single_flight.join(key(), pending());
        single_flight.detach_all();
        assert!(!before.ptr_eq(&single_flight.join(key(), pending())));
    }
}
