//! What has changed in a tablet since it was copied, as chunks for the target. Pure.
//!
//! A chunk has the present content of the changed cells, and removes those that are gone. Ranges come first, so that no cell that was
//! stored after a range was removed is removed with it.

use std::collections::{VecDeque, btree_map};

use bytes::Bytes;
use ebla_model::error::Error;
use ebla_model::id::CopyId;
use ebla_model::tablet_move::{ImportChunk, ImportPosition, ImportedToken, RemovedCells};
use ebla_model::time::Micros;

use super::export::{self, ITEM_BYTES};
use crate::tablet::core::change_record::Changes;

/// The present content of a tablet.
pub(super) trait Content {
    /// The value of a cell; `None` if there is none that a reader could see.
    ///
    /// # Errors
    /// When the store cannot be read.
    fn cell(&self, key: &[u8]) -> Result<Option<Bytes>, Error>;

    /// A token; `None` if it is forgotten.
    fn token(&self, key: &Bytes) -> Option<ImportedToken>;
}

/// Changes that are being sent.
#[derive(Debug)]
pub(super) struct Difference {
    copy: CopyId,
    /// Of the next chunk.
    number: u64,
    removed: Vec<(Bytes, Bytes)>,
    cells: btree_map::IntoIter<Bytes, usize>,
    tokens: btree_map::IntoIter<Bytes, usize>,
}

impl Difference {
    /// `number`: of differences that the target has.
    pub(super) fn new(copy: CopyId, number: u64, changes: Changes) -> Self {
        let Changes { cells, removed, tokens } = changes;
        Self { copy, number, removed, cells: cells.into_iter(), tokens: tokens.into_iter() }
    }

    /// A chunk without changes that has the target compare `times`, the source's log time and GC time, with its own. `number`: of differences
    /// that the target has.
    pub(super) fn of_times(copy: CopyId, number: u64, times: (Micros, Micros)) -> ImportChunk {
        let (from, to) = (ImportPosition::Difference(number), ImportPosition::Difference(number + 1));
        ImportChunk { to, times: Some(times), ..export::empty_chunk(Some(copy), from) }
    }

    /// The next chunk, which ends with the item that fills `room`, in bytes, and the room that it leaves; without any change when all were
    /// returned.
    ///
    /// # Errors
    /// When the content cannot be read.
    pub(super) fn next_chunk(&mut self, content: &impl Content, room: usize) -> Result<(ImportChunk, usize), Error> {
        let mut room = room;
        let mut use_room = |bytes: usize| {
            room = room.saturating_sub(bytes + ITEM_BYTES);
            room > 0
        };
        let mut removed = RemovedCells::default();
        let mut has_room = true;
        while let Some((from, to)) = self.removed.pop() {
            has_room = use_room(from.len() + to.len());
            removed.ranges.push((from, to));
            if !has_room {
                break;
            }
        }
        let mut cells = Vec::new();
        while has_room && let Some((key, _bytes)) = self.cells.next() {
            match content.cell(&key)? {
                Some(value) => {
                    has_room = use_room(key.len() + value.len());
                    cells.push((key, value));
                }
                None => {
                    has_room = use_room(key.len());
                    removed.keys.push(key);
                }
            }
        }
        let mut tokens = Vec::new();
        while has_room && let Some((key, _bytes)) = self.tokens.next() {
            if let Some(token) = content.token(&key) {
                has_room = use_room(key.len() + token.result.as_ref().map_or(0, Bytes::len));
                tokens.push(token);
            }
        }
        let from = ImportPosition::Difference(self.number);
        self.number += 1;
        let to = ImportPosition::Difference(self.number);
        let copy = Some(self.copy);
        Ok((ImportChunk { from, to, cells, tokens, sessions: Vec::new(), copy, removed, times: None }, room))
    }

    /// All chunks up to the end, with the sessions of the source, which `add_sessions` adds after a chunk's end for this room. `times`: the
    /// source's log time and GC time.
    ///
    /// # Errors
    /// When the content cannot be read.
    pub(super) fn into_rest(
        mut self,
        content: &impl Content,
        times: (Micros, Micros),
        room: usize,
        mut add_sessions: impl FnMut(&mut ImportChunk, usize),
    ) -> Result<VecDeque<ImportChunk>, Error> {
        let mut chunks = VecDeque::new();
        let mut end = loop {
            // The last one may have no change: it has the times.
            let (mut chunk, room_left) = self.next_chunk(content, room)?;
            chunk.times = Some(times);
            let is_last = self.is_empty();
            if is_last {
                add_sessions(&mut chunk, room_left);
            }
            let end = chunk.to.clone();
            chunks.push_back(chunk);
            if is_last {
                break end;
            }
        };
        while end != ImportPosition::End {
            let mut chunk = export::empty_chunk(Some(self.copy), end);
            add_sessions(&mut chunk, room);
            if chunk.to == chunk.from {
                return Err(Error::internal("a chunk has no session"));
            }
            end = chunk.to.clone();
            chunks.push_back(chunk);
        }
        Ok(chunks)
    }

    /// Whether all changes were returned.
    pub(super) fn is_empty(&self) -> bool {
        self.removed.is_empty() && self.cells.len() == 0 && self.tokens.len() == 0
    }

    /// The number of differences that the target has after the chunks so far.
    pub(super) const fn number(&self) -> u64 {
        self.number
    }
}
