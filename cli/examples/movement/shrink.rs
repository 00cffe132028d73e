//! How a table shrinks by itself after most of its rows have been deleted: its number of tablets, and the bytes of SSTables on the disks of
//! all servers.
//!
//! Three servers, a million rows of 1,000 bytes; 19 of 20 rows are deleted, one by one. Nothing asks for merges, flushes or compactions.

use std::time::Duration;

use ebla_model::mutation::Mutation;
use ebla_runtime::Runtime;
use ebla_tests::cluster::Cluster as _;

use crate::rows::{Rows, row_key};
use crate::stored_bytes::stored_bytes;
use crate::{Arguments, Outcome, start};

const SERVERS: usize = 3;
const ROWS: u64 = 1_000_000;
/// Every 20th row is kept.
const KEPT: u64 = 20;
/// Tablets split above this size, so that a million rows have several.
const SPLIT_BYTES: u64 = 64 << 20;
/// The options of the master: adjacent tablets that are smaller together are merged after ten seconds of rest.
const MASTER: [&str; 4] = ["--merge-bytes", "24M", "--merge-after", "10"];
/// "A few tablets": at most this number.
const FEW_TABLETS: usize = 4;
/// The SSTables have shrunk: at most this part of what they were, in percent. 5 % of the rows are left.
const FILES_PERCENT: u64 = 10;
/// Between two measurements.
const STEP: Duration = Duration::from_secs(5);
/// How long it may take.
const SHRUNK_MAX: Duration = Duration::from_secs(300);

pub(crate) async fn measure(arguments: &Arguments) -> Outcome<()> {
    let runtime = Runtime::system("shrink");
    let cluster = start(arguments, SERVERS, &MASTER, Some(SPLIT_BYTES), &runtime).await?;
    let folder = cluster.folder().join("data");
    let addresses = cluster.addresses();
    let rows = Rows::create("shrink", &addresses, 1, &runtime).await?;
    println!("| | s | tablets | SSTables of all servers, MB |\n|---|---|---|---|");
    let mut began = runtime.clock.monotonic();
    let print = async |what: &str, began: Duration| -> Outcome<(usize, u64)> {
        let tablets = rows.tablets().await?.len();
        let [_log, bytes] = stored_bytes(&folder)?;
        let seconds = runtime.clock.monotonic().saturating_sub(began).as_secs();
        println!("| {what} | {seconds} | {tablets} | {} |", bytes / 1_000_000);
        Ok((tablets, bytes))
    };
    rows.fill(0, ROWS).await?;
    let (_, full) = print("a million rows written", began).await?;

    began = runtime.clock.monotonic();
    let deleted: Vec<u64> = (0..ROWS).filter(|row| row % KEPT != 0).collect();
    rows.write(&deleted, |row| (row_key(0, row), vec![Mutation::DeleteRow])).await?;
    print("95 % of them deleted", began).await?;

    began = runtime.clock.monotonic();
    loop {
        tokio::time::sleep(STEP).await;
        let (tablets, bytes) = print("", began).await?;
        if tablets <= FEW_TABLETS && bytes <= full * FILES_PERCENT / 100 {
            break;
        }
        if runtime.clock.monotonic().saturating_sub(began) > SHRUNK_MAX {
            return Err(format!("{tablets} tablets and {} MB are left", bytes / 1_000_000).into());
        }
    }
    let left = rows.keys().await?;
    let kept = (0..ROWS).step_by(usize::try_from(KEPT)?).map(|row| row_key(0, row));
    if !left.iter().cloned().eq(kept) {
        return Err(format!("{} rows are left, not those that were kept", left.len()).into());
    }
    println!("\n{} rows are left, all that were kept", left.len());
    Ok(())
}
