//! A move of a tablet from its group, the source, to another existing group, the target: the steps that the two logs carry.
//!
//! ```text
//!   source                          target
//!   Out       departing  <---+
//!                            |      Begin     importing, empty
//!                            |      Chunk ... cells, tokens, sessions, up to a position
//!                            |      Finish    serves the tablet, with a higher generation; remembers the move
//!                            +--    Refuse    never takes part in this move again     (then Back: the source serves again)
//!   Done      tablet removed
//!                                   Confirm   forgets the move
//!   Forget    forgets the move
//! ```
//!
//! **Copies made ahead.** Since cluster version 2 ([`crate::cluster_version::Feature::CopiesAhead`]) the content is copied before
//! `Out`, while the source serves the tablet:
//!
//! ```text
//!   source                          target
//!             serving                Begin     importing, empty
//!                                    Chunk ... cells and tokens, up to Difference(0)
//!                                    Chunk ... what has changed since, each up to the next Difference(n)
//!   Out       departing              Chunk ... the last difference, and the sessions
//!                                    Finish
//! ```
//!
//! A difference has the present content of every cell that was changed. The leader of the source keeps the record of these changes in
//! memory. So only this leader can end the move; another one that finds such a departure takes the tablet back. Each attempt has a
//! [`CopyId`], which is in all of its steps: a late chunk of another attempt has content that is old, and is refused. An attempt that is
//! given up before `Out` ends with `Abandon`; the leader of the target sends it too when a copy has made no progress for long.
//!
//! **Identity.** A move is identified by the tablet and its generation in the source. No two moves are alike: a finished one and
//! one that was taken back both raise the generation.
//!
//! **Tickets.** A target must be able to refuse a move for ever without remembering each one. Before a move begins the source asks
//! the target for a ticket: the index of the last entry that it has applied. `Begin` is refused when the target has since refused a
//! move or lost a tablet, in an entry above the ticket. So a late `Begin` of a move that has ended never has an effect; that of
//! another move that has just begun may be refused too, and is then tried again with a new ticket.
//!
//! **Positions.** The tablet does not change while it departs. So any leader of the source can continue where the last chunk ended:
//! a chunk is applied only if it begins at the target's position.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;

use crate::error::Error;
use crate::id::{CopyId, FamilyId, Generation, GroupId, LogIndex, OperationId, SessionId, TableId, TabletId};
use crate::key::KeyRange;
use crate::metadata::{GroupDescriptor, TabletDescriptor};
use crate::schema::TableSchema;
use crate::session::SessionWindow;
use crate::time::Micros;

/// Identifies a move.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct MoveId {
    /// The tablet.
    pub tablet: TabletId,
    /// Its generation in the source.
    pub generation: Generation,
}

/// A step of a move: an entry in the log of the source or of the target.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MoveStep {
    /// Source: the tablet departs. It is not served from here on.
    Out {
        /// The target as the master knows it.
        target: GroupDescriptor,
        /// The target's ticket.
        ticket: LogIndex,
        /// The copy that the target has already, but for the last difference; `None`: none.
        copy: Option<CopyId>,
    },
    /// Source: the target serves the tablet; it is removed here.
    Done,
    /// Source: the target has refused the move; the tablet is served here again, with a higher generation.
    Back,
    /// Source: the target has forgotten the move.
    Forget,
    /// Target: the tablet's range is cleared, and ready for its content.
    Begin(Box<ImportStart>),
    /// Target: a part of the tablet's content.
    Chunk(ImportChunk),
    /// Target: the content is complete; the tablet is served here.
    Finish,
    /// Target: refuses the move for ever, unless it has finished.
    Refuse,
    /// Target: ends this copy, unless the move has finished. Another attempt may follow.
    Abandon(CopyId),
    /// Target: the source has removed the tablet; the move can be forgotten.
    Confirm,
}

impl MoveStep {
    /// Whether the step belongs to the target's log.
    pub const fn is_of_target(&self) -> bool {
        matches!(self, Self::Begin(_) | Self::Chunk(_) | Self::Finish | Self::Refuse | Self::Abandon(_) | Self::Confirm)
    }
}

/// The rows that an operation has dropped in a table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DroppedRows {
    /// The table.
    pub table: TableId,
    /// The rows.
    pub range: KeyRange,
}

/// What the target must know before the first chunk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ImportStart {
    /// The source.
    pub source: GroupId,
    /// The ticket of this move.
    pub ticket: LogIndex,
    /// The tablet's range.
    pub range: KeyRange,
    /// The schema of its table, as the source has applied it.
    pub schema: TableSchema,
    /// The source's log time: the target's must not be earlier.
    pub time: Micros,
    /// The source's GC time: the target's must not be earlier.
    pub gc_time: Micros,
    /// The operations that have dropped rows of the table in the source, with these rows.
    pub drops: Vec<(OperationId, KeyRange)>,
    /// The source may have forgotten operations below this one.
    pub drops_known_from: OperationId,
    /// The attempt, if the source still serves the tablet.
    pub copy: Option<CopyId>,
    /// The source's age floors of the families: cells below them are dead there. `None`: the source has an earlier release.
    pub floors: Option<BTreeMap<FamilyId, Micros>>,
}

impl ImportStart {
    /// Whether what was sent with the beginning of a copy holds at `later` too: the content follows from the changed cells alone.
    pub fn holds(&self, later: &Self) -> bool {
        self.range == later.range
            && self.schema == later.schema
            && self.drops == later.drops
            && self.drops_known_from == later.drops_known_from
    }
}

/// A part of a tablet's content.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ImportChunk {
    /// Where it begins.
    pub from: ImportPosition,
    /// Where it ends.
    pub to: ImportPosition,
    /// Keys and values of cells, as stored.
    pub cells: Vec<(Bytes, Bytes)>,
    /// Idempotency tokens of the tablet's rows.
    pub tokens: Vec<ImportedToken>,
    /// Sessions of the source.
    pub sessions: Vec<ImportedSession>,
    /// The attempt, if the copy began ahead of the move.
    pub copy: Option<CopyId>,
    /// What a difference removes; it comes before the cells.
    pub removed: RemovedCells,
    /// The source's log time and GC time when it read a difference: the target's must not be earlier.
    pub times: Option<(Micros, Micros)>,
}

/// Cells that the source has removed since they were copied.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RemovedCells {
    /// Ranges of keys, each with its first key and the first one behind it; an empty one is the end of the tablet.
    pub ranges: Vec<(Bytes, Bytes)>,
    /// Single keys. They come after the ranges.
    pub keys: Vec<Bytes>,
}

impl RemovedCells {
    /// Whether nothing is removed.
    pub const fn is_empty(&self) -> bool {
        self.ranges.is_empty() && self.keys.is_empty()
    }
}

/// An idempotency token of a row of the tablet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ImportedToken {
    /// Its key in the token table.
    pub key: Bytes,
    /// How long it is still remembered. The groups have session times of their own.
    pub remaining: Duration,
    /// The response of its write, if one is stored.
    pub result: Option<Bytes>,
}

/// A session of the source.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ImportedSession {
    /// The session.
    pub session: SessionId,
    /// Its window; `last_used` has no meaning.
    pub window: SessionWindow,
    /// How long it has been idle.
    pub idle: Duration,
}

/// A position in the content of a tablet: cells, then tokens, then differences if the copy began ahead of the move, then sessions, each
/// ascending.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum ImportPosition {
    /// Before everything.
    #[default]
    Start,
    /// After the cell with this key.
    Cell(Bytes),
    /// After all cells, and the token with this key.
    Token(Bytes),
    /// After all cells and tokens, and this number of differences.
    Difference(u64),
    /// After all tokens and differences, and this session.
    Session(SessionId),
    /// After everything.
    End,
}

const CELL: u8 = b'c';
const TOKEN: u8 = b't';
const DIFFERENCE: u8 = b'd';
const SESSION: u8 = b's';
const END: &[u8] = b"z";

impl ImportPosition {
    /// The position as bytes, empty at the start.
    pub fn to_bytes(&self) -> Bytes {
        match self {
            Self::Start => Bytes::new(),
            Self::Cell(key) => [&[CELL], key.as_ref()].concat().into(),
            Self::Token(key) => [&[TOKEN], key.as_ref()].concat().into(),
            Self::Difference(number) => [&[DIFFERENCE][..], &number.to_be_bytes()].concat().into(),
            Self::Session(session) => [&[SESSION][..], &session.to_bytes()].concat().into(),
            Self::End => Bytes::from_static(END),
        }
    }

    /// Reads what [`Self::to_bytes`] wrote.
    ///
    /// # Errors
    /// `DataDamaged` for other bytes.
    pub fn from_bytes(bytes: &Bytes) -> Result<Self, Error> {
        let damaged = || Error::damaged("read import position: unknown form");
        match bytes.split_first() {
            None => Ok(Self::Start),
            Some((&CELL, _)) => Ok(Self::Cell(bytes.slice(1..))),
            Some((&TOKEN, _)) => Ok(Self::Token(bytes.slice(1..))),
            Some((&DIFFERENCE, number)) => number
                .try_into()
                .map(|number| Self::Difference(u64::from_be_bytes(number)))
                .map_err(|_length| damaged()),
            Some((&SESSION, id)) => SessionId::from_bytes(id).map(Self::Session).ok_or_else(damaged),
            Some(_) if bytes.as_ref() == END => Ok(Self::End),
            Some(_) => Err(damaged()),
        }
    }
}

/// The target's reply to one of its steps.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ImportStatus {
    /// The content up to this position is here.
    Importing(ImportPosition),
    /// The move has finished: the target serves the tablet, or has served it.
    Served,
    /// The step had no effect: the target does not take part in the move, or cannot for now. After `Refuse`: it never will.
    Refused(String),
}

/// A tablet that departs from a group, as the group's state has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Departure {
    /// The tablet with its generation in the source.
    pub tablet: TabletDescriptor,
    /// The target, as the master knew it when the move began.
    pub target: GroupDescriptor,
    /// The target's ticket.
    pub ticket: LogIndex,
    /// The copy that the target had when the tablet departed.
    pub copy: Option<CopyId>,
    /// How far the move is.
    pub phase: DeparturePhase,
}

/// How far a departure is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeparturePhase {
    /// The tablet is still here, and is not served.
    Copying,
    /// The target serves it, and may still remember the move.
    Left,
}

impl Departure {
    /// The move.
    pub const fn id(&self) -> MoveId {
        MoveId { tablet: self.tablet.tablet, generation: self.tablet.generation }
    }

    /// The tablet as the target begins to serve it: a hint for callers that still ask the source.
    pub fn arrived(&self) -> TabletDescriptor {
        let TabletDescriptor { table, tablet, range, generation, .. } = &self.tablet;
        self.target.tablet(*table, *tablet, range.clone(), generation.next())
    }
}

/// A tablet that arrives in a group, as the group's state has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Arrival {
    /// Its generation in the source.
    pub generation: Generation,
    /// Its table.
    pub table: TableId,
    /// Its range.
    pub range: KeyRange,
    /// The source.
    pub source: GroupId,
    /// The attempt, if the copy began ahead of the move.
    pub copy: Option<CopyId>,
    /// How far the move is.
    pub progress: ArrivalProgress,
}

/// How far an arrival is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ArrivalProgress {
    /// The content up to this position is here.
    Importing(ImportPosition),
    /// The group serves the tablet, or has served it; the source may not know that yet.
    Served,
}

impl Arrival {
    /// Whether the tablet is not served yet.
    pub const fn is_importing(&self) -> bool {
        matches!(self.progress, ArrivalProgress::Importing(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_come_back_and_other_bytes_are_refused() {
        let positions = [
            ImportPosition::Start,
            ImportPosition::Cell(Bytes::from_static(b"\x02\x05row\0\0")),
            ImportPosition::Cell(Bytes::new()),
            ImportPosition::Token(Bytes::from_static(b"token")),
            ImportPosition::Difference(3),
            ImportPosition::Session(SessionId::new(77)),
            ImportPosition::End,
        ];
        for position in positions {
            assert_eq!(ImportPosition::from_bytes(&position.to_bytes()), Ok(position));
        }
        for bytes in [&b"sshort"[..], b"d1", b"zz", b"?"] {
            assert!(ImportPosition::from_bytes(&Bytes::from_static(bytes)).is_err());
        }
    }
}
