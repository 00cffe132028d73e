//! Options of a master for automatic merges.

use std::time::Duration;

use ebla_master::MergeRules;
use ebla_runtime::units::ByteSize;

/// When small tablets are merged.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct MergeArguments {
    /// Adjacent tablets that have less than this together are merged when they are not used much: bytes, or a number with K, M or G;
    /// 0: none are merged
    #[arg(long, value_name = "SIZE", value_parser = crate::size::parse_or_zero, default_value = "64M")]
    pub merge_bytes: ByteSize,
    /// Seconds without a split, a move, an election or more than 10 reads and writes per second before tablets are merged
    #[arg(long, value_name = "SECONDS", default_value_t = 3_600)]
    pub merge_after: u32,
}

impl MergeArguments {
    /// The rules.
    #[must_use]
    pub fn rules(&self) -> MergeRules {
        let merge_after = Duration::from_secs(self.merge_after.into());
        MergeRules { merge_bytes: self.merge_bytes.bytes(), merge_after }
    }
}
