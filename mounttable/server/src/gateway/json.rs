//! Bodies. Fields have the names of the gRPC messages; an absent deadline means no deadline.

use axum::response::{IntoResponse, Response};
use ebla_mounttable_tree::access::Permissions;
use ebla_mounttable_tree::error::Error;
use ebla_proto::mounttable as wire;
use http::header;
use serde::{Deserialize, Serialize};

use crate::service::messages;

/// For all bodies except streams.
pub(super) const CONTENT_TYPE: &str = "application/json";

/// A body of JSON.
#[derive(Debug)]
pub(super) struct Json<T>(pub(super) T);

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        ([(header::CONTENT_TYPE, CONTENT_TYPE)], text(&self.0)).into_response()
    }
}

/// A value as JSON, on one line.
pub(super) fn text(value: &impl Serialize) -> String {
    // Serialising structs, lists and string maps cannot fail.
    serde_json::to_string(value).unwrap_or_default()
}

/// A mounted server.
#[derive(Debug, Serialize)]
pub(super) struct Server {
    address: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    deadline_micros: Option<i64>,
    serves_mount_table: bool,
    is_leaf: bool,
}

impl From<wire::Server> for Server {
    fn from(server: wire::Server) -> Self {
        let wire::Server { address, deadline_micros, serves_mount_table, is_leaf } = server;
        Self { address, deadline_micros, serves_mount_table, is_leaf }
    }
}

/// Servers, in their order.
pub(super) fn servers(servers: Vec<wire::Server>) -> Vec<Server> {
    servers.into_iter().map(Server::from).collect()
}

/// The result of resolving a name.
#[derive(Debug, Serialize)]
pub(super) struct Resolved {
    /// The rest of the name below the servers.
    suffix: String,
    servers: Vec<Server>,
    stale: bool,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub(super) rights: Option<PermissionsBody>,
}

impl From<wire::Entry> for Resolved {
    fn from(entry: wire::Entry) -> Self {
        Self { suffix: entry.name, servers: servers(entry.servers), stale: entry.stale, rights: None }
    }
}

/// Permissions with their version.
#[derive(Debug, Serialize)]
pub(super) struct PermissionsBody {
    pub(super) permissions: Permissions,
    pub(super) etag: String,
}

impl TryFrom<wire::GetPermissionsReply> for PermissionsBody {
    type Error = Error;

    fn try_from(reply: wire::GetPermissionsReply) -> Result<Self, Error> {
        let permissions = messages::permissions_from_wire(&reply.permissions.unwrap_or_default())?;
        Ok(Self { permissions, etag: reply.etag })
    }
}

/// A mount request.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Mount {
    server: String,
    #[serde(default)]
    ttl_millis: u64,
    #[serde(default)]
    replace: bool,
    #[serde(default)]
    serves_mount_table: bool,
    #[serde(default)]
    is_leaf: bool,
}

impl Mount {
    /// The gRPC message that mounts it under `name`.
    pub(super) fn under(self, name: String) -> wire::MountRequest {
        let Self { server, ttl_millis, replace, serves_mount_table, is_leaf } = self;
        wire::MountRequest { name, server, ttl_millis, replace, serves_mount_table, is_leaf }
    }
}

/// The result of a mount.
#[derive(Debug, Serialize)]
pub(super) struct Mounted {
    #[serde(skip_serializing_if = "Option::is_none")]
    deadline_micros: Option<i64>,
    created_nodes: u32,
    shadowed_children: bool,
}

impl From<wire::MountReply> for Mounted {
    fn from(reply: wire::MountReply) -> Self {
        let wire::MountReply { deadline_micros, created_nodes, shadowed_children } = reply;
        Self { deadline_micros, created_nodes, shadowed_children }
    }
}

/// The result of a DELETE: the number of unmounted servers, or of deleted nodes.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum DeleteReply {
    Removed(u32),
    Deleted(u64),
}
