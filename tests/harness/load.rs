//! The verifying load: writers that note every answer, and the check that reads everything back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ebla_runtime::Runtime;

use crate::api::{Api, ReadRow};
use crate::ledger::{Fate, Page, counter_key, list_key, row_key, row_value};

/// The table's families.
pub const FAMILIES: [&str; 2] = ["a", "b"];

/// A pause after an error, so that a cluster that is down is not hammered.
const PAUSE: Duration = Duration::from_millis(20);
/// An answer later than this counts as unknown.
const ANSWER_MAX: Duration = Duration::from_secs(20);

/// The load on one table.
pub struct Load {
    runtime: Runtime,
    pages: Vec<Page>,
    table: String,
}

/// What one round of load gave.
#[derive(Clone, Debug, Default)]
pub struct Round {
    /// Writes acknowledged in this round.
    pub acknowledged: u64,
    /// Writes whose fate is unknown.
    pub unknown: u64,
    /// Reads that did not show what was acknowledged before them, in words.
    pub stale: Vec<String>,
    /// The longest time that any writer waited for an acknowledged write, with the errors before it.
    pub longest_stall: Duration,
}

impl Load {
    /// A load of `writers` writers on the table `table`, which exists.
    pub fn new(runtime: &Runtime, table: &str, writers: usize) -> Self {
        Self { runtime: runtime.clone(), pages: (0..writers).map(Page::new).collect(), table: table.to_owned() }
    }

    /// Starts all writers, each at one of the addresses in turn.
    pub fn start(&mut self, addresses: &[String]) -> Running {
        let stop = Arc::new(AtomicBool::new(false));
        let mut writers = Vec::new();
        for page in std::mem::take(&mut self.pages) {
            let Some(address) = addresses.get(page.writer % addresses.len().max(1)) else { continue };
            let writer = Writer {
                api: Api::new(&self.runtime.net, address, &self.table),
                runtime: self.runtime.clone(),
                round: Round::default(),
                page,
            };
            let (done, result) = tokio::sync::oneshot::channel();
            let stop = stop.clone();
            self.runtime.tasks.spawn_until_stopped("writer", async move {
                drop(done.send(writer.run(stop).await));
            });
            writers.push(result);
        }
        Running { stop, writers }
    }

    /// Ends a round and takes its notes.
    pub async fn finish(&mut self, running: Running) -> Round {
        running.stop.store(true, Ordering::Relaxed);
        let mut whole = Round::default();
        for writer in running.writers {
            let Ok((page, round)) = writer.await else { continue };
            self.pages.push(page);
            whole.acknowledged += round.acknowledged;
            whole.unknown += round.unknown;
            whole.stale.extend(round.stale);
            whole.longest_stall = whole.longest_stall.max(round.longest_stall);
        }
        whole
    }

    /// Reads everything back through `address`; each difference in words.
    ///
    /// # Errors
    /// When the cluster cannot be read at all.
    pub async fn verify(&self, address: &str) -> Result<Vec<String>, tonic::Status> {
        let mut api = Api::new(&self.runtime.net, address, &self.table);
        let mut wrong = Vec::new();
        for page in &self.pages {
            let mut rows: Vec<ReadRow> = Vec::new();
            api.scan(&format!("w{:03}/", page.writer), |row| rows.push(row)).await?;
            wrong.extend(page.check_rows(&rows));
            wrong.extend(page.check_list(api.read(&list_key(page.writer)).await?.as_ref()));
            wrong.extend(page.check_counter(api.read(&counter_key(page.writer)).await?.as_ref()));
        }
        Ok(wrong)
    }

    /// All writes acknowledged so far.
    pub fn acknowledged(&self) -> u64 {
        self.pages.iter().map(Page::acknowledged).sum()
    }
}

/// A load under way.
pub struct Running {
    stop: Arc<AtomicBool>,
    writers: Vec<tokio::sync::oneshot::Receiver<(Page, Round)>>,
}

struct Writer {
    api: Api,
    runtime: Runtime,
    page: Page,
    round: Round,
}

impl Writer {
    async fn run(mut self, stop: Arc<AtomicBool>) -> (Page, Round) {
        let mut last_yes = self.runtime.clock.monotonic();
        while !stop.load(Ordering::Relaxed) {
            let number = self.page.next;
            self.page.next += 1;
            let answer = tokio::time::timeout(ANSWER_MAX, self.write(number)).await;
            let fate = if matches!(answer, Ok(Ok(()))) { Fate::Acknowledged } else { Fate::Unknown };
            self.note(number, fate);
            if fate == Fate::Acknowledged {
                let now = self.runtime.clock.monotonic();
                self.round.longest_stall = self.round.longest_stall.max(now.saturating_sub(last_yes));
                self.read_back(number).await;
                last_yes = self.runtime.clock.monotonic();
            } else {
                tokio::time::sleep(PAUSE).await;
            }
        }
        (self.page, self.round)
    }

    /// Rows, appends and increments take turns.
    async fn write(&mut self, number: u64) -> Result<(), tonic::Status> {
        let writer = self.page.writer;
        match number % 3 {
            0 => {
                let value = row_value(writer, number);
                let cells = [("a", "v", value.clone()), ("b", "v", value)];
                self.api.write(&row_key(writer, number), &cells).await
            }
            1 => self.api.append(&list_key(writer), "a", "tokens", &format!("{number},")).await,
            _ => self.api.increment(&counter_key(writer), "a", "n", 1).await,
        }
    }

    fn note(&mut self, number: u64, fate: Fate) {
        match fate {
            Fate::Acknowledged => self.round.acknowledged += 1,
            Fate::Unknown => self.round.unknown += 1,
        }
        match (number % 3, fate) {
            (0, _) => drop(self.page.rows.insert(number, fate)),
            (1, _) => drop(self.page.tokens.insert(number, fate)),
            (_, Fate::Acknowledged) => self.page.counted += 1,
            (_, Fate::Unknown) => self.page.perhaps_counted += 1,
        }
    }

    /// What was just acknowledged must be seen at once, by whoever answers.
    async fn read_back(&mut self, number: u64) {
        let page = &self.page;
        let wrong = match number % 3 {
            0 => match self.api.read(&row_key(page.writer, number)).await {
                Ok(None) => vec![format!("stale: row {} is not there yet", row_key(page.writer, number))],
                _ => Vec::new(),
            },
            1 => match self.api.read(&list_key(page.writer)).await {
                Ok(row) => page.check_list(row.as_ref()),
                Err(_) => Vec::new(),
            },
            _ => match self.api.read(&counter_key(page.writer)).await {
                Ok(row) => page.check_counter(row.as_ref()),
                Err(_) => Vec::new(),
            },
        };
        self.round.stale.extend(wrong);
    }
}
