//! Linearizable reads without a round trip: the leader lease, and the acknowledgments of the quorum that it is counted from.

pub(super) mod leader_lease;
pub(super) mod quorum;
