//! Listings: T025 to T033, T040 to T042, T051, T052.

use ebla_mounttable_tree::{Error, Permissions, Reason};

use crate::FIXTURE;
use crate::world::{SECOND, World};

/// The set G of the conformance cases.
fn poem() -> World {
    let world = World::open();
    world.mount("root", "one/bright/day", "/h:1/fine", 60).unwrap();
    world.mount("root", "in/the/middle", "/h:1/of", 60).unwrap();
    world.mount("root", "of/the/night", "/h:1/quux", 60).unwrap();
    world
}

/// T025 T026 T027 T028 T029 T030 T031
#[test]
fn patterns_find_what_they_ask_for() {
    let world = poem();
    let nine = ["in", "in/the", "in/the/middle", "of", "of/the", "of/the/night", "one", "one/bright", "one/bright/day"];
    let all: Vec<_> = std::iter::once("").chain(nine).collect();
    let cases: [(&str, &[&str]); 9] = [
        ("*", &["in", "of", "one"]),
        ("...", &all),
        ("*/...", &nine),
        ("one/...", &["one", "one/bright", "one/bright/day"]),
        ("of/the/night/two/dead/boys", &["of/the/night"]),
        ("*/the", &["in/the", "of/the"]),
        ("*/the/...", &["in/the", "in/the/middle", "of/the", "of/the/night"]),
        ("o*", &["of", "one"]),
        ("", &[""]),
    ];
    for (pattern, expected) in cases {
        assert_eq!(world.glob_names("root", "", pattern), expected, "{pattern}");
    }
    assert_eq!(world.glob("root", "", "one/*/*"), ["one/bright/day=/h:1/fine"]);
    assert_eq!(world.glob("root", "never", "..."), Vec::<String>::new());
    assert_eq!(world.glob_summary("root", "", "a//b").unwrap_err().reason, Reason::BadPattern);
}

/// T032
#[test]
fn a_receiver_below_a_mount_returns_the_servers() {
    let world = poem();
    let found = world.glob("root", "of/the/night/two/dead/boys/got/up/to/fight", "*");
    assert_eq!(found, ["=/h:1/quux/two/dead/boys/got/up/to/fight"]);
}

/// T033, and a directory of many pages.
#[test]
fn large_directories_are_listed_completely() {
    let world = World::open();
    for directory in 0..5 {
        (0..25).for_each(|leaf| drop(world.mount("root", &format!("{directory}/{leaf}"), "h:1", 60).unwrap()));
    }
    assert_eq!(world.glob_names("root", "", "...").len(), 131);
    (0..600).for_each(|leaf| drop(world.mount("root", &format!("big/{leaf}"), "h:1", 60).unwrap()));
    assert_eq!(world.glob_names("root", "big", "*").len(), 600);
    assert_eq!(world.glob_names("root", "big", "59*").len(), 11);
    world.take_calls();
    assert_eq!(world.glob_names("root", "big", "7"), ["7"]);
    assert!(world.take_calls().0 <= 5, "one child is found without listing the others");
}

/// T034: a cancelled listing reports nothing more.
#[test]
fn a_listing_that_is_broken_off_ends_at_once() {
    let world = poem();
    let (offered, error) = world.glob_without_rights("...");
    assert_eq!((offered, error.reason), (1, Reason::Cancelled));
}

/// Nothing matches, so there is nothing whose sending could fail.
#[test]
fn a_listing_without_matches_ends_when_its_reader_leaves() {
    let world = World::open();
    (0..10).for_each(|number| drop(world.mount("root", &format!("{number}/a/b"), "h:1", 60).unwrap()));
    // The root, its children and theirs: 21 directories, each with a page and its end.
    for page in [1, 2, 42] {
        assert_eq!(world.glob_until_page(page, "*/*/x").unwrap_err().reason, Reason::Cancelled, "{page}");
    }
    world.glob_until_page(43, "*/*/x").unwrap();
}

/// T040 T041: hidden subtrees are omitted, with a vague notice only.
#[test]
fn invisible_nodes_are_not_listed() {
    let world = World::with(FIXTURE);
    world.apply(
        r#"{"": {"Read":{"In":["..."]},"Admin":{"In":["root"]},"Create":{"In":["root","bob"]}},
            "stuff": {"Read":{"In":["bob","root"]},"Mount":{"In":["root"]}},
            "a": {"Read":{"In":["alice","root"]},"Create":{"In":["root"]}},
            "users": {"Create":{"In":["..."]}},
            "users/%%": {"Admin":{"In":["%%"]},"Resolve":{"In":["..."]}}}"#,
    );
    world.mount("bob", "one/bright/day", "h:1", 60).unwrap();
    assert_eq!(world.reason(world.mount("alice", "a/b/c", "h:1", 60)), Reason::NoAccess);
    let given = r#"{"Read":{"In":["alice","root"]},"Create":{"In":["root"]},"Mount":{"In":["root"]}}"#;
    world.set_permissions("server", "a", given, None).unwrap();
    world.mount("root", "a/b/c", "h:1", 60).unwrap();
    assert_eq!(world.glob_names("root", "", "*"), ["a", "one", "stuff", "users"]);
    assert_eq!(world.glob_names("alice", "", "*"), ["a", "one", "users"]);
    assert_eq!(world.glob_names("bob", "", "*"), ["one", "stuff", "users"]);
    let bobs = world.glob_names("bob", "", "*/...");
    assert_eq!(bobs, ["one", "one/bright", "one/bright/day", "stuff", "users"]);
    assert!(!world.glob_names("alice", "", "*/...").contains(&"stuff".to_owned()));
    assert!(world.glob_summary("bob", "", "*").unwrap().has_omitted);
    assert!(!world.glob_summary("server", "", "...").unwrap().has_omitted);
    assert_eq!(world.reason(world.glob_summary("bob", "a/b", "*")), Reason::NoAccess);
}

/// A caller who may only look up exact names does not learn other names.
#[test]
fn only_readers_list() {
    let world = World::open();
    world.mount("root", "d/x", "h:1", 60).unwrap();
    let permissions = r#"{"Admin":{"In":["root"]},"Resolve":{"In":["..."]}}"#;
    world.set_permissions("root", "d", permissions, None).unwrap();
    assert_eq!(world.glob_names("bob", "d", "*"), Vec::<String>::new());
    assert!(world.glob_summary("bob", "d", "*").unwrap().has_omitted);
    assert_eq!(world.glob_names("bob", "d", "x"), ["x"]);
}

/// T051 T052: expired mounts are not listed, nor directories that contained nothing else.
#[test]
fn expired_mounts_are_collected_with_their_directories() {
    let world = World::open();
    for name in ["a1/b1", "a1/b2", "a2/b1", "a2/b2/c"] {
        world.mount("root", name, "h:1", 3_600).unwrap();
    }
    assert_eq!(world.glob_names("root", "", "*/b1/..."), ["a1/b1", "a2/b1"]);
    world.memory.advance(SECOND * 1_800);
    assert_eq!(world.glob_names("root", "", "*/b1/..."), ["a1/b1", "a2/b1"]);
    assert_eq!(world.glob_names("root", "a2/b2", "*"), ["c"]);
    world.mount("root", "a1/b1", "h:1", 3_600).unwrap();
    world.memory.advance(SECOND * 1_804);
    assert_eq!(world.glob_names("root", "", "*/..."), ["a1", "a1/b1"]);
    assert_eq!(world.memory.rows().len(), 3, "and it is collected");
    assert_eq!(world.usage("root"), (2, 1));
}

/// A damaged row does not hide the others.
#[test]
fn a_damaged_row_is_skipped_and_reported() -> Result<(), Error> {
    let world = World::open();
    world.mount("root", "d/x", "h:1", 60)?;
    world.mount("root", "d/y", "h:1", 60)?;
    world.damage("d/x");
    assert_eq!(world.glob_names("root", "d", "*"), ["y"]);
    assert_eq!(world.glob_failures("", "..."), [("d/x".to_owned(), Reason::Damaged)]);
    assert_eq!(world.check().len(), 3, "the row, and the two counters that it does not count for");
    assert_eq!(world.sweep().damaged, 1);
    assert_eq!(world.reason(world.resolve("root", "d/x")), Reason::Damaged);
    let open = Permissions::open().to_json();
    world.set_permissions("root", "d", &open, None)
}
