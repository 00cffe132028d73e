//! Election guard: request metadata with the longest election timeout of the sender, because leases are safe only between servers with equal ones.
//!
//! A leader serves reads by its lease during its own timeout. Its followers elect no other leader during theirs. If their timeout were shorter, an old leader
//! could serve reads beside a new one.

use std::time::Duration;

use ebla_model::error::{Error, Reason};
use tonic::Request;
use tonic::metadata::{MetadataMap, MetadataValue};

const KEY: &str = "ebla-election-max-millis";

/// Adds the longest election timeout of the sender to a request.
pub(in crate::raft) fn with_election_max<T>(mut request: Request<T>, election_max: Duration) -> Request<T> {
    let millis = u64::try_from(election_max.as_millis()).unwrap_or(u64::MAX);
    request.metadata_mut().insert(KEY, MetadataValue::from(millis));
    request
}

/// Accepts requests of servers with the same election timeout, and of those that say none.
///
/// # Errors
/// `FailedPrecondition` for another timeout.
pub(super) fn check_election_max(metadata: &MetadataMap, own: Duration) -> Result<(), Error> {
    let Some(said) = metadata.get(KEY) else { return Ok(()) };
    let theirs = said.to_str().ok().and_then(|text| text.parse().ok()).map(Duration::from_millis);
    if theirs == Some(own) {
        return Ok(());
    }
    let theirs = theirs.map_or_else(|| "another one".to_owned(), |theirs| format!("{theirs:?}"));
    let message = format!(
        "this server has an election timeout of {own:?}, and the sender {theirs}: all servers must run releases with equal ones"
    );
    Err(Error::new(Reason::FailedPrecondition, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_timeout_is_refused_and_a_missing_one_is_not() {
        let own = Duration::from_secs(1);
        let check = |theirs| check_election_max(with_election_max(Request::new(()), theirs).metadata(), own);
        assert_eq!(check(own), Ok(()));
        let refused = check(Duration::from_millis(900)).unwrap_err();
        assert_eq!(refused.reason, Reason::FailedPrecondition);
        assert!(refused.message.contains("an election timeout of 1s, and the sender 900ms"), "{refused}");
        assert_eq!(check_election_max(Request::new(()).metadata(), own), Ok(()), "an earlier release says none");
        let mut metadata = MetadataMap::new();
        metadata.insert(KEY, MetadataValue::from_static("nonsense"));
        assert!(check_election_max(&metadata, own).is_err());
    }
}
