//! The cache of a server: T067, T068, T069, T116, T121.

use ebla_model::Micros;
use ebla_mounttable_tree::node::{Incarnation, Reference};
use ebla_mounttable_tree::store::caching::{FALLBACK_TIMEOUT, LookupCounts};
use ebla_mounttable_tree::store::{Cell, Change, Condition, Environment, Family, Freshness, PathRow, Store, cache};
use ebla_mounttable_tree::{Reason, row_key};

use crate::storage::{Call, Health, Storage, alone, go_on, together};
use crate::{MILLI, Replica, SECOND, caller, name};

fn anything() -> Condition {
    Condition::All(Vec::new())
}

fn says(storage: &Storage, what: &str) -> Vec<Change> {
    let cell = Cell { timestamp: storage.now(), value: what.to_owned() };
    vec![Change::Set(Family::Meta, "v".to_owned(), cell)]
}

/// Writes to a child of the root, bypassing the cache.
fn write(storage: &Storage, child: &str, what: &str) {
    let cell = Cell { timestamp: Micros::ZERO, value: Reference::Committed(Incarnation::new(1)).text() };
    let mut root = says(storage, "root");
    root.push(Change::Set(Family::Children, child.to_owned(), cell));
    for (key, change) in [(row_key(&name("")), root), (row_key(&name(child)), says(storage, what))] {
        assert!(alone(storage.memory.change_if(&key, anything(), change)).unwrap());
    }
}

async fn said(store: &impl Store, child: &str) -> String {
    let recent = store.read_recent(&name(child)).await.unwrap();
    let value = |row: &PathRow| row.own.cells().get(&(Family::Meta, "v".to_owned())).unwrap().value.clone();
    recent.rows.last().unwrap().as_ref().map_or_else(|| "nothing".to_owned(), value)
}

/// T067
#[test]
fn a_row_is_read_once_a_second_however_many_want_it() {
    let storage = Storage::new();
    let store = Replica::of(&storage).store;
    let keys = ["one", "two"];
    for half_second in 0..=4 {
        keys.iter().for_each(|key| write(&storage, key, &format!("{key} {half_second}")));
        let read = |key: &'static str| -> Call<'_, String> { Box::pin(said(&store, key)) };
        let answers = together(keys.iter().cycle().take(10).map(|key| read(key)));
        let read_at = half_second - half_second % 2;
        for (key, answer) in keys.iter().cycle().zip(&answers) {
            assert_eq!(*answer, format!("{key} {read_at}"));
        }
        for key in keys {
            assert_eq!(
                storage.take_reads(&row_key(&name(key))),
                usize::from(half_second % 2 == 0),
                "{key} at {half_second}/2 s"
            );
        }
        storage.advance(SECOND / 2);
    }
    assert_eq!(store.cache_handle().counts(), LookupCounts { hits: 20, misses: 6, joined: 24, stale: 0 });
}

/// T068
#[test]
fn a_thousand_lookups_of_a_missing_name_read_once() {
    let storage = Storage::new();
    let replica = Replica::of(&storage);
    replica.mount("there", "h:1", SECOND * 60).unwrap();
    let (caller, missing) = (caller(), name("not/there"));
    for _ in 0..3 {
        storage.take_calls();
        let ask = |_| -> Call<'_, Reason> {
            Box::pin(async { replica.table.resolve_recent(&caller, &missing).await.unwrap_err().reason })
        };
        assert!(together((0..1_000).map(ask)).iter().all(|reason| *reason == Reason::NoSuchName));
        assert_eq!(storage.take_calls(), 1);
        storage.advance(cache::NEGATIVE_TTL - MILLI);
        assert!(replica.look_up("not/there").is_err());
        assert_eq!(storage.take_calls(), 0, "absence is known for {:?}", cache::NEGATIVE_TTL);
        storage.advance(MILLI);
    }
}

/// T069: a change evicts its row, whether it succeeded, failed, or its outcome is unknown.
#[test]
fn a_change_reads_the_current_row() {
    let storage = Storage::new();
    let store = Replica::of(&storage).store;
    write(&storage, "row", "old");
    for (when, health) in [(anything(), Health::Fine), (Condition::RowAbsent, Health::Fine), (anything(), Health::Away)]
    {
        assert_eq!(alone(said(&store, "row")), "old");
        write(&storage, "row", "new");
        assert_eq!(alone(said(&store, "row")), "old", "what others do is seen later");
        storage.turn(health);
        drop(alone(store.change_if(&row_key(&name("row")), when.clone(), says(&storage, "new"))));
        storage.turn(Health::Fine);
        assert_eq!(alone(said(&store, "row")), "new", "{when:?} {health:?}");
        assert!(alone(store.change_if(&row_key(&name("row")), anything(), says(&storage, "old"))).unwrap());
    }
    let replica = Replica::of(&Storage::new());
    for server in ["h:1", "h:2"] {
        replica.mount("a/b", server, SECOND * 60).unwrap();
        assert!(replica.servers("a/b").contains(&server.to_owned()));
    }
    alone(replica.table.unmount(&caller(), &name("a/b"), None)).unwrap();
    assert_eq!(replica.look_up("a/b").unwrap_err().reason, Reason::NoSuchName);
}

/// T069: the result of a read that began before a change is not cached.
#[test]
fn a_read_overtaken_by_a_change_is_not_cached() {
    let storage = Storage::new();
    let store = Replica::of(&storage).store;
    write(&storage, "", "old");
    let mut early: Call<'_, String> = Box::pin(said(&store, ""));
    // It has read, and has not returned yet.
    while storage.take_reads(&row_key(&name(""))) == 0 {
        assert_eq!(go_on(&mut early, 1), None);
    }
    assert!(alone(store.change_if(&row_key(&name("")), anything(), says(&storage, "new"))).unwrap());
    assert_eq!(alone(said(&store, "")), "new", "a new call does not join the early read");
    assert_eq!(go_on(&mut early, 100), Some("old".to_owned()));
    assert_eq!(alone(said(&store, "")), "new");
}

/// A caller that joined a read which is dropped reads itself.
#[test]
fn a_dropped_read_releases_its_waiters() {
    let storage = Storage::new();
    let store = Replica::of(&storage).store;
    write(&storage, "row", "there");
    let mut reader: Call<'_, String> = Box::pin(said(&store, "row"));
    let mut waiter: Call<'_, String> = Box::pin(said(&store, "row"));
    assert_eq!((go_on(&mut reader, 1), go_on(&mut waiter, 5)), (None, None));
    drop(reader);
    assert_eq!(go_on(&mut waiter, 100), Some("there".to_owned()));
}

/// T116, without a cluster: cached names resolve, marked as stale.
#[test]
fn stale_entries_are_served_while_the_storage_is_unavailable() {
    let storage = Storage::new();
    let replica = Replica::of(&storage);
    replica.mount("a/b", "h:1", SECOND * 3_600).unwrap();
    assert_eq!(replica.look_up("a/b/c").unwrap().freshness, Freshness::Recent);
    assert_eq!(replica.look_up("never").unwrap_err().reason, Reason::NoSuchName);
    storage.turn(Health::Away);
    storage.advance(SECOND);
    let found = replica.look_up("a/b/c").unwrap();
    assert_eq!((found.servers.len(), found.suffix.as_str(), found.freshness), (1, "c", Freshness::Stale));
    storage.take_calls();
    assert_eq!(replica.look_up("a/b/other").unwrap().suffix, "other", "below a mount nothing is looked for");
    assert_eq!(storage.take_calls(), 0, "a lookup with a cached answer sends no request");
    for unknown in ["never", "a", "else/where"] {
        assert_eq!(replica.look_up(unknown).unwrap_err().reason, Reason::Unavailable, "{unknown}");
    }
    assert_eq!(replica.mount("a/b", "h:2", SECOND).unwrap_err().reason, Reason::Unavailable);
    storage.advance(cache::STALE_TTL);
    assert_eq!(replica.look_up("a/b").unwrap_err().reason, Reason::Unavailable, "the stale entry has expired");
    storage.turn(Health::Fine);
    let found = replica.look_up("a/b").unwrap();
    assert_eq!((found.servers.len(), found.freshness), (1, Freshness::Recent));
}

/// T116: a caller with stale data does not wait long for a silent storage.
#[test]
fn stale_data_is_served_when_the_storage_is_silent() {
    let storage = Storage::new();
    let replica = Replica::of(&storage);
    replica.mount("a/b", "h:1", SECOND * 3_600).unwrap();
    replica.look_up("a/b").unwrap();
    storage.turn(Health::Silent);
    storage.advance(SECOND);
    let (caller, known, unknown) = (caller(), name("a/b"), name("c"));
    let ask = |name| Box::pin(replica.table.resolve_recent(&caller, name));
    let (mut first, mut second, mut never): (Call<'_, _>, Call<'_, _>, Call<'_, _>) =
        (ask(&known), ask(&known), ask(&unknown));
    for call in [&mut first, &mut second, &mut never] {
        assert_eq!(go_on(call, 100), None);
    }
    storage.advance(FALLBACK_TIMEOUT);
    for call in [&mut first, &mut second] {
        assert_eq!(go_on(call, 100).unwrap().unwrap().freshness, Freshness::Stale);
    }
    assert_eq!(go_on(&mut never, 100), None);
    let mut third: Call<'_, _> = ask(&known);
    assert_eq!(go_on(&mut third, 1).unwrap().unwrap().freshness, Freshness::Stale, "at once");
    assert_eq!(replica.store.cache_handle().counts().stale, 3);
    storage.turn(Health::Fine);
    storage.advance(cache::UNAVAILABLE_BACKOFF);
    assert_eq!(replica.look_up("a/b").unwrap().freshness, Freshness::Recent);
}

/// T121
#[test]
fn a_change_is_visible_on_other_servers_within_a_second() {
    let storage = Storage::new();
    let (one, other) = (Replica::of(&storage), Replica::of(&storage));
    assert_eq!(other.servers("a/b"), Vec::<String>::new());
    one.mount("a/b", "h:1", SECOND * 60).unwrap();
    assert_eq!(one.servers("a/b"), ["h:1"], "at once where it was mounted");
    storage.advance(cache::NEGATIVE_TTL);
    assert_eq!(other.servers("a/b"), ["h:1"], "a new name is seen soon");
    one.mount("a/b", "h:2", SECOND * 60).unwrap();
    storage.advance(SECOND - MILLI);
    assert_eq!(other.servers("a/b"), ["h:1"], "what is known is not read again yet");
    storage.advance(MILLI);
    assert_eq!(other.servers("a/b"), ["h:1", "h:2"]);
}

/// Names below a mount cost no read of their own; those of a directory one each.
#[test]
fn names_below_a_mount_are_one_name() {
    let storage = Storage::new();
    let replica = Replica::of(&storage);
    replica.mount("table", "h:1", SECOND * 60).unwrap();
    replica.look_up("table").unwrap();
    storage.take_calls();
    for name in 0..100 {
        assert_eq!(replica.look_up(&format!("table/{name}/x")).unwrap().suffix, format!("{name}/x"));
    }
    assert_eq!(storage.take_calls(), 0);
}

/// A walk reads the missing rows of its path in one call.
#[test]
fn missing_rows_are_read_in_one_call() {
    let storage = Storage::new();
    let replica = Replica::of(&storage);
    replica.mount("a/b/c/d", "h:1", SECOND * 60).unwrap();
    replica.mount("a/b/x", "h:2", SECOND * 60).unwrap();
    storage.advance(SECOND * 2);
    storage.take_calls();
    assert_eq!(replica.servers("a/b/c/d"), ["h:1"]);
    assert_eq!(storage.take_calls(), 1);
    storage.take_reads(&row_key(&name("")));
    assert_eq!(replica.servers("a/b/x"), ["h:2"]);
    assert_eq!((storage.take_calls(), storage.take_reads(&row_key(&name("")))), (1, 0));
}

/// A lookup joins the read of another caller that began before its own change: it must see its change.
#[test]
fn a_joined_read_does_not_hide_the_callers_own_change() {
    let storage = Storage::new();
    let replica = Replica::of(&storage);
    replica.mount("a/b", "h:1", SECOND * 60).unwrap();
    for steps in 1..12 {
        storage.advance(SECOND * 2);
        let (caller, wanted) = (caller(), name("a/b"));
        let resolve = || -> Call<'_, Vec<String>> {
            Box::pin(async {
                let found = replica.table.resolve_recent(&caller, &wanted).await.unwrap();
                found.servers.iter().map(|server| server.address.to_string()).collect()
            })
        };
        let mut other = resolve();
        let is_over = go_on(&mut other, steps).is_some();
        let server = format!("h:{}", 100 + steps);
        replica.mount("a/b", &server, SECOND * 60).unwrap();
        let mut mine = resolve();
        // It reads the changed row itself, and waits for the other read to bring the rest.
        let seen = go_on(&mut mine, 30).or_else(|| {
            assert!(!is_over && go_on(&mut other, 30).is_some());
            go_on(&mut mine, 30)
        });
        assert!(seen.unwrap().contains(&server), "after {steps} steps of the other read");
    }
}
