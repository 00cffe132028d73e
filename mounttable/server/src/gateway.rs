//! The gateway: names as JSON over HTTP, for scripts and browsers.
//!
//! ```text
//!   GET      /v1/names/{path}    resolves a name; ?glob= lists; ?watch=1 reports changes as server-sent events
//!   PUT      /v1/names/{path}    mounts a server
//!   DELETE   /v1/names/{path}    ?server= or ?servers=all unmounts servers; ?node=1 or ?subtree=1 deletes the node
//!   GET PUT  /v1/perms/{path}    permissions, with their version as ETag
//!   GET      /v1/openapi.json    the description of all this for machines
//!   GET      /healthz            whether the server can do its work
//!
//!   request      parsing: name, query, body, headers
//!   names        /v1/names; listing, watching: its streams
//!   permissions  /v1/perms
//!   healthz      /healthz
//!   json         bodies
//!   http_error   reasons as HTTP statuses, with advice
//! ```
//!
//! Invariant: a request becomes the equivalent gRPC call, with the request's headers, so identities, rights, reasons
//! and limits are those of [`crate::service`]. The gateway decides nothing itself. `/healthz` is no call: it needs no identity.
//!
//! What is absent: calls for superusers, pages for people, access for pages of other origins (CORS).

mod healthz;
mod http_error;
mod json;
mod listing;
mod names;
mod permissions;
mod request;
mod watching;

use axum::Router;
use axum::routing::{MethodFilter, MethodRouter, on};
use ebla_mounttable_tree::error::Reason;
use ebla_mounttable_tree::store::{Environment, Store};
use http::{StatusCode, Uri, header};
use tonic::service::Routes;

use crate::gateway::http_error::HttpError;
use crate::health::HealthView;
use crate::service::Service;

pub use listing::{ENTRIES, ENTRIES_MAX};
pub use request::BODY_BYTES_MAX;

/// The description of all operations, OpenAPI 3.
pub const OPENAPI: &str = include_str!("../openapi.json");

/// The placeholder for a name in a path. The name may contain slashes, or be empty.
const NAME: &str = "{path}";

/// The operations. [`OPENAPI`] describes each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Resolves a name, lists below it, or watches it.
    GetName,
    /// Mounts a server.
    PutName,
    /// Unmounts servers, or deletes the node.
    DeleteName,
    /// Returns permissions.
    GetPermissions,
    /// Replaces permissions.
    PutPermissions,
    /// Returns [`OPENAPI`].
    GetOpenapi,
    /// Returns whether the server can do its work.
    GetHealth,
}

impl Operation {
    /// All operations that are served.
    pub const ALL: [Self; 7] = [
        Self::GetName,
        Self::PutName,
        Self::DeleteName,
        Self::GetPermissions,
        Self::PutPermissions,
        Self::GetOpenapi,
        Self::GetHealth,
    ];

    /// Method and path, with `{path}` for a name.
    pub const fn place(self) -> (MethodFilter, &'static str) {
        match self {
            Self::GetName => (MethodFilter::GET, "/v1/names/{path}"),
            Self::PutName => (MethodFilter::PUT, "/v1/names/{path}"),
            Self::DeleteName => (MethodFilter::DELETE, "/v1/names/{path}"),
            Self::GetPermissions => (MethodFilter::GET, "/v1/perms/{path}"),
            Self::PutPermissions => (MethodFilter::PUT, "/v1/perms/{path}"),
            Self::GetOpenapi => (MethodFilter::GET, "/v1/openapi.json"),
            Self::GetHealth => (MethodFilter::GET, "/healthz"),
        }
    }

    fn handler<S>(self, method: MethodFilter, health: &HealthView) -> MethodRouter<Service<S>>
    where
        S: Store + Environment + Clone + 'static,
    {
        match self {
            Self::GetName => on(method, names::get::<S>),
            Self::PutName => on(method, names::put::<S>),
            Self::DeleteName => on(method, names::delete::<S>),
            Self::GetPermissions => on(method, permissions::get::<S>),
            Self::PutPermissions => on(method, permissions::put::<S>),
            Self::GetOpenapi => on(method, openapi),
            Self::GetHealth => {
                let health = health.clone();
                on(method, async move || healthz::answer(health.now()))
            }
        }
    }
}

/// Serves every operation with the calls of `service`; `health`: of the server.
pub(crate) fn routes<S: Store + Environment + Clone + 'static>(service: Service<S>, health: &HealthView) -> Routes {
    let add = |router: Router<Service<S>>, operation: Operation| {
        let (method, path) = operation.place();
        let handler = operation.handler(method, health);
        match path.strip_suffix(NAME) {
            // The pattern for other names does not match the root's empty name.
            Some(before) => router.route(before, handler.clone()).route(&format!("{before}{{*path}}"), handler),
            None => router.route(path, handler),
        }
    };
    let router = Operation::ALL.into_iter().fold(Router::new(), add);
    let router = router.fallback(unknown_path).method_not_allowed_fallback(method_not_allowed).layer(request::limit());
    Routes::from(router.with_state(service))
}

async fn openapi() -> ([(header::HeaderName, &'static str); 1], &'static str) {
    ([(header::CONTENT_TYPE, json::CONTENT_TYPE)], OPENAPI)
}

async fn unknown_path(uri: Uri) -> HttpError {
    let wrong = format!("no such path: {:?}", uri.path());
    HttpError::new(StatusCode::NOT_FOUND, Reason::BadRequest, wrong)
}

async fn method_not_allowed() -> HttpError {
    let wrong = "method not allowed; see the header Allow";
    HttpError::new(StatusCode::METHOD_NOT_ALLOWED, Reason::BadRequest, wrong)
}
