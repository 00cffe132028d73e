//! Channels by name, and the examples.

#[path = "../../examples/greeting/client.rs"]
mod client;
#[path = "../../examples/greeting/server.rs"]
mod server;

use std::time::Duration;

use ebla_mounttable_namespace::publisher::PERIOD;
use ebla_mounttable_namespace::{MountOptions, Namespace};
use ebla_mounttable_server::testing::FakeMountTable;
use ebla_mounttable_tree::{Reason, Target};
use ebla_runtime::{Clock, Runtime};

use crate::secured;
use crate::world::{HOUR, NOBODY, World, address, builder};

/// The name of the greeters.
const NAME: &str = "demo/greeter";

/// A world with a running clock, for connections.
async fn world() -> (FakeMountTable, Namespace, Runtime) {
    let runtime = Runtime { clock: Clock::system(), ..secured::runtime() };
    let table = FakeMountTable::start(&runtime).await.unwrap();
    let names = builder(&table, &runtime).build().unwrap();
    (table, names, runtime)
}

#[tokio::test]
async fn a_server_that_mounts_itself_is_dialed_by_name() {
    let (_table, names, runtime) = world().await;
    let server = self::server::Greeter::start(&runtime, &names, NAME, "127.0.0.1:0", PERIOD).await.unwrap();
    let said = client::greet(&names, NAME, "Ann").await.unwrap();
    assert_eq!(said, format!("hello, Ann, says {}", server.address()));
    server.stop().await;
    assert_eq!(names.resolve(NAME).await.unwrap_err().reason, Reason::NoSuchName, "it took its mount away");
}

#[tokio::test]
async fn calls_take_turns_and_go_on_when_a_server_is_lost() {
    let (_table, names, runtime) = world().await;
    let mut servers = Vec::new();
    for _ in 0..2 {
        let own = runtime.child("server");
        let names = Namespace::builder(own.clone()).roots(names.roots()).identity("test").build().unwrap();
        let server = self::server::Greeter::start(&own, &names, NAME, "127.0.0.1:0", PERIOD).await.unwrap();
        servers.push((server.address().to_owned(), own, server));
    }
    // A mounted server that does not exist.
    names.mount(NAME, &address(NOBODY), MountOptions::new(HOUR).target(Target::Leaf)).await.unwrap().all().unwrap();
    let channel = names.channel(NAME).await.unwrap();
    let mut reached = channel.servers();
    reached.sort();
    let mut expected: Vec<_> = servers.iter().map(|(address, ..)| address.clone()).collect();
    expected.sort();
    assert_eq!(reached, expected, "a dead server costs no call");
    for (expected, ..) in &servers {
        let mut turns = Vec::new();
        for _ in 0..4 {
            turns.push(client::greet_over(channel.clone(), "Ann").await.unwrap());
        }
        assert_eq!(turns.iter().filter(|said| said.ends_with(expected.as_str())).count(), 2, "{turns:?}");
    }
    let (lost, own, _) = servers.remove(0);
    own.tasks.stop(Duration::ZERO).await;
    let mut failed = 0;
    for _ in 0..20 {
        match client::greet_over(channel.clone(), "Ann").await {
            Ok(said) => assert!(!said.ends_with(&lost), "{said}"),
            Err(_) => failed += 1,
        }
    }
    assert!(failed <= 1, "{failed} calls failed, only the one that met the loss may");
}

/// A channel follows its name.
#[tokio::test]
async fn a_server_that_is_mounted_later_gets_calls() {
    let (_table, names, runtime) = world().await;
    let _first = self::server::Greeter::start(&runtime, &names, NAME, "127.0.0.1:0", PERIOD).await.unwrap();
    let channel = names.channel(NAME).await.unwrap();
    let own = runtime.child("server");
    let others = Namespace::builder(own.clone()).roots(names.roots()).identity("test").build().unwrap();
    let second = self::server::Greeter::start(&own, &others, NAME, "127.0.0.1:0", PERIOD).await.unwrap();
    let reached = async {
        while !client::greet_over(channel.clone(), "Ann").await.unwrap().ends_with(second.address()) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), reached).await.unwrap();
}

#[tokio::test]
async fn a_channel_without_servers_is_an_error() {
    let world = World::new(&[]).await;
    assert_eq!(world.names.channel("never").await.unwrap_err().reason, Reason::NoSuchName);
    world.mount("gone", NOBODY, Target::Object).await.unwrap();
    assert_eq!(world.names.channel("gone").await.unwrap_err().reason, Reason::Unavailable);
}
