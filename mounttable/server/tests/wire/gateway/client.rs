//! A client of the gateway: one connection per request.

use std::sync::Arc;

use axum::body::{Body, BodyDataStream};
use ebla_mounttable_tree::Reason;
use ebla_mounttable_tree::messages::DEVELOPMENT_HEADER;
use ebla_runtime::Connection;
use futures::StreamExt;
use http::{HeaderMap, Request, Response, StatusCode, header};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use tokio_rustls::TlsConnector;

use crate::gateway::contract;
use crate::secured;
use crate::world::World;

/// A request of this caller.
pub(super) fn request(caller: &str, method: &str, path: &str, body: impl Into<Body>) -> Request<Body> {
    let request =
        Request::builder().method(method).uri(path).header(header::HOST, "names").header(DEVELOPMENT_HEADER, caller);
    request.body(body.into()).unwrap()
}

/// A connection to the gateway, with TLS if it is on.
pub(super) async fn open(world: &World) -> Connection {
    let connection = world.runtime.net.connect(world.server.http_address().unwrap()).await.unwrap();
    let Some(secured) = secured::secured() else { return connection };
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(secured.ca.as_bytes()).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let mut config =
        config.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let stream = TlsConnector::from(Arc::new(config)).connect(name, connection).await.unwrap();
    Connection::new(stream, None)
}

/// The response, once its head has arrived.
pub(super) async fn begin(world: &World, request: Request<Body>) -> Response<Body> {
    let connection = open(world).await;
    let (mut sender, connection) = http1::handshake(TokioIo::new(connection)).await.unwrap();
    // The reader sees how the connection ends.
    world.runtime.tasks.spawn_until_stopped("connection", async move { drop(connection.await) });
    sender.send_request(request).await.unwrap().map(Body::new)
}

/// A complete response.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: String,
}

impl Answer {
    /// The body of a successful response.
    #[track_caller]
    pub(super) fn json(&self) -> Value {
        assert_eq!(self.status, StatusCode::OK, "{}", self.body);
        serde_json::from_str(&self.body).unwrap()
    }

    /// Status and reason of an error.
    #[track_caller]
    pub(super) fn refusal(&self) -> (u16, Reason) {
        let error: Value = serde_json::from_str(&self.body).unwrap();
        (self.status.as_u16(), Reason::from_name(error["reason"].as_str().unwrap()).unwrap())
    }
}

/// The complete response, validated.
pub(super) async fn send(world: &World, request: Request<Body>) -> Answer {
    let (method, path) = (request.method().as_str().to_lowercase(), request.uri().path().to_owned());
    let (head, body) = begin(world, request).await.into_parts();
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    let answer = Answer { status: head.status, headers: head.headers, body: String::from_utf8(body.into()).unwrap() };
    contract::check(&method, &path, &answer);
    answer
}

/// The same, with a short form of the request.
pub(super) async fn ask(world: &World, caller: &str, method: &str, path: &str, body: impl Into<Body>) -> Answer {
    send(world, request(caller, method, path, body)).await
}

/// The events of a watch.
pub(super) struct Events {
    chunks: BodyDataStream,
    text: String,
}

impl Events {
    pub(super) async fn of(world: &World, caller: &str, path: &str) -> Self {
        let answer = begin(world, request(caller, "GET", path, "")).await;
        assert_eq!(answer.status(), StatusCode::OK);
        assert_eq!(answer.headers()[header::CONTENT_TYPE], contract::EVENTS);
        Self { chunks: answer.into_body().into_data_stream(), text: String::new() }
    }

    /// The next event's name and data, validated; `None` at the end.
    pub(super) async fn next(&mut self) -> Option<(String, Value)> {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let line = |field| event.lines().find_map(|line| line.strip_prefix(field)).map(str::to_owned);
                let (name, data) = (line("event: "), line("data: "));
                self.text = rest.to_owned();
                // A comment is not an event.
                let (Some(name), Some(data)) = (name, data) else { continue };
                let data = serde_json::from_str(&data).unwrap();
                contract::check_event(&name, &data);
                return Some((name, data));
            }
            let chunk = self.chunks.next().await?.unwrap();
            self.text.push_str(std::str::from_utf8(&chunk).unwrap());
        }
    }
}
