//! Accounting and quotas: what a table's families cost, and how much they may store.
//!
//! The paper counts what each table and family costs and charges it to its users (section 6, "accounting" of its API). Here the leader of a
//! tablet measures the tablet, the master adds the tablets of a table and compares the sum with the quotas. The outcome, which quotas
//! are exceeded, is a part of the table's schema: so it reaches every tablet with the log, stays when the master is gone, and a write
//! is checked without asking anybody.
//!
//! A quota is therefore exceeded by what arrives until the next comparison. Writes that store no cell are never refused.

use std::collections::BTreeMap;
use std::fmt;

use crate::capacity::readable_bytes;
use crate::error::{Error, Reason};
use crate::id::FamilyId;
use crate::mutation::{Change, Mutation};
use crate::schema::TableSchema;

/// A quota that was exceeded holds again below this share of it, in percent: a compaction that frees little does not change the state
/// every few seconds.
const HOLDS_BELOW_PERCENT: u64 = 98;

/// What a family costs, in one tablet or in all tablets of a table, on one replica of each.
///
/// Bytes and cells are approximate where a tablet has more than some thousands of cells.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FamilyUsage {
    /// Bytes in files, compressed.
    pub files_bytes: u64,
    /// Bytes of keys and values that were not flushed to files yet.
    pub unflushed_bytes: u64,
    /// Bytes of files whose locality group is in memory, uncompressed.
    pub resident_bytes: u64,
    /// Cells, those that garbage collection has not removed yet included.
    pub cells: u64,
    /// Cells that reads have met since the server of the tablet's leader started.
    pub cells_read: u64,
    /// Cells that writes have stored, and deletions, since then.
    pub cells_written: u64,
}

impl FamilyUsage {
    /// Adds that of another tablet.
    pub fn add(&mut self, other: Self) {
        let sum = |one: &mut u64, other: u64| *one = one.saturating_add(other);
        sum(&mut self.files_bytes, other.files_bytes);
        sum(&mut self.unflushed_bytes, other.unflushed_bytes);
        sum(&mut self.resident_bytes, other.resident_bytes);
        sum(&mut self.cells, other.cells);
        sum(&mut self.cells_read, other.cells_read);
        sum(&mut self.cells_written, other.cells_written);
    }

    /// Bytes that a quota counts: in files, and what will be there.
    #[must_use]
    pub const fn stored_bytes(&self) -> u64 {
        self.files_bytes.saturating_add(self.unflushed_bytes)
    }

    /// Bytes in memory, without caches.
    #[must_use]
    pub const fn memory_bytes(&self) -> u64 {
        self.unflushed_bytes.saturating_add(self.resident_bytes)
    }
}

/// What the families of a table cost, by id.
pub type TableUsage = BTreeMap<FamilyId, FamilyUsage>;

/// Whether all tablets of a table were measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Coverage {
    /// All of them.
    Whole,
    /// Some have no leader that answered, so the sums are too small.
    Partial,
}

/// What a quota limits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Measure {
    /// [`FamilyUsage::stored_bytes`].
    StoredBytes,
    /// [`FamilyUsage::cells`].
    Cells,
}

/// The limits of a quota, on one replica of each tablet; `None`: no limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QuotaLimits {
    /// Of [`FamilyUsage::stored_bytes`].
    pub stored_bytes: Option<u64>,
    /// Of [`FamilyUsage::cells`].
    pub cells: Option<u64>,
}

impl QuotaLimits {
    fn of(self, measure: Measure) -> Option<u64> {
        match measure {
            Measure::StoredBytes => self.stored_bytes,
            Measure::Cells => self.cells,
        }
    }

    /// The first measure that exceeds its limit. `before`: the one that did at the last comparison.
    fn exceeded_by(self, usage: &FamilyUsage, before: Option<Measure>) -> Option<Measure> {
        [Measure::StoredBytes, Measure::Cells].into_iter().find(|measure| {
            let used = match measure {
                Measure::StoredBytes => usage.stored_bytes(),
                Measure::Cells => usage.cells,
            };
            let lowered = |limit: u64| if before == Some(*measure) { share_of(limit) } else { limit };
            self.of(*measure).is_some_and(|limit| used > lowered(limit))
        })
    }
}

/// [`HOLDS_BELOW_PERCENT`] of a limit.
const fn share_of(limit: u64) -> u64 {
    limit / 100 * HOLDS_BELOW_PERCENT + limit % 100 * HOLDS_BELOW_PERCENT / 100
}

/// A quota and its state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Quota {
    /// Its limits.
    pub limits: QuotaLimits,
    /// What exceeded its limit at the last comparison.
    pub exceeded: Option<Measure>,
}

impl Quota {
    fn next(self, usage: &FamilyUsage, coverage: Coverage) -> Self {
        let exceeded = self.limits.exceeded_by(usage, self.exceeded);
        // Of a part of the tablets one cannot know that the others are small.
        let keeps = coverage == Coverage::Partial && exceeded.is_none();
        Self { exceeded: if keeps { self.exceeded } else { exceeded }, ..self }
    }
}

impl fmt::Display for Quota {
    /// As `ebla table describe` shows it: `10.0 GiB, 5000 cells`, and what is exceeded; a dash without limits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.limits.stored_bytes.map(readable_bytes);
        let cells = self.limits.cells.map(|cells| format!("{cells} cells"));
        let limits: Vec<String> = bytes.into_iter().chain(cells).collect();
        match (limits.is_empty(), self.exceeded) {
            (true, _) => f.write_str("-"),
            (false, None) => f.write_str(&limits.join(", ")),
            (false, Some(_measure)) => write!(f, "{}: exceeded", limits.join(", ")),
        }
    }
}

/// The quotas of a table.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Quotas {
    /// Of all families together.
    pub table: Quota,
    /// Of single families; one without limits is absent.
    pub families: BTreeMap<FamilyId, Quota>,
}

impl Quotas {
    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.families.is_empty() && self.table.limits == QuotaLimits::default()
    }

    /// The quotas after a comparison with what the families cost.
    #[must_use]
    pub fn next(&self, usage: &TableUsage, coverage: Coverage) -> Self {
        let mut sum = FamilyUsage::default();
        usage.values().for_each(|family| sum.add(*family));
        let of_family =
            |(id, quota): (&FamilyId, &Quota)| (*id, quota.next(&usage.get(id).copied().unwrap_or_default(), coverage));
        Self { table: self.table.next(&sum, coverage), families: self.families.iter().map(of_family).collect() }
    }

    /// Sets the limits of the table, or of a family.
    pub(crate) fn set(&mut self, family: Option<FamilyId>, limits: QuotaLimits) {
        let keep = |quota: Quota| Quota { limits, exceeded: quota.exceeded.filter(|what| limits.of(*what).is_some()) };
        match family {
            None => self.table = keep(self.table),
            Some(id) if limits == QuotaLimits::default() => _ = self.families.remove(&id),
            Some(id) => {
                let quota = self.families.entry(id).or_default();
                *quota = keep(*quota);
            }
        }
    }

    fn is_exceeded(&self) -> bool {
        self.table.exceeded.is_some() || self.families.values().any(|quota| quota.exceeded.is_some())
    }
}

impl TableSchema {
    /// The schema with these limits for the table, or for one family; its version is one higher.
    ///
    /// # Errors
    /// `NotFoundFamily`.
    pub fn with_quota(&self, family: Option<&str>, limits: QuotaLimits) -> Result<Self, Error> {
        let id = family.map(|name| self.require_family(name).map(|family| family.id)).transpose()?;
        let mut next = Self { version: self.version.next(), ..self.clone() };
        next.quotas.set(id, limits);
        Ok(next)
    }

    /// The schema after a comparison of its quotas; its version is one higher.
    #[must_use]
    pub fn with_compared_quotas(&self, usage: &TableUsage, coverage: Coverage) -> Self {
        Self { version: self.version.next(), quotas: self.quotas.next(usage, coverage), ..self.clone() }
    }

    /// The families whose quotas are exceeded.
    pub fn exceeded_families(&self) -> impl Iterator<Item = &str> {
        let exceeded = self.quotas.families.iter().filter(|(_id, quota)| quota.exceeded.is_some());
        exceeded.filter_map(|(id, _quota)| Some(self.family_by_id(*id)?.name.as_str()))
    }

    /// The refusal (`ResourceExhausted`) of changes that store cells beyond a quota; `None`: they are permitted.
    #[must_use]
    pub fn quota_refusal_of_changes(&self, changes: &[Change]) -> Option<Error> {
        self.quota_refusal(changes.iter().filter_map(Change::stored_family))
    }

    /// As [`Self::quota_refusal_of_changes`], for mutations of a request. Families that do not exist are permitted here.
    #[must_use]
    pub fn quota_refusal_of_mutations(&self, mutations: &[Mutation]) -> Option<Error> {
        let stored = mutations.iter().filter_map(Mutation::stored_family);
        self.quota_refusal(stored.filter_map(|name| Some(self.family_by_name(name)?.id)))
    }

    fn quota_refusal(&self, mut stored: impl Iterator<Item = FamilyId>) -> Option<Error> {
        if !self.quotas.is_exceeded() {
            return None;
        }
        stored.find_map(|family| {
            let of_family = self.quotas.families.get(&family).copied().unwrap_or_default();
            let name = self.family_by_id(family).map(|family| family.name.as_str()).unwrap_or_default();
            let exceeded = of_family.exceeded.map(|what| (of_family, what, format!("the column family {name}")));
            let table = self.quotas.table;
            let exceeded = exceeded.or_else(|| Some((table, table.exceeded?, "it".to_owned())))?;
            Some(self.refusal(exceeded))
        })
    }

    fn refusal(&self, (quota, measure, subject): (Quota, Measure, String)) -> Error {
        let limit = quota.limits.of(measure).unwrap_or_default();
        let limit = match measure {
            Measure::StoredBytes => readable_bytes(limit),
            Measure::Cells => format!("{limit} cells"),
        };
        let message = format!(
            "Table {}: {subject} has more than its quota of {limit}: delete cells, or change the quota with `ebla table quota`",
            self.name
        );
        Error::new(Reason::ResourceExhausted, message)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::cell::FamilyName;
    use crate::id::TableId;
    use crate::mutation::WriteTime;
    use crate::schema::{FamilyChange, TableName};
    use crate::time::Micros;

    fn schema() -> TableSchema {
        let name = TableName::from_parts("p", "i", "t").unwrap();
        let families = ["a", "b"].map(|family| (FamilyName::new(family).unwrap(), None));
        TableSchema::new(TableId::new(7), name, families).unwrap()
    }

    fn bytes(stored_bytes: u64) -> QuotaLimits {
        QuotaLimits { stored_bytes: Some(stored_bytes), cells: None }
    }

    fn id(schema: &TableSchema, family: &str) -> FamilyId {
        schema.require_family(family).unwrap().id
    }

    fn set(schema: &TableSchema, family: &str) -> Change {
        let (qualifier, value) = (Bytes::new(), Bytes::new());
        Change::SetCell { family: id(schema, family), qualifier, timestamp: Micros::ZERO, value }
    }

    /// The schema after a comparison with these stored bytes of `a` and `b`.
    fn compared(schema: &TableSchema, [a, b]: [u64; 2], coverage: Coverage) -> TableSchema {
        let of =
            |bytes| FamilyUsage { files_bytes: bytes / 2, unflushed_bytes: bytes - bytes / 2, ..Default::default() };
        let usage = [(id(schema, "a"), of(a)), (id(schema, "b"), of(b))].into_iter().collect();
        schema.with_compared_quotas(&usage, coverage)
    }

    fn refusal(schema: &TableSchema, family: &str) -> String {
        schema.quota_refusal_of_changes(&[set(schema, family)]).map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn a_family_beyond_its_quota_stores_nothing_more_and_others_do() {
        let schema = schema().with_quota(Some("a"), bytes(1 << 20)).unwrap();
        let at_limit = compared(&schema, [1 << 20, 9 << 20], Coverage::Whole);
        assert_eq!(refusal(&at_limit, "a"), "");
        let beyond = compared(&schema, [(1 << 20) + 1, 0], Coverage::Whole);
        assert!(refusal(&beyond, "a").contains("the column family a has more than its quota of 1.0 MiB"));
        assert_eq!(refusal(&beyond, "b"), "");
        let deletions = [Change::DeleteRow, Change::DeleteFamily(id(&beyond, "a"))];
        assert_eq!(beyond.quota_refusal_of_changes(&deletions), None, "deletions make room");
        let mutation = |family: &str| Mutation::SetCell {
            family: family.to_owned(),
            qualifier: Bytes::new(),
            timestamp: WriteTime::Server,
            value: Bytes::new(),
        };
        assert!(beyond.quota_refusal_of_mutations(&[mutation("b"), mutation("a")]).is_some());
        assert_eq!(beyond.quota_refusal_of_mutations(&[mutation("b"), mutation("absent"), Mutation::DeleteRow]), None);
        assert!(beyond.quota_refusal_of_changes(&[Change::DeleteRow, set(&beyond, "a")]).is_some());
    }

    #[test]
    fn the_quota_of_a_table_counts_all_families() {
        let schema = schema().with_quota(None, bytes(100)).unwrap();
        assert_eq!(refusal(&compared(&schema, [50, 50], Coverage::Whole), "b"), "");
        let beyond = compared(&schema, [50, 51], Coverage::Whole);
        assert!(refusal(&beyond, "a").contains("it has more than its quota of 100 B"), "{}", refusal(&beyond, "a"));
        assert_eq!(beyond.quotas.table.to_string(), "100 B: exceeded");
    }

    #[test]
    fn a_number_of_cells_is_limited_too() {
        let limits = QuotaLimits { stored_bytes: Some(1 << 30), cells: Some(10) };
        let schema = schema().with_quota(Some("b"), limits).unwrap();
        let usage = [(id(&schema, "b"), FamilyUsage { cells: 11, ..Default::default() })].into_iter().collect();
        let next = TableSchema { quotas: schema.quotas.next(&usage, Coverage::Whole), ..schema };
        assert!(refusal(&next, "b").contains("quota of 10 cells"));
    }

    #[test]
    fn a_quota_holds_again_when_enough_is_deleted() {
        let schema = schema().with_quota(None, bytes(1_000)).unwrap();
        let mut now = schema;
        let exceeded: Vec<bool> = [1_000, 1_001, 990, 981, 980, 1_000]
            .map(|used| {
                now = compared(&now, [used, 0], Coverage::Whole);
                now.quotas.table.exceeded.is_some()
            })
            .to_vec();
        assert_eq!(exceeded, [false, true, true, true, false, false]);
    }

    #[test]
    fn what_is_not_measured_may_be_large() {
        let schema = schema().with_quota(None, bytes(10)).unwrap();
        let beyond = compared(&schema, [11, 0], Coverage::Partial);
        assert!(beyond.quotas.table.exceeded.is_some(), "a part is enough to exceed it");
        let unknown = compared(&beyond, [0, 0], Coverage::Partial);
        assert!(unknown.quotas.table.exceeded.is_some(), "the rest may still be beyond it");
        assert!(compared(&unknown, [0, 0], Coverage::Whole).quotas.table.exceeded.is_none());
    }

    #[test]
    fn limits_change_and_disappear() {
        let beyond = compared(&schema().with_quota(Some("a"), bytes(10)).unwrap(), [11, 0], Coverage::Whole);
        let raised = beyond.with_quota(Some("a"), bytes(20)).unwrap();
        assert_eq!(raised.version, beyond.version.next());
        assert!(!refusal(&raised, "a").is_empty(), "until the next comparison");
        let none = beyond.with_quota(Some("a"), QuotaLimits::default()).unwrap();
        assert!(none.quotas.is_empty());
        assert_eq!(beyond.with_quota(Some("c"), bytes(1)).unwrap_err().reason, Reason::NotFoundFamily);
        let drop = FamilyChange::Drop { name: FamilyName::new("a").unwrap() };
        assert!(beyond.apply(&[drop]).unwrap().quotas.is_empty());
    }

    #[test]
    fn the_share_of_large_limits_does_not_overflow() {
        assert_eq!((share_of(u64::MAX), share_of(10), share_of(1_000)), (u64::MAX / 100 * 98 + 14, 9, 980));
    }
}
