//! Cluster-id guard: request metadata with the sender's cluster id, because a stored address may belong to another cluster by
//! now.
//!
//! Each cluster counts ids of tablets, replicas and servers from one, so a message that reaches a server of another cluster,
//! through an old address, would name existing tablets there. A sender that knows its cluster id sends it; a receiver refuses
//! another cluster's id. A request without an id is accepted: before a cluster's first tablets exist its id is unknown.
//!
//! Messages of Raft also say the newest cluster version that the sender supports. A receiver refuses one that does not support the
//! active version: it runs an earlier release, cannot register, and must not take part in elections either.

use ebla_model::cluster_version::{ClusterVersion, SupportedVersions};
use ebla_model::error::{Error, Reason};
use ebla_model::id::ClusterId;
use tonic::Request;
use tonic::metadata::{MetadataMap, MetadataValue};

const KEY: &str = "ebla-cluster";
const NEWEST_KEY: &str = "ebla-newest-version";

/// Adds the sender's cluster id to a request.
pub fn with_cluster_id<T>(mut request: Request<T>, cluster: Option<ClusterId>) -> Request<T> {
    let value = cluster.and_then(|cluster| MetadataValue::try_from(cluster.to_string()).ok());
    if let Some(value) = value {
        request.metadata_mut().insert(KEY, value);
    }
    request
}

/// Accepts requests of this cluster, and those without a cluster id.
///
/// # Errors
/// `Unavailable` for another cluster: nothing was applied, and the sender must look up the address again.
pub fn check_cluster_id(metadata: &MetadataMap, own: Option<ClusterId>) -> Result<(), Error> {
    let (Some(own), Some(said)) = (own, metadata.get(KEY)) else { return Ok(()) };
    let theirs = said.to_str().ok().and_then(|text| text.parse::<ClusterId>().ok());
    if theirs == Some(own) {
        return Ok(());
    }
    Err(Error::new(Reason::Unavailable, format!("stale address: this server belongs to cluster {own}")))
}

/// Adds the newest cluster version that the sender supports to a request.
pub fn with_newest_version<T>(mut request: Request<T>, sender: SupportedVersions) -> Request<T> {
    request.metadata_mut().insert(NEWEST_KEY, MetadataValue::from(sender.newest.get()));
    request
}

/// Accepts requests of processes that support the active version. One that says none supports the first.
///
/// # Errors
/// `FailedPrecondition` for one that does not support it.
pub fn check_newest_version(metadata: &MetadataMap, active: ClusterVersion) -> Result<(), Error> {
    let said = metadata.get(NEWEST_KEY).and_then(|newest| newest.to_str().ok()).and_then(|text| text.parse().ok());
    let newest = said.map_or(ClusterVersion::FIRST, ClusterVersion::new);
    if newest >= active {
        return Ok(());
    }
    let message = format!(
        "the sender supports cluster versions up to {newest}, and version {active} is active: it must run a later release"
    );
    Err(Error::new(Reason::FailedPrecondition, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_cluster_is_refused_and_a_missing_id_is_not() {
        let (ours, theirs) = (Some(ClusterId::new(5)), Some(ClusterId::new(6)));
        let admitted = |from, own| check_cluster_id(with_cluster_id(Request::new(()), from).metadata(), own).is_ok();
        assert!(admitted(ours, ours) && admitted(None, ours) && admitted(ours, None) && admitted(None, None));
        assert!(!admitted(theirs, ours));
        let mut metadata = MetadataMap::new();
        metadata.insert(KEY, MetadataValue::from_static("nonsense"));
        assert!(check_cluster_id(&metadata, ours).is_err());
    }

    #[test]
    fn a_sender_that_does_not_support_the_active_version_is_refused() {
        let (silent, ours) = (Request::new(()), with_newest_version(Request::new(()), SupportedVersions::OWN));
        assert_eq!(check_newest_version(silent.metadata(), ClusterVersion::FIRST), Ok(()));
        assert_eq!(check_newest_version(ours.metadata(), ClusterVersion::NEWEST), Ok(()));
        let refused = check_newest_version(silent.metadata(), ClusterVersion::RECORDED).unwrap_err();
        assert_eq!(refused.reason, Reason::FailedPrecondition);
        assert!(refused.message.contains("supports cluster versions up to 1, and version 2 is active"), "{refused}");
        assert!(check_newest_version(ours.metadata(), ClusterVersion::NEWEST.next()).is_err());
    }
}
