//! Cost budget of running a filter on one row: time, and copies of cells.
//!
//! Each node of a filter processes each cell that reaches it once, so time is proportional to filter size times row size.
//! Only copies can grow faster: each interleave in a chain multiplies the output of the one before. So the number of cells
//! in memory is bounded, and the run checks the request's deadline after every few thousand cells. When the budget is
//! exhausted, the partial result is discarded.

use std::cell::Cell;

use crate::error::{Error, Reason};

/// Number of cells in memory that is always allowed.
const CELLS_ALWAYS_ALLOWED: usize = 1 << 18;
/// Maximum number of copies per cell of a large row.
const COPIES_PER_CELL_MAX: usize = 4;
/// Units of work between two checks of the deadline.
const WORK_PER_CHECK: usize = 4096;
/// Bytes of a value that count as one unit of work for a pattern.
const BYTES_PER_WORK: usize = 64;

/// The budget of one run on one row. Shared by all nodes.
pub(super) struct FilterBudget<'a> {
    deadline_passed: &'a dyn Fn() -> bool,
    /// Cells of the row, or those of them that count.
    cells: Cell<usize>,
    /// Work done, in cells processed.
    work: Cell<usize>,
    next_check: Cell<usize>,
    exhausted: Cell<Option<Exhausted>>,
}

/// Why a budget is exhausted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Exhausted {
    Deadline,
    Cells,
}

impl<'a> FilterBudget<'a> {
    /// The budget for a row with `cells` cells.
    pub(super) fn new(cells: usize, deadline_passed: &'a dyn Fn() -> bool) -> Self {
        Self {
            deadline_passed,
            cells: Cell::new(cells),
            work: Cell::new(0),
            next_check: Cell::new(WORK_PER_CHECK),
            exhausted: Cell::new(None),
        }
    }

    /// From now on only this many cells of the row count: those that have passed the first member of the filter's outermost chain. That is where
    /// what a caller may not see is removed, and a refusal must not depend on it.
    pub(super) fn narrow(&self, cells: usize) {
        self.cells.set(self.cells.get().min(cells));
    }

    fn cells_max(&self) -> usize {
        self.cells.get().saturating_mul(COPIES_PER_CELL_MAX).max(CELLS_ALWAYS_ALLOWED)
    }

    /// Whether the budget is exhausted.
    pub(super) const fn is_exhausted(&self) -> bool {
        self.exhausted.get().is_some()
    }

    /// Charges the processing of cells. Returns whether the run may continue.
    pub(super) fn charge_cells(&self, cells: usize) -> bool {
        let work = self.work.get().saturating_add(cells);
        self.work.set(work);
        if work >= self.next_check.get() {
            self.next_check.set(work.saturating_add(WORK_PER_CHECK));
            if !self.is_exhausted() && (self.deadline_passed)() {
                self.exhausted.set(Some(Exhausted::Deadline));
            }
        }
        !self.is_exhausted()
    }

    /// Charges a pattern match on a value. Returns whether the run may continue.
    pub(super) fn charge_value(&self, bytes: usize) -> bool {
        self.charge_cells(1 + bytes / BYTES_PER_WORK)
    }

    /// Checks the number of cells in memory. Returns whether the run may continue.
    pub(super) fn check_cells(&self, cells: usize) -> bool {
        if cells > self.cells_max() {
            self.exhausted.set(Some(Exhausted::Cells));
        }
        !self.is_exhausted()
    }

    /// The result, or the error when the budget is exhausted.
    pub(super) fn finish<T>(&self, out: T) -> Result<T, Error> {
        match self.exhausted.get() {
            None => Ok(out),
            Some(Exhausted::Deadline) => Err(Error::new(Reason::Deadline, "deadline exceeded while the filter ran")),
            Some(Exhausted::Cells) => Err(Error::new(
                Reason::FailedPrecondition,
                format!("the filter makes more than {} copies of the cells of one row", self.cells_max()),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::cell::{self, FamilyName, Row};
    use crate::filter::{CompiledFilter, Filter};
    use crate::key::RowKey;
    use crate::time::Micros;

    fn row(cells: i64) -> Row {
        let family = FamilyName::new("f").unwrap();
        let cell = |at: i64| cell::Cell::new(family.clone(), Bytes::new(), Micros::new(-at), Bytes::from_static(b"x"));
        Row { key: RowKey::new("k"), cells: (0..cells).map(cell).collect() }
    }

    /// Filters for each execution mode: in place, on picks, with sinks.
    fn filters() -> Vec<Filter> {
        let leaf = || Filter::ValueRegex(Bytes::from_static(b"x|y"));
        let pool = || Filter::Interleave(vec![leaf(), Filter::StripValue]);
        vec![
            Filter::Chain(vec![leaf(), leaf()]),
            Filter::Chain(vec![pool(), leaf()]),
            Filter::Interleave(vec![Filter::Sink, leaf()]),
            Filter::Condition {
                predicate: Box::new(Filter::Chain(vec![pool(), Filter::ValueRegex(Bytes::from_static(b"z+"))])),
                then: None,
                otherwise: Some(Box::new(Filter::PassAll)),
            },
        ]
    }

    #[test]
    fn a_run_ends_soon_after_the_request_s_time() {
        for filter in filters() {
            let checks = Cell::new(0);
            let deadline_passed = || {
                checks.set(checks.get() + 1);
                checks.get() == 2
            };
            let compiled = CompiledFilter::compile(filter.clone()).unwrap();
            let error = compiled.apply(row(20_000), &deadline_passed).unwrap_err();
            assert_eq!(error.reason, Reason::Deadline, "{filter:?}");
            assert_eq!(checks.get(), 2, "checked again after the end: {filter:?}");
        }
    }

    #[test]
    fn a_predicate_ends_with_the_request_s_time() {
        let missing = Filter::ValueRegex(Bytes::from_static(b"y+"));
        for filter in [missing.clone(), Filter::Chain(vec![Filter::StripValue, missing])] {
            let compiled = CompiledFilter::compile(filter).unwrap();
            assert_eq!(compiled.matches(&row(20_000), &|| true).unwrap_err().reason, Reason::Deadline);
            assert_eq!(compiled.matches(&row(20_000), &|| false), Ok(false));
        }
    }

    #[test]
    fn long_values_count_for_more() {
        let large = cell::Cell { value: vec![b'x'; 1 << 20].into(), ..row(1).cells.remove(0) };
        let row = Row { key: RowKey::new("k"), cells: vec![large] };
        let compiled = CompiledFilter::compile(Filter::ValueRegex(Bytes::from_static(b"x+"))).unwrap();
        assert_eq!(compiled.apply(row, &|| true).unwrap_err().reason, Reason::Deadline);
    }

    #[test]
    fn work_grows_with_filter_and_row_and_not_faster() {
        let members = vec![Filter::ValueRegex(Bytes::from_static(b"x|y")); 50];
        let compiled = CompiledFilter::compile(Filter::Chain(members)).unwrap();
        let checks = Cell::new(0);
        let deadline_passed = || {
            checks.set(checks.get() + 1);
            false
        };
        compiled.apply(row(10_000), &deadline_passed).unwrap();
        assert!((100..=50 * 10_000 / WORK_PER_CHECK).contains(&checks.get()), "{} checks", checks.get());
    }

    /// The cells of a family that the first filter removes, as for a caller who may not read it, do not change the refusal.
    #[test]
    fn copies_are_bounded_by_what_passes_the_first_filter() {
        let with_hidden = |hidden: i64| {
            let mut row = row(100_000);
            let other = FamilyName::new("g").unwrap();
            let cell = |at: i64| cell::Cell::new(other.clone(), Bytes::new(), Micros::new(-at), Bytes::new());
            row.cells.extend((0..hidden).map(cell));
            row
        };
        let copies = |count| Filter::Interleave(vec![Filter::PassAll; count]);
        let restriction = || Filter::FamilyNameRegex(Bytes::from_static(b"f"));
        let sink = || Filter::Interleave(vec![Filter::PassAll, Filter::Sink]);
        for (members, is_permitted) in [
            (vec![restriction(), copies(4)], true),
            (vec![restriction(), copies(5)], false),
            (vec![restriction(), sink(), copies(2)], true),
            (vec![restriction(), sink(), sink(), copies(3)], false),
        ] {
            let compiled = CompiledFilter::compile(Filter::Chain(members)).unwrap();
            let outcomes = [0, 50_000, 200_000].map(|hidden| compiled.apply(with_hidden(hidden), &|| false));
            let said = outcomes.map(|outcome| outcome.map(|row| row.cells.len()).map_err(|error| error.message));
            assert_eq!(said[0].is_ok(), is_permitted, "{:?}", said[0]);
            assert!(said[1] == said[0] && said[2] == said[0], "{said:?}");
        }
        let predicate = Filter::Chain(vec![restriction(), copies(5), Filter::CellsPerRowOffset(1)]);
        let predicate = CompiledFilter::compile(predicate).unwrap();
        for hidden in [0, 200_000] {
            assert!(predicate.matches(&with_hidden(hidden), &|| false).is_err(), "{hidden} hidden cells");
        }
    }

    #[test]
    fn copies_are_bounded_by_the_row_and_a_floor() {
        let doubling = || Filter::Interleave(vec![Filter::PassAll, Filter::PassAll]);
        let times = |doublings| CompiledFilter::compile(Filter::Chain(vec![doubling(); doublings])).unwrap();
        assert_eq!(times(18).apply(row(1), &|| false).unwrap().cells.len(), CELLS_ALWAYS_ALLOWED);
        assert_eq!(times(19).apply(row(1), &|| false).unwrap_err().reason, Reason::FailedPrecondition);
        // As many as a request can have: the refusal must be fast.
        assert_eq!(times(1000).apply(row(1), &|| false).unwrap_err().reason, Reason::FailedPrecondition);
        assert_eq!(times(2).apply(row(100_000), &|| false).unwrap().cells.len(), 400_000);
        assert!(times(3).apply(row(100_000), &|| false).is_err());
        let sinks = CompiledFilter::compile(Filter::Interleave(vec![Filter::Sink; 5])).unwrap();
        assert!(sinks.apply(row(100_000), &|| false).is_err());
    }
}
