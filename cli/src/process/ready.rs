//! The ready file: written, whole, when a process serves.

use std::path::Path;

use serde_json::Value;

use crate::output::Failure;

/// Finds out, before anything is started, whether [`write_ready`] could write the file.
///
/// # Errors
/// Usage, with the cause.
pub fn check_ready(file: &Path) -> Result<(), Failure> {
    let refused = |cause: String| Failure::usage(format!("cannot write the ready file {}: {cause}", file.display()));
    if file.is_dir() {
        return Err(refused("it is a folder; give --ready-file the name of a file".to_owned()));
    }
    let folder = match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    if !folder.is_dir() {
        let cause = format!("there is no folder {}; make it, or give --ready-file another path", folder.display());
        return Err(refused(cause));
    }
    match tempfile::Builder::new().prefix(".ebla-ready-").tempfile_in(folder) {
        Ok(_probe) => Ok(()),
        Err(error) => Err(refused(format!("{error}; give --ready-file another path"))),
    }
}

/// Writes the ready file. A reader never sees half of it: it is written beside and renamed.
///
/// # Errors
/// When the file cannot be written.
pub fn write_ready(file: &Path, ready: &Value) -> Result<(), Failure> {
    let beside = file.with_extension("part");
    std::fs::write(&beside, format!("{ready}\n"))
        .and_then(|()| std::fs::rename(&beside, file))
        .map_err(|error| Failure::other(format!("write the ready file {}: {error}", file.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ready_file_that_cannot_be_written_is_refused_beforehand() {
        let folder = tempfile::tempdir().unwrap();
        let absent = check_ready(&folder.path().join("absent").join("ready")).unwrap_err();
        assert!(absent.code == 2 && absent.message.contains("there is no folder"), "{}", absent.message);
        assert_eq!(check_ready(folder.path()).map_err(|refused| refused.code), Err(2));
        assert!(check_ready(&folder.path().join("ready")).is_ok());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "the check leaves nothing behind");
    }
}
