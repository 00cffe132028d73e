//! MountTableAdmin: for superusers, except for the statistics.

use ebla_mounttable_tree::error::{Error, Reason};
use ebla_mounttable_tree::file;
use ebla_mounttable_tree::identity::UserId;
use ebla_mounttable_tree::store::{Environment, Store};
use ebla_mounttable_tree::table::{Correction, Finding, Limits, NodeChange, QuotaKind, Tally};
use ebla_proto::mounttable as wire;
use ebla_proto::mounttable::mount_table_admin_server::MountTableAdmin;
use ebla_proto::mounttable::{dump_reply, list_limits_reply, recount_reply};
use futures::StreamExt;
use tonic::{Request, Response, Streaming};
use tracing::info;

use crate::service::identity::Session;
use crate::service::{ReplySink, ReplyStream, RpcResult, Service, WriteMode, count, messages, to_status};

/// The largest piece of a row in one message of a dump, apart from a single larger cell: a restore accepts 4 MiB.
const PIECE_BYTES_MAX: usize = 1 << 20;

/// The cells in pieces of bounded size.
fn pieces(cells: Vec<dump_reply::Cell>) -> Vec<Vec<dump_reply::Cell>> {
    let mut pieces: Vec<Vec<_>> = Vec::new();
    let mut bytes = usize::MAX;
    for cell in cells {
        // Tags, lengths and the timestamp take less than 32 bytes.
        let size = cell.family.len() + cell.column.len() + cell.value.len() + 32;
        bytes = bytes.saturating_add(size);
        match pieces.last_mut() {
            Some(piece) if bytes <= PIECE_BYTES_MAX => piece.push(cell),
            _ => {
                pieces.push(vec![cell]);
                bytes = size;
            }
        }
    }
    pieces
}

fn node_change(change: NodeChange) -> wire::NodeChange {
    wire::NodeChange {
        name: change.name.to_string(),
        before: change.before.map(|permissions| permissions.to_json()).unwrap_or_default(),
        after: change.after.to_json(),
    }
}

#[tonic::async_trait]
impl<S: Store + Environment + Clone + 'static> MountTableAdmin for Service<S> {
    type CheckStream = ReplyStream<wire::Finding>;
    type DumpStream = ReplyStream<wire::DumpReply>;

    async fn setup(&self, request: Request<wire::SetupRequest>) -> RpcResult<wire::SetupReply> {
        let caller = self.superuser(request.metadata())?;
        let wire::SetupRequest { permissions_file: file, preview } = request.into_inner();
        if !preview {
            self.check_writable()?;
        }
        let file = if file.is_empty() { "{}" } else { file.as_str() };
        // Without an entry for the root an existing root stays as it is.
        let nodes = to_status(file::parse(file, &self.authenticator.default_root()))?;
        let table = self.table.clone();
        if preview {
            let changes = self.detached(async move { table.preview(&nodes).await }).await?;
            let changes = changes.into_iter().map(node_change).collect();
            return Ok(Response::new(wire::SetupReply { changed: 0, changes }));
        }
        let changed = self.detached(async move { table.apply(&nodes).await }).await?;
        info!(%caller, changed, "table set up");
        Ok(Response::new(wire::SetupReply { changed: count(changed), changes: Vec::new() }))
    }

    async fn check(&self, request: Request<wire::CheckRequest>) -> RpcResult<Self::CheckStream> {
        let caller = self.superuser(request.metadata())?;
        let (table, fix) = (self.table.clone(), request.into_inner().fix);
        if fix {
            self.check_writable()?;
        }
        let work = async move {
            let findings = table.check().await?;
            if fix {
                table.repair().await?;
            }
            Ok((if fix { table.check().await? } else { findings.clone() }, findings))
        };
        let (left, findings) = self.detached(work).await?;
        if fix {
            info!(%caller, findings = findings.len(), left = left.len(), "table repaired");
        }
        let message = move |finding: Finding| {
            let fixed = !left.iter().any(|it| it.place == finding.place && it.problem == finding.problem);
            let kind = finding.problem.name().to_owned();
            Ok(wire::Finding { place: finding.place, kind, message: finding.message, fixed })
        };
        Ok(Response::new(futures::stream::iter(findings).map(message).boxed()))
    }

    async fn dump(&self, request: Request<wire::DumpRequest>) -> RpcResult<Self::DumpStream> {
        let caller = self.superuser(request.metadata())?;
        let Session { expiry, .. } = self.session(request.metadata())?;
        info!(%caller, "table dump begun");
        let service = self.clone();
        Ok(self.stream_reply("dump", |sink| async move { expiry.limit(service.dump_to(&sink)).await }))
    }

    async fn restore(&self, request: Request<Streaming<wire::DumpReply>>) -> RpcResult<wire::RestoreReply> {
        let caller = self.superuser(request.metadata())?;
        self.check_writable()?;
        let mut dump = request.into_inner();
        let table = self.table.clone();
        let work = async move {
            let mut restoration = table.begin_restore().await?;
            while let Some(message) = dump.message().await.map_err(|status| messages::error(&status))? {
                match message.reply {
                    Some(dump_reply::Reply::Row(row)) => {
                        table.restore_row(&mut restoration, &row.key, messages::row(row.cells)?).await?;
                    }
                    Some(dump_reply::Reply::Counter(counter)) => {
                        table.restore_counter(&mut restoration, &counter.name, counter.value).await?;
                    }
                    None => {}
                }
            }
            table.finish_restore(restoration).await
        };
        let Tally { rows, counters } = self.detached(work).await?;
        info!(%caller, rows, counters, "table restored");
        Ok(Response::new(wire::RestoreReply { rows: count(rows), counters: count(counters) }))
    }

    async fn destroy(&self, request: Request<wire::DestroyRequest>) -> RpcResult<wire::DestroyReply> {
        let caller = self.superuser(request.metadata())?;
        self.check_writable()?;
        if request.into_inner().table != *self.name {
            let wrong = format!("wrong table name: this table is {:?}", self.name);
            return Err(messages::status(&Error::new(Reason::BadRequest, wrong)));
        }
        let table = self.table.clone();
        let Tally { rows, counters } = self.detached(async move { table.destroy().await }).await?;
        info!(%caller, rows, counters, "table destroyed");
        Ok(Response::new(wire::DestroyReply { rows: count(rows), counters: count(counters) }))
    }

    async fn sweep(&self, request: Request<wire::SweepRequest>) -> RpcResult<wire::SweepReply> {
        let caller = self.superuser(request.metadata())?;
        self.check_writable()?;
        let table = self.table.clone();
        let swept = self.detached(async move { table.sweep().await }).await?;
        info!(%caller, orphans = swept.orphans, expired = swept.expired, damaged = swept.damaged, "table swept");
        Ok(Response::new(wire::SweepReply {
            orphans: count(swept.orphans),
            intents: count(swept.intents),
            deletions: count(swept.deletions),
            expired: count(swept.expired),
            damaged: count(swept.damaged),
        }))
    }

    async fn recount(&self, request: Request<wire::RecountRequest>) -> RpcResult<wire::RecountReply> {
        let caller = self.superuser(request.metadata())?;
        self.check_writable()?;
        let table = self.table.clone();
        let corrections = self.detached(async move { table.recount().await }).await?;
        info!(%caller, corrections = corrections.len(), "counters recounted");
        let message = |it: Correction| recount_reply::Correction { counter: it.counter, was: it.was, is: it.is };
        Ok(Response::new(wire::RecountReply { corrections: corrections.into_iter().map(message).collect() }))
    }

    async fn set_limit(&self, request: Request<wire::SetLimitRequest>) -> RpcResult<wire::SetLimitReply> {
        let caller = self.superuser(request.metadata())?;
        self.check_writable()?;
        let message = request.into_inner();
        if message.user.is_empty() {
            return Err(messages::status(&Error::new(Reason::BadRequest, "a limit requires a user")));
        }
        let user = UserId::stored(&message.user);
        for (quota, limit) in [(QuotaKind::Nodes, message.nodes), (QuotaKind::Servers, message.servers)] {
            if let Some(limit) = limit {
                let own = Some(limit).filter(|limit| *limit >= 0);
                to_status(self.table.set_limit(&user, quota, own).await)?;
            }
        }
        info!(%caller, %user, nodes = ?message.nodes, servers = ?message.servers, "limit set");
        Ok(Response::new(wire::SetLimitReply {}))
    }

    async fn list_limits(&self, request: Request<wire::ListLimitsRequest>) -> RpcResult<wire::ListLimitsReply> {
        self.superuser(request.metadata())?;
        let (everybody, own) = to_status(self.table.limits().await)?;
        let message = |user: &str, limits: Limits| list_limits_reply::Limit {
            user: user.to_owned(),
            nodes: limits.nodes,
            servers: limits.servers,
        };
        Ok(Response::new(wire::ListLimitsReply {
            everybody: Some(message("", everybody)),
            limits: own.iter().map(|(user, limits)| message(user.as_str(), *limits)).collect(),
        }))
    }

    async fn counters(&self, request: Request<wire::CountersRequest>) -> RpcResult<wire::CountersReply> {
        self.caller(request.metadata())?;
        let (lookups, requests) = (self.cache_handle.counts(), self.cache_handle.requests());
        Ok(Response::new(wire::CountersReply {
            hits: lookups.hits,
            misses: lookups.misses,
            joined: lookups.joined,
            stale: lookups.stale,
            reads: requests.reads,
            changes: requests.changes,
            counters: requests.counters,
        }))
    }

    async fn set_read_only(&self, request: Request<wire::SetReadOnlyRequest>) -> RpcResult<wire::SetReadOnlyReply> {
        let caller = self.superuser(request.metadata())?;
        let to = if request.into_inner().read_only { WriteMode::ReadOnly } else { WriteMode::ReadWrite };
        let was = self.write_switch.set(to);
        info!(%caller, ?was, is = ?to, "write mode changed");
        Ok(Response::new(wire::SetReadOnlyReply { was_read_only: was == WriteMode::ReadOnly }))
    }
}

impl<S: Store + Environment + Clone + 'static> Service<S> {
    /// Sends every row and every counter.
    async fn dump_to(&self, sink: &ReplySink<wire::DumpReply>) -> Result<(), Error> {
        let mut after: Option<String> = None;
        loop {
            let keys = self.table.row_keys(after.as_deref()).await?;
            let Some(last) = keys.last() else { break };
            after = Some(last.clone());
            for key in keys {
                self.dump_row(&key, sink).await?;
            }
        }
        after = None;
        loop {
            let counters = self.table.stored_counters(after.as_deref()).await?;
            let Some((last, _)) = counters.last() else { return Ok(()) };
            after = Some(last.clone());
            for (name, value) in counters {
                let reply = Some(dump_reply::Reply::Counter(dump_reply::Counter { name, value }));
                sink.send(wire::DumpReply { reply }).await?;
            }
        }
    }

    async fn dump_row(&self, key: &str, sink: &ReplySink<wire::DumpReply>) -> Result<(), Error> {
        let mut after = None;
        loop {
            let (row, more) = self.table.stored(key, after).await?;
            let Some(row) = row else { return Ok(()) };
            for cells in pieces(messages::cells(row)) {
                let row = dump_reply::Row { key: key.to_owned(), cells };
                sink.send(wire::DumpReply { reply: Some(dump_reply::Reply::Row(row)) }).await?;
            }
            if more.is_none() {
                return Ok(());
            }
            after = more;
        }
    }
}
