//! The port on real connections.

use std::sync::Arc;

use futures::future::BoxFuture;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;
use crate::clock::Clock;
use crate::metrics::{Metrics, ProcessSource, Sample, Source};

/// A port with the metrics of this process.
struct Fixture {
    runtime: Runtime,
    address: String,
    readiness: Readiness,
    metrics: Metrics,
    pages: Pages,
}

impl Fixture {
    async fn start() -> Self {
        Self::start_on(Runtime::system("test")).await
    }

    async fn start_on(runtime: Runtime) -> Self {
        let process = Arc::new(ProcessSource::new("test", "1.2.3", Clock::system(), None));
        let (metrics, readiness) = (Metrics::default(), Readiness::not_ready("opening its stores"));
        metrics.register(Arc::clone(&process) as Arc<dyn Source>);
        let arguments = shown_arguments(["ebla", "--token", "abc"].map(std::ffi::OsString::from));
        let info = ProcessInfo { process, arguments, tasks: runtime.tasks.clone() };
        let pages = Pages::new(metrics.clone(), readiness.clone(), info);
        let port = HttpPort::start("127.0.0.1:0", pages.clone(), &runtime).await.unwrap();
        Self { runtime, address: port.address().to_owned(), readiness, metrics, pages }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(&self.address).await.unwrap()
    }

    /// The response to one request on a connection of its own.
    async fn request(&self, head: &str) -> String {
        let mut stream = self.connect().await;
        let request = format!("{head}\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).await.unwrap();
        response
    }

    async fn get(&self, path: &str) -> String {
        self.request(&format!("GET {path} HTTP/1.1")).await
    }
}

#[tokio::test]
async fn every_page_answers() {
    let fixture = Fixture::start().await;
    let health = fixture.get("/healthz").await;
    assert!(health.starts_with("HTTP/1.1 200 OK\r\n") && health.ends_with("ok\n"), "{health}");
    assert!(health.contains("cache-control: no-store\r\n"), "{health}");
    let unready = fixture.get("/readyz").await;
    assert!(unready.starts_with("HTTP/1.1 503 ") && unready.ends_with("not ready: opening its stores\n"), "{unready}");
    fixture.readiness.decide_by(|| Ok(()));
    assert!(fixture.get("/readyz").await.starts_with("HTTP/1.1 200 OK\r\n"));
    fixture.readiness.refuse("stopping");
    assert!(fixture.get("/readyz").await.ends_with("not ready: stopping\n"));
    let metrics = fixture.get("/metrics").await;
    assert!(metrics.contains("content-type: text/plain; version=0.0.4") && !metrics.contains("# EOF"), "{metrics}");
    assert!(metrics.contains("\nebla_build{version=\"1.2.3\",role=\"test\"} 1\n"), "{metrics}");
    assert!(metrics.contains("# TYPE ebla_process_cpu_seconds_total counter\n"), "{metrics}");
    let open = fixture.request("GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text").await;
    assert!(open.contains("content-type: application/openmetrics-text") && open.contains("# EOF\n"), "{open}");
    let debug = fixture.get("/debug/").await;
    assert!(debug.contains("arguments   ebla --token (hidden)\n") && !debug.contains("abc"), "{debug}");
    assert!(fixture.get("/absent").await.starts_with("HTTP/1.1 404 "));
    let post = fixture.request("POST /metrics HTTP/1.1\r\nContent-Length: 0").await;
    assert!(post.starts_with("HTTP/1.1 405 ") && post.contains("allow: GET, HEAD\r\n"), "{post}");
    let too_long = fixture.request(&format!("GET / HTTP/1.1\r\nX: {}", "x".repeat(BUFFER_BYTES_MAX))).await;
    assert!(too_long.starts_with("HTTP/1.1 431 "), "{too_long}");
    fixture.runtime.tasks.stop(Duration::from_secs(5)).await;
    assert!(TcpStream::connect(&fixture.address).await.is_err(), "the port is closed");
}

/// A source that answers when it may.
struct Gated(tokio::sync::Semaphore);

impl Source for Gated {
    fn samples(&self) -> BoxFuture<'_, Vec<Sample>> {
        Box::pin(async {
            let _open = self.0.acquire().await;
            Vec::new()
        })
    }
}

#[tokio::test]
async fn health_waits_for_no_scrape() {
    let fixture = Fixture::start().await;
    let gate = Arc::new(Gated(tokio::sync::Semaphore::new(0)));
    fixture.metrics.register(Arc::clone(&gate) as Arc<dyn Source>);
    let scrapes = async { futures::join!(fixture.get("/metrics"), fixture.get("/metrics"), fixture.get("/metrics")) };
    let health = async {
        // Whether the scrapes have begun or not, these answer.
        for _ in 0..20 {
            assert!(fixture.get("/healthz").await.starts_with("HTTP/1.1 200 OK\r\n"));
            assert!(fixture.get("/readyz").await.starts_with("HTTP/1.1 503 "));
        }
        gate.0.add_permits(1);
    };
    let ((one, two, three), ()) = futures::join!(scrapes, health);
    for scrape in [one, two, three] {
        assert!(scrape.starts_with("HTTP/1.1 200 OK\r\n"), "{scrape}");
    }
}

#[tokio::test]
async fn a_connection_too_many_ends_the_oldest() {
    let fixture = Fixture::start().await;
    let mut open = Vec::new();
    for _ in 0..CONNECTIONS_MAX {
        let mut stream = fixture.connect().await;
        // Served, so it is not only in the queue of the system.
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        let mut first = [0];
        stream.read_exact(&mut first).await.unwrap();
        open.push(stream);
    }
    assert!(fixture.get("/healthz").await.starts_with("HTTP/1.1 200 OK\r\n"));
    let mut oldest = open.remove(0);
    let mut rest = Vec::new();
    // It ends, in whatever way.
    let _reset = oldest.read_to_end(&mut rest).await;
    let mut second = open.remove(0);
    second.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
    let mut text = String::new();
    second.read_to_string(&mut text).await.unwrap();
    assert!(text.ends_with("ok\n"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_does_not_arrive_ends_its_connection() {
    let fixture = Fixture::start().await;
    for begun in ["", "GET /healthz HTTP/1.1\r\nHost"] {
        let started = tokio::time::Instant::now();
        let mut stream = fixture.connect().await;
        stream.write_all(begun.as_bytes()).await.unwrap();
        let mut rest = Vec::new();
        let _reset = stream.read_to_end(&mut rest).await;
        assert!((HEADER_TIMEOUT..2 * HEADER_TIMEOUT).contains(&started.elapsed()), "{begun:?} {:?}", started.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_read_ends_its_connection() {
    let (client, server) = tokio::io::duplex(1_024);
    let mut limited = WriteTimeout::new(Connection::new(server, None), WRITE_TIMEOUT);
    let started = tokio::time::Instant::now();
    let failed = limited.write_all(&[0; 4_096]).await.unwrap_err();
    assert_eq!((failed.kind(), started.elapsed()), (io::ErrorKind::TimedOut, WRITE_TIMEOUT));
    drop(client);
    // One that reads slowly stays.
    let (mut client, server) = tokio::io::duplex(1_024);
    let mut limited = WriteTimeout::new(Connection::new(server, None), WRITE_TIMEOUT);
    let read = async {
        let mut read = vec![0; 1_024];
        for _ in 0..4 {
            tokio::time::sleep(WRITE_TIMEOUT * 2 / 3).await;
            client.read_exact(&mut read).await.unwrap();
        }
    };
    let write = async { limited.write_all(&[0; 4_096]).await.unwrap() };
    futures::join!(read, write);
}

/// A client of HTTP/1.1 with TLS, with a certificate if it has one.
fn tls_client(ca: &str, own: Option<(String, String)>) -> tokio_rustls::TlsConnector {
    use rustls::pki_types::pem::PemObject as _;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(ca.as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_root_certificates(roots);
    let mut config = match own {
        None => config.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()];
            config.with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap()).unwrap()
        }
    };
    // As a browser or Prometheus offers it.
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    tokio_rustls::TlsConnector::from(Arc::new(config))
}

#[tokio::test]
async fn with_tls_the_port_serves_http_1_and_knows_its_callers() {
    use crate::tls::tests::{Authority, Folder, Validity};
    let ca = Authority::new("ca");
    let server = Folder::new(&ca.pem, Some(ca.sign(Some("tablet-server/a"), Validity::Now)));
    let mut runtime = Runtime::system("test");
    runtime.net = runtime.net.with_tls(server.open().unwrap());
    let fixture = Fixture::start_on(runtime).await;
    let get = async |own: Option<(String, String)>, path: &str| {
        let stream = fixture.connect().await;
        let name = rustls::pki_types::ServerName::try_from("127.0.0.1").unwrap();
        let mut stream = tls_client(&ca.pem, own).connect(name, stream).await.unwrap();
        let negotiated = stream.get_ref().1.alpn_protocol().map(<[u8]>::to_vec);
        assert_eq!(negotiated.as_deref(), Some(&b"http/1.1"[..]));
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut response = Vec::new();
        let _no_close_notify = stream.read_to_end(&mut response).await;
        String::from_utf8(response).unwrap()
    };
    let sign = |identity| Some(ca.sign(Some(identity), Validity::Now));
    assert!(get(None, "/healthz").await.ends_with("ok\n"));
    assert!(get(None, "/debug/").await.contains("--token (hidden)"), "without a certificate on the same machine");
    assert!(get(sign("mounttable/a"), "/debug/").await.contains("--token (hidden)"));
    let of_client = get(sign("client/a"), "/debug/").await;
    assert!(of_client.contains("version     1.2.3\n") && !of_client.contains("--token"), "{of_client}");
    assert!(get(sign("client/a"), "/metrics").await.contains("\nebla_build{"));
    // Without TLS a client is refused with the reason.
    let plain = fixture.get("/healthz").await;
    assert!(plain.starts_with("HTTP/1.1 400 "), "{plain}");
}

/// A site that answers with what it was asked; `/stream` in two parts.
struct Echo;

impl Site for Echo {
    fn serve(&self, request: SiteRequest) -> BoxFuture<'_, http::Response<SiteBody>> {
        let SiteRequest { head, body, place, scheme } = request;
        let text = format!("{} {} {} {place:?} {scheme:?}", head.method, head.uri, body.len());
        let body = match head.uri.path() {
            "/stream" => SiteBody::Parts(futures::stream::iter(["one\n", "two\n"].map(bytes::Bytes::from)).boxed()),
            _ => SiteBody::Whole(text.into()),
        };
        Box::pin(async { http::Response::new(body) })
    }
}

#[tokio::test]
async fn a_site_serves_the_further_paths() {
    let fixture = Fixture::start().await;
    let (port, pages) = (&fixture, &fixture.pages);
    let post = |body: usize| {
        let head = format!("POST /form?a=b HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {body}\r\n\r\n");
        let request = head + &"x".repeat(body);
        async move {
            let mut stream = port.connect().await;
            // A refusal may come before all is sent.
            let _refused = stream.write_all(request.as_bytes()).await;
            let mut response = String::new();
            let _reset = stream.read_to_string(&mut response).await;
            response
        }
    };
    assert!(fixture.get("/").await.ends_with("\n\nthis process has no console\n"));
    assert!(post(3).await.starts_with("HTTP/1.1 405 "));
    pages.name_site("it is elsewhere");
    assert!(fixture.get("/").await.ends_with("\n\nit is elsewhere\n"));
    pages.add_site(Arc::new(Echo));
    assert!(fixture.get("/").await.ends_with("GET / 0 Local Http"));
    let found = post(3).await;
    assert!(found.ends_with("POST /form?a=b 3 Local Http") && found.contains("cache-control: no-store\r\n"), "{found}");
    assert!(post(REQUEST_BODY_BYTES_MAX + 1).await.starts_with("HTTP/1.1 413 "));
    let stream = fixture.get("/stream").await;
    assert!(stream.contains("one\n") && stream.contains("two\n"), "{stream}");
    // Its own pages stay, and are not for other methods.
    assert!(fixture.get("/healthz").await.ends_with("ok\n"));
    assert!(fixture.request("POST /healthz HTTP/1.1\r\nContent-Length: 0").await.starts_with("HTTP/1.1 405 "));
}
