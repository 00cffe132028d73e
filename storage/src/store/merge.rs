//! Merging the cells of several column families into one order.
//!
//! A cell can be in two column families while its family moves between them: then the one in the family's current column family counts
//! (placement.rs).

use std::sync::Arc;

use super::cell_family::CellFamily;
use super::cursor::Cursor;
use super::error::StoreError;
use super::placement::Placements;
use super::scan::Direction;

/// The entries of several iterators with the same bounds, in one direction. No key appears twice.
pub(super) struct Merge<'v> {
    sources: Vec<(CellFamily, Cursor<'v>)>,
    placements: Arc<Placements>,
    direction: Direction,
    /// The source with the current entry; none: the end, or an error.
    current: Option<usize>,
}

impl<'v> Merge<'v> {
    /// Seeks all sources to their first entries.
    pub(super) fn start(
        sources: Vec<(CellFamily, Cursor<'v>)>,
        placements: Arc<Placements>,
        direction: Direction,
    ) -> Result<Self, StoreError> {
        let mut merge = Self { sources, placements, direction, current: None };
        for (_family, cursor) in &mut merge.sources {
            cursor.seek_to_start(direction);
        }
        merge.settle()?;
        Ok(merge)
    }

    pub(super) fn entry(&self) -> Option<(&[u8], &[u8])> {
        self.sources.get(self.current?)?.1.item()
    }

    pub(super) fn step(&mut self) -> Result<(), StoreError> {
        let Some((_family, cursor)) = self.current.and_then(|at| self.sources.get_mut(at)) else { return Ok(()) };
        cursor.step(self.direction);
        self.settle()
    }

    /// Seeks to the first entry at or beyond `key`.
    pub(super) fn seek(&mut self, key: &[u8]) -> Result<(), StoreError> {
        for (_family, cursor) in &mut self.sources {
            cursor.seek(key, self.direction);
        }
        self.settle()
    }

    /// Chooses the source with the next entry, and steps over the older cells of its key.
    fn settle(&mut self) -> Result<(), StoreError> {
        self.current = None;
        for (_family, cursor) in &self.sources {
            cursor.check()?;
        }
        let Some(first) = self.first() else { return Ok(()) };
        let key = self.key(first);
        if !(0..self.sources.len()).any(|at| at != first && self.key(at) == key) {
            self.current = Some(first);
            return Ok(());
        }
        let twins: Vec<usize> = (0..self.sources.len()).filter(|at| self.key(*at) == key).collect();
        let wanted = self.placements.of_key(key.unwrap_or_default()).current;
        let is_wanted = |at: &usize| self.sources.get(*at).is_some_and(|(family, _cursor)| *family == wanted);
        let chosen = twins.iter().copied().find(is_wanted).unwrap_or(first);
        for at in twins.into_iter().filter(|at| *at != chosen) {
            if let Some((_family, cursor)) = self.sources.get_mut(at) {
                cursor.step(self.direction);
                cursor.check()?;
            }
        }
        self.current = Some(chosen);
        Ok(())
    }

    /// The source with the lowest key; the highest one in a descending scan.
    fn first(&self) -> Option<usize> {
        let keys = (0..self.sources.len()).filter_map(|at| Some((self.key(at)?, at)));
        match self.direction {
            Direction::Forward => keys.min(),
            Direction::Reverse => keys.max(),
        }
        .map(|(_key, at)| at)
    }

    fn key(&self, at: usize) -> Option<&[u8]> {
        self.sources.get(at)?.1.key()
    }
}
