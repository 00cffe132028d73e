//! MountTable.BatchResolve: a reply of bounded size.
//!
//! A name may have many thousands of servers, and a request may repeat it. When the reply is full, the other names are
//! refused without a lookup: the caller resolves them in another batch.

use ebla_mounttable_tree::error::{Error, Reason};
use ebla_mounttable_tree::identity::Caller;
use ebla_mounttable_tree::table::Resolved;
use ebla_proto::mounttable::batch_resolve_reply;

use crate::service::messages;

/// The largest size of a reply, unless it contains one entry only: common clients accept messages of 4 MiB.
const REPLY_BYTES_MAX: usize = 3 << 20;

/// The size of an entry or a server besides its text: tags, lengths, deadline and flags.
const OVERHEAD_BYTES: usize = 32;

/// A reply to which results are added in any order.
pub(super) struct Batch {
    results: Vec<batch_resolve_reply::Result>,
    bytes: usize,
    is_full: bool,
}

impl Batch {
    /// A reply for this number of names.
    pub(super) fn new(names: usize) -> Self {
        Self { results: vec![batch_resolve_reply::Result::default(); names], bytes: 0, is_full: false }
    }

    /// Whether an entry did not fit.
    pub(super) const fn is_full(&self) -> bool {
        self.is_full
    }

    /// Adds the result for the name at `position`, or its refusal if the entry does not fit. The first entry always does.
    pub(super) fn add(&mut self, position: usize, found: Result<Resolved, Error>, caller: &Caller) {
        match found {
            Ok(found) => {
                let bytes = self.bytes.saturating_add(size(&found));
                if self.bytes > 0 && bytes > REPLY_BYTES_MAX {
                    return self.refuse(position);
                }
                self.bytes = bytes;
                let entry = messages::resolved(&found, caller, 0);
                self.set(position, batch_resolve_reply::result::Result::Entry(entry));
            }
            Err(error) => self.fail(position, &error),
        }
    }

    /// Refuses the name at `position`, because the reply is full.
    pub(super) fn refuse(&mut self, position: usize) {
        self.is_full = true;
        let wrong = format!("the reply has reached {} MiB: resolve this name in another batch", REPLY_BYTES_MAX >> 20);
        self.fail(position, &Error::new(Reason::BadRequest, wrong));
    }

    /// The results in the order of the names.
    pub(super) fn into_results(self) -> Vec<batch_resolve_reply::Result> {
        self.results
    }

    fn fail(&mut self, position: usize, error: &Error) {
        self.set(position, batch_resolve_reply::result::Result::Failure(messages::failure(error)));
    }

    fn set(&mut self, position: usize, result: batch_resolve_reply::result::Result) {
        if let Some(place) = self.results.get_mut(position) {
            place.result = Some(result);
        }
    }
}

/// The approximate size of an entry in a message, at least 1.
fn size(found: &Resolved) -> usize {
    let servers = found.servers.iter().map(|server| server.address.as_str().len().saturating_add(OVERHEAD_BYTES));
    servers.sum::<usize>().saturating_add(found.suffix.len()).saturating_add(OVERHEAD_BYTES)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ebla_mounttable_tree::identity::UserId;
    use ebla_mounttable_tree::mount::{Deadline, MountedServer, Target};
    use ebla_mounttable_tree::store::Freshness;

    use super::*;

    fn found(servers: usize) -> Resolved {
        let server = |number: usize| MountedServer {
            address: format!("{}:{number}", "h".repeat(900)).parse().unwrap(),
            target: Target::Object,
            deadline: Deadline::FOREVER,
            ttl: Duration::ZERO,
            mounter: UserId::server(),
        };
        Resolved { servers: (1..=servers).map(server).collect(), suffix: String::new(), freshness: Freshness::Recent }
    }

    /// The kinds of the results: an entry, a failure, or nothing.
    fn kinds(batch: Batch) -> String {
        let kind = |result: batch_resolve_reply::Result| match result.result {
            Some(batch_resolve_reply::result::Result::Entry(_)) => 'e',
            Some(batch_resolve_reply::result::Result::Failure(_)) => 'f',
            None => '-',
        };
        batch.into_results().into_iter().map(kind).collect()
    }

    #[test]
    fn a_reply_is_bounded_but_has_one_entry_of_any_size() {
        let caller = Caller::new(Vec::new(), &[]);
        let mut batch = Batch::new(4);
        batch.add(2, Ok(found(5_000)), &caller);
        assert!(!batch.is_full());
        batch.add(0, Ok(found(1)), &caller);
        assert!(batch.is_full());
        batch.add(1, Err(Error::new(Reason::NoSuchName, "no")), &caller);
        assert_eq!(kinds(batch), "ffe-");
        let mut batch = Batch::new(5);
        (0..5).for_each(|position| batch.add(position, Ok(found(1_000)), &caller));
        assert_eq!(kinds(batch), "eeeff");
    }
}
