//! Options of tablet servers for automatic splits.

use ebla_runtime::units::ByteSize;
use ebla_tablet_server::ServerOptions;

/// When tablets split.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct SplitArguments {
    /// Size above which a tablet splits: bytes, or a number with K, M or G (powers of 1024)
    #[arg(long, value_name = "SIZE", value_parser = crate::size::parse)]
    pub split_bytes: Option<ByteSize>,
    /// Size above which a tablet of METADATA splits, except the root tablet: bytes, or a number with K, M or G [default: 128 MiB]
    #[arg(long, value_name = "SIZE", value_parser = crate::size::parse)]
    pub metadata_split_bytes: Option<ByteSize>,
    /// Reads and writes per second of a tablet from which on it splits, if it has more than a quarter of those of its server; 0: never
    #[arg(long, value_name = "N", default_value_t = 2_000)]
    pub split_load: u32,
}

impl SplitArguments {
    /// Sets what is given; the other options keep their defaults.
    pub fn apply_to(&self, options: &mut ServerOptions) {
        options.split_bytes = self.split_bytes.unwrap_or(options.split_bytes);
        options.metadata_split_bytes = self.metadata_split_bytes.unwrap_or(options.metadata_split_bytes);
        options.split_load = self.split_load;
    }
}
