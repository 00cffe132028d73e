//! The log: the history on disk as one line of JSON for each operation, written as responses arrive, so that the data can be
//! checked even if the load is killed together with the cluster.
//!
//! ```text
//!   {"ebla_verify":1,"table":"projects/…","run":"…","slots":4}           first
//!   {"row":"00/list/…","by":{"writer":3},"start":…,"end":…,"outcome":"ok","do":"append","token":"3.17","list":{…}}
//!   {"end":…}                                                           last, if the load finished
//! ```
//!
//! Lines are written in groups, shortly after their responses. A log without its last line is truncated: its final line may be
//! torn, and writes may have been sent that are not in it. Failed reads and boundary rows are not logged. Nothing is synced:
//! the log survives its process, but not a power failure.

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

/// Lines queued for writing; more lines wait for room.
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

/// A log for writing.
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
    /// The layout of its rows.
    pub layout: Layout,
    /// The history.
    pub history: History,
}

impl LogFile {
    /// Creates a log at `path`, replacing an existing file. A task of `runtime` writes it.
    ///
    /// # Errors
    /// `FailedPrecondition` when the file cannot be created.
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

    /// Appends an operation; waits while the queue is full.
    ///
    /// # Errors
    /// `FailedPrecondition` when the log can no longer be written: the load must stop.
    pub async fn note(&self, row: &str, operation: &Operation) -> Result<(), Error> {
        let entry = Entry { row: row.into(), operation: std::borrow::Cow::Borrowed(operation) };
        self.send(line(&entry)?).await
    }

    /// Writes the last line and waits until all lines are written.
    ///
    /// # Errors
    /// As [`Self::note`].
    pub async fn end(self, at: Moment) -> Result<(), Error> {
        self.send(line(&Trailer { end: at })?).await?;
        drop(self.lines);
        match self.written.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(Error::new(Reason::FailedPrecondition, format!("cannot write the log: {error}"))),
            Err(_) => Err(gone()),
        }
    }

    async fn send(&self, line: String) -> Result<(), Error> {
        self.lines.send(line).await.map_err(|_| gone())
    }
}

fn gone() -> Error {
    Error::new(Reason::FailedPrecondition, "the log can no longer be written: check the free disk space")
}

fn cannot(what: &str, path: &Path, error: &dyn std::fmt::Display) -> Error {
    Error::new(Reason::FailedPrecondition, format!("cannot {what} the log {}: {error}", path.display()))
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

/// Reads a log. The history of a truncated log is marked as truncated.
///
/// # Errors
/// `FailedPrecondition` when it cannot be read, is not a log, or is damaged before its final line.
pub fn read(path: &Path) -> Result<Logged, Error> {
    let failed = |error: std::io::Error| cannot("read", path, &error);
    let mut lines = BufReader::new(File::open(path).map_err(failed)?).lines();
    let first = lines.next().transpose().map_err(failed)?.unwrap_or_default();
    let header: Header = serde_json::from_str(&first).map_err(|error| cannot("parse", path, &error))?;
    if header.ebla_verify != VERSION {
        return Err(cannot("parse", path, &format!("unsupported version {}", header.ebla_verify)));
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
                // Only the final line may be torn.
                Err(error) => torn = Some(cannot("parse", path, &format!("line {number}: {error}"))),
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
    async fn a_log_round_trips() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        written(&path).await.end(Moment::default()).await.unwrap();
        let logged = read(&path).unwrap();
        assert_eq!((logged.table.table(), logged.layout.run.as_str(), logged.layout.slots), ("t", "r", 4));
        assert_eq!(logged.history.extent, Extent::Whole);
        assert_eq!(logged.history.rows["00/list/r/00000000"], [append(1), append(2), append(3)]);
    }

    #[tokio::test]
    async fn only_the_final_line_may_be_torn() {
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
