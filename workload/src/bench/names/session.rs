//! A session of one user with one server of a mounttable.

use std::collections::BTreeSet;
use std::time::Duration;

use ebla_mounttable_tree::messages;
use ebla_mounttable_tree::messages::DEVELOPMENT_HEADER;
use ebla_mounttable_tree::{Error, Reason};
use ebla_proto::mounttable as wire;
use ebla_proto::mounttable::batch_resolve_reply::result::Result as One;
use ebla_proto::mounttable::mount_table_admin_client::MountTableAdminClient;
use ebla_proto::mounttable::mount_table_client::MountTableClient;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;
use tonic::{Request, Response, Status, Streaming};

/// Maximum size of a response: a name may have very many servers.
const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// A session of one user. Cheap to clone. Calls have no timeout; the caller sets one if needed.
#[derive(Clone, Debug)]
pub struct Session {
    names: MountTableClient<Channel>,
    admin: MountTableAdminClient<Channel>,
    identity: MetadataValue<Ascii>,
}

impl Session {
    /// A session with a claimed `identity` (names, separated by commas), for servers with `--insecure-dev-identity`.
    ///
    /// # Errors
    /// `BAD_REQUEST` when the identity is not a valid header value.
    pub fn new(channel: &Channel, identity: &str) -> Result<Self, Error> {
        let bad = |_| Error::new(Reason::BadRequest, format!("{identity:?} is not a list of names"));
        Ok(Self {
            names: MountTableClient::new(channel.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX),
            admin: MountTableAdminClient::new(channel.clone()),
            identity: identity.parse().map_err(bad)?,
        })
    }

    /// Resolves a name to at most `servers_max` servers, 0 for all.
    ///
    /// # Errors
    /// The error of the server, as for the methods below.
    pub async fn resolve(&mut self, name: &str, servers_max: u32) -> Result<wire::Entry, Error> {
        let request = self.by(wire::ResolveRequest { name: name.to_owned(), max_servers: servers_max });
        into_reply(self.names.resolve(request).await)
    }

    /// Resolves up to 1,000 names in one call; results in order.
    ///
    /// # Errors
    /// When the whole call fails.
    pub async fn resolve_all(&mut self, names: Vec<String>) -> Result<Vec<Result<wire::Entry, Error>>, Error> {
        let request = self.by(wire::BatchResolveRequest { names });
        let one = |result: wire::batch_resolve_reply::Result| match result.result {
            Some(One::Entry(entry)) => Ok(entry),
            Some(One::Failure(failure)) => Err(messages::error_in(failure)),
            None => Err(Error::new(Reason::Unavailable, "a response without a result")),
        };
        Ok(into_reply(self.names.batch_resolve(request).await)?.results.into_iter().map(one).collect())
    }

    /// Mounts a server for `ttl`, zero for unlimited time; returns the deadline.
    ///
    /// # Errors
    /// `UNAVAILABLE`: the outcome is unknown.
    pub async fn mount(&mut self, name: &str, server: &str, ttl: Duration) -> Result<wire::MountReply, Error> {
        let request = self.by(wire::MountRequest {
            name: name.to_owned(),
            server: server.to_owned(),
            ttl_millis: u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX),
            ..wire::MountRequest::default()
        });
        into_reply(self.names.mount(request).await)
    }

    /// Unmounts all servers from a name; returns how many of them were live.
    ///
    /// # Errors
    /// As [`Self::mount`].
    pub async fn unmount(&mut self, name: &str) -> Result<u32, Error> {
        let request = self.by(wire::UnmountRequest { name: name.to_owned(), server: String::new() });
        Ok(into_reply(self.names.unmount(request).await)?.removed)
    }

    /// Unmounts one server from a name; returns how many live ones were unmounted.
    ///
    /// # Errors
    /// As [`Self::unmount`].
    pub async fn unmount_server(&mut self, name: &str, server: &str) -> Result<u32, Error> {
        let request = self.by(wire::UnmountRequest { name: name.to_owned(), server: server.to_owned() });
        Ok(into_reply(self.names.unmount(request).await)?.removed)
    }

    /// Deletes a node and everything below it; returns the number of deleted nodes.
    ///
    /// # Errors
    /// `UNAVAILABLE`: it may be done, partly done or not done.
    pub async fn delete(&mut self, name: &str) -> Result<u64, Error> {
        let request =
            self.by(wire::DeleteRequest { name: name.to_owned(), subtree: true, expected_version: String::new() });
        Ok(into_reply(self.names.delete(request).await)?.deleted)
    }

    /// Streams the names below `receiver` that match `pattern`.
    ///
    /// # Errors
    /// When the call fails before its first message.
    pub async fn glob(&mut self, receiver: &str, pattern: &str) -> Result<Streaming<wire::GlobReply>, Error> {
        let request = self.by(wire::GlobRequest { receiver: receiver.to_owned(), pattern: pattern.to_owned() });
        into_reply(self.names.glob(request).await)
    }

    /// All names that match `pattern`, each with the addresses of its servers.
    ///
    /// # Errors
    /// Also when a part of them could not be listed.
    pub async fn list(&mut self, pattern: &str) -> Result<Vec<(String, BTreeSet<String>)>, Error> {
        let mut replies = self.glob("", pattern).await?;
        let mut listed = Vec::new();
        while let Some(reply) = replies.message().await.map_err(|status| messages::error(&status))? {
            match reply.reply {
                Some(wire::glob_reply::Reply::Entry(entry)) => {
                    listed.push((entry.name, entry.servers.into_iter().map(|server| server.address).collect()));
                }
                Some(wire::glob_reply::Reply::Error(error)) => {
                    return Err(Error::new(Reason::Unavailable, error.failure.unwrap_or_default().message));
                }
                Some(wire::glob_reply::Reply::Summary(_)) | None => {}
            }
        }
        Ok(listed)
    }

    /// Counters of the server since its start.
    ///
    /// # Errors
    /// `NOT_A_MOUNT_TABLE` when the server has no counters.
    pub async fn counters(&mut self) -> Result<wire::CountersReply, Error> {
        let request = self.by(wire::CountersRequest {});
        into_reply(self.admin.counters(request).await)
    }

    fn by<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.metadata_mut().insert(DEVELOPMENT_HEADER, self.identity.clone());
        request
    }
}

fn into_reply<T>(answer: Result<Response<T>, Status>) -> Result<T, Error> {
    answer.map(Response::into_inner).map_err(|status| messages::error(&status))
}
