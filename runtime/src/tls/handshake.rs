//! Handshakes on connections that were accepted or opened, and clear ends for those who speak the wrong protocol.
//!
//! ```text
//!   a server with TLS       first byte 22 (a TLS record) --> handshake --> the protocol inside
//!                           anything else                --> HTTP/2 GOAWAY or HTTP/1.1 400, which say that TLS is required
//!   a server without TLS    first byte 22                --> a TLS alert
//! ```

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rustls::ClientConfig;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::config::{HTTP1, identity};
use super::identity::{Identity, Security};
use super::{PEER_HANDSHAKE_TIMEOUT, Tls};
use crate::net::{Connection, Origin};
use crate::peer::PREAMBLE;
use crate::serve::Protocol;

/// The first byte of a TLS handshake (RFC 8446, section 5.1). No HTTP request and no [`PREAMBLE`] begins with it.
pub(crate) const HANDSHAKE_RECORD: u8 = 22;
/// A fatal alert `handshake_failure` (RFC 8446, section 6), as a whole record.
const HANDSHAKE_FAILURE: [u8; 7] = [21, 3, 3, 0, 2, 2, 40];
/// `INADEQUATE_SECURITY`, an error code of HTTP/2 (RFC 9113, section 7).
const INADEQUATE_SECURITY: u32 = 12;
/// The frame SETTINGS without a setting (RFC 9113, section 6.5).
const EMPTY_SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
/// The type of the frame HEADERS (RFC 9113, section 6.2).
const HEADERS: u8 = 1;
/// The length of the connection preface of a client (RFC 9113, section 3.4).
const HTTP2_PREFACE_BYTES: usize = 24;
/// The longest frame without a setting that allows more (RFC 9113, section 6.5.2).
const HTTP2_FRAME_BYTES_MAX: u64 = 16_384;
/// The answer to a client without TLS.
const TLS_REQUIRED: &str = "this port requires TLS";
/// How much is read from a client that was refused, so that the refusal reaches it before the end of the connection.
const REFUSED_BYTES_MAX: u64 = 64 * 1024;
/// For how long.
const REFUSED_TIMEOUT: Duration = Duration::from_secs(1);

/// Why a connection that was accepted is not served.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    /// It ended by itself, as a connection does that only tests whether the port is open.
    #[error("the connection ended before the handshake")]
    Ended,
    /// The other end does not use TLS.
    #[error("the other end does not use TLS")]
    PlainText,
    /// The handshake failed.
    #[error("{0}")]
    Failed(io::Error),
}

/// Completes the handshake of a connection that was accepted. The caller bounds its time. Not cancel-safe.
pub(super) async fn accept(tls: &Tls, protocol: Protocol, mut connection: Connection) -> Result<Connection, Refusal> {
    let mut first = [0];
    match connection.read(&mut first).await {
        Ok(0) => return Err(Refusal::Ended),
        Ok(_one) => {}
        Err(error) => return Err(Refusal::Failed(error)),
    }
    if first != [HANDSHAKE_RECORD] {
        end_plain_text(connection, first, protocol).await;
        return Err(Refusal::PlainText);
    }
    let address = connection.peer();
    let connection = connection.with_unread(Bytes::copy_from_slice(&first));
    let config = tls.server_config(protocol).map_err(|error| Refusal::Failed(io::Error::other(error)))?;
    let stream = TlsAcceptor::from(config).accept(connection).await.map_err(Refusal::Failed)?;
    let identity = proved(stream.get_ref().1.peer_certificates());
    Ok(Connection::new(stream, address).with_security(Security::Tls(identity)))
}

/// Opens TLS on a connection to `address` (`host:port`). With [`Origin::Peer`] the other end must be a member of the cluster. Takes at most
/// [`PEER_HANDSHAKE_TIMEOUT`]. Not cancel-safe.
pub(crate) async fn connect(
    tls: &Tls,
    address: &str,
    origin: Origin,
    connection: Connection,
) -> io::Result<Connection> {
    let connection = open(tls.client_config(), address, connection).await?;
    let security = connection.security();
    if origin == Origin::Peer && !security.allows_cluster_services() {
        let found =
            security.identity().map_or_else(|| "no role".to_owned(), |found| format!("the role {}", found.role()));
        let message = format!("TLS with {address}: its certificate has {found}, not that of a tablet server or master");
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
    }
    Ok(connection)
}

/// As [`connect`] with [`Origin::Public`], to a port that speaks HTTP/1.1.
pub(crate) async fn connect_http1(tls: &Tls, address: &str, connection: Connection) -> io::Result<Connection> {
    let mut config = ClientConfig::clone(&tls.client_config());
    config.alpn_protocols = vec![HTTP1.to_vec()];
    open(Arc::new(config), address, connection).await
}

/// Completes the handshake of a connection that was opened.
async fn open(config: Arc<ClientConfig>, address: &str, connection: Connection) -> io::Result<Connection> {
    let peer = connection.peer();
    let name = server_name(address)?;
    let handshake = TlsConnector::from(config).connect(name, connection);
    let stream = match tokio::time::timeout(PEER_HANDSHAKE_TIMEOUT, handshake).await {
        Ok(outcome) => outcome.map_err(|error| explained(address, &error))?,
        Err(_elapsed) => {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("TLS with {address}: the handshake timed out"),
            ));
        }
    };
    let identity = proved(stream.get_ref().1.peer_certificates());
    Ok(Connection::new(stream, peer).with_security(Security::Tls(identity)))
}

/// The identity of the other end: its certificate has been verified in the handshake.
fn proved(certificates: Option<&[CertificateDer<'_>]>) -> Option<Identity> {
    identity(certificates?.first()?)
}

/// The name that the certificate of the server at `address` must have.
fn server_name(address: &str) -> io::Result<ServerName<'static>> {
    let host = address.rsplit_once(':').map_or(address, |(host, _port)| host).trim_matches(['[', ']']);
    // Who connects to 0.0.0.0 connects to this machine.
    let host = match host.parse() {
        Ok(IpAddr::V4(Ipv4Addr::UNSPECIFIED)) => "127.0.0.1",
        Ok(IpAddr::V6(Ipv6Addr::UNSPECIFIED)) => "::1",
        _ => host,
    };
    ServerName::try_from(host.to_owned())
        .map_err(|_invalid| io::Error::new(io::ErrorKind::InvalidInput, format!("{host:?} is no host for TLS")))
}

/// The error of a handshake with the likely cause.
fn explained(address: &str, error: &io::Error) -> io::Error {
    use rustls::{AlertDescription, CertificateError, Error};
    let cause = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    let advice = match cause {
        Some(Error::InvalidMessage(_) | Error::AlertReceived(AlertDescription::HandshakeFailure)) => {
            "; is the server without TLS? (--tls-cert)"
        }
        // All CAs of `ebla cert` have the same name: those of another cluster differ in the signature.
        Some(Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature)) => {
            "; is --tls-ca the CA of this server?"
        }
        Some(Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        )) => "; use an address that its certificate names",
        _ => "",
    };
    io::Error::new(error.kind(), format!("TLS with {address}: {error}{advice}"))
}

/// Tells a client without TLS why its connection ends.
async fn end_plain_text(mut connection: Connection, first: [u8; 1], protocol: Protocol) {
    if first == *b"P" && protocol == Protocol::Http2 {
        // A client that learns of the end before it has sent its request does not report the reason. Some send none before they
        // have the settings.
        let _gone = tokio::time::timeout(REFUSED_TIMEOUT, http2_request(&mut connection)).await;
        return end(&mut connection, &http2_goaway()).await;
    }
    let is_http2 = PREAMBLE.starts_with(&first) || first == *b"P" && protocol == Protocol::Http2;
    let answer = if is_http2 {
        [&EMPTY_SETTINGS, http2_goaway().as_slice()].concat()
    } else {
        let length = TLS_REQUIRED.len();
        format!("HTTP/1.1 400 Bad Request\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{TLS_REQUIRED}")
            .into_bytes()
    };
    end(&mut connection, &answer).await;
}

/// Tells a client with TLS that this server has none.
pub(crate) async fn end_tls(mut connection: Connection) {
    end(&mut connection, &HANDSHAKE_FAILURE).await;
}

/// Sends this answer and ends the connection. What the client sends is read for a while: the end of a connection with unread bytes would
/// discard the answer.
async fn end(connection: &mut Connection, answer: &[u8]) {
    let finish = async {
        connection.write_all(answer).await?;
        connection.shutdown().await?;
        tokio::io::copy(&mut connection.take(REFUSED_BYTES_MAX), &mut tokio::io::sink()).await
    };
    // The client may be gone, or never end.
    let _gone = tokio::time::timeout(REFUSED_TIMEOUT, finish).await;
}

/// Sends settings and reads up to the head of the first request, after the first byte of the preface.
async fn http2_request(connection: &mut Connection) -> io::Result<()> {
    connection.write_all(&EMPTY_SETTINGS).await?;
    connection.flush().await?;
    let mut preface = [0; HTTP2_PREFACE_BYTES - 1];
    connection.read_exact(&mut preface).await?;
    loop {
        let mut head = [0; 9];
        connection.read_exact(&mut head).await?;
        let [high, middle, low, kind, ..] = head;
        if kind == HEADERS {
            return Ok(());
        }
        let length = u64::from(u32::from_be_bytes([0, high, middle, low]));
        if length > HTTP2_FRAME_BYTES_MAX {
            return Ok(());
        }
        tokio::io::copy(&mut (&mut *connection).take(length), &mut tokio::io::sink()).await?;
    }
}

/// The frame GOAWAY (RFC 9113, section 6.8).
fn http2_goaway() -> Vec<u8> {
    let length = u8::try_from(TLS_REQUIRED.len().saturating_add(8)).unwrap_or(u8::MAX);
    let mut bytes = vec![0, 0, length, 7, 0, 0, 0, 0, 0];
    bytes.extend([0; 4]);
    bytes.extend(INADEQUATE_SECURITY.to_be_bytes());
    bytes.extend(TLS_REQUIRED.as_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_to_verify_is_the_host_of_the_address() {
        for (address, host) in
            [("server-1:80", "server-1"), ("127.0.0.1:1", "127.0.0.1"), ("[::1]:80", "::1"), ("0.0.0.0:1", "127.0.0.1")]
        {
            assert_eq!(server_name(address).unwrap().to_str(), host);
        }
        assert!(server_name("a b:80").is_err());
    }
}
