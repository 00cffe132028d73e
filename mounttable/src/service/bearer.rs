//! Bearer tokens: callers known by what an identity provider has signed (JWT, RFC 7519; sent as RFC 6750 says).
//!
//! Everything that is needed to check a token is there when the server starts: the providers' public keys, as the JWK Set
//! (RFC 7517) that they publish. Nothing is fetched, so a provider that is down keeps nobody out, and one that changes its keys
//! needs a new file and a restart.
//!
//! | claim | must be | becomes a name |
//! |---|---|---|
//! | `iss` | one of the issuers that are trusted | its host, first in each name |
//! | `aud` | this table's, or a list with it | |
//! | `exp` | later than now; [`LEEWAY`] is allowed for clocks that differ | |
//! | `nbf` | not later than now, where it is there | |
//! | `sub` | not empty, or `email` is | `HOST:u:SUB` |
//! | `email` | not known to be unverified (`email_verified`) | `HOST:u:EMAIL` |
//! | `groups` | a list of texts | `HOST:g:GROUP` each |
//!
//! Only signatures with public keys count: who can check a token must not be able to make one.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ebla_model::time::Micros;
use ebla_runtime::Clock;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, JwkSet, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey, Validation};
use serde::Deserialize;

use crate::error::{Error, Reason};
use crate::identity::{BlessingName, EVERYBODY, NO_EXTENSION, SEPARATOR};

/// The header that carries a token, `Bearer TOKEN`.
pub const BEARER_HEADER: &str = "authorization";

/// A token is valid for so long after its end, and before its beginning.
pub const LEEWAY: Duration = Duration::from_secs(60);

/// Bytes of a token.
const TOKEN_BYTES_MAX: usize = 8 * 1024;
/// Tokens whose signature need not be checked again. Callers send the same one for minutes.
const KNOWN_MAX: usize = 1_024;

/// Who may say who a caller is.
#[derive(Clone, Debug)]
pub struct Trust {
    /// The providers' public keys: a JWK Set as JSON. Those that are not for signatures, or of a kind that is not known here, are
    /// left out.
    pub keys: String,
    /// The `iss` of tokens that count, each with a host of its own.
    pub issuers: Vec<String>,
    /// The `aud` of tokens that are meant for this table.
    pub audience: String,
}

/// Checks tokens.
pub struct Bearer {
    keys: Vec<Key>,
    /// What names begin with, by issuer.
    hosts: BTreeMap<String, String>,
    audience: String,
    clock: Clock,
    /// Tokens that were checked before. Held for a look-up.
    known: Mutex<HashMap<String, Known>>,
}

/// One public key.
struct Key {
    id: Option<String>,
    algorithms: &'static [Algorithm],
    key: DecodingKey,
}

/// What a good token says.
#[derive(Clone)]
struct Known {
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

impl fmt::Debug for Bearer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bearer").field("hosts", &self.hosts).field("keys", &self.keys.len()).finish_non_exhaustive()
    }
}

impl Bearer {
    /// Checks tokens of those whom `trust` names, by this clock's wall time.
    ///
    /// # Errors
    /// `BAD_REQUEST` when the keys are no JWK Set or none of them can be used, there is no issuer, or two have the same host.
    pub fn new(trust: &Trust, clock: Clock) -> Result<Self, Error> {
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
            if host.is_empty() || hosts.values().any(|known| *known == host) {
                return Err(bad(format!("issuer {issuer:?} has no host of its own: names of two would be the same")));
            }
            hosts.insert(issuer.clone(), host);
        }
        if hosts.is_empty() || trust.audience.is_empty() {
            return Err(bad("tokens need an issuer and an audience to be told from those for others".to_owned()));
        }
        Ok(Self { keys, hosts, audience: trust.audience.clone(), clock, known: Mutex::default() })
    }

    /// The names that a header's value, `Bearer TOKEN`, proves.
    ///
    /// # Errors
    /// `NOT_AUTHENTICATED`, with what is wrong and no part of the token.
    pub fn names(&self, header: &str) -> Result<Vec<BlessingName>, Error> {
        let token = match header.split_once(' ') {
            Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") => token.trim(),
            _ => return Err(refused("the authorization header is not \"Bearer TOKEN\"")),
        };
        if token.len() > TOKEN_BYTES_MAX {
            return Err(refused("the token is longer than 8 KiB"));
        }
        let now = self.clock.wall();
        let seen = self.known().get(token).cloned();
        let is_new = seen.is_none();
        let known = match seen {
            Some(known) => known,
            None => self.check(token)?,
        };
        if now > known.end.plus(LEEWAY) {
            return Err(refused("the token has expired: ask its issuer for a new one"));
        }
        if now.plus(LEEWAY) < known.begin {
            return Err(refused("the token is not valid yet: do the clocks differ?"));
        }
        if is_new {
            self.remember(token, known.clone());
        }
        Ok(known.names)
    }

    fn remember(&self, token: &str, checked: Known) {
        let mut known = self.known();
        if known.len() >= KNOWN_MAX {
            // Seldom, and what is in use comes back at once.
            known.clear();
        }
        known.insert(token.to_owned(), checked);
    }

    fn known(&self) -> MutexGuard<'_, HashMap<String, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A token's signature, and whom it is from and for.
    fn check(&self, token: &str) -> Result<Known, Error> {
        let header = jsonwebtoken::decode_header(token).map_err(|_| refused("the bearer token is not a signed JWT"))?;
        let named = |key: &&Key| header.kid.is_none() || key.id.is_none() || key.id == header.kid;
        let mut fitting = self.keys.iter().filter(|key| key.algorithms.contains(&header.alg)).filter(named);
        let claims = fitting.find_map(|key| claims(token, key, header.alg));
        let claims = claims.ok_or_else(|| refused("the token is not signed by a key that is known here"))?;
        let Some(host) = self.hosts.get(&claims.iss) else {
            return Err(refused("the token's issuer is not trusted here"));
        };
        if !claims.aud.has(&self.audience) {
            return Err(refused("the token is meant for another audience"));
        }
        let (begin, end) = (claims.nbf.map_or(Micros::ZERO, micros), micros(claims.exp));
        Ok(Known { names: names(host, &claims)?, begin, end })
    }
}

fn refused(message: &str) -> Error {
    Error::new(Reason::NotAuthenticated, message)
}

/// What a key of the set can check; `None` for keys that are of no use here.
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
        // A secret that both sides share proves nothing to one of them.
        _ => return None,
    };
    let key = DecodingKey::from_jwk(jwk).ok()?;
    Some(Key { id: jwk.common.key_id.clone(), algorithms, key })
}

/// The claims, if the key has signed them. Times, issuer and audience are looked at by the caller, by its own clock.
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
        return Err(refused("the token says of whom it is with neither \"sub\" nor \"email\""));
    }
    users.iter().chain(&groups).map(|name| name.parse()).collect()
}

/// The host of an issuer's URL with its port, or the issuer itself when it is no URL.
fn host(issuer: &str) -> &str {
    let rest = issuer.split_once("://").map_or(issuer, |(_scheme, rest)| rest);
    rest.split(['/', '?', '#']).next().unwrap_or_default()
}

/// A text as one component of a name: what a name cannot hold, and the escape itself, as %XX of its UTF-8.
fn escaped(text: &str) -> String {
    let reserved = text.contains(EVERYBODY) || text == NO_EXTENSION;
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

/// Seconds since 1970 as a claim has them, perhaps with a fraction. What cannot be a time is far in the past or the future.
#[expect(clippy::cast_possible_truncation, reason = "a conversion from floats saturates")]
fn micros(seconds: f64) -> Micros {
    Micros::new((seconds * 1e6) as i64)
}

#[cfg(test)]
mod tests;
