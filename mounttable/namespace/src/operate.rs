//! Looking after a table: what superusers do with it.
//!
//! No call has a time limit but its caller's: most of them go through every row.

use ebla_mounttable::service::Changes;
use ebla_mounttable::service::messages;
use ebla_mounttable::store::Row;
use ebla_mounttable::store::cached::{Counts, Requests};
use ebla_mounttable::table::{Correction, Limits, Swept, Tally};
use ebla_mounttable::{Error, Reason};
use ebla_proto::mounttable as wire;
use ebla_proto::mounttable::dump_reply;
use ebla_proto::mounttable::mount_table_admin_client::MountTableAdminClient;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt, TryStreamExt};
use tonic::transport::Channel;
use tonic::{Request, Streaming};

use crate::ask::{MESSAGE_BYTES_MAX, failure, told};
use crate::entry::Place;
use crate::namespace::Namespace;

/// One server of a table, as a superuser has it. What it does concerns the whole table, but for [`Self::counters`] and
/// [`Self::set_changes`].
#[derive(Clone, Debug)]
pub struct Operator {
    namespace: Namespace,
    place: Place,
}

/// What a check does about what it finds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fix {
    /// It tells.
    Tell,
    /// It mends what can be mended, while others go on.
    Mend,
}

/// Something in a table that does not fit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// The row's key, or the counter's name.
    pub place: String,
    /// What, as [`ebla_mounttable::table::Trouble`] names it.
    pub kind: String,
    /// The facts.
    pub message: String,
    /// Whether it is not there any more.
    pub is_fixed: bool,
}

/// A part of a table as a dump tells it.
#[derive(Clone, PartialEq, Debug)]
pub enum Saved {
    /// A row; of a large one several in succession have the same key.
    Row(String, Row),
    /// A counter and its value.
    Counter(String, i64),
}

/// What is to become of one limit of a user.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Limit {
    /// It stays.
    Unchanged,
    /// He has that of everybody.
    OfEverybody,
    /// So many; 0 is without a limit.
    Own(i64),
}

/// The limits of everybody, and of users who have their own.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AllLimits {
    /// Of who has none of his own.
    pub everybody: Limits,
    /// In the order of the users; what is `None` is that of everybody.
    pub own: Vec<(String, Limits)>,
}

impl Namespace {
    /// The server of the first root.
    ///
    /// # Errors
    /// `NO_MOUNT_TABLE` without roots.
    pub fn operator(&self) -> Result<Operator, Error> {
        let no_root = || Error::new(Reason::NoMountTable, "there is no root");
        let place = self.roots().entry("")?.places().into_iter().next().ok_or_else(no_root)?;
        Ok(Operator { namespace: self.clone(), place })
    }
}

/// All calls fail with `NO_ACCESS` for who is no superuser, with `NOT_A_MOUNT_TABLE` at a server that is not ours, with
/// `READ_ONLY` when they change something while that is switched off, and with `UNAVAILABLE`.
impl Operator {
    /// Makes the root and the nodes of a permissions file, or an open root when that is empty; how many were made or changed.
    ///
    /// # Errors
    /// `BAD_PERMISSIONS`, and as above.
    pub async fn setup(&self, permissions_file: &str) -> Result<u64, Error> {
        let request = self.request(wire::SetupRequest { permissions_file: permissions_file.to_owned() });
        Ok(told(&self.place, self.client().setup(request).await)?.changed)
    }

    /// Looks at every row and counter.
    ///
    /// # Errors
    /// As above.
    pub async fn check(&self, fix: Fix) -> Result<Vec<Finding>, Error> {
        let request = self.request(wire::CheckRequest { fix: fix == Fix::Mend });
        let findings = self.stream(told(&self.place, self.client().check(request).await)?);
        findings
            .map_ok(|it| Finding { place: it.place, kind: it.kind, message: it.message, is_fixed: it.fixed })
            .try_collect()
            .await
    }

    /// Every row and every counter, as they come. What others change meanwhile may be in it or not.
    ///
    /// # Errors
    /// As above; also as an item, which is the last.
    pub async fn dump(&self) -> Result<BoxStream<'static, Result<Saved, Error>>, Error> {
        let request = self.request(wire::DumpRequest {});
        let parts = self.stream(told(&self.place, self.client().dump(request).await)?);
        let saved = |part: wire::DumpReply| async move {
            Ok(match part.reply {
                Some(dump_reply::Reply::Row(row)) => Some(Saved::Row(row.key, messages::row(row.cells)?)),
                Some(dump_reply::Reply::Counter(counter)) => Some(Saved::Counter(counter.name, counter.value)),
                None => None,
            })
        };
        Ok(parts.try_filter_map(saved).boxed())
    }

    /// Writes what a dump told into a table that holds nothing but a root; how much was written.
    ///
    /// # Errors
    /// `NOT_EMPTY`, `CONTENTION`, and as above. If it was begun, the table serves nobody until it is destroyed and set up or
    /// restored.
    pub async fn restore(&self, parts: impl Stream<Item = Saved> + Send + 'static) -> Result<Tally, Error> {
        let message = |part| wire::DumpReply {
            reply: Some(match part {
                Saved::Row(key, row) => dump_reply::Reply::Row(dump_reply::Row { key, cells: messages::cells(row) }),
                Saved::Counter(name, value) => dump_reply::Reply::Counter(dump_reply::Counter { name, value }),
            }),
        };
        let request = self.request(parts.map(message));
        let reply = told(&self.place, self.client().restore(request).await)?;
        Ok(Tally { rows: size(reply.rows), counters: size(reply.counters) })
    }

    /// Removes every row and every counter of the table of this name; how many there were.
    ///
    /// # Errors
    /// `BAD_REQUEST` when the table is called otherwise, and as above.
    pub async fn destroy(&self, table: &str) -> Result<Tally, Error> {
        let request = self.request(wire::DestroyRequest { table: table.to_owned() });
        let reply = told(&self.place, self.client().destroy(request).await)?;
        Ok(Tally { rows: size(reply.rows), counters: size(reply.counters) })
    }

    /// Removes what was left behind, finishes deletions, removes what has expired or is empty.
    ///
    /// # Errors
    /// As above.
    pub async fn sweep(&self) -> Result<Swept, Error> {
        let swept = told(&self.place, self.client().sweep(self.request(wire::SweepRequest {})).await)?;
        Ok(Swept {
            orphans: size(swept.orphans),
            intents: size(swept.intents),
            deletions: size(swept.deletions),
            expired: size(swept.expired),
            damaged: size(swept.damaged),
        })
    }

    /// Puts the counters of users right; which were wrong.
    ///
    /// # Errors
    /// As above.
    pub async fn recount(&self) -> Result<Vec<Correction>, Error> {
        let reply = told(&self.place, self.client().recount(self.request(wire::RecountRequest {})).await)?;
        let correction =
            |it: wire::recount_reply::Correction| Correction { counter: it.counter, was: it.was, is: it.is };
        Ok(reply.corrections.into_iter().map(correction).collect())
    }

    /// Gives a user limits of his own, or takes them away.
    ///
    /// # Errors
    /// As above.
    pub async fn set_limits(&self, user: &str, nodes: Limit, servers: Limit) -> Result<(), Error> {
        let (nodes, servers) = (nodes.message(), servers.message());
        let request = self.request(wire::SetLimitRequest { user: user.to_owned(), nodes, servers });
        told(&self.place, self.client().set_limit(request).await).map(drop)
    }

    /// How much users may have.
    ///
    /// # Errors
    /// As above.
    pub async fn limits(&self) -> Result<AllLimits, Error> {
        let reply = told(&self.place, self.client().list_limits(self.request(wire::ListLimitsRequest {})).await)?;
        let limits = |it: &wire::list_limits_reply::Limit| Limits { nodes: it.nodes, servers: it.servers };
        let everybody = reply.everybody.as_ref().map(limits).unwrap_or_default();
        let own = reply.limits.into_iter().map(|it| (it.user.clone(), limits(&it))).collect();
        Ok(AllLimits { everybody, own })
    }

    /// What this server has done since it began: lookups, and requests to the storage. For everybody.
    ///
    /// # Errors
    /// As above.
    pub async fn counters(&self) -> Result<(Counts, Requests), Error> {
        let told = told(&self.place, self.client().counters(self.request(wire::CountersRequest {})).await)?;
        let lookups = Counts { hits: told.hits, misses: told.misses, joined: told.joined, stale: told.stale };
        Ok((lookups, Requests { reads: told.reads, changes: told.changes, counters: told.counters }))
    }

    /// Whether this server makes changes from now on; what it did before. It forgets this when it stops.
    ///
    /// # Errors
    /// As above.
    pub async fn set_changes(&self, to: Changes) -> Result<Changes, Error> {
        let request = self.request(wire::SetReadOnlyRequest { read_only: to == Changes::Refused });
        let was = told(&self.place, self.client().set_read_only(request).await)?.was_read_only;
        Ok(if was { Changes::Refused } else { Changes::Made })
    }

    fn client(&self) -> MountTableAdminClient<Channel> {
        let channel = self.namespace.0.channels.get(self.place.host_port());
        MountTableAdminClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX)
    }

    fn request<M>(&self, message: M) -> Request<M> {
        self.namespace.unlimited(message)
    }

    fn stream<T: Send + 'static>(
        &self,
        messages: Streaming<T>,
    ) -> impl Stream<Item = Result<T, Error>> + Send + 'static {
        let place = self.place.clone();
        messages.map_err(move |status| failure(&place, &status))
    }
}

impl Limit {
    const fn message(self) -> Option<i64> {
        match self {
            Self::Unchanged => None,
            Self::OfEverybody => Some(-1),
            Self::Own(limit) => Some(limit),
        }
    }
}

fn size(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}
