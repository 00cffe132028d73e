//! From the contents of PEM files to the configuration of TLS, as a function: nothing here reads a file or a clock.
//!
//! One provider of cryptography (ring), TLS 1.3 only. Sessions are not resumed: a resumed session would keep an identity whose certificate has
//! expired or whose CA is no longer trusted, and our connections are few and long.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::time_provider::TimeProvider;
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use webpki::{EndEntityCert, KeyUsage};

use super::identity::Identity;
use crate::clock::Clock;

/// The protocol of gRPC in ALPN (RFC 7301).
pub(super) const HTTP2: &[u8] = b"h2";
/// That of scripts and browsers.
pub(super) const HTTP1: &[u8] = b"http/1.1";

/// The contents of the files of one process.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Contents {
    /// The certificates of the CAs that are trusted.
    pub(super) ca: Vec<u8>,
    /// The process's own certificate with those of intermediate CAs, and its private key.
    pub(super) own: Option<(Vec<u8>, Vec<u8>)>,
}

impl fmt::Debug for Contents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Contents").finish_non_exhaustive()
    }
}

/// What is wrong with the contents.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Fault {
    #[error("{0}")]
    Ca(String),
    #[error("{0}")]
    Certificate(String),
    #[error("{0}")]
    Key(String),
}

/// How connections are opened and accepted.
#[derive(Clone, Debug)]
pub(super) struct Configs {
    pub(super) client: Arc<ClientConfig>,
    /// `None`: there is no certificate, or it is not one of a server.
    pub(super) server: Option<ServerConfigs>,
    /// The identity in the process's own certificate.
    pub(super) identity: Option<Identity>,
    own: Option<OwnCertificate>,
}

/// How connections are accepted.
#[derive(Clone, Debug)]
pub(super) struct ServerConfigs {
    pub(super) http2: Arc<ServerConfig>,
    pub(super) http1_and_http2: Arc<ServerConfig>,
    pub(super) http1: Arc<ServerConfig>,
}

impl Configs {
    /// Checks the contents: every file has what it must have, the key belongs to the certificate, and the certificate is valid now and
    /// signed by one of the CAs. Others would refuse it otherwise, and the old one is better.
    pub(super) fn new(contents: &Contents, clock: &Clock) -> Result<Self, Fault> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let time = Arc::new(WallTime(clock.clone()));
        let roots = Arc::new(roots(&contents.ca)?);
        let client =
            ClientConfig::builder_with_details(Arc::clone(&provider), Arc::clone(&time) as Arc<dyn TimeProvider>)
                .with_protocol_versions(&[&TLS13])
                .map_err(|error| Fault::Ca(error.to_string()))?
                .with_root_certificates(Arc::clone(&roots));
        let own = match &contents.own {
            Some((certificate, key)) => Some((OwnCertificate::new(certificate, &roots, &provider)?, private_key(key)?)),
            None => None,
        };
        let (mut client, server) = match &own {
            None => (client.with_no_client_auth(), None),
            Some((own, key)) => {
                let chain = own.chain.clone();
                let configured = client.with_client_auth_cert(chain.clone(), key.clone_key());
                let client = configured.map_err(|error| Fault::Key(mismatch(&error)))?;
                own.check(KeyUsage::client_auth(), time.unix()).map_err(|error| Fault::Certificate(cause(&error)))?;
                let is_server = own.check(KeyUsage::server_auth(), time.unix()).is_ok();
                let server = is_server.then(|| server(chain, key, &roots, provider, time)).transpose()?;
                (client, server)
            }
        };
        client.alpn_protocols = vec![HTTP2.to_vec()];
        client.resumption = Resumption::disabled();
        let own = own.map(|(own, _key)| own);
        let identity = own.as_ref().and_then(|own| identity(own.chain.first()?));
        Ok(Self { client: Arc::new(client), server, identity, own })
    }

    /// Whether the process's own certificate is no longer valid after this time.
    pub(super) fn expires_within(&self, span: Duration, clock: &Clock) -> bool {
        let later = WallTime(clock.clone()).unix().as_secs().saturating_add(span.as_secs());
        let later = UnixTime::since_unix_epoch(Duration::from_secs(later));
        self.own.as_ref().is_some_and(|own| own.check(KeyUsage::client_auth(), later).is_err())
    }
}

fn server(
    chain: Vec<CertificateDer<'static>>,
    key: &PrivateKeyDer<'static>,
    roots: &Arc<RootCertStore>,
    provider: Arc<CryptoProvider>,
    time: Arc<WallTime>,
) -> Result<ServerConfigs, Fault> {
    // Who has no certificate may use the public API; the services of the cluster look at the identity.
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::clone(roots), Arc::clone(&provider))
        .allow_unauthenticated()
        .build()
        .map_err(|error| Fault::Ca(error.to_string()))?;
    let mut http2 = ServerConfig::builder_with_details(provider, time)
        .with_protocol_versions(&[&TLS13])
        .map_err(|error| Fault::Certificate(error.to_string()))?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key.clone_key())
        .map_err(|error| Fault::Key(mismatch(&error)))?;
    http2.send_tls13_tickets = 0;
    http2.alpn_protocols = vec![HTTP2.to_vec()];
    let mut both = http2.clone();
    both.alpn_protocols.push(HTTP1.to_vec());
    let mut http1 = http2.clone();
    http1.alpn_protocols = vec![HTTP1.to_vec()];
    Ok(ServerConfigs { http2: Arc::new(http2), http1_and_http2: Arc::new(both), http1: Arc::new(http1) })
}

/// The identity in a certificate that has been verified.
pub(super) fn identity(certificate: &CertificateDer<'_>) -> Option<Identity> {
    let parsed = EndEntityCert::try_from(certificate).ok()?;
    Identity::among(parsed.valid_uri_names())
}

/// A certificate with those of its intermediate CAs, and the CAs that are trusted.
#[derive(Clone, Debug)]
struct OwnCertificate {
    chain: Vec<CertificateDer<'static>>,
    roots: Arc<RootCertStore>,
    provider: Arc<CryptoProvider>,
}

impl OwnCertificate {
    fn new(pem: &[u8], roots: &Arc<RootCertStore>, provider: &Arc<CryptoProvider>) -> Result<Self, Fault> {
        let chain = certificates(pem).map_err(Fault::Certificate)?;
        Ok(Self { chain, roots: Arc::clone(roots), provider: Arc::clone(provider) })
    }

    /// Checks it as another process would that trusts the same CAs.
    fn check(&self, usage: KeyUsage, at: UnixTime) -> Result<(), webpki::Error> {
        let Some((first, rest)) = self.chain.split_first() else { return Err(webpki::Error::BadDer) };
        let algorithms = self.provider.signature_verification_algorithms.all;
        let parsed = EndEntityCert::try_from(first)?;
        parsed.verify_for_usage(algorithms, &self.roots.roots, rest, at, usage, None, None).map(drop)
    }
}

/// All certificates of a file.
fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let found = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
    let found = found.map_err(|error| format!("not in PEM format: {error}"))?;
    if found.is_empty() {
        return Err("it contains no certificate in PEM format".to_owned());
    }
    Ok(found)
}

fn roots(pem: &[u8]) -> Result<RootCertStore, Fault> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(pem).map_err(Fault::Ca)? {
        roots.add(certificate).map_err(|error| Fault::Ca(error.to_string()))?;
    }
    Ok(roots)
}

fn private_key(pem: &[u8]) -> Result<PrivateKeyDer<'static>, Fault> {
    PrivateKeyDer::from_pem_slice(pem)
        .map_err(|_error| Fault::Key("it contains no private key in PEM format".to_owned()))
}

fn mismatch(error: &rustls::Error) -> String {
    match error {
        rustls::Error::InconsistentKeys(_) => "it does not belong to the certificate".to_owned(),
        other => other.to_string(),
    }
}

/// Why a certificate is not accepted, for people.
fn cause(error: &webpki::Error) -> String {
    match error {
        webpki::Error::CertExpired { .. } => "the certificate has expired".to_owned(),
        webpki::Error::CertNotValidYet { .. } => {
            "the certificate is not valid yet; is the clock of this machine right?".to_owned()
        }
        webpki::Error::UnknownIssuer => "the certificate is not signed by a CA of the CA file".to_owned(),
        other => format!("the certificate is not usable: {other}"),
    }
}

/// The wall clock, for the validity of certificates.
#[derive(Debug)]
struct WallTime(Clock);

impl WallTime {
    fn unix(&self) -> UnixTime {
        let micros = u64::try_from(self.0.wall().get()).unwrap_or(0);
        UnixTime::since_unix_epoch(Duration::from_micros(micros))
    }
}

impl TimeProvider for WallTime {
    fn current_time(&self) -> Option<UnixTime> {
        Some(self.unix())
    }
}
