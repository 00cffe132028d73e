//! Locality groups: what is read never depends on where cells are, during moves and over crashes.

use std::collections::BTreeSet;

use ebla_model::id::TableId;
use ebla_model::locality::LocalityGroupOptions;
use ebla_model::stored_row::{stored_range, stored_row};
use proptest::prelude::*;

use super::super::placement::WantedFamilies;
use super::crash::crashed_copy;
use super::*;

const TABLES: [u64; 2] = [3, 700];
const FAMILIES: std::ops::RangeInclusive<u32> = 1..=3;
/// Options of locality groups; a family may also return to the first ones.
const OPTIONS: [(u32, &str); 8] = [
    (0, ""),
    (1, ""),
    (1, "compression=zstd:1;block=4k"),
    (2, "compression=none;bloom=none"),
    (2, "compression=two-pass"),
    (1, "bloom=columns"),
    (2, "in-memory=yes"),
    (0, "in-memory=yes;bloom=columns"),
];

/// The cells by key, with their contents.
type Model = BTreeMap<Vec<u8>, Vec<u8>>;

#[derive(Clone, Debug)]
enum Step {
    /// Table, row, family, version, content.
    Put(usize, u8, u32, i64, u8),
    Delete(usize, u8, u32, i64),
    DeleteRow(usize, u8),
    /// Table, family and where it shall be.
    Place(usize, u32, usize),
    /// With this number of bytes at most.
    Relocate(usize),
    Flush,
    Reopen,
    Crash,
}

fn step() -> impl Strategy<Value = Step> {
    let cell = || (0..TABLES.len(), 0u8..6, FAMILIES, 0i64..3);
    prop_oneof![
        24 => (cell(), any::<u8>()).prop_map(|((t, r, f, v), content)| Step::Put(t, r, f, v, content)),
        6 => cell().prop_map(|(t, r, f, v)| Step::Delete(t, r, f, v)),
        2 => (0..TABLES.len(), 0u8..6).prop_map(|(t, r)| Step::DeleteRow(t, r)),
        4 => (0..TABLES.len(), FAMILIES, 0..OPTIONS.len()).prop_map(|(t, f, to)| Step::Place(t, f, to)),
        6 => (1usize..200).prop_map(Step::Relocate),
        1 => Just(Step::Flush),
        1 => Just(Step::Reopen),
        1 => Just(Step::Crash),
    ]
}

fn family(number: u32) -> FamilyId {
    FamilyId::new(number)
}

fn row(table: usize, row: u8) -> RowKey {
    // With bytes that need escapes.
    stored_row(TableId::new(TABLES[table]), &RowKey::new(vec![b'r', 0, row]))
}

fn key(table: usize, at: u8, number: u32, version: i64) -> Vec<u8> {
    codec::encode_parts(row(table, at).as_bytes(), family(number), b"q", Micros::new(version))
}

/// Table, row and family of all columns that the steps use.
fn columns() -> impl Iterator<Item = (usize, u8, u32)> {
    (0..TABLES.len()).flat_map(|table| (0..6).flat_map(move |row| FAMILIES.map(move |number| (table, row, number))))
}

fn cell_family(at: usize) -> CellFamily {
    let (group, options) = OPTIONS[at];
    CellFamily { group, options: options.parse().unwrap() }
}

fn everything_in_lg0() -> BTreeMap<TableId, WantedFamilies> {
    let families: WantedFamilies = FAMILIES.map(|number| (family(number), CellFamily::lg0())).collect();
    TABLES.iter().map(|table| (TableId::new(*table), families.clone())).collect()
}

/// A store beside a model of it, and the models of all its states.
struct Pair {
    dir: TempDir,
    store: Option<GroupStore>,
    model: Model,
    /// By applied index.
    states: Vec<Model>,
    wanted: BTreeMap<TableId, WantedFamilies>,
    crashes: usize,
}

impl Pair {
    fn new() -> Self {
        let dir = TempDir::new().unwrap();
        let store = Some(new_store(&dir));
        let wanted = everything_in_lg0();
        Self { dir, store, model: Model::new(), states: vec![Model::new()], wanted, crashes: 0 }
    }

    fn store(&self) -> &GroupStore {
        self.store.as_ref().unwrap()
    }

    fn write(&mut self, mut batch: Batch) {
        batch.put_meta(MetaKey::Applied, encode_log_id(applied(self.states.len() as u64)));
        self.store().write(&batch).unwrap();
        self.states.push(self.model.clone());
    }

    fn carry_out(&mut self, step: Step) {
        let mut batch = Batch::new();
        match step {
            Step::Put(table, row, number, version, content) => {
                let key = key(table, row, number, version);
                batch.put(key.clone(), vec![content]);
                self.model.insert(key, vec![content]);
                self.write(batch);
            }
            Step::Delete(table, row, number, version) => {
                let key = key(table, row, number, version);
                self.model.remove(&key);
                batch.delete(key);
                self.write(batch);
            }
            Step::DeleteRow(table, at) => {
                let (lower, upper) = codec::range_bounds(&KeyRange::single(row(table, at)));
                let upper = upper.unwrap();
                self.model.retain(|key, _content| *key < lower || *key >= upper);
                batch.delete_range(lower, Some(upper));
                self.write(batch);
            }
            Step::Place(table, number, to) => {
                self.wanted.get_mut(&TableId::new(TABLES[table])).unwrap().insert(family(number), cell_family(to));
                self.store().place_tables(self.wanted.clone()).unwrap();
            }
            Step::Relocate(bytes) => _ = self.store().relocate(bytes).unwrap(),
            Step::Flush => self.store().flush().unwrap(),
            Step::Reopen => {
                let store = restarted(self.store.take().unwrap());
                self.open(store);
            }
            Step::Crash => {
                self.crashes += 1;
                let copy = crashed_copy(self.store(), &self.dir.path().join(format!("copy{}", self.crashes)));
                let last = applied_in(&copy).map_or(0, |id| id.index.get());
                self.states.truncate(usize::try_from(last).unwrap() + 1);
                self.model = self.states.last().unwrap().clone();
                self.open(copy);
            }
        }
    }

    fn open(&mut self, store: GroupStore) {
        store.place_tables(self.wanted.clone()).unwrap();
        self.store = Some(store);
    }

    fn check(&self) {
        let store = self.store();
        let view = store.view();
        let whole = (Vec::new(), None);
        let tables = TABLES.map(|table| codec::range_bounds(&stored_range(TableId::new(table), &KeyRange::all())));
        for (lower, upper) in tables.into_iter().chain([whole]) {
            let is_inside = |key: &[u8]| lower.as_slice() <= key && upper.as_deref().is_none_or(|upper| key < upper);
            let expected: Model =
                self.model.iter().filter(|(key, _)| is_inside(key)).map(|(k, v)| (k.clone(), v.clone())).collect();
            for direction in [Direction::Forward, Direction::Reverse] {
                let found: Vec<_> =
                    view.cells(&lower, upper.as_deref(), direction).unwrap().map(Result::unwrap).collect();
                let is_ordered = found.is_sorted_by(|a, b| if direction == Direction::Forward { a < b } else { a > b });
                assert!(is_ordered, "{found:?}");
                let found: Model = found.into_iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
                assert_eq!(found, expected);
            }
            for number in FAMILIES {
                let families = BTreeSet::from([family(number)]);
                let is_its = |key: &[u8]| super::super::placement::family_of(key) == Some(family(number));
                let plan = ScanPlan::new(&lower, upper.as_deref()).of_families(&families);
                let found = view.scan(&plan).unwrap().map(Result::unwrap).filter(|(key, _)| is_its(key));
                let expected = expected.iter().filter(|(key, _)| is_its(key));
                assert!(
                    found
                        .map(|(key, value)| (key.to_vec(), value.to_vec()))
                        .eq(expected.map(|(k, v)| (k.clone(), v.clone())))
                );
            }
        }
        for (table, at, number) in columns() {
            let lower = codec::column_prefix(&row(table, at), family(number), b"q");
            let upper = codec::prefix_end(&lower).unwrap();
            let found = view.scan(&ScanPlan::new(&lower, Some(&upper))).unwrap().map(Result::unwrap);
            let expected = self.model.range(lower.clone()..upper.clone());
            assert!(
                found
                    .map(|(key, value)| (key.to_vec(), value.to_vec()))
                    .eq(expected.map(|(k, v)| (k.clone(), v.clone())))
            );
        }
        for (key, content) in &self.model {
            assert_eq!(view.get_cell(key).unwrap().as_deref(), Some(&content[..]));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn reads_do_not_depend_on_placement_and_survive_crashes(steps in proptest::collection::vec(step(), 1..80)) {
        let mut pair = Pair::new();
        for step in steps {
            pair.carry_out(step);
            pair.check();
        }
        // When nothing changes any more, every family arrives where it is wanted.
        while pair.store().relocate(1000).unwrap() == Relocation::More {}
        pair.check();
        let wanted = &pair.wanted;
        let placements = pair.store().placements();
        for (table, families) in wanted {
            for (id, wanted) in families {
                let lower = codec::range_bounds(&stored_range(*table, &KeyRange::all())).0;
                let key = codec::encode_parts(&codec::unescape(&lower).unwrap().0, *id, b"q", Micros::new(1));
                prop_assert_eq!(placements.of_key(&key), FamilyPlacement { current: *wanted, previous: None });
            }
        }
    }
}

/// A store whose families 1 and 2 of the first table are in different groups.
fn separated() -> (TempDir, GroupStore) {
    let dir = TempDir::new().unwrap();
    let store = new_store(&dir);
    let mut wanted = everything_in_lg0();
    wanted.get_mut(&TableId::new(TABLES[0])).unwrap().insert(family(2), cell_family(2));
    store.place_tables(wanted).unwrap();
    let mut batch = Batch::new();
    for at in 0..100 {
        batch.put(key(0, at, 1, 1), vec![1; 100]);
        batch.put(key(0, at, 2, 1), vec![2; 1000]);
    }
    store.write(&batch).unwrap();
    (dir, store)
}

#[test]
fn a_read_of_one_family_reads_no_block_of_another_group() {
    let (_dir, store) = separated();
    // Otherwise RocksDB compacts the new files after the restart, to remove their sequence numbers, and the blocks that the first read has cached are those
    // of deleted files.
    store.flush().unwrap();
    store.compact().unwrap();
    let store = reopened(store);
    let (lower, upper) = codec::range_bounds(&stored_range(TableId::new(TABLES[0]), &KeyRange::all()));
    let count = |number: u32, tier: ReadTier| {
        let families = BTreeSet::from([family(number)]);
        let plan = ScanPlan::new(&lower, upper.as_deref()).of_families(&families).with_read_tier(tier);
        store.with_view(|view| view.scan(&plan)?.collect::<Result<Vec<_>, _>>().map(|cells| cells.len()))
    };
    assert_eq!(count(1, ReadTier::All).unwrap(), 100);
    assert_eq!(count(1, ReadTier::BlockCache).unwrap(), 100, "its blocks are cached now");
    assert!(matches!(count(2, ReadTier::BlockCache), Err(StoreError::NotCached)), "those of the other group are not");
    assert_eq!(count(2, ReadTier::All).unwrap(), 100);
}

#[test]
fn the_cells_of_a_table_that_is_gone_are_still_found() {
    let (_dir, store) = separated();
    let mut wanted = everything_in_lg0();
    wanted.remove(&TableId::new(TABLES[0]));
    store.place_tables(wanted).unwrap();
    let store = restarted(store);
    let (lower, upper) = codec::range_bounds(&stored_range(TableId::new(TABLES[0]), &KeyRange::all()));
    let cells = store.view().cells(&lower, upper.as_deref(), Direction::Forward).unwrap().map(Result::unwrap).count();
    assert_eq!(cells, 200, "those in the other column family too");
}

#[test]
fn a_view_is_unchanged_by_a_move_that_begins_or_ends_after_it() {
    let (_dir, store) = separated();
    let count = |view: &View<'_>| view.cells(b"", None, Direction::Forward).unwrap().map(Result::unwrap).count();
    let before = store.view();
    let mut wanted = everything_in_lg0();
    wanted.get_mut(&TableId::new(TABLES[0])).unwrap().insert(family(1), cell_family(3));
    store.place_tables(wanted).unwrap();
    let mut batch = Batch::new();
    batch.delete(key(0, 7, 1, 1));
    batch.put(key(0, 200, 1, 1), vec![3]);
    batch.put(key(0, 201, 1, 1), vec![3]);
    store.write(&batch).unwrap();
    assert!(store.is_relocating());
    let during = store.view();
    while store.relocate(500).unwrap() == Relocation::More {
        assert_eq!((count(&before), count(&during), count(&store.view())), (200, 201, 201));
    }
    assert!(!store.is_relocating());
    assert_eq!((count(&before), count(&during), count(&store.view())), (200, 201, 201));
    drop((before, during));
    let copied = store.dir().with_file_name("checkpoint");
    store.checkpoint(&copied).unwrap();
    assert!(Scrub::check(&copied).unwrap() > 100_000, "a scrub reads all column families");
    let copy = GroupStore::open(&copied, &shared()).unwrap();
    assert_eq!(count(&copy.view()), 201);
}

#[test]
fn options_of_groups_are_accepted_by_the_engine() {
    let dir = TempDir::new().unwrap();
    let store = new_store(&dir);
    let texts =
        ["compression=none", "compression=lz4", "compression=zstd:19;block=1024k", "compression=two-pass;block=4k"];
    for (at, text) in texts.into_iter().enumerate() {
        let options: LocalityGroupOptions = text.parse().unwrap();
        let mut wanted = everything_in_lg0();
        let group = CellFamily { group: 1 + u32::try_from(at).unwrap(), options };
        wanted.get_mut(&TableId::new(TABLES[0])).unwrap().insert(family(1), group);
        store.place_tables(wanted).unwrap();
        for version in 0..500 {
            let mut batch = Batch::new();
            batch.put(key(0, 1, 1, version), vec![7; 1000]);
            store.write(&batch).unwrap();
        }
        store.flush().unwrap();
        store.compact().unwrap();
        while store.relocate(100_000).unwrap() == Relocation::More {}
        assert_eq!(store.view().cells(b"", None, Direction::Forward).unwrap().count(), 500, "{text}");
    }
    let store = restarted(store);
    assert_eq!(store.view().cells(b"", None, Direction::Forward).unwrap().map(Result::unwrap).count(), 500);
    assert_eq!(
        store.cell_families.read().len(),
        2,
        "column families that nothing is in are dropped when a store is opened"
    );
}

#[test]
fn the_bytes_of_a_range_are_known_by_locality_group() {
    let dir = TempDir::new().unwrap();
    let store = new_store(&dir);
    let mut wanted = everything_in_lg0();
    wanted.get_mut(&TableId::new(TABLES[0])).unwrap().insert(family(2), cell_family(2));
    store.place_tables(wanted).unwrap();
    let table = |at: usize| codec::range_bounds(&stored_range(TableId::new(TABLES[at]), &KeyRange::all()));
    let sizes = |(lower, upper): (Vec<u8>, Option<Vec<u8>>)| store.bytes_by_group(&lower, upper.as_deref()).unwrap();

    // Group 1 has blocks of 4 KiB and Zstd.
    let line = b"what is repeated in a page is compressed well; ".repeat(20);
    let mut batch = Batch::new();
    for at in 0..200 {
        batch.put(key(0, at, 1, 1), noise(400, at));
        batch.put(key(0, at, 2, 1), line.clone());
        batch.put(key(1, at, 1, 1), noise(1000, at));
    }
    store.write(&batch).unwrap();
    assert_eq!(sizes(table(0)).len(), 0, "nothing is in files");
    store.flush().unwrap();

    let found = sizes(table(0));
    assert_eq!(found.keys().copied().collect::<Vec<_>>(), [0, 1]);
    let (cells, pages) = (found[&0], found[&1]);
    let written = 200 * line.len() as u64;
    assert!(pages.data > written && pages.data < written * 11 / 10, "{pages:?} of {written}");
    assert!(pages.files > 0 && pages.files < written / 5, "{pages:?}");
    // Noise is not compressed; the other table's cells in the same column family are not counted.
    assert!((60_000..120_000).contains(&cells.data) && (60_000..120_000).contains(&cells.files), "{cells:?}");
    let other = sizes(table(1));
    assert!(other.len() == 1 && (160_000..250_000).contains(&other[&0].data), "{other:?}");

    let middle = codec::encode_parts(row(0, 100).as_bytes(), family(2), b"q", Micros::new(1));
    let first = store.bytes_by_group(&table(0).0, Some(&middle)).unwrap()[&1];
    assert!(first.data > pages.data / 4 && first.data < pages.data * 3 / 4, "{first:?} of {pages:?}");
    assert_eq!(store.bytes_by_group(b"b", Some(b"a")).unwrap().len(), 0, "a range without keys");
}

/// Bytes that no compression makes shorter.
fn noise(bytes: usize, seed: u8) -> Vec<u8> {
    let mut state = u64::from(seed).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..bytes.div_ceil(8)).flat_map(|_| next()).take(bytes).collect()
}
