//! Which cells of a row a read wants, in the store's own order.
//!
//! A row may have a million columns and a read want one of them. [`Wanted`] says where in each row the columns lie that a
//! filter, or a decision, looks at; [`Progress`] goes through one row and says of each cell whether to take it or how far
//! to go. What it leaves out is safe to leave out (`ebla_model::filter::Stretch`); it is not the filter.

use std::borrow::Cow;
use std::collections::BTreeSet;

use bytes::Bytes;
use ebla_model::codec;
use ebla_model::filter::{CompiledFilter, Stretch};
use ebla_model::id::FamilyId;

use crate::tablet::rows::Families;

/// The wanted columns of each row.
#[derive(Debug)]
pub(super) struct Wanted {
    /// In order and apart; `None`: all that there is.
    places: Option<Vec<Place>>,
}

/// Columns that stand side by side. Bounds are what follows the row in a cell's key.
#[derive(Debug)]
struct Place {
    start: Vec<u8>,
    /// Not part of it; `None`: to the end of the row.
    end: Option<Vec<u8>>,
    columns: usize,
    versions: usize,
}

impl Wanted {
    pub(super) const ALL: Self = Self { places: None };
    pub(super) const NOTHING: Self = Self { places: Some(Vec::new()) };

    /// What a filter's answer depends on.
    pub(super) fn by_filter(filter: Option<&CompiledFilter>, families: &Families) -> Self {
        filter.map_or(Self::ALL, |filter| Self::of(families, |_, name| filter.needs(name)))
    }

    /// What it depends on whether a predicate matches, or, without one, whether there is any cell; and some columns.
    pub(super) fn by_predicate(
        predicate: Option<&CompiledFilter>,
        columns: &BTreeSet<(FamilyId, Bytes)>,
        families: &Families,
    ) -> Self {
        let any = || vec![Stretch { columns: 1, versions: 1, ..Stretch::whole() }];
        Self::of(families, |id, name| {
            let mut stretches = predicate.map_or_else(any, |predicate| predicate.needs_to_match(name));
            stretches.extend(columns_of(id, columns));
            Stretch::in_order(stretches)
        })
    }

    /// All of these columns.
    pub(super) fn columns(columns: &BTreeSet<(FamilyId, Bytes)>, families: &Families) -> Self {
        Self::of(families, |id, _| columns_of(id, columns).collect())
    }

    fn of(families: &Families, stretches: impl Fn(FamilyId, &str) -> Vec<Stretch>) -> Self {
        let places = families.names().flat_map(|(id, name)| {
            stretches(id, name.as_str()).into_iter().map(move |stretch| Place::new(id, &stretch))
        });
        Self { places: Some(places.collect()) }
    }
}

fn columns_of(family: FamilyId, columns: &BTreeSet<(FamilyId, Bytes)>) -> impl Iterator<Item = Stretch> {
    let from = (family, Bytes::new());
    columns.range(from..).take_while(move |(id, _)| *id == family).map(|(_, name)| Stretch::column(name.clone()))
}

impl Place {
    fn new(family: FamilyId, stretch: &Stretch) -> Self {
        let at = |qualifier: &[u8]| codec::column_part(family, qualifier);
        let end = match &stretch.end {
            Some(end) => Some(at(end)),
            None => codec::prefix_end(&family.get().to_be_bytes()),
        };
        Self { start: at(&stretch.start), end, columns: stretch.columns, versions: stretch.versions }
    }

    fn ends_before(&self, column: &[u8]) -> bool {
        self.end.as_deref().is_some_and(|end| end <= column)
    }

    const fn is_bounded(&self) -> bool {
        self.columns != usize::MAX || self.versions != usize::MAX
    }
}

/// What to do with a cell.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Look<'w> {
    /// It may matter.
    Take,
    /// It does not matter, nor does any between it and there.
    GoTo(Target<'w>),
}

/// Where cells come that may matter again.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Target<'w> {
    /// At or beyond these bytes after the row's.
    Column(Cow<'w, [u8]>),
    /// In another row.
    NextRow,
}

/// The way through one row, whose cells come rising or falling.
#[derive(Debug)]
pub(super) struct Progress<'w> {
    wanted: &'w Wanted,
    falling: bool,
    /// The place of the last cell that may matter.
    at: usize,
    /// Its column.
    column: Vec<u8>,
    /// Columns of the place, this one not counted, of which a version was seen.
    columns: usize,
    /// Versions of this column that were seen.
    versions: usize,
}

impl<'w> Progress<'w> {
    pub(super) const fn new(wanted: &'w Wanted, falling: bool) -> Self {
        Self { wanted, falling, at: usize::MAX, column: Vec::new(), columns: 0, versions: 0 }
    }

    /// Whether the cell with this part of a key behind the row's may matter.
    pub(super) fn look(&mut self, cell: &[u8]) -> Look<'w> {
        let wanted: &'w Wanted = self.wanted;
        let Some(places) = &wanted.places else { return Look::Take };
        let at = places.partition_point(|place| place.ends_before(cell));
        match places.get(at) {
            Some(place) if place.start.as_slice() <= cell => self.look_in(at, place, cell),
            place => Look::GoTo(if self.falling {
                // The end of the place before is no key of a cell, so a falling seek comes to the last cell of it.
                let before = at.checked_sub(1).and_then(|before| places.get(before)?.end.as_deref());
                before.map_or(Target::NextRow, |end| Target::Column(end.into()))
            } else {
                place.map_or(Target::NextRow, |place| Target::Column(place.start.as_slice().into()))
            }),
        }
    }

    /// First columns and newest versions can only be told when they come first.
    fn look_in(&mut self, at: usize, place: &'w Place, cell: &[u8]) -> Look<'w> {
        if self.falling || !place.is_bounded() {
            return Look::Take;
        }
        let column = codec::without_timestamp(cell);
        if self.at != at || self.column != column {
            self.columns = if self.at == at { self.columns + usize::from(self.versions > 0) } else { 0 };
            self.versions = 0;
            self.at = at;
            self.column.clear();
            self.column.extend_from_slice(column);
        }
        let end = if self.columns >= place.columns {
            place.end.as_deref().map(Cow::from)
        } else if self.versions >= place.versions {
            codec::prefix_end(column).map(Cow::from)
        } else {
            return Look::Take;
        };
        Look::GoTo(end.map_or(Target::NextRow, Target::Column))
    }

    /// The cell that was looked at last is one that a reader may see.
    pub(super) const fn saw(&mut self) {
        self.versions += 1;
    }
}

#[cfg(test)]
mod tests;
