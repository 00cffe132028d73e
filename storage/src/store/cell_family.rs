//! The column families of cells: one for each locality group's number and options that the store's tables use.
//!
//! ```text
//!   lg0                        the default group with default options: always there
//!   lg<number>.<options>       such as `lg1.zstd3-64k-rows`, or `lg1.zstd3-64k-rows-memory` for a group in memory
//! ```
//!
//! Tables share a family if their groups have the same number and options. A name says all that is needed to open the family, so a store is opened without
//! knowing any schema.

use std::fmt;
use std::str::FromStr;

use ebla_model::locality::{BloomFilter, Compression, DEFAULT_GROUP, LocalityGroupOptions, Residence};

/// A column family of cells.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CellFamily {
    /// The number of the locality group.
    pub group: u32,
    /// Its options.
    pub options: LocalityGroupOptions,
}

impl CellFamily {
    /// The family of the default group with default options.
    #[must_use]
    pub fn lg0() -> Self {
        Self { group: DEFAULT_GROUP, options: LocalityGroupOptions::default() }
    }
}

impl fmt::Display for CellFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lg{}", self.group)?;
        if *self == Self::lg0() {
            return Ok(());
        }
        match self.options.compression {
            Compression::None => f.write_str(".none")?,
            Compression::Lz4 => f.write_str(".lz4")?,
            Compression::Lz4ThenZstd => f.write_str(".lz4zstd")?,
            Compression::Zstd(level) => write!(f, ".zstd{level}")?,
            Compression::TwoPass => f.write_str(".twopass")?,
        }
        write!(f, "-{}k-{}", self.options.block_kib, self.options.bloom)?;
        match self.options.residence {
            Residence::Files => Ok(()),
            Residence::Memory => f.write_str("-memory"),
        }
    }
}

impl FromStr for CellFamily {
    type Err = ();

    /// The family with this name; an error for a name that no release gives.
    fn from_str(name: &str) -> Result<Self, ()> {
        let lg0 = Self::lg0();
        if name == lg0.to_string() {
            return Ok(lg0);
        }
        let (group, options) = name.strip_prefix("lg").and_then(|rest| rest.split_once('.')).ok_or(())?;
        let (options, residence) = match options.strip_suffix("-memory") {
            Some(options) => (options, Residence::Memory),
            None => (options, Residence::Files),
        };
        let [compression, block, bloom] = options.split('-').collect::<Vec<_>>().try_into().map_err(|_parts| ())?;
        let compression = match compression {
            "none" => Compression::None,
            "lz4" => Compression::Lz4,
            "lz4zstd" => Compression::Lz4ThenZstd,
            "twopass" => Compression::TwoPass,
            other => Compression::Zstd(other.strip_prefix("zstd").and_then(|level| level.parse().ok()).ok_or(())?),
        };
        let block_kib = block.strip_suffix('k').and_then(|number| number.parse().ok()).ok_or(())?;
        let bloom: BloomFilter = bloom.parse().map_err(|_unknown| ())?;
        let family = Self {
            group: group.parse().map_err(|_number| ())?,
            options: LocalityGroupOptions { compression, block_kib, bloom, residence },
        };
        // One name for each family: "lg01.…" is not one.
        if family.to_string() == name { Ok(family) } else { Err(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back() {
        let mut names = Vec::new();
        for group in [0, 1, 7] {
            for options in [
                "",
                "compression=none",
                "compression=zstd:3;block=64k",
                "compression=two-pass;bloom=none",
                "bloom=columns",
                "in-memory=yes",
            ] {
                let family = CellFamily { group, options: options.parse().unwrap() };
                assert_eq!(family.to_string().parse(), Ok(family));
                names.push(family.to_string());
            }
        }
        assert_eq!(names.first().unwrap(), "lg0");
        assert!(names.contains(&"lg1.lz4zstd-16k-rows".to_owned()), "{names:?}");
        assert!(names.contains(&"lg7.zstd3-64k-rows".to_owned()), "{names:?}");
        assert!(names.contains(&"lg0.lz4zstd-16k-rows-memory".to_owned()), "{names:?}");
        assert!(names.contains(&"lg1.lz4zstd-16k-columns".to_owned()), "{names:?}");
    }

    #[test]
    fn other_names_are_refused() {
        for name in
            ["", "default", "lg", "lg1", "lg0.lz4zstd-16k-rows", "lg01.lz4-16k-rows", "lg1.lz4-16k", "lg1.zip-16k-rows"]
                .into_iter()
                .chain(["lg1.lz4-16k-rows-disk", "lg1.lz4-16k-memory", "lg1.lz4-16k-rows-memory-memory"])
        {
            assert_eq!(name.parse::<CellFamily>(), Err(()), "{name}");
        }
    }
}
