//! Cluster versions: which formats and requests the processes of a cluster may use among each other.
//!
//! Every release supports a range of versions, and each process registers it. One version is *active* in a cluster: the master raises
//! it when every process supports a later one; it never falls. A process writes and sends only what the active version
//! allows, so while a release is being rolled out, the previous one can read everything, and servers can go back to it. A process
//! whose range does not contain the active version does not start.
//!
//! To add a format or a request that an earlier release cannot read: add a version with [`ClusterVersion::NEWEST`] raised to it,
//! add a variant to [`Feature`], and call [`Feature::check`] before the new form is used. The oldest supported version rises only when a
//! release stops reading what processes of that version write.

use std::fmt;

use crate::error::{Error, Reason};
use crate::schema::TableSchema;

/// A version of the formats and requests of a cluster.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ClusterVersion(u32);

impl ClusterVersion {
    /// The version of a cluster that records none: releases before cluster versions.
    pub const FIRST: Self = Self(1);
    /// The first one that is recorded. Schemas of tables may have the content of [`Feature`].
    pub const RECORDED: Self = Self(2);
    /// The newest one that this release supports.
    pub const NEWEST: Self = Self::RECORDED;

    /// The version with this number; 0, which an absent field has, is the first one.
    #[must_use]
    pub const fn new(number: u32) -> Self {
        if number == 0 { Self::FIRST } else { Self(number) }
    }

    /// Its number.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The one that follows.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl Default for ClusterVersion {
    fn default() -> Self {
        Self::FIRST
    }
}

impl fmt::Display for ClusterVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The versions that a process supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SupportedVersions {
    /// The oldest.
    pub oldest: ClusterVersion,
    /// The newest, not below the oldest.
    pub newest: ClusterVersion,
}

impl SupportedVersions {
    /// Those of this release.
    pub const OWN: Self = Self { oldest: ClusterVersion::FIRST, newest: ClusterVersion::NEWEST };
    /// Those of a process that registers none: it runs a release before cluster versions.
    pub const UNREGISTERED: Self = Self { oldest: ClusterVersion::FIRST, newest: ClusterVersion::FIRST };

    /// Whether a process that supports these can be in a cluster with this active version.
    #[must_use]
    pub fn contains(&self, active: ClusterVersion) -> bool {
        (self.oldest..=self.newest).contains(&active)
    }

    /// Checks that a process of this release can be in a cluster with this active version. `release`: that of the process.
    ///
    /// # Errors
    /// `FailedPrecondition` when it cannot, with the release to start instead.
    pub fn check(&self, active: ClusterVersion, release: &str) -> Result<(), Error> {
        if self.contains(active) {
            return Ok(());
        }
        let (wrong, instead) = if active > self.newest {
            ("older", "the release of the other servers, or a later one")
        } else {
            ("newer", "an earlier release first, and wait until the cluster has changed to a version that both support")
        };
        let message = format!(
            "release {release} supports cluster versions {self} and is {wrong} than this cluster, in which version {active} is active: start \
             {instead} (ebla cluster upgrade status shows the releases of all processes)"
        );
        Err(Error::new(Reason::FailedPrecondition, message))
    }
}

impl fmt::Display for SupportedVersions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.oldest == self.newest { self.newest.fmt(f) } else { write!(f, "{} to {}", self.oldest, self.newest) }
    }
}

/// What needs a later version than the first. Each names what the user asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Feature {
    /// Column families that aggregate: records of schemas from version 2 on.
    AggregateFamilies,
    /// Locality groups with a name or options: records of schemas from version 3 on.
    LocalityGroups,
    /// Quotas: records of schemas from version 4 on.
    Quotas,
    /// Copies of tablets that begin before the tablet departs: steps of moves (`crate::tablet_move`).
    CopiesAhead,
    /// Key heat: its table, whose name earlier releases cannot read.
    KeyHeat,
    /// Commands with the leader's clock, which bounds the time at which cells age.
    LeaderClocks,
}

impl Feature {
    /// The first version in which it may be used.
    #[must_use]
    pub const fn since(self) -> ClusterVersion {
        match self {
            Self::AggregateFamilies
            | Self::LocalityGroups
            | Self::Quotas
            | Self::CopiesAhead
            | Self::KeyHeat
            | Self::LeaderClocks => ClusterVersion::RECORDED,
        }
    }

    /// Its name in messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::AggregateFamilies => "aggregate column families",
            Self::LocalityGroups => "locality groups",
            Self::Quotas => "quotas",
            Self::CopiesAhead => "copies of tablets ahead of their moves",
            Self::KeyHeat => "key heat maps",
            Self::LeaderClocks => "commands with the leader's clock",
        }
    }

    /// Whether a table uses it.
    #[must_use]
    pub fn is_used_by(self, schema: &TableSchema) -> bool {
        match self {
            Self::AggregateFamilies => schema.families.iter().any(|family| family.aggregator.is_some()),
            Self::LocalityGroups => !schema.locality_groups.is_empty(),
            Self::Quotas => !schema.quotas.is_empty(),
            Self::CopiesAhead | Self::KeyHeat | Self::LeaderClocks => false,
        }
    }

    /// Whether the feature may be used while the cluster version `active` is active.
    #[must_use]
    pub fn is_active(self, active: ClusterVersion) -> bool {
        active >= self.since()
    }

    /// Checks that it may be used.
    ///
    /// # Errors
    /// `FailedPrecondition` while an earlier version is active.
    pub fn check(self, active: ClusterVersion) -> Result<(), Error> {
        if self.is_active(active) {
            return Ok(());
        }
        let message = format!(
            "{} need cluster version {}, and version {active} is active until all masters and tablet servers run a release that \
             supports it: see ebla cluster upgrade status",
            self.name(),
            self.since()
        );
        Err(Error::new(Reason::FailedPrecondition, message))
    }

    /// Checks that a table may be changed to `after`. `before`: its present schema, unless it is new. What a table uses already does not
    /// count: every process can read that.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub fn check_schema(
        before: Option<&TableSchema>,
        after: &TableSchema,
        active: ClusterVersion,
    ) -> Result<(), Error> {
        let all = [Self::AggregateFamilies, Self::LocalityGroups, Self::Quotas];
        let added =
            |feature: &Self| feature.is_used_by(after) && !before.is_some_and(|before| feature.is_used_by(before));
        all.into_iter().filter(added).try_for_each(|feature| feature.check(active))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::FamilyName;
    use crate::id::TableId;
    use crate::quota::QuotaLimits;
    use crate::schema::TableName;

    fn range(oldest: u32, newest: u32) -> SupportedVersions {
        SupportedVersions { oldest: ClusterVersion::new(oldest), newest: ClusterVersion::new(newest) }
    }

    #[test]
    fn a_record_without_a_version_has_the_first_one() {
        assert_eq!(ClusterVersion::new(0), ClusterVersion::FIRST);
        assert_eq!(ClusterVersion::default(), ClusterVersion::FIRST);
        assert!(
            SupportedVersions::OWN.contains(ClusterVersion::FIRST),
            "this release joins clusters of the previous one"
        );
        assert!(SupportedVersions::OWN.contains(ClusterVersion::NEWEST));
    }

    #[test]
    fn a_process_outside_its_range_is_refused_and_says_what_to_start() {
        for active in 2..=3 {
            assert_eq!(range(2, 3).check(ClusterVersion::new(active), "1.0"), Ok(()));
        }
        let old = range(1, 2).check(ClusterVersion::new(3), "0.9").unwrap_err();
        assert_eq!(old.reason, Reason::FailedPrecondition);
        assert_eq!(
            old.message,
            "release 0.9 supports cluster versions 1 to 2 and is older than this cluster, in which version 3 is active: start the \
             release of the other servers, or a later one (ebla cluster upgrade status shows the releases of all processes)"
        );
        let new = range(4, 4).check(ClusterVersion::new(3), "1.2").unwrap_err();
        assert!(new.message.contains("supports cluster versions 4 and is newer than this cluster"), "{new}");
        assert!(new.message.contains("start an earlier release first"), "{new}");
    }

    #[test]
    fn a_table_gets_a_feature_only_when_the_version_is_active() {
        let (old, new) = (ClusterVersion::FIRST, ClusterVersion::NEWEST);
        let name = TableName::from_parts("p", "i", "t").unwrap();
        let families = [(FamilyName::new("a").unwrap(), None)];
        let plain = TableSchema::new(TableId::new(7), name, families).unwrap();
        let limits = QuotaLimits { cells: Some(5), ..QuotaLimits::default() };
        let with_quota = plain.with_quota(None, limits).unwrap();
        assert_eq!(Feature::check_schema(None, &plain, old), Ok(()));
        assert_eq!(Feature::check_schema(Some(&plain), &with_quota, new), Ok(()));
        let refused = Feature::check_schema(Some(&plain), &with_quota, old).unwrap_err();
        assert_eq!(refused.reason, Reason::FailedPrecondition);
        assert!(
            refused.message.starts_with("quotas need cluster version 2, and version 1 is active until all"),
            "{refused}"
        );
        assert!(Feature::check_schema(None, &with_quota, old).is_err(), "a new table");
        assert_eq!(Feature::check_schema(Some(&with_quota), &with_quota, old), Ok(()), "nothing is added");
    }

    #[test]
    fn every_feature_can_be_activated_by_this_release() {
        let all = [
            Feature::AggregateFamilies,
            Feature::LocalityGroups,
            Feature::Quotas,
            Feature::CopiesAhead,
            Feature::KeyHeat,
            Feature::LeaderClocks,
        ];
        for feature in all {
            assert!(SupportedVersions::OWN.contains(feature.since()), "{}", feature.name());
            assert_eq!(feature.check(feature.since()), Ok(()));
        }
    }
}
