//! The gateway: names as JSON over HTTP, for scripts and browsers.
//!
//! ```text
//!   GET      /v1/names/{path}    where a name leads; ?glob= a listing; ?watch=1 what changes, as server-sent events
//!   PUT      /v1/names/{path}    mounts a server
//!   DELETE   /v1/names/{path}    deletes a node, or takes servers away from it
//!   GET PUT  /v1/perms/{path}    permissions, whose version is their ETag
//!   GET      /v1/openapi.json    all of this, for machines
//!
//!   ask          a request: name, query, body, who calls
//!   names        /v1/names; listing, watching: its streams
//!   permissions  /v1/perms
//!   json         what stands in bodies
//!   refusal      a reason as an HTTP status, with what to do next
//! ```
//!
//! Invariant: a request becomes the gRPC call that does the same, with the request's headers, so identities, rights, reasons
//! and limits are those of [`crate::service`]. Nothing is decided here.
//!
//! What is absent: calls for superusers, pages for people, permission for pages of other origins to read anything (CORS).

mod ask;
mod json;
mod listing;
mod names;
mod permissions;
mod refusal;
mod watching;

use axum::Router;
use axum::routing::{MethodFilter, MethodRouter, on};
use http::{StatusCode, Uri, header};
use tonic::service::Routes;

use crate::error::Reason;
use crate::gateway::refusal::Refusal;
use crate::service::Service;
use crate::store::{Store, Surroundings};

pub use ask::BODY_BYTES_MAX;
pub use listing::{ENTRIES, ENTRIES_MAX};

/// The description of all operations, OpenAPI 3.
pub const OPENAPI: &str = include_str!("../openapi.json");

/// What stands for a name in the place of an operation. It may hold slashes, and be empty.
const NAME: &str = "{path}";

/// What a request may do. [`OPENAPI`] describes each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Looks a name up, lists below it, or watches it.
    GetName,
    /// Mounts a server.
    PutName,
    /// Takes servers away, or deletes the node.
    DeleteName,
    /// Shows permissions.
    GetPermissions,
    /// Replaces permissions.
    PutPermissions,
    /// Shows [`OPENAPI`].
    GetOpenapi,
}

impl Operation {
    /// All of them: what is not in here is not served.
    pub const ALL: [Self; 6] =
        [Self::GetName, Self::PutName, Self::DeleteName, Self::GetPermissions, Self::PutPermissions, Self::GetOpenapi];

    /// Method and path, with `{path}` where a name stands.
    pub const fn place(self) -> (MethodFilter, &'static str) {
        match self {
            Self::GetName => (MethodFilter::GET, "/v1/names/{path}"),
            Self::PutName => (MethodFilter::PUT, "/v1/names/{path}"),
            Self::DeleteName => (MethodFilter::DELETE, "/v1/names/{path}"),
            Self::GetPermissions => (MethodFilter::GET, "/v1/perms/{path}"),
            Self::PutPermissions => (MethodFilter::PUT, "/v1/perms/{path}"),
            Self::GetOpenapi => (MethodFilter::GET, "/v1/openapi.json"),
        }
    }

    fn handler<S>(self, method: MethodFilter) -> MethodRouter<Service<S>>
    where
        S: Store + Surroundings + Clone + 'static,
    {
        match self {
            Self::GetName => on(method, names::get::<S>),
            Self::PutName => on(method, names::put::<S>),
            Self::DeleteName => on(method, names::delete::<S>),
            Self::GetPermissions => on(method, permissions::get::<S>),
            Self::PutPermissions => on(method, permissions::put::<S>),
            Self::GetOpenapi => on(method, openapi),
        }
    }
}

/// Serves every operation with the calls of `service`.
pub fn routes<S: Store + Surroundings + Clone + 'static>(service: Service<S>) -> Routes {
    let add = |router: Router<Service<S>>, operation: Operation| {
        let (method, path) = operation.place();
        let handler = operation.handler(method);
        match path.strip_suffix(NAME) {
            // The root's name is empty, which the pattern for the others does not match.
            Some(before) => router.route(before, handler.clone()).route(&format!("{before}{{*path}}"), handler),
            None => router.route(path, handler),
        }
    };
    let router = Operation::ALL.into_iter().fold(Router::new(), add);
    let router = router.fallback(elsewhere).method_not_allowed_fallback(otherwise).layer(ask::limit());
    Routes::from(router.with_state(service))
}

async fn openapi() -> ([(header::HeaderName, &'static str); 1], &'static str) {
    ([(header::CONTENT_TYPE, json::CONTENT_TYPE)], OPENAPI)
}

async fn elsewhere(uri: Uri) -> Refusal {
    let wrong = format!("nothing is served at {:?}", uri.path());
    Refusal::new(StatusCode::NOT_FOUND, Reason::BadRequest, wrong)
}

async fn otherwise() -> Refusal {
    let wrong = "this path is not served by this method: the header Allow lists those that do";
    Refusal::new(StatusCode::METHOD_NOT_ALLOWED, Reason::BadRequest, wrong)
}
