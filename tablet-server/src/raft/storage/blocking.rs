//! The thread pools for calls that block on a disk.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use ebla_runtime::{Blocking, BlockingError};

/// The retry interval for a pool whose queue is full.
const QUEUE_FULL_RETRY: Duration = Duration::from_millis(1);

/// The thread pools that state machines run on.
#[derive(Clone, Debug)]
pub struct BlockingPools {
    /// For `apply`, and for reads of log entries that have left the memory.
    pub apply: Blocking,
    /// For checkpoints, snapshot install and reads of the store's metadata.
    pub maintenance: Blocking,
}

/// Runs `call` on `pool` and waits while the pool's queue is full: a committed entry must be applied, however busy the server
/// is.
pub(in crate::raft) async fn run_blocking<T, F>(pool: &Blocking, call: F) -> io::Result<T>
where
    T: Send + 'static,
    F: Fn() -> T + Send + Sync + 'static,
{
    let call = Arc::new(call);
    loop {
        let once = Arc::clone(&call);
        match pool.run(move || once()).await {
            Ok(result) => return Ok(result),
            Err(BlockingError::Full) => tokio::time::sleep(QUEUE_FULL_RETRY).await,
            Err(error) => return Err(io::Error::other(error)),
        }
    }
}
