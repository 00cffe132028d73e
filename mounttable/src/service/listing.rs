//! MountTable.Glob: a listing as messages.

use std::ops::ControlFlow;

use ebla_proto::mounttable as wire;
use ebla_proto::mounttable::glob_reply;

use crate::error::{Error, Reason};
use crate::service::{Outlet, count, messages};
use crate::table::{Found, Receive, Summary};

/// A listing on its way to who asked; a slow reader holds it up.
pub(super) struct Listing {
    outlet: Outlet<wire::GlobReply>,
}

impl Listing {
    /// Into this outlet.
    pub(super) const fn new(outlet: Outlet<wire::GlobReply>) -> Self {
        Self { outlet }
    }

    async fn send(&self, reply: glob_reply::Reply) -> Result<(), Error> {
        self.outlet.send(wire::GlobReply { reply: Some(reply) }).await
    }

    /// What may be missing, in words that say nothing else, and the summary.
    pub(super) async fn end(self, summary: Summary) -> Result<(), Error> {
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

impl Receive for Listing {
    async fn found(&mut self, found: Found) -> ControlFlow<()> {
        flow(self.send(glob_reply::Reply::Entry(messages::found(&found))).await)
    }

    async fn failed(&mut self, name: &str, error: &Error) -> ControlFlow<()> {
        let failure = Some(messages::failure(error));
        flow(self.send(glob_reply::Reply::Error(glob_reply::Error { name: name.to_owned(), failure })).await)
    }
}
