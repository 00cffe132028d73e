//! The interface of a server process to its machine.
//!
//! ```text
//!   address   HOST:PORT on the command line: well-formed, safe to serve on, free
//!   folder    exclusive data folders; temporary ones
//!   http      the HTTP port: metrics, health, readiness
//!   ready     the ready file
//!   signals   SIGTERM and Ctrl-C: graceful stop
//! ```

mod address;
mod folder;
mod http;
mod ready;
mod signals;

use std::io::Write as _;

pub use address::{
    ClusterSecurity, Exposure, Listen, Users, check_exposure, check_free, check_reachable, etcd_url, host_port,
    is_loopback,
};
pub use folder::{DataFolder, lock};
pub use http::Monitoring;
pub use ready::{check_ready, write_ready};
pub use signals::Signals;

/// Prepares this process for serving, in whatever role. A panic of any thread ends it: it must not serve with a broken invariant,
/// and its threads hold locks that know no poisoning. It uses no huge pages.
pub fn prepare_to_serve() {
    ebla_runtime::panic_hook::abort_on_panic();
    refuse_huge_pages();
}

/// Disables transparent huge pages for this process and its children: a huge page of which few of the 512 small pages are used
/// wastes the others (docs/inside/decisions/0011-memory.md).
fn refuse_huge_pages() {
    // Old kernels do not support this; then nothing changes.
    let _unsupported = rustix::thread::disable_transparent_huge_pages(true);
}

/// Exits the process with this code.
///
/// Destructors of C++ statics do not run: threads that are still inside the storage engine would abort the process if its
/// statics were destroyed.
pub fn end(code: u8) -> ! {
    // The readers of stdout and stderr may be gone.
    drop(std::io::stdout().flush());
    drop(std::io::stderr().flush());
    signal_hook::low_level::exit(code.into())
}
