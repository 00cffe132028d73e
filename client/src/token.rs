//! The token of a caller, sent with each call of the public API.

use std::fmt;

use ebla_model::error::{Error, Reason};
use ebla_proto::status::to_status;
use ebla_runtime::Net;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::{Request, Status};

/// A bearer token. `Debug` does not show its text. It is sent on connections with TLS only, unless [`Self::allow_plaintext`] was called.
#[derive(Clone)]
pub struct BearerToken {
    header: MetadataValue<Ascii>,
    connections: Connections,
}

/// The connections on which a token may be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Connections {
    /// Those with TLS.
    Encrypted,
    /// All.
    All,
}

impl Connections {
    /// Those of this network.
    const fn of(net: &Net) -> Self {
        if net.tls().is_some() { Self::Encrypted } else { Self::All }
    }
}

impl BearerToken {
    /// The token of this text, such as the content of a file; white space around it does not count.
    ///
    /// # Errors
    /// `InvalidArgument` when it is empty or cannot be part of a header.
    pub fn new(text: &str) -> Result<Self, Error> {
        let text = text.trim();
        if text.is_empty() {
            return Err(Error::invalid("the token is empty"));
        }
        let header = format!("Bearer {text}").parse::<MetadataValue<Ascii>>();
        let mut header = header.map_err(|_| Error::invalid("the token has characters that no token has"))?;
        header.set_sensitive(true);
        Ok(Self { header, connections: Connections::Encrypted })
    }

    /// The same token, which is also sent on connections without TLS. Everybody on the network path can read it there, and use it.
    #[must_use]
    pub fn allow_plaintext(self) -> Self {
        Self { connections: Connections::All, ..self }
    }

    /// The token itself, for calls of another protocol on the connections of `net`. It must not be shown.
    ///
    /// # Errors
    /// `FailedPrecondition` when they have no TLS and the token needs it.
    pub fn text_for(&self, net: &Net) -> Result<&str, Error> {
        self.check(Connections::of(net))?;
        Ok(self.text())
    }

    fn text(&self) -> &str {
        self.header.to_str().ok().and_then(|header| header.strip_prefix("Bearer ")).unwrap_or_default()
    }

    /// Checks that it may be sent on these connections.
    fn check(&self, network: Connections) -> Result<(), Error> {
        if self.connections == Connections::All || network == Connections::Encrypted {
            return Ok(());
        }
        let message = "the token was not sent, because others can read it on a connection without TLS: use TLS (--tls-ca), or \
                       permit it with --insecure-token";
        Err(Error::new(Reason::FailedPrecondition, message))
    }
}

/// What each call of the public API carries: the token of the caller, if there is one. A [`BearerToken`] that needs TLS makes each call on a network
/// without it fail with `FailedPrecondition`, and is not sent.
#[derive(Clone, Debug)]
pub struct Credentials {
    token: Option<BearerToken>,
    network: Connections,
}

impl Credentials {
    /// The credentials of calls on the connections of `net`.
    pub fn new(token: Option<BearerToken>, net: &Net) -> Self {
        Self { token, network: Connections::of(net) }
    }
}

impl Interceptor for Credentials {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        let Some(token) = &self.token else { return Ok(request) };
        token.check(self.network).map_err(|error| to_status(&error))?;
        request.metadata_mut().insert("authorization", token.header.clone());
        Ok(request)
    }
}

impl fmt::Debug for BearerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BearerToken(…)")
    }
}

#[cfg(test)]
mod tests {
    use ebla_proto::status::from_status;

    use super::*;

    #[test]
    fn a_token_is_not_shown() {
        let token = BearerToken::new(" abc.def\n").unwrap();
        assert_eq!(token.header.to_str().unwrap(), "Bearer abc.def");
        assert_eq!(token.text(), "abc.def");
        assert!(!format!("{token:?} {:?}", token.header).contains("abc"));
        for wrong in ["", " \n", "a\nb"] {
            assert!(BearerToken::new(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_token_is_sent_without_tls_only_if_that_is_permitted() {
        let token = BearerToken::new("abc").unwrap();
        let sent = |token: &BearerToken, network| {
            let mut credentials = Credentials { token: Some(token.clone()), network };
            let request = credentials.call(Request::new(())).map_err(|status| from_status(&status).0.reason)?;
            Ok(request.metadata().contains_key("authorization"))
        };
        assert_eq!(sent(&token, Connections::Encrypted), Ok(true));
        assert_eq!(sent(&token, Connections::All), Err(Reason::FailedPrecondition));
        assert_eq!(token.text_for(&Net::tcp()).unwrap_err().reason, Reason::FailedPrecondition);
        let permitted = token.allow_plaintext();
        assert_eq!(permitted.text_for(&Net::tcp()), Ok("abc"));
        assert_eq!([Connections::Encrypted, Connections::All].map(|on| sent(&permitted, on)), [Ok(true), Ok(true)]);
        let mut without = Credentials::new(None, &Net::tcp());
        assert!(!without.call(Request::new(())).unwrap().metadata().contains_key("authorization"));
    }
}
