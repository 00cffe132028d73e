//! `/v1/names`: resolving, mounting, deleting.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use ebla_mounttable_tree::error::{Error, Reason};
use ebla_mounttable_tree::store::{Environment, Store};
use ebla_proto::mounttable as wire;
use ebla_proto::mounttable::mount_table_server::MountTable;
use serde::Deserialize;

use crate::gateway::http_error::HttpError;
use crate::gateway::json::{DeleteReply, Json, Mount, Mounted, PermissionsBody, Resolved};
use crate::gateway::request::{Flag, NoQuery, ParsedRequest, RequestBody, await_reply};
use crate::gateway::{ENTRIES, ENTRIES_MAX, listing, watching};
use crate::service::Service;

/// The query of a GET.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct GetQuery {
    max_servers: Option<u32>,
    permissions: Flag,
    glob: Option<String>,
    limit: Option<u32>,
    watch: Flag,
    refreshes: Flag,
}

/// The operation of a GET.
enum GetOperation {
    /// Resolves the name; with `permissions`, also returns the node's permissions.
    Resolve { max_servers: u32, permissions: Flag },
    /// Lists below it.
    Glob { pattern: String, limit: u32 },
    /// Watches it.
    Watch { refreshes: Flag },
}

impl TryFrom<GetQuery> for GetOperation {
    type Error = Error;

    fn try_from(query: GetQuery) -> Result<Self, Error> {
        use Flag::{No, Yes};
        match query {
            GetQuery { max_servers, permissions, glob: None, limit: None, watch: No, refreshes: No } => {
                Ok(Self::Resolve { max_servers: max_servers.unwrap_or(0), permissions })
            }
            GetQuery { glob: Some(pattern), limit, max_servers: None, permissions: No, watch: No, refreshes: No } => {
                let limit = limit.unwrap_or(ENTRIES);
                if (1..=ENTRIES_MAX).contains(&limit) {
                    Ok(Self::Glob { pattern, limit })
                } else {
                    Err(bad(&format!("limit is {limit}, but must be from 1 to {ENTRIES_MAX}")))
                }
            }
            GetQuery { watch: Yes, refreshes, max_servers: None, permissions: No, glob: None, limit: None } => {
                Ok(Self::Watch { refreshes })
            }
            _ => Err(bad(
                "use glob with limit only, watch=1 with refreshes only, or max_servers and permissions without both",
            )),
        }
    }
}

/// The query of a DELETE.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct DeleteQuery {
    server: Option<String>,
    servers: Option<Servers>,
    node: Flag,
    subtree: Flag,
    version: Option<String>,
}

/// Which servers; there is one value.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Servers {
    All,
}

/// Resolves, lists or watches.
pub(super) async fn get<S: Store + Environment + Clone + 'static>(
    State(service): State<Service<S>>,
    mut request: ParsedRequest<GetQuery>,
) -> Result<Response, HttpError> {
    match GetOperation::try_from(std::mem::take(&mut request.query))? {
        GetOperation::Glob { pattern, limit } => {
            let message = wire::GlobRequest { receiver: request.name.clone(), pattern };
            listing::answer(service.glob(request.call(message)).await?.into_inner(), limit).await
        }
        GetOperation::Watch { refreshes } => {
            let message = wire::WatchRequest { name: request.name.clone(), include_refresh: refreshes == Flag::Yes };
            watching::answer(service.watch(request.call(message)).await?.into_inner()).await
        }
        GetOperation::Resolve { max_servers, permissions } => {
            let message = wire::ResolveRequest { name: request.name.clone(), max_servers };
            let mut resolved = Resolved::from(await_reply(service.resolve(request.call(message))).await?);
            if permissions == Flag::Yes {
                let message = wire::GetPermissionsRequest { name: request.name.clone() };
                let reply = await_reply(service.get_permissions(request.call(message))).await?;
                resolved.rights = Some(PermissionsBody::try_from(reply)?);
            }
            Ok(Json(resolved).into_response())
        }
    }
}

/// Mounts a server.
pub(super) async fn put<S: Store + Environment + Clone + 'static>(
    State(service): State<Service<S>>,
    request: ParsedRequest<NoQuery>,
    body: RequestBody,
) -> Result<Json<Mounted>, HttpError> {
    let call = request.call(body.value::<Mount>()?.under(request.name.clone()));
    Ok(Json(await_reply(service.mount(call)).await?.into()))
}

/// Unmounts servers, or deletes the node: the query says which, because most callers want to undo a mount.
pub(super) async fn delete<S: Store + Environment + Clone + 'static>(
    State(service): State<Service<S>>,
    mut request: ParsedRequest<DeleteQuery>,
) -> Result<Json<DeleteReply>, HttpError> {
    let name = request.name.clone();
    let unmount = |server: String| wire::UnmountRequest { name: name.clone(), server };
    let message = match std::mem::take(&mut request.query) {
        // In the gRPC calls an empty text means all servers, or any version; an empty parameter is more likely a
        // mistake.
        DeleteQuery { server: Some(text), .. } | DeleteQuery { version: Some(text), .. } if text.is_empty() => {
            return Err(bad("server and version must not be empty; use servers=all to unmount all servers").into());
        }
        DeleteQuery { server: None, servers: None, node: Flag::No, subtree: Flag::No, version: None } => {
            let wrong =
                "say what to delete: server=ADDRESS or servers=all unmounts, node=1 or subtree=1 deletes the node";
            return Err(bad(wrong).into());
        }
        DeleteQuery { server: Some(server), servers: None, node: Flag::No, subtree: Flag::No, version: None } => {
            unmount(server)
        }
        DeleteQuery { server: None, servers: Some(Servers::All), node: Flag::No, subtree: Flag::No, version: None } => {
            unmount(String::new())
        }
        DeleteQuery { server: None, servers: None, node: _, subtree, version } => {
            let (subtree, expected_version) = (subtree == Flag::Yes, version.unwrap_or_default());
            let call = request.call(wire::DeleteRequest { name, subtree, expected_version });
            return Ok(Json(DeleteReply::Deleted(await_reply(service.delete(call)).await?.deleted)));
        }
        _ => return Err(bad("use only one of: server; servers=all; node, subtree and version").into()),
    };
    Ok(Json(DeleteReply::Removed(await_reply(service.unmount(request.call(message))).await?.removed)))
}

fn bad(wrong: &str) -> Error {
    Error::new(Reason::BadRequest, wrong)
}
