//! `/v1/names`: where names lead, mounts, deletions.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use ebla_proto::mounttable as wire;
use ebla_proto::mounttable::mount_table_server::MountTable;
use serde::Deserialize;

use crate::error::{Error, Reason};
use crate::gateway::ask::{Asked, Flag, Nothing, Sent, answered};
use crate::gateway::json::{Gone, Json, Mount, Mounted, Resolved, Rights};
use crate::gateway::refusal::Refusal;
use crate::gateway::{ENTRIES, ENTRIES_MAX, listing, watching};
use crate::service::Service;
use crate::store::{Store, Surroundings};

/// The query of a GET.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Wish {
    max_servers: Option<u32>,
    permissions: Flag,
    glob: Option<String>,
    limit: Option<u32>,
    watch: Flag,
    refreshes: Flag,
}

/// What a GET is about.
enum Look {
    /// Where the name leads, and with `permissions` who may do what there.
    Resolve { max_servers: u32, permissions: Flag },
    /// What is below it.
    Glob { pattern: String, limit: u32 },
    /// What happens to it.
    Watch { refreshes: Flag },
}

impl TryFrom<Wish> for Look {
    type Error = Error;

    fn try_from(wish: Wish) -> Result<Self, Error> {
        use Flag::{No, Yes};
        match wish {
            Wish { max_servers, permissions, glob: None, limit: None, watch: No, refreshes: No } => {
                Ok(Self::Resolve { max_servers: max_servers.unwrap_or(0), permissions })
            }
            Wish { glob: Some(pattern), limit, max_servers: None, permissions: No, watch: No, refreshes: No } => {
                let limit = limit.unwrap_or(ENTRIES);
                if (1..=ENTRIES_MAX).contains(&limit) {
                    Ok(Self::Glob { pattern, limit })
                } else {
                    Err(bad(&format!("limit is {limit}, and must be from 1 to {ENTRIES_MAX}")))
                }
            }
            Wish { watch: Yes, refreshes, max_servers: None, permissions: No, glob: None, limit: None } => {
                Ok(Self::Watch { refreshes })
            }
            _ => Err(bad(
                "glob goes with limit, watch=1 with refreshes, neither of both with max_servers and permissions",
            )),
        }
    }
}

/// The query of a DELETE.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Loss {
    server: Option<String>,
    servers: Option<Servers>,
    subtree: Flag,
    version: Option<String>,
}

/// Which servers; there is one word for that.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Servers {
    All,
}

/// Tells where the name leads, what is below it, or what happens to it.
pub(super) async fn get<S: Store + Surroundings + Clone + 'static>(
    State(service): State<Service<S>>,
    mut asked: Asked<Wish>,
) -> Result<Response, Refusal> {
    match Look::try_from(std::mem::take(&mut asked.query))? {
        Look::Glob { pattern, limit } => {
            let message = wire::GlobRequest { receiver: asked.name.clone(), pattern };
            listing::answer(service.glob(asked.call(message)).await?.into_inner(), limit).await
        }
        Look::Watch { refreshes } => {
            let message = wire::WatchRequest { name: asked.name.clone(), include_refresh: refreshes == Flag::Yes };
            watching::answer(service.watch(asked.call(message)).await?.into_inner()).await
        }
        Look::Resolve { max_servers, permissions } => {
            let message = wire::ResolveRequest { name: asked.name.clone(), max_servers };
            let mut resolved = Resolved::from(answered(service.resolve(asked.call(message))).await?);
            if permissions == Flag::Yes {
                let message = wire::GetPermissionsRequest { name: asked.name.clone() };
                let reply = answered(service.get_permissions(asked.call(message))).await?;
                resolved.rights = Some(Rights::try_from(reply)?);
            }
            Ok(Json(resolved).into_response())
        }
    }
}

/// Mounts a server.
pub(super) async fn put<S: Store + Surroundings + Clone + 'static>(
    State(service): State<Service<S>>,
    asked: Asked<Nothing>,
    sent: Sent,
) -> Result<Json<Mounted>, Refusal> {
    let call = asked.call(sent.value::<Mount>()?.under(asked.name.clone()));
    Ok(Json(answered(service.mount(call)).await?.into()))
}

/// Takes servers away, or deletes the node.
pub(super) async fn delete<S: Store + Surroundings + Clone + 'static>(
    State(service): State<Service<S>>,
    mut asked: Asked<Loss>,
) -> Result<Json<Gone>, Refusal> {
    let name = asked.name.clone();
    let unmount = |server: String| wire::UnmountRequest { name: name.clone(), server };
    let message = match std::mem::take(&mut asked.query) {
        // To the calls an empty text means all servers, or any version: who left it empty by mistake would regret it.
        Loss { server: Some(text), .. } | Loss { version: Some(text), .. } if text.is_empty() => {
            return Err(bad("server and version must not be empty; servers=all takes all servers away").into());
        }
        Loss { server: Some(server), servers: None, subtree: Flag::No, version: None } => unmount(server),
        Loss { server: None, servers: Some(Servers::All), subtree: Flag::No, version: None } => unmount(String::new()),
        Loss { server: None, servers: None, subtree, version } => {
            let (subtree, expected_version) = (subtree == Flag::Yes, version.unwrap_or_default());
            let call = asked.call(wire::DeleteRequest { name, subtree, expected_version });
            return Ok(Json(Gone::Deleted(answered(service.delete(call)).await?.deleted)));
        }
        _ => return Err(bad("server, servers=all, or subtree and version: only one of the three goes").into()),
    };
    Ok(Json(Gone::Removed(answered(service.unmount(asked.call(message))).await?.removed)))
}

fn bad(wrong: &str) -> Error {
    Error::new(Reason::BadRequest, wrong)
}
