//! Creates a table, writes a row and reads it.
//!
//! `cargo run --release -p ebla-client --example hello [HOST:PORT]`, with `ebla up` running. It can run again: an
//! existing table is used.

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use bytes::Bytes;
use ebla_client::Client;
use ebla_model::error::{Error, Reason};
use ebla_model::gc::GcRule;
use ebla_model::key::RowKey;
use ebla_model::mutation::{Mutation, WriteTime};
use ebla_model::schema::TableName;
use ebla_runtime::Runtime;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:8086".to_owned());
    let client = Client::connect_cluster(&address, Runtime::system("hello")).await?;

    let name = TableName::from_parts("example", "example", "webtable")?;
    let families = [("contents".to_owned(), Some(GcRule::MaxVersions(3))), ("anchor".to_owned(), None)];
    match client.admin().create_table(&name, &families, &[]).await {
        Err(error) if error.reason == Reason::AlreadyExists => println!("{name} exists"),
        created => {
            created?;
            println!("created {name}");
        }
    }

    let table = client.table(&name);
    let row = RowKey::copy_from_slice(b"com.cnn.www");
    let cell = |family: &str, qualifier: &'static str, value: &'static str| Mutation::SetCell {
        family: family.to_owned(),
        qualifier: Bytes::from_static(qualifier.as_bytes()),
        timestamp: WriteTime::Server,
        value: Bytes::from_static(value.as_bytes()),
    };
    // The mutations of a row are applied atomically.
    let mutations = [
        cell("contents", "", "<html>…</html>"),
        cell("anchor", "cnnsi.com", "CNN"),
        cell("anchor", "my.look.ca", "CNN.com"),
    ];
    table.mutate_row(&row, &mutations).await?;

    for cell in table.read_row(&row, None).await?.unwrap_or_default().cells {
        let column = format!("{}:{}", cell.family, String::from_utf8_lossy(&cell.qualifier));
        println!("{row}  {column:<20} {}  {}", cell.timestamp.get(), String::from_utf8_lossy(&cell.value));
    }
    Ok(())
}
