//! The cache with a clock controlled by the test.

use std::time::Duration;

use ebla_model::Micros;
use ebla_mounttable_tree::{Deadline, Error, Reason, Target};

use crate::cache::{Cache, CacheConfig, CacheLookup, Caching};
use crate::entry::{MountEntry, ObjectLocation, Server};

const SECOND: Duration = Duration::from_secs(1);

fn at(seconds: u64) -> Micros {
    Micros::new(1_000_000_000_000_000).plus(SECOND * u32::try_from(seconds).unwrap())
}

fn location(name: &str) -> ObjectLocation {
    ObjectLocation::new(&name.parse().unwrap(), "")
}

fn server(address: &str, deadline: Deadline) -> Server {
    Server { address: address.parse().unwrap(), deadline }
}

fn entry(addresses: &[&str], suffix: &str, target: Target) -> MountEntry {
    let servers = addresses.iter().map(|address| server(address, Deadline::FOREVER)).collect();
    MountEntry { servers, suffix: suffix.to_owned(), target }
}

fn insert(cache: &mut Cache, name: &str, entry: MountEntry) {
    let epoch = cache.epoch();
    cache.insert(&location(name), &Ok(entry), epoch, at(0));
}

/// The cached names for `name` at second `now`.
fn found(cache: &mut Cache, name: &str, now: u64) -> Option<Vec<String>> {
    match cache.lookup(&location(name), at(now)) {
        CacheLookup::Fresh(Ok(entry)) => Some(entry.names()),
        _ => None,
    }
}

fn filled(count: usize, deadline: impl Fn(usize) -> Deadline) -> Cache {
    let mut cache = Cache::new(CacheConfig::default());
    for number in 0..count {
        let servers = vec![server("/h:1", deadline(number))];
        let entry = MountEntry { servers, suffix: String::new(), target: Target::Object };
        insert(&mut cache, &format!("/root:1/n{number:05}"), entry);
    }
    cache
}

/// T093
#[test]
fn an_entry_answers_for_names_below_it() {
    let mut cache = Cache::new(CacheConfig::default());
    insert(&mut cache, "/h1:1//a/b/c/d", entry(&["/h2:1"], "c/d", Target::MountTable));
    insert(&mut cache, "/h2:1/c/d", entry(&["/h3:1/in"], "d", Target::Object));
    for (name, expected) in [
        ("/h1:1/a/b/c/d", Some("/h2:1/c/d")),
        ("/h1:1/a//b/", Some("/h2:1")),
        ("/h1:1/a/b/e/f/g", Some("/h2:1/e/f/g")),
        ("/h2:1/c/x", Some("/h3:1/in/x")),
        ("/h1:1/a", None),
        ("/h1:1/a/bb", None),
        ("/h2:1", None),
        ("/h4:1/a/b", None),
    ] {
        assert_eq!(found(&mut cache, name, 0), expected.map(|name| vec![name.to_owned()]), "{name}");
    }
}

/// T094
#[test]
fn each_hit_begins_with_the_next_server() {
    let mut cache = Cache::new(CacheConfig::default());
    let servers = ["/a:1", "/b:1", "/c:1"];
    for count in 1..=servers.len() {
        let name = format!("/root:1/n{count}");
        insert(&mut cache, &name, entry(&servers[..count], "", Target::Object));
        for turn in 0..7 {
            let mut expected = servers[..count].to_vec();
            expected.rotate_left(turn % count);
            assert_eq!(found(&mut cache, &name, 0).unwrap(), expected, "{count} servers, turn {turn}");
        }
    }
}

/// T095
#[test]
fn too_many_entries_become_fewer_and_the_least_used_go() {
    let mut cache = filled(4_000, |_| Deadline::FOREVER);
    assert_eq!(cache.len(), 4_000);
    found(&mut cache, "/root:1/n00000", 0).unwrap();
    insert(&mut cache, "/root:1/new", entry(&["/h:1"], "", Target::Object));
    assert_eq!(cache.len(), 3_000);
    assert!(found(&mut cache, "/root:1/n00000", 0).is_some(), "it was used");
    assert!(found(&mut cache, "/root:1/n00001", 0).is_none(), "it was not");
    assert!(found(&mut cache, "/root:1/new", 0).is_some(), "it is the latest");
}

/// T095
#[test]
fn entries_that_are_over_go_first() {
    let odd_ones_end = |number| if number % 2 == 1 { Deadline::at(at(10)) } else { Deadline::FOREVER };
    let mut cache = filled(4_000, odd_ones_end);
    let epoch = cache.epoch();
    cache.insert(&location("/root:1/new"), &Ok(entry(&["/h:1"], "", Target::Object)), epoch, at(20));
    assert_eq!(cache.len(), 2_001);
    assert!((0..4_000).step_by(2).all(|number| found(&mut cache, &format!("/root:1/n{number:05}"), 20).is_some()));
}

/// T096
#[test]
fn only_what_a_look_up_would_find_is_forgotten() {
    let mut cache = Cache::new(CacheConfig::default());
    insert(&mut cache, "/root:1/a", entry(&["/h:1"], "", Target::Object));
    insert(&mut cache, "/root:1/b", entry(&["/h:2"], "", Target::Object));
    assert!(!cache.invalidate(&location("/root:1/c")));
    assert_eq!(cache.len(), 2);
    assert!(cache.invalidate(&location("/root:1/a/below")));
    assert_eq!((found(&mut cache, "/root:1/a", 0), cache.len()), (None, 1));
    assert!(cache.invalidate(&location("/root:1/b")));
    assert!(cache.is_empty());
}

#[test]
fn invalidation_includes_names_below() {
    let mut cache = Cache::new(CacheConfig::default());
    for name in ["/root:1/a/b", "/root:1/a-b", "/root:1/ab", "/root:1/a/c/d", "/other:1/a/b"] {
        insert(&mut cache, name, entry(&["/h:1"], "", Target::Object));
    }
    assert!(cache.invalidate(&location("/root:1/a")));
    assert_eq!(cache.len(), 3);
    assert!(found(&mut cache, "/root:1/ab", 0).is_some() && found(&mut cache, "/root:1/a/b", 0).is_none());
}

#[test]
fn a_whole_path_is_invalidated_across_all_servers() {
    let mut cache = Cache::new(CacheConfig::default());
    insert(&mut cache, "/root:1/mt/x", entry(&["/m1:1", "/m2:1"], "x", Target::MountTable));
    insert(&mut cache, "/m2:1/x", entry(&["/h:1"], "", Target::Object));
    insert(&mut cache, "/root:1/other", entry(&["/root:1"], "", Target::MountTable));
    assert!(cache.invalidate_path(vec![location("/root:1/mt/x")]));
    assert_eq!(cache.len(), 1);
    assert!(!cache.invalidate_path(vec![location("/root:1/mt/x")]));
}

/// T097
#[test]
fn switched_off_it_knows_nothing_and_forgets_what_it_knew() {
    let mut cache = filled(3, |_| Deadline::FOREVER);
    cache.set_caching(Caching::Off);
    insert(&mut cache, "/root:1/a", entry(&["/h:1"], "", Target::Object));
    assert_eq!(found(&mut cache, "/root:1/a", 0), None);
    cache.set_caching(Caching::On);
    assert!(cache.is_empty());
    insert(&mut cache, "/root:1/a", entry(&["/h:1"], "", Target::Object));
    assert!(found(&mut cache, "/root:1/a", 0).is_some());
}

/// T098
#[test]
fn a_leaf_stays_one_and_a_mount_table_too() {
    let mut cache = Cache::new(CacheConfig::default());
    for target in [Target::Leaf, Target::MountTable] {
        insert(&mut cache, "/root:1/a", entry(&["/h:1"], "", target));
        for _ in 0..2 {
            let CacheLookup::Fresh(Ok(known)) = cache.lookup(&location("/root:1/a"), at(0)) else { panic!("a miss") };
            assert_eq!(known.target, target);
        }
    }
}

#[test]
fn one_server_whose_deadline_has_come_makes_a_miss() {
    let mut cache = Cache::new(CacheConfig::default());
    let servers = vec![server("/a:1", Deadline::FOREVER), server("/b:1", Deadline::at(at(10)))];
    let both = MountEntry { servers, suffix: String::new(), target: Target::Object };
    insert(&mut cache, "/root:1/a", both);
    assert!(found(&mut cache, "/root:1/a", 9).is_some());
    assert!(found(&mut cache, "/root:1/a", 10).is_none());
    let is_stale =
        |cache: &mut Cache, now| matches!(cache.lookup(&location("/root:1/a"), at(now)), CacheLookup::Stale(_));
    assert!(is_stale(&mut cache, 10) && is_stale(&mut cache, 309), "it is better than nothing");
    assert!(!is_stale(&mut cache, 310));
}

#[test]
fn servers_that_are_mounted_for_ever_are_not_believed_for_ever() {
    let mut cache = filled(1, |_| Deadline::FOREVER);
    assert!(found(&mut cache, "/root:1/n00000", 299).is_some());
    assert!(found(&mut cache, "/root:1/n00000", 300).is_none());
}

#[test]
fn absence_is_of_one_name_and_short() {
    let mut cache = Cache::new(CacheConfig::default());
    let absent = Err(Error::new(Reason::NoSuchName, "nothing"));
    let epoch = cache.epoch();
    cache.insert(&location("/root:1/a"), &absent, epoch, at(0));
    assert_eq!(cache.lookup(&location("/root:1/a"), at(0)), CacheLookup::Fresh(absent));
    assert_eq!(cache.lookup(&location("/root:1/a/b"), at(0)), CacheLookup::Miss, "something may be mounted there");
    assert_eq!(cache.lookup(&location("/root:1/a"), at(1)), CacheLookup::Miss);
}

#[test]
fn a_server_that_is_no_mount_table_is_none_for_any_name() {
    let mut cache = Cache::new(CacheConfig::default());
    let other = Err(Error::new(Reason::NotAMountTable, "what?"));
    let epoch = cache.epoch();
    cache.insert(&location("/h:1/a/b"), &other, epoch, at(0));
    assert_eq!(cache.lookup(&location("/h:1/c"), at(59)), CacheLookup::Fresh(other));
    assert_eq!(cache.lookup(&location("/h:1/c"), at(60)), CacheLookup::Miss);
}

#[test]
fn an_answer_from_before_something_was_forgotten_does_not_count() {
    let mut cache = Cache::new(CacheConfig::default());
    let streams = cache.epoch();
    cache.invalidate(&location("/root:1/a"));
    cache.insert(&location("/root:1/a"), &Ok(entry(&["/h:1"], "", Target::Object)), streams, at(0));
    assert!(cache.is_empty());
}
