//! Random steps: few keys, columns and values, so that steps conflict.

use std::ops::Bound;

use bytes::Bytes;
use ebla_model::filter::Filter;
use ebla_model::time::Micros;
use ebla_runtime::Rng;

/// 2100-01-01, later than any server's clock.
pub(crate) const FUTURE: i64 = 4_102_444_800_000_000;
/// Families of the table `two`; `one` has only the first.
pub(crate) const FAMILIES: [&str; 2] = ["f", "g"];
/// Where the tables are cut into tablets at first.
pub(crate) const SPLITS: [&[u8]; 2] = [b"b", b"m\x00"];
const KEYS: [&[u8]; 8] = [b"a", b"a\x00", b"ab", b"b", b"m", b"m\x00", b"\xff", b"\xff\xff"];
const QUALIFIERS: [&[u8]; 5] = [b"", b"a", b"ab", b"b", b"\x00\xff"];
const VALUES: [&[u8]; 8] = [b"", b"a", b"b", b"ab", b"\n", b"\x00", b"\xff\x80", b"\x00\x00\x00\x00\x00\x00\x00\x05"];
const PATTERNS: [&[u8]; 22] = [
    b"a",
    b"",
    b".*",
    b"a.*",
    b"[ab]",
    b"a|b",
    b"a?b",
    b"(?i)A",
    b"\\C*",
    b".",
    b"(?s).",
    b"[^a]",
    b"\\x00",
    b"\\n",
    b"\\Qab\\E",
    b"\\x{ff}.*",
    b"a{1,2}b?",
    b"(a|b)+",
    b"\\w*",
    b"\xff\x80",
    b"[[:alpha:]]+",
    b"\\pL*",
];

/// Which of a program's two tables: with one family, or with two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Table {
    /// One family.
    One,
    /// Two families.
    Two,
}

/// A change of a row.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Change {
    Set { family: String, qualifier: Bytes, at: i64, value: Bytes },
    DeleteColumn { family: String, qualifier: Bytes, start: i64, end: i64 },
    DeleteFamily { family: String },
    DeleteRow,
}

/// A rule of a read-modify-write.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Rule {
    Append(Bytes),
    Increment(i64),
}

/// The rows of a read: keys, and ranges whose bounds are open or closed.
pub(crate) type Range = (Bound<Bytes>, Bound<Bytes>);

/// The direction of a read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    Ascending,
    Descending,
}

/// One request.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Step {
    Mutate {
        table: Table,
        row: Bytes,
        changes: Vec<Change>,
    },
    Bulk {
        table: Table,
        entries: Vec<(Bytes, Vec<Change>)>,
    },
    Check {
        table: Table,
        row: Bytes,
        predicate: Option<Filter>,
        then: Vec<Change>,
        otherwise: Vec<Change>,
    },
    /// The columns are cleared of what the server stamped, right afterwards.
    Modify {
        table: Table,
        row: Bytes,
        rules: Vec<(String, Bytes, Rule)>,
    },
    Read {
        table: Table,
        keys: Vec<Bytes>,
        ranges: Vec<Range>,
        filter: Option<Filter>,
        limit: i64,
        direction: Direction,
    },
}

/// A random program with this number of steps.
pub(crate) fn draw(rng: &Rng, steps: usize) -> Vec<Step> {
    let drawing = Drawing { rng };
    (0..steps).map(|_| drawing.step()).collect()
}

struct Drawing<'a> {
    rng: &'a Rng,
}

impl Drawing<'_> {
    fn step(&self) -> Step {
        let table = if self.one_in(2) { Table::One } else { Table::Two };
        match self.rng.below(20) {
            0..6 => Step::Mutate { table, row: self.key(), changes: self.changes(table, 1) },
            6 | 7 => {
                let entries = self.several(1, 4, || (self.key(), self.changes(table, 1)));
                Step::Bulk { table, entries }
            }
            8..11 => Step::Check {
                table,
                row: self.key(),
                predicate: (!self.one_in(4)).then(|| self.filter(3)),
                then: self.changes(table, 0),
                otherwise: self.changes(table, 0),
            },
            11..13 => Step::Modify { table, row: self.key(), rules: self.rules(table) },
            _ => Step::Read {
                table,
                keys: self.several(0, 3, || self.key()),
                ranges: self.several(0, 2, || (self.bound(), self.bound())),
                filter: (!self.one_in(5)).then(|| self.filter(4)),
                limit: if self.one_in(3) { self.below(4) } else { 0 },
                direction: if self.one_in(3) { Direction::Descending } else { Direction::Ascending },
            },
        }
    }

    fn changes(&self, table: Table, at_least: u64) -> Vec<Change> {
        self.several(at_least, 4, || self.change(table))
    }

    fn change(&self, table: Table) -> Change {
        let family = self.family(table);
        match self.rng.below(12) {
            0 => Change::DeleteRow,
            1 => Change::DeleteFamily { family },
            2 | 3 => {
                let start = if self.one_in(3) { 0 } else { self.time() };
                let end = if self.one_in(3) { 0 } else { self.time() };
                Change::DeleteColumn { family, qualifier: self.one_of(&QUALIFIERS), start, end }
            }
            _ => Change::Set {
                family,
                qualifier: self.one_of(&QUALIFIERS),
                at: self.time(),
                value: self.one_of(&VALUES),
            },
        }
    }

    fn rules(&self, table: Table) -> Vec<(String, Bytes, Rule)> {
        self.several(1, 3, || {
            let rule = match self.rng.below(8) {
                0..4 => Rule::Append(self.one_of(&VALUES)),
                4 => Rule::Increment(i64::MAX),
                5 => Rule::Increment(-3),
                _ => Rule::Increment(1),
            };
            (self.family(table), self.one_of(&QUALIFIERS), rule)
        })
    }

    fn filter(&self, depth: u64) -> Filter {
        if depth > 0 && self.one_in(2) {
            return match self.rng.below(3) {
                0 => Filter::Chain(self.several(2, 3, || self.filter(depth - 1))),
                1 => Filter::Interleave(self.several(2, 3, || self.filter(depth - 1))),
                _ => Filter::Condition {
                    predicate: Box::new(self.filter(depth - 1)),
                    then: (!self.one_in(5)).then(|| Box::new(self.filter(depth - 1))),
                    otherwise: (!self.one_in(5)).then(|| Box::new(self.filter(depth - 1))),
                },
            };
        }
        self.leaf()
    }

    fn leaf(&self) -> Filter {
        match self.rng.below(17) {
            0 => Filter::PassAll,
            1 => Filter::BlockAll,
            2 => Filter::StripValue,
            3 => Filter::RowKeyRegex(self.one_of(&PATTERNS)),
            4 => Filter::FamilyNameRegex(self.one_of(&[b"f", b"g", b"[fg]", b".*", b"f|g", b"x"])),
            5 | 6 => Filter::ColumnQualifierRegex(self.one_of(&PATTERNS)),
            7 | 8 => Filter::ValueRegex(self.one_of(&PATTERNS)),
            9 => {
                let (start, end) = self.range(&QUALIFIERS);
                Filter::ColumnRange { family: self.family(Table::Two), start, end }
            }
            10 => {
                let (start, end) = self.range(&VALUES);
                Filter::ValueRange { start, end }
            }
            11 => {
                let end = (!self.one_in(3)).then(|| Micros::new(self.time()));
                Filter::TimestampRange { start: Micros::new(self.time()), end }
            }
            12 => Filter::CellsPerRowOffset(self.small()),
            13 => Filter::CellsPerRowLimit(self.small()),
            14 => Filter::CellsPerColumnLimit(self.small()),
            15 => Filter::ApplyLabel(String::from_utf8(self.one_of(&[b"l", b"m-9"]).to_vec()).unwrap()),
            _ if self.one_in(2) => Filter::Sink,
            _ => Filter::ValueBitmask(self.one_of(&VALUES)),
        }
    }

    fn range(&self, among: &[&'static [u8]]) -> Range {
        (self.bound_among(among), self.bound_among(among))
    }

    fn bound(&self) -> Bound<Bytes> {
        self.bound_among(&KEYS)
    }

    fn bound_among(&self, among: &[&'static [u8]]) -> Bound<Bytes> {
        match self.rng.below(3) {
            0 => Bound::Unbounded,
            1 => Bound::Included(self.one_of(among)),
            _ => Bound::Excluded(self.one_of(among)),
        }
    }

    /// Mostly a family of the table.
    fn family(&self, table: Table) -> String {
        match (table, self.rng.below(40)) {
            (_, 0) => "absent".to_owned(),
            (Table::Two, number) if number % 2 == 0 => FAMILIES[1].to_owned(),
            _ => FAMILIES[0].to_owned(),
        }
    }

    fn key(&self) -> Bytes {
        self.one_of(&KEYS)
    }

    fn time(&self) -> i64 {
        FUTURE + self.below(5) * 1000
    }

    fn small(&self) -> i32 {
        i32::try_from(self.below(5)).unwrap()
    }

    fn below(&self, bound: u64) -> i64 {
        i64::try_from(self.rng.below(bound)).unwrap()
    }

    fn one_in(&self, of: u64) -> bool {
        self.rng.below(of) == 0
    }

    fn one_of(&self, among: &[&'static [u8]]) -> Bytes {
        Bytes::from_static(among[usize::try_from(self.rng.below(among.len() as u64)).unwrap()])
    }

    /// At least `least` and at most `most`.
    fn several<T>(&self, least: u64, most: u64, one: impl Fn() -> T) -> Vec<T> {
        (0..least + self.rng.below(most - least + 1)).map(|_| one()).collect()
    }
}
