//! Receiver guard: request metadata with the server that a message is for, because its address may belong to another server by now.
//!
//! A server whose folder was emptied joins again at the same address, with a new id. Until its peers know, their messages to its former replicas
//! reach it. It must not take part for these: it has forgotten their votes and their entries, and an empty replica of a divided group
//! would be created for the first message. So a receiver refuses what is for another server.

use ebla_model::error::{Error, Reason};
use ebla_model::id::ServerId;
use ebla_runtime::Failpoint;
use tonic::Request;
use tonic::metadata::{MetadataMap, MetadataValue};

const KEY: &str = "ebla-to-server";

/// Adds the server that a request is for.
pub(in crate::raft) fn with_receiver<T>(mut request: Request<T>, server: ServerId) -> Request<T> {
    request.metadata_mut().insert(KEY, MetadataValue::from(server.get()));
    request
}

/// Accepts requests for this server, and those that name none: an earlier release sent them.
///
/// # Errors
/// `Unavailable` for another server: nothing was applied.
pub(super) fn check_receiver(metadata: &MetadataMap, own: ServerId) -> Result<(), Error> {
    let Some(said) = metadata.get(KEY) else { return Ok(()) };
    let server = said.to_str().ok().and_then(|text| text.parse().ok()).map(ServerId::new);
    if server == Some(own) || Failpoint::ReceiverUnchecked.is_enabled() {
        return Ok(());
    }
    let theirs = server.map_or_else(|| "another server".to_owned(), |server| format!("server {server}"));
    let message = format!("stale address: this is server {own}, and the message is for {theirs}");
    Err(Error::new(Reason::Unavailable, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_receiver_is_refused_and_a_missing_one_is_not() {
        let own = ServerId::new(5);
        let check = |server| check_receiver(with_receiver(Request::new(()), server).metadata(), own);
        assert_eq!(check(own), Ok(()));
        let refused = check(ServerId::new(3)).unwrap_err();
        assert_eq!(refused.reason, Reason::Unavailable);
        assert!(refused.message.contains("this is server 5, and the message is for server 3"), "{refused}");
        assert_eq!(check_receiver(Request::new(()).metadata(), own), Ok(()));
        let mut metadata = MetadataMap::new();
        metadata.insert(KEY, MetadataValue::from_static("nonsense"));
        assert!(check_receiver(&metadata, own).is_err());
    }
}
