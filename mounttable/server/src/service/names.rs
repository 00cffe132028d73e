//! MountTable: one method per call.

use ebla_mounttable_tree::access::Tag;
use ebla_mounttable_tree::address::ServerAddress;
use ebla_mounttable_tree::error::{Error, Reason};
use ebla_mounttable_tree::file::Stickiness;
use ebla_mounttable_tree::glob::Pattern;
use ebla_mounttable_tree::identity::{Caller, Privilege};
use ebla_mounttable_tree::name::NodeName;
use ebla_mounttable_tree::rules::{self, Action};
use ebla_mounttable_tree::store::{Environment, Store};
use ebla_mounttable_tree::table::{QuotaKind, Resolved, Subtree, Usage};
use ebla_proto::mounttable as wire;
use ebla_proto::mounttable::mount_table_server::MountTable;
use ebla_proto::mounttable::test_permissions_reply;
use futures::StreamExt;
use futures::future::poll_immediate;
use futures::stream::FuturesUnordered;
use tonic::{Request, Response, Status, Streaming};

use crate::service::batch::Batch;
use crate::service::identity::Session;
use crate::service::listing::Listing;
use crate::service::watch::RefreshEvents;
use crate::service::{ReplyStream, RpcResult, Service, count, messages, to_status};

/// The largest number of names in one BatchResolve.
const NAMES_MAX: usize = 1_000;

/// The number of names of one BatchResolve that are looked up concurrently.
const CONCURRENCY: usize = 64;

fn named(name: &str) -> Result<NodeName, Status> {
    to_status(name.parse())
}

fn small_count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

#[tonic::async_trait]
impl<S: Store + Environment + Clone + 'static> MountTable for Service<S> {
    type KeepMountedStream = ReplyStream<wire::KeepMountedReply>;
    type GlobStream = ReplyStream<wire::GlobReply>;
    type WatchStream = ReplyStream<wire::WatchReply>;

    async fn resolve_step(&self, request: Request<wire::ResolveStepRequest>) -> RpcResult<wire::Entry> {
        let caller = self.caller(request.metadata())?;
        let found = to_status(self.look_up(&caller, &request.get_ref().name).await)?;
        Ok(Response::new(messages::resolved(&found, &caller, 0)))
    }

    async fn resolve(&self, request: Request<wire::ResolveRequest>) -> RpcResult<wire::Entry> {
        let caller = self.caller(request.metadata())?;
        let found = to_status(self.look_up(&caller, &request.get_ref().name).await)?;
        Ok(Response::new(messages::resolved(&found, &caller, request.get_ref().max_servers)))
    }

    async fn batch_resolve(&self, request: Request<wire::BatchResolveRequest>) -> RpcResult<wire::BatchResolveReply> {
        let caller = &self.caller(request.metadata())?;
        let names = request.into_inner().names;
        if names.len() > NAMES_MAX {
            let wrong = format!("{} names, at most {NAMES_MAX} are allowed", names.len());
            return Err(messages::status(&Error::new(Reason::BadRequest, wrong)));
        }
        let mut batch = Batch::new(names.len());
        let mut waiting = FuturesUnordered::new();
        for (position, name) in names.iter().enumerate() {
            if batch.is_full() {
                batch.refuse(position);
                continue;
            }
            let mut looked_up = Box::pin(self.look_up(caller, name));
            // Most are cached, and need not wait.
            if let Some(found) = poll_immediate(&mut looked_up).await {
                batch.add(position, found, caller);
                continue;
            }
            if waiting.len() >= CONCURRENCY
                && let Some((position, found)) = waiting.next().await
            {
                batch.add(position, found, caller);
            }
            waiting.push(async move { (position, looked_up.await) });
        }
        while let Some((position, found)) = waiting.next().await {
            batch.add(position, found, caller);
        }
        Ok(Response::new(wire::BatchResolveReply { results: batch.into_results() }))
    }

    async fn mount(&self, request: Request<wire::MountRequest>) -> RpcResult<wire::MountReply> {
        let caller = self.caller(request.metadata())?;
        self.check_writable()?;
        let name = named(&request.get_ref().name)?;
        let mount = to_status(messages::mount(request.get_ref()))?;
        let table = self.table.clone();
        let mounted = self.detached(async move { table.mount(&caller, &name, &mount).await }).await?;
        Ok(Response::new(wire::MountReply {
            deadline_micros: messages::deadline(mounted.deadline),
            created_nodes: small_count(mounted.created),
            shadowed_children: mounted.hides_children,
        }))
    }

    async fn keep_mounted(
        &self,
        request: Request<Streaming<wire::KeepMountedRequest>>,
    ) -> RpcResult<Self::KeepMountedStream> {
        let session = self.session(request.metadata())?;
        let mut requests = request.into_inner();
        let service = self.clone();
        let work = |sink| async move { service.keep_mounted_stream(&session, &mut requests, &sink).await };
        Ok(self.stream_reply("keep mounted", work))
    }

    async fn unmount(&self, request: Request<wire::UnmountRequest>) -> RpcResult<wire::UnmountReply> {
        let caller = self.caller(request.metadata())?;
        self.check_writable()?;
        let name = named(&request.get_ref().name)?;
        let server = Some(request.get_ref().server.as_str()).filter(|server| !server.is_empty());
        let server: Option<ServerAddress> = to_status(server.map(str::parse).transpose())?;
        let table = self.table.clone();
        let removed = self.detached(async move { table.unmount(&caller, &name, server.as_ref()).await }).await?;
        Ok(Response::new(wire::UnmountReply { removed: small_count(removed) }))
    }

    async fn delete(&self, request: Request<wire::DeleteRequest>) -> RpcResult<wire::DeleteReply> {
        let caller = self.caller(request.metadata())?;
        self.check_writable()?;
        let name = named(&request.get_ref().name)?;
        let subtree = if request.get_ref().subtree { Subtree::Delete } else { Subtree::Refuse };
        let version = Some(request.into_inner().expected_version).filter(|version| !version.is_empty());
        let table = self.table.clone();
        let work = async move { table.delete(&caller, &name, subtree, version.as_deref()).await };
        Ok(Response::new(wire::DeleteReply { deleted: count(self.detached(work).await?) }))
    }

    async fn glob(&self, request: Request<wire::GlobRequest>) -> RpcResult<Self::GlobStream> {
        let Session { caller, expiry } = self.session(request.metadata())?;
        let receiver = named(&request.get_ref().receiver)?;
        let pattern: Pattern = to_status(request.get_ref().pattern.parse())?;
        let table = self.table.clone();
        Ok(self.stream_reply("glob", |sink| async move {
            let mut listing = Listing::new(sink);
            let summary = expiry.limit(table.glob(&caller, &receiver, &pattern, &mut listing)).await?;
            listing.end(summary).await
        }))
    }

    async fn watch(&self, request: Request<wire::WatchRequest>) -> RpcResult<Self::WatchStream> {
        let Session { caller, expiry } = self.session(request.metadata())?;
        let name = named(&request.get_ref().name)?;
        let refreshes = if request.get_ref().include_refresh { RefreshEvents::Include } else { RefreshEvents::Omit };
        let service = self.clone();
        let work = |sink| async move { expiry.limit(service.watch_name(&caller, &name, refreshes, &sink)).await };
        Ok(self.stream_reply("watch", work))
    }

    async fn get_permissions(
        &self,
        request: Request<wire::GetPermissionsRequest>,
    ) -> RpcResult<wire::GetPermissionsReply> {
        let caller = self.caller(request.metadata())?;
        let name = named(&request.get_ref().name)?;
        let (permissions, etag) = to_status(self.table.permissions(&caller, &name).await)?;
        let permissions = Some(messages::permissions_to_wire(&permissions));
        Ok(Response::new(wire::GetPermissionsReply { permissions, etag }))
    }

    async fn set_permissions(
        &self,
        request: Request<wire::SetPermissionsRequest>,
    ) -> RpcResult<wire::SetPermissionsReply> {
        let caller = self.caller(request.metadata())?;
        self.check_writable()?;
        let name = named(&request.get_ref().name)?;
        let message = request.into_inner();
        let permissions = to_status(messages::permissions_from_wire(&message.permissions.unwrap_or_default()))?;
        let etag = Some(message.etag).filter(|etag| !etag.is_empty());
        let table = self.table.clone();
        let work = async move { table.set_permissions(&caller, &name, &permissions, etag.as_deref()).await };
        self.detached(work).await?;
        Ok(Response::new(wire::SetPermissionsReply {}))
    }

    async fn test_permissions(
        &self,
        request: Request<wire::TestPermissionsRequest>,
    ) -> RpcResult<wire::TestPermissionsReply> {
        let caller = self.caller(request.metadata())?;
        to_status(self.test_caller_permissions(&caller, request.get_ref()).await).map(Response::new)
    }

    async fn get_node(&self, request: Request<wire::GetNodeRequest>) -> RpcResult<wire::GetNodeReply> {
        let caller = self.caller(request.metadata())?;
        let name = named(&request.get_ref().name)?;
        let info = to_status(self.table.node_info(&caller, &name).await)?;
        Ok(Response::new(wire::GetNodeReply {
            creator: info.creator.to_string(),
            created_micros: info.created.get(),
            sticky: info.stickiness == Stickiness::Sticky,
            version: info.version,
            etag: info.permissions_version,
            servers: count(info.servers),
            children: count(info.children),
        }))
    }

    async fn who_am_i(&self, request: Request<wire::WhoAmIRequest>) -> RpcResult<wire::WhoAmIReply> {
        let caller = self.caller(request.metadata())?;
        let user = caller.user_id();
        let usage = |usage: Usage| Some(wire::Usage { used: usage.used, limit: usage.limit });
        Ok(Response::new(wire::WhoAmIReply {
            names: caller.names.iter().map(ToString::to_string).collect(),
            superuser: caller.privilege == Privilege::Superuser,
            nodes: usage(to_status(self.table.usage(&user, QuotaKind::Nodes).await)?),
            servers: usage(to_status(self.table.usage(&user, QuotaKind::Servers).await)?),
            user: user.to_string(),
        }))
    }
}

impl<S: Store + Environment + Clone + 'static> Service<S> {
    async fn look_up(&self, caller: &Caller, name: &str) -> Result<Resolved, Error> {
        self.table.resolve_recent(caller, &name.parse()?).await
    }

    /// The tags that a caller has on a node, and why.
    async fn test_caller_permissions(
        &self,
        caller: &Caller,
        message: &wire::TestPermissionsRequest,
    ) -> Result<wire::TestPermissionsReply, Error> {
        let permissions = self.table.effective_permissions(caller, &message.name.parse()?).await?;
        let subject = if message.names.is_empty() {
            caller.clone()
        } else if permissions.allow(caller, &[]) {
            self.authenticator.named(message.names.iter().map(String::as_str))?
        } else {
            return Err(rules::no_access());
        };
        let tags = message.tags.iter().map(|tag| tag.parse()).collect::<Result<Vec<Tag>, _>>()?;
        let tags = if tags.is_empty() { Tag::ALL.to_vec() } else { tags };
        let may_read = rules::is_allowed(Action::GetPermissions, caller, &permissions);
        let allowed = |tag: Tag| {
            let (by, pattern) = match subject.privilege {
                Privilege::Superuser => (tag, ""),
                Privilege::Ordinary => permissions.granting(&subject, tag).map(|(by, it)| (by, it.as_str()))?,
            };
            let pattern = if may_read { pattern } else { "" };
            Some(test_permissions_reply::Allowed {
                tag: tag.name().to_owned(),
                granted_by: by.name().to_owned(),
                pattern: pattern.to_owned(),
            })
        };
        Ok(wire::TestPermissionsReply { allowed: tags.into_iter().filter_map(allowed).collect() })
    }
}
