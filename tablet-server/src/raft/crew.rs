//! Many futures run as one task: what a server's groups do for each other costs no task switch.
//!
//! A write passes through half a dozen futures of its group (the queue, openraft's core, its state machine, its two
//! replication streams, its watch over the disk), each of which wakes the next. As tasks of their own they would be
//! handed from worker to worker; the kernel would be asked to wake a thread for most of these steps. Members of a
//! [`Crew`] wake each other inside one poll, and what a sync of the commit log or a frame from a peer sets going in several
//! groups is done in one go.
//!
//! ```text
//!   task of tokio ── poll ──► FuturesUnordered { core a, state machine a, streams a, queue a, core b, … }
//!                                   ^ spawn, from within the poll or from outside
//! ```
//!
//! A member must not block: what waits for a disk goes to a pool, as everywhere. What a member spawns through openraft's
//! runtime joins the same crew (`boottime`).

use std::any::Any;
use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use ebla_model::id::TabletId;
use ebla_runtime::Tasks;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::task::AtomicWaker;
use futures::{FutureExt as _, StreamExt as _};
use thiserror::Error;
use tokio::sync::oneshot;

/// Crews of one server. Two keep two cores busy; more would gather less.
const CREWS: u64 = 2;

/// The crews of a server; clones are the same ones.
#[derive(Clone)]
pub(super) struct Crews(Arc<[Crew]>);

impl Crews {
    /// Crews that work until `tasks` is told to end; their members are dropped then.
    pub(super) fn start(tasks: &Tasks) -> Self {
        Self((0..CREWS).map(|_| Crew::start(tasks)).collect())
    }

    /// The crew of a tablet's replica.
    pub(super) fn of(&self, tablet: TabletId) -> Crew {
        let count = self.0.len().max(1);
        let at = usize::try_from(tablet.get() % count as u64).unwrap_or(0);
        self.0.get(at).or(self.0.first()).cloned().unwrap_or_default()
    }
}

/// Futures that run as one task; clones are the same crew.
#[derive(Clone, Default)]
pub(super) struct Crew(Arc<Door>);

/// Where new members come in.
#[derive(Default)]
struct Door {
    /// Held to push or to take.
    state: Mutex<State>,
    waker: AtomicWaker,
}

#[derive(Default)]
struct State {
    joining: Vec<BoxFuture<'static, ()>>,
    /// Nobody works any more: whoever joins is dropped.
    ended: bool,
}

thread_local! {
    /// The crew whose poll this thread is in.
    static HERE: RefCell<Option<Crew>> = const { RefCell::new(None) };
}

impl Crew {
    fn start(tasks: &Tasks) -> Self {
        let crew = Self::default();
        let work = Work { crew: crew.clone(), members: FuturesUnordered::new() };
        // A poll visits many members: tokio's budget for one task would cut it short in the middle of a write.
        tasks.spawn_until_stopped("raft-crew", tokio::task::unconstrained(work));
        crew
    }

    /// The crew that the caller works in, if it does.
    pub(super) fn here() -> Option<Self> {
        HERE.with_borrow(Clone::clone)
    }

    /// Runs `future` with the crew. It goes on when the handle is dropped, and is dropped when the crew ends.
    pub(super) fn spawn<T: Send + 'static>(&self, future: impl Future<Output = T> + Send + 'static) -> Member<T> {
        let (sender, outcome) = oneshot::channel();
        let member = async move {
            // As tokio does for a task: the others go on, and whoever waits is told.
            let ended = AssertUnwindSafe(future).catch_unwind().await;
            let _unwanted = sender.send(ended);
        };
        let mut state = self.held();
        if !state.ended {
            state.joining.push(member.boxed());
            drop(state);
            self.0.waker.wake();
        }
        Member(outcome)
    }

    fn held(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The task of a crew; it ends when it is dropped.
struct Work {
    crew: Crew,
    members: FuturesUnordered<BoxFuture<'static, ()>>,
}

impl Work {
    /// Lets in who has joined; true when somebody has.
    fn let_in(&mut self) -> bool {
        let joined = std::mem::take(&mut self.crew.held().joining);
        let some = !joined.is_empty();
        self.members.extend(joined);
        some
    }
}

impl Future for Work {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let _here = Here::enter(self.crew.clone());
        self.crew.0.waker.register(context.waker());
        self.let_in();
        loop {
            let ended = self.members.poll_next_unpin(context);
            let more = self.let_in();
            if !more && !matches!(ended, Poll::Ready(Some(()))) {
                return Poll::Pending;
            }
        }
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        let mut state = self.crew.held();
        state.ended = true;
        let joining = std::mem::take(&mut state.joining);
        drop(state);
        drop(joining);
    }
}

/// Tells, until it is dropped, what a member spawns where it belongs.
struct Here {
    before: Option<Crew>,
}

impl Here {
    fn enter(crew: Crew) -> Self {
        Self { before: HERE.with_borrow_mut(|here| here.replace(crew)) }
    }
}

impl Drop for Here {
    fn drop(&mut self) {
        let before = self.before.take();
        HERE.with_borrow_mut(|here| *here = before);
    }
}

/// A member of a crew, to wait for. Dropping it changes nothing.
pub(crate) struct Member<T>(oneshot::Receiver<Result<T, Box<dyn Any + Send>>>);

/// Why a member came to no result.
#[derive(Error)]
pub(crate) enum Lost {
    /// It panicked.
    #[error("a member of the crew panicked")]
    Panicked,
    /// Its crew has ended.
    #[error("the crew has ended")]
    Ended,
}

impl fmt::Debug for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<T> Future for Member<T> {
    type Output = Result<T, Lost>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll_unpin(context).map(|outcome| match outcome {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(_panic)) => Err(Lost::Panicked),
            Err(_gone) => Err(Lost::Ended),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn members_wake_each_other_and_answer() {
        let tasks = Tasks::new("test");
        let crew = Crew::start(&tasks);
        let (sender, receiver) = oneshot::channel();
        let waits = crew.spawn(async move { receiver.await.unwrap() });
        let inner = crew.spawn(async move {
            let here = Crew::here().unwrap();
            // From within: it joins while the crew works.
            here.spawn(async move { sender.send(7).unwrap() }).await.unwrap();
            8
        });
        assert_eq!((waits.await.unwrap(), inner.await.unwrap()), (7, 8));
        assert!(Crew::here().is_none());
        tasks.stop(Duration::from_secs(30)).await;
    }

    #[tokio::test]
    async fn a_panic_is_told_and_the_others_go_on() {
        let tasks = Tasks::new("test");
        let crew = Crew::start(&tasks);
        let lost = crew.spawn(async { panic!("planned by the test") }).await;
        assert!(matches!(lost, Err::<(), _>(Lost::Panicked)));
        assert_eq!(crew.spawn(async { 1 }).await.unwrap(), 1);
        tasks.stop(Duration::from_secs(30)).await;
    }

    #[tokio::test]
    async fn the_end_of_the_crew_ends_its_members() {
        let tasks = Tasks::new("test");
        let crew = Crew::start(&tasks);
        let waits = crew.spawn(std::future::pending::<()>());
        tasks.stop(Duration::from_secs(30)).await;
        assert!(matches!(waits.await, Err(Lost::Ended)));
        assert!(matches!(crew.spawn(async {}).await, Err(Lost::Ended)));
    }
}
