//! The embedded service against the conformance suite, and its own promise: it distinguishes damage from a torn tail.

use std::path::PathBuf;

use super::*;
use crate::next_ids;
use crate::testing::conformance::{ServiceUnderTest, run_all};

const LEASE_TIME: Duration = Duration::from_millis(300);

fn open(dir: &Path) -> Result<Embedded, Error> {
    Embedded::open(dir, Clock::system(), &Tasks::new("test"))
}

#[tokio::test]
async fn in_memory_conforms() {
    let make = || async {
        let chubby = Embedded::in_memory(Clock::system(), &Tasks::new("test")).shared();
        ServiceUnderTest { chubby, lease_time: LEASE_TIME, reopen: None }
    };
    run_all(make).await.unwrap();
}

/// A service in `dir`, which can be reopened any number of times.
fn on_disk(dir: PathBuf) -> ServiceUnderTest {
    let chubby = open(&dir).unwrap().shared();
    let reopen = Box::new(move || Box::pin(async move { on_disk(dir) }) as BoxFuture<'static, ServiceUnderTest>);
    ServiceUnderTest { chubby, lease_time: LEASE_TIME, reopen: Some(reopen) }
}

#[tokio::test]
async fn on_disk_conforms_and_survives_reopening() {
    let root = tempfile::tempdir().unwrap();
    let count = std::sync::atomic::AtomicU32::new(0);
    let make = || async {
        let number = count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        on_disk(root.path().join(number.to_string()))
    };
    run_all(make).await.unwrap();
}

/// Commits three transactions and returns the journal's bytes.
async fn three_files(dir: &Path) -> Vec<u8> {
    let chubby = open(dir).unwrap();
    for path in ["a", "b", "c"] {
        chubby.transact(vec![], vec![Write::put(path, "some value")]).await.unwrap();
    }
    drop(chubby);
    std::fs::read(dir.join("journal")).unwrap()
}

#[tokio::test]
async fn a_torn_tail_is_truncated_wherever_it_is_torn() {
    let dir = tempfile::tempdir().unwrap();
    let journal = three_files(dir.path()).await;
    let last = journal.len() - 20;
    for kept in last..journal.len() {
        for garbage in [&b""[..], &[0; 9], b"\xff\x01garbage"] {
            let torn = [&journal[..kept], garbage].concat();
            if torn.len() >= journal.len() && !garbage.is_empty() {
                // No write was interrupted here: nothing is missing.
                continue;
            }
            std::fs::write(dir.path().join("journal"), torn).unwrap();
            let chubby = open(dir.path()).unwrap();
            let (files, _revision) = chubby.list("").await.unwrap();
            let paths: Vec<_> = files.iter().map(|file| file.path.as_str()).collect();
            assert_eq!(paths, ["a", "b"], "torn after {kept} of {}", journal.len());
        }
    }
}

#[tokio::test]
async fn damage_before_the_end_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let journal = three_files(dir.path()).await;
    // Any byte after the snapshot and before the last record.
    for place in 30..journal.len() - 60 {
        let mut damaged = journal.clone();
        damaged[place] ^= 0x10;
        std::fs::write(dir.path().join("journal"), &damaged).unwrap();
        let refused = open(dir.path()).unwrap_err();
        assert!(matches!(refused, Error::Damaged(_)), "byte {place}: {refused}");
        assert!(
            refused.to_string().ends_with("journal; nothing was changed; restore this file from a copy"),
            "{refused}"
        );
        assert_eq!(std::fs::read(dir.path().join("journal")).unwrap(), damaged, "byte {place}");
    }
}

#[tokio::test]
async fn a_folder_is_locked_by_one_process() {
    let dir = tempfile::tempdir().unwrap();
    let first = open(dir.path()).unwrap();
    assert!(matches!(open(dir.path()), Err(Error::Unavailable(_))));
    drop(first);
    open(dir.path()).unwrap();
}

#[tokio::test]
async fn a_holder_whose_renewals_stop_learns_that_its_lease_is_lost() {
    let chubby = Embedded::in_memory(Clock::system(), &Tasks::new("test"));
    let session = chubby.open_session(LEASE_TIME).await.unwrap();
    chubby.stop_renewing(session.lease());
    tokio::time::timeout(Duration::from_secs(30), session.lost()).await.unwrap();
    assert!(!session.is_alive());
}

#[tokio::test]
async fn a_slow_watcher_receives_a_gap() {
    let chubby = Embedded::in_memory(Clock::system(), &Tasks::new("test"));
    let mut watch = chubby.watch("w", Revision::ZERO).await.unwrap();
    for _ in 0..2 * WATCH_EVENTS_MAX {
        chubby.transact(vec![], vec![Write::put("w", "x")]).await.unwrap();
    }
    let mut events = 0;
    loop {
        match watch.next().await {
            Some(WatchEvent::Put(_)) => events += 1,
            Some(WatchEvent::Gap) => break,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((events, watch.next().await), (WATCH_EVENTS_MAX - 1, None));
}

#[tokio::test]
async fn a_watch_from_before_the_history_is_a_gap() {
    let chubby = Embedded::in_memory(Clock::system(), &Tasks::new("test"));
    for _ in 0..6_000 {
        next_ids(&chubby, crate::Counter::Tables, 1).await.unwrap();
    }
    let mut watch = chubby.watch("", Revision::new(1)).await.unwrap();
    assert_eq!(watch.next().await, Some(WatchEvent::Gap));
}
