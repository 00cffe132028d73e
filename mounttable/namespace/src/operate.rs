//! Administration of a table, for superusers.
//!
//! Calls have no timeout of their own: most of them read every row.

use ebla_mounttable_tree::messages;
use ebla_mounttable_tree::store::Row;
use ebla_mounttable_tree::store::caching::{LookupCounts, RequestCounts};
use ebla_mounttable_tree::table::{Correction, Limits, NodeChange, Swept, Tally};
use ebla_mounttable_tree::{Error, Permissions, Reason};
use ebla_proto::mounttable as wire;
use ebla_proto::mounttable::dump_reply;
use ebla_proto::mounttable::mount_table_admin_client::MountTableAdminClient;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt, TryStreamExt};
use tonic::transport::Channel;
use tonic::{Request, Streaming};

use crate::entry::ObjectLocation;
use crate::namespace::Namespace;
use crate::rpc::{MESSAGE_BYTES_MAX, rpc_error, rpc_result};

/// One server of a table, for a superuser. Operations apply to the whole table, except [`Self::counters`] and
/// [`Self::set_write_mode`].
#[derive(Clone, Debug)]
pub struct Operator {
    namespace: Namespace,
    location: ObjectLocation,
}

/// Whether a check repairs what it finds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fix {
    /// It only reports.
    Report,
    /// It repairs what it can, while the table serves.
    Repair,
}

/// Whether a server accepts changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteMode {
    /// It does.
    ReadWrite,
    /// It refuses them with `READ_ONLY`.
    ReadOnly,
}

/// An inconsistency in a table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// The row's key, or the counter's name.
    pub place: String,
    /// Its kind: the name of a [`ebla_mounttable_tree::table::Problem`].
    pub kind: String,
    /// The facts.
    pub message: String,
    /// Whether it was repaired.
    pub is_fixed: bool,
}

/// A record of a dump.
#[derive(Clone, PartialEq, Debug)]
pub enum DumpRecord {
    /// A row, or a part of a large one; the next part follows with the same key.
    Row(String, Row),
    /// A counter and its value.
    Counter(String, i64),
}

/// A change of one limit of a user.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Limit {
    /// No change.
    Unchanged,
    /// The default applies.
    Default,
    /// The user's own limit; 0: no limit.
    Own(i64),
}

/// The default limits, and users' own limits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AllLimits {
    /// The defaults.
    pub everybody: Limits,
    /// Ordered by user; `None`: the default applies.
    pub own: Vec<(String, Limits)>,
}

impl Namespace {
    /// An operator of the first root.
    ///
    /// # Errors
    /// `NO_MOUNT_TABLE` without roots.
    pub fn operator(&self) -> Result<Operator, Error> {
        let no_root = || Error::new(Reason::NoMountTable, "no root is configured");
        let location = self.entry("")?.locations().into_iter().next().ok_or_else(no_root)?;
        Ok(Operator { namespace: self.clone(), location })
    }
}

/// All calls fail with `NO_ACCESS` if the caller is not a superuser, with `NOT_A_MOUNT_TABLE` at another kind of
/// server, with `READ_ONLY` for changes while the server is read-only, and with `UNAVAILABLE`.
impl Operator {
    /// What [`Self::setup`] would change now, parents first; it changes nothing.
    ///
    /// # Errors
    /// `BAD_PERMISSIONS`, and as above.
    pub async fn preview_setup(&self, permissions_file: &str) -> Result<Vec<NodeChange>, Error> {
        let request = wire::SetupRequest { permissions_file: permissions_file.to_owned(), preview: true };
        let reply = rpc_result(&self.location, self.client().setup(self.request(request)).await)?;
        let change = |it: wire::NodeChange| {
            let before = (!it.before.is_empty()).then(|| Permissions::from_json(&it.before)).transpose()?;
            Ok(NodeChange { name: it.name.parse()?, before, after: Permissions::from_json(&it.after)? })
        };
        reply.changes.into_iter().map(change).collect()
    }

    /// Creates the nodes of a permissions file, or a root if the file is empty and there is none; returns the number of created or
    /// changed nodes.
    ///
    /// # Errors
    /// `BAD_PERMISSIONS`, and as above.
    pub async fn setup(&self, permissions_file: &str) -> Result<u64, Error> {
        let request =
            self.request(wire::SetupRequest { permissions_file: permissions_file.to_owned(), preview: false });
        Ok(rpc_result(&self.location, self.client().setup(request).await)?.changed)
    }

    /// Checks every row and counter.
    ///
    /// # Errors
    /// As above.
    pub async fn check(&self, fix: Fix) -> Result<Vec<Finding>, Error> {
        let request = self.request(wire::CheckRequest { fix: fix == Fix::Repair });
        let findings = self.stream(rpc_result(&self.location, self.client().check(request).await)?);
        findings
            .map_ok(|it| Finding { place: it.place, kind: it.kind, message: it.message, is_fixed: it.fixed })
            .try_collect()
            .await
    }

    /// Every row and every counter, as a stream. Concurrent changes may or may not be included.
    ///
    /// # Errors
    /// As above; also as the last item.
    pub async fn dump(&self) -> Result<BoxStream<'static, Result<DumpRecord, Error>>, Error> {
        let request = self.request(wire::DumpRequest {});
        let parts = self.stream(rpc_result(&self.location, self.client().dump(request).await)?);
        let saved = |part: wire::DumpReply| async move {
            Ok(match part.reply {
                Some(dump_reply::Reply::Row(row)) => Some(DumpRecord::Row(row.key, messages::row(row.cells)?)),
                Some(dump_reply::Reply::Counter(counter)) => Some(DumpRecord::Counter(counter.name, counter.value)),
                None => None,
            })
        };
        Ok(parts.try_filter_map(saved).boxed())
    }

    /// Restores a dump into a table that has no nodes besides a root; returns the number of restored rows and counters.
    ///
    /// # Errors
    /// `NOT_EMPTY`, `CONTENTION`, and as above. After a restore has started and failed, the table does not serve until
    /// it is destroyed and set up or restored.
    pub async fn restore(&self, parts: impl Stream<Item = DumpRecord> + Send + 'static) -> Result<Tally, Error> {
        let message = |part| wire::DumpReply {
            reply: Some(match part {
                DumpRecord::Row(key, row) => {
                    dump_reply::Reply::Row(dump_reply::Row { key, cells: messages::cells(row) })
                }
                DumpRecord::Counter(name, value) => dump_reply::Reply::Counter(dump_reply::Counter { name, value }),
            }),
        };
        let request = self.request(parts.map(message));
        let reply = rpc_result(&self.location, self.client().restore(request).await)?;
        Ok(Tally { rows: size(reply.rows), counters: size(reply.counters) })
    }

    /// Removes every row and every counter of the table with this name; returns their number.
    ///
    /// # Errors
    /// `BAD_REQUEST` when the table has another name, and as above.
    pub async fn destroy(&self, table: &str) -> Result<Tally, Error> {
        let request = self.request(wire::DestroyRequest { table: table.to_owned() });
        let reply = rpc_result(&self.location, self.client().destroy(request).await)?;
        Ok(Tally { rows: size(reply.rows), counters: size(reply.counters) })
    }

    /// Removes orphans and abandoned intents, finishes deletions, removes expired servers and empty nodes.
    ///
    /// # Errors
    /// As above.
    pub async fn sweep(&self) -> Result<Swept, Error> {
        let swept = rpc_result(&self.location, self.client().sweep(self.request(wire::SweepRequest {})).await)?;
        Ok(Swept {
            orphans: size(swept.orphans),
            intents: size(swept.intents),
            deletions: size(swept.deletions),
            expired: size(swept.expired),
            damaged: size(swept.damaged),
        })
    }

    /// Corrects the quota counters of users; returns the corrections.
    ///
    /// # Errors
    /// As above.
    pub async fn recount(&self) -> Result<Vec<Correction>, Error> {
        let reply = rpc_result(&self.location, self.client().recount(self.request(wire::RecountRequest {})).await)?;
        let correction =
            |it: wire::recount_reply::Correction| Correction { counter: it.counter, was: it.was, is: it.is };
        Ok(reply.corrections.into_iter().map(correction).collect())
    }

    /// Changes the limits of a user.
    ///
    /// # Errors
    /// As above.
    pub async fn set_limits(&self, user: &str, nodes: Limit, servers: Limit) -> Result<(), Error> {
        let (nodes, servers) = (nodes.message(), servers.message());
        let request = self.request(wire::SetLimitRequest { user: user.to_owned(), nodes, servers });
        rpc_result(&self.location, self.client().set_limit(request).await).map(drop)
    }

    /// The limits of users.
    ///
    /// # Errors
    /// As above.
    pub async fn limits(&self) -> Result<AllLimits, Error> {
        let reply =
            rpc_result(&self.location, self.client().list_limits(self.request(wire::ListLimitsRequest {})).await)?;
        let limits = |it: &wire::list_limits_reply::Limit| Limits { nodes: it.nodes, servers: it.servers };
        let everybody = reply.everybody.as_ref().map(limits).unwrap_or_default();
        let own = reply.limits.into_iter().map(|it| (it.user.clone(), limits(&it))).collect();
        Ok(AllLimits { everybody, own })
    }

    /// Statistics of this server since its start: lookups, and requests to the storage. Available to all callers.
    ///
    /// # Errors
    /// As above.
    pub async fn counters(&self) -> Result<(LookupCounts, RequestCounts), Error> {
        let reply = rpc_result(&self.location, self.client().counters(self.request(wire::CountersRequest {})).await)?;
        let lookups = LookupCounts { hits: reply.hits, misses: reply.misses, joined: reply.joined, stale: reply.stale };
        Ok((lookups, RequestCounts { reads: reply.reads, changes: reply.changes, counters: reply.counters }))
    }

    /// Sets whether this server accepts changes; returns the previous mode. A restart resets it.
    ///
    /// # Errors
    /// As above.
    pub async fn set_write_mode(&self, to: WriteMode) -> Result<WriteMode, Error> {
        let request = self.request(wire::SetReadOnlyRequest { read_only: to == WriteMode::ReadOnly });
        let was = rpc_result(&self.location, self.client().set_read_only(request).await)?.was_read_only;
        Ok(if was { WriteMode::ReadOnly } else { WriteMode::ReadWrite })
    }

    fn client(&self) -> MountTableAdminClient<Channel> {
        let channel = self.namespace.0.channels.get(self.location.host_port());
        MountTableAdminClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX)
    }

    fn request<M>(&self, message: M) -> Request<M> {
        self.namespace.request_without_timeout(&self.location, message)
    }

    fn stream<T: Send + 'static>(
        &self,
        messages: Streaming<T>,
    ) -> impl Stream<Item = Result<T, Error>> + Send + 'static {
        let location = self.location.clone();
        messages.map_err(move |status| rpc_error(&location, &status))
    }
}

impl Limit {
    const fn message(self) -> Option<i64> {
        match self {
            Self::Unchanged => None,
            Self::Default => Some(-1),
            Self::Own(limit) => Some(limit),
        }
    }
}

fn size(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}
