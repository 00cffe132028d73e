//! One user of a mounttable, who speaks to one server of it.

use std::time::Duration;

use ebla_mounttable::service::identity::DEVELOPMENT_HEADER;
use ebla_mounttable::service::messages;
use ebla_mounttable::{Error, Reason};
use ebla_proto::mounttable as wire;
use ebla_proto::mounttable::batch_resolve_reply::result::Result as One;
use ebla_proto::mounttable::mount_table_admin_client::MountTableAdminClient;
use ebla_proto::mounttable::mount_table_client::MountTableClient;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;
use tonic::{Request, Response, Status, Streaming};

/// The largest answer that is taken: a name may have very many servers.
const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// A user at one server. Cheap to clone. No call has a deadline but the caller's own.
#[derive(Clone, Debug)]
pub struct Caller {
    names: MountTableClient<Channel>,
    admin: MountTableAdminClient<Channel>,
    identity: MetadataValue<Ascii>,
}

impl Caller {
    /// Whoever a server that believes its callers takes for `identity`: names, separated by commas.
    ///
    /// # Errors
    /// `BAD_REQUEST` when that cannot stand in a header.
    pub fn new(channel: &Channel, identity: &str) -> Result<Self, Error> {
        let bad = |_| Error::new(Reason::BadRequest, format!("{identity:?} is no list of names"));
        Ok(Self {
            names: MountTableClient::new(channel.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX),
            admin: MountTableAdminClient::new(channel.clone()),
            identity: identity.parse().map_err(bad)?,
        })
    }

    /// What a name leads to: `servers_max` of its servers, 0 for all.
    ///
    /// # Errors
    /// What the server answers, as for the methods below.
    pub async fn resolve(&mut self, name: &str, servers_max: u32) -> Result<wire::Entry, Error> {
        let request = self.by(wire::ResolveRequest { name: name.to_owned(), max_servers: servers_max });
        told(self.names.resolve(request).await)
    }

    /// What each of up to 1,000 names leads to, in order.
    ///
    /// # Errors
    /// When the whole call fails.
    pub async fn resolve_all(&mut self, names: Vec<String>) -> Result<Vec<Result<wire::Entry, Error>>, Error> {
        let request = self.by(wire::BatchResolveRequest { names });
        let one = |result: wire::batch_resolve_reply::Result| match result.result {
            Some(One::Entry(entry)) => Ok(entry),
            Some(One::Failure(failure)) => Err(messages::error_in(failure)),
            None => Err(Error::new(Reason::Unavailable, "an answer without a result")),
        };
        Ok(told(self.names.batch_resolve(request).await)?.results.into_iter().map(one).collect())
    }

    /// Mounts a server for `ttl`, zero for ever; when that ends.
    ///
    /// # Errors
    /// `UNAVAILABLE`: it may be done or not.
    pub async fn mount(&mut self, name: &str, server: &str, ttl: Duration) -> Result<wire::MountReply, Error> {
        let request = self.by(wire::MountRequest {
            name: name.to_owned(),
            server: server.to_owned(),
            ttl_millis: u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX),
            ..wire::MountRequest::default()
        });
        told(self.names.mount(request).await)
    }

    /// Takes all servers from a name; how many of them were live.
    ///
    /// # Errors
    /// As [`Self::mount`].
    pub async fn unmount(&mut self, name: &str) -> Result<u32, Error> {
        let request = self.by(wire::UnmountRequest { name: name.to_owned(), server: String::new() });
        Ok(told(self.names.unmount(request).await)?.removed)
    }

    /// Deletes a node and everything below it; how many nodes went.
    ///
    /// # Errors
    /// `UNAVAILABLE`: it may be done, in part or not at all.
    pub async fn delete(&mut self, name: &str) -> Result<u64, Error> {
        let request =
            self.by(wire::DeleteRequest { name: name.to_owned(), subtree: true, expected_version: String::new() });
        Ok(told(self.names.delete(request).await)?.deleted)
    }

    /// What `pattern` asks for below `receiver`, as it comes.
    ///
    /// # Errors
    /// When the call fails before its first message.
    pub async fn glob(&mut self, receiver: &str, pattern: &str) -> Result<Streaming<wire::GlobReply>, Error> {
        let request = self.by(wire::GlobRequest { receiver: receiver.to_owned(), pattern: pattern.to_owned() });
        told(self.names.glob(request).await)
    }

    /// What the server has done since it began.
    ///
    /// # Errors
    /// `NOT_A_MOUNT_TABLE` of one that does not tell.
    pub async fn counters(&mut self) -> Result<wire::CountersReply, Error> {
        let request = self.by(wire::CountersRequest {});
        told(self.admin.counters(request).await)
    }

    fn by<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.metadata_mut().insert(DEVELOPMENT_HEADER, self.identity.clone());
        request
    }
}

fn told<T>(answer: Result<Response<T>, Status>) -> Result<T, Error> {
    answer.map(Response::into_inner).map_err(|status| messages::error(&status))
}
