//! A client that knows a name and no address; `serve` is the server, of which there may be several.
//!
//! `cargo run --release -p ebla-mounttable-namespace --example dial [ROOT [NAME]]`

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

#[path = "greeting/client.rs"]
mod client;

use ebla_mounttable_namespace::{Namespace, Roots};
use ebla_mounttable_tree::Error;
use ebla_runtime::Runtime;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let mut arguments = std::env::args().skip(1);
    let root = arguments.next().unwrap_or_else(|| "/127.0.0.1:8101".to_owned());
    let name = arguments.next().unwrap_or_else(|| "demo/greeter".to_owned());

    let roots = Roots::new([root.as_str()])?;
    let names = Namespace::builder(Runtime::system("dial")).roots(roots).identity("example").build()?;
    println!("{}", client::greet(&names, &name, "Ann").await?);
    Ok(())
}
