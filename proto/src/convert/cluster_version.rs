//! Cluster versions: the active one in the cluster's record, and those that a process registers.

use bytes::Bytes;
use ebla_model::cluster_version::{ClusterVersion, SupportedVersions};
use prost::Message;

use super::VERSION;
use crate::record;

/// The version of a cluster record with an active version above the first: releases before cluster versions refuse it.
pub(super) const ACTIVE_VERSION: u32 = 2;

/// The active version of a cluster.
pub const fn active_version(cluster: &record::Cluster) -> ClusterVersion {
    ClusterVersion::new(cluster.active_version)
}

/// A cluster record as stored in Chubby. Sets its version.
pub fn cluster_to_bytes(cluster: record::Cluster) -> Bytes {
    let has_first = active_version(&cluster) == ClusterVersion::FIRST;
    let version = if has_first { VERSION } else { ACTIVE_VERSION };
    record::Cluster { version, ..cluster }.encode_to_vec().into()
}

/// The versions that a process supports.
pub const fn supported_to_proto(versions: SupportedVersions) -> record::SupportedVersions {
    record::SupportedVersions { oldest: versions.oldest.get(), newest: versions.newest.get() }
}

/// The versions that a process supports. Without a message it runs a release before cluster versions.
pub fn supported_from_proto(versions: Option<&record::SupportedVersions>) -> SupportedVersions {
    versions.map_or(SupportedVersions::UNREGISTERED, |versions| SupportedVersions {
        oldest: ClusterVersion::new(versions.oldest),
        newest: ClusterVersion::new(versions.newest),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convert::decode_record;

    #[test]
    fn supported_versions_round_trip_and_are_the_first_without_a_message() {
        let own = SupportedVersions::OWN;
        assert_eq!(supported_from_proto(Some(&supported_to_proto(own))), own);
        assert_eq!(supported_from_proto(None), SupportedVersions::UNREGISTERED);
    }

    #[test]
    fn earlier_releases_read_a_cluster_record_until_a_later_version_is_active() {
        let stored = |active_version| {
            let bytes = cluster_to_bytes(record::Cluster { active_version, ..Default::default() });
            decode_record::<record::Cluster>(bytes).unwrap()
        };
        for (active, version) in [(0, VERSION), (1, VERSION), (2, ACTIVE_VERSION), (3, ACTIVE_VERSION)] {
            assert_eq!((stored(active).version, stored(active).active_version), (version, active));
        }
        let later = record::Cluster { version: ACTIVE_VERSION + 1, ..Default::default() };
        assert!(decode_record::<record::Cluster>(&later.encode_to_vec()[..]).is_err());
    }
}
