//! Parameters of a run from the environment: the seed of a schedule, the number of faults of each kind, and whether clusters are secured.

use ebla_runtime::Runtime;

use crate::secured::Security;

/// The number of faults of a kind: the environment variable `name`, or `usual`.
///
/// # Panics
/// When the variable is not a number, because a typing error must not turn a long run into a short one.
#[must_use]
#[expect(clippy::panic, reason = "a test with a wrong parameter must not pass")]
pub fn times(name: &str, usual: usize) -> usize {
    let Ok(text) = std::env::var(name) else { return usual };
    text.parse().unwrap_or_else(|error| panic!("{name}={text}: {error}"))
}

/// The seed of a schedule: `EBLA_CHAOS_SEED`, or else a fresh one.
#[must_use]
pub fn seed(runtime: &Runtime) -> u64 {
    u64::try_from(times("EBLA_CHAOS_SEED", 0))
        .ok()
        .filter(|seed| *seed > 0)
        .unwrap_or_else(|| runtime.rng.below(1 << 32))
}

/// Whether clusters have TLS and access control: `EBLA_SECURITY` (`on` or `off`), or `usual`.
///
/// # Panics
/// When the variable has another value.
#[must_use]
#[expect(clippy::panic, reason = "a test with a wrong parameter must not pass")]
pub fn security(usual: Security) -> Security {
    let Ok(text) = std::env::var("EBLA_SECURITY") else { return usual };
    let known = [Security::On, Security::Off].into_iter().find(|one| one.name() == text);
    known.unwrap_or_else(|| panic!("EBLA_SECURITY={text}: give on or off"))
}
