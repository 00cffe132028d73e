//! Group and tablet descriptors, and the rows of tablets in METADATA.
//!
//! A group is a Raft group with its replicas; a tablet belongs to one group at a time, and its replicas are those of its group.
//!
//! METADATA is table 0. It has one row per tablet, keyed by the tablet's table and *end* key. Ends are exclusive, so
//! the first row strictly after `(table, key)` is that of the tablet that contains the key:
//!
//! ```text
//!   row key     table (u64, big endian)  00 escape(end)    a tablet that ends
//!               table (u64, big endian)  01                the last tablet of its table
//!   columns     location:descriptor   location:leader   events:<n>
//! ```
//!
//! The rows of table 0 itself, the locations of METADATA's own tablets, make up the root tablet, which never splits: three
//! levels reach every tablet. METADATA's other tablets, those of the second level, split and merge like those of user tables. They
//! split directly behind a row ([`metadata_split_point`]), because a lookup begins between two rows.
//!
//! The descriptors inside a group's own log are authoritative; METADATA has copies, guarded by generation.

use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet};

use crate::codec::{escape, unescape};
use crate::error::Error;
use crate::id::{Generation, GroupId, LogId, ReplicaId, ServerId, TableId, TabletId};
use crate::key::{KeyRange, RowKey};

/// Qualifier of a tablet's descriptor in METADATA's family `location`.
pub const DESCRIPTOR_QUALIFIER: &[u8] = b"descriptor";
/// Qualifier of a tablet's leader hint in METADATA's family `location`.
pub const LEADER_QUALIFIER: &[u8] = b"leader";
/// Name of METADATA's family with the descriptor and the leader hint.
pub const LOCATION_FAMILY: &str = "location";
/// Name of METADATA's family with the history of tablets.
pub const EVENTS_FAMILY: &str = "events";
/// Number of stored events of a tablet, under the qualifiers `0` to `63`.
pub const EVENTS_KEPT: u64 = 64;

const HAS_END: u8 = 0;
const NO_END: u8 = 1;

/// A replica of a group and its server.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Replica {
    /// The replica.
    pub replica: ReplicaId,
    /// Its server.
    pub server: ServerId,
}

/// Voters and learners of a group.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Membership {
    /// One set of voters, or two during a change (joint consensus), when a majority of each is needed.
    pub voters: Vec<BTreeSet<ReplicaId>>,
    /// All replicas, voters and learners.
    pub replicas: BTreeMap<ReplicaId, ServerId>,
}

impl Membership {
    /// One voter on each of these servers, numbered from 1.
    pub fn initial(servers: &[ServerId]) -> Self {
        let replicas: BTreeMap<_, _> = (1..).map(ReplicaId::new).zip(servers.iter().copied()).collect();
        Self { voters: vec![replicas.keys().copied().collect()], replicas }
    }

    /// Whether no membership change is in progress.
    pub const fn is_uniform(&self) -> bool {
        self.voters.len() == 1
    }

    /// Whether this replica votes.
    pub fn is_voter(&self, replica: ReplicaId) -> bool {
        self.voters.iter().any(|set| set.contains(&replica))
    }

    /// Its replicas, by number.
    pub fn replicas(&self) -> impl Iterator<Item = Replica> + '_ {
        self.replicas.iter().map(|(&replica, &server)| Replica { replica, server })
    }

    /// The replica on this server, the newest if there are several.
    pub fn replica_on(&self, server: ServerId) -> Option<ReplicaId> {
        self.replicas().filter(|replica| replica.server == server).map(|replica| replica.replica).last()
    }

    /// The server of this replica.
    pub fn server_of(&self, replica: ReplicaId) -> Option<ServerId> {
        self.replicas.get(&replica).copied()
    }

    /// Whether the replicas that `counts` selects contain a majority of each set of voters: only then can the group commit.
    pub fn has_majority(&self, counts: impl Fn(Replica) -> bool) -> bool {
        let selected: BTreeSet<ReplicaId> =
            self.replicas().filter(|replica| counts(*replica)).map(|replica| replica.replica).collect();
        self.voters.iter().all(|set| 2 * set.intersection(&selected).count() > set.len())
    }

    /// The membership without learners; `None` during a change.
    fn without_learners(&self) -> Option<Self> {
        let [voters] = self.voters.as_slice() else { return None };
        let replicas = self.replicas.iter().filter(|(replica, _)| voters.contains(replica));
        Some(Self { voters: vec![voters.clone()], replicas: replicas.map(|(&id, &server)| (id, server)).collect() })
    }
}

/// A replication group: its replicas.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupDescriptor {
    /// The group.
    pub group: GroupId,
    /// Its replicas.
    pub membership: Membership,
    /// The log entry of the membership; rises when the replicas change.
    pub membership_log_id: LogId,
}

impl GroupDescriptor {
    /// The initial descriptor of a new group with one replica on each of these servers.
    pub fn initial(group: GroupId, servers: &[ServerId]) -> Self {
        Self { group, membership: Membership::initial(servers), membership_log_id: LogId::SEED }
    }

    /// The initial descriptor of a new tablet in this group.
    pub fn new_tablet(&self, table: TableId, tablet: TabletId, range: KeyRange) -> TabletDescriptor {
        self.tablet(table, tablet, range, Generation::new(1))
    }

    /// The descriptor of a tablet in this group.
    pub fn tablet(
        &self,
        table: TableId,
        tablet: TabletId,
        range: KeyRange,
        generation: Generation,
    ) -> TabletDescriptor {
        TabletDescriptor {
            table,
            tablet,
            range,
            generation,
            group: self.group,
            membership: self.membership.clone(),
            membership_log_id: self.membership_log_id,
        }
    }

    /// The group `child` with the same voters and a new log; `None` during a membership change. Learners stay behind.
    pub fn divide(&self, child: GroupId) -> Option<Self> {
        let membership = self.membership.without_learners()?;
        Some(Self { group: child, membership, membership_log_id: LogId::SEED })
    }
}

/// A tablet: its rows, its group, and the replicas of its group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TabletDescriptor {
    /// Its table.
    pub table: TableId,
    /// The tablet.
    pub tablet: TabletId,
    /// Its rows.
    pub range: KeyRange,
    /// Rises when the range or the group changes.
    pub generation: Generation,
    /// Its group.
    pub group: GroupId,
    /// The replicas of its group.
    pub membership: Membership,
    /// The entry of the membership in the group's log; rises when the replicas change.
    pub membership_log_id: LogId,
}

impl TabletDescriptor {
    /// The initial descriptor of a new tablet in a group of its own, which has the tablet's number and one replica on each of
    /// these servers.
    pub fn initial(table: TableId, tablet: TabletId, range: KeyRange, servers: &[ServerId]) -> Self {
        GroupDescriptor::initial(GroupId::new(tablet.get()), servers).new_tablet(table, tablet, range)
    }

    /// The descriptor of its group.
    pub fn group_descriptor(&self) -> GroupDescriptor {
        GroupDescriptor {
            group: self.group,
            membership: self.membership.clone(),
            membership_log_id: self.membership_log_id,
        }
    }

    /// The fence that requests and METADATA updates compare: it grows with every change of range, group or replicas.
    pub const fn fence(&self) -> (Generation, LogId) {
        (self.generation, self.membership_log_id)
    }

    /// The halves below and from `at`: the left one keeps the id, the right one is the tablet `child`. Both stay in the group.
    ///
    /// `None` unless both halves are non-empty. The root tablet never splits.
    pub fn split(&self, at: &RowKey, child: TabletId) -> Option<(Self, Self)> {
        if self.tablet == TabletId::ROOT {
            return None;
        }
        let (lower, upper) = self.range.split_at(at)?;
        let generation = self.generation.next();
        let left = Self { range: lower, generation, ..self.clone() };
        let right = Self { tablet: child, range: upper, generation, ..self.clone() };
        Some((left, right))
    }

    /// This tablet with the rows of `left` added. It keeps its id and its group, and the tablet `left` is gone: the row of this
    /// tablet in METADATA keeps its key, and the only row that must be removed is that of a tablet that no longer exists.
    ///
    /// `None` unless `left` ends where this tablet begins, in the same table and group. The root tablet never merges.
    pub fn merge(&self, left: &Self) -> Option<Self> {
        let is_adjacent = left.range.end() == Some(self.range.start());
        let has_root = [self.tablet, left.tablet].contains(&TabletId::ROOT);
        if has_root || (left.table, left.group) != (self.table, self.group) || !is_adjacent {
            return None;
        }
        let range = KeyRange::new(left.range.start().clone(), self.range.end().cloned())?;
        // Higher than that of each tablet that these rows belonged to before.
        let generation = self.generation.max(left.generation).next();
        Some(Self { range, generation, ..self.clone() })
    }

    /// The key of its row in METADATA.
    pub fn row_key(&self) -> RowKey {
        row_key(self.table, self.range.end())
    }
}

/// The METADATA row of the tablet of `table` that ends before `end`, or of the last one.
pub fn row_key(table: TableId, end: Option<&RowKey>) -> RowKey {
    let mut bytes = table.get().to_be_bytes().to_vec();
    match end {
        Some(end) => {
            bytes.push(HAS_END);
            escape(end.as_bytes(), &mut bytes);
        }
        None => bytes.push(NO_END),
    }
    RowKey::new(bytes)
}

/// The key that the METADATA row of the tablet with `key` is the first strictly greater than.
pub fn lookup_key(table: TableId, key: &RowKey) -> RowKey {
    row_key(table, Some(key))
}

/// The METADATA rows of the table after [`lookup_key`]; the first is that of the tablet with `key`. A table's last row is
/// always in the range.
pub fn lookup_range(table: TableId, key: &RowKey) -> KeyRange {
    let start = lookup_key(table, key).successor();
    KeyRange::new(start.clone(), table_end(table)).unwrap_or_else(|| KeyRange::single(start))
}

/// How the METADATA row of a tablet may be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RowUpdate {
    /// Not yet: the tablet before it has no current row. Without that, keys below the tablet would belong to no row.
    Wait,
    /// At once. Afterwards the rows of these older descriptors, inside the tablet's range, are superfluous.
    Write(Vec<TabletDescriptor>),
}

/// The METADATA rows that determine how the row of `tablet` may be written: that of the tablet before it, its own, and those
/// between. If the tablet is not listed with its generation yet, [`rows_after`] count too.
pub fn rows_near(tablet: &TabletDescriptor) -> KeyRange {
    let start = tablet.range.start();
    let first =
        if start.is_empty() { table_range(tablet.table).start().clone() } else { row_key(tablet.table, Some(start)) };
    let own = tablet.row_key();
    KeyRange::new(first, Some(own.successor())).unwrap_or_else(|| KeyRange::single(own))
}

/// The METADATA rows of the table after that of `tablet`; `None` for the last tablet.
pub fn rows_after(tablet: &TabletDescriptor) -> Option<KeyRange> {
    tablet.range.end()?;
    KeyRange::new(tablet.row_key().successor(), table_end(tablet.table))
}

/// How the METADATA row of `tablet` may be written. `listed`: the descriptors in the rows of [`rows_near`], and [`rows_after`]
/// unless the tablet is listed with its generation.
///
/// The tablets that a key belongs to, one after the other, have ascending generations, because a split, a merge and a division
/// raise them. So a row in the tablet's range with a lower generation describes what was there before the tablet.
///
/// A row's key is its tablet's end, so the right half of a split takes over the row of its parent, and the left half needs a new
/// one, which must exist first. A tablet between others waits for the one before it too: otherwise the one after it would find
/// its row, and take over that of a parent that also lists the keys below both. An older row than the parent's is none to rely
/// on: it is one that a merge has left behind.
pub fn row_update(tablet: &TabletDescriptor, listed: &[TabletDescriptor]) -> RowUpdate {
    let (start, own) = (tablet.range.start(), tablet.row_key());
    let ends_before = |row: &TabletDescriptor| !start.is_empty() && row.range.end() == Some(start);
    let before = listed.iter().find(|row| ends_before(row)).map(|row| row.generation);
    let alone_lists_keys_below = |row: &TabletDescriptor| {
        let is_current = row.generation <= tablet.generation && before.is_none_or(|before| before <= row.generation);
        !ends_before(row) && row.range.start() < start && is_current
    };
    if listed.iter().any(alone_lists_keys_below) {
        return RowUpdate::Wait;
    }
    let inside: Vec<_> = listed.iter().filter(|row| !ends_before(row) && row.row_key() < own).collect();
    if inside.iter().any(|row| row.generation > tablet.generation) {
        // The tablet has been split: the writers of its parts remove what they replace.
        return RowUpdate::Write(Vec::new());
    }
    let superfluous = inside.into_iter().filter(|row| row.generation < tablet.generation);
    RowUpdate::Write(superfluous.cloned().collect())
}

/// The METADATA rows that may be removed, because each of their keys is listed by a newer row too. `rows`: in key order.
///
/// A merge leaves the row of a tablet that is gone, until it is removed. Its keys have a row with a higher generation.
pub fn obsolete_rows<'a>(
    rows: impl DoubleEndedIterator<Item = &'a TabletDescriptor> + Clone,
) -> Vec<&'a TabletDescriptor> {
    // Only needed after a merge.
    let generations: LazyCell<BTreeMap<RowKey, Generation>, _> =
        LazyCell::new(|| rows.clone().map(|row| (row.row_key(), row.generation)).collect());
    let mut obsolete = Vec::new();
    let mut after: Option<&TabletDescriptor> = None;
    for row in rows.clone().rev() {
        match after {
            Some(newer) if supersedes(newer, row) => {
                let start = newer.range.start();
                let below = generations.get(&row_key(row.table, Some(start)));
                if row.range.start() >= start || below.is_some_and(|generation| *generation > row.generation) {
                    obsolete.push(row);
                }
            }
            _ => after = Some(row),
        }
    }
    obsolete.reverse();
    obsolete
}

/// The keys of [`obsolete_rows`].
pub fn obsolete_row_keys<'a>(rows: impl DoubleEndedIterator<Item = &'a TabletDescriptor> + Clone) -> BTreeSet<RowKey> {
    obsolete_rows(rows).into_iter().map(TabletDescriptor::row_key).collect()
}

/// The key that divides a METADATA tablet best: directly behind one of its rows, so that both halves have rows. `None` when the tablet
/// has fewer than two.
///
/// `rows`: the keys of all rows in `range`, ascending, each with its bytes. Of two equally good keys the lower one is chosen.
///
/// A lookup begins at any key between two rows and wants the second one. If the right half began with that row, the lookup would begin
/// in the left half, find nothing, and read the right half too. Directly behind the first row, all keys that want the second one are in its
/// half.
pub fn metadata_split_point(range: &KeyRange, rows: &[(RowKey, u64)]) -> Option<RowKey> {
    let total: u64 = rows.iter().map(|(_row, bytes)| bytes).sum();
    let (_last, firsts) = rows.split_last()?;
    let mut before = 0_u64;
    let mut best: Option<(u64, RowKey)> = None;
    for (row, bytes) in firsts {
        before = before.saturating_add(*bytes);
        let difference = before.abs_diff(total.saturating_sub(before));
        let at = row.successor();
        if range.split_at(&at).is_some() && best.as_ref().is_none_or(|(least, _)| difference < *least) {
            best = Some((difference, at));
        }
    }
    best.map(|(_difference, at)| at)
}

/// Whether `newer`, whose row is after that of `row`, has some of its keys and a higher generation.
fn supersedes(newer: &TabletDescriptor, row: &TabletDescriptor) -> bool {
    newer.table == row.table
        && row.range.end().is_some_and(|end| newer.range.start() < end)
        && row.generation < newer.generation
}

/// The table and end key of a METADATA row key.
///
/// # Errors
/// `DataDamaged` when it is not a METADATA row key.
pub fn parse_row_key(key: &RowKey) -> Result<(TableId, Option<RowKey>), Error> {
    let bad = || Error::damaged(format!("not a METADATA row key: {key}"));
    let (table, rest) = key.as_bytes().split_first_chunk().ok_or_else(bad)?;
    let table = TableId::new(u64::from_be_bytes(*table));
    match rest {
        [NO_END] => Ok((table, None)),
        [HAS_END, escaped @ ..] => match unescape(escaped) {
            Ok((end, [])) => Ok((table, Some(RowKey::new(end)))),
            _ => Err(bad()),
        },
        _ => Err(bad()),
    }
}

/// The METADATA rows of all tablets of `table`.
pub fn table_range(table: TableId) -> KeyRange {
    let start = RowKey::copy_from_slice(&table.get().to_be_bytes());
    KeyRange::new(start.clone(), table_end(table)).unwrap_or_else(|| KeyRange::single(start))
}

/// The first METADATA key after those of `table`; `None` for the largest possible id.
fn table_end(table: TableId) -> Option<RowKey> {
    Some(RowKey::copy_from_slice(&table.get().checked_add(1)?.to_be_bytes()))
}

/// The end of the root tablet: the rows of table 1.
fn root_end() -> RowKey {
    RowKey::copy_from_slice(&1_u64.to_be_bytes())
}

/// The range of the root tablet: the rows of table 0.
pub fn root_range() -> KeyRange {
    KeyRange::new(RowKey::EMPTY, Some(root_end())).unwrap_or_else(KeyRange::all)
}

/// METADATA's first tablets with their ranges: the root tablet and the rest.
pub fn first_ranges() -> [(TabletId, KeyRange); 2] {
    let rest = KeyRange::new(root_end(), None).unwrap_or_else(KeyRange::all);
    [(TabletId::ROOT, root_range()), (TabletId::FIRST_METADATA, rest)]
}

/// METADATA's first tablets in a new cluster, with replicas on these servers.
pub fn first_tablets(servers: &[ServerId]) -> [TabletDescriptor; 2] {
    let group = GroupDescriptor::initial(GroupId::METADATA, servers);
    first_ranges().map(|(tablet, range)| group.new_tablet(TableId::METADATA, tablet, range))
}
