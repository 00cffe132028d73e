//! A connection check for commands that would otherwise wait for a cluster that does not run.

use ebla_runtime::Runtime;

use crate::output::Failure;

/// Checks that at least one of the addresses accepts connections.
///
/// # Errors
/// 6 when none of them does, with what to do; usage when there are no addresses.
pub(super) async fn require_any(addresses: &[String], runtime: &Runtime) -> Result<(), Failure> {
    first_reachable(addresses, runtime).await.map(drop)
}

/// The first of the addresses that accepts connections.
///
/// # Errors
/// As [`require_any`].
pub(super) async fn first_reachable(addresses: &[String], runtime: &Runtime) -> Result<String, Failure> {
    let mut failed = None;
    for address in addresses {
        match runtime.net.connect(address).await {
            Ok(_connection) => return Ok(address.clone()),
            Err(error) => failed = Some(error),
        }
    }
    let error = failed.ok_or_else(|| Failure::usage("--addr contains no address"))?;
    let message = format!("no cluster at {}: {error}; start one with `ebla up`", addresses.join(", "));
    Err(Failure { message, code: 6 })
}
