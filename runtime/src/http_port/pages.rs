//! The pages of the HTTP port.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use tokio::sync::Semaphore;
use tracing::error;

use super::access::{Caller, Page, may_read};
use super::debug::{Arguments, ProcessInfo};
use super::readiness::Readiness;
use crate::metrics::{Metrics, TextFormat, render};

/// Scrapes that are rendered at once.
const SCRAPES_MAX: usize = 2;
/// How long another one waits for its turn.
const SCRAPE_WAIT: Duration = Duration::from_secs(5);
const TEXT: &str = "text/plain; charset=utf-8";

/// What the port of a process shows; clones show the same.
#[derive(Clone, Debug)]
pub struct Pages {
    metrics: Metrics,
    readiness: Readiness,
    info: ProcessInfo,
    scrapes: Arc<Semaphore>,
}

/// The pages as one connection may read them.
#[derive(Clone, Debug)]
struct Reader {
    pages: Pages,
    caller: Caller,
}

impl Pages {
    /// The pages of a process with these metrics, this readiness, and this to tell about itself.
    #[must_use]
    pub fn new(metrics: Metrics, readiness: Readiness, info: ProcessInfo) -> Self {
        Self { metrics, readiness, info, scrapes: Arc::new(Semaphore::new(SCRAPES_MAX)) }
    }

    /// The routes for a connection of this caller.
    pub(super) fn routes(&self, caller: Caller) -> Router {
        Router::new()
            .route("/", get(index))
            .route("/healthz", get(healthz))
            .route("/readyz", get(readyz))
            .route("/metrics", get(metrics))
            .route("/debug/", get(debug))
            .route("/debug", get(debug))
            .fallback(unknown)
            .layer(from_fn(with_headers))
            .with_state(Reader { pages: self.clone(), caller })
    }
}

impl Reader {
    /// The refusal of a page that the caller may not read.
    fn check(&self, page: Page) -> Result<(), (StatusCode, &'static str)> {
        if may_read(self.caller, page) {
            return Ok(());
        }
        Err((StatusCode::FORBIDDEN, "this page needs a certificate of the cluster: `ebla cert client` makes one\n"))
    }
}

/// Adds the headers that all pages have, and refuses other methods than those that read.
async fn with_headers(request: Request, next: Next) -> Response {
    let mut response = match *request.method() {
        Method::GET | Method::HEAD => next.run(request).await,
        _ => (StatusCode::METHOD_NOT_ALLOWED, [(header::ALLOW, "GET, HEAD")], "this port only answers GET\n")
            .into_response(),
    };
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

fn text(status: StatusCode, body: impl Into<String>) -> Response {
    (status, [(header::CONTENT_TYPE, TEXT)], body.into()).into_response()
}

async fn index() -> Response {
    text(StatusCode::OK, "/metrics\n/healthz\n/readyz\n/debug/\n")
}

async fn unknown() -> Response {
    text(StatusCode::NOT_FOUND, "no such page; / lists all\n")
}

async fn healthz() -> Response {
    text(StatusCode::OK, "ok\n")
}

async fn readyz(State(reader): State<Reader>) -> Response {
    match reader.pages.readiness.now() {
        Ok(()) => text(StatusCode::OK, "ready\n"),
        Err(reason) => text(StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {reason}\n")),
    }
}

async fn debug(State(reader): State<Reader>) -> Response {
    if let Err((status, message)) = reader.check(Page::Debug) {
        return text(status, message);
    }
    let arguments = match may_read(reader.caller, Page::Arguments) {
        true => Arguments::Shown,
        false => Arguments::Hidden,
    };
    text(StatusCode::OK, reader.pages.info.page(arguments))
}

async fn metrics(State(reader): State<Reader>, headers: HeaderMap) -> Response {
    if let Err((status, message)) = reader.check(Page::Metrics) {
        return text(status, message);
    }
    let format = TextFormat::accepted(headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()));
    let Ok(Ok(_turn)) = tokio::time::timeout(SCRAPE_WAIT, reader.pages.scrapes.acquire()).await else {
        return text(StatusCode::SERVICE_UNAVAILABLE, "too many scrapes at once; scrape less often\n");
    };
    match render(reader.pages.metrics.samples().await, format) {
        Ok(body) => (StatusCode::OK, [(header::CONTENT_TYPE, format.media_type())], body).into_response(),
        Err(_unencodable) => {
            error!("metrics cannot be encoded");
            text(StatusCode::INTERNAL_SERVER_ERROR, "metrics cannot be encoded\n")
        }
    }
}
