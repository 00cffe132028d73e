//! The console as the site of an HTTP port: a request in, a response out.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ebla_client::Admin;
use ebla_model::error::{Error, Reason};
use ebla_runtime::http_port::{Site, SiteBody, SiteRequest};
use ebla_runtime::{Blocking, Runtime};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use http::{HeaderValue, Method, Response, StatusCode, header};
use tokio::sync::Semaphore;

use crate::context::{AccessMode, ConsoleConfig, Context};
use crate::export::Format;
use crate::html::{Html, Path, action_form, element};
use crate::layout::{Frame, Session, document};
use crate::pages::time_range::{self, TimeRange};
use crate::pages::{Page, note};
use crate::recent::RecentEvents;
use crate::request::PageRequest;
use crate::viewer::{Admission, admit};
use crate::{actions, assets, export, live, route};

/// How long a page may take to render; then it says that the cluster does not answer.
pub(crate) const PAGE_TIMEOUT: Duration = Duration::from_secs(5);
/// Pages that are rendered at once, those of streams included.
const PAGES_MAX: usize = 16;
/// Streams of live parts at once. A page beyond them shows its state at the time of its loading.
const STREAMS_MAX: usize = 24;
/// Threads that render large pages.
const RENDERING_THREADS: usize = 2;
/// Only files of this site, no code inside of pages, in no frame of another page.
const POLICY: &str =
    "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'";
const HTML: &str = "text/html; charset=utf-8";

/// The console of a process. Cheap to clone.
#[derive(Clone)]
pub struct Console {
    config: Arc<ConsoleConfig>,
    runtime: Runtime,
    pages: Arc<Semaphore>,
    streams: Arc<Semaphore>,
    /// The connection of all admin calls; each has the token of its viewer.
    admin: Admin,
    recent: RecentEvents,
    /// Renders large pages.
    rendering: Blocking,
}

impl fmt::Debug for Console {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Console").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Site for Console {
    fn serve(&self, request: SiteRequest) -> BoxFuture<'_, Response<SiteBody>> {
        async move {
            let mut response = self.respond(request).await;
            let headers = response.headers_mut();
            headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
            // Addresses have names of tables and keys. Without any referrer browsers would not name the origin of a change either.
            headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("same-origin"));
            response
        }
        .boxed()
    }
}

impl Console {
    /// A console with these parts. Its calls are made by tasks of the HTTP port.
    #[must_use]
    pub fn new(config: ConsoleConfig, runtime: Runtime) -> Self {
        let [pages, streams] = [PAGES_MAX, STREAMS_MAX].map(|max| Arc::new(Semaphore::new(max)));
        let admin = Admin::connect(&config.api, &runtime);
        // Each page that is rendered waits at most once. Without another thread this one renders.
        let rendering =
            Blocking::pool("console", RENDERING_THREADS, PAGES_MAX).unwrap_or_else(|_error| Blocking::inline());
        Self { config: Arc::new(config), runtime, pages, streams, admin, recent: RecentEvents::default(), rendering }
    }

    async fn respond(&self, request: SiteRequest) -> Response<SiteBody> {
        let target = request.head.uri.path_and_query().map_or("/", |target| target.as_str()).to_owned();
        let is_read = matches!(request.head.method, Method::GET | Method::HEAD);
        if let Some((media_type, content)) = assets::find(request.head.uri.path()).filter(|_| is_read) {
            return respond(StatusCode::OK, media_type, SiteBody::Whole(content));
        }
        let form = if is_read { "" } else { std::str::from_utf8(&request.body).unwrap_or_default() };
        let asked = match PageRequest::parse(&target, form) {
            Ok(asked) => asked,
            Err(error) => return self.failed(&error, Session::None),
        };
        let is_login = asked.path() == ["login"] && self.config.access == AccessMode::Tokens;
        if !is_read && is_login {
            return match actions::login(&self.config, &self.runtime, &request, &asked).await {
                Ok(response) => response,
                Err(error) => self.login(Some(&error)),
            };
        }
        let admission = admit(self.config.access, request.place, request.scheme, &request.head.headers);
        let (context, session) = match admission {
            Admission::Viewer(token) => {
                let session = if token.is_some() { Session::Token } else { Session::Open };
                let (config, recent) = (Arc::clone(&self.config), self.recent.clone());
                let (admin, rendering) = (self.admin.clone(), self.rendering.clone());
                (Context::new(config, token, request.place, admin, recent, rendering, self.runtime.clone()), session)
            }
            Admission::Login => return self.login(None),
            Admission::Refused(reason) => {
                return self.failed(&Error::new(Reason::PermissionDenied, reason), Session::None);
            }
        };
        match (request.head.method.clone(), asked.path().as_slice()) {
            (Method::GET | Method::HEAD, ["search"]) => {
                let to = route::search(asked.get("q").unwrap_or_default());
                let kept = kept(&asked);
                see_other(&kept.map_or(to.clone(), |range| to.with(time_range::PARAMETER, range.name)))
            }
            (Method::GET, ["live"]) => self.live(context, &asked, session).await,
            (Method::GET | Method::HEAD, _) => self.page(&context, &asked, session).await,
            (Method::POST, _) => match actions::act(&context, &request, &asked).await {
                Ok(response) => response,
                Err(error) => self.failed(&error, session),
            },
            _ => {
                self.failed(&Error::invalid("this method is not supported: pages have GET, changes have POST"), session)
            }
        }
    }

    async fn page(&self, context: &Context, asked: &PageRequest, session: Session) -> Response<SiteBody> {
        // Closed never.
        let Ok(_turn) = self.pages.acquire().await else {
            return self.failed(&Error::new(Reason::Busy, "the console is closed"), session);
        };
        match self.answer(context, asked, session).await {
            Ok(response) => response,
            Err(error) => self.refused(&error, session),
        }
    }

    /// The page of a request as a document, or a table of it as a file.
    async fn answer(
        &self,
        context: &Context,
        asked: &PageRequest,
        session: Session,
    ) -> Result<Response<SiteBody>, Error> {
        let Some(format) = Format::of(asked)? else {
            let page = rendered(context, asked).await?;
            let (config, asked) = (Arc::clone(&self.config), asked.clone());
            return context.render(move || show(&config, StatusCode::OK, &page, &asked, session)).await;
        };
        // A file has no links, so the tables are read once.
        let (page, asked) = (loaded(context, asked).await?, asked.clone());
        let file = context.render(move || export::file(&page, &asked, format)).await??;
        let mut response = respond(StatusCode::OK, format.media_type(), SiteBody::Whole(file.content.into()));
        if let Ok(disposition) = HeaderValue::from_str(&format!("attachment; filename=\"{}\"", file.name)) {
            response.headers_mut().insert(header::CONTENT_DISPOSITION, disposition);
        }
        Ok(response)
    }

    /// The stream of a page with live parts. The token is verified before the stream counts, and the first rendering decides the status.
    async fn live(&self, context: Context, asked: &PageRequest, session: Session) -> Response<SiteBody> {
        let followed = match PageRequest::parse(asked.get("page").unwrap_or("/"), "") {
            Ok(followed) => followed,
            Err(error) => return self.failed(&error, session),
        };
        // Closed never.
        let Ok(turn) = self.pages.acquire().await else {
            return self.failed(&Error::new(Reason::Busy, "the console is closed"), session);
        };
        if let Err(error) = context.verify().await {
            return self.refused(&error, session);
        }
        let Ok(permit) = Arc::clone(&self.streams).try_acquire_owned() else {
            let message = format!("{STREAMS_MAX} pages are live already; load this one again to see its present state");
            return self.failed(&Error::new(Reason::Busy, message), session);
        };
        let first = rendered(&context, &followed).await;
        drop(turn);
        match &first {
            Err(error) if status_of(error.reason).is_client_error() => return self.refused(error, session),
            Ok(page) if page.parts.iter().all(|part| part.live.is_none()) => {
                let message = "this page has no live parts: load it again to see its present state";
                return self.failed(&Error::invalid(message), session);
            }
            _ => {}
        }
        let parts = live::stream(context, followed, first, Arc::clone(&self.pages), permit);
        respond(StatusCode::OK, "text/event-stream", SiteBody::Parts(parts))
    }

    /// The login form for an invalid token, otherwise the page of the error.
    fn refused(&self, error: &Error, session: Session) -> Response<SiteBody> {
        match error.reason {
            Reason::Unauthenticated => self.login(Some(error)),
            _ => self.failed(error, session),
        }
    }

    /// The page of an error.
    fn failed(&self, error: &Error, session: Session) -> Response<SiteBody> {
        let name = element("span").class("note").test_id("failure-reason").text(error.reason);
        let what = element("p").class("failure").test_id("failure").text(&error.message);
        let page = Page::new("This page cannot be shown", "").fixed(what).fixed(name);
        show(&self.config, status_of(error.reason), &page, &PageRequest::default(), session)
    }

    /// The login form; `refused`: why the last token was not accepted.
    fn login(&self, refused: Option<&Error>) -> Response<SiteBody> {
        let why = refused.map_or(Html::empty(), |error| {
            element("p").class("failure").test_id("failure").text(&error.message).into()
        });
        let token = element("input")
            .attr("type", "password")
            .attr("name", "token")
            .attr("autocomplete", "off")
            .test_id("token")
            .flag("required");
        let form = action_form(&Path::of(&["login"]))
            .class("fields")
            .child(element("label").text("Token (JWT)").child(token))
            .child(element("button").test_id("log-in").text("Log in"));
        let page = Page::new("Log in", "")
            .fixed(note("This cluster has access control: the console shows what your token permits. `ebla token issue` makes tokens."))
            .fixed(why)
            .fixed(form);
        show(&self.config, StatusCode::UNAUTHORIZED, &page, &PageRequest::default(), Session::None)
    }
}

/// A page as a document.
fn show(
    config: &ConsoleConfig,
    status: StatusCode,
    page: &Page,
    asked: &PageRequest,
    session: Session,
) -> Response<SiteBody> {
    let (here, kept) = (asked.to_path(&[]), kept(asked));
    let frame = Frame { process: &config.process, place: asked.segment(0), here, kept, session };
    respond(status, HTML, SiteBody::Whole(document(page, &frame).as_str().to_owned().into()))
}

/// The range of time that the links of a page keep.
fn kept(asked: &PageRequest) -> Option<TimeRange> {
    TimeRange::of(asked).ok().flatten()
}

/// The page of a request, in time.
///
/// # Errors
/// Those of the page; `Deadline` when it takes longer than [`PAGE_TIMEOUT`].
async fn loaded(context: &Context, asked: &PageRequest) -> Result<Page, Error> {
    let page = Box::pin(route::page(context, asked));
    let late = |_elapsed| {
        let message = format!(
            "the cluster did not answer within {} s; `ebla status` shows what is missing",
            PAGE_TIMEOUT.as_secs()
        );
        Error::new(Reason::Deadline, message)
    };
    tokio::time::timeout(PAGE_TIMEOUT, page).await.map_err(late)?
}

/// As [`loaded`], with what all pages have: links to their tables as files, and the range of time in all links.
///
/// # Errors
/// As [`loaded`].
pub(crate) async fn rendered(context: &Context, asked: &PageRequest) -> Result<Page, Error> {
    let (page, asked) = (loaded(context, asked).await?, asked.clone());
    let complete = move || {
        let page = export::with_links(page, &asked);
        match kept(&asked) {
            Some(range) => page.map(|html| html.keep(time_range::PARAMETER, range.name)),
            None => page,
        }
    };
    context.render(complete).await
}

/// A response.
pub(crate) fn respond(status: StatusCode, media_type: &'static str, body: SiteBody) -> Response<SiteBody> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
    response
}

/// The response to a change that has succeeded: the browser loads this page.
pub(crate) fn see_other(to: &Path) -> Response<SiteBody> {
    let mut response = respond(StatusCode::SEE_OTHER, HTML, SiteBody::Whole(Bytes::new()));
    if let Ok(to) = HeaderValue::from_str(&to.to_string()) {
        response.headers_mut().insert(header::LOCATION, to);
    }
    response
}

/// The status of the page of an error.
const fn status_of(reason: Reason) -> StatusCode {
    match reason {
        Reason::NotFound | Reason::NotFoundTable | Reason::NotFoundFamily => StatusCode::NOT_FOUND,
        Reason::PermissionDenied => StatusCode::FORBIDDEN,
        Reason::Unauthenticated => StatusCode::UNAUTHORIZED,
        Reason::InvalidArgument | Reason::FailedPrecondition => StatusCode::BAD_REQUEST,
        Reason::Internal | Reason::DataDamaged => StatusCode::INTERNAL_SERVER_ERROR,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    }
}

#[cfg(test)]
#[path = "site/tests.rs"]
mod tests;
