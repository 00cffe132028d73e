//! What tablet servers have on their disks, for measurements.

use std::fs;
use std::io;
use std::path::Path;

/// The bytes of `[segments of commit logs, SSTables]` below `path`. Files and folders that are removed meanwhile are not counted.
///
/// # Errors
/// When a folder cannot be read.
pub(crate) fn stored_bytes(path: &Path) -> io::Result<[u64; 2]> {
    let Ok(metadata) = fs::metadata(path) else { return Ok([0, 0]) };
    if metadata.is_dir() {
        let [mut log, mut sstables] = [0, 0];
        let entries = match fs::read_dir(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok([0, 0]),
            entries => entries?,
        };
        for entry in entries {
            let [of_log, of_sstables] = stored_bytes(&entry?.path())?;
            log += of_log;
            sstables += of_sstables;
        }
        return Ok([log, sstables]);
    }
    let is_sstable = path.extension().is_some_and(|extension| extension == "sst");
    let is_of_log = path.parent().and_then(Path::file_name).is_some_and(|parent| parent == "log");
    Ok(match (is_sstable, is_of_log) {
        (true, _) => [0, metadata.len()],
        (false, true) => [metadata.len(), 0],
        (false, false) => [0, 0],
    })
}
