//! The search of a server for damaged blocks, in its reports.

use std::time::Duration;

use ebla_model::scrub::ScrubState;

use crate::record;

/// The state as a message; times in whole seconds.
pub fn scrub_state_to_proto(state: &ScrubState) -> record::ScrubState {
    record::ScrubState {
        finished_seconds_ago: state.finished_ago.map(|ago| ago.as_secs()),
        bytes: state.bytes,
        bytes_per_second: state.bytes_per_second,
        damaged: state.damaged,
        kept: state.kept,
    }
}

/// The state of a message.
pub fn scrub_state_from_proto(state: &record::ScrubState) -> ScrubState {
    ScrubState {
        finished_ago: state.finished_seconds_ago.map(Duration::from_secs),
        bytes: state.bytes,
        bytes_per_second: state.bytes_per_second,
        damaged: state.damaged,
        kept: state.kept,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scrub_states_survive_a_round_trip() {
        for finished_ago in [None, Some(Duration::ZERO), Some(Duration::from_secs(90))] {
            let state = ScrubState { finished_ago, bytes: 1, bytes_per_second: 2, damaged: 3, kept: 4 };
            assert_eq!(scrub_state_from_proto(&scrub_state_to_proto(&state)), state);
        }
    }
}
