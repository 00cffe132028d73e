//! What a cluster says about itself: its events, and its registration in Chubby.

use ebla_model::error::Error;
use ebla_model::id::{ServerId, TableId};
use ebla_model::time::Micros;
use ebla_proto::operate;

use crate::admin::{Admin, into_message};

/// An event of the cluster as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterEvent {
    /// Ascends with the events of a cluster.
    pub number: u64,
    /// When it was recorded.
    pub time: Micros,
    /// What has happened: a name of `ebla_model::cluster_event`.
    pub what: String,
    /// Why: a name of `ebla_model::cluster_event`.
    pub cause: String,
    /// The tablet server that it has happened to, if there is one.
    pub server: Option<ServerId>,
    /// The table that it has happened to, if there is one.
    pub table: Option<TableId>,
    /// More about it.
    pub detail: String,
}

impl Admin {
    /// The events of the cluster with a number greater than `after`, ascending; 0: all that are kept, the last five hundred. Events of
    /// tablets are in METADATA.
    ///
    /// # Errors
    /// `Unimplemented` from a master of an earlier release; `PermissionDenied`, with access control, for callers who are no administrators;
    /// `Unavailable` without an active master.
    pub async fn cluster_events(&self, after: u64) -> Result<Vec<ClusterEvent>, Error> {
        let reply = into_message(self.operate().events(self.request(operate::EventsRequest { after })).await)?;
        let event = |numbered: operate::NumberedEvent| {
            let event = numbered.event?;
            Some(ClusterEvent {
                number: numbered.number,
                time: Micros::new(event.time_micros),
                what: event.what,
                cause: event.cause,
                server: (event.server > 0).then(|| ServerId::new(event.server)),
                table: (event.table > 0).then(|| TableId::new(event.table)),
                detail: event.detail,
            })
        };
        Ok(reply.events.into_iter().filter_map(event).collect())
    }

    /// What the cluster has registered about itself in Chubby.
    ///
    /// # Errors
    /// As [`Self::cluster_events`].
    pub async fn describe_cluster(&self) -> Result<operate::DescribeClusterReply, Error> {
        into_message(self.operate().describe_cluster(self.request(operate::DescribeClusterRequest {})).await)
    }
}
