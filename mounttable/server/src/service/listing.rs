//! MountTable.Glob: a listing as messages.

use std::ops::ControlFlow;

use ebla_mounttable_tree::error::{Error, Reason};
use ebla_mounttable_tree::table::{GlobMatch, GlobSink, GlobSummary};
use ebla_proto::mounttable as wire;
use ebla_proto::mounttable::glob_reply;

use crate::service::{ReplySink, count, messages};

/// A listing in progress; a slow reader delays it.
pub(super) struct Listing {
    sink: ReplySink<wire::GlobReply>,
}

impl Listing {
    /// A listing that is sent to this sink.
    pub(super) const fn new(sink: ReplySink<wire::GlobReply>) -> Self {
        Self { sink }
    }

    async fn send(&self, reply: glob_reply::Reply) -> Result<(), Error> {
        self.sink.send(wire::GlobReply { reply: Some(reply) }).await
    }

    /// Sends a vague error if matches may be missing, and the summary.
    pub(super) async fn end(self, summary: GlobSummary) -> Result<(), Error> {
        if summary.has_omitted {
            let vague = Error::new(Reason::MatchesOmitted, "some matches might have been omitted");
            let error = glob_reply::Error { name: String::new(), failure: Some(messages::failure(&vague)) };
            self.send(glob_reply::Reply::Error(error)).await?;
        }
        let entries = count(summary.found);
        self.send(glob_reply::Reply::Summary(glob_reply::Summary { entries, omitted: summary.has_omitted })).await
    }
}

fn flow(sent: Result<(), Error>) -> ControlFlow<()> {
    sent.map_or(ControlFlow::Break(()), ControlFlow::Continue)
}

impl GlobSink for Listing {
    /// Ends the listing when the reader has gone, although nothing is found that could be sent. Other requests run first.
    async fn next_page(&mut self) -> ControlFlow<()> {
        tokio::task::yield_now().await;
        if self.sink.is_open() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }

    async fn found(&mut self, found: GlobMatch) -> ControlFlow<()> {
        flow(self.send(glob_reply::Reply::Entry(messages::found(&found))).await)
    }

    async fn failed(&mut self, name: &str, error: &Error) -> ControlFlow<()> {
        let failure = Some(messages::failure(error));
        flow(self.send(glob_reply::Reply::Error(glob_reply::Error { name: name.to_owned(), failure })).await)
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;

    /// Nothing matches, so there is nothing whose sending could fail.
    #[tokio::test]
    async fn a_listing_ends_at_its_next_page_when_its_reader_has_gone() {
        let (sender, reader) = mpsc::channel(1);
        let mut listing = Listing::new(ReplySink(sender));
        assert_eq!(listing.next_page().await, ControlFlow::Continue(()));
        drop(reader);
        assert_eq!(listing.next_page().await, ControlFlow::Break(()));
    }
}
