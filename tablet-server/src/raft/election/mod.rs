//! Elections, beside openraft's own: the vote hold-off after a restart, and the fast election after a disconnect.

pub(super) mod fast_election;
pub(super) mod vote_holdoff;
