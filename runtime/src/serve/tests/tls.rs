//! Handshakes on real connections: who is served, who is refused and how, and certificates that change under load.

use super::*;
use crate::tls::tests::{Authority, Folder, Validity};
use crate::tls::{HANDSHAKE_TIMEOUT, PEER_HANDSHAKE_TIMEOUT, Reload, Security};

/// A service that answers with the identity of its caller in the header `caller`.
#[derive(Clone)]
struct WhoAmI;

impl NamedService for WhoAmI {
    const NAME: &'static str = "test.WhoAmI";
}

impl Service<http::Request<Body>> for WhoAmI {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let info = request.extensions().get::<ConnectionInfo>().unwrap();
        let caller = match &info.security {
            Security::Plain => "plain".to_owned(),
            Security::Tls(None) => "anonymous".to_owned(),
            Security::Tls(Some(identity)) => identity.to_string(),
        };
        let response = http::Response::builder().header("grpc-status", "0").header("caller", caller);
        std::future::ready(Ok(response.body(Body::empty()).unwrap()))
    }
}

struct Cluster {
    ca: Authority,
    server: Folder,
    tls: crate::Tls,
    tasks: Tasks,
    address: String,
}

impl Cluster {
    async fn start() -> Self {
        Self::start_as("tablet-server/a", ServeOptions::default()).await
    }

    async fn start_as(identity: &str, options: ServeOptions) -> Self {
        let ca = Authority::new("ca");
        let server = Folder::new(&ca.pem, Some(ca.sign(Some(identity), Validity::Now)));
        Self::start_on(Net::tcp(), ca, server, options).await
    }

    async fn start_on(net: Net, ca: Authority, server: Folder, options: ServeOptions) -> Self {
        let (tls, tasks) = (server.open().unwrap(), Tasks::new("test"));
        let listener = net.with_tls(tls.clone()).listen("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().to_string();
        serve(&tasks, listener, Routes::new(WhoAmI), options);
        Self { ca, server, tls, tasks, address }
    }

    /// The network of a process with these files.
    fn net(&self, ca: &str, own: Option<(String, String)>) -> Net {
        Net::tcp().with_tls(Folder::new(ca, own).open().unwrap())
    }

    fn net_as(&self, identity: &str) -> Net {
        self.net(&self.ca.pem, Some(self.ca.sign(Some(identity), Validity::Now)))
    }

    async fn plain_connection(&self) -> Connection {
        Net::tcp().connect(&self.address).await.unwrap()
    }
}

/// Whom the server takes the caller for, or the error with its causes.
async fn who_am_i(mut channel: Channel) -> Result<String, String> {
    let described = |error: tonic::transport::Error| {
        let mut text = error.to_string();
        let mut cause = std::error::Error::source(&error);
        while let Some(one) = cause {
            text.push_str(&format!(": {one}"));
            cause = one.source();
        }
        text
    };
    let request = http::Request::post("https://server/test.WhoAmI/Any").header("content-type", "application/grpc");
    timely(poll_fn(|context| channel.poll_ready(context))).await.map_err(described)?;
    let response = timely(channel.call(request.body(Body::empty()).unwrap())).await.map_err(described)?;
    Ok(response.headers().get("caller").unwrap().to_str().unwrap().to_owned())
}

#[tokio::test]
async fn the_server_knows_the_identity_of_each_caller() {
    let cluster = Cluster::start().await;
    for identity in ["master/m", "tablet-server/b", "mounttable/n", "client/me"] {
        let net = cluster.net_as(identity);
        assert_eq!(who_am_i(net.channel(&cluster.address)).await.as_deref(), Ok(identity));
        assert_eq!(who_am_i(net.peer_channel(&cluster.address)).await.as_deref(), Ok(identity));
    }
    let without = cluster.net(&cluster.ca.pem, None);
    assert_eq!(who_am_i(without.channel(&cluster.address)).await.as_deref(), Ok("anonymous"));
    let no_role = cluster.net(&cluster.ca.pem, Some(cluster.ca.sign(None, Validity::Now)));
    assert_eq!(who_am_i(no_role.channel(&cluster.address)).await.as_deref(), Ok("anonymous"));
    cluster.tasks.stop(Duration::ZERO).await;
}

#[tokio::test]
async fn members_of_the_cluster_are_served_beside_any_number_of_others() {
    let ca = Authority::new("ca");
    let server = Folder::new(&ca.pem, Some(ca.sign(Some("tablet-server/a"), Validity::Now)));
    let net = Net::tcp().with_connections(crate::ConnectionLimit::new(1));
    let cluster = Cluster::start_on(net, ca, server, ServeOptions::default()).await;
    let first = cluster.net_as("client/me").channel(&cluster.address);
    assert_eq!(who_am_i(first.clone()).await.as_deref(), Ok("client/me"));
    for identity in ["client/me", "mounttable/n"] {
        assert!(who_am_i(cluster.net_as(identity).channel(&cluster.address)).await.is_err(), "{identity}");
        assert!(who_am_i(cluster.net_as(identity).peer_channel(&cluster.address)).await.is_err(), "{identity}");
    }
    for identity in ["master/m", "tablet-server/b"] {
        assert_eq!(who_am_i(cluster.net_as(identity).peer_channel(&cluster.address)).await.as_deref(), Ok(identity));
        assert_eq!(who_am_i(cluster.net_as(identity).channel(&cluster.address)).await.as_deref(), Ok(identity));
    }
    drop(first);
    cluster.tasks.stop(Duration::ZERO).await;
}

#[tokio::test]
async fn a_client_refuses_a_server_of_another_ca_and_of_another_name() {
    let cluster = Cluster::start().await;
    let other = cluster.net(&Authority::new("other").pem, None);
    let said = who_am_i(other.channel(&cluster.address)).await.unwrap_err();
    assert!(said.contains("is --tls-ca the CA of this server?"), "{said}");
    let port = cluster.address.rsplit_once(':').unwrap().1;
    let said = who_am_i(cluster.net_as("client/me").channel(&format!("localhost:{port}"))).await.unwrap_err();
    assert!(said.contains("use an address that its certificate names"), "{said}");
    cluster.tasks.stop(Duration::ZERO).await;
}

#[tokio::test]
async fn a_peer_must_be_a_member_of_the_cluster() {
    let cluster = Cluster::start_as("mounttable/n", ServeOptions::default()).await;
    let net = cluster.net_as("tablet-server/a");
    let said = who_am_i(net.peer_channel(&cluster.address)).await.unwrap_err();
    assert!(said.contains("has the role mounttable, not that of a tablet server or master"), "{said}");
    assert_eq!(who_am_i(net.channel(&cluster.address)).await.as_deref(), Ok("tablet-server/a"));
    cluster.tasks.stop(Duration::ZERO).await;
}

/// A client that presents a certificate which its own checks would refuse: it was valid when the client started.
async fn presented(cluster: &Cluster, certificate: (String, String)) -> Result<String, String> {
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(cluster.ca.pem.as_bytes()).unwrap()).unwrap();
    let chain = vec![CertificateDer::from_pem_slice(certificate.0.as_bytes()).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(certificate.1.as_bytes()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .unwrap();
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let connection = cluster.plain_connection().await;
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let mut stream = connector.connect(name, connection).await.map_err(|error| error.to_string())?;
    // The server verifies the certificate after the handshake of the client has ended.
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.map_err(|error| error.to_string())?;
    stream.read_u8().await.map(|_| "served".to_owned()).map_err(|error| error.to_string())
}

#[tokio::test]
async fn a_certificate_that_is_not_valid_ends_the_connection() {
    let cluster = Cluster::start().await;
    let (ca, other) = (&cluster.ca, Authority::new("other"));
    let member = Some("tablet-server/b");
    for (certificate, wanted) in [
        (ca.sign(member, Validity::Past), "CertificateExpired"),
        (ca.sign(member, Validity::Future), "alert"),
        (other.sign(member, Validity::Now), "UnknownCA"),
    ] {
        let said = timely(presented(&cluster, certificate)).await.unwrap_err();
        assert!(said.contains(wanted), "{said}");
    }
    assert_eq!(timely(presented(&cluster, ca.sign(member, Validity::Now))).await.as_deref(), Ok("served"));
    cluster.tasks.stop(Duration::ZERO).await;
}

#[tokio::test]
async fn a_client_without_tls_learns_that_it_is_required() {
    let cluster = Cluster::start().await;
    for channel in [Net::tcp().channel(&cluster.address), Net::tcp().peer_channel(&cluster.address)] {
        let said = who_am_i(channel).await.unwrap_err();
        assert!(said.contains("this port requires TLS"), "{said}");
    }
    let mut connection = cluster.plain_connection().await;
    connection.write_all(b"GET / HTTP/1.1\r\nhost: server\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    timely(connection.read_to_string(&mut answer)).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 400 ") && answer.ends_with("this port requires TLS"), "{answer}");
    cluster.tasks.stop(Duration::ZERO).await;
}

#[tokio::test]
async fn a_client_with_tls_learns_that_a_server_has_none() {
    let (cluster, plain) = (Cluster::start().await, Fixture::start(ServeOptions::default()).await);
    for channel in
        [cluster.net_as("client/me").channel(&plain.address), cluster.net_as("client/me").peer_channel(&plain.address)]
    {
        let said = who_am_i(channel).await.unwrap_err();
        assert!(said.contains("is the server without TLS?"), "{said}");
    }
    cluster.tasks.stop(Duration::ZERO).await;
    plain.tasks.stop(Duration::ZERO).await;
}

#[tokio::test(start_paused = true)]
async fn slow_handshakes_block_nobody_and_are_ended() {
    let cluster = Cluster::start().await;
    let mut slow = Vec::new();
    for number in 0..50 {
        let mut connection = cluster.plain_connection().await;
        // A part of a record (RFC 8446, section 5.1), or nothing.
        let begin: &[u8] = if number % 2 == 0 { &[22, 3, 1, 2, 0, 1] } else { &[] };
        connection.write_all(begin).await.unwrap();
        slow.push(connection);
    }
    let started = tokio::time::Instant::now();
    assert_eq!(who_am_i(cluster.net_as("client/me").channel(&cluster.address)).await.as_deref(), Ok("client/me"));
    assert!(started.elapsed() < PEER_HANDSHAKE_TIMEOUT, "{:?}", started.elapsed());
    for mut connection in slow {
        let _cut = tokio::time::timeout(2 * HANDSHAKE_TIMEOUT, connection.read_to_end(&mut Vec::new())).await.unwrap();
    }
    cluster.tasks.stop(Duration::ZERO).await;
}

#[tokio::test]
async fn a_server_that_does_not_answer_a_handshake_is_given_up() {
    let cluster = Cluster::start().await;
    let silent = Net::tcp().listen("127.0.0.1:0").await.unwrap();
    let channel = cluster.net_as("client/me").channel(&silent.local_addr().to_string());
    let said = who_am_i(channel).await.unwrap_err();
    assert!(said.contains("timed out"), "{said}");
    cluster.tasks.stop(Duration::ZERO).await;
}

/// A change of the files of a process with this identity.
type Step<'a> = &'a dyn Fn(&Folder, &str);

/// Calls on new connections, one after the other, until the token is cancelled. Returns their number; each must succeed.
async fn repeat(net: Net, address: String, end: CancellationToken) -> usize {
    let mut calls = 0;
    while !end.is_cancelled() {
        assert_eq!(who_am_i(net.channel(&address)).await.as_deref(), Ok("client/me"));
        calls += 1;
    }
    calls
}

#[tokio::test]
async fn certificates_change_under_load_without_a_failed_call() {
    let cluster = Cluster::start().await;
    let next = Authority::new("next");
    let both = format!("{}{}", cluster.ca.pem, next.pem);
    let client = Folder::new(&cluster.ca.pem, Some(cluster.ca.sign(Some("client/me"), Validity::Now)));
    let tls = client.open().unwrap();
    let net = Net::tcp().with_tls(tls.clone());
    let old = net.channel(&cluster.address);
    let load = Tasks::new("load");
    let calls: Vec<_> =
        (0..4).map(|_| load.start("calls", repeat(net.clone(), cluster.address.clone(), load.token()))).collect();
    // From the old CA to both, then to certificates of the new one, then to the new one alone; after each step calls on an open and on a new connection.
    let steps: [Step<'_>; 3] = [
        &|folder, _identity| folder.write("ca.crt", &both),
        &|folder, identity| {
            let (certificate, key) = next.sign(Some(identity), Validity::Now);
            folder.write("own.crt", &certificate);
            folder.write("own.key", &key);
        },
        &|folder, _identity| folder.write("ca.crt", &next.pem),
    ];
    for step in steps {
        step(&cluster.server, "tablet-server/a");
        assert_eq!(cluster.tls.reload(), Ok(Reload::Changed));
        assert_eq!(who_am_i(old.clone()).await.as_deref(), Ok("client/me"));
        assert_eq!(who_am_i(net.channel(&cluster.address)).await.as_deref(), Ok("client/me"));
        step(&client, "client/me");
        assert_eq!(tls.reload(), Ok(Reload::Changed));
        assert_eq!(who_am_i(old.clone()).await.as_deref(), Ok("client/me"));
        assert_eq!(who_am_i(net.channel(&cluster.address)).await.as_deref(), Ok("client/me"));
    }
    load.cancel();
    for calls in calls {
        assert!(timely(calls).await.unwrap() >= 2, "calls on new connections");
    }
    let left_behind = cluster.net_as("client/late");
    assert!(who_am_i(left_behind.channel(&cluster.address)).await.is_err(), "the old CA is not trusted any more");
    cluster.tasks.stop(Duration::ZERO).await;
}

#[tokio::test]
async fn http_1_is_served_inside_of_tls_where_it_is_accepted() {
    let options = ServeOptions { protocol: Protocol::Http1AndHttp2, ..ServeOptions::default() };
    let cluster = Cluster::start_as("mounttable/n", options).await;
    let tls = Folder::new(&cluster.ca.pem, None).open().unwrap();
    let connection = cluster.plain_connection().await;
    let mut connection =
        crate::tls::connect(&tls, &cluster.address, crate::net::Origin::Public, connection).await.unwrap();
    connection.write_all(b"GET / HTTP/1.1\r\nhost: server\r\nconnection: close\r\n\r\n").await.unwrap();
    // Our connector asks for h2 by ALPN, which a server of both need not obey: the bytes decide.
    let mut response = Vec::new();
    let _cut = timely(connection.read_to_end(&mut response)).await;
    assert!(response.starts_with(b"HTTP/1.1 "), "{}", response.escape_ascii());
    cluster.tasks.stop(Duration::ZERO).await;
}
