//! Admin calls for the records of operations.

use ebla_model::error::Error;
use ebla_proto::trace::traces_client::TracesClient;
use ebla_proto::trace::{ListReply, ListRequest};

use crate::admin::{Admin, into_message};
use crate::channel::MESSAGE_BYTES_MAX;

impl Admin {
    /// The records of slow, failed and sampled operations of the servers, as far as the caller may see them.
    ///
    /// # Errors
    /// `PermissionDenied` for a table that the caller may not see, `Unauthenticated`, `Unimplemented` by a server of an earlier release;
    /// `Unavailable`.
    pub async fn traces(&self, request: ListRequest) -> Result<ListReply, Error> {
        let mut client = TracesClient::new(self.caller()).max_decoding_message_size(MESSAGE_BYTES_MAX);
        into_message(client.list(self.request(request)).await)
    }
}
