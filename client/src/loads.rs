//! The admin call for the loads of the whole cluster.

use ebla_model::error::Error;
use ebla_proto::operate;

use crate::admin::{Admin, into_message};

/// Whether a request for loads measures quotas too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaMeasurement {
    /// It does not.
    Skipped,
    /// The tables that have quotas are measured, which asks every server for each of them; at most 100 tables.
    Measured,
}

impl Admin {
    /// The loads of the tables, and those of the busiest `tablets_max` tablets of the whole cluster, at most 1,000.
    ///
    /// # Errors
    /// `Unimplemented` while the active master runs a release that does not know the call; `Unavailable` when no master is active;
    /// `PermissionDenied` for a caller who is no administrator.
    pub async fn loads(&self, tablets_max: u32, quotas: QuotaMeasurement) -> Result<operate::LoadsReply, Error> {
        let message = operate::LoadsRequest { tablets_max, quotas: quotas == QuotaMeasurement::Measured };
        into_message(self.operate().loads(self.request(message)).await)
    }
}
