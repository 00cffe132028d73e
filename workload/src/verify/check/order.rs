//! Order against real time: where the responses determine the order of all operations, it must agree with real time.

use crate::verify::finding::Anomaly;
use crate::verify::history::{Moment, Operation, Outcome, Process};

/// Two operations, the earlier and the later in real time, that are the other way round in the order; their indexes. `None`
/// when the order agrees with real time.
///
/// `place`: position of an operation in the order, if it is known; read-only operations may share a position.
/// Cost: n log n.
pub fn contradiction(operations: &[Operation], place: impl Fn(&Operation) -> Option<u64>) -> Option<(usize, usize)> {
    struct Placed {
        number: usize,
        start: Moment,
        end: Option<Moment>,
        place: u64,
    }
    let placed = operations.iter().enumerate().filter_map(|(number, operation)| {
        let end = (operation.outcome == Outcome::Ok).then_some(operation.end);
        Some(Placed { number, start: operation.start, end, place: place(operation)? })
    });
    let mut by_start: Vec<_> = placed.collect();
    by_start.sort_by_key(|placed| placed.start);
    let mut by_end: Vec<(Moment, u64, usize)> =
        by_start.iter().filter_map(|placed| Some((placed.end?, placed.place, placed.number))).collect();
    by_end.sort_unstable();
    let mut ended = by_end.into_iter().peekable();
    let mut furthest: Option<(u64, usize)> = None;
    for later in &by_start {
        while let Some((_, place, number)) = ended.next_if(|(end, ..)| *end < later.start) {
            furthest = furthest.max(Some((place, number)));
        }
        if let Some((_, earlier)) = furthest.filter(|(place, _)| *place > later.place) {
            return Some((earlier, later.number));
        }
    }
    None
}

/// The anomaly of an operation that does not see an earlier one: when even the read-back does not see it, it is lost.
pub fn anomaly(operations: &[Operation], later: usize) -> Anomaly {
    match operations.get(later).map(|operation| operation.by) {
        Some(Process::ReadBack) => Anomaly::Lost,
        _ => Anomaly::Stale,
    }
}
