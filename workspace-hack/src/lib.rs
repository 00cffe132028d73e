//! Nothing but dependencies: one set of features for all crates. See `workspace-hack/Cargo.toml`.
