//! MountTable: one method a call.

use ebla_proto::mounttable as wire;
use ebla_proto::mounttable::mount_table_server::MountTable;
use ebla_proto::mounttable::{batch_resolve_reply, test_permissions_reply};
use futures::StreamExt;
use futures::future::poll_immediate;
use futures::stream::FuturesUnordered;
use tonic::{Request, Response, Status, Streaming};

use crate::access::Tag;
use crate::address::ServerAddress;
use crate::error::{Error, Reason};
use crate::file::Stickiness;
use crate::glob::Pattern;
use crate::identity::{Caller, Standing};
use crate::name::NodeName;
use crate::rules::{self, Action};
use crate::service::listing::Listing;
use crate::service::watch::Refreshes;
use crate::service::{Answer, Messages, Service, count, messages, told};
use crate::store::{Store, Surroundings};
use crate::table::{Charge, Resolved, Subtree, Usage};

/// Most names of one BatchResolve.
const NAMES_MAX: usize = 1_000;

/// Names of one BatchResolve that are looked up at the same time.
const TOGETHER: usize = 64;

fn named(name: &str) -> Result<NodeName, Status> {
    told(name.parse())
}

fn one_of_many(found: Result<Resolved, Error>, caller: &Caller) -> batch_resolve_reply::Result {
    let result = match found {
        Ok(found) => batch_resolve_reply::result::Result::Entry(messages::resolved(&found, caller, 0)),
        Err(error) => batch_resolve_reply::result::Result::Failure(messages::failure(&error)),
    };
    batch_resolve_reply::Result { result: Some(result) }
}

fn small_count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

#[tonic::async_trait]
impl<S: Store + Surroundings + Clone + 'static> MountTable for Service<S> {
    type KeepMountedStream = Messages<wire::KeepMountedReply>;
    type GlobStream = Messages<wire::GlobReply>;
    type WatchStream = Messages<wire::WatchReply>;

    async fn resolve_step(&self, request: Request<wire::ResolveStepRequest>) -> Answer<wire::Entry> {
        let caller = self.caller(request.metadata())?;
        let found = told(self.look_up(&caller, &request.get_ref().name).await)?;
        Ok(Response::new(messages::resolved(&found, &caller, 0)))
    }

    async fn resolve(&self, request: Request<wire::ResolveRequest>) -> Answer<wire::Entry> {
        let caller = self.caller(request.metadata())?;
        let found = told(self.look_up(&caller, &request.get_ref().name).await)?;
        Ok(Response::new(messages::resolved(&found, &caller, request.get_ref().max_servers)))
    }

    async fn batch_resolve(&self, request: Request<wire::BatchResolveRequest>) -> Answer<wire::BatchResolveReply> {
        let caller = &self.caller(request.metadata())?;
        let names = request.into_inner().names;
        if names.len() > NAMES_MAX {
            let wrong = format!("{} names, at most {NAMES_MAX} are allowed", names.len());
            return Err(messages::status(&Error::new(Reason::BadRequest, wrong)));
        }
        let mut results = vec![batch_resolve_reply::Result::default(); names.len()];
        let mut waiting = FuturesUnordered::new();
        for (name, place) in names.iter().zip(&mut results) {
            let mut looked_up = Box::pin(self.look_up(caller, name));
            // Most are known at once, and need not wait with the others.
            if let Some(found) = poll_immediate(&mut looked_up).await {
                *place = one_of_many(found, caller);
                continue;
            }
            if waiting.len() >= TOGETHER {
                waiting.next().await;
            }
            waiting.push(async move { *place = one_of_many(looked_up.await, caller) });
        }
        while waiting.next().await.is_some() {}
        drop(waiting);
        Ok(Response::new(wire::BatchResolveReply { results }))
    }

    async fn mount(&self, request: Request<wire::MountRequest>) -> Answer<wire::MountReply> {
        let caller = self.caller(request.metadata())?;
        self.may_change()?;
        let name = named(&request.get_ref().name)?;
        let mount = told(messages::mount(request.get_ref()))?;
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
    ) -> Answer<Self::KeepMountedStream> {
        let caller = self.caller(request.metadata())?;
        let mut requests = request.into_inner();
        let service = self.clone();
        let work = |outlet| async move { service.keep_all(&caller, &mut requests, &outlet).await };
        Ok(self.streamed("keep mounted", work))
    }

    async fn unmount(&self, request: Request<wire::UnmountRequest>) -> Answer<wire::UnmountReply> {
        let caller = self.caller(request.metadata())?;
        self.may_change()?;
        let name = named(&request.get_ref().name)?;
        let server = Some(request.get_ref().server.as_str()).filter(|server| !server.is_empty());
        let server: Option<ServerAddress> = told(server.map(str::parse).transpose())?;
        let table = self.table.clone();
        let removed = self.detached(async move { table.unmount(&caller, &name, server.as_ref()).await }).await?;
        Ok(Response::new(wire::UnmountReply { removed: small_count(removed) }))
    }

    async fn delete(&self, request: Request<wire::DeleteRequest>) -> Answer<wire::DeleteReply> {
        let caller = self.caller(request.metadata())?;
        self.may_change()?;
        let name = named(&request.get_ref().name)?;
        let subtree = if request.get_ref().subtree { Subtree::Delete } else { Subtree::Refuse };
        let version = Some(request.into_inner().expected_version).filter(|version| !version.is_empty());
        let table = self.table.clone();
        let work = async move { table.delete(&caller, &name, subtree, version.as_deref()).await };
        Ok(Response::new(wire::DeleteReply { deleted: count(self.detached(work).await?) }))
    }

    async fn glob(&self, request: Request<wire::GlobRequest>) -> Answer<Self::GlobStream> {
        let caller = self.caller(request.metadata())?;
        let receiver = named(&request.get_ref().receiver)?;
        let pattern: Pattern = told(request.get_ref().pattern.parse())?;
        let table = self.table.clone();
        Ok(self.streamed("glob", |outlet| async move {
            let mut listing = Listing::new(outlet);
            let summary = table.glob(&caller, &receiver, &pattern, &mut listing).await?;
            listing.end(summary).await
        }))
    }

    async fn watch(&self, request: Request<wire::WatchRequest>) -> Answer<Self::WatchStream> {
        let caller = self.caller(request.metadata())?;
        let name = named(&request.get_ref().name)?;
        let refreshes = if request.get_ref().include_refresh { Refreshes::Told } else { Refreshes::Untold };
        let service = self.clone();
        let work = |outlet| async move { service.watch_on(&caller, &name, refreshes, &outlet).await };
        Ok(self.streamed("watch", work))
    }

    async fn get_permissions(
        &self,
        request: Request<wire::GetPermissionsRequest>,
    ) -> Answer<wire::GetPermissionsReply> {
        let caller = self.caller(request.metadata())?;
        let name = named(&request.get_ref().name)?;
        let (permissions, etag) = told(self.table.permissions(&caller, &name).await)?;
        let permissions = Some(messages::permissions_to_wire(&permissions));
        Ok(Response::new(wire::GetPermissionsReply { permissions, etag }))
    }

    async fn set_permissions(
        &self,
        request: Request<wire::SetPermissionsRequest>,
    ) -> Answer<wire::SetPermissionsReply> {
        let caller = self.caller(request.metadata())?;
        self.may_change()?;
        let name = named(&request.get_ref().name)?;
        let message = request.into_inner();
        let permissions = told(messages::permissions_from_wire(&message.permissions.unwrap_or_default()))?;
        let etag = Some(message.etag).filter(|etag| !etag.is_empty());
        let table = self.table.clone();
        let work = async move { table.set_permissions(&caller, &name, &permissions, etag.as_deref()).await };
        self.detached(work).await?;
        Ok(Response::new(wire::SetPermissionsReply {}))
    }

    async fn test_permissions(
        &self,
        request: Request<wire::TestPermissionsRequest>,
    ) -> Answer<wire::TestPermissionsReply> {
        let caller = self.caller(request.metadata())?;
        told(self.tested(&caller, request.get_ref()).await).map(Response::new)
    }

    async fn get_node(&self, request: Request<wire::GetNodeRequest>) -> Answer<wire::GetNodeReply> {
        let caller = self.caller(request.metadata())?;
        let name = named(&request.get_ref().name)?;
        let facts = told(self.table.facts(&caller, &name).await)?;
        Ok(Response::new(wire::GetNodeReply {
            creator: facts.creator.to_string(),
            created_micros: facts.created.get(),
            sticky: facts.stickiness == Stickiness::Sticky,
            version: facts.version,
            etag: facts.permissions_version,
            servers: count(facts.servers),
            children: count(facts.children),
        }))
    }

    async fn who_am_i(&self, request: Request<wire::WhoAmIRequest>) -> Answer<wire::WhoAmIReply> {
        let caller = self.caller(request.metadata())?;
        let user = caller.user_id();
        let usage = |usage: Usage| Some(wire::Usage { used: usage.used, limit: usage.limit });
        Ok(Response::new(wire::WhoAmIReply {
            names: caller.names.iter().map(ToString::to_string).collect(),
            superuser: caller.standing == Standing::Superuser,
            nodes: usage(told(self.table.usage(&user, Charge::Nodes).await)?),
            servers: usage(told(self.table.usage(&user, Charge::Servers).await)?),
            user: user.to_string(),
        }))
    }
}

impl<S: Store + Surroundings + Clone + 'static> Service<S> {
    async fn look_up(&self, caller: &Caller, name: &str) -> Result<Resolved, Error> {
        self.table.resolve_recent(caller, &name.parse()?).await
    }

    /// Which tags somebody has on a node, and why.
    async fn tested(
        &self,
        caller: &Caller,
        message: &wire::TestPermissionsRequest,
    ) -> Result<wire::TestPermissionsReply, Error> {
        let permissions = self.table.effective(caller, &message.name.parse()?).await?;
        let subject = if message.names.is_empty() {
            caller.clone()
        } else if permissions.allow(caller, &[]) {
            self.door.named(message.names.iter().map(String::as_str))?
        } else {
            return Err(rules::no_access());
        };
        let tags = message.tags.iter().map(|tag| tag.parse()).collect::<Result<Vec<Tag>, _>>()?;
        let tags = if tags.is_empty() { Tag::ALL.to_vec() } else { tags };
        let may_read = rules::may(Action::GetPermissions, caller, &permissions);
        let allowed = |tag: Tag| {
            let (by, pattern) = match subject.standing {
                Standing::Superuser => (tag, ""),
                Standing::Ordinary => permissions.granting(&subject, tag).map(|(by, it)| (by, it.as_str()))?,
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
