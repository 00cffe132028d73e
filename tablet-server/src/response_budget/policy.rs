//! How connections share the memory for responses, and which one is closed when it is short. Pure.

/// A connection that holds less does not count for the shares.
pub(super) const SIGNIFICANT_BYTES: usize = 64 << 10;

/// What a connection holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ConnectionUse {
    /// Bytes that are prepared and not sent.
    pub(super) bytes: usize,
    /// The client of at least one of its reads takes nothing.
    pub(super) is_stalled: bool,
}

/// The bytes that each connection may hold while `holding` connections hold a significant number of bytes. One share more than that is left, so
/// that the next connection finds room.
pub(super) const fn share(total: usize, holding: usize) -> usize {
    total / (if holding == 0 { 1 } else { holding } + 1)
}

/// The connection to close, if more than three quarters of the total are in use: the one that holds most of those that have at least half
/// a share and do not read.
pub(super) fn connection_to_close(
    in_use: usize,
    total: usize,
    share: usize,
    connections: &[ConnectionUse],
) -> Option<usize> {
    if in_use < total / 4 * 3 {
        return None;
    }
    let stalled = connections.iter().enumerate().filter(|(_, usage)| usage.is_stalled && usage.bytes >= share / 2);
    stalled.max_by_key(|(_, usage)| usage.bytes).map(|(at, _)| at)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn connections_have_equal_shares_and_one_is_left() {
        let shares: Vec<_> = [0, 1, 2, 3, 99].iter().map(|holding| share(600 * MIB, *holding) / MIB).collect();
        assert_eq!(shares, [300, 300, 200, 150, 6]);
    }

    #[test]
    fn only_a_large_connection_without_progress_is_closed_and_only_when_memory_is_short() {
        let reading = |bytes| ConnectionUse { bytes: bytes * MIB, is_stalled: false };
        let stalled = |bytes| ConnectionUse { bytes: bytes * MIB, is_stalled: true };
        let closed = |in_use, connections: &[ConnectionUse]| {
            connection_to_close(in_use * MIB, 400 * MIB, share(400 * MIB, connections.len()), connections)
        };
        let all = [reading(180), stalled(60), stalled(100), stalled(10)];
        assert_eq!(closed(350, &all), Some(2));
        assert_eq!(closed(299, &all), None, "memory is not short");
        assert_eq!(closed(350, &[reading(300), stalled(50)]), None, "it holds less than half a share");
        assert_eq!(closed(350, &[reading(200), reading(150)]), None, "all are reading");
        assert_eq!(closed(350, &[]), None);
    }
}
