//! Who may see the console, and who they are. Pure.
//!
//! | cluster | connection | answer |
//! |---|---|---|
//! | with access control | any, with a token in `Authorization` or in the cookie of the login form | the pages, with that identity |
//! | | any, without one | the login form |
//! | without | on this machine, to a name of this machine | the pages |
//! | | with a certificate of the cluster | the pages |
//! | | any other | refused |
//!
//! A name of this machine: a page elsewhere can make a browser send requests to a name that resolves to a loopback address (DNS rebinding), but
//! then the request names that host.

use std::net::IpAddr;

use ebla_client::BearerToken;
use ebla_runtime::http_port::{Place, Scheme};
use http::{HeaderMap, header};

use crate::context::AccessMode;

/// The cookie with the token of a viewer who has used the login form.
pub(crate) const COOKIE: &str = "ebla_token";

/// What a request gets.
#[derive(Clone, Debug)]
pub(crate) enum Admission {
    /// Pages, with this identity; without access control there is none.
    Viewer(Option<BearerToken>),
    /// The login form.
    Login,
    /// Nothing: the reason and the next step.
    Refused(&'static str),
}

/// Decides by the mode of the cluster, the place of the caller, and the headers.
pub(crate) fn admit(mode: AccessMode, place: Place, scheme: Scheme, headers: &HeaderMap) -> Admission {
    match (mode, place) {
        (AccessMode::Tokens, _) => match token(headers) {
            Some(token) => Admission::Viewer(Some(token)),
            None => Admission::Login,
        },
        (AccessMode::Open, Place::Member | Place::Client) => Admission::Viewer(None),
        (AccessMode::Open, Place::Local) if scheme == Scheme::Https || names_this_machine(headers) => {
            Admission::Viewer(None)
        }
        (AccessMode::Open, Place::Local) => Admission::Refused(
            "open the console under a name of this machine: http://localhost:PORT/ or http://127.0.0.1:PORT/",
        ),
        (AccessMode::Open, Place::Anonymous) => Admission::Refused(
            "the console of a cluster without access control is for this machine and for certificates of the cluster: `ebla cert client` makes one",
        ),
        (AccessMode::Open, Place::Unsecured) => Admission::Refused(
            "the console of a cluster without TLS and without access control is for its own machine: connect through `ssh -L`, or turn access \
             control on (--token-keys)",
        ),
    }
}

/// Whether a change comes from a form of this site: browsers send the origin with each change.
pub(crate) fn is_same_origin(headers: &HeaderMap) -> bool {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let origin = text(header::ORIGIN).and_then(|origin| origin.split_once("://"));
    match (origin, text(header::HOST)) {
        (Some((_scheme, origin)), Some(host)) => origin.eq_ignore_ascii_case(host),
        _ => false,
    }
}

/// The header that stores the token in the browser: scripts cannot read it, and pages of other hosts cannot use it. Cookies know no ports: the
/// browser sends it to all servers on this host name.
///
/// `None` for a text that is no token and could not be stored.
pub(crate) fn set_cookie(token: &str, scheme: Scheme) -> Option<String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte);
    let secure = if scheme == Scheme::Https { "; Secure" } else { "" };
    let is_token = !token.is_empty() && token.bytes().all(is_plain);
    is_token.then(|| format!("{COOKIE}={token}; Path=/; HttpOnly; SameSite=Strict{secure}"))
}

/// The header that removes it.
pub(crate) fn remove_cookie() -> String {
    format!("{COOKIE}=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0")
}

/// The token of the header, or else that of the cookie.
fn token(headers: &HeaderMap) -> Option<BearerToken> {
    if let Some(value) = headers.get(header::AUTHORIZATION) {
        let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
        return scheme.eq_ignore_ascii_case("bearer").then(|| BearerToken::new(token).ok()).flatten();
    }
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = cookies.flat_map(|cookies| cookies.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(name, _)| *name == COOKIE).and_then(|(_, token)| BearerToken::new(token).ok())
}

/// Whether the request is for `localhost` or a loopback address.
fn names_this_machine(headers: &HeaderMap) -> bool {
    let Some(host) = headers.get(header::HOST).and_then(|host| host.to_str().ok()) else { return false };
    let host = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    host.eq_ignore_ascii_case("localhost") || host.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use ebla_runtime::Net;

    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    fn shown(mode: AccessMode, place: Place, pairs: &[(&'static str, &str)]) -> String {
        match admit(mode, place, Scheme::Http, &headers(pairs)) {
            Admission::Viewer(None) => "open".to_owned(),
            Admission::Viewer(Some(token)) => token.allow_plaintext().text_for(&Net::tcp()).unwrap().to_owned(),
            Admission::Login => "login".to_owned(),
            Admission::Refused(_) => "refused".to_owned(),
        }
    }

    #[test]
    fn without_access_control_pages_are_for_this_machine() {
        let open = |place, host: &str| shown(AccessMode::Open, place, &[("host", host)]);
        for host in ["localhost:8080", "LOCALHOST", "127.0.0.1:8080", "127.9.9.9", "[::1]:8080"] {
            assert_eq!(open(Place::Local, host), "open", "{host}");
        }
        for host in ["evil.example", "localhost.evil.example", "10.0.0.1:8080", "[::2]", ""] {
            assert_eq!(open(Place::Local, host), "refused", "{host}");
        }
        assert_eq!(shown(AccessMode::Open, Place::Local, &[]), "refused");
        assert_eq!(open(Place::Client, "db.example"), "open");
        assert_eq!(open(Place::Anonymous, "localhost"), "refused");
        assert_eq!(open(Place::Unsecured, "localhost"), "refused");
    }

    #[test]
    fn with_access_control_every_viewer_needs_a_token() {
        let of = |pairs: &[(&'static str, &str)]| shown(AccessMode::Tokens, Place::Client, pairs);
        assert_eq!(of(&[("host", "localhost")]), "login");
        assert_eq!(of(&[("authorization", "Bearer abc.d")]), "abc.d");
        assert_eq!(of(&[("authorization", "Basic abc")]), "login");
        assert_eq!(of(&[("cookie", "a=b; ebla_token=x.y; c=d")]), "x.y");
        assert_eq!(of(&[("cookie", "ebla_token=")]), "login");
        assert_eq!(of(&[("cookie", "ebla_token=x"), ("authorization", "Bearer z")]), "z");
    }

    #[test]
    fn changes_come_from_this_site() {
        let same = |pairs: &[(&'static str, &str)]| is_same_origin(&headers(pairs));
        assert!(same(&[("origin", "http://localhost:8080"), ("host", "localhost:8080")]));
        assert!(!same(&[("origin", "http://localhost:8081"), ("host", "localhost:8080")]));
        assert!(!same(&[("origin", "null"), ("host", "localhost:8080")]));
        assert!(!same(&[("host", "localhost:8080")]) && !same(&[("origin", "http://localhost:8080")]));
    }

    #[test]
    fn a_cookie_is_only_for_this_site() {
        let cookie = set_cookie("ab.c-_", Scheme::Https).unwrap();
        assert_eq!(cookie, "ebla_token=ab.c-_; Path=/; HttpOnly; SameSite=Strict; Secure");
        assert!(!set_cookie("a", Scheme::Http).unwrap().contains("Secure"));
        for wrong in ["", "a;b", "a b", "a\r\nb", "\u{e9}"] {
            assert_eq!(set_cookie(wrong, Scheme::Http), None, "{wrong:?}");
        }
        assert!(remove_cookie().contains("Max-Age=0"));
    }
}
