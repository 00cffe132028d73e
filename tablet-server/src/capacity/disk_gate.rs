//! Whether a server accepts writes of clients, given the space on its disk: a pure state machine with hysteresis.
//!
//! ```text
//!   free space below the reserve              refuses
//!   free space of 5/4 of the reserve or more  accepts again
//!   between both, or not known                as before
//!   free space below half of the reserve      receives no snapshots either, and before that none that would lead there
//! ```
//!
//! Without the distance a compaction that frees and uses a few megabytes would change the state every second.

use ebla_model::capacity::{DiskSpace, WriteState};

/// Writes are accepted again when this fraction of the reserve is free beside the reserve.
const HYSTERESIS_FRACTION: u64 = 4;

/// The state, and the space that was observed last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskGate {
    state: WriteState,
    space: DiskSpace,
}

impl DiskGate {
    /// Observes the disk; returns the new state if it has changed.
    pub fn observe(&mut self, space: Option<DiskSpace>) -> Option<WriteState> {
        self.space = space?;
        let before = self.state;
        if self.space.free_bytes < self.space.reserve_bytes {
            self.state = WriteState::Refuses;
        } else if self.space.free_bytes >= accepted_from(self.space.reserve_bytes) {
            self.state = WriteState::Accepts;
        }
        (self.state != before).then_some(self.state)
    }

    /// Whether writes are accepted.
    #[must_use]
    pub const fn state(&self) -> WriteState {
        self.state
    }

    /// Whether there is so little space that the server receives no copies of groups either.
    #[must_use]
    pub const fn is_critical(&self) -> bool {
        self.space.free_bytes < self.space.reserve_bytes / CRITICAL_FRACTION
    }

    /// Whether a copy of a group with this many bytes leaves the space above the critical mark. True while the space is not known.
    #[must_use]
    pub const fn has_room_for(&self, size_bytes: u64) -> bool {
        let needed = size_bytes.saturating_add(self.space.reserve_bytes / CRITICAL_FRACTION);
        self.space.total_bytes == 0 || self.space.free_bytes >= needed
    }

    /// The space that was observed last.
    #[must_use]
    pub const fn space(&self) -> DiskSpace {
        self.space
    }
}

/// Below this fraction of the reserve the space is critical.
const CRITICAL_FRACTION: u64 = 2;

/// The free bytes with which a server accepts writes again.
#[must_use]
pub const fn accepted_from(reserve_bytes: u64) -> u64 {
    reserve_bytes.saturating_add(reserve_bytes / HYSTERESIS_FRACTION)
}

#[cfg(test)]
mod tests {
    //! The golden script `testdata/disk_gate.txt`: the reserve, then a line of free space for each sample, in MiB; `?`: the disk
    //! cannot be read. The answers are the states after each sample; a change is marked.

    use std::path::Path;

    use super::*;

    fn run(case: &str) -> String {
        let script = case.split("---\n").next().unwrap();
        let (mut gate, mut reserve_bytes, mut out) = (DiskGate::default(), 0, format!("{script}---\n"));
        for line in script.lines().filter(|line| !line.starts_with('#')) {
            let (word, amount) = line.split_once(' ').unwrap();
            let mebibytes = || amount.parse::<u64>().unwrap() << 20;
            if word == "reserve" {
                reserve_bytes = mebibytes();
                continue;
            }
            let space = || DiskSpace { free_bytes: mebibytes(), total_bytes: 1 << 40, reserve_bytes };
            let changed = gate.observe((amount != "?").then(space)).map_or("", |_state| " (changed)");
            let critical = if gate.is_critical() { " (critical)" } else { "" };
            out.push_str(&format!("{amount} {:?}{critical}{changed}\n", gate.state()));
        }
        out
    }

    #[test]
    fn golden_scripts() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/disk_gate.txt");
        crate::golden::check_cases(&file, run);
    }
}
