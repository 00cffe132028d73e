//! A server that mounts itself under a name until Ctrl-C; `dial` is its client.
//!
//! `cargo run --release -p ebla-mounttable-namespace --example serve [ROOT [NAME]]`, with
//! `ebla mounttable --in-memory --insecure-dev-identity` running.

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

#[path = "greeting/server.rs"]
mod server;

use ebla_mounttable_namespace::publisher::PERIOD;
use ebla_mounttable_namespace::{Namespace, Roots};
use ebla_mounttable_tree::Error;
use ebla_runtime::Runtime;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let mut arguments = std::env::args().skip(1);
    let root = arguments.next().unwrap_or_else(|| "/127.0.0.1:8101".to_owned());
    let name = arguments.next().unwrap_or_else(|| "demo/greeter".to_owned());

    let runtime = Runtime::system("serve");
    let roots = Roots::new([root.as_str()])?;
    let names = Namespace::builder(runtime.clone()).roots(roots).identity("example").build()?;
    let greeter = server::Greeter::start(&runtime, &names, &name, "127.0.0.1:0", PERIOD).await?;
    println!("{} is mounted under {name}", greeter.address());

    // Without a handler for Ctrl-C it stops at once, and unmounts too.
    drop(tokio::signal::ctrl_c().await);
    greeter.stop().await;
    Ok(())
}
