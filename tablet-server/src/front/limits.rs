//! How long a call may take and how large it may be.
//!
//! Every call has a deadline: the caller's (`grpc-timeout`), else a default. It is made here once and handed down.

use std::time::Duration;

use tonic::metadata::MetadataMap;

use crate::limits::{LIMIT_MAX, given};

/// The largest message taken. A row may have 256 MiB; a single write of 100 MiB is legal.
pub const MESSAGE_BYTES_MAX: usize = 256 << 20;
/// Deadline of a call whose caller gave none.
pub const CALL: Duration = Duration::from_secs(60);
/// Deadline of a read whose caller gave none: a scan of a large table is one call.
pub const READ: Duration = Duration::from_secs(10 * 60);
/// How long before its caller's deadline a call is answered, but for short ones.
const MARGIN: Duration = Duration::from_millis(100);
/// Answers that list outcomes are cut into messages of about this size. Clients without TLS take at most 4 MiB.
pub const ANSWER_BYTES: usize = 1 << 20;

/// How long the call with this metadata may take, `otherwise` if its caller does not say.
///
/// An answer is given a little before the caller stops listening, so that it hears why there is no better one. A header
/// that cannot be read counts as none: refusing the call would help nobody.
pub fn timeout(metadata: &MetadataMap, otherwise: Duration) -> Duration {
    given(metadata).map(|limit| limit.saturating_sub(MARGIN.min(limit / 20))).unwrap_or(otherwise).min(LIMIT_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_without_patience_gets_the_default_and_nobody_waits_for_ever() {
        let mut metadata = MetadataMap::new();
        assert_eq!(timeout(&metadata, CALL), CALL);
        metadata.insert("grpc-timeout", "99999999H".parse().unwrap());
        assert_eq!(timeout(&metadata, CALL), LIMIT_MAX);
        metadata.insert("grpc-timeout", "10S".parse().unwrap());
        assert_eq!(timeout(&metadata, CALL), Duration::from_millis(9900));
        metadata.insert("grpc-timeout", "soon".parse().unwrap());
        assert_eq!(timeout(&metadata, READ), READ);
    }
}
