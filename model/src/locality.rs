//! Locality groups: which families of a table are stored together, and how (paper, section 6).
//!
//! A table has a default group, number 0, and named ones. Each family belongs to one group. Groups are stored in files of their own, so
//! a read of some families opens only the files of their groups. Which cells exist never depends on groups or their options.

use std::fmt;
use std::str::FromStr;

use crate::error::Error;
use crate::plain_name::is_plain_name;
use crate::schema::NewFamily;

/// The number of the group of all families that were assigned to no other.
pub const DEFAULT_GROUP: u32 = 0;
/// The name of that group.
pub const DEFAULT_GROUP_NAME: &str = "default";
/// Largest number of groups of a table, the default group included: each has memory and files in every store of the table's tablets.
pub const GROUPS_MAX: usize = 8;
/// Longest name of a group, in bytes.
pub const GROUP_NAME_BYTES_MAX: usize = 64;
/// Sizes of uncompressed blocks, in KiB.
pub const BLOCK_KIB: std::ops::RangeInclusive<u16> = 4..=1024;
/// The size of a block that two-pass compression begins with, in KiB: what a block does not contain cannot be found in it.
pub const TWO_PASS_BLOCK_KIB: u16 = 1024;
/// Levels of Zstd.
pub const ZSTD_LEVELS: std::ops::RangeInclusive<u8> = 1..=19;

/// How the blocks of a group's files are compressed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Compression {
    /// Not at all.
    None,
    /// LZ4.
    Lz4,
    /// LZ4 for new files, Zstd for the oldest ones, which have most of the data.
    #[default]
    Lz4ThenZstd,
    /// Zstd with this level, one of [`ZSTD_LEVELS`].
    Zstd(u8),
    /// For long common strings, such as those of several versions of a page and of the pages of one host: Zstd with a window as large as the
    /// block, in blocks of [`TWO_PASS_BLOCK_KIB`] unless other ones are wanted, and of at least 64 KiB. Smaller blocks than 512 KiB have a
    /// dictionary for each file, trained on its content. The paper finds long common strings in one pass and repetitions in a small
    /// window in a second one; Zstd finds both in one.
    TwoPass,
}

/// For which keys a file has a Bloom filter, so that a read of what does not exist reads no block.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum BloomFilter {
    /// For none.
    None,
    /// For rows.
    #[default]
    Rows,
    /// For columns of rows: a read of one column reads no block of files that do not have it, whether the row exists or not. Reads of whole
    /// rows do not use it.
    Columns,
}

/// Where the cells of a group are besides its files.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Residence {
    /// In the block cache, as far as they are read.
    #[default]
    Files,
    /// All of them in memory: files are loaded when a store is opened, and new ones when they are written (paper, section 6).
    Memory,
}

/// How the files of a group are written and read.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LocalityGroupOptions {
    /// Compression.
    pub compression: Compression,
    /// Size of an uncompressed block in KiB, one of [`BLOCK_KIB`]: the unit of a random read.
    pub block_kib: u16,
    /// Bloom filters.
    pub bloom: BloomFilter,
    /// Whether all cells are held in memory too.
    pub residence: Residence,
}

impl Default for LocalityGroupOptions {
    fn default() -> Self {
        Self {
            compression: Compression::default(),
            block_kib: 16,
            bloom: BloomFilter::default(),
            residence: Residence::default(),
        }
    }
}

/// Approximate bytes of cells in files.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StoredBytes {
    /// Of the files: compressed blocks, their indexes and filters.
    pub files: u64,
    /// Of keys and values before compression, those of deleted cells included that are still in files.
    pub data: u64,
}

impl StoredBytes {
    /// Adds those of other cells.
    pub fn add(&mut self, other: Self) {
        self.files = self.files.saturating_add(other.files);
        self.data = self.data.saturating_add(other.data);
    }
}

/// Which sizes a description of locality groups contains.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum GroupSizes {
    /// None.
    #[default]
    None,
    /// Those of files. What is in memtables alone is not counted.
    Files,
    /// Those of files after a flush.
    Flushed,
}

/// A locality group of a table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LocalityGroup {
    /// Its name, unique in the table.
    pub name: String,
    /// Its number, unique in the table and less than [`GROUPS_MAX`]; a number of a removed group is used again.
    pub number: u32,
    /// Its options.
    pub options: LocalityGroupOptions,
}

/// A change of a table's locality groups.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LocalityGroupChange {
    /// Creates the group, or changes options of the existing one.
    Set {
        /// Its name.
        name: String,
        /// The options to change ([`LocalityGroupOptions::with`]); the others stay, and those of a new group have their defaults.
        options: String,
    },
    /// Creates a family in a group.
    Add {
        /// The family.
        family: NewFamily,
        /// The name of the group.
        group: String,
    },
    /// Assigns a family to a group.
    Move {
        /// The name of the family.
        family: String,
        /// The name of the group.
        group: String,
    },
    /// Removes a group that has no families.
    Remove {
        /// Its name.
        name: String,
    },
}

/// Checks the name of a group.
///
/// # Errors
/// `InvalidArgument` when it is empty, too long, or has other characters than letters, digits and `-_.`.
pub fn check_group_name(name: &str) -> Result<(), Error> {
    if !is_plain_name(name, GROUP_NAME_BYTES_MAX) {
        return Err(Error::invalid(format!(
            "invalid locality group name {name:?}: expected 1 to {GROUP_NAME_BYTES_MAX} letters, digits and -_."
        )));
    }
    Ok(())
}

impl LocalityGroupOptions {
    /// Checks the bounds of numbers.
    ///
    /// # Errors
    /// `InvalidArgument` with the bounds.
    pub fn validate(&self) -> Result<(), Error> {
        if !BLOCK_KIB.contains(&self.block_kib) {
            let (least, most) = (BLOCK_KIB.start(), BLOCK_KIB.end());
            return Err(Error::invalid(format!("block: expected {least} to {most} KiB, not {}", self.block_kib)));
        }
        match self.compression {
            Compression::Zstd(level) if !ZSTD_LEVELS.contains(&level) => {
                let (least, most) = (ZSTD_LEVELS.start(), ZSTD_LEVELS.end());
                Err(Error::invalid(format!(
                    "compression: expected a level of zstd from {least} to {most}, not {level}"
                )))
            }
            _ => Ok(()),
        }
    }

    /// These options with those of `text`: `option=value`, separated by `;`.
    ///
    /// ```text
    ///   compression   none, lz4, lz4-then-zstd, zstd:LEVEL, two-pass
    ///   block         4k to 1024k
    ///   bloom         none, rows, columns
    ///   in-memory     no, yes
    /// ```
    ///
    /// A change to `two-pass` that names no block makes it at least [`TWO_PASS_BLOCK_KIB`].
    ///
    /// # Errors
    /// `InvalidArgument` for an unknown option or value; it names those that exist.
    pub fn with(self, text: &str) -> Result<Self, Error> {
        let mut options = self;
        let mut block_kib = None;
        for option in text.split(';').filter(|option| !option.is_empty()) {
            let (name, value) = option
                .split_once('=')
                .ok_or_else(|| Error::invalid(format!("locality group option {option:?}: expected NAME=VALUE")))?;
            match name {
                "compression" => options.compression = value.parse()?,
                "block" => block_kib = Some(parse_kib(value)?),
                "bloom" => options.bloom = value.parse()?,
                "in-memory" => options.residence = value.parse()?,
                _ => {
                    return Err(Error::invalid(format!(
                        "unknown locality group option {name:?}: expected compression, block, bloom or in-memory"
                    )));
                }
            }
        }
        options.block_kib = block_kib.unwrap_or_else(|| options.block_after(self));
        options.validate()?;
        Ok(options)
    }

    /// The size of a block that nothing names, after the options `before`.
    fn block_after(&self, before: Self) -> u16 {
        let becomes_two_pass = self.compression == Compression::TwoPass && before.compression != Compression::TwoPass;
        if becomes_two_pass { before.block_kib.max(TWO_PASS_BLOCK_KIB) } else { before.block_kib }
    }
}

impl fmt::Display for LocalityGroupOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { compression, block_kib, bloom, residence } = self;
        write!(f, "compression={compression};block={block_kib}k;bloom={bloom};in-memory={residence}")
    }
}

impl FromStr for LocalityGroupOptions {
    type Err = Error;

    /// All options of `text`; those that it does not name have their defaults.
    fn from_str(text: &str) -> Result<Self, Error> {
        Self::default().with(text)
    }
}

fn parse_kib(value: &str) -> Result<u16, Error> {
    let wrong = || Error::invalid(format!("block: expected a number of KiB such as 16k, not {value:?}"));
    value.strip_suffix(['k', 'K']).and_then(|number| number.parse().ok()).ok_or_else(wrong)
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Lz4 => f.write_str("lz4"),
            Self::Lz4ThenZstd => f.write_str("lz4-then-zstd"),
            Self::Zstd(level) => write!(f, "zstd:{level}"),
            Self::TwoPass => f.write_str("two-pass"),
        }
    }
}

impl FromStr for Compression {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let level = |level: &str| level.parse().ok().map(Self::Zstd);
        let known = match text {
            "none" => Some(Self::None),
            "lz4" => Some(Self::Lz4),
            "lz4-then-zstd" => Some(Self::Lz4ThenZstd),
            "two-pass" => Some(Self::TwoPass),
            _ => text.strip_prefix("zstd:").and_then(level),
        };
        known.ok_or_else(|| {
            Error::invalid(format!(
                "unknown compression {text:?}: expected none, lz4, lz4-then-zstd, zstd:LEVEL or two-pass"
            ))
        })
    }
}

impl fmt::Display for BloomFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Rows => "rows",
            Self::Columns => "columns",
        })
    }
}

impl FromStr for BloomFilter {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text {
            "none" => Ok(Self::None),
            "rows" => Ok(Self::Rows),
            "columns" => Ok(Self::Columns),
            _ => Err(Error::invalid(format!("unknown bloom filter {text:?}: expected none, rows or columns"))),
        }
    }
}

impl fmt::Display for Residence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Files => "no",
            Self::Memory => "yes",
        })
    }
}

impl FromStr for Residence {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text {
            "no" => Ok(Self::Files),
            "yes" => Ok(Self::Memory),
            _ => Err(Error::invalid(format!("in-memory: expected yes or no, not {text:?}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_read_back() {
        for compression in ["none", "lz4", "lz4-then-zstd", "zstd:1", "zstd:19", "two-pass"] {
            for bloom in ["none", "rows", "columns"] {
                for (block, in_memory) in [(4, "no"), (16, "yes"), (1024, "yes")] {
                    let text = format!("compression={compression};block={block}k;bloom={bloom};in-memory={in_memory}");
                    let options: LocalityGroupOptions = text.parse().unwrap();
                    assert_eq!(options.to_string(), text);
                }
            }
        }
        assert_eq!("".parse::<LocalityGroupOptions>().unwrap(), LocalityGroupOptions::default());
    }

    #[test]
    fn options_keep_what_the_text_does_not_name() {
        let options: LocalityGroupOptions = "compression=zstd:3;bloom=none".parse().unwrap();
        let changed = options.with("block=64k").unwrap();
        assert_eq!(changed.to_string(), "compression=zstd:3;block=64k;bloom=none;in-memory=no");
    }

    #[test]
    fn two_pass_compression_begins_with_large_blocks() {
        let block = |before: &str, change: &str| {
            let before: LocalityGroupOptions = before.parse().unwrap();
            before.with(change).unwrap().block_kib
        };
        assert_eq!(block("", "compression=two-pass"), TWO_PASS_BLOCK_KIB);
        assert_eq!(block("", "block=64k;compression=two-pass"), 64, "a block that is named");
        assert_eq!(block("compression=two-pass;block=64k", "compression=two-pass"), 64, "no change");
        assert_eq!(block("compression=two-pass", "compression=lz4"), TWO_PASS_BLOCK_KIB, "what is not named stays");
        assert_eq!(block("block=32k", "compression=lz4"), 32);
    }

    #[test]
    fn wrong_options_are_refused_with_those_that_exist() {
        for (text, expected) in [
            ("compression=zip", "expected none, lz4, lz4-then-zstd, zstd:LEVEL or two-pass"),
            ("compression=zstd:0", "from 1 to 19"),
            ("compression=zstd:20", "from 1 to 19"),
            ("block=3k", "4 to 1024 KiB"),
            ("block=16", "such as 16k"),
            ("bloom=cells", "expected none, rows or columns"),
            ("in-memory=maybe", "expected yes or no"),
            ("colour=red", "expected compression, block, bloom or in-memory"),
            ("block", "expected NAME=VALUE"),
        ] {
            let error = text.parse::<LocalityGroupOptions>().unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
