//! A simulated correct row, used by several processes concurrently, with lost responses and delayed writes; optionally with a
//! planted anomaly that no correct row could show.

use std::time::Duration;

use ebla_runtime::Rng;

use crate::verify::history::{Action, History, Moment, Operation, Outcome, Prefix, Process, Token};
use crate::verify::rows::Kind;

/// Parameters of a history.
#[derive(Clone, Copy, Debug)]
pub(super) struct HistoryShape {
    pub(super) processes: usize,
    pub(super) operations: usize,
    /// Percentage of lost responses; half of their writes are delayed or never applied.
    pub(super) lost_percent: u64,
}

/// An anomaly that is planted once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plant {
    /// An acknowledged write disappears.
    Lose,
    /// A write is applied twice.
    Duplicate,
    /// A read returns an older state than it must see.
    Stale,
}

/// A history of one row of this kind, read back at its end, and whether the anomaly was planted.
pub(super) fn history(kind: Kind, shape: HistoryShape, plant: Option<Plant>, seed: u64) -> (History, bool) {
    let mut row = Row::new(kind, shape, plant, seed);
    while row.ended.len() < shape.operations {
        row.step();
    }
    row.settle();
    let name = match kind {
        Kind::List => "00/list/r/00000000",
        Kind::Count => "00/count/r/00000000",
        _ => "00/register/r/00000000",
    };
    let mut history = History::default();
    row.ended.sort_by_key(|operation| operation.end);
    row.ended.iter().for_each(|operation| history.note(name, operation.clone()));
    history.note_text(name, &text(&row.list));
    for _ in 0..2 {
        let (start, end) = (row.tick(), row.tick());
        let action = row.read();
        history.note(name, Operation { by: Process::ReadBack, start, end, outcome: Outcome::Ok, action });
    }
    (history, row.is_planted)
}

/// A call in progress.
struct Call {
    start: Moment,
    action: Action,
    is_made: bool,
    /// Whether its response was falsified.
    is_stale: bool,
    /// The state that had been overwritten when it was sent: it must not be seen.
    floor: Action,
}

struct Row {
    kind: Kind,
    shape: HistoryShape,
    rng: Rng,
    clock: u64,
    list: Vec<Token>,
    /// The prefix that readers see.
    prefix: Prefix,
    /// The latest state that a completed operation has seen.
    seen: (Prefix, i64),
    count: i64,
    value: Option<Token>,
    calls: Vec<Option<Call>>,
    /// Writes that timed out and may still be applied.
    late: Vec<Action>,
    sequences: Vec<u64>,
    ended: Vec<Operation>,
    plant: Option<Plant>,
    /// When to plant the anomaly: after this number of operations.
    plant_at: usize,
    is_planted: bool,
}

impl Row {
    fn new(kind: Kind, shape: HistoryShape, plant: Option<Plant>, seed: u64) -> Self {
        let rng = Rng::seeded(seed);
        let half = u64::try_from(shape.operations / 2).unwrap();
        let plant_at = usize::try_from(half / 2 + rng.below(half)).unwrap();
        Self {
            kind,
            shape,
            rng,
            clock: 0,
            list: Vec::new(),
            prefix: Prefix::EMPTY,
            seen: (Prefix::EMPTY, 0),
            count: 0,
            value: None,
            calls: (0..shape.processes).map(|_| None).collect(),
            late: Vec::new(),
            sequences: vec![0; shape.processes],
            ended: Vec::new(),
            plant,
            plant_at,
            is_planted: false,
        }
    }

    fn tick(&mut self) -> Moment {
        self.clock += 1;
        Moment::after(Duration::from_micros(self.clock))
    }

    fn is_due(&self, plant: Plant) -> bool {
        self.plant == Some(plant) && !self.is_planted && self.ended.len() >= self.plant_at
    }

    fn step(&mut self) {
        if !self.late.is_empty() && self.rng.below(20) == 0 {
            let place = usize::try_from(self.rng.below(u64::try_from(self.late.len()).unwrap())).unwrap();
            let mut action = self.late.swap_remove(place);
            self.make(&mut action);
        }
        let process = usize::try_from(self.rng.below(u64::try_from(self.shape.processes).unwrap())).unwrap();
        let now = self.tick();
        match self.calls[process].take() {
            None => {
                let action = self.draw(process);
                let floor = self.floor();
                self.calls[process] = Some(Call { start: now, action, is_made: false, is_stale: false, floor });
            }
            Some(call) if self.rng.below(100) < self.shape.lost_percent => self.give_up(process, call, now),
            Some(mut call) if !call.is_made => {
                self.make(&mut call.action);
                if self.is_due(Plant::Stale) {
                    self.make_stale(&mut call);
                }
                call.is_made = true;
                self.calls[process] = Some(call);
            }
            Some(call) => self.end(process, call, now),
        }
        if self.is_due(Plant::Lose) && self.kind == Kind::List {
            self.lose_token();
        }
    }

    fn draw(&mut self, process: usize) -> Action {
        if self.rng.below(2) == 0 {
            return self.read();
        }
        self.sequences[process] += 1;
        let token = Token { writer: u32::try_from(process).unwrap(), sequence: self.sequences[process] };
        match self.kind {
            Kind::List => Action::Append { token, list: None },
            Kind::Count => Action::Increment { count: None },
            _ if self.rng.below(2) == 0 => Action::Write { value: token },
            _ => Action::Swap { expected: self.value, value: token, swapped: None },
        }
    }

    fn read(&self) -> Action {
        match self.kind {
            Kind::List => Action::List { list: self.prefix },
            Kind::Count => Action::Count { count: self.count },
            _ => Action::Read { value: self.value },
        }
    }

    /// Applies the action atomically and fills in the response.
    fn make(&mut self, action: &mut Action) {
        match action {
            Action::Append { token, list } => {
                self.push(*token);
                if self.plant == Some(Plant::Duplicate) && !self.is_planted && self.ended.len() >= self.plant_at {
                    self.push(*token);
                    self.is_planted = true;
                }
                *list = Some(self.prefix);
            }
            Action::Increment { count } => {
                self.count += 1;
                *count = Some(self.count);
            }
            Action::Write { value } => self.value = Some(*value),
            Action::Swap { expected, value, swapped } => {
                *swapped = Some(self.value == *expected);
                if self.value == *expected {
                    self.value = Some(*value);
                }
            }
            read => *read = self.read(),
        }
    }

    fn push(&mut self, token: Token) {
        self.list.push(token);
        self.prefix = self.prefix.with(&text(&[token]));
    }

    fn end(&mut self, process: usize, call: Call, end: Moment) {
        match call.action {
            Action::Append { list: Some(list), .. } | Action::List { list } if list.tokens > self.seen.0.tokens => {
                self.seen.0 = list;
            }
            Action::Increment { count: Some(count) } | Action::Count { count } => {
                self.seen.1 = count.max(self.seen.1);
            }
            _ => {}
        }
        let by = Process::Writer(u32::try_from(process).unwrap());
        self.ended.push(Operation { by, start: call.start, end, outcome: Outcome::Ok, action: call.action });
    }

    /// The process times out; a write that was not applied yet may be applied later, or never.
    fn give_up(&mut self, process: usize, call: Call, end: Moment) {
        // A lost response shows nothing.
        self.is_planted &= !call.is_stale;
        let by = Process::Writer(u32::try_from(process).unwrap());
        let action = match call.action {
            Action::Append { token, .. } => Action::Append { token, list: None },
            Action::Increment { .. } => Action::Increment { count: None },
            Action::Swap { expected, value, .. } => Action::Swap { expected, value, swapped: None },
            action @ Action::Write { .. } => action,
            _ => return,
        };
        if !call.is_made && self.rng.below(2) == 0 {
            self.late.push(action.clone());
        }
        self.ended.push(Operation { by, start: call.start, end, outcome: Outcome::Unknown, action });
    }

    /// Completes calls in progress, and plants anomalies that belong to the end.
    fn settle(&mut self) {
        for process in 0..self.shape.processes {
            if let Some(call) = self.calls[process].take().filter(|call| call.is_made) {
                let end = self.tick();
                self.end(process, call, end);
            }
        }
        self.tick();
        let of = |outcome| {
            let is_such = |operation: &&Operation| operation.is_write() && operation.outcome == outcome;
            i64::try_from(self.ended.iter().filter(is_such).count()).unwrap()
        };
        let (acknowledged, unknown) = (of(Outcome::Ok), of(Outcome::Unknown));
        match (self.kind, self.plant) {
            (Kind::Count, Some(Plant::Lose)) => (self.count, self.is_planted) = (acknowledged - 1, true),
            (Kind::Count, Some(Plant::Duplicate)) => (self.count, self.is_planted) = (acknowledged + unknown + 1, true),
            (Kind::Register, Some(Plant::Lose)) => {
                if let Action::Read { value: Some(value) } = self.overwritten() {
                    (self.value, self.is_planted) = (Some(value), true);
                }
            }
            _ => {}
        }
    }

    /// The state that a call sent now must not see: the last one that was overwritten before.
    fn floor(&self) -> Action {
        match self.kind {
            Kind::List => Action::List { list: self.seen.0 },
            Kind::Count => Action::Count { count: self.seen.1 },
            _ => self.overwritten(),
        }
    }

    /// A value whose write ended before another acknowledged write began.
    fn overwritten(&self) -> Action {
        let writes: Vec<_> = self
            .ended
            .iter()
            .filter(|operation| operation.outcome == Outcome::Ok)
            .filter(|operation| match operation.action {
                Action::Write { .. } => true,
                Action::Swap { swapped, .. } => swapped == Some(true),
                _ => false,
            })
            .collect();
        let last = writes.iter().map(|write| write.start).max().unwrap_or_default();
        let value = writes.iter().rev().find(|write| write.end < last).and_then(|write| write.token());
        Action::Read { value }
    }

    fn make_stale(&mut self, call: &mut Call) {
        let stale = match (&call.action, &call.floor) {
            (Action::List { .. }, Action::List { list }) if list.tokens > 0 => {
                let kept = usize::try_from(list.tokens - 1).unwrap();
                Action::List { list: Prefix::of(&text(&self.list[..kept])) }
            }
            (Action::Count { .. }, Action::Count { count }) if *count > 0 => Action::Count { count: count - 1 },
            (Action::Read { .. }, Action::Read { value: Some(value) }) => Action::Read { value: Some(*value) },
            _ => return,
        };
        (call.action, call.is_stale, self.is_planted) = (stale, true, true);
    }

    fn lose_token(&mut self) {
        let is_acknowledged = |token: &Token| {
            let is_it = |other: &Operation| other.outcome == Outcome::Ok && other.token() == Some(*token);
            self.ended.iter().any(is_it)
        };
        if let Some(place) = self.list.iter().position(is_acknowledged) {
            self.list.remove(place);
            self.prefix = Prefix::of(&text(&self.list));
            self.is_planted = true;
        }
    }
}

fn text(list: &[Token]) -> String {
    list.iter().map(|token| format!("{token},")).collect()
}
