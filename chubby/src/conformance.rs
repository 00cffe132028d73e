//! What every implementation of [`Chubby`] must do, as one suite that runs against any of them.
//!
//! Each check gets a service of its own, empty. A check waits for events, with a generous bound, and never for a time.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;

use crate::{
    Chubby, Compare, Counter, Error, Event, File, Outcome, Revision, SharedChubby, WatchStream, Write, acquire,
    next_ids, try_lock,
};

/// How long a check waits for what must happen some time.
const PATIENCE: Duration = Duration::from_secs(30);

/// A service under test.
pub struct Subject {
    /// The service, empty.
    pub chubby: SharedChubby,
    /// The shortest lease that it grants.
    pub lease_time: Duration,
    /// Stops the service as a crash would and opens it again; `None` when it forgets everything then.
    pub reopen: Option<Reopen>,
}

/// Makes the same service again after its end.
pub type Reopen = Box<dyn FnOnce() -> BoxFuture<'static, Subject> + Send>;

/// What did not hold.
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

type Checked = Result<(), Failure>;

fn ensure(holds: bool, what: impl Into<String>) -> Checked {
    if holds { Ok(()) } else { Err(Failure(what.into())) }
}

/// Runs all checks, each against a service that `make` makes.
///
/// # Errors
/// The first check that failed, by name.
pub async fn run_all<F, M>(make: M) -> Checked
where
    M: Fn() -> F,
    F: Future<Output = Subject>,
{
    /// Runs one check and names it in its failure.
    macro_rules! check {
        ($($name:ident)*) => {
            $($name(make().await).await.map_err(|Failure(what)| Failure(format!("{}: {what}", stringify!($name))))?;)*
        };
    }
    check! {
        files_are_read_as_written
        transactions_are_all_or_nothing
        comparisons_judge_as_documented
        a_recreated_file_is_another_one
        lists_are_by_prefix_and_ordered
        ids_are_never_given_twice
        watches_tell_changes_in_order
        watches_begin_where_they_are_told
        leased_files_go_when_the_session_is_closed
        leased_files_go_when_the_holder_vanishes
        an_ended_lease_takes_no_files
        a_lock_has_one_holder_and_passes_on
        a_fence_holds_after_the_lock_passed_on
        what_was_acknowledged_survives_a_crash
    }
    Ok(())
}

async fn put(chubby: &dyn Chubby, path: &str, value: &'static str) -> Result<Revision, Failure> {
    done(chubby.transact(vec![], vec![Write::put(path, value)]).await?)
}

fn done(outcome: Outcome) -> Result<Revision, Failure> {
    match outcome {
        Outcome::Done(revision) => Ok(revision),
        Outcome::Conflict => Err(Failure("an unexpected conflict".to_owned())),
    }
}

async fn read(chubby: &dyn Chubby, path: &str) -> Result<File, Failure> {
    chubby.read(path).await?.ok_or_else(|| Failure(format!("{path} is missing")))
}

async fn soon<T>(future: impl Future<Output = T>) -> Result<T, Failure> {
    tokio::time::timeout(PATIENCE, future).await.map_err(|_elapsed| Failure("waited in vain".to_owned()))
}

async fn next(watch: &mut WatchStream) -> Result<Event, Failure> {
    soon(watch.next()).await?.ok_or_else(|| Failure("the watch ended".to_owned()))
}

async fn files_are_read_as_written(subject: Subject) -> Checked {
    let chubby = &*subject.chubby;
    ensure(chubby.read("a").await?.is_none(), "a file from nowhere")?;
    let first = put(chubby, "a", "1").await?;
    let second = put(chubby, "a", "2").await?;
    ensure(first < second, "revisions do not grow")?;
    let file = read(chubby, "a").await?;
    let expected =
        File { path: "a".to_owned(), value: Bytes::from("2"), created: first, modified: second, lease: None };
    ensure(file == expected, format!("{file:?} is not {expected:?}"))?;
    done(chubby.transact(vec![], vec![Write::delete("a"), Write::delete("never was")]).await?)?;
    ensure(chubby.read("a").await?.is_none(), "a deleted file")
}

async fn transactions_are_all_or_nothing(subject: Subject) -> Checked {
    let chubby = &*subject.chubby;
    put(chubby, "a", "1").await?;
    let both = vec![Write::put("b", "1"), Write::put("c", "1")];
    let refused = vec![Compare::Exists("a".to_owned()), Compare::Exists("nothing".to_owned())];
    ensure(chubby.transact(refused, both.clone()).await? == Outcome::Conflict, "a false comparison was passed")?;
    ensure(chubby.read("b").await?.is_none(), "a refused transaction wrote")?;
    let revision = done(chubby.transact(vec![Compare::Exists("a".to_owned())], both).await?)?;
    let (b, c) = (read(chubby, "b").await?, read(chubby, "c").await?);
    ensure(b.modified == revision && c.modified == revision, "writes of one transaction differ in revision")?;
    let twice = chubby.transact(vec![], vec![Write::put("d", "1"), Write::put("d", "2")]).await;
    ensure(twice.is_err(), "a path was written twice in one transaction")
}

async fn comparisons_judge_as_documented(subject: Subject) -> Checked {
    let chubby = &*subject.chubby;
    let created = put(chubby, "a", "1").await?;
    let modified = put(chubby, "a", "2").await?;
    let a = || "a".to_owned();
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
    ] {
        let outcome = chubby.transact(vec![compare.clone()], vec![]).await?;
        ensure((outcome != Outcome::Conflict) == expected, format!("{compare:?} gave {outcome:?}"))?;
    }
    Ok(())
}

async fn a_recreated_file_is_another_one(subject: Subject) -> Checked {
    let chubby = &*subject.chubby;
    let first = put(chubby, "a", "1").await?;
    done(chubby.transact(vec![], vec![Write::delete("a")]).await?)?;
    let second = put(chubby, "a", "1").await?;
    ensure(read(chubby, "a").await?.created == second && second > first, "the create revision was kept")
}

async fn lists_are_by_prefix_and_ordered(subject: Subject) -> Checked {
    let chubby = &*subject.chubby;
    for path in ["s/2", "s/10", "t/1", "s", "s/"] {
        put(chubby, path, "x").await?;
    }
    let (files, revision) = chubby.list("s/").await?;
    let paths: Vec<_> = files.iter().map(|file| file.path.as_str()).collect();
    ensure(paths == ["s/", "s/10", "s/2"], format!("listed {paths:?}"))?;
    ensure(files.iter().all(|file| file.modified <= revision), "the list is older than its files")
}

async fn ids_are_never_given_twice(subject: Subject) -> Checked {
    let chubby = &*subject.chubby;
    let takes = (0..8).map(|_| next_ids(chubby, Counter::Tablets, 3));
    let mut ids = Vec::new();
    for taken in futures::future::join_all(takes).await {
        ids.extend(taken?);
    }
    ids.sort_unstable();
    ensure(ids == (3..27).collect::<Vec<_>>(), format!("took {ids:?}"))
}

async fn watches_tell_changes_in_order(subject: Subject) -> Checked {
    let chubby = &*subject.chubby;
    let (_files, now) = chubby.list("w/").await?;
    let mut watch = chubby.watch("w/", now).await?;
    put(chubby, "other", "x").await?;
    put(chubby, "w/1", "x").await?;
    let gone = done(chubby.transact(vec![], vec![Write::delete("w/1")]).await?)?;
    let first = next(&mut watch).await?;
    ensure(matches!(&first, Event::Put(file) if file.path == "w/1"), format!("first came {first:?}"))?;
    let second = next(&mut watch).await?;
    ensure(second == Event::Deleted { path: "w/1".to_owned(), revision: gone }, format!("then came {second:?}"))
}

async fn watches_begin_where_they_are_told(subject: Subject) -> Checked {
    let chubby = &*subject.chubby;
    let first = put(chubby, "w/1", "x").await?;
    let second = put(chubby, "w/2", "x").await?;
    let mut watch = chubby.watch("w/", first).await?;
    let event = next(&mut watch).await?;
    ensure(matches!(&event, Event::Put(file) if file.modified == second), format!("first came {event:?}"))
}

async fn leased_files_go_when_the_session_is_closed(subject: Subject) -> Checked {
    let chubby = &*subject.chubby;
    let session = chubby.open_session(subject.lease_time).await?;
    ensure(session.is_alive(), "a new session is dead")?;
    done(chubby.transact(vec![], vec![Write::put_leased("l/1", "x", session.lease())]).await?)?;
    put(chubby, "l/2", "stays").await?;
    ensure(read(chubby, "l/1").await?.lease == Some(session.lease()), "the lease is not shown")?;
    session.close().await;
    soon(session.lost()).await?;
    ensure(!session.is_alive(), "a closed session is alive")?;
    ensure(chubby.read("l/1").await?.is_none(), "a leased file outlived its session")?;
    read(chubby, "l/2").await.map(drop)
}

async fn leased_files_go_when_the_holder_vanishes(subject: Subject) -> Checked {
    let chubby = &*subject.chubby;
    let session = chubby.open_session(subject.lease_time).await?;
    let write = Write::put_leased("l/1", "x", session.lease());
    let put = done(chubby.transact(vec![], vec![write]).await?)?;
    let mut watch = chubby.watch("l/", put).await?;
    drop(session);
    let event = next(&mut watch).await?;
    ensure(matches!(&event, Event::Deleted { path, .. } if path == "l/1"), format!("came {event:?}"))
}

async fn an_ended_lease_takes_no_files(subject: Subject) -> Checked {
    let chubby = &*subject.chubby;
    let session = chubby.open_session(subject.lease_time).await?;
    session.close().await;
    let outcome = chubby.transact(vec![], vec![Write::put_leased("l/1", "x", session.lease())]).await;
    ensure(outcome == Err(Error::LeaseLost), format!("gave {outcome:?}"))?;
    ensure(chubby.read("l/1").await?.is_none(), "the file is there")
}

async fn a_lock_has_one_holder_and_passes_on(subject: Subject) -> Checked {
    let chubby = &*subject.chubby;
    let (one, two) = (chubby.open_session(subject.lease_time).await?, chubby.open_session(subject.lease_time).await?);
    let first = acquire(chubby, &*one, "lock", Bytes::from("one")).await?;
    ensure(try_lock(chubby, &*two, "lock", Bytes::from("two")).await?.is_none(), "two holders")?;
    let waits = acquire(chubby, &*two, "lock", Bytes::from("two"));
    let (second, ()) = soon(futures::future::join(waits, one.close())).await?;
    let second = second?;
    ensure(second > first, "the sequencer did not grow")?;
    ensure(read(chubby, "lock").await?.created == second, "the sequencer is not the create revision")
}

async fn a_fence_holds_after_the_lock_passed_on(subject: Subject) -> Checked {
    let chubby = &*subject.chubby;
    let (one, two) = (chubby.open_session(subject.lease_time).await?, chubby.open_session(subject.lease_time).await?);
    let first = acquire(chubby, &*one, "lock", Bytes::new()).await?;
    let fenced = |revision| vec![Compare::Created("lock".to_owned(), revision)];
    done(chubby.transact(fenced(first), vec![Write::put("act", "one")]).await?)?;
    one.close().await;
    let second = acquire(chubby, &*two, "lock", Bytes::new()).await?;
    let late = chubby.transact(fenced(first), vec![Write::put("act", "late")]).await?;
    ensure(late == Outcome::Conflict, "a fenced-off holder acted")?;
    done(chubby.transact(fenced(second), vec![Write::put("act", "two")]).await?).map(drop)
}

async fn what_was_acknowledged_survives_a_crash(subject: Subject) -> Checked {
    let Subject { chubby, lease_time, reopen } = subject;
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
    ensure(next_ids(&*chubby, Counter::Tables, 1).await? == (6..7), "ids are given again")?;
    ensure(put(&*chubby, "new", "x").await? > leased, "revisions went back")?;
    soon(gone(&*chubby, "leased")).await?
}

/// Returns when `path` does not exist (any more).
async fn gone(chubby: &dyn Chubby, path: &str) -> Checked {
    loop {
        let (files, revision) = chubby.list(path).await?;
        if files.is_empty() {
            return Ok(());
        }
        chubby.watch(path, revision).await?.next().await;
    }
}
