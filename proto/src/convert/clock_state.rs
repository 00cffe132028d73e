//! The clock of a server in comparison with others, in its reports.

use ebla_model::clock_offset::ClockState;

use crate::record;

/// The state of a clock as a message.
pub const fn clock_state_to_proto(state: &ClockState) -> record::ClockState {
    record::ClockState { offset_micros: state.offset_micros, off: state.is_off }
}

/// The state of a clock of a message.
pub const fn clock_state_from_proto(state: &record::ClockState) -> ClockState {
    ClockState { offset_micros: state.offset_micros, is_off: state.off }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_states_survive_a_round_trip() {
        for offset_micros in [None, Some(0), Some(-7)] {
            let state = ClockState { offset_micros, is_off: offset_micros == Some(-7) };
            assert_eq!(clock_state_from_proto(&clock_state_to_proto(&state)), state);
        }
    }
}
