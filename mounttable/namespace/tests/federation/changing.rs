//! Mounts, deletions and permissions go to all servers of a table: mounts to the one that holds the name, deletions and
//! permissions only if that is asked for.

use ebla_mounttable_namespace::{Caching, ChangeScope, MountOptions, Roots};
use ebla_mounttable_tree::table::Subtree;
use ebla_mounttable_tree::{BlessingName, Caller, Permissions, Reason, Tag, Target};

use crate::world::{HOUR, NOBODY, World, address};

async fn delete(world: &World, name: &str, subtree: Subtree) -> Result<Vec<u64>, Reason> {
    world.names.delete(name, subtree).await.unwrap().all().map_err(|error| error.reason)
}

/// T099
#[tokio::test]
async fn a_node_is_deleted_where_it_is_held() {
    let world = World::new(&["mt1", "mt2"]).await;
    world.mount_table("mt1", "mt1").await;
    world.mount_table("mt2", "mt2").await;
    world.mount("mt1/kept", "/h:1", Target::Object).await.unwrap();
    assert_eq!(delete(&world, "mt1", Subtree::Refuse).await, Ok(vec![1]), "the mount, not the table");
    assert_eq!(world.resolve("mt1/kept").await.unwrap_err().reason, Reason::NoSuchName);
    assert_eq!(world.resolve(&format!("{}/kept", world.at("mt1"))).await.unwrap(), ["/h:1"]);
    world.mount("mt2/b/c", "/h:1", Target::Object).await.unwrap();
    assert_eq!(delete(&world, "mt2/b", Subtree::Refuse).await, Err(Reason::NotEmpty));
    assert_eq!(delete(&world, "mt2/b", Subtree::Delete).await, Ok(vec![2]));
    assert_eq!(delete(&world, "mt2/never", Subtree::Refuse).await, Ok(vec![0]));
    assert_eq!(world.resolve("mt2/b/c").await.unwrap_err().reason, Reason::NoSuchName);
}

fn owned_by(name: &str) -> Permissions {
    Permissions::from_json(&format!(r#"{{"Admin":{{"In":["{name}"]}},"Read":{{"In":["..."]}}}}"#)).unwrap()
}

/// T101: a node with a mounted table and a node in that table are different, although one name is a prefix of the
/// other.
#[tokio::test]
async fn permissions_are_stored_in_the_table_of_the_node() {
    let world = World::new(&["mt"]).await;
    world.mount_table("a/mt", "mt").await;
    world.mount("a/mt/b", "/h:1", Target::Object).await.unwrap();
    let (outer, inner) = (owned_by("test:outer"), owned_by("test:inner"));
    world.names.set_permissions("a/mt", &outer, None).await.unwrap();
    world.names.set_permissions("a/mt/b", &inner, None).await.unwrap();
    let (root, mt) = (world.at("root"), world.at("mt"));
    let read = async |name: String| world.names.permissions(&name).await.unwrap().0.to_json();
    let has = |json: &str, name: &str| json.contains(name);
    assert!(has(&read("a/mt".to_owned()).await, "test:outer"));
    assert!(has(&read("a/mt/b".to_owned()).await, "test:inner"));
    assert!(has(&read(format!("{mt}/b")).await, "test:inner"));
    assert!(!has(&read(mt).await, "test:"), "the lower table's root is another node");
    assert!(!has(&read(root).await, "test:"));
}

/// T102: closing a node keeps its author's Admin.
#[tokio::test]
async fn closed_permissions_still_allow_their_author() {
    let world = World::new(&[]).await;
    let as_caller = |name: &str| world.builder("root").identity(name).build().unwrap();
    let (root, alice) = (as_caller("root"), as_caller("alice"));
    let closed = r#"{"Admin":{"In":[""]},"Read":{"In":[""]},"Resolve":{"In":[""]}}"#;
    root.set_permissions("d/f", &Permissions::from_json(closed).unwrap(), None).await.unwrap();
    let options = MountOptions::new(HOUR);
    root.mount("d/f", &address("/h:1"), options).await.unwrap().all().unwrap();
    let (permissions, _) = root.permissions("d/f").await.unwrap();
    assert!(permissions.to_json().contains(r#""Admin":{"In":["","root"]}"#), "{permissions}");
    assert_eq!(alice.resolve("d/f").await.unwrap_err().reason, Reason::NoAccess);
    assert_eq!(root.resolve("d/f").await.unwrap().names(), ["/h:1"]);
}

#[tokio::test]
async fn concurrent_updates_of_permissions_are_retried() {
    let world = World::new(&[]).await;
    world.names.set_permissions("a", &owned_by("test"), None).await.unwrap();
    let (seen, etag) = world.names.permissions("a").await.unwrap();
    world.names.set_permissions("a", &seen, Some(&etag)).await.unwrap();
    let stale = world.names.set_permissions("a", &seen, Some(&etag)).await.unwrap_err();
    assert_eq!(stale.reason, Reason::BadVersion);
    let add = |name: &'static str| {
        world.names.update_permissions("a", move |old| {
            let json = old.to_json().replacen(r#""In":["#, &format!(r#""In":["{name}","#), 1);
            Permissions::from_json(&json).unwrap()
        })
    };
    let added = futures::future::join_all(["u1", "u2", "u3", "u4", "u5"].map(add)).await;
    assert!(added.iter().all(Result::is_ok), "{added:?}");
    let (permissions, _) = world.names.permissions("a").await.unwrap();
    let callers: [BlessingName; 5] = ["u1", "u2", "u3", "u4", "u5"].map(|name| name.parse().unwrap());
    for caller in callers {
        let caller = Caller::new(vec![caller], &[]);
        assert!(permissions.allow(&caller, &[Tag::Admin]), "{permissions}");
    }
}

/// A change goes to every root, and returns each result.
#[tokio::test]
async fn a_mount_goes_to_all_roots() {
    let world = World::new(&["second"]).await;
    let roots = [world.at("root"), NOBODY.to_owned(), world.at("second")];
    let roots = Roots::new(roots.iter().map(String::as_str)).unwrap();
    world.names.set_roots(roots);
    let options = MountOptions::new(HOUR);
    let outcomes = world.names.mount("a", &address("/h:1"), options).await.unwrap();
    let reasons: Vec<_> =
        outcomes.each().map(|(_, outcome)| outcome.as_ref().err().map(|error| error.reason)).collect();
    assert_eq!(reasons, [None, Some(Reason::Unavailable), None]);
    assert_eq!(outcomes.clone().any().unwrap().created, 1);
    assert_eq!(outcomes.all().unwrap_err().reason, Reason::Unavailable);
    for table in ["root", "second"] {
        assert_eq!(world.builder(table).build().unwrap().resolve("a").await.unwrap().names(), ["/h:1"], "{table}");
    }
    let removed: Vec<_> = world.names.unmount("a", None).await.unwrap().each().map(|(_, it)| it.clone().ok()).collect();
    assert_eq!(removed, [Some(1), None, Some(1)]);
}

/// Someone mounts a table over a part of the tree, to redirect the changes of others.
#[tokio::test]
async fn a_change_does_not_follow_a_mounted_table_unless_asked() {
    let world = World::new(&["mt"]).await;
    world.names.set_caching(Caching::Off);
    world.mount_table("link", "mt").await;
    let kept = format!("{}/a/b", world.at("mt"));
    world.mount(&kept, "/h:1", Target::Object).await.unwrap();
    let names = world.builder("root").change_scope(ChangeScope::NamedTable).build().unwrap();
    let permissions = owned_by("test");
    let server = address("/h:2");
    let refusals = [
        names.delete("link/a", Subtree::Delete).await.map(drop),
        names.set_permissions("link/a", &permissions, None).await,
        names.update_permissions("link/a", |before| before).await,
    ];
    for refusal in refusals {
        let error = refusal.unwrap_err();
        assert_eq!(error.reason, Reason::ShadowedByMount, "{error}");
        assert!(error.message.contains("do not follow mounts"), "{error}");
    }
    assert_eq!(world.resolve(&kept).await.unwrap(), ["/h:1"], "nothing has changed behind the mount");
    // The caller may name the other table.
    names.mount(&kept, &server, MountOptions::new(HOUR)).await.unwrap().all().unwrap();
    assert_eq!(delete(&world, "link", Subtree::Delete).await, Ok(vec![1]));
    assert_eq!(world.resolve(&kept).await.unwrap(), ["/h:1", "/h:2"]);
    // The cached answer is old now, and refuses nothing.
    world.names.mount("link/a/b", &server, MountOptions::new(HOUR)).await.unwrap().all().unwrap();
    names.mount("link/a/c", &server, MountOptions::new(HOUR)).await.unwrap().all().unwrap();
    let root = format!("{}/link/a/b", world.at("root"));
    assert_eq!(world.resolve(&root).await.unwrap(), ["/h:2"]);
}
