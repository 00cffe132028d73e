//! [`delegate!`](crate::delegate): the methods of a wrapping store that it does not change.

/// Implements methods of [`Store`](crate::store::Store) or of [`Environment`](crate::store::Environment), inside an
/// `impl` block, by a call of the same method of a field:
///
/// ```ignore
/// impl<S: Store> Store for CountingStore<S> {
///     async fn change_if(&self, key: &str, when: Condition, then: Vec<Change>) -> Result<bool, Error> {
///         self.changes.fetch_add(1, Ordering::Relaxed);
///         self.store.change_if(key, when, then).await
///     }
///
///     delegate!(store: read_with, read_recent, keys, add, counter, set_counter, counters);
/// }
/// ```
///
/// Crates for this either delegate a whole trait or need each signature again.
#[macro_export]
macro_rules! delegate {
    ($field:ident: $($method:ident),+) => {
        $($crate::delegate!(@$method $field);)+
    };
    (@read_with $field:ident) => {
        async fn read_with(
            &self,
            keys: &[String],
            children: &$crate::store::ChildSelection,
            servers: &$crate::store::ServerSelection,
        ) -> Result<Vec<Option<$crate::store::Row>>, $crate::error::Error> {
            $crate::store::Store::read_with(&self.$field, keys, children, servers).await
        }
    };
    (@read_recent $field:ident) => {
        async fn read_recent(
            &self,
            name: &$crate::name::NodeName,
        ) -> Result<$crate::store::RecentPath, $crate::error::Error> {
            $crate::store::Store::read_recent(&self.$field, name).await
        }
    };
    (@change_if $field:ident) => {
        async fn change_if(
            &self,
            key: &str,
            when: $crate::store::Condition,
            then: Vec<$crate::store::Change>,
        ) -> Result<bool, $crate::error::Error> {
            $crate::store::Store::change_if(&self.$field, key, when, then).await
        }
    };
    (@keys $field:ident) => {
        async fn keys(&self, after: Option<&str>, limit: usize) -> Result<Vec<String>, $crate::error::Error> {
            $crate::store::Store::keys(&self.$field, after, limit).await
        }
    };
    (@add $field:ident) => {
        async fn add(&self, counter: &str, by: i64) -> Result<i64, $crate::error::Error> {
            $crate::store::Store::add(&self.$field, counter, by).await
        }
    };
    (@counter $field:ident) => {
        async fn counter(&self, counter: &str) -> Result<Option<i64>, $crate::error::Error> {
            $crate::store::Store::counter(&self.$field, counter).await
        }
    };
    (@set_counter $field:ident) => {
        async fn set_counter(&self, counter: &str, to: Option<i64>) -> Result<(), $crate::error::Error> {
            $crate::store::Store::set_counter(&self.$field, counter, to).await
        }
    };
    (@counters $field:ident) => {
        async fn counters(
            &self,
            after: Option<&str>,
            limit: usize,
        ) -> Result<Vec<(String, i64)>, $crate::error::Error> {
            $crate::store::Store::counters(&self.$field, after, limit).await
        }
    };
    (@now $field:ident) => {
        fn now(&self) -> $crate::Micros {
            $crate::store::Environment::now(&self.$field)
        }
    };
    (@unique_u64 $field:ident) => {
        fn unique_u64(&self) -> u64 {
            $crate::store::Environment::unique_u64(&self.$field)
        }
    };
    (@back_off $field:ident) => {
        async fn back_off(&self, attempts: u32) {
            $crate::store::Environment::back_off(&self.$field, attempts).await;
        }
    };
    (@sleep $field:ident) => {
        async fn sleep(&self, duration: std::time::Duration) {
            $crate::store::Environment::sleep(&self.$field, duration).await;
        }
    };
}
