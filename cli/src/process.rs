//! What a process that runs part of a cluster has to do with the machine.
//!
//! ```text
//!   address   HOST:PORT on the command line: well-formed, safe to serve on, free
//!   folder    a data folder that is this process's own; temporary ones
//!   ready     the ready file
//!   signals   SIGTERM and Ctrl-C, the order to stop
//! ```

mod address;
mod folder;
mod ready;
mod signals;

use std::io::Write as _;

pub use address::{Listen, check_exposure, check_free, check_reachable, etcd_url, host_port};
pub use folder::{DataFolder, lock};
pub use ready::{check_ready, write_ready};
pub use signals::Signals;

/// Has the kernel give this process, and what it starts, no transparent huge pages: where few of 512 small pages are in use, a huge
/// page costs the others too (docs/inside/decisions/0011-memory.md).
pub fn refuse_huge_pages() {
    // An old kernel that cannot do this goes on as before.
    let _unsupported = rustix::thread::disable_transparent_huge_pages(true);
}

/// Ends the process with this exit code.
///
/// Destructors of C++ statics do not run. Threads that were not waited for may still be inside the storage engine, and it aborts
/// the process when they find its statics destroyed.
pub fn end(code: u8) -> ! {
    // Whoever reads may have gone.
    drop(std::io::stdout().flush());
    drop(std::io::stderr().flush());
    signal_hook::low_level::exit(code.into())
}
