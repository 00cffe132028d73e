//! Which cluster a message comes from: metadata between servers, because an address may be a stranger's by now.
//!
//! Ids of tablets, replicas and servers are counted in each cluster from one, so a message that reaches a server of another cluster, at an
//! address that was one of ours once, would find what it names. Who knows its cluster says so; who is told of another one refuses.
//! Silence is no refusal: before a cluster's first tablets nobody knows its id.

use ebla_model::error::{Error, Reason};
use ebla_model::id::ClusterId;
use tonic::Request;
use tonic::metadata::{MetadataMap, MetadataValue};

const KEY: &str = "ebla-cluster";

/// The request, with the cluster that it comes from.
pub fn from_cluster<T>(mut request: Request<T>, cluster: Option<ClusterId>) -> Request<T> {
    let value = cluster.and_then(|cluster| MetadataValue::try_from(cluster.to_string()).ok());
    if let Some(value) = value {
        request.metadata_mut().insert(KEY, value);
    }
    request
}

/// Lets in what is of this cluster, or does not say.
///
/// # Errors
/// `Unavailable` when it is of another one: nothing was done, and the sender is to look elsewhere.
pub fn admit(metadata: &MetadataMap, own: Option<ClusterId>) -> Result<(), Error> {
    let (Some(own), Some(said)) = (own, metadata.get(KEY)) else { return Ok(()) };
    let theirs = said.to_str().ok().and_then(|text| text.parse::<ClusterId>().ok());
    if theirs == Some(own) {
        return Ok(());
    }
    Err(Error::new(Reason::Unavailable, format!("a server of cluster {own} is here: the address is an old one")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stranger_is_refused_and_who_is_silent_is_not() {
        let (ours, theirs) = (Some(ClusterId::new(5)), Some(ClusterId::new(6)));
        let admitted = |from, own| admit(from_cluster(Request::new(()), from).metadata(), own).is_ok();
        assert!(admitted(ours, ours) && admitted(None, ours) && admitted(ours, None) && admitted(None, None));
        assert!(!admitted(theirs, ours));
        let mut metadata = MetadataMap::new();
        metadata.insert(KEY, MetadataValue::from_static("nonsense"));
        assert!(admit(&metadata, ours).is_err());
    }
}
