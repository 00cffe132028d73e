//! Whether anything listens at an address: for commands that would otherwise wait for a cluster that is not there.

use ebla_runtime::Runtime;

use crate::output::Failure;

/// Connects to the first address that lets it.
///
/// # Errors
/// 6 when none of them does, with what to do; usage when there is none.
pub(super) async fn any(addresses: &[String], runtime: &Runtime) -> Result<(), Failure> {
    let mut failed = None;
    for address in addresses {
        match runtime.net.connect(address).await {
            Ok(_connection) => return Ok(()),
            Err(error) => failed = Some(error),
        }
    }
    let error = failed.ok_or_else(|| Failure::usage("--addr names no address"))?;
    let message = format!("no cluster at {}: {error}; start one with `ebla up`", addresses.join(", "));
    Err(Failure { message, code: 6 })
}
