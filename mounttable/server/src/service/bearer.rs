//! Bearer tokens: callers with a JWT (RFC 7519) signed by an identity provider, sent as RFC 6750 describes.
//!
//! The server has everything that it needs to verify a token from the start: the providers' public keys, as the JWK Set
//! (RFC 7517) that they publish. It fetches nothing, so callers do not depend on a provider that is down; new keys need
//! a new file and a restart.
//!
//! | claim | requirement | name |
//! |---|---|---|
//! | `iss` | one of the trusted issuers | its host is the first component of each name |
//! | `aud` | this table's audience, or a list that contains it | |
//! | `exp` | later than now; [`LEEWAY`] is allowed for clock differences | |
//! | `nbf` | not later than now, if present | |
//! | `sub` | not empty, unless `email` is present | `HOST:u:SUB` |
//! | `email` | not marked as unverified (`email_verified`) | `HOST:u:EMAIL` |
//! | `groups` | a list of strings | `HOST:g:GROUP` each |
//!
//! Only public-key signatures are accepted: a server that can verify a token must not be able to create one.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::time::Duration;

use ebla_model::time::Micros;
use ebla_mounttable_tree::error::{Error, Reason};
use ebla_mounttable_tree::identity::{ALL_PRINCIPALS, BlessingName, NO_EXTENSION, SEPARATOR};
use ebla_runtime::Clock;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, JwkSet, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey, Validation};
use parking_lot::Mutex;
use serde::Deserialize;

/// Tolerance for clock differences at both ends of a token's lifetime.
pub const LEEWAY: Duration = Duration::from_secs(60);

/// The longest token.
const TOKEN_BYTES_MAX: usize = 8 * 1024;
/// The number of cached verified tokens. Callers send the same one for minutes.
const VERIFIED_MAX: usize = 1_024;

/// The configuration of trusted tokens.
#[derive(Clone, Debug)]
pub struct TokenConfig {
    /// The providers' public keys: a JWK Set as JSON. Keys that are not for signatures, or of an unsupported kind, are
    /// ignored.
    pub keys: String,
    /// The trusted issuers (`iss`), each with a different host.
    pub issuers: Vec<String>,
    /// The expected audience (`aud`).
    pub audience: String,
}

/// Verifies tokens.
pub struct TokenVerifier {
    keys: Vec<Key>,
    /// The first component of names, by issuer.
    hosts: BTreeMap<String, String>,
    audience: String,
    clock: Clock,
    /// Verified tokens. Held for one operation.
    verified: Mutex<HashMap<String, VerifiedToken>>,
}

/// One public key.
struct Key {
    id: Option<String>,
    algorithms: &'static [Algorithm],
    key: DecodingKey,
}

/// The contents of a verified token.
#[derive(Clone)]
struct VerifiedToken {
    names: Vec<BlessingName>,
    begin: Micros,
    end: Micros,
}

#[derive(Deserialize)]
struct Claims {
    iss: String,
    aud: OneOrMany,
    exp: f64,
    nbf: Option<f64>,
    sub: Option<String>,
    email: Option<String>,
    email_verified: Option<bool>,
    #[serde(default)]
    groups: Vec<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl OneOrMany {
    fn has(&self, wanted: &str) -> bool {
        match self {
            Self::One(one) => one == wanted,
            Self::Many(many) => many.iter().any(|one| one == wanted),
        }
    }
}

impl fmt::Debug for TokenVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bearer").field("hosts", &self.hosts).field("keys", &self.keys.len()).finish_non_exhaustive()
    }
}

impl TokenVerifier {
    /// A verifier for the tokens that `trust` describes, with this clock's wall time.
    ///
    /// # Errors
    /// `BAD_REQUEST` when the keys are not a JWK Set or none of them is usable, there is no issuer, or two have the
    /// same host.
    pub fn new(trust: &TokenConfig, clock: Clock) -> Result<Self, Error> {
        let bad = |message: String| Error::new(Reason::BadRequest, message);
        let set: JwkSet = serde_json::from_str(&trust.keys).map_err(|error| bad(format!("no JWK Set: {error}")))?;
        let keys: Vec<Key> = set.keys.iter().filter_map(usable).collect();
        if keys.is_empty() {
            return Err(bad(
                "the JWK Set has no public key (RSA, EC P-256 or P-384, Ed25519) for signatures".to_owned()
            ));
        }
        let mut hosts = BTreeMap::new();
        for issuer in &trust.issuers {
            let host = escaped(host(issuer));
            if host.is_empty() || hosts.values().any(|verified| *verified == host) {
                return Err(bad(format!("issuer {issuer:?} has no host, or the same host as another issuer")));
            }
            hosts.insert(issuer.clone(), host);
        }
        if hosts.is_empty() || trust.audience.is_empty() {
            return Err(bad("token authentication needs at least one issuer and an audience".to_owned()));
        }
        Ok(Self { keys, hosts, audience: trust.audience.clone(), clock, verified: Mutex::default() })
    }

    /// The names in the token of a header's value, `Bearer TOKEN`.
    ///
    /// # Errors
    /// `NOT_AUTHENTICATED`, with the cause and without any part of the token.
    pub fn names(&self, header: &str) -> Result<Vec<BlessingName>, Error> {
        let token = match header.split_once(' ') {
            Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") => token.trim(),
            _ => return Err(refused("the authorization header is not \"Bearer TOKEN\"")),
        };
        if token.len() > TOKEN_BYTES_MAX {
            return Err(refused("the token is longer than 8 KiB"));
        }
        let now = self.clock.wall();
        let seen = self.verified.lock().get(token).cloned();
        let is_new = seen.is_none();
        let verified = match seen {
            Some(verified) => verified,
            None => self.check(token)?,
        };
        if now > verified.end.plus(LEEWAY) {
            return Err(refused("the token has expired; request a new one"));
        }
        if now.plus(LEEWAY) < verified.begin {
            return Err(refused("the token is not valid yet; check the clocks"));
        }
        if is_new {
            self.cache_token(token, verified.clone());
        }
        Ok(verified.names)
    }

    fn cache_token(&self, token: &str, checked: VerifiedToken) {
        let mut verified = self.verified.lock();
        if verified.len() >= VERIFIED_MAX {
            // Rare, and active tokens return at once.
            verified.clear();
        }
        verified.insert(token.to_owned(), checked);
    }

    /// Verifies a token's signature, issuer and audience.
    fn check(&self, token: &str) -> Result<VerifiedToken, Error> {
        let header = jsonwebtoken::decode_header(token).map_err(|_| refused("the bearer token is not a signed JWT"))?;
        let named = |key: &&Key| header.kid.is_none() || key.id.is_none() || key.id == header.kid;
        let mut fitting = self.keys.iter().filter(|key| key.algorithms.contains(&header.alg)).filter(named);
        let claims = fitting.find_map(|key| claims(token, key, header.alg));
        let claims = claims.ok_or_else(|| refused("the token is not signed by a known key"))?;
        let Some(host) = self.hosts.get(&claims.iss) else {
            return Err(refused("the token's issuer is not trusted"));
        };
        if !claims.aud.has(&self.audience) {
            return Err(refused("the token has another audience"));
        }
        let (begin, end) = (claims.nbf.map_or(Micros::ZERO, micros), micros(claims.exp));
        Ok(VerifiedToken { names: names(host, &claims)?, begin, end })
    }
}

fn refused(message: &str) -> Error {
    Error::new(Reason::NotAuthenticated, message)
}

/// The key in a usable form; `None` if it cannot verify signatures.
fn usable(jwk: &Jwk) -> Option<Key> {
    use Algorithm::{ES256, ES384, EdDSA, PS256, PS384, PS512, RS256, RS384, RS512};
    if jwk.common.public_key_use.as_ref().is_some_and(|used| *used != PublicKeyUse::Signature) {
        return None;
    }
    let algorithms: &'static [Algorithm] = match &jwk.algorithm {
        AlgorithmParameters::RSA(_) => &[RS256, RS384, RS512, PS256, PS384, PS512],
        AlgorithmParameters::EllipticCurve(key) => match key.curve {
            EllipticCurve::P256 => &[ES256],
            EllipticCurve::P384 => &[ES384],
            _ => return None,
        },
        AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => &[EdDSA],
        // A server that can verify with a shared secret could also sign with it.
        _ => return None,
    };
    let key = DecodingKey::from_jwk(jwk).ok()?;
    Some(Key { id: jwk.common.key_id.clone(), algorithms, key })
}

/// The claims, if the key verifies the signature. The caller checks times, issuer and audience.
fn claims(token: &str, key: &Key, algorithm: Algorithm) -> Option<Claims> {
    let mut validation = Validation::new(algorithm);
    validation.required_spec_claims.clear();
    validation.validate_exp = false;
    validation.validate_aud = false;
    jsonwebtoken::decode(token, &key.key, &validation).ok().map(|token| token.claims)
}

fn names(host: &str, claims: &Claims) -> Result<Vec<BlessingName>, Error> {
    let email = claims.email.as_ref().filter(|_email| claims.email_verified != Some(false));
    let users = [claims.sub.as_ref(), email].into_iter().flatten().filter(|user| !user.is_empty());
    let users = users.map(|user| format!("{host}:u:{}", escaped(user)));
    let groups = claims.groups.iter().filter(|group| !group.is_empty());
    let groups = groups.map(|group| format!("{host}:g:{}", escaped(group)));
    let (users, groups): (Vec<String>, Vec<String>) = (users.collect(), groups.collect());
    if users.is_empty() {
        return Err(refused("the token has neither \"sub\" nor \"email\""));
    }
    users.iter().chain(&groups).map(|name| name.parse()).collect()
}

/// The host of an issuer's URL with its port, or the issuer itself if it is not a URL.
fn host(issuer: &str) -> &str {
    let rest = issuer.split_once("://").map_or(issuer, |(_scheme, rest)| rest);
    rest.split(['/', '?', '#']).next().unwrap_or_default()
}

/// Escapes text as one component of a name: invalid characters and the escape character become %XX of their UTF-8.
fn escaped(text: &str) -> String {
    let reserved = text.contains(ALL_PRINCIPALS) || text == NO_EXTENSION;
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        let plain = !matches!(character, SEPARATOR | ',' | '%') && !character.is_control();
        if plain && !(reserved && matches!(character, '.' | '$')) {
            out.push(character);
        } else {
            let mut bytes = [0; 4];
            for byte in character.encode_utf8(&mut bytes).bytes() {
                out.push_str(&format!("%{byte:02X}"));
            }
        }
    }
    out
}

/// A claim's seconds since 1970, perhaps with a fraction. Values out of range saturate.
#[expect(clippy::cast_possible_truncation, reason = "a conversion from floats saturates")]
fn micros(seconds: f64) -> Micros {
    Micros::new((seconds * 1e6) as i64)
}

#[cfg(test)]
mod tests;
