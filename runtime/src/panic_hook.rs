//! Aborts the process on a panic.

use std::io::Write;

/// Aborts the process at the first panic of any thread, after its message: it must not serve with a broken invariant.
pub fn abort_on_panic() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        before(panic);
        let _closed = std::io::stderr().flush();
        std::process::abort();
    }));
}
