//! The layout of the load's rows, and their contents.
//!
//! ```text
//!   00/a/RUN/0001        boundary rows: odd ones are static, even ones are created and deleted   scans
//!   00/bank/RUN/…        3 families x 8 columns, the mark of one transaction in each             torn
//!   00/count/RUN/…       a counter                                                               duplicate
//!   00/list/RUN/…        tokens, and their number                                                lost, duplicate, stale
//!   00/register/RUN/…    one value, written and swapped                                          stale
//!   00/row/RUN/…         blind writes: versions, the same in two families                        lost, at scale
//!   00/z/RUN/0001        more boundary rows
//!   01/a/RUN/0001        the next slot, initially the next tablet: a scan from 00/z to 01/a crosses the boundary
//! ```
//!
//! A *slot* is the key range of one tablet of a new table. RUN is unique for each load, so that several loads can use one
//! table. Rows of bank, count, list and register have epochs: after a few hundred operations the next number is used.

use std::fmt;

use bytes::Bytes;
use ebla_model::cell::Row;
use ebla_model::key::{KeyRange, RowKey};
use ebla_model::mutation::{Mutation, WriteTime};

use super::blind_writes::Content;
use super::history::Token;

/// The table's families.
pub const FAMILIES: [&str; 3] = ["a", "b", "c"];
/// Columns of each family of a bank row.
const BANK_COLUMNS: usize = 8;
/// The initial amount of each account of a bank row.
const BANK_START: i64 = 100;
/// Boundary rows on each side of a boundary.
const BOUNDARY_ROWS: u32 = 64;
/// Blind rows of each writer.
pub const BLIND_ROWS: u64 = 500;

/// A key range that is one tablet of a new table: 0 to 99.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Slot(pub u32);

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02}", self.0)
    }
}

/// Kinds of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Row atomicity.
    Bank,
    /// A counter.
    Count,
    /// An append list.
    List,
    /// A register.
    Register,
    /// Blind writes.
    Row,
}

impl Kind {
    /// All of them, in key order.
    pub const ALL: [Self; 5] = [Self::Bank, Self::Count, Self::List, Self::Register, Self::Row];

    const fn name(self) -> &'static str {
        match self {
            Self::Bank => "bank",
            Self::Count => "count",
            Self::List => "list",
            Self::Register => "register",
            Self::Row => "row",
        }
    }

    /// The kind of the row `key`; `None` for boundary rows and unknown keys.
    pub fn of(key: &str) -> Option<Self> {
        let name = key.split('/').nth(1)?;
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Operations on a row before the next row is used. Bounds the time of the checker of registers, which is not linear, and the
    /// size of a list.
    pub const fn epoch(self) -> u32 {
        match self {
            Self::Bank => 150,
            Self::Count | Self::Register => 250,
            Self::List => 300,
            Self::Row => u32::MAX,
        }
    }
}

/// The row names of one load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The unique identifier of the load.
    pub run: String,
    /// Number of slots, 2 to 99.
    pub slots: u32,
}

impl Layout {
    /// The slots.
    pub fn slots(&self) -> impl Iterator<Item = Slot> + use<> {
        (0..self.slots).map(Slot)
    }

    /// The initial split keys: each slot is a tablet.
    pub fn splits(slots: u32) -> Vec<RowKey> {
        (1..slots).map(|slot| RowKey::new(format!("{}/", Slot(slot)))).collect()
    }

    /// A row, by its epoch or its number.
    pub fn row(&self, slot: Slot, kind: Kind, number: u64) -> String {
        format!("{slot}/{}/{}/{number:08}", kind.name(), self.run)
    }

    /// One of a writer's blind rows.
    pub fn blind_row(&self, slot: Slot, writer: u32, number: u64) -> String {
        self.row(slot, Kind::Row, u64::from(writer) * BLIND_ROWS + number % BLIND_ROWS)
    }

    /// All rows of a kind in a slot.
    pub fn range(&self, slot: Slot, kind: Kind) -> KeyRange {
        KeyRange::prefix(format!("{slot}/{}/{}/", kind.name(), self.run).as_bytes())
    }

    /// The boundary rows in a slot.
    pub fn own_boundary(&self, slot: Slot) -> Vec<String> {
        (0..BOUNDARY_ROWS).flat_map(|number| ["a", "z"].map(|side| self.boundary_row(slot, side, number))).collect()
    }

    /// The rows on both sides of the boundary between a slot and the next, in key order.
    pub fn boundary(&self, slot: Slot) -> Vec<String> {
        let next = Slot(slot.0 + 1);
        let left = (0..BOUNDARY_ROWS).map(|number| self.boundary_row(slot, "z", number));
        left.chain((0..BOUNDARY_ROWS).map(|number| self.boundary_row(next, "a", number))).collect()
    }

    /// Number of boundaries between slots.
    pub const fn boundaries(&self) -> u32 {
        self.slots.saturating_sub(1)
    }

    fn boundary_row(&self, slot: Slot, side: &str, number: u32) -> String {
        format!("{slot}/{side}/{}/{number:04}", self.run)
    }

    /// Whether a boundary row belongs to this load.
    pub fn is_own(&self, key: &str) -> bool {
        key.split('/').nth(2) == Some(&self.run)
    }
}

/// Whether a boundary row is static.
pub fn is_static(key: &str) -> bool {
    key.bytes().next_back().is_some_and(|last| last % 2 == 1)
}

/// A row's key as text; invalid UTF-8 is replaced.
pub fn text_of(key: &RowKey) -> String {
    String::from_utf8_lossy(key.as_bytes()).into_owned()
}

/// A column of the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// The family.
    pub family: &'static str,
    /// The qualifier.
    pub qualifier: &'static str,
}

/// The tokens of a list, each followed by a comma.
pub const LIST: Column = Column { family: "a", qualifier: "list" };
/// A counter, 8 bytes big endian; in a list's row the number of tokens.
pub const COUNT: Column = Column { family: "a", qualifier: "n" };
/// The value of a register.
pub const VALUE: Column = Column { family: "a", qualifier: "v" };
/// The second copy of values that are written in two families.
const TWIN: Column = Column { family: "b", qualifier: "v" };

impl Column {
    /// A mutation that writes the column at the server's time.
    pub fn set(self, value: impl Into<Bytes>) -> Mutation {
        set(self.family, self.qualifier.as_bytes(), value.into())
    }

    /// Its newest value.
    pub fn of(self, row: &Row) -> Option<&Bytes> {
        row.newest(self.family, self.qualifier.as_bytes()).map(|cell| &cell.value)
    }
}

fn set(family: &str, qualifier: &[u8], value: Bytes) -> Mutation {
    Mutation::SetCell {
        family: family.to_owned(),
        qualifier: Bytes::copy_from_slice(qualifier),
        timestamp: WriteTime::Server,
        value,
    }
}

/// A list's text: tokens, each followed by a comma.
///
/// # Errors
/// The inconsistency, as text for a finding.
pub fn list_text(row: &Row) -> Result<String, String> {
    let text = LIST.of(row).map_or_else(String::new, |value| String::from_utf8_lossy(value).into_owned());
    if !text.is_empty() && !text.ends_with(',') {
        return Err(format!("a truncated list: {text:?}"));
    }
    let (count, tokens) = (count(row)?, text.matches(',').count());
    if usize::try_from(count) != Ok(tokens) {
        return Err(format!("{tokens} tokens, but the counter in the same row is {count}"));
    }
    Ok(text)
}

/// A counter; 0 when there is none.
///
/// # Errors
/// The inconsistency, as text for a finding.
pub fn count(row: &Row) -> Result<i64, String> {
    let Some(value) = COUNT.of(row) else { return Ok(0) };
    let bytes = <[u8; 8]>::try_from(value.as_ref());
    bytes.map(i64::from_be_bytes).map_err(|_| format!("a counter of {} bytes", value.len()))
}

/// A register's value; `None` when there is none.
///
/// # Errors
/// The inconsistency, as text for a finding.
pub fn register(row: &Row) -> Result<Option<Token>, String> {
    VALUE.of(row).map(|value| String::from_utf8_lossy(value).parse()).transpose()
}

/// The mutations that write a version into a blind row: the same bytes in two families.
pub fn blind_mutations(key: &str, version: Token) -> Vec<Mutation> {
    let value = blind_value(key, version);
    vec![VALUE.set(value.clone()), TWIN.set(value)]
}

/// The value is derived from the row and the version, 100 to 200 bytes long, so that bytes of another row or version are detected.
fn blind_value(key: &str, version: Token) -> Bytes {
    let unit = format!("{version};{key};");
    let length = 100 + usize::try_from(version.sequence % 100).unwrap_or(0);
    unit.bytes().cycle().take(length.max(unit.len())).collect()
}

/// The contents of a blind row.
pub fn blind_content(row: &Row) -> Content {
    let key = text_of(&row.key);
    let version = |value: &Bytes| -> Option<Token> {
        let text = std::str::from_utf8(value).ok()?;
        let version = text.split(';').next()?.parse().ok()?;
        (blind_value(&key, version) == value).then_some(version)
    };
    let (one, other) = (VALUE.of(row), TWIN.of(row));
    match (one.and_then(version), other.and_then(version)) {
        (Some(one), Some(other)) if one == other && row.cells.len() == 2 => Content::Version(one),
        (first, second) => {
            let shown = |version: Option<Token>, bytes: Option<&Bytes>| match (version, bytes) {
                (Some(version), _) => version.to_string(),
                (None, Some(bytes)) => format!("{:?}", String::from_utf8_lossy(bytes)),
                (None, None) => "nothing".to_owned(),
            };
            let (a, b) = (shown(first, one), shown(second, other));
            Content::Broken(format!("{} cells, {a} in one family and {b} in the other", row.cells.len()))
        }
    }
}

/// The mutations that write a boundary row.
pub fn boundary_mutations(key: &str) -> Vec<Mutation> {
    vec![VALUE.set(boundary_value(key)), TWIN.set(boundary_value(key))]
}

/// The text is part of the format: earlier loads wrote the same.
fn boundary_value(key: &str) -> Bytes {
    Bytes::from(format!("border {key}"))
}

/// Whether a boundary row has its value in both families.
pub fn is_intact_boundary(row: &Row) -> bool {
    let value = boundary_value(&text_of(&row.key));
    VALUE.of(row) == Some(&value) && TWIN.of(row) == Some(&value) && row.cells.len() == 2
}

/// Accounts in the columns of one row; each transfer writes all of them, with its mark in each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bank {
    amounts: Vec<i64>,
}

impl Default for Bank {
    fn default() -> Self {
        Self { amounts: vec![BANK_START; FAMILIES.len() * BANK_COLUMNS] }
    }
}

impl Bank {
    /// The column that a transfer compares before it writes.
    pub const GUARD: Column = Column { family: "a", qualifier: "c0" };

    /// The accounts and the mark of the last transfer; `None` for a missing row.
    ///
    /// # Errors
    /// The inconsistency, as text for a finding: missing cells, different marks, or a wrong sum.
    pub fn read(row: Option<&Row>) -> Result<Option<(Self, Token)>, String> {
        let Some(row) = row else { return Ok(None) };
        let cell = |(family, qualifier): (&str, String)| -> Result<(Token, i64), String> {
            let cell = row.newest(family, qualifier.as_bytes());
            let text = cell.map(|cell| String::from_utf8_lossy(&cell.value));
            let parsed = text.as_ref().and_then(|text| {
                let (mark, amount) = text.split_once(' ')?;
                Some((mark.parse().ok()?, amount.parse().ok()?))
            });
            parsed.ok_or_else(|| format!("{family}:{qualifier} has {text:?}"))
        };
        let cells = columns().map(cell).collect::<Result<Vec<_>, _>>()?;
        let Some((mark, _)) = cells.first().copied() else { return Ok(None) };
        if let Some((other, _)) = cells.iter().find(|(other, _)| *other != mark) {
            return Err(format!("columns of different transfers: {mark} and {other}"));
        }
        if row.cells.len() != cells.len() {
            return Err(format!("{} cells instead of {}", row.cells.len(), cells.len()));
        }
        let bank = Self { amounts: cells.into_iter().map(|(_, amount)| amount).collect() };
        if bank.sum() != Self::default().sum() {
            return Err(format!("a sum of {} instead of {}", bank.sum(), Self::default().sum()));
        }
        Ok(Some((bank, mark)))
    }

    /// Moves one from an account to another; account numbers wrap around.
    pub fn transfer(&mut self, from: u64, to: u64) {
        let count = self.amounts.len();
        let place = |number: u64| usize::try_from(number).unwrap_or(0) % count.max(1);
        if let Some(amount) = self.amounts.get_mut(place(from)) {
            *amount -= 1;
        }
        if let Some(amount) = self.amounts.get_mut(place(to)) {
            *amount += 1;
        }
    }

    /// The value of the guard column after the transfer `mark`.
    pub fn guard(&self, mark: Token) -> Bytes {
        Bytes::from(format!("{mark} {}", self.amounts.first().copied().unwrap_or_default()))
    }

    /// The mutations that write all accounts with the mark of a transfer.
    pub fn mutations(&self, mark: Token) -> Vec<Mutation> {
        let cells = columns().zip(&self.amounts);
        cells
            .map(|((family, qualifier), amount)| set(family, qualifier.as_bytes(), format!("{mark} {amount}").into()))
            .collect()
    }

    fn sum(&self) -> i64 {
        self.amounts.iter().sum()
    }
}

fn columns() -> impl Iterator<Item = (&'static str, String)> {
    FAMILIES.iter().flat_map(|family| (0..BANK_COLUMNS).map(move |number| (*family, format!("c{number}"))))
}

#[cfg(test)]
mod tests {
    use ebla_model::cell::{Cell, FamilyName};
    use ebla_model::time::Micros;

    use super::*;

    /// The row that results from mutations of an empty row.
    fn row(key: &str, mutations: &[Mutation]) -> Row {
        let cell = |mutation: &Mutation| match mutation {
            Mutation::SetCell { family, qualifier, value, .. } => {
                Cell::new(FamilyName::new(family).unwrap(), qualifier.clone(), Micros::ZERO, value.clone())
            }
            _ => unreachable!("the load writes cells"),
        };
        let mut row = Row { key: RowKey::new(key.to_owned()), cells: mutations.iter().map(cell).collect() };
        row.cells.sort_by(Cell::order);
        row
    }

    const MARK: Token = Token { writer: 1, sequence: 2 };

    #[test]
    fn a_blind_row_has_its_version_in_both_families_or_is_broken() {
        let key = "00/row/r/00000001";
        let whole = row(key, &blind_mutations(key, MARK));
        assert_eq!(blind_content(&whole), Content::Version(MARK));
        let half = Row { cells: whole.cells[..1].to_vec(), ..whole.clone() };
        assert!(matches!(blind_content(&half), Content::Broken(_)));
        let moved = Row { key: RowKey::new("00/row/r/00000002"), ..whole };
        assert!(matches!(blind_content(&moved), Content::Broken(_)), "bytes of another row");
    }

    #[test]
    fn a_bank_row_has_one_mark_and_a_constant_sum() {
        let mut bank = Bank::default();
        bank.transfer(0, 17);
        let whole = row("00/bank/r/00000001", &bank.mutations(MARK));
        assert_eq!(Bank::read(Some(&whole)), Ok(Some((bank.clone(), MARK))));
        assert_eq!(Bank::GUARD.of(&whole), Some(&bank.guard(MARK)));
        let other = row("00/bank/r/00000001", &Bank::default().mutations(Token { writer: 1, sequence: 3 }));
        let mut mixed = whole.clone();
        mixed.cells[5] = other.cells[5].clone();
        assert!(Bank::read(Some(&mixed)).unwrap_err().contains("different transfers"));
        let mut short = whole;
        short.cells.pop();
        assert!(Bank::read(Some(&short)).is_err());
        assert_eq!(Bank::read(None), Ok(None));
    }

    #[test]
    fn a_list_has_its_length() {
        let list = |text: &'static str, count: i64| {
            let count = Bytes::copy_from_slice(&count.to_be_bytes());
            list_text(&row("l", &[LIST.set(text), COUNT.set(count)]))
        };
        assert_eq!(list("1.1,1.2,", 2).as_deref(), Ok("1.1,1.2,"));
        assert!(list("1.1,", 2).is_err() && list("1.1", 1).is_err());
        assert_eq!(list_text(&row("l", &[])).as_deref(), Ok(""));
    }

    #[test]
    fn a_boundary_is_in_key_order_and_spans_two_slots() {
        let layout = Layout { run: "r".into(), slots: 3 };
        let boundary = layout.boundary(Slot(0));
        assert!(boundary.is_sorted() && boundary[0].starts_with("00/z") && boundary[127].starts_with("01/a"));
        assert_eq!(boundary.iter().filter(|key| is_static(key)).count(), 64);
        assert_eq!(Layout::splits(3), [RowKey::new("01/"), RowKey::new("02/")]);
        let (list, range) = (layout.row(Slot(2), Kind::List, 7), layout.range(Slot(2), Kind::List));
        assert!(range.contains(list.as_bytes()) && Kind::of(&list) == Some(Kind::List));
    }
}
