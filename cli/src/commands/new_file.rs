//! Files that commands make: keys, certificates, tokens. Secret ones are readable by their owner alone from the moment that they exist.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use ebla_model::error::{Error, Reason};

use crate::output::Failure;

/// The mode of a file that only its owner may read.
pub(super) const SECRET: u32 = 0o600;
/// The mode of a file that everyone may read.
pub(super) const PUBLIC: u32 = 0o644;

/// What happens to files that exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Existing {
    /// They stay, and the command is refused.
    Kept,
    /// They are replaced.
    Replaced,
}

impl From<bool> for Existing {
    /// From the flag `--replace`.
    fn from(replace: bool) -> Self {
        if replace { Self::Replaced } else { Self::Kept }
    }
}

impl Existing {
    /// Checks that none of the files exists, unless they shall be replaced.
    ///
    /// # Errors
    /// `AlreadyExists` with the file.
    pub(super) fn check(self, files: &[&Path]) -> Result<(), Failure> {
        match files.iter().find(|file| self == Self::Kept && file.exists()) {
            None => Ok(()),
            Some(file) => {
                let message = format!("{} exists: --replace replaces it", file.display());
                Err(Error::new(Reason::AlreadyExists, message).into())
            }
        }
    }
}

/// Writes a file with this mode, also if one with another mode exists. A reader sees the former file or the new one, never a part.
///
/// # Errors
/// `FailedPrecondition` when it cannot be written.
pub(super) fn write(file: &Path, text: &str, mode: u32) -> Result<(), Failure> {
    let mut unfinished = file.as_os_str().to_owned();
    unfinished.push(".new");
    let unfinished = PathBuf::from(unfinished);
    match fs::remove_file(&unfinished) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(unusable(file, &error)),
        _ => {}
    }
    let opened = OpenOptions::new().write(true).create_new(true).mode(mode).open(&unfinished);
    let written = opened.and_then(|mut opened| opened.write_all(text.as_bytes()).and_then(|()| opened.sync_all()));
    written.and_then(|()| fs::rename(&unfinished, file)).map_err(|error| unusable(file, &error))
}

/// The failure of a file or folder that cannot be written.
pub(super) fn unusable(file: &Path, error: &std::io::Error) -> Failure {
    precondition(format!("cannot write {}: {error}", file.display()))
}

/// A failure that the user can remove: exit code 5.
pub(super) fn precondition(message: String) -> Failure {
    Error::new(Reason::FailedPrecondition, message).into()
}
