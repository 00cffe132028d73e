//! The pages of the HTTP port.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tracing::error;

use super::access::{Caller, Page, may_read};
use super::debug::{Arguments, ProcessInfo};
use super::readiness::Readiness;
use super::site::{Scheme, Site, to_request, to_response};
use crate::metrics::{Metrics, TextFormat, render};

/// Scrapes that are rendered at once.
const SCRAPES_MAX: usize = 2;
/// How long another one waits for its turn.
const SCRAPE_WAIT: Duration = Duration::from_secs(5);
/// How long the body of a request may take to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
const TEXT: &str = "text/plain; charset=utf-8";

/// What serves further paths, or why nothing does.
#[derive(Clone)]
enum Further {
    /// Where they are instead, for people.
    Elsewhere(&'static str),
    /// This site.
    Site(Arc<dyn Site>),
}

/// What the port of a process shows; clones show the same.
#[derive(Clone)]
pub struct Pages {
    metrics: Metrics,
    readiness: Readiness,
    info: ProcessInfo,
    scrapes: Arc<Semaphore>,
    /// Locked to copy or replace it.
    further: Arc<Mutex<Further>>,
}

impl fmt::Debug for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pages").field("info", &self.info).finish_non_exhaustive()
    }
}

/// The pages as one connection may read them.
#[derive(Clone, Debug)]
struct Reader {
    pages: Pages,
    caller: Caller,
    scheme: Scheme,
}

impl Pages {
    /// The pages of a process with these metrics, this readiness, and this to tell about itself.
    #[must_use]
    pub fn new(metrics: Metrics, readiness: Readiness, info: ProcessInfo) -> Self {
        let further = Further::Elsewhere("this process has no console");
        let (scrapes, further) = (Arc::new(Semaphore::new(SCRAPES_MAX)), Arc::new(Mutex::new(further)));
        Self { metrics, readiness, info, scrapes, further }
    }

    /// From now on `site` serves `/` and all paths that the port does not have itself.
    pub fn add_site(&self, site: Arc<dyn Site>) {
        *self.further.lock() = Further::Site(site);
    }

    /// From now on `/` says that there is no site, and where it is: `place`, a sentence without its end.
    pub fn name_site(&self, place: &'static str) {
        *self.further.lock() = Further::Elsewhere(place);
    }

    /// The routes for a connection of this caller.
    pub(super) fn routes(&self, caller: Caller, scheme: Scheme) -> Router {
        Router::new()
            .route("/healthz", get(healthz))
            .route("/readyz", get(readyz))
            .route("/metrics", get(metrics))
            .route("/debug/", get(debug))
            .route("/debug", get(debug))
            .layer(from_fn(only_reads))
            .fallback(further)
            .layer(from_fn(with_headers))
            .with_state(Reader { pages: self.clone(), caller, scheme })
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

/// Refuses other methods than those that read.
async fn only_reads(request: Request, next: Next) -> Response {
    match *request.method() {
        Method::GET | Method::HEAD => next.run(request).await,
        _ => refuse_method(),
    }
}

fn refuse_method() -> Response {
    (StatusCode::METHOD_NOT_ALLOWED, [(header::ALLOW, "GET, HEAD")], "this page only answers GET\n").into_response()
}

/// Adds the headers that all pages have.
async fn with_headers(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

fn text(status: StatusCode, body: impl Into<String>) -> Response {
    (status, [(header::CONTENT_TYPE, TEXT)], body.into()).into_response()
}

/// All other paths: those of the site, if there is one.
async fn further(State(reader): State<Reader>, request: Request) -> Response {
    let further = reader.pages.further.lock().clone();
    let site = match further {
        Further::Site(site) => site,
        Further::Elsewhere(_) if !matches!(*request.method(), Method::GET | Method::HEAD) => return refuse_method(),
        Further::Elsewhere(place) if request.uri().path() == "/" => {
            return text(StatusCode::OK, format!("/metrics\n/healthz\n/readyz\n/debug/\n\n{place}\n"));
        }
        Further::Elsewhere(_) => return text(StatusCode::NOT_FOUND, "no such page; / lists all\n"),
    };
    let received = tokio::time::timeout(BODY_TIMEOUT, to_request(request, reader.caller.into(), reader.scheme)).await;
    match received {
        Ok(Ok(request)) => to_response(site.serve(request).await),
        Ok(Err(refused)) => text(StatusCode::PAYLOAD_TOO_LARGE, refused),
        Err(_elapsed) => text(StatusCode::REQUEST_TIMEOUT, "the body of the request did not arrive in time\n"),
    }
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
