//! The ready file: written atomically when a process is ready to serve.

use std::path::Path;

use serde_json::Value;

use crate::output::Failure;

/// Checks before the start whether [`write_ready`] can write the file.
///
/// # Errors
/// Usage, with the cause.
pub fn check_ready(file: &Path) -> Result<(), Failure> {
    let refused = |cause: String| Failure::usage(format!("cannot write the ready file {}: {cause}", file.display()));
    if file.is_dir() {
        return Err(refused("it is a folder; give the path of a file with --ready-file".to_owned()));
    }
    let folder = match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    if !folder.is_dir() {
        let cause = format!(
            "the folder {} does not exist; create it, or give another path with --ready-file",
            folder.display()
        );
        return Err(refused(cause));
    }
    match tempfile::Builder::new().prefix(".ebla-ready-").tempfile_in(folder) {
        Ok(_probe) => Ok(()),
        Err(error) => Err(refused(format!("{error}; give another path with --ready-file"))),
    }
}

/// Writes the ready file atomically: it is written under another name and renamed.
///
/// # Errors
/// When the file cannot be written.
pub fn write_ready(file: &Path, ready: &Value) -> Result<(), Failure> {
    let beside = file.with_extension("part");
    std::fs::write(&beside, format!("{ready}\n"))
        .and_then(|()| std::fs::rename(&beside, file))
        .map_err(|error| Failure::other(format!("cannot write the ready file {}: {error}", file.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unwritable_ready_file_is_refused_before_the_start() {
        let folder = tempfile::tempdir().unwrap();
        let absent = check_ready(&folder.path().join("absent").join("ready")).unwrap_err();
        assert!(absent.code == 2 && absent.message.contains("does not exist"), "{}", absent.message);
        assert_eq!(check_ready(folder.path()).map_err(|refused| refused.code), Err(2));
        assert!(check_ready(&folder.path().join("ready")).is_ok());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "the check leaves nothing behind");
    }
}
