//! The syncs of a server's commit log, in its reports.

use std::time::Duration;

use ebla_model::sync_delay::SyncState;
use ebla_model::time::whole_micros;

use crate::record;

/// The state of the syncs as a message; times in whole microseconds.
pub fn sync_state_to_proto(state: &SyncState) -> record::SyncState {
    record::SyncState { delay_micros: state.delay.map(whole_micros), slow: state.is_slow }
}

/// The state of the syncs of a message.
pub fn sync_state_from_proto(state: &record::SyncState) -> SyncState {
    SyncState { delay: state.delay_micros.map(Duration::from_micros), is_slow: state.slow }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sync_states_survive_a_round_trip() {
        for delay in [None, Some(Duration::ZERO), Some(Duration::from_millis(700))] {
            let state = SyncState { delay, is_slow: delay == Some(Duration::from_millis(700)) };
            assert_eq!(sync_state_from_proto(&sync_state_to_proto(&state)), state);
        }
    }
}
