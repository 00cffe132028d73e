//! The conformance suite: what every implementation of [`Chubby`] must do, as checks that run against any of them.
//!
//! Each check gets its own empty service. A check waits for events, with a generous timeout, and never for a fixed
//! time.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;

use crate::{
    Chubby, Compare, Counter, Error, File, Revision, SharedChubby, TransactionOutcome, WatchEvent, WatchStream, Write,
    acquire, next_ids, try_lock,
};

/// How long a check waits for an event.
const EVENT_TIMEOUT: Duration = Duration::from_secs(30);

/// A service under test.
pub struct ServiceUnderTest {
    /// The service, empty.
    pub chubby: SharedChubby,
    /// The shortest lease that it grants.
    pub lease_time: Duration,
    /// Stops the service as a crash would and opens it again; `None` if it stores nothing durably.
    pub reopen: Option<Reopen>,
}

/// Opens the same service again after it has stopped.
pub type Reopen = Box<dyn FnOnce() -> BoxFuture<'static, ServiceUnderTest> + Send>;

/// A check that failed, and why.
#[derive(Debug)]
pub struct Failure(String);

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Failure {}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self(error.to_string())
    }
}

type CheckResult = Result<(), Failure>;

fn ensure(holds: bool, what: impl Into<String>) -> CheckResult {
    if holds { Ok(()) } else { Err(Failure(what.into())) }
}

/// Runs all checks, each against a service that `create` returns.
///
/// # Errors
/// The first check that failed, with its name.
pub async fn run_all<F, M>(create: M) -> CheckResult
where
    M: Fn() -> F,
    F: Future<Output = ServiceUnderTest>,
{
    /// Runs one check and adds its name to a failure.
    macro_rules! check {
        ($($name:ident)*) => {
            $($name(create().await).await.map_err(|Failure(what)| Failure(format!("{}: {what}", stringify!($name))))?;)*
        };
    }
    check! {
        files_are_read_as_written
        transactions_are_atomic
        comparisons_hold_as_documented
        a_recreated_file_has_a_new_create_revision
        lists_are_by_prefix_and_sorted
        ids_are_never_allocated_twice
        watches_report_changes_in_order
        watches_start_after_the_given_revision
        leased_files_are_deleted_when_the_session_closes
        leased_files_are_deleted_when_the_holder_is_dropped
        a_revoked_lease_accepts_no_files
        a_lock_has_one_holder_at_a_time
        a_fence_rejects_the_previous_holder
        acknowledged_transactions_survive_a_crash
    }
    Ok(())
}

async fn put(chubby: &dyn Chubby, path: &str, value: &'static str) -> Result<Revision, Failure> {
    done(chubby.transact(vec![], vec![Write::put(path, value)]).await?)
}

fn done(outcome: TransactionOutcome) -> Result<Revision, Failure> {
    match outcome {
        TransactionOutcome::Committed(revision) => Ok(revision),
        TransactionOutcome::Conflict => Err(Failure("an unexpected conflict".to_owned())),
    }
}

async fn read(chubby: &dyn Chubby, path: &str) -> Result<File, Failure> {
    chubby.read(path).await?.ok_or_else(|| Failure(format!("{path} is missing")))
}

async fn in_time<T>(future: impl Future<Output = T>) -> Result<T, Failure> {
    tokio::time::timeout(EVENT_TIMEOUT, future).await.map_err(|_elapsed| Failure("timed out".to_owned()))
}

async fn next(watch: &mut WatchStream) -> Result<WatchEvent, Failure> {
    in_time(watch.next()).await?.ok_or_else(|| Failure("the watch has stopped".to_owned()))
}

async fn files_are_read_as_written(service: ServiceUnderTest) -> CheckResult {
    let chubby = &*service.chubby;
    ensure(chubby.read("a").await?.is_none(), "a file exists that was never written")?;
    let first = put(chubby, "a", "1").await?;
    let second = put(chubby, "a", "2").await?;
    ensure(first < second, "revisions do not increase")?;
    let file = read(chubby, "a").await?;
    let expected =
        File { path: "a".to_owned(), value: Bytes::from("2"), created: first, modified: second, lease: None };
    ensure(file == expected, format!("{file:?} is not {expected:?}"))?;
    done(chubby.transact(vec![], vec![Write::delete("a"), Write::delete("never was")]).await?)?;
    ensure(chubby.read("a").await?.is_none(), "a deleted file still exists")
}

async fn transactions_are_atomic(service: ServiceUnderTest) -> CheckResult {
    let chubby = &*service.chubby;
    put(chubby, "a", "1").await?;
    let both = vec![Write::put("b", "1"), Write::put("c", "1")];
    let refused = vec![Compare::Exists("a".to_owned()), Compare::Exists("nothing".to_owned())];
    ensure(
        chubby.transact(refused, both.clone()).await? == TransactionOutcome::Conflict,
        "a false comparison was accepted",
    )?;
    ensure(chubby.read("b").await?.is_none(), "a rejected transaction wrote")?;
    let revision = done(chubby.transact(vec![Compare::Exists("a".to_owned())], both).await?)?;
    let (b, c) = (read(chubby, "b").await?, read(chubby, "c").await?);
    ensure(b.modified == revision && c.modified == revision, "writes of one transaction differ in revision")?;
    let twice = chubby.transact(vec![], vec![Write::put("d", "1"), Write::put("d", "2")]).await;
    ensure(twice.is_err(), "a transaction that writes a path twice was accepted")
}

async fn comparisons_hold_as_documented(service: ServiceUnderTest) -> CheckResult {
    let chubby = &*service.chubby;
    let created = put(chubby, "a", "1").await?;
    let modified = put(chubby, "a", "2").await?;
    let a = || "a".to_owned();
    put(chubby, "s/2", "1").await?;
    let listed = put(chubby, "s/1", "1").await?;
    done(chubby.transact(vec![], vec![Write::delete("s/2")]).await?)?;
    let other = put(chubby, "t", "1").await?;
    for (compare, expected) in [
        (Compare::Absent(a()), false),
        (Compare::Absent("b".to_owned()), true),
        (Compare::Exists(a()), true),
        (Compare::Exists("b".to_owned()), false),
        (Compare::Modified(a(), modified), true),
        (Compare::Modified(a(), created), false),
        (Compare::Modified("b".to_owned(), modified), false),
        (Compare::Created(a(), created), true),
        (Compare::Created(a(), modified), false),
        (Compare::Created("b".to_owned(), created), false),
        (Compare::Unchanged("s/".to_owned(), listed), true),
        (Compare::Unchanged("s/".to_owned(), modified), false),
        (Compare::Unchanged("s/".to_owned(), other), true),
        (Compare::Unchanged("u/".to_owned(), modified), true),
    ] {
        let outcome = chubby.transact(vec![compare.clone()], vec![]).await?;
        ensure((outcome != TransactionOutcome::Conflict) == expected, format!("{compare:?} gave {outcome:?}"))?;
    }
    Ok(())
}

async fn a_recreated_file_has_a_new_create_revision(service: ServiceUnderTest) -> CheckResult {
    let chubby = &*service.chubby;
    let first = put(chubby, "a", "1").await?;
    done(chubby.transact(vec![], vec![Write::delete("a")]).await?)?;
    let second = put(chubby, "a", "1").await?;
    ensure(read(chubby, "a").await?.created == second && second > first, "the create revision did not change")
}

async fn lists_are_by_prefix_and_sorted(service: ServiceUnderTest) -> CheckResult {
    let chubby = &*service.chubby;
    for path in ["s/2", "s/10", "t/1", "s", "s/"] {
        put(chubby, path, "x").await?;
    }
    let (files, revision) = chubby.list("s/").await?;
    let paths: Vec<_> = files.iter().map(|file| file.path.as_str()).collect();
    ensure(paths == ["s/", "s/10", "s/2"], format!("listed {paths:?}"))?;
    ensure(files.iter().all(|file| file.modified <= revision), "the list is older than its files")
}

async fn ids_are_never_allocated_twice(service: ServiceUnderTest) -> CheckResult {
    let chubby = &*service.chubby;
    let takes = (0..8).map(|_| next_ids(chubby, Counter::Tablets, 3));
    let mut ids = Vec::new();
    for taken in futures::future::join_all(takes).await {
        ids.extend(taken?);
    }
    ids.sort_unstable();
    ensure(ids == (3..27).collect::<Vec<_>>(), format!("took {ids:?}"))
}

async fn watches_report_changes_in_order(service: ServiceUnderTest) -> CheckResult {
    let chubby = &*service.chubby;
    let (_files, now) = chubby.list("w/").await?;
    let mut watch = chubby.watch("w/", now).await?;
    put(chubby, "other", "x").await?;
    put(chubby, "w/1", "x").await?;
    let deleted = done(chubby.transact(vec![], vec![Write::delete("w/1")]).await?)?;
    let first = next(&mut watch).await?;
    ensure(matches!(&first, WatchEvent::Put(file) if file.path == "w/1"), format!("first came {first:?}"))?;
    let second = next(&mut watch).await?;
    ensure(second == WatchEvent::Deleted { path: "w/1".to_owned(), revision: deleted }, format!("then came {second:?}"))
}

async fn watches_start_after_the_given_revision(service: ServiceUnderTest) -> CheckResult {
    let chubby = &*service.chubby;
    let first = put(chubby, "w/1", "x").await?;
    let second = put(chubby, "w/2", "x").await?;
    let mut watch = chubby.watch("w/", first).await?;
    let event = next(&mut watch).await?;
    ensure(matches!(&event, WatchEvent::Put(file) if file.modified == second), format!("first came {event:?}"))
}

async fn leased_files_are_deleted_when_the_session_closes(service: ServiceUnderTest) -> CheckResult {
    let chubby = &*service.chubby;
    let session = chubby.open_session(service.lease_time).await?;
    ensure(session.is_alive(), "a new session is not alive")?;
    done(chubby.transact(vec![], vec![Write::put_leased("l/1", "x", session.lease())]).await?)?;
    put(chubby, "l/2", "stays").await?;
    ensure(read(chubby, "l/1").await?.lease == Some(session.lease()), "the file does not name its lease")?;
    session.close().await;
    in_time(session.lost()).await?;
    ensure(!session.is_alive(), "a closed session is alive")?;
    ensure(chubby.read("l/1").await?.is_none(), "a leased file outlived its session")?;
    read(chubby, "l/2").await.map(drop)
}

async fn leased_files_are_deleted_when_the_holder_is_dropped(service: ServiceUnderTest) -> CheckResult {
    let chubby = &*service.chubby;
    let session = chubby.open_session(service.lease_time).await?;
    let write = Write::put_leased("l/1", "x", session.lease());
    let put = done(chubby.transact(vec![], vec![write]).await?)?;
    let mut watch = chubby.watch("l/", put).await?;
    drop(session);
    let event = next(&mut watch).await?;
    ensure(matches!(&event, WatchEvent::Deleted { path, .. } if path == "l/1"), format!("came {event:?}"))
}

async fn a_revoked_lease_accepts_no_files(service: ServiceUnderTest) -> CheckResult {
    let chubby = &*service.chubby;
    let session = chubby.open_session(service.lease_time).await?;
    session.close().await;
    let outcome = chubby.transact(vec![], vec![Write::put_leased("l/1", "x", session.lease())]).await;
    ensure(outcome == Err(Error::LeaseLost), format!("gave {outcome:?}"))?;
    ensure(chubby.read("l/1").await?.is_none(), "the file exists")
}

async fn a_lock_has_one_holder_at_a_time(service: ServiceUnderTest) -> CheckResult {
    let chubby = &*service.chubby;
    let (one, two) = (chubby.open_session(service.lease_time).await?, chubby.open_session(service.lease_time).await?);
    let first = acquire(chubby, &*one, "lock", Bytes::from("one")).await?;
    ensure(try_lock(chubby, &*two, "lock", Bytes::from("two")).await?.is_none(), "two holders")?;
    let waits = acquire(chubby, &*two, "lock", Bytes::from("two"));
    let (second, ()) = in_time(futures::future::join(waits, one.close())).await?;
    let second = second?;
    ensure(second > first, "the sequencer did not increase")?;
    ensure(read(chubby, "lock").await?.created == second, "the sequencer is not the create revision")
}

async fn a_fence_rejects_the_previous_holder(service: ServiceUnderTest) -> CheckResult {
    let chubby = &*service.chubby;
    let (one, two) = (chubby.open_session(service.lease_time).await?, chubby.open_session(service.lease_time).await?);
    let first = acquire(chubby, &*one, "lock", Bytes::new()).await?;
    let fenced = |revision| vec![Compare::Created("lock".to_owned(), revision)];
    done(chubby.transact(fenced(first), vec![Write::put("act", "one")]).await?)?;
    one.close().await;
    let second = acquire(chubby, &*two, "lock", Bytes::new()).await?;
    let late = chubby.transact(fenced(first), vec![Write::put("act", "late")]).await?;
    ensure(late == TransactionOutcome::Conflict, "a fenced holder has written")?;
    done(chubby.transact(fenced(second), vec![Write::put("act", "two")]).await?).map(drop)
}

async fn acknowledged_transactions_survive_a_crash(service: ServiceUnderTest) -> CheckResult {
    let ServiceUnderTest { chubby, lease_time, reopen } = service;
    let Some(reopen) = reopen else { return Ok(()) };
    let created = put(&*chubby, "kept", "1").await?;
    let modified = put(&*chubby, "kept", "2").await?;
    next_ids(&*chubby, Counter::Tables, 5).await?;
    let session = chubby.open_session(lease_time).await?;
    let leased = done(chubby.transact(vec![], vec![Write::put_leased("leased", "x", session.lease())]).await?)?;
    drop((session, chubby));

    let chubby = reopen().await.chubby;
    let file = read(&*chubby, "kept").await?;
    ensure((file.created, file.modified) == (created, modified), "revisions changed")?;
    ensure(file.value == "2", "the value changed")?;
    ensure(next_ids(&*chubby, Counter::Tables, 1).await? == (6..7), "ids are allocated again")?;
    ensure(put(&*chubby, "new", "x").await? > leased, "revisions decreased")?;
    in_time(wait_until_deleted(&*chubby, "leased")).await?
}

/// Returns when `path` does not exist.
async fn wait_until_deleted(chubby: &dyn Chubby, path: &str) -> CheckResult {
    loop {
        let (files, revision) = chubby.list(path).await?;
        if files.is_empty() {
            return Ok(());
        }
        chubby.watch(path, revision).await?.next().await;
    }
}
