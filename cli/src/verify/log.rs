//! The history on disk: a line of JSON for each operation, written as answers come, so that a load that is killed with
//! the machine's other processes can still be checked.
//!
//! ```text
//!   {"ebla_verify":1,"table":"projects/…","run":"…","slots":4}           first
//!   {"row":"00/list/…","by":{"writer":3},"start":…,"end":…,"outcome":"ok","do":"append","token":"3.17","list":{…}}
//!   {"end":…}                                                           last, if the load came to its end
//! ```
//!
//! Lines are handed to the system in groups: what a group holds was answered a moment before. A log without its last line
//! was cut off; its last line may be torn, and writes may have been sent that are not in it. Reads that failed and border
//! rows are not logged. Nothing is synced: the log survives its process, not a power cut.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;

use ebla_model::error::{Error, Reason};
use ebla_model::schema::TableName;
use ebla_runtime::{Blocking, Runtime};
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};

use super::history::{Extent, History, Moment, Operation};
use super::rows::Layout;

/// Lines that wait to be written; whoever notes more waits.
const LINES_MAX: usize = 4_096;
/// The version of the lines.
const VERSION: u32 = 1;

/// The first line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Header {
    ebla_verify: u32,
    table: String,
    run: String,
    slots: u32,
}

/// The last line.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Trailer {
    end: Moment,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Entry<'a> {
    row: std::borrow::Cow<'a, str>,
    #[serde(flatten)]
    operation: std::borrow::Cow<'a, Operation>,
}

/// A log that is being written.
#[derive(Debug)]
pub struct LogFile {
    lines: mpsc::Sender<String>,
    written: oneshot::Receiver<std::io::Result<()>>,
}

/// A log that was read.
#[derive(Clone, Debug)]
pub struct Logged {
    /// The table that was written to.
    pub table: TableName,
    /// Its rows.
    pub layout: Layout,
    /// What was done.
    pub history: History,
}

impl LogFile {
    /// Begins a log at `path`; a file that is there is replaced. A task of `runtime` writes it.
    ///
    /// # Errors
    /// `FailedPrecondition` when the file cannot be made.
    pub fn create(path: &Path, table: &TableName, layout: &Layout, runtime: &Runtime) -> Result<Self, Error> {
        let failed = |error: std::io::Error| cannot("write", path, &error);
        let file = File::create(path).map_err(failed)?;
        let disk = Blocking::pool("verify-log", 1, 1).map_err(failed)?;
        let (lines, waiting) = mpsc::channel(LINES_MAX);
        let header = Header {
            ebla_verify: VERSION,
            table: table.as_str().to_owned(),
            run: layout.run.clone(),
            slots: layout.slots,
        };
        let first = line(&header)?;
        let written = runtime.tasks.start("verify log", write(file, first, waiting, disk));
        Ok(Self { lines, written })
    }

    /// Hands on an operation; waits while too many lines do.
    ///
    /// # Errors
    /// `FailedPrecondition` when the log can no longer be written: the load must end.
    pub async fn note(&self, row: &str, operation: &Operation) -> Result<(), Error> {
        let entry = Entry { row: row.into(), operation: std::borrow::Cow::Borrowed(operation) };
        self.send(line(&entry)?).await
    }

    /// Writes the last line and waits until all is with the system.
    ///
    /// # Errors
    /// As [`Self::note`].
    pub async fn end(self, at: Moment) -> Result<(), Error> {
        self.send(line(&Trailer { end: at })?).await?;
        drop(self.lines);
        match self.written.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(Error::new(Reason::FailedPrecondition, format!("write the log: {error}"))),
            Err(_) => Err(gone()),
        }
    }

    async fn send(&self, line: String) -> Result<(), Error> {
        self.lines.send(line).await.map_err(|_| gone())
    }
}

fn gone() -> Error {
    Error::new(Reason::FailedPrecondition, "the log can no longer be written: is the disk full?")
}

fn cannot(what: &str, path: &Path, error: &dyn std::fmt::Display) -> Error {
    Error::new(Reason::FailedPrecondition, format!("{what} the log {}: {error}", path.display()))
}

fn line(value: &impl Serialize) -> Result<String, Error> {
    let mut text = serde_json::to_string(value).map_err(|error| Error::internal(format!("write JSON: {error}")))?;
    text.push('\n');
    Ok(text)
}

async fn write(
    mut file: File,
    first: String,
    mut lines: mpsc::Receiver<String>,
    disk: Blocking,
) -> std::io::Result<()> {
    let mut group = vec![first];
    loop {
        let text = group.concat();
        group.clear();
        let call = move || {
            let result = file.write_all(text.as_bytes());
            (file, result)
        };
        let (back, result) = disk.run(call).await.map_err(std::io::Error::other)?;
        result?;
        file = back;
        if lines.recv_many(&mut group, LINES_MAX).await == 0 {
            return Ok(());
        }
    }
}

/// Reads a log. What was cut off is marked so in the history.
///
/// # Errors
/// `FailedPrecondition` when it cannot be read, is no log, or is damaged before its last line.
pub fn read(path: &Path) -> Result<Logged, Error> {
    let failed = |error: std::io::Error| cannot("read", path, &error);
    let mut lines = BufReader::new(File::open(path).map_err(failed)?).lines();
    let first = lines.next().transpose().map_err(failed)?.unwrap_or_default();
    let header: Header = serde_json::from_str(&first).map_err(|error| cannot("understand", path, &error))?;
    if header.ebla_verify != VERSION {
        return Err(cannot("understand", path, &format!("version {}", header.ebla_verify)));
    }
    let mut history = History::cut();
    let mut torn: Option<Error> = None;
    for (number, text) in (2..).zip(lines) {
        let text = text.map_err(failed)?;
        if let Some(error) = torn {
            return Err(error);
        }
        if serde_json::from_str::<Trailer>(&text).is_ok_and(|_| !text.contains("\"row\"")) {
            history.extent = Extent::Whole;
        } else {
            match serde_json::from_str::<Entry<'_>>(&text) {
                Ok(entry) => history.note(&entry.row, entry.operation.into_owned()),
                // Only the last line may be torn.
                Err(error) => torn = Some(cannot("understand", path, &format!("line {number}: {error}"))),
            }
        }
    }
    Ok(Logged { table: header.table.parse()?, layout: Layout { run: header.run, slots: header.slots }, history })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::history::{Action, Outcome, Prefix, Process, Token};
    use super::*;

    fn append(sequence: u64) -> Operation {
        let token = Token { writer: 3, sequence };
        Operation {
            by: Process::Writer(3),
            start: Moment::after(Duration::from_millis(sequence)),
            end: Moment::after(Duration::from_millis(sequence + 1)),
            outcome: Outcome::Ok,
            action: Action::Append { token, list: Some(Prefix::of("3.1,")) },
        }
    }

    async fn written(path: &Path) -> LogFile {
        let table = TableName::from_parts("p", "i", "t").unwrap();
        let layout = Layout { run: "r".into(), slots: 4 };
        let log = LogFile::create(path, &table, &layout, &Runtime::system("log")).unwrap();
        for sequence in 1..=3 {
            log.note("00/list/r/00000000", &append(sequence)).await.unwrap();
        }
        log
    }

    #[tokio::test]
    async fn a_log_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        written(&path).await.end(Moment::default()).await.unwrap();
        let logged = read(&path).unwrap();
        assert_eq!((logged.table.table(), logged.layout.run.as_str(), logged.layout.slots), ("t", "r", 4));
        assert_eq!(logged.history.extent, Extent::Whole);
        assert_eq!(logged.history.rows["00/list/r/00000000"], [append(1), append(2), append(3)]);
    }

    #[tokio::test]
    async fn a_torn_last_line_is_forgiven_and_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        written(&path).await.end(Moment::default()).await.unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<_> = text.lines().collect();
        let torn = format!("{}\n{}\n{}", lines[0], lines[1], &lines[2][..20]);
        std::fs::write(&path, &torn).unwrap();
        let logged = read(&path).unwrap();
        assert_eq!(logged.history.extent, Extent::Cut);
        assert_eq!(logged.history.rows["00/list/r/00000000"], [append(1)]);
        std::fs::write(&path, format!("{torn}\n{}\n", lines[3])).unwrap();
        assert!(read(&path).unwrap_err().message.contains("line 3"));
    }
}
