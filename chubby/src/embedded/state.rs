//! The files and their revisions in memory: what transactions compare and change, and the watchers to notify.

use std::collections::{BTreeMap, VecDeque};

use tokio::sync::mpsc;

use crate::{Compare, File, LeaseId, Revision, WatchEvent, Write};

/// Events stored for watches that start in the past; enough for a list and the watch after it.
const HISTORY_MAX: usize = 4_096;

/// All files as of one revision.
#[derive(Debug, Default)]
pub(super) struct Files {
    revision: Revision,
    files: BTreeMap<String, File>,
    /// Events of the revisions after `history_from`, ascending.
    history: VecDeque<WatchEvent>,
    history_from: Revision,
    watchers: Vec<Watcher>,
}

#[derive(Debug)]
struct Watcher {
    prefix: String,
    events: mpsc::Sender<WatchEvent>,
}

impl Files {
    /// Files as they were stored, without history.
    pub(super) fn restored(revision: Revision, files: BTreeMap<String, File>) -> Self {
        Self { revision, files, history_from: revision, ..Self::default() }
    }

    pub(super) fn revision(&self) -> Revision {
        self.revision
    }

    pub(super) fn next_revision(&self) -> Revision {
        Revision::new(self.revision.get() + 1)
    }

    pub(super) fn get(&self, path: &str) -> Option<File> {
        self.files.get(path).cloned()
    }

    pub(super) fn list(&self, prefix: &str) -> Vec<File> {
        self.files_under(prefix).cloned().collect()
    }

    fn files_under<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = &'a File> {
        let from = self.files.range(prefix.to_owned()..);
        from.take_while(move |(path, _file)| path.starts_with(prefix)).map(|(_path, file)| file)
    }

    /// All files, for a snapshot.
    pub(super) fn clone_files(&self) -> Vec<File> {
        self.files.values().cloned().collect()
    }

    /// The writes that delete the files of these leases.
    pub(super) fn deletes_of_leases(&self, expired: impl Fn(LeaseId) -> bool) -> Vec<Write> {
        let leased = self.files.values().filter(|file| file.lease.is_some_and(&expired));
        leased.map(|file| Write::delete(file.path.clone())).collect()
    }

    pub(super) fn holds(&self, compares: &[Compare]) -> bool {
        compares.iter().all(|compare| match compare {
            Compare::Absent(path) => !self.files.contains_key(path),
            Compare::Exists(path) => self.files.contains_key(path),
            Compare::Modified(path, revision) => self.files.get(path).is_some_and(|file| file.modified == *revision),
            Compare::Created(path, revision) => self.files.get(path).is_some_and(|file| file.created == *revision),
            Compare::Unchanged(prefix, revision) => self.files_under(prefix).all(|file| file.modified <= *revision),
        })
    }

    /// Makes the writes and notifies the watchers.
    pub(super) fn commit(&mut self, revision: Revision, writes: &[Write]) {
        self.revision = revision;
        for write in writes {
            if let Some(event) = self.write(revision, write) {
                self.notify(&event);
                self.record_event(event);
            }
        }
    }

    fn write(&mut self, revision: Revision, write: &Write) -> Option<WatchEvent> {
        match write {
            Write::Put { path, value, lease } => {
                let created = self.files.get(path).map_or(revision, |before| before.created);
                let (path, value) = (path.clone(), value.clone());
                let file = File { path: path.clone(), value, created, modified: revision, lease: *lease };
                self.files.insert(path, file.clone());
                Some(WatchEvent::Put(file))
            }
            Write::Delete { path } => {
                self.files.remove(path).map(|gone| WatchEvent::Deleted { path: gone.path, revision })
            }
        }
    }

    fn record_event(&mut self, event: WatchEvent) {
        self.history.push_back(event);
        while self.history.len() > HISTORY_MAX {
            if let Some(forgotten) = self.history.pop_front() {
                self.history_from = revision_of(&forgotten);
            }
        }
    }

    fn notify(&mut self, event: &WatchEvent) {
        self.watchers.retain(|watcher| !watcher.prefix_of(event) || send_or_gap(&watcher.events, event));
        self.watchers.retain(|watcher| !watcher.events.is_closed());
    }

    /// Starts a watch: sends the events after `after`, then registers the watcher.
    pub(super) fn watch(&mut self, prefix: &str, after: Revision, events: mpsc::Sender<WatchEvent>) {
        let watcher = Watcher { prefix: prefix.to_owned(), events };
        // A revision from the future belongs to another history: no events can be sent from there.
        if after < self.history_from || after > self.revision {
            _ = watcher.events.try_send(WatchEvent::Gap);
            return;
        }
        let missed = self.history.iter().filter(|event| revision_of(event) > after && watcher.prefix_of(event));
        if missed.into_iter().all(|event| send_or_gap(&watcher.events, event)) {
            self.watchers.push(watcher);
        }
    }
}

impl Watcher {
    fn prefix_of(&self, event: &WatchEvent) -> bool {
        match event {
            WatchEvent::Put(file) => file.path.starts_with(&self.prefix),
            WatchEvent::Deleted { path, .. } => path.starts_with(&self.prefix),
            WatchEvent::Gap => true,
        }
    }
}

fn revision_of(event: &WatchEvent) -> Revision {
    match event {
        WatchEvent::Put(file) => file.modified,
        WatchEvent::Deleted { revision, .. } => *revision,
        WatchEvent::Gap => Revision::ZERO,
    }
}

/// Sends an event, or `Gap` when only the last slot is left. Returns whether the watch continues.
fn send_or_gap(events: &mpsc::Sender<WatchEvent>, event: &WatchEvent) -> bool {
    if events.capacity() <= 1 {
        _ = events.try_send(WatchEvent::Gap);
        return false;
    }
    events.try_send(event.clone()).is_ok()
}
