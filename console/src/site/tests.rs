//! Responses of the console while its cluster does not answer: who gets which page, and what a form may do.

use std::sync::Arc;

use ebla_client::{BearerToken, Cluster, ClusterOptions, Directory, GrpcTransport, LocateDirectory};
use ebla_runtime::http_port::{Place, Scheme};
use futures::StreamExt as _;

use super::*;
use crate::context::{Actions, Setting};

/// An address at which nothing listens.
const NOWHERE: &str = "127.0.0.1:1";

fn console(access: AccessMode, actions: Actions) -> Console {
    with_mounttable(access, actions, Vec::new())
}

fn with_mounttable(access: AccessMode, actions: Actions, mounttable: Vec<String>) -> Console {
    let runtime = Runtime::system("console");
    let directory: Arc<dyn Directory> = Arc::new(LocateDirectory::new(vec![NOWHERE.to_owned()], &runtime));
    let transport = Arc::new(GrpcTransport::new(runtime.clone(), Arc::clone(&directory)));
    let options = ClusterOptions { directory, transport, runtime: runtime.clone(), home: None };
    let config = ConsoleConfig {
        api: NOWHERE.to_owned(),
        cluster: Cluster::new(options),
        access,
        actions,
        mounttable,
        process: "ebla test".to_owned(),
        configuration_command: "ebla config show".to_owned(),
        configuration: vec![Setting {
            key: "listen".to_owned(),
            value: "=1+2".to_owned(),
            origin: "file",
            variable: None,
            is_reloadable: false,
        }],
    };
    Console::new(config, runtime)
}

fn request(method: Method, target: &str, headers: &[(&'static str, &'static str)], body: &'static str) -> SiteRequest {
    let mut request = http::Request::builder().method(method).uri(target);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let (head, ()) = request.body(()).unwrap().into_parts();
    SiteRequest { head, body: Bytes::from_static(body.as_bytes()), place: Place::Local, scheme: Scheme::Http }
}

/// The status and the document.
async fn answer(console: &Console, request: SiteRequest) -> (u16, String) {
    let response = console.serve(request).await;
    assert_eq!(response.headers().get(header::CONTENT_SECURITY_POLICY).unwrap(), POLICY);
    let body = match response.body() {
        SiteBody::Whole(body) => String::from_utf8(body.to_vec()).unwrap(),
        SiteBody::Parts(_) => "(stream)".to_owned(),
    };
    (response.status().as_u16(), body)
}

const HERE: (&str, &str) = ("host", "localhost:8080");
const FROM_HERE: (&str, &str) = ("origin", "http://localhost:8080");

#[tokio::test]
async fn without_a_token_there_is_the_login_form_only() {
    let console = console(AccessMode::Tokens, Actions::Permitted);
    for target in ["/", "/servers", "/tables/web/data", "/live?page=%2F", "/search?q=3", "/absent"] {
        let (status, body) = answer(&console, request(Method::GET, target, &[HERE], "")).await;
        assert_eq!(status, 401, "{target}");
        assert!(body.contains("Token (JWT)") && !body.contains("<nav"), "{target}: {body}");
    }
    let (status, _) = answer(&console, request(Method::POST, "/servers/1/drain", &[HERE, FROM_HERE], "")).await;
    assert_eq!(status, 401);
    let (status, body) = answer(&console, request(Method::POST, "/login", &[HERE], "token=a.b.c")).await;
    assert!(status == 401 && body.contains("another site"), "a form without an origin: {body}");
    let (status, body) = answer(&console, request(Method::POST, "/login", &[HERE, FROM_HERE], "token=a%3Bb")).await;
    assert!(status == 401 && body.contains("no token"), "{body}");
    assert_eq!(answer(&console, request(Method::GET, "/console.css", &[], "")).await.0, 200);
}

#[tokio::test]
async fn changes_need_the_option_and_the_origin() {
    let drain = |headers| request(Method::POST, "/servers/1/drain", headers, "");
    let shows = console(AccessMode::Open, Actions::ReadOnly);
    let (status, body) = answer(&shows, drain(&[HERE, FROM_HERE])).await;
    assert!(status == 403 && body.contains("--console-admin"), "{body}");
    let changes = console(AccessMode::Open, Actions::Permitted);
    for headers in [&[HERE][..], &[HERE, ("origin", "http://evil.example")], &[HERE, ("origin", "null")]] {
        let (status, body) = answer(&changes, drain(headers)).await;
        assert!(status == 403 && body.contains("another site"), "{headers:?}: {body}");
    }
    // It is attempted, and the cluster does not answer.
    assert_eq!(answer(&changes, drain(&[HERE, FROM_HERE])).await.0, 503);
    let (status, _) = answer(&changes, request(Method::PUT, "/servers/1/drain", &[HERE, FROM_HERE], "")).await;
    assert_eq!(status, 400);
}

#[tokio::test]
async fn a_cluster_that_does_not_answer_has_pages_with_the_reason() {
    let console = console(AccessMode::Open, Actions::ReadOnly);
    let (status, body) = answer(&console, request(Method::GET, "/servers", &[HERE], "")).await;
    assert!(status == 503 && body.contains("cannot reach 127.0.0.1:1"), "{body}");
    let (status, body) = answer(&console, request(Method::GET, "/mt", &[HERE], "")).await;
    assert!(status == 400 && body.contains("knows no mounttable"), "{body}");
    assert_eq!(answer(&console, request(Method::GET, "/absent", &[HERE], "")).await.0, 404);
    let (status, body) = answer(&console, request(Method::GET, "/config", &[("host", "evil.example")], "")).await;
    assert!(status == 403 && body.contains("name of this machine"), "{body}");
    let (status, body) = answer(&console, request(Method::GET, "/config", &[HERE], "")).await;
    assert!(status == 200 && body.contains("ebla config show"), "{body}");
    let found = console.serve(request(Method::GET, "/search?q=web+a%2Fb", &[HERE], "")).await;
    assert_eq!(found.headers().get(header::LOCATION).unwrap(), "/locate?table=web&key=a%2Fb");
}

#[tokio::test]
async fn streams_are_bounded() {
    let console = console(AccessMode::Open, Actions::ReadOnly);
    let live = || request(Method::GET, "/live?page=%2Fservers", &[HERE], "");
    let mut open = Vec::new();
    for _ in 0..STREAMS_MAX {
        open.push(console.serve(live()).await);
    }
    assert_eq!(answer(&console, live()).await.0, 503);
    open.pop();
    assert_eq!(answer(&console, live()).await, (200, "(stream)".to_owned()));
}

#[tokio::test]
async fn only_a_verified_viewer_of_a_page_with_live_parts_has_a_stream() {
    let guarded = console(AccessMode::Tokens, Actions::ReadOnly);
    let free = guarded.streams.available_permits();
    let live = |page: &'static str| request(Method::GET, page, &[HERE, ("authorization", "Bearer a.b.c")], "");
    for page in ["/live?page=%2Fconfig", "/live?page=%2Fservers", "/live?page=%2Fheat"] {
        let response = guarded.serve(live(page)).await;
        // The cluster cannot say whether the token is valid.
        assert!(response.status() == 503 && matches!(response.body(), SiteBody::Whole(_)), "{page}");
        assert_eq!(guarded.streams.available_permits(), free, "{page}");
    }
    let open = console(AccessMode::Open, Actions::ReadOnly);
    for (page, status) in [("/live?page=%2Fconfig", 400), ("/live?page=%2Fabsent", 404), ("/live?page=%2Fmt", 400)] {
        assert_eq!(answer(&open, request(Method::GET, page, &[HERE], "")).await.0, status, "{page}");
        assert_eq!(open.streams.available_permits(), free, "{page}");
    }
}

#[tokio::test]
async fn a_stream_ends_with_the_right_to_the_page() {
    let console = console(AccessMode::Open, Actions::ReadOnly);
    for (reason, ends) in [(Reason::PermissionDenied, true), (Reason::Unauthenticated, true), (Reason::Busy, false)] {
        let (config, recent) = (Arc::clone(&console.config), console.recent.clone());
        let (admin, rendering) = (console.admin.clone(), Blocking::inline());
        let context = Context::new(config, None, Place::Local, admin, recent, rendering, console.runtime.clone());
        let permit = Arc::clone(&console.streams).try_acquire_owned().unwrap();
        let first = Err(Error::new(reason, "why"));
        let mut stream =
            live::stream(context, PageRequest::default(), first, Arc::clone(&console.pages), permit).fuse();
        assert_eq!(stream.next().await.unwrap(), "event: failed\ndata: \"why\"\n\n", "{reason}");
        let next = tokio::time::timeout(Duration::from_millis(100), stream.next()).await;
        assert_eq!(next.is_ok_and(|event| event.is_none()), ends, "{reason}");
    }
}

/// An address of a page can name any server. Only this console's mounttable is asked, and only for a viewer with a valid token.
#[tokio::test]
async fn a_name_in_an_address_chooses_no_server() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    let get = |target: String| {
        let mut request = request(Method::GET, "/", &[HERE, ("authorization", "Bearer a.b.c")], "");
        request.head.uri = target.parse().unwrap();
        request
    };
    let open = with_mounttable(AccessMode::Open, Actions::ReadOnly, vec![format!("/{NOWHERE}")]);
    for parameters in [format!("name=/{address}/x"), format!("resolve=/{address}/x"), format!("name=//{address}")] {
        let (status, body) = answer(&open, get(format!("/mt?{parameters}"))).await;
        assert!(status == 403 && body.contains("only its own mounttable"), "{parameters}: {body}");
    }
    let guarded = with_mounttable(AccessMode::Tokens, Actions::ReadOnly, vec![format!("/{address}")]);
    for target in ["/mt".to_owned(), format!("/mt?name=/{address}/x"), "/live?page=%2Fmt".to_owned()] {
        assert_eq!(answer(&guarded, get(target.clone())).await.0, 503, "{target}: the token is not verified");
    }
    assert_eq!(listener.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock, "nothing connects");
}

#[tokio::test]
async fn options_of_the_process_are_not_for_certificates_of_users() {
    let console = console(AccessMode::Open, Actions::ReadOnly);
    let at = |place| SiteRequest { place, ..request(Method::GET, "/config", &[HERE], "") };
    assert_eq!(answer(&console, at(Place::Client)).await.0, 403);
    for place in [Place::Local, Place::Member] {
        assert_eq!(answer(&console, at(place)).await.0, 200);
    }
    for place in [Place::Anonymous, Place::Unsecured] {
        let (status, body) = answer(&console, at(place)).await;
        assert!(status == 403 && !body.contains("ebla config show"), "{body}");
    }
}

#[tokio::test]
async fn a_table_is_a_file_for_those_who_may_see_the_page() {
    let open = console(AccessMode::Open, Actions::ReadOnly);
    let (status, page) = answer(&open, request(Method::GET, "/config", &[HERE], "")).await;
    assert!(status == 200 && page.contains("href=\"/config?format=csv&amp;export=1\""), "{page}");
    let response = open.serve(request(Method::GET, "/config?format=csv", &[HERE], "")).await;
    let header = |name| response.headers().get(name).unwrap().to_str().unwrap().to_owned();
    assert_eq!(header(header::CONTENT_TYPE), "text/csv; charset=utf-8");
    assert_eq!(header(header::CONTENT_DISPOSITION), "attachment; filename=\"ebla-config-1.csv\"");
    let (status, csv) = answer(&open, request(Method::GET, "/config?format=csv", &[HERE], "")).await;
    assert!(status == 200 && csv.contains("\"listen\",\"'=1+2\",\"file\""), "{csv}");
    let (status, json) = answer(&open, request(Method::GET, "/config?format=json", &[HERE], "")).await;
    let rows: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert!(status == 200 && rows[0].as_object().unwrap().values().any(|value| value == "=1+2"), "{json}");
    for (target, expected) in [("/config?format=xml", 400), ("/config?format=csv&export=2", 404)] {
        assert_eq!(answer(&open, request(Method::GET, target, &[HERE], "")).await.0, expected, "{target}");
    }
    // A file needs the same rights as its page.
    let user = SiteRequest { place: Place::Client, ..request(Method::GET, "/config?format=csv", &[HERE], "") };
    assert_eq!(answer(&open, user).await.0, 403);
    let guarded = console(AccessMode::Tokens, Actions::ReadOnly);
    assert_eq!(answer(&guarded, request(Method::GET, "/config?format=csv", &[HERE], "")).await.0, 401);
}

#[tokio::test]
async fn a_range_of_time_is_kept_by_all_links() {
    let console = console(AccessMode::Open, Actions::ReadOnly);
    let (status, page) = answer(&console, request(Method::GET, "/config?time=6h", &[HERE], "")).await;
    assert_eq!(status, 200);
    for link in ["/events?time=6h", "/slow?time=6h", "/heat?time=6h", "/config?time=6h&amp;format=csv&amp;export=1"] {
        assert!(page.contains(&format!("href=\"{link}\"")), "{link}: {page}");
    }
    let (_, page) = answer(&console, request(Method::GET, "/config?time=%22%3E", &[HERE], "")).await;
    assert!(page.contains("href=\"/events\""), "an unknown range is not kept: {page}");
    let found = console.serve(request(Method::GET, "/search?q=3&time=6h", &[HERE], "")).await;
    assert_eq!(found.headers().get(header::LOCATION).unwrap(), "/servers/3?time=6h");
    for target in ["/events?time=2h", "/slow?time=x"] {
        assert_eq!(answer(&console, request(Method::GET, target, &[HERE], "")).await.0, 400, "{target}");
    }
}

#[tokio::test]
async fn the_history_of_an_open_page_is_read_at_a_slow_pace() {
    let runtime = Runtime { clock: ebla_runtime::Clock::manual(), ..Runtime::system("console") };
    let console = Console { runtime, ..console(AccessMode::Open, Actions::ReadOnly) };
    let (config, recent, runtime) = (Arc::clone(&console.config), console.recent.clone(), console.runtime.clone());
    let (admin, rendering) = (console.admin.clone(), Blocking::inline());
    let context = Context::new(config, None, Place::Local, admin, recent, rendering, runtime);
    let readings = std::sync::atomic::AtomicUsize::new(0);
    let read = || async {
        readings.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Ok(crate::pages::golden::events())
    };
    let failed = async { Err(Error::new(Reason::Busy, "later")) };
    assert_eq!(context.history(failed).await.unwrap_err().reason, Reason::Busy);
    for (second, expected) in [(0, 1), (1, 1), (13, 1), (2, 2), (14, 2)] {
        context.runtime().clock.advance(Duration::from_secs(second));
        assert_eq!(context.history(read()).await.unwrap(), crate::pages::golden::events());
        assert_eq!(readings.load(std::sync::atomic::Ordering::Relaxed), expected, "{second} s later");
    }
}

#[tokio::test]
async fn the_state_that_an_open_page_has_seen_proves_the_right_of_its_viewer_for_five_seconds() {
    let runtime = Runtime { clock: ebla_runtime::Clock::manual(), ..Runtime::system("console") };
    let console = Console { runtime, ..console(AccessMode::Tokens, Actions::ReadOnly) };
    let context = || {
        let (config, recent, runtime) = (Arc::clone(&console.config), console.recent.clone(), console.runtime.clone());
        let (admin, rendering) = (console.admin.clone(), Blocking::inline());
        let token = Some(BearerToken::new("a.b.c").unwrap());
        Context::new(config, token, Place::Local, admin, recent, rendering, runtime)
    };
    let (open, other) = (context(), context());
    // The cluster does not answer.
    assert!(open.require_administrator().await.is_err());
    open.set_earlier(crate::pages::golden::snapshot());
    console.runtime.clock.advance(Duration::from_millis(4_999));
    assert_eq!(open.require_administrator().await, Ok(()));
    assert_eq!(open.examine_earlier(|state| state.servers.len()), Some(3));
    assert!(other.require_administrator().await.is_err(), "another page");
    console.runtime.clock.advance(Duration::from_millis(1));
    assert!(open.require_administrator().await.is_err());
    assert_eq!(open.examine_earlier(|state| state.servers.len()), None);
}

#[tokio::test]
async fn a_page_that_cannot_be_rendered_says_so() {
    let console = console(AccessMode::Open, Actions::ReadOnly);
    let (config, recent, runtime) = (Arc::clone(&console.config), console.recent.clone(), console.runtime.clone());
    let (admin, rendering) = (console.admin.clone(), console.rendering.clone());
    let context = Context::new(config, None, Place::Local, admin, recent, rendering, runtime);
    let here = std::thread::current().id();
    assert_ne!(context.render(|| std::thread::current().id()).await, Ok(here), "not on the thread that serves");
    let failed = context.render(|| -> u8 { panic!("planned") }).await;
    assert_eq!(failed.unwrap_err().reason, Reason::Internal);
    assert_eq!(context.render(|| 7).await, Ok(7));
}
