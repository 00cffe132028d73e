//! Administration of a table over its service. The effects on the table are tested in its crate.

use ebla_mounttable_namespace::Operator;
use ebla_mounttable_namespace::operate::{DumpRecord, Fix, Limit, WriteMode};
use ebla_mounttable_tree::table::Tally;
use ebla_mounttable_tree::{Error, Reason, Target};
use futures::{TryStreamExt, stream};

use crate::world::World;

fn operator(world: &World, caller: &str) -> Operator {
    world.builder("root").identity(caller).build().unwrap().operator().unwrap()
}

async fn dumped(operator: &Operator) -> Result<Vec<DumpRecord>, Error> {
    operator.dump().await?.try_collect().await
}

#[tokio::test]
async fn a_dump_can_be_restored() {
    let world = World::new(&[]).await;
    let operator = operator(&world, "server");
    world.mount("a/b", "/h:1", Target::Object).await.unwrap();
    let saved = dumped(&operator).await.unwrap();
    let tally = operator.destroy("fake").await.unwrap();
    assert_eq!((tally.rows, dumped(&operator).await.unwrap().len()), (3, 0));
    assert_eq!(world.resolve("a/b").await.unwrap_err().reason, Reason::NoSuchName);
    let restored = operator.restore(stream::iter(saved.clone())).await.unwrap();
    assert_eq!(restored, Tally { rows: 3, ..tally });
    assert_eq!(dumped(&operator).await.unwrap(), saved);
    assert_eq!(world.resolve("a/b").await.unwrap(), ["/h:1"]);
    let twice = operator.restore(stream::iter(saved)).await.unwrap_err();
    assert_eq!(twice.reason, Reason::NotEmpty);
}

#[tokio::test]
async fn an_operator_is_a_superuser_and_others_may_count() {
    let world = World::new(&[]).await;
    let (server, anybody) = (operator(&world, "server"), operator(&world, "anybody"));
    let refused = [
        anybody.setup("").await.err(),
        anybody.preview_setup("").await.err(),
        anybody.check(Fix::Report).await.err(),
        dumped(&anybody).await.err(),
        anybody.restore(stream::empty()).await.err(),
        anybody.destroy("fake").await.err(),
        anybody.sweep().await.err(),
        anybody.recount().await.err(),
        anybody.set_limits("test", Limit::Own(1), Limit::Unchanged).await.err(),
        anybody.limits().await.err(),
        anybody.set_write_mode(WriteMode::ReadOnly).await.err(),
    ];
    for (number, refusal) in refused.into_iter().enumerate() {
        assert_eq!(refusal.map(|it| it.reason), Some(Reason::NoAccess), "call {number}");
    }
    assert!(anybody.counters().await.is_ok());

    let file = r#"{"team": {"Admin": {"In": ["..."]}}}"#;
    let changes = server.preview_setup(file).await.unwrap();
    assert_eq!(changes.iter().map(|it| (it.name.as_str(), it.before.is_none())).collect::<Vec<_>>(), [("team", true)]);
    assert_eq!(server.setup(file).await.unwrap(), 1);
    assert_eq!(server.check(Fix::Repair).await.unwrap(), []);
    assert_eq!(server.recount().await.unwrap(), []);
    server.set_limits("test", Limit::Own(1), Limit::Default).await.unwrap();
    let limits = server.limits().await.unwrap();
    assert_eq!((limits.own[0].0.as_str(), limits.own[0].1.nodes, limits.own[0].1.servers), ("test", Some(1), None));
    assert_eq!(world.mount("a/b", "/h:1", Target::Object).await.unwrap_err().reason, Reason::NodeQuota);
    assert_eq!(server.set_write_mode(WriteMode::ReadOnly).await.unwrap(), WriteMode::ReadWrite);
    assert_eq!(server.sweep().await.unwrap_err().reason, Reason::ReadOnly);
    assert_eq!(server.set_write_mode(WriteMode::ReadWrite).await.unwrap(), WriteMode::ReadOnly);
    assert_eq!(server.sweep().await.unwrap().damaged, 0);
}

#[tokio::test]
async fn a_server_that_is_no_mount_table_says_so() {
    let world = World::new(&[]).await;
    let ordinary = world.ordinary().await;
    let roots = ebla_mounttable_namespace::Roots::new([ordinary.as_str()]).unwrap();
    world.names.set_roots(roots);
    let refused = world.names.operator().unwrap().limits().await.unwrap_err();
    assert_eq!(refused.reason, Reason::NotAMountTable);
}
