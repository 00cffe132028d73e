//! What running a filter on one row may take: time, and copies of cells.
//!
//! Each step of a filter looks at each cell that reaches it once, so time grows with the filter and the row, not faster.
//! Only copies could: interleaves in a chain double, and double again, what came out of the one before. So the cells that
//! a filter may hold at once are bounded, and while it runs it asks, every so many cells, whether the request's time is
//! over. Whoever finds that it has ended early throws away what there is: half of an answer is none.

use std::cell::Cell;

use crate::error::{Error, Reason};

/// Cells that any filter may hold at once.
const CELLS_FREE: usize = 1 << 18;
/// A filter on a large row may hold so many times the row's cells.
const COPIES_MAX: usize = 4;
/// It is asked for the time once in so much work.
const WORK_PER_LOOK: usize = 4096;
/// A pattern goes over so many bytes of a value while another step looks at one cell.
const BYTES_PER_WORK: usize = 64;

/// The account of one run on one row. Shared by all steps of the run.
pub(super) struct Effort<'a> {
    is_late: &'a dyn Fn() -> bool,
    cells_max: usize,
    /// What was done, in looks at a cell.
    work: Cell<usize>,
    next_look: Cell<usize>,
    stop: Cell<Option<Stop>>,
}

/// Why a run ended early.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stop {
    Late,
    TooManyCells,
}

impl<'a> Effort<'a> {
    /// For a row of so many cells.
    pub(super) fn new(cells: usize, is_late: &'a dyn Fn() -> bool) -> Self {
        Self {
            is_late,
            cells_max: cells.saturating_mul(COPIES_MAX).max(CELLS_FREE),
            work: Cell::new(0),
            next_look: Cell::new(WORK_PER_LOOK),
            stop: Cell::new(None),
        }
    }

    /// Whether the run has ended early.
    pub(super) const fn is_over(&self) -> bool {
        self.stop.get().is_some()
    }

    /// Counts a look at so many cells; whether the run goes on.
    pub(super) fn looks_at(&self, cells: usize) -> bool {
        let work = self.work.get().saturating_add(cells);
        self.work.set(work);
        if work >= self.next_look.get() {
            self.next_look.set(work.saturating_add(WORK_PER_LOOK));
            if !self.is_over() && (self.is_late)() {
                self.stop.set(Some(Stop::Late));
            }
        }
        !self.is_over()
    }

    /// Counts a pattern's way over a value.
    pub(super) fn reads(&self, bytes: usize) -> bool {
        self.looks_at(1 + bytes / BYTES_PER_WORK)
    }

    /// Notes how many cells are held; whether the run goes on.
    pub(super) fn holds(&self, cells: usize) -> bool {
        if cells > self.cells_max {
            self.stop.set(Some(Stop::TooManyCells));
        }
        !self.is_over()
    }

    /// What came out, unless the run ended early.
    pub(super) fn finish<T>(&self, out: T) -> Result<T, Error> {
        match self.stop.get() {
            None => Ok(out),
            Some(Stop::Late) => Err(Error::new(Reason::Deadline, "the request's time ended while its filter ran")),
            Some(Stop::TooManyCells) => Err(Error::new(
                Reason::FailedPrecondition,
                format!("the filter makes more than {} copies of cells of one row", self.cells_max),
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

    /// Filters of each way that a run may take: in place, on picks, with sinks.
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
            let looks = Cell::new(0);
            let is_late = || {
                looks.set(looks.get() + 1);
                looks.get() == 2
            };
            let compiled = CompiledFilter::compile(filter.clone()).unwrap();
            let error = compiled.apply(row(20_000), &is_late).unwrap_err();
            assert_eq!(error.reason, Reason::Deadline, "{filter:?}");
            assert_eq!(looks.get(), 2, "asked again after the end: {filter:?}");
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
        let looks = Cell::new(0);
        let is_late = || {
            looks.set(looks.get() + 1);
            false
        };
        compiled.apply(row(10_000), &is_late).unwrap();
        assert!((100..=50 * 10_000 / WORK_PER_LOOK).contains(&looks.get()), "{} looks", looks.get());
    }

    #[test]
    fn copies_are_bounded_by_the_row_and_a_floor() {
        let doubling = || Filter::Interleave(vec![Filter::PassAll, Filter::PassAll]);
        let times = |doublings| CompiledFilter::compile(Filter::Chain(vec![doubling(); doublings])).unwrap();
        assert_eq!(times(18).apply(row(1), &|| false).unwrap().cells.len(), CELLS_FREE);
        assert_eq!(times(19).apply(row(1), &|| false).unwrap_err().reason, Reason::FailedPrecondition);
        // As many as a request can ask for: it must not take long to say so.
        assert_eq!(times(1000).apply(row(1), &|| false).unwrap_err().reason, Reason::FailedPrecondition);
        assert_eq!(times(2).apply(row(100_000), &|| false).unwrap().cells.len(), 400_000);
        assert!(times(3).apply(row(100_000), &|| false).is_err());
        let sinks = CompiledFilter::compile(Filter::Interleave(vec![Filter::Sink; 5])).unwrap();
        assert!(sinks.apply(row(100_000), &|| false).is_err());
    }
}
